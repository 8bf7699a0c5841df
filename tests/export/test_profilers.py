"""Runs and plans for profilers: speedscope, pprof, and the nesting that Chrome's trace has, too."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from collections import Counter
from itertools import pairwise

import pytest

import ggml_py as ggml
from ggml_py.export import to_chrome, to_pprof, to_speedscope
from ggml_py.export.timeline import LAYER, SPLIT, timeline_of
from ggml_py.trace.recorded import NODES

from ..support.cli_runs import ok
from ..support.drawn_plans import HOSTILE, llama, ran, smallest, spread, waited_late
from ..support.measured import knows_all, machine

FALLBACK = llama(4, refused=("SOFT_MAX",))
KNOWN = knows_all([FALLBACK]).with_cards({"gpu0": "rtx4090"})
SOURCES = {
    "plan": (FALLBACK, None),
    "predicted": (FALLBACK, KNOWN),
    "nothing known": (FALLBACK, machine()),
    "eight": (spread(8), None),
    "hostile": (llama(2, suffix=HOSTILE), None),
    "empty": (smallest(), None),
    "log": (ggml.Plan.from_debug_log(FALLBACK.text()), None),
    "run": (ran(FALLBACK), None),
    "splits": (ran(FALLBACK, per_op=False), None),
    "late": (waited_late(FALLBACK), None),
}


@pytest.fixture(params=SOURCES)
def given(request):
    return SOURCES[request.param]


# --- what is around what


def test_nodes_are_in_their_split_and_this_in_its_layer():
    nested = timeline_of(ran(FALLBACK)).nested()
    found = {(s.what, s.name) for s in nested}
    assert {("layer", f"layer {i}") for i in range(4)} < found and ("split", "split 0") in found
    open_ = {}
    n = Counter()
    for one in nested:
        stack = open_.setdefault(one.track, [])
        while stack and (stack[-1].end < one.end or stack[-1].end <= one.start):
            stack.pop()
        if one.what == "nodes":
            layer, split = stack[-2:]
            node = FALLBACK.nodes[one.details["node"]]
            assert (layer.what, split.what) == (LAYER, SPLIT)
            assert layer.name == f"layer {node.name.rpartition('-')[2]}"
            assert split.name == f"split {node.split}"
            n[node.id] += 1
        stack.append(one)
    assert n == {node.id: 3 for node in FALLBACK.nodes}  # computes


def test_a_split_that_was_not_measured_node_by_node_is_in_its_layers():
    nested = timeline_of(ran(FALLBACK, per_op=False, n=2)).nested()
    around = {
        (a.name, b.name, b.compute) for a, b in pairwise(nested)
        if (a.what, b.what) == (LAYER, NODES)
    }  # fmt: skip
    assert {("layers 0 to 1", "split 4", i) for i in range(2)} < around
    assert {("layer 2", "split 10", i) for i in range(2)} < around


def test_chromes_trace_has_the_layers():
    events = to_chrome.render(ran(FALLBACK))["traceEvents"]
    kinds = Counter(e["cat"] for e in events if e["ph"] == "X")
    assert kinds["layer"] and kinds["split"] and kinds["nodes"] == 3 * len(FALLBACK.nodes)


def test_predicted_times_are_the_costs():
    rows, cost = timeline_of(FALLBACK, KNOWN), FALLBACK.cost(KNOWN)
    assert rows.times.startswith("predicted: ") and not rows.measured
    for one in rows.slices:
        if one.what == "nodes":
            seconds = next(n.seconds for n in cost.nodes if n.id == one.details["node"])
            assert one.end - one.start == round(1e9 * seconds)
    end = max(one.end for one in rows.slices)
    assert end == pytest.approx(1e9 * sum(split.seconds for split in cost.splits), rel=1e-3)
    unknown = timeline_of(FALLBACK, machine())
    assert {one.end - one.start for one in unknown.slices} == {0}
    assert {one.told.partition(" (")[2] for one in unknown.slices} == {"not known)"}


# --- speedscope


def test_speedscopes_rules(given):
    """What its importer demands: every frame is closed, the last opened first, in order of time."""
    data = json.loads(json.dumps(to_speedscope.render(*given)))
    for profile in data["profiles"]:
        assert profile["unit"] in ("nanoseconds", "none")
        open_, last = [], profile["startValue"]
        for event in profile["events"]:
            assert last <= event["at"] <= profile["endValue"]
            last = event["at"]
            if event["type"] == "O":
                open_.append(event["frame"])
            else:
                assert open_.pop() == event["frame"]
        assert open_ == [] and profile["events"]
    assert len({f["name"] for f in data["shared"]["frames"]}) == len(data["shared"]["frames"])


def test_speedscope_has_the_times():
    data = to_speedscope.render(ran(FALLBACK, n=1))
    frames = [frame["name"] for frame in data["shared"]["frames"]]
    gpu = data["profiles"][data["activeProfileIndex"]]
    assert gpu["name"] == "gpu0"
    took = Counter()
    for a, b in pairwise(gpu["events"]):
        if (a["type"], b["type"]) == ("O", "C"):  # nothing is in it
            took[frames[a["frame"]]] += b["at"] - a["at"]
    run = ran(FALLBACK, n=1)
    expected = {s.name: s.end - s.start for s in timeline_of(run).slices if s.track.name == "gpu0"}
    assert took == expected


# --- pprof


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """The fields of a protobuf message: number and value."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        else:
            assert key & 7 == 0
        found.append((key >> 3, value))
    return found


def numbers(packed):
    at, found = 0, []
    while at < len(packed):
        value, at = varint(packed, at)
        found.append(value)
    return found


def profile(content):
    """The values of each stack, the leaf first, by its names; and the types of the values."""
    top = fields(content)
    strings = [value.decode() for field, value in top if field == 6]
    assert strings[0] == ""
    names = {}
    for field, value in top:
        if field == 5:
            function = dict(fields(value))
            names[function[1]] = strings[function[2]]
    locations = {}
    for field, value in top:
        if field == 4:
            location = dict(fields(value))
            locations[location[1]] = names[dict(fields(location[4]))[1]]
    types = [tuple(strings[i] for _, i in fields(value)) for field, value in top if field == 1]
    samples = {}
    for field, value in top:
        if field == 2:
            sample = dict(fields(value))
            stack = tuple(locations[i] for i in numbers(sample[1]))
            samples[stack] = numbers(sample[2])
            assert len(samples[stack]) == len(types)
    return types, samples


def test_pprofs_samples_are_the_slices(given):
    types, samples = profile(to_pprof.render(*given))
    rows = timeline_of(*given)
    own = [one for one in rows.slices if one.track.kind != "scheduler"]
    assert sum(value[0] for value in samples.values()) == len(own)
    assert types[0] == ("count", "count") and len(types) == 1 + rows.is_timed
    if rows.is_timed:
        assert types[1] == ("time", "nanoseconds")
        total = sum(one.end - one.start for one in own)
        assert sum(value[1] for value in samples.values()) == total


def test_pprofs_stacks():
    _types, samples = profile(to_pprof.render(ran(FALLBACK)))
    node = FALLBACK.node("soft_max_3-2")
    stack = (node.name, f"split {node.split}", "layer 2", "CPU")
    assert samples[stack][0] == 3


@pytest.mark.parametrize("name", SOURCES)
def test_go_reads_it(name, tmp_path):
    if shutil.which("go") is None:
        pytest.skip("needs Go (apt install golang-go)")
    (tmp_path / "x.pprof").write_bytes(to_pprof.render(*SOURCES[name]))
    done = subprocess.run(
        ["go", "tool", "pprof", "-raw", str(tmp_path / "x.pprof")],
        capture_output=True, text=True, check=False, timeout=60,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin:/usr/local/bin:/usr/local/go/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _types, samples = profile(to_pprof.render(*SOURCES[name]))
    told = done.stdout.partition("Samples:\n")[2].partition("Locations\n")[0].splitlines()
    assert len(told) - 1 == len(samples)


# --- the command line


def test_from_the_command_line(tmp_path):
    ran(FALLBACK).to_json(tmp_path / "run.json")
    FALLBACK.to_json(tmp_path / "plan.json")
    KNOWN.save(tmp_path / "machine.json")
    ok("view", tmp_path / "run.json", "-o", tmp_path / "r.speedscope.json")
    ok("view", tmp_path / "run.json", "-o", tmp_path / "r.pb.gz")
    for out in ("p.speedscope.json", "p.pprof", "p.trace.json"):
        ok("view", tmp_path / "plan.json", "-o", tmp_path / out,
           "--machine", tmp_path / "machine.json")  # fmt: skip
        content = (tmp_path / out).read_bytes()
        assert b"times: predicted" in content or b'"times":"predicted' in content
    assert profile(gzip.decompress((tmp_path / "r.pb.gz").read_bytes()))[1]
    assert json.loads((tmp_path / "r.speedscope.json").read_bytes())["name"] == "times: measured"

"""What a run knows: events and waits apart from copies, bounds apart from what was measured, and
nothing made up of what was not measured."""

import json
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import Run
from ggml_py.export import run_times, timeline, to_chrome
from ggml_py.export.json import run_file as run_json
from ggml_py.export.page import columns as page_data
from ggml_py.trace.recorded import (
    ASYNC,
    AT_MOST,
    AT_ONCE,
    EVENT,
    MEASURED,
    NODES,
    NOT_KNOWN,
    QUEUE_WAIT,
    RECORD,
    REFUSED,
    SYNCHRONIZE,
    WAIT,
)  # fmt: skip

from ..support.sim_net import Net

SPLIT = (("known0", "MUL_MAT"), ("known1", "RELU"))


def recorded(*devices, computes=1, per_op=False, wait=True, at_once=False, **options):
    """Computes of a net, each given without a wait; the run, and the scheduler's plan."""
    with Net(*devices, **options) as net:
        with net.scheduler.record(per_op) as recording:
            for _ in range(computes):
                net.scheduler.alloc_graph(net.graph)
                net.set_input()
                compute = net.scheduler.compute if at_once else net.scheduler.compute_async
                compute(net.graph)
                net.scheduler.reset()
            if wait:
                net.scheduler.synchronize()
        net.scheduler.synchronize()
    return recording.run


@pytest.fixture(scope="module")
def pipeline():
    devices = [ggml.sim_device(name, supports={op: True}) for name, op in SPLIT]
    return recorded(*devices, computes=6, parallel=True)


@pytest.fixture(scope="module")
def in_turn():
    devices = [ggml.sim_device(name, supports={op: True}) for name, op in SPLIT]
    return recorded(*devices)


def of(run, kind):
    return [e for e in run.events if e.kind == kind]


def test_events_of_a_pipeline(pipeline):
    """Upstream records a split's event behind its nodes, and has the queue wait for it before its
    copy is written again; it waits itself before it writes over an input."""
    names = pipeline.schedulers[0].backends
    for compute in pipeline.computes:
        splits = [names.index(s.backend) for s in compute.plan.splits]
        mine = [e for _i, e in compute.events]
        records = [e for e in mine if e.kind == RECORD]
        assert [e.backend for e in records] == [e.by for e in records] == splits
        assert {e.copy for e in mine} == {compute.event.copy}
        waits = [e for e in mine if e.kind == QUEUE_WAIT]
        assert all(e.by == e.backend for e in waits) and len(waits) == 2  # copies of h and its relu
        ours = [e for e in mine if e.kind == WAIT and e.inside >= 0]
        assert [e.how for e in ours] == [EVENT]  # before x is written
        order = [e.kind for e in mine if e.kind in (NODES, RECORD)]
        assert order == [NODES, RECORD] * len(splits)
    assert {c.event.copy for c in pipeline.computes} == {0, 1, 2, 3}
    last = [e for e in of(pipeline, WAIT) if e.start >= pipeline.computes[-1].event.end]
    assert {(names[e.backend], e.how) for e in last} == {
        (n, SYNCHRONIZE) for n in ("known0", "known1", "CPU")
    }


def test_without_events_all_is_synchronised(in_turn):
    assert not of(in_turn, RECORD) and not of(in_turn, QUEUE_WAIT)
    assert {e.how for e in of(in_turn, WAIT)} == {SYNCHRONIZE}


def test_how_copies_were_made(pipeline, in_turn):
    for run in (pipeline, in_turn):
        hows = {(c.name, c.how) for k in run.computes for s in k.splits for c in s.copies}
        assert hows == {("x", AT_ONCE), ("h", ASYNC), ("node_1", ASYNC)}
        assert run.summary().copied_how[ASYNC] == 2 * len(run.computes)
    # From the CPU's memory to an asynchronous device: asked, and refused.
    device = ggml.sim_device("known0", supports={"MUL_MAT": True})
    (compute,) = recorded(device).computes
    hows = {c.name: c.how for s in compute.splits for c in s.copies}
    assert hows == {"x": AT_ONCE, "h": AT_ONCE, "node_1": REFUSED}  # the CPU has no such function
    assert not any(c.queued for s in compute.splits for c in s.copies)
    host = ggml.sim_device("known2", async_=False)
    (compute,) = recorded(host).computes
    assert {c.how for s in compute.splits for c in s.copies} == {AT_ONCE}


def test_what_was_waited_for_at_once_is_measured():
    device = ggml.sim_device("known3")
    (compute,) = recorded(device, at_once=True).computes
    (split,) = compute.splits
    assert split.known == (MEASURED,)
    assert recorded(device, at_once=True).summary().known == {"known3": MEASURED}
    (late,) = recorded(device, wait=False).computes
    assert late.splits[0].known == (NOT_KNOWN,)
    assert "not known" in late.run.summary().headline()


def test_what_was_waited_for_late_is_a_bound():
    """The caller sleeps before it waits: the device may have been done long before."""
    with Net(ggml.sim_device("known3")) as net, net.scheduler.record() as recording:
        for _ in range(2):
            net.scheduler.alloc_graph(net.graph)
            net.set_input()
            net.scheduler.compute_async(net.graph)
            net.scheduler.compute_async(net.graph)
            time.sleep(0.02)
            net.scheduler.synchronize()
            net.scheduler.reset()
    run = recording.run
    assert [c.splits[0].known[0] for c in run.computes[1::2]] == [AT_MOST] * 2
    assert all(c.end - c.event.end > 15e6 for c in run.computes[1::2])
    assert run.summary().known == {"known3": AT_MOST}
    assert run.summary().computing["known3"] > 30e6  # of which it says "at most"


def test_a_pipelines_times_are_bounds(pipeline):
    summary = pipeline.summary()
    assert summary.known == {"known0": AT_MOST, "known1": AT_MOST}
    text = str(summary)
    assert "computing on known1, at most" in text and "idle meanwhile, at least" in text
    assert "event 1 of known1 waited for by the queue of known1" in text
    assert "known0 synchronised in full" in text and "12 cpy_tensor_async" in text
    assert summary.handing_over > 0 and "handing copies over" in text


def test_per_op_of_an_asynchronous_device():
    run = recorded(ggml.sim_device("known3"), per_op=True)
    assert [n.known for n in run.computes[0].nodes] == [MEASURED] * 3


def test_the_trace_tells_waits_from_copies_and_bounds_from_times(pipeline, in_turn):
    for run in (pipeline, in_turn):
        rows = timeline.of_run(run)
        copying = [s for s in rows.slices if s.track.kind == timeline.COPYING]
        assert {s.what for s in copying} == {"copy"}
        waits = [(s.start, s.end) for s in rows.slices if s.what == WAIT]
        assert len(waits) == sum(e.compute >= 0 for e in of(run, WAIT))
        for s in copying:
            assert all(end <= s.start or s.end <= start for start, end in waits)
        bounds = [s for s in rows.slices if s.what == NODES and s.known == AT_MOST]
        assert all("at most" in s.told for s in bounds)
        given = [s for s in rows.slices if s.what == timeline.GIVE]
        alone = [s for s in rows.slices if s.what == NODES and s.known != MEASURED]
        assert len(given) == len(alone)
        events = to_chrome.render(run)["traceEvents"]
        shown = Counter(e["name"] for e in events if e["ph"] == "X")
        assert Counter(f"{s.name}, {s.details['took']}" for s in bounds) <= shown
        pale = [e for e in events if e.get("cname") == "thread_state_unknown"]
        assert len(pale) == sum(s.known != MEASURED for s in rows.slices) > 0
    names = {s.name for s in timeline.of_run(pipeline).slices}
    assert {"record event 1 of known0", "known1 will wait for event 2 of known1"} <= names


def test_old_files_are_read_and_claim_nothing(pipeline, tmp_path):
    data = json.loads(json.dumps(pipeline.to_json()))
    data["schema"] = 1
    keep = [i for i, kind in enumerate(data["events"]["kind"]) if not kind.startswith("event")]
    new = {old: i for i, old in enumerate(keep)}
    data["events"] = {
        name: [column[i] for i in keep]
        for name, column in data["events"].items()
        if name not in ("how", "by")
    }
    data["events"]["inside"] = [new.get(i, -1) for i in data["events"]["inside"]]
    run = Run.of(run_json.parse(json.dumps(data).encode(), "old.json"))
    assert {e.how for e in run.events} == {""} and {e.by for e in run.events} == {-1}
    assert run.summary().known == {"known0": AT_MOST, "known1": AT_MOST}
    assert [s.what for s in run.summary().synced] == ["wait"] * len(run.summary().synced)
    again = Run.of(run_json.parse(json.dumps(run.to_json()).encode(), "new.json"))
    assert again == run
    for edit, message in (
        (lambda d: d["events"]["how"].__setitem__(0, "slowly"), "has how='slowly'"),
        (lambda d: d["events"]["by"].__setitem__(0, 9), "is on backend 9"),
    ):
        wrong = json.loads(json.dumps(pipeline.to_json()))
        edit(wrong)
        with pytest.raises(ValueError, match=message):
            run_json.parse(json.dumps(wrong).encode(), "wrong.json")


def test_originals_that_serve_as_copies(pipeline):
    """Of the graph input x the current copy is x itself."""
    for plan in pipeline.plans:
        now, n = plan.settings.cur_copy, plan.settings.n_copies
        mine = [c for c in plan.copies if c.name == "x" or c.name.startswith("CPU#x#")]
        assert len(mine) == n and mine[now].record.kind == "leaf"
        assert [c.name for i, c in enumerate(mine) if i != now] == [
            f"CPU#x#{i}" for i in range(n) if i != now
        ]
        assert len(plan.copies) % n == 0
        assert [c.id for c in plan.copies] == [c.id for c in plan.reference.copies]


def test_no_share_is_shown_as_a_time(in_turn):
    """Found wrong: each node of a split had an equal part of its time, as if it were measured."""
    whole = recorded(ggml.sim_device("known3"), at_once=True)
    times = run_times.times(whole)
    assert not times.per_op and set(times.nodes) == {-1}
    (split,) = whole.computes[0].splits
    assert times.splits == ((split.end - split.nodes[0].start, MEASURED),)
    page = page_data.data(whole.plans[0], times)["times"]
    assert page["nodes"] == times.nodes and page["splits"] == times.splits
    times = run_times.times(in_turn)  # one node each, of which only a bound is known
    assert [t.known for t in times.splits] == [AT_MOST] * 3 and set(times.nodes) == {-1}
    copies = [c for s in in_turn.computes[0].splits for c in s.copies]
    assert sorted(times.copies) == sorted(
        -1 if c.queued else c.event.ns - c.waited for c in copies
    )
    alone = run_times.times(recorded(ggml.sim_device("known3"), per_op=True))
    assert alone.per_op and all(ns > 0 for ns in alone.nodes)


def test_a_run_without_events_says_so():
    assert "waits and events" not in str(Run((), (), ()).summary())
    assert replace(Run((), (), ())).summary().synced == () and np.isfinite(1)

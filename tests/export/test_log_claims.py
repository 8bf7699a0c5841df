"""What is said of a plan that was read from a log does not contradict the plan that was printed."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

import ggml_py as ggml
from ggml_py.advice.finding import Finding
from ggml_py.export.json import plan_file as to_json
from ggml_py.trace.units import AtLeast, most

from ..support.advice_world import World, gpu
from ..support.debug_logs import DUMP, printed
from ..support.named_worlds import worlds


def contradictions(true, causes):
    """Sentences about `true` that the plan of its print makes, and that are false."""
    text = printed(true, causes=causes)
    if "node #" not in text:
        return
    log = ggml.Plan.from_debug_log(text, upstream=ggml.enums.UPSTREAM)
    if (log.n_splits, log.n_inputs) != (true.n_splits, true.n_inputs):
        yield "another number of splits or copies"
    if log.nodes_per_backend() != {
        b.name: n for b in log.backends for n in [true.nodes_per_backend().get(b.name, 0)]
    }:
        yield "nodes on other backends"
    if not log.copy_bytes <= true.copy_bytes <= most(log.copy_bytes):
        yield f"{true.copy_bytes} bytes are not {log.copy_bytes} to {most(log.copy_bytes)}"
    if log.n_inputs and re.search(r"\(\d", log.headline().split(", nodes")[0]):
        yield "the headline has an exact size"
    for ours, theirs in zip(log.splits, true.splits, strict=True):
        for a, b in zip(ours.inputs, theirs.inputs, strict=True):
            if not a.nbytes <= b.nbytes <= most(a.nbytes):
                yield f"a copy of {b.nbytes} bytes is not {a.nbytes} to {most(a.nbytes)}"
    for node in log.nodes:
        other = true.nodes[node.index]
        if not node.name and node.is_view_op:
            continue
        if not node.nbytes <= other.nbytes <= most(node.nbytes):
            yield f"{node.name} of {other.nbytes} bytes"
        told = str(log.explain(node))
        if re.search(r"\b0 B\b", told):
            yield f"0 B in {told}"
        witness = log.explain(node).links[0].witness
        if causes and witness is not None and node.cause.code.startswith("1.wgt"):
            expected = true.node(node.index).cause.witness
            if expected is not None and expected.name.encode()[:20] != witness.name.encode()[:20]:
                yield f"{node.name} follows {witness.name}, not {expected.name}"
    for finding in log.advice(0):
        if re.search(r"\b0 B\b", str(finding)):
            yield f"0 B in {finding}"
        yield from untrue(finding, log, true)


def untrue(finding, log, true):
    """What a finding claims about the nodes that it names."""
    if finding.id == "GP115":
        nodes = [true.nodes[t.index] for t in finding.tensors]
        held = [n for n in nodes if n.cause.code.startswith(("1.", "usr"))]
        if held and "according to the printed causes" in finding.text:
            yield f"GP115: {held[0].name} is held by {held[0].cause.code}"
        read = [s for n in nodes for s in n.srcs if s.is_weight]
        named = [s for s in read if s.name.endswith((".weight", ".bias"))]
        if named and "is named like a weight" in finding.text:
            yield f"GP115: {named[0].name} has"
        if read and "no weight keeps" in finding.text and held:
            yield "GP115: a weight keeps it"
    if finding.id in ("GP102", "GP103", "GP104"):
        inputs = {i.tensor.name for s in true.splits for i in s.inputs}
        for t in finding.tensors:
            if t.name not in inputs and not any(name.startswith(t.name) for name in inputs):
                yield f"{finding.id}: {t.name} is not copied"


@pytest.mark.parametrize("causes", [False, True])
def test_logs_do_not_contradict_the_plan(causes):
    for seed in range(25):
        for plan in worlds(seed):
            assert list(contradictions(plan, causes)) == [], seed


@pytest.mark.thorough("sample")
@pytest.mark.parametrize("causes", [False, True])
def test_more_logs_do_not_contradict_the_plan(causes):
    for seed in range(1000, 1250):
        for plan in worlds(seed):
            assert list(contradictions(plan, causes)) == [], seed


def test_sizes_are_bounds():
    plan = ggml.Plan.from_debug_log(DUMP)
    inp_pos = plan.node("inp_pos")
    assert isinstance(inp_pos.nbytes, AtLeast)
    assert inp_pos.nbytes.most == 1023
    assert (plan.copy_bytes, plan.copy_bytes.most) == (6 << 20, (8 << 20) + 1021)
    assert "inp_pos' (less than 1.0 KiB)" in str(plan.explain("Qcur-0"))
    assert "at least 3.0 MiB" in str(plan.explain("norm-0"))
    small = ggml.Plan.from_debug_log(re.sub(r"\( *\d+[KM]\)", "(   0K)", DUMP))
    assert "3 copies (less than 3.0 KiB)" in small.headline()
    told = (small.headline(), str(small.diff(plan)), *map(str, small.advice(0)))
    assert "0 B" not in "".join(told)


def test_machines_are_told_so(tmp_path):
    """Found wrong: "bytes": 0, of what is less than 1 KiB."""
    text = re.sub(r"\( *\d+[KM]\)", "(   0K)", DUMP)
    big = re.sub(r"\( *\d+[KM]\)", "(99999)", DUMP)
    plan, other = ggml.Plan.from_debug_log(text), ggml.Plan.from_debug_log(big)
    for expected, one in ((1023, plan), (None, other)):
        about = one.splits[-1].inputs[-1].nbytes
        found = Finding("GP102", "cost", "title", "text", "do", (), about).to_dict()
        assert (found["bytes"], found["bytes_at_most"]) == (about, expected)
        data = one.to_json(tmp_path / "p.json")
        assert data["copy_bytes"] == one.copy_bytes and "copy_bytes_at_most" in data
        assert {row["nbytes_at_most"] for row in data["tensors"] if row["name"]} == {expected}
        jsonschema.validate(json.loads(json.dumps(data)), to_json.schema())
        assert ggml.Plan.from_json(tmp_path / "p.json") == one
        one.export(tmp_path / "p.trace.json", force=True)
        events = json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"]
        args = [e["args"] for e in events if "bytes" in e.get("args", {})]
        assert args and all(a["bytes_at_most"] == expected for a in args)
    diff = plan.diff(ggml.Plan.from_debug_log(text.replace("inp_pos", "inp_sop"))).to_dict()
    assert diff["before"]["copy_bytes_at_most"] == 3 * 1023
    assert [e["nbytes_at_most"] for e in diff["copies_added"]] == [1023]


def test_so_they_are_when_the_plan_was_saved(tmp_path):
    plan = ggml.Plan.from_debug_log(DUMP)
    plan.to_json(tmp_path / "p.json")
    again = ggml.Plan.from_json(tmp_path / "p.json")
    assert again == plan and again.headline() == plan.headline()
    assert again.copy_bytes.most == plan.copy_bytes.most


def test_what_is_not_known_to_be_enough_is_not_enough():
    from ggml_py.checks import assert_max_copy_bytes

    plan = ggml.Plan.from_debug_log(DUMP)
    assert_max_copy_bytes(plan, 9 << 20)
    with pytest.raises(AssertionError, match="this log cannot show whether it is more"):
        assert_max_copy_bytes(plan, 7 << 20)
    with pytest.raises(AssertionError, match="6291456 bytes"):
        assert_max_copy_bytes(plan, 5 << 20)


@pytest.mark.parametrize("causes", [False, True])
def test_what_is_not_printed_is_unknown(causes, tmp_path):
    """Found wrong: "is on no backend", "upstream set no cause", "None → gpu0"."""
    from contextlib import ExitStack

    from ggml_py.checks import assert_max_copy_bytes, assert_max_splits, assert_pins

    with ExitStack() as stack:
        w = World(stack, gpu(), "CPU")
        x = w.input("tiny", 8, 4)
        out = w.op("mul_mat", w.tensor("a", 8, 8, on="gpu0"), x, name="h")
        plan = w.plan(w.op("sqr", out, name="out"), op_offload=False)
    log = ggml.Plan.from_debug_log(printed(plan, causes=causes))
    tiny = log.node("tiny")
    assert tiny.backend is None and not tiny.cause.is_known
    assert "does not contain" in tiny.cause.text
    told = log.explain("tiny")
    assert str(told).startswith("tiny (?) is on an unknown backend: cause not known")
    assert "the debug log does not say where 'tiny' is, or why" in told.to_dict()["limits"]
    assert plan.node("tiny").cause.is_known and log.node("h").cause.is_known == causes
    other = ggml.Plan.from_debug_log(printed(plan, causes=causes).replace("tiny", "tony"))
    said = [str(log.explain(t)) for t in (*log.nodes, *log.leafs, *log.copies)]
    said += [str(t.cause) for t in (*log.nodes, *log.leafs, *log.copies)]
    said += [str(log.diff(other)), str(log.diff(plan)), str(plan.diff(log))]
    for check, *limits in ((assert_max_copy_bytes, 0), (assert_max_splits, 0),
                           (assert_pins, {"tiny": "gpu0"})):  # fmt: skip
        with pytest.raises(AssertionError) as error:
            check(log, *limits)
        said.append(str(error.value))
    for kind in ("md", "dot"):
        log.export(tmp_path / f"p.{kind}")
        said.append((tmp_path / f"p.{kind}").read_text())
    said = "\n".join(said)
    assert "unknown → gpu0" in said
    for wrong in ("None", "no backend", "nowhere", "[]", *["upstream set no cause"] * (not causes)):
        assert wrong not in said, said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("blk.0.attn_sinks.weight", "whether a weight keeps it there is not known"),
        ("blk.0.sinks.weight", None),
        ("mask", "nothing that it reads is named like a weight"),
    ],
)
def test_gp115_on_names_that_are_cut(name, words):
    """Of `blk.0.attn_sinks.weight` a log has 20 bytes; by the causes `explain` says it holds."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        w = World(stack, gpu(), "CPU")
        h = w.op("mul_mat", w.tensor("a", 64, 64, on="gpu0"), w.input("x", 64, 4), name="h")
        kept = w.op("add", h, w.tensor(name, 64, 4, on="CPU"), name="kept")
        out = w.op("mul_mat", w.tensor("b", 64, 64, on="gpu0"), kept, name="out")
        plan = w.plan(out, op_offload=False)
    assert plan.node("kept").backend == "CPU"
    log = ggml.Plan.from_debug_log(printed(plan))
    found = {f.id: f for f in log.advice(0)}
    assert ("GP115" in found) == (words is not None)
    if words:
        assert words in found["GP115"].text and "no weight keeps" not in found["GP115"].text
        assert ("The usual reason" in found["GP115"].text) == (name == "mask")
    with_causes = ggml.Plan.from_debug_log(printed(plan, causes=True))
    assert with_causes.node("kept").cause.code == "1.wgt1"
    assert "GP115" not in {f.id for f in with_causes.advice(0)}

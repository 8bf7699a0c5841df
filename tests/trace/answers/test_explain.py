"""plan.explain: the chain of decisions behind a placement, back to its root."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings

import ggml_py as ggml
from ggml_py.trace import reference
from ggml_py.trace.answers.explain import NO_NEIGHBOUR, UNSUPPORTED, WEIGHT
from ggml_py.trace.causes import INPUT, MEMORY, PIN
from ggml_py.trace.names import shape
from ggml_py.trace.rules import parse_version

from ...support import graphs
from ...support.captures import captures
from ...support.many_inputs import many_inputs
from ...support.sim_net import Net
from ...support.worlds import World
from ...support.worlds import plan as plan_of


@pytest.fixture(scope="module")
def copied():
    """gpu0 computes the products, the CPU what is between: three copies."""
    with ggml.sim_device("gpu0", supports={"MUL_MAT": True}) as sim, Net(sim) as net:
        return net.scheduler.plan(net.graph)


@pytest.mark.parametrize(
    ("case", "which", "headline", "root", "tensors"),
    [
        ("mlp", "h", "1.wgt0 via src[0] up", WEIGHT, ["h", "up"]),
        ("mlp", 1, "3.best", UNSUPPORTED, ["node_1"]),
        ("mlp", "inp", "1.inp", INPUT, ["inp"]),
        ("mlp", "up", "1.dst", WEIGHT, ["up"]),
        ("sweeps", "above", "2.sup gpu up via middle", WEIGHT, ["above", "middle", "w"]),
        ("sweeps", "below", "2.sup gpu down via middle", WEIGHT, ["below", "middle", "w"]),
        ("small_batch", "out", "2.sup rest down via node_0", WEIGHT, ["out", "node_0", "w"]),
        ("views", 9, "4.vsrc via node_7", WEIGHT, None),
        ("views", "kq", "3.upg", WEIGHT, None),
    ],
)
def test_the_chain_goes_back_to_its_root(plans, case, which, headline, root, tensors):
    found = plans[case].explain(which)
    assert (found.headline, found.root) == (headline, root)
    if tensors:
        assert [link.tensor.name for link in found.links] == tensors
    assert found.subject == plans[case].node(which) == found.links[0].tensor
    assert found.disagreements == found.limits == ()


def test_it_says_where_a_node_was_before_pass_3_moved_it(plans):
    moved, before = plans["views"].explain("kq").links[:2]
    assert (moved.code, moved.backend, before.backend) == ("3.upg", "BLAS", "CPU")
    assert (before.tensor, before.relation) == (moved.tensor, "before that")
    assert (before.code, before.sweep, before.witness.index) == ("2.sup", "rest down", 5)


def test_it_says_what_stopped_the_sweeps_and_who_was_asked_before(plans):
    notes = plans["small_batch"].explain("out").notes
    assert notes[0] == "sweep gpu down: stopped at 'node_0', which is on the last backend, CPU"
    assert notes[1] == "sweep gpu up: no node on that side had a backend"
    asked = plans["small_batch"].explain("node_0").notes
    assert asked == ("pass 1 asked BLAS first: it cannot run MUL_MAT(f32 [64, 96], f32 [64, 4])",)
    came = "came from 'h' on BLAS, which does not support the op"
    assert plans["mlp"].explain(1).notes[0] == f"sweeps gpu down and rest down: {came}"


def test_a_weight_that_nobody_can_use_in_place(plans):
    """Its memory decides nothing then, and it is copied."""
    capture = plans["mlp"].capture
    mine = tuple(b._replace(readers=0b01) for b in capture.bufts)
    products = [t._replace(supports=0b10) for t in capture.tensors[:3]]
    cannot = replace(capture, bufts=mine, tensors=(*products, *capture.tensors[3:]))
    found = reference.plan(cannot).explain("h")
    assert found.headline == "3.best" and found.subject.backend == "CPU"
    assert found.notes[:2] == (
        "pass 1 asked BLAS: it cannot run MUL_MAT(f32 [64, 128], f32 [64, 48])",
        "pass 1 asked CPU: it cannot read CPU memory, where 'up' is",
    )
    copied = "it reads a copy of 'up' (32.0 KiB from BLAS)"
    assert any(note.startswith(copied) for note in found.notes)


def test_the_last_backend_stops_gpu_sweeps_only(plans):
    """What the CPU cannot compute, its rest sweeps bring to nobody."""
    capture = plans["mlp"].capture
    supports = {"MUL_MAT": 0b10}
    edited = [
        t._replace(supports=supports.get(t.op, 0b01)) if t.kind == "node" else t
        for t in capture.tensors
    ]
    plan = reference.plan(replace(capture, tensors=tuple(edited)))
    node = next(n for n in plan.nodes if n.op != "MUL_MAT" and n.is_computed)
    outcomes = {m.sweep: m.outcome for m in plan.decisions.meetings(node)}
    assert "stopped" not in (outcomes["rest down"], outcomes["rest up"])
    assert "unsupported" in (outcomes["rest down"], outcomes["rest up"])
    assert plan.explain(node).root == "unsupported op"


def test_a_leaf_that_a_backend_does_not_take(plans):
    """supports_op is asked of what has its memory, too."""
    capture = plans["mlp"].capture
    edited = [t._replace(supports=0b10) if t.name == "up" else t for t in capture.tensors]
    plan = reference.plan(replace(capture, tensors=tuple(edited)))
    assert plan.node("up").backend == "CPU"
    assert plan.why_not("up", "BLAS").reasons[0].id == "op"


@pytest.mark.parametrize(("ne", "text"), [
    ((5, 1, 1, 1), "f32 [5]"), ((1, 1, 1, 1), "f32 [1]"), ((1, 4, 1, 1), "f32 [1, 4]"),
    ((2, 1, 3, 1), "f32 [2, 1, 3]"), ((), "f32"),
])  # fmt: skip
def test_shapes_are_told_without_the_ones_at_the_end(ne, text):
    assert shape(SimpleNamespace(ne=ne, type="f32")) == text


def test_it_says_what_is_copied(copied):
    h = "it is copied to CPU for split #1 (18.0 KiB)"
    x = "it reads a copy of 'x' (12.0 KiB from CPU), because gpu0 cannot read CPU's memory"
    assert copied.explain("h").notes == (x, h)
    copy = copied.explain("gpu0#x#0")
    assert copy.headline == "4.cpy via x"
    assert [(link.relation, link.tensor.name, link.root) for link in copy.links] == [
        ("", "gpu0#x#0", ""),
        ("its reader", "h", ""),
        ("because", "a", WEIGHT),
        ("its source", "x", INPUT),
    ]
    assert "12.0 KiB of 'x', copied from CPU for split #0: gpu0 runs 'h'" in str(copy)


def test_copies_of_graphs_in_flight():
    with ggml.sim_device("gpu0") as sim, Net(sim, parallel=True) as net:
        plan = net.scheduler.plan(net.graph)
    made = {i.copy for split in plan.splits for i in split.inputs}
    kept = [c for c in plan.copies if c not in made and c.placement.copy_index > 0]
    for copy in (*plan.copies, *plan.leafs):
        assert plan.explain(copy).root in (WEIGHT, INPUT)
    note = "it is a graph input, kept 4 times for pipeline parallelism"
    assert any(note in n for n in plan.explain("x").notes)
    last_pass = 6 if parse_version(plan.settings.upstream) >= (0, 25) else 5
    assert {plan.explain(c).links[0].pass_ for c in kept if c.backend == "CPU"} == {last_pass}


def test_a_pin_and_an_offloaded_op(plans):
    capture = plans["mlp"].capture
    node = capture.tensors[0]
    pinned = replace(capture, tensors=(node._replace(pin=1), *capture.tensors[1:]))
    found = reference.plan(pinned).explain("h")
    # upstream moves pinned nodes, too, where buffer types are shared
    assert [link.code for link in found.links] == ["3.upg", "usr"]
    assert (found.root, found.subject.backend) == (PIN, "BLAS")
    bufts = tuple(b._replace(readers=0b10) for b in capture.bufts)
    wanted = (node._replace(offload=0b01), *capture.tensors[1:])
    found = reference.plan(replace(capture, bufts=bufts, tensors=wanted)).explain("h")
    assert (found.headline, found.root) == ("1.off via src[0] up", WEIGHT)
    assert str(found).splitlines()[0].endswith(") is on BLAS: 1.off via src[0] up")


def test_the_end_of_a_chain_has_its_own_code_and_pass(plans):
    """A pinned weight was placed by no pass; the op that follows it looks at its memory."""
    links = plans["mlp"].explain("h").links
    assert [(link.code, link.pass_) for link in links] == [("1.wgt0", 1), ("1.dst", 1)]
    capture = plans["mlp"].capture
    pinned = [t._replace(pin=1) if t.name == "up" else t for t in capture.tensors]
    plan = reference.plan(replace(capture, tensors=tuple(pinned)))
    links = plan.explain("h").links
    assert [(link.code, link.pass_) for link in links] == [("1.wgt0", 1), ("usr", 0)]
    assert str(links[1]).startswith("up on CPU [usr]: it is in CPU memory as a ")


def test_why_a_split_begins_where_the_backend_stays():
    begins = "a new split begins with it, although the backend stays the same: "
    full = reference.plan(many_inputs(31, "0.18.0"))
    assert full.explain("n30").notes[-1] == (
        f"{begins}the split before it had no room for another input, 'x30'"
    )
    assert not any(begins in note for note in full.explain("n29").notes)
    products = World(recipe=(("MUL_MAT", 0, 0), ("MUL_MAT", 1, 1)), homes=(-1, -1, -1))
    assert plan_of(products).explain("n1").notes[-1] == (
        f"{begins}its weight 'w1' must be copied, and the split before it already had inputs"
    )


def test_where_ggml_and_the_reference_differ_it_says_so_first(plans):
    plan = plans["mlp"]
    others = [p._replace(backend=1, cause="2.sup") for p in plan.outcome.placements[:1]]
    outcome = replace(plan.outcome, placements=(*others, *plan.outcome.placements[1:]))
    found = replace(plan, outcome=outcome).explain("out")
    said = "'h' is on CPU (2.sup), in the reference on BLAS (1.wgt0)"
    assert found.disagreements == (said,)
    assert str(found).splitlines()[0] == f"The reference plans it differently: {said}"


def test_a_plan_that_the_reference_cannot_make_is_explained_from_its_codes(plans):
    plan = plans["mlp"]
    nobody = tuple(t._replace(supports=0) for t in plan.capture.tensors)
    found = replace(plan, capture=replace(plan.capture, tensors=nobody)).explain("h")
    assert "no backend can run" in found.disagreements[0]
    assert found.headline == "1.wgt0 via src[0] up"


def test_without_the_backends_answers_it_says_what_it_cannot_tell(plans):
    plan = plans["sweeps"]
    found = replace(plan, capture=replace(plan.capture, source="debug log")).explain("below")
    assert [link.tensor.name for link in found.links] == ["below", "middle", "w"]
    assert "a debug log contains only the cause of each node" in found.limits[0]
    assert found.limits[0] in str(found)


def test_a_debug_log_is_explained_as_far_as_it_goes(copied):
    log = copied.text()
    found = ggml.Plan.from_debug_log(log).explain("h")
    assert (found.headline, found.limits[0][:34]) == (
        "1.wgt0 via src[0] a", "a debug log contains only the caus"
    )  # fmt: skip
    assert found.notes[-1].startswith("it is copied to CPU for split #1 (")
    assert any(n.startswith("it reads a copy of 'x' (") for n in found.notes)
    stock = re.sub(r"\[( *\w+) +[\w.]+\]", r"[\1         ]", log)
    found = ggml.Plan.from_debug_log(stock).explain("h")
    assert (found.headline, found.root) == ("cause not known", "unknown")
    assert found.limits[0].startswith("this log has no causes: released builds of ggml")


def test_a_long_sweep_is_one_line():
    case = graphs._case(_row_of_ops, devices=("CPU",))
    found = case.scheduler.plan(case.graph).explain("end")
    case.close()
    assert len(found.links) == 42
    assert len(str(found).splitlines()) < 8
    assert "because, skipping 38 nodes of the same sweep: " in str(found)


def _row_of_ops(c, weight):
    out = c.mul_mat(weight("w", 64, 64), graphs._input(c, 64, 4))
    for _ in range(40):
        out = c.sqr(out)
    out.name = "end"
    return [out]


def test_as_data(copied):
    for t in (*copied.nodes, *copied.leafs, *copied.copies):
        data = json.loads(json.dumps(copied.explain(t).to_dict()))
        assert data["subject"] == {"id": t.id, "index": t.index, "name": t.name, "op": t.op}
        assert data["links"][0]["code"] == t.cause.code
        assert data["root"] == next(link["root"] for link in data["links"] if link["root"])


def test_an_unknown_name_suggests(copied):
    with pytest.raises(KeyError, match="no node named 'ou'; similar: out"):
        copied.explain("ou")


def test_where_the_native_module_is_blocked(copied, tmp_path):
    copied.to_json(tmp_path / "p.json")
    program = (
        "import sys; sys.modules['ggml_py._ggml'] = None\n"
        "import ggml_py\n"
        f"print(ggml_py.Plan.from_json({str(tmp_path / 'p.json')!r}).explain('out'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{copied.explain('out')}\n", done.stderr


@settings(max_examples=150, deadline=None)
@given(capture=captures())
def test_every_chain_is_one_and_true(capture):
    plan = reference.plan(capture)
    for t in (*plan.nodes, *plan.leafs, *plan.copies):
        found = plan.explain(t)
        assert str(found) and json.dumps(found.to_dict())
        first = found.links[0]
        assert (first.tensor, first.backend or None) == (t, t.backend)
        if t.backend is not None:
            assert first.code == t.cause.code
            assert found.root in (PIN, INPUT, WEIGHT, MEMORY, UNSUPPORTED, NO_NEIGHBOUR)
        for link, after in zip(found.links, found.links[1:], strict=False):
            if after.relation == "because" and link.witness is not None:
                assert after.tensor == link.witness
            if after.relation == "before that":
                assert after.tensor == link.tensor
        for link in found.links:
            record = link.tensor.record
            holder = link.tensor.view_src or link.tensor
            assert {
                "": True,
                "unknown": not link.backend,
                PIN: record.pin >= 0,
                INPUT: "input" in record.flags,
                WEIGHT: holder.is_weight,
                MEMORY: holder.buffer is not None and not holder.is_weight,
                UNSUPPORTED: record.supports != (1 << len(plan.backends)) - 1,
                NO_NEIGHBOUR: link.code in ("3.best", "2.sup"),
            }[link.root]

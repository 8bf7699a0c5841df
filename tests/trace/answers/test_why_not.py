"""plan.why_not: the rule that decided, proved by changing what it rests on."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggml_py as ggml
from ggml_py.trace import reference
from ggml_py.trace.answers import reasons
from ggml_py.trace.answers.why_not import _effect, _together
from ggml_py.trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    Settings,
)

from ...support import graphs
from ...support.captures import captures, tensor
from ...support.worlds import World, plan

# --- the proof: without the fact that a reason names, the reason is gone


def edited(capture, id, **fields):
    tensors = list(capture.tensors)
    tensors[id] = tensors[id]._replace(**fields)
    return replace(capture, tensors=tuple(tensors))


def readable(capture, buft, b):
    bufts = list(capture.bufts)
    bufts[buft] = bufts[buft]._replace(readers=bufts[buft].readers | 1 << b)
    return replace(capture, bufts=tuple(bufts))


def without_the_fact(plan, answer, b):
    """The capture with that fact made otherwise which the first reason says decided."""
    reason, t, capture = answer.reasons[0], answer.subject.record, plan.capture
    w = reason.witness.id if reason.witness else None
    taker = plan.outcome.placements[t.id].backend
    if reason.id == "pin":
        return edited(capture, t.id, pin=-1)
    if reason.id == "op":
        return edited(capture, t.id, supports=t.supports | 1 << b)
    if reason.id == "memory":
        return readable(capture, capture.buft_of(t), b)
    if reason.id == "weight.memory":
        return readable(capture, capture.buft_of(capture.tensors[w]), b)
    if reason.id in ("memory.first", "weight.first", "upgrade.taken", "sources", "fallback"):
        return edited(capture, t.id, supports=t.supports & ~(1 << taker))
    if reason.id == "input":
        return edited(capture, t.id, flags=())
    if reason.id == "offload.off":
        return replace(capture, settings=capture.settings._replace(op_offload=True))
    if reason.id == "offload.taken":
        return replace(capture, settings=capture.settings._replace(op_offload=False))
    if reason.id == "offload.batch":
        return edited(capture, t.id, offload=t.offload | 1 << b)
    if reason.id == "offload.first":
        return edited(capture, t.id, offload=t.offload & ~(1 << taker))
    if reason.id == "offload.host":
        buft = capture.buffers[capture.tensors[w].buffer].buft
        bufts = [replace_host(x) if i == buft else x for i, x in enumerate(capture.bufts)]
        return replace(capture, bufts=tuple(bufts))
    if reason.id == "offload.reader":
        # where pass 1 put it: pass 3 may have moved it on
        taker = plan.outcome.placements[t.id].passes[0]
        return edited(capture, t.id, supports=t.supports & ~(1 << taker))
    if reason.id == "upgrade.source" and capture.buft_of(capture.tensors[w]) >= 0:
        return readable(capture, capture.buft_of(capture.tensors[w]), b)
    if reason.id in ("sweep.stopped", "sweep.neighbour", "view", "consumer", "upgrade.source"):
        return edited(capture, w, pin=b)
    raise AssertionError(reason.id)


def replace_host(buft):
    return buft._replace(is_host=True)


seen = Counter()


@pytest.mark.thorough("long")
@settings(max_examples=300, deadline=None)
@given(capture=captures(), data=st.data())
def test_without_what_it_names_the_reason_is_gone(capture, data):
    plan = reference.plan(capture)
    t = data.draw(st.sampled_from([*plan.nodes, *plan.leafs]))
    b = data.draw(st.integers(0, len(plan.backends) - 1))
    name = plan.backends[b].name
    answer = plan.why_not(t, name)
    assert str(answer) and json.dumps(answer.to_dict())
    assert answer.is_there == (t.backend == name) == (answer.reasons == ())
    if answer.is_there or answer.reasons[0].id == "nobody":
        return
    reason = answer.reasons[0]
    seen[reason.id] += 1
    try:
        changed = reference.plan(without_the_fact(plan, answer, b))
    except reference.CannotPlanError:
        return
    then = changed.why_not(t.id if t.index is not None else changed.tensor(t.id), name)
    if reason.id.startswith("sweep") and b != len(plan.backends) - 1:
        assert b in changed.outcome.placements[t.id].passes[2:5]
    if reason.id in ("view", "consumer") and changed.tensor(reason.witness.id).backend != name:
        return  # pass 3 moved the witness on
    if not then.is_there:
        assert (then.reasons[0].id, then.reasons[0].text) != (reason.id, reason.text)


@pytest.mark.thorough("long")
@settings(max_examples=200, deadline=None)
@given(capture=captures(), data=st.data())
def test_a_change_takes_those_before_it_along(capture, data):
    plan = reference.plan(capture)
    t = data.draw(st.sampled_from([*plan.nodes, *plan.leafs]))
    name = data.draw(st.sampled_from(plan.backends)).name
    answer = plan.why_not(t, name)
    for reason in answer.reasons:
        for change in reason.changes:
            tried = plan.what_if(**change.what_if).tensor(t.id)
            assert (tried.backend == name) == change.is_there
    if answer.reasons and (changes := answer.reasons[-1].changes):
        assert any(change.is_there for change in changes), answer


# --- on real schedulers: the answer, and what becomes of it when the change is made

CHAIN = (("RMS_NORM", 0, 0), ("MUL_MAT", 1, 0), ("RELU", 2, 0), ("MUL_MAT", 3, 1))  # n0 .. n3
ON_CPU = World(recipe=CHAIN, homes=(-1, -1, 0), n_tokens=48)
ON_GPU = World(recipe=CHAIN, homes=(0, 0, 0))
TWO = World(recipe=CHAIN, homes=(0, 0, 0), refused=(frozenset(), frozenset()), batches=(32, 32))
NO_RELU = (frozenset({"UNARY"}),)


@pytest.mark.parametrize(
    ("world", "node", "backend", "id", "words", "changed"),
    [
        (replace(ON_GPU, refused=NO_RELU), "n2", "gpu0", "op", "RELU(f32 [32, 48])", ON_GPU),
        (replace(ON_GPU, pins={"n2": "CPU"}), "n2", "gpu0", "pin", "pinned it to CPU", ON_GPU),
        (
            replace(ON_CPU, op_offload=False), "n1", "gpu0", "offload.off",
            "its weight 'w0' is in CPU memory, which gpu0 cannot read, and op offload is off",
            ON_CPU,
        ),
        (
            replace(ON_CPU, n_tokens=8), "n1", "gpu0", "offload.batch",
            "gpu0 does not want to offload it: the batch is 8", ON_CPU,
        ),
        (
            replace(ON_CPU, n_tokens=8), "n1", "gpu0", "offload.batch", "the batch is 8",
            replace(ON_CPU, n_tokens=8, batches=(8,)),
        ),
        (
            replace(ON_CPU, n_tokens=8), "n1", "gpu0", "offload.batch", "the batch is 8",
            replace(ON_CPU, n_tokens=8, homes=(0, 0, 0)),
        ),
        (
            replace(ON_CPU, blas=True), "n1", "gpu0", "offload.reader",
            "op offload applies only if the last backend, CPU, is the first that can read the "
            "weight and supports the op, but BLAS comes first", ON_CPU,
        ),
        (ON_CPU, "n1", "CPU", "offload.taken", "gpu0 has a higher priority and wants it although "
         "its weight 'w0' is in CPU memory", replace(ON_CPU, op_offload=False)),
        (
            replace(ON_CPU, n_tokens=8), "n2", "gpu0", "sweep.stopped",
            "sweep gpu down: stopped at 'n1', which is on the last backend, CPU",
            replace(ON_CPU, n_tokens=8, pins={"n1": "gpu0"}),
        ),
        (ON_GPU, "n2", "CPU", "sweep.neighbour", "sweep gpu down brought gpu0 from 'n1'",
         replace(ON_GPU, pins={"n1": "CPU", "n3": "CPU"})),
        (TWO, "n1", "gpu1", "weight.memory", "'w0' is in gpu0 memory, which gpu1 cannot read",
         replace(TWO, homes=(1, 0, 0))),
        (TWO, "w0", "gpu1", "memory", "it is in gpu0 memory, which gpu1 cannot read",
         replace(TWO, homes=(1, 0, 0))),
        (replace(TWO, homes=(-1, -1, 0)), "n1", "gpu1", "offload.first",
         "gpu1 also wants it, but comes after gpu0",
         replace(TWO, homes=(-1, -1, 0), batches=(0, 32))),
        (ON_GPU, "inp", "gpu0", "input", "inputs go to the last backend, CPU",
         replace(ON_GPU, pins={"inp": "gpu0"})),
        (replace(ON_CPU, blas=True), "n1", "CPU", "weight.first", "BLAS comes before CPU",
         replace(ON_CPU, refused=(None,), homes=(-1, -1, -1))),
    ],
)  # fmt: skip
def test_the_change_made_for_real(world, node, backend, id, words, changed):
    before, after = plan(world), plan(changed)
    answer = before.why_not(node, backend)
    assert not answer.is_there and before.node(node).backend != backend
    assert (answer.reasons[0].id, words in answer.reasons[0].text) == (id, True), answer
    assert str(answer.reasons[0]) == answer.headline
    assert after.node(node).backend == backend
    assert after.why_not(node, backend).is_there
    assert after.why_not(node, backend).headline == f"{node} is on {backend}"


def test_the_reasons_that_come_after_the_first():
    answer = plan(replace(ON_CPU, n_tokens=8, refused=NO_RELU)).why_not("n2", "gpu0")
    assert [r.id for r in answer.reasons] == ["op", "sweep.stopped"]
    first, second = answer.reasons
    assert [c.is_there for c in first.changes] == [False]
    assert first.changes[0].call == "plan.what_if(supports={('gpu0', 2): True})"
    assert [(c.text, c.then) for c in second.changes] == [
        ("pin 'n1' to gpu0", "it moves to gpu0"),
        ("pin 'n3' to gpu0", "it moves to gpu0"),
    ]
    assert answer.pin.then == "it moves to gpu0, but gpu0 cannot compute 'n2'"
    assert "  then sweep.stopped, pass 2 gpu down: " in str(answer)


def one_node(*names, readers, usage="weights"):
    """n0 = MUL_MAT(w), w in host memory that `readers` (bits) read; every backend has the op."""
    last, everyone = len(names) - 1, (1 << len(names)) - 1
    backends = tuple(
        BackendRecord(n, n, "CPU" if i == last else "GPU", i) for i, n in enumerate(names)
    )
    bufts = [BuftRecord(n, i == last, 1 << i) for i, n in enumerate(names)]
    pool = BuftRecord("pool", True, readers)
    node = tensor(0, NODE, "n0", "MUL_MAT", src=(1,), supports=everyone)
    leaf = tensor(1, LEAF, "w", supports=everyone, buffer=0)
    memory = (BufferRecord(len(names), usage, 1 << 20),)
    settings = Settings("0.26.0", "0.26.0-0", True, 1, 0, 1000, 0)
    return reference.plan(Capture(settings, backends, (*bufts, pool), memory, (node, leaf), (1,)))


def test_backends_that_read_equally_many_sources():
    """The first of them has it, and the others are told that they come later."""
    equal = one_node("gpu0", "CPU", readers=0b11, usage="compute")
    assert (equal.node("n0").backend, equal.node("n0").cause.code) == ("gpu0", "3.best")
    reason = equal.why_not("n0", "CPU").reasons[0]
    assert reason.id == "sources"
    assert reason.text.endswith("gpu0 can read 1 of its sources, CPU 1 and comes later")
    fewer = one_node("gpu0", "CPU", readers=0b01, usage="compute").why_not("n0", "CPU").reasons[0]
    assert fewer.text.endswith("gpu0 can read 1 of its sources, CPU 0")


def test_the_last_backend_is_not_told_about_op_offload():
    """It is for weights that the last backend reads, which others want; here gpu0 alone does."""
    plan = one_node("gpu0", "CPU", readers=0b01)
    assert plan.node("n0").cause.code == "1.wgt0"
    reason = plan.why_not("n0", "CPU").reasons[0]
    assert (reason.id, reason.text) == (
        "weight.memory", "its weight 'w' is in pool memory, which CPU cannot read"
    )  # fmt: skip
    assert [c.text for c in reason.changes] == ["put 'w' into CPU memory"]


def test_changes_of_two_reasons_are_made_together():
    first, second = (
        plan(replace(ON_CPU, n_tokens=8, pins={"n2": "CPU"})).why_not("n2", "gpu0").reasons
    )
    assert [c.what_if for c in first.changes] == [{"pins": {"n2": None}}]
    assert second.changes[0].what_if == {"pins": {"n2": None, "n1": "gpu0"}}
    reasons = one_node("gpu0", "gpu1", "CPU", readers=0b111).why_not("n0", "CPU").reasons
    assert [(r.id, r.changes[0].what_if) for r in reasons] == [
        ("weight.first", {"drop": ["gpu0"]}),
        ("weight.first", {"drop": ["gpu0", "gpu1"]}),
    ]


def test_a_backend_that_is_left_out_takes_along_what_was_said_of_it():
    there, out = plan(replace(ON_GPU, pins={"n2": "gpu0"})), {"drop": ["gpu0"]}
    for first in ("supports", "offload"):
        assert _together(there, {first: {("gpu0", 1): True}}, out) == out
        assert _together(there, {first: {("CPU", 1): True}}, out) == {
            first: {("CPU", 1): True}, **out
        }  # fmt: skip
    assert _together(there, {"pins": {"n2": None}}, out) == out
    pins = {"n1": "gpu0", "n0": "CPU"}
    assert _together(there, {"pins": pins}, out) == {"pins": {"n0": "CPU"}, **out}


@pytest.mark.parametrize("op_offload", [True, False])
def test_op_offload_is_not_for_what_another_device_holds(op_offload):
    world = replace(TWO, homes=(1, 1, 1), op_offload=op_offload)
    reason = plan(world).why_not("n1", "gpu0").reasons[0]
    assert (reason.id, reason.witness.name) == ("weight.memory", "w0")


def test_a_pin_is_not_blamed_for_one_that_was_there():
    """RELU n2 is pinned to a device that cannot compute it; a pin of n1 changes nothing of that."""
    before = plan(replace(ON_GPU, refused=NO_RELU, pins={"n2": "gpu0"}))
    assert before.why_not("n1", "CPU").pin.then == "it moves to CPU"


def test_the_page_lists_every_reason():
    code = Path(reasons.__file__).read_text()
    ids = set(re.findall(r'(?:AppliedRule\(\s*|_outranked\(case, |kind = |else )"([a-z.]+)"', code))
    page = (Path(__file__).parents[3] / "docs" / "EXPLAIN.md").read_text()
    table = page.partition("| id | the rule |")[2].partition("\n\n")[0]
    listed = re.findall(r"`([a-z.]+)`", "".join(row.split("|")[1] for row in table.split("\n")[2:]))
    assert ids == set(listed) and len(listed) == len(ids) > 20


def test_a_pin_that_would_not_hold():
    case = graphs.mlp()
    answer = case.scheduler.plan(case.graph).why_not("h", "CPU")
    case.scheduler.set_tensor_backend(case.graph.nodes[0], case.backends[-1])
    assert case.scheduler.plan(case.graph).node("h").backend == "BLAS"
    case.close()
    assert answer.pin.then.startswith("it stays because of upgrade.taken: it was there, but")
    assert not answer.pin.is_there


def test_what_it_is_asked_for():
    there = plan(ON_GPU)
    assert there.why_not(0, "GPU0").is_there
    with pytest.raises(KeyError, match="no backend 'gpu7' in this plan; it has gpu0, CPU"):
        there.why_not("n1", "gpu7")
    with pytest.raises(KeyError, match="no node named 'n9'"):
        there.why_not("n9", "CPU")
    copy = there.copies[0]
    assert there.why_not(copy.name, "CPU").reasons[0].id == "copy"
    dump = replace(there, capture=replace(there.capture, source="debug log"))
    assert dump.why_not("n1", "gpu0").is_there
    with pytest.raises(ValueError, match="does not contain what the backends support"):
        dump.why_not("n1", "CPU")


def test_a_plan_that_the_reference_would_make_otherwise():
    there = plan(ON_GPU)
    moved = [p._replace(backend=1) for p in there.outcome.placements[:1]]
    outcome = replace(there.outcome, placements=(*moved, *there.outcome.placements[1:]))
    answer = replace(there, outcome=outcome).why_not("n0", "gpu0")
    assert (answer.is_there, answer.reasons) == (False, ())
    assert "the reference scheduler puts it on gpu0" in answer.headline


def test_what_is_asked_of_it_wrongly():
    there = plan(ON_GPU)
    with pytest.raises(TypeError, match="backend 0: expected its name"):
        there.why_not("n1", 0)
    with pytest.raises(ValueError, match="of another plan"):
        there.why_not(plan(ON_CPU).node("n1"), "CPU")
    with pytest.raises(KeyError, match="node 99: the graph has nodes"):
        there.explain(99)
    assert there.why_not(plan(ON_GPU).node("n1"), "CPU").subject == there.node("n1")


def test_a_neighbour_with_memory_is_moved_rather_than_pinned():
    world = World(recipe=(("STORE", 0, 0), ("SCALE", 1, 0)), homes=(0, -1))
    change = plan(world).why_not("n1", "gpu0").reasons[0].changes[0]
    assert (change.text, change.is_there) == ("put 'cache' into gpu0 memory", True)
    assert plan(replace(world, homes=(0, 0))).node("n1").backend == "gpu0"


def test_a_live_device_tells_the_nearest_variant():
    world = replace(ON_GPU, refused=(frozenset({"MUL_MAT"}),))
    with ggml.sim_device("gpu1", supports=lambda t: t.ne[1] <= 16) as device:
        answer = plan(world).why_not("n1", "gpu0", device)
        assert plan(world).why_not("inp", "gpu0", device).nearest is None
    assert answer.nearest.text == "MUL_MAT: b ne1 ≤ 16 (here 48)"
    assert "MUL_MAT 'n1' on gpu1: not supported, but would be with:" in str(answer)
    assert json.loads(json.dumps(answer.to_dict()))["nearest"]["supported"] is False


# --- options of llama.cpp, which may change the graph


def of_cache(plan):
    """The answer about a model's cache, and its change."""
    answer = plan.why_not("cache_k_l0", "CPU")
    ((change,),) = (reason.changes for reason in answer.reasons)
    return answer, change


@pytest.fixture(scope="module")
def with_cache():
    """A plan that reads a cache on a GPU, and the same with twice the nodes."""

    def make(n):
        ctx, own = ggml.Context(), ggml.Context()
        device = ggml.sim_device("gpu0")
        gpu, cpu = device.init(), ggml.device("CPU").init()
        x = own.new_tensor("f32", 8, 8, name="cache_k_l0")
        buffer = own.alloc(gpu)
        for _ in range(n):
            x = ctx.sqr(x)
        graph = ctx.new_graph()
        graph.build_forward_expand(x)
        with ggml.Scheduler([gpu, cpu]) as sched:
            plan = sched.plan(graph)
        for handle in (ctx, buffer, own, gpu, cpu, device):
            handle.close()
        return plan

    return make(2), make(4)


def test_an_option_that_was_not_planned_with_says_so(with_cache):
    answer, change = of_cache(with_cache[0])
    assert [flag.words for flag in change.flags] == [("-nkvo",)] and not change.is_checked
    said = "it moves to CPU; not checked: with -nkvo llama.cpp may build another graph"
    assert str(change).endswith(said) and said in str(answer)
    told = answer.to_dict()["reasons"][0]["changes"][0]
    assert told["flags"] == ["-nkvo"] and told["is_checked"] is False


@pytest.mark.parametrize(
    ("after", "then", "is_there"),
    [
        (lambda a, _b: a.what_if(move_weights={"cache_k_l0": "CPU"}), "it moves to CPU", True),
        (lambda a, _b: a, "it is on gpu0", False),
        (
            lambda _a, b: b.what_if(move_weights={"cache_k_l0": "CPU"}),
            "it moves to CPU; the graph then has 4 nodes instead of 2", True,
        ),
        (lambda *_: "no room", "llama.cpp cannot: no room", False),
    ],
)  # fmt: skip
def test_the_effect_of_an_option_is_that_of_the_plan_made_with_it(
    with_cache, after, then, is_there
):
    asked = []

    def planned_with(flags):
        asked.append([flag.options for flag in flags])
        return after(*with_cache), ""

    answer = of_cache(with_cache[0])[0].checked(planned_with)
    (change,) = answer.reasons[0].changes
    assert asked == [[{"offload_kqv": False}]]
    assert (change.then, change.is_there, change.is_checked) == (then, is_there, True)
    assert "not checked" not in str(answer)


def test_a_change_that_does_not_fit_says_so(with_cache):
    """An option, and a batch that makes a backend want an op."""
    plan, lacks = with_cache[0], "gpu0 lacks 5 bytes"
    there = plan.what_if(move_weights={"cache_k_l0": "CPU"})
    answer = of_cache(plan)[0].checked(lambda _flags: (there, lacks))
    (change,) = answer.reasons[0].changes
    assert (change.then, change.lacks) == (f"it moves to CPU; it does not fit: {lacks}", lacks)
    batch = replace(change, then="it moves to gpu0", flag=None, n_tokens=32, lacks="")
    answer = replace(answer, reasons=(replace(answer.reasons[0], changes=(batch,)),))
    asked = []

    def lacks_at(flags, n_tokens):
        asked.append((flags, n_tokens))
        return lacks

    (change,) = answer.checked(lambda _flags: ("", ""), lacks_at).reasons[0].changes
    assert asked == [((), 32)]
    assert (change.then, change.lacks) == (f"it moves to gpu0; it does not fit: {lacks}", lacks)


def test_a_node_without_a_name_is_not_looked_for_in_another_graph(with_cache):
    """ggml calls the second node of each "node_1"."""
    plan, other = with_cache
    assert plan.node(1).name == other.node(1).name == "node_1"
    then = "not known: the graph then has 4 nodes instead of 2"
    assert _effect(plan.node(1), "CPU", other) == (then, False)
    assert _effect(plan.node(1), "gpu0", plan) == ("it moves to gpu0", True)

"""`Scheduler.state`: upstream's fields as an independent reader has them, and no freed memory."""

import gc
import random
import threading

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi, lib
from ggml_py.scheduler import struct as sched_struct
from ggml_py.scheduler.struct import Field, Pointer

from ..support import graphs, oracle_sched, random_graphs
from ..support.small_scheduler import CPU, Small


def address(value):
    """As a number, whatever stands for it."""
    if value is None or isinstance(value, Pointer):
        return 0 if value is None else value.address
    return int(ffi.cast("uintptr_t", value.ptr))


@pytest.fixture
def pipeline():
    case = Small(parallel=True)
    yield case
    case.close()


# --- what the fields are


def test_a_plan_by_upstreams_names(small):
    plan = small.sched.alloc_graph(small.graph)
    state = small.sched.state
    assert (state.is_reset, state.is_alloc, state.n_backends, state.n_copies) == (False, True, 2, 1)
    assert state.backends[:3] == (small.gpu, small.cpu, None) and len(state.backends) == 16
    assert [b.name for b in state.bufts[:2]] == [b.buft.name for b in plan_bufts(plan)]
    assert state.galloc.sizes == tuple(small.sched.buffer_size(b) for b in (small.gpu, small.cpu))
    first, second = state.splits
    assert (state.n_splits, len(state.splits)) == (2, 2)
    assert (first.backend_id, first.i_start, first.i_end, first.n_inputs) == (0, 0, 2, 1)
    assert (second.backend_id, second.i_start, second.i_end) == (1, 2, 3)
    assert first.inputs == [small.x] and second.inputs == [small.b]
    assert first.graph.nodes == [small.a, small.b] and second.graph.n_nodes == 1
    assert first.graph.nodes[1].name == "b"


def plan_bufts(plan):
    return [type("B", (), {"buft": plan.capture.bufts[b.buft]}) for b in plan.backends]


def test_the_schedulers_own_graph(small):
    """With input_dep views and copies; backend ids are of its nodes."""
    small.sched.alloc_graph(small.graph)
    state = small.sched.state
    nodes = state.graph.nodes
    names = [node.name for node in nodes]
    assert names == ["x (view)", "state0#x#0", "a", "b", "b (view)", "CPU#b#0", "c"]
    assert nodes[0].src == (small.x,) and nodes[0].view_src == small.x
    assert nodes[6].src == (small.wc, nodes[5]) and nodes[6] == small.c
    assert state.node_backend_ids == [1, 0, 0, 0, 0, 1, 1]
    assert {leaf.name for leaf in state.graph.leafs} == {"x", "wa", "wc"}
    names = [leaf.name for leaf in state.graph.leafs]
    assert dict(zip(names, state.leaf_backend_ids, strict=True)) == {"x": 1, "wa": 0, "wc": 1}
    assert state.prev_node_backend_ids == []
    small.sched.reset()
    small.sched.alloc_graph(small.graph)
    assert state.prev_node_backend_ids == state.node_backend_ids == [1, 0, 0, 0, 0, 1, 1]
    if hasattr(state, "debug_graph_size"):  # the others have no such check
        assert state.debug_graph_size == state.debug_prev_graph_size == state.graph.size


def test_ids_before_are_as_many_as_there_were(small):
    """Not as many as the graph of now has nodes."""
    small.sched.reserve(small.graph)
    shorter = small.ctx.new_graph()
    shorter.build_forward_expand(small.a)
    small.sched.alloc_graph(shorter)
    state = small.sched.state
    assert len(state.node_backend_ids) == state.graph.n_nodes == 3
    assert state.prev_node_backend_ids == [1, 0, 0, 0, 0, 1, 1]
    assert small.sched.inspect()["prev_node_backend_ids"] == [1, 0, 0, 0, 0, 1, 1]


def test_macros(pipeline):
    """Copies of a pipeline: of `x` on its own backend one is `x` itself."""
    p = pipeline
    before = p.sched.state
    assert before.hash_id(p.x) is None and before.tensor_backend_id(p.x) is None
    assert before.tensor_copy(p.x, 0, 0) is None and len(before.hash_set) == 0
    for turn in range(2):
        p.sched.alloc_graph(p.graph)
        state = p.sched.state
        assert (state.n_copies, state.cur_copy, state.next_copy) == (4, turn, turn + 1)
        assert [state.tensor_backend_id(t) for t in (p.x, p.wa, p.a, p.b, p.c)] == [1, 0, 0, 0, 1]
        slot = state.hash_id(p.x)
        assert slot == state.hash_set.find(p.x) and state.hash_set.keys[slot] == p.x
        assert state.hash_set.used[slot] and state.hv_tensor_backend_ids[slot] == 1
        on_cpu = [state.tensor_copy(p.x, p.cpu, c) for c in range(4)]
        assert on_cpu == [state.tensor_copy(p.x, "CPU", c) for c in range(4)]
        assert on_cpu == list(state.hv_tensor_copies[slot][1])
        names = [f"CPU#x#{c}" for c in range(4)]
        names[turn] = "x"
        assert [t.name for t in on_cpu] == names and on_cpu[turn] == p.x
        on_gpu = [state.tensor_id_copy(slot, 0, c).name for c in range(4)]
        assert on_gpu == [f"state0#x#{c}" for c in range(4)]
        assert [state.tensor_copy(p.c, b, 0) for b in (0, 1)] == [None, None]
        assert state.graph_inputs == [p.x] and state.n_graph_inputs == 1
        assert all(state.events[0]) and not any(state.events[1])
        assert set(state.hash_set) == {p.x, p.a, p.b, p.c, p.wa, p.wc} and p.x in state.hash_set
        p.sched.reset()


def test_looking_inserts_nothing(small):
    small.sched.alloc_graph(small.graph)
    state, stranger = small.sched.state, small.ctx.new_tensor("f32", 4)
    before = len(state.hash_set)
    assert state.hash_set.find(stranger) is None and stranger not in state.hash_set
    assert state.tensor_backend_id(stranger) is state.tensor_copy(stranger, 0, 0) is None
    assert len(state.hash_set) == before == small.sched.inspect()["hash_set"]["n_used"]


def test_a_print_reads_like_gdbs(small):
    text = str(small.sched.state)
    assert "\n  splits = {},\n  n_splits = 0,\n  splits_capacity = 16,\n" in text
    assert text.startswith("{\n  is_reset = true,\n  is_alloc = false,\n  n_backends = 2,\n")
    assert text.endswith("\n}") and '"state0"' in text and "0x0 <repeats 14 times>}" in text
    small.sched.alloc_graph(small.graph)
    state = small.sched.state
    split = repr(state.splits[0])
    x = f'{address(small.x):#x} "x"'
    begin = f"{{backend_id = 0, i_start = 0, i_end = 2, inputs = {{{x}}}, n_inputs = 1"
    assert split.startswith(begin)
    assert f"nodes = {{{address(small.a):#x} \"a\", {address(small.b):#x} \"b\"}}" in split
    assert repr(state.node_backend_ids) == "{1, 0, 0, 0, 0, 1, 1}"
    slot = state.hash_id(small.x)
    assert f"[{slot}] = 1" in repr(state.hv_tensor_backend_ids)
    assert f"\n    {split},\n" in str(state)
    assert eval(repr(list(state.node_backend_ids))) == [1, 0, 0, 0, 0, 1, 1]


def test_what_is_no_field(small, monkeypatch):
    state = small.sched.state
    with pytest.raises(AttributeError, match=r"ggml_backend_sched has no 'n_split': .*n_splits"):
        state.n_split  # noqa: B018
    with pytest.raises(AttributeError, match=r"'n_copies' of struct ggml_backend_sched"):
        state.n_copies = 2
    assert {"n_splits", "hash_id", "type_"} <= set(dir(state))
    assert all(getattr(state, f.name) is not NotImplemented for f in state.fields_)
    every = sched_struct.fields_of(lib.GP_STRUCT_SCHED)
    gone = Field("next_copy", "", 0, 0, 0, lib.GP_FIELD_ABSENT, ())
    monkeypatch.setattr(sched_struct, "fields_of", lambda _which: {**every, "next_copy": gone})
    with pytest.raises(AttributeError, match=r"of ggml \d.* has no 'next_copy': other"):
        state.next_copy  # noqa: B018
    assert not hasattr(state, "next_copy") and "next_copy" not in dir(state)


def test_fields_cover_the_structs():
    """A field of upstream's that is not listed would leave a hole."""
    for which in range(4):
        at = 0 if which else ffi.sizeof("void *")  # our trace comes first
        size = sched_struct.size_of(which)
        for f in sched_struct.fields_of(which).values():
            if f.kind != lib.GP_FIELD_ABSENT:
                aligned = min(f.element_size, 8) if f.kind != lib.GP_FIELD_STRUCT else 8
                assert at <= f.offset < at + aligned, f"something is before {f.name}"
                at = f.offset + f.size
        assert size - at < 8


# --- the same as others say


def check_plan(sched, plan):
    """What the plan's records say, which other code has read."""
    state = sched.state
    names = [b.name for b in plan.backends]
    assert [(names[s.backend_id], s.i_start, s.i_end) for s in state.splits] == [
        (s.backend, s.start, s.end) for s in plan.splits
    ]
    for split, record in zip(state.splits, plan.splits, strict=True):
        assert [t.name for t in split.inputs] == [i.tensor.name for i in record.inputs]
        copies = [state.tensor_copy(t, split.backend_id, state.cur_copy) for t in split.inputs]
        assert [t.name for t in copies] == [i.copy.name for i in record.inputs]
    graph = sched._graph
    ran = {node for split in state.splits for node in split.graph.nodes}
    assert ran == set(graph.nodes)
    for tensor, planned in zip(graph.nodes, plan.nodes, strict=True):
        assert state.tensor_backend_id(tensor) == names.index(planned.backend)
    for tensor, planned in zip(graph.leafs, plan.leafs, strict=True):
        assert state.tensor_backend_id(tensor) == names.index(planned.backend)
    own = zip(state.graph.nodes, state.node_backend_ids, strict=True)
    for node, backend in own:
        if node in ran:
            assert backend == state.tensor_backend_id(node)
    assert len(state.hash_set) == plan.outcome.hash_set_used


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(seed):
    check_random(seed, lambda world, plan: check_plan(world.scheduler, plan))


def check_random(seed, check):
    world = random_graphs.build(random.Random(seed), n_graphs=2)
    try:
        for graph in world.graphs:
            world.pin()
            try:
                plan = world.scheduler.alloc_graph(graph)
            except ggml.GgmlError:
                world.scheduler.reset()
                continue
            check(world, plan)
            world.scheduler.reset()
    finally:
        world.close()


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    ggml_dir = oracle_sched.source()
    if ggml_dir is None or oracle_sched.COMPILER is None:
        pytest.skip("needs upstream's source in the cache, and a C++ compiler")
    return oracle_sched.Oracle(ggml_dir, tmp_path_factory.mktemp("oracle"))


def check_oracle(sched, oracle):
    state, told = sched.state, oracle.read(sched)
    for name, value in told["plain"].items():
        if not name or name in ("hv_tensor_backend_ids", "hv_tensor_copies", "splits", "galloc"):
            continue
        if name.endswith("backend_ids") or name == "graph_inputs":
            continue
        field = getattr(state, name)
        assert (field if isinstance(field, int) else address(field)) == value, name
    assert state.hash_set.size == told["hash_set_size"] == len(state.hash_set.keys)
    assert state.hash_set._slots() == [int(slot) for slot in told["copies"]]
    for slot, row in told["copies"].items():
        slot = int(slot)
        assert address(state.hash_set.keys[slot]) == row["key"]
        assert state.hv_tensor_backend_ids[slot] == row["backend"]
        copies = [address(t) for on in state.hv_tensor_copies[slot] for t in on]
        assert copies == row["copies"]
    for name in ("node_backend_ids", "leaf_backend_ids"):
        assert list(getattr(state, name)) == told[name]
        prev = list(getattr(state, f"prev_{name}"))
        n = min(len(prev), len(told[name]))
        assert prev[:n] == told[f"prev_{name}"][:n]
    for name in ("backends", "bufts", "graph_inputs"):
        assert [address(v) for v in getattr(state, name)] == told[name]
    assert [address(e) for on in state.events for e in on] == told["events"]
    check_graph(state.graph, told["graph"])
    for split, row in zip(state.splits, told["splits"], strict=True):
        for name in ("backend_id", "i_start", "i_end", "n_inputs"):
            assert getattr(split, name) == row[name]
        assert [address(t) for t in split.inputs] == row["inputs"]
        check_graph(split.graph, row["graph"])
    for tensor in state.graph.nodes:
        slot = oracle.slot_of(sched, tensor)
        assert state.hash_id(tensor) == (None if slot < 0 else slot)


def check_graph(graph, row):
    for name in ("size", "n_nodes", "n_leafs", "order"):
        assert getattr(graph, name) == row[name]
    for name in ("nodes", "leafs"):
        assert [address(t) for t in getattr(graph, name)] == row[name]


def test_a_compiler_that_knows_upstreams_text_lays_the_structs_out_so(oracle):
    told = oracle.layout()
    which = (lib.GP_STRUCT_SCHED, lib.GP_STRUCT_SPLIT, lib.GP_STRUCT_CGRAPH, lib.GP_STRUCT_HASH_SET)
    for struct, number in zip(oracle_sched.STRUCTS, which, strict=True):
        ours = [f for f in sched_struct.fields_of(number).values() if f.type]
        assert [f.name for f in ours] == oracle.declared[struct]
        assert [(f.offset, f.size) for f in ours] == [told[f"{struct}.{f.name}"] for f in ours]


@pytest.mark.parametrize("parallel", [False, True])
def test_a_compiler_that_knows_upstreams_text_reads_the_same(oracle, parallel):
    case = Small(parallel)
    try:
        for turn in range(3):
            case.sched.alloc_graph(case.graph)
            check_oracle(case.sched, oracle)
            if turn == 1:
                case.x.set(np.ones(case.x.shape, np.float32))
                case.sched.compute(case.graph)
                check_oracle(case.sched, oracle)
            case.sched.reset()
    finally:
        case.close()


def test_random_graphs_read_the_same(oracle):
    for seed in range(100, 140):
        check_random(seed, lambda world, _plan: check_oracle(world.scheduler, oracle))


# --- what may be gone


def test_after_a_reset_pointers_are_addresses(small):
    """The graph may be closed and its memory used by others: nothing there is read."""
    small.sched.alloc_graph(small.graph)
    state = small.sched.state
    copy, split, nodes = state.graph.nodes[1], state.splits[0], state.splits[0].graph.nodes
    keys, hash_set = split.graph.visited_hash_set.keys, split.graph.visited_hash_set
    assert small.x in hash_set and copy.name == "state0#x#0"
    was = address(small.a)
    small.sched.reset()
    small.graph.close()
    small.ctx.close()
    gc.collect()
    with pytest.raises(ggml.ClosedError, match="its graph was reset"):
        copy.name  # noqa: B018
    assert (split.backend_id, split.i_end, split.n_inputs) == (0, 2, 1)
    left = state.graph.nodes[2]
    assert isinstance(left, Pointer) and left.address == was
    with pytest.raises(AttributeError, match=r"'name' of \(struct ggml_tensor \*\) 0x.*no graph"):
        left.name  # noqa: B018
    assert isinstance(split.graph.nodes, Pointer)
    at = split.graph  # its arrays are such pointers, too
    for kept in (nodes, keys, at.nodes, at.visited_hash_set.keys, left):
        for ask in (lambda p: p[0], list, len)[: 3 if isinstance(kept, Pointer) else 2]:
            with pytest.raises(ggml.ClosedError, match=r"holds no graph.*alloc_graph"):
                ask(kept)
    with pytest.raises(TypeError, match=r"cannot read \[0\] of \(ev\) 0x1: why"):
        Pointer("ev", 1, "why")[0]
    assert len(hash_set) == 0 and len(state.hash_set) == 0
    str(state), repr(split)


def test_a_split_of_a_plan_before(small):
    small.sched.alloc_graph(small.graph)
    kept, live = small.sched.state.splits[0], small.sched.state.hash_set
    inputs, graph = kept.inputs, kept.graph
    small.sched.reset()
    small.sched.alloc_graph(small.graph)
    for read in (
        lambda: kept.backend_id, lambda: inputs[0], lambda: list(inputs), lambda: graph.n_nodes,
        lambda: repr(kept),
    ):  # fmt: skip
        with pytest.raises(ggml.ClosedError, match=r"split 0 of an earlier plan: read state"):
            read()
    assert live.find(small.x) == small.sched.state.hash_id(small.x)  # a field is what it is now


def test_a_pin_of_another_graph_is_an_address(small):
    with ggml.Context() as other:
        stranger = other.new_tensor("f32", 4)
        small.sched.set_tensor_backend(stranger, small.gpu)
        state = small.sched.state
        assert state.tensor_backend_id(stranger) == 0
        small.sched.alloc_graph(small.graph)
        at = state.hash_id(stranger)
    assert isinstance(state.hash_set.keys[at], Pointer)
    assert sum(isinstance(t, Pointer) for t in state.hash_set) == 1


def test_closed_and_spoiled_schedulers(small):
    small.sched.alloc_graph(small.graph)
    state = small.sched.state
    split = state.splits[0]
    small.sched.close()
    for read in (lambda: state.n_splits, lambda: split.i_end, lambda: str(state)):
        with pytest.raises(ggml.ClosedError, match="Scheduler is closed"):
            read()


def test_a_state_keeps_nothing_alive(small):
    small.sched.alloc_graph(small.graph)
    assert small.sched.state.hash_set.keys[small.sched.state.hash_id(small.x)] == small.x
    assert small.sched._known is not None
    small.sched.reset()
    assert small.sched._known is None


# --- threads


def test_callbacks_may_read(small):
    seen = []

    def look(tensor, ask):
        if ask and tensor == small.c:
            seen.append(small.sched.state.tensor_copy(small.b, small.cpu, 0).name)
        return False

    small.sched.set_eval_callback(look)
    small.sched.alloc_graph(small.graph)
    small.x.set(np.ones(small.x.shape, np.float32))
    small.sched.compute(small.graph)
    assert seen == ["CPU#b#0"]


def test_while_another_thread_computes(small):
    at_work, go_on, raised = threading.Event(), threading.Event(), []

    def wait(_tensor, _ask):
        at_work.set()
        go_on.wait(10)
        return False

    small.sched.set_eval_callback(wait)
    small.sched.alloc_graph(small.graph)
    small.x.set(np.ones(small.x.shape, np.float32))
    state = small.sched.state
    thread = threading.Thread(target=small.sched.compute, args=(small.graph,))
    thread.start()
    at_work.wait(10)
    try:
        for read in (lambda: state.n_splits, lambda: state.hash_id(small.x), lambda: repr(state)):
            with pytest.raises(ggml.BusyError, match="computing on another thread") as error:
                read()
            raised.append(error)
    finally:
        go_on.set()
        thread.join()
    assert len(raised) == 3 and state.n_splits == 2


def test_one_backend_with_a_pipeline():
    """Copies of inputs are there, too, and are lent as others are."""
    cpu = CPU.init(n_threads=1)
    with ggml.Context() as ctx, ggml.Scheduler([cpu], parallel=True) as sched:
        x = ctx.new_tensor("f32", 4, name="x")
        x.set_input()
        graph = ctx.new_graph()
        graph.build_forward_expand(ctx.sqr(x))
        sched.alloc_graph(graph)
        copies = [sched.state.tensor_copy(x, cpu, c) for c in range(4)]
        if sched.state.n_graph_inputs:
            assert [t.name for t in copies] == ["x", "CPU#x#1", "CPU#x#2", "CPU#x#3"]
        sched.reset()
        with pytest.raises(ggml.ClosedError):
            copies[1].name  # noqa: B018
    cpu.close()


def test_numbers_of_the_macros_are_checked(small):
    small.sched.alloc_graph(small.graph)
    state = small.sched.state
    for call, match in (
        (lambda: state.tensor_copy(small.x, 2, 0), r"backend_id=2: expected 0 to 1"),
        (lambda: state.tensor_copy(small.x, 0, 1), r"copy_id=1: expected 0 to 0"),
        (lambda: state.tensor_id_copy(67, 0, 0), r"id=67: expected 0 to 66"),
    ):
        with pytest.raises(ggml.ArgumentError, match=match):
            call()
    with pytest.raises(TypeError, match="expected a Tensor, got str 'x'"):
        state.hash_id("x")
    with pytest.raises(IndexError, match="index 2 of an array of length 2"):
        state.splits[2]
    assert state.splits[-1].backend_id == 1


def test_mlp_of_the_cpu_and_blas():
    case = graphs.mlp()
    try:
        check_plan(case.scheduler, case.scheduler.alloc_graph(case.graph))
    finally:
        case.close()

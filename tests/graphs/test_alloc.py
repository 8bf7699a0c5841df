"""Allocators: what they lend can be read while they lend it, and not a moment longer."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi, lib


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=2) as backend:
        yield backend


class Chain:
    """out = relu(w x) + 1, over a weight that has memory of its own."""

    def __init__(self, cpu, n=16, seed=0):
        self.weights, self.context = ggml.Context(), ggml.Context()
        rng = np.random.default_rng(seed)
        self.w = rng.standard_normal((n, n), np.float32)
        w = self.weights.from_numpy(self.w, "w")
        self.weights.alloc(cpu, usage="weights")
        self.x = self.context.new_tensor("f32", n, 3, name="x")
        self.x.set_input()
        h = self.context.relu(self.context.mul_mat(w, self.x))
        self.out = self.context.scale_bias(h, 1, 1)
        self.out.name = "out"
        self.out.set_output()
        self.graph = self.context.new_graph(16)
        self.graph.build_forward_expand(self.out)

    def check(self, cpu):
        values = np.random.default_rng(1).standard_normal((3, self.w.shape[0]), np.float32)
        self.x.set(values)
        cpu.compute(self.graph)
        want = np.maximum(values @ self.w.T, 0) + 1
        np.testing.assert_allclose(self.out.get(), want, rtol=1e-4, atol=1e-4)

    def tensors(self):
        return (*self.graph.nodes, self.x)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.context.close()
        self.weights.close()


@pytest.fixture
def chain(cpu):
    with Chain(cpu) as made:
        yield made


def unreadable(*tensors):
    for tensor in tensors:
        assert tensor.buffer is None
        with pytest.raises(ggml.NoDataError):
            tensor.get()
    return True


# --- GraphAllocator


def test_a_graph_is_allocated_and_computed(cpu, chain):
    with ggml.GraphAllocator(cpu.buffer_type) as allocator:
        assert allocator.buffer_size() == 0
        allocator.alloc_graph(chain.graph)
        chain.check(cpu)
        assert allocator.buffer_size() >= chain.out.nbytes
        assert chain.out.buffer.usage == "compute"
        chain.check(cpu)


@pytest.mark.parametrize("how", ["reset", "close", "reserve", "another", "collected"])
def test_what_was_lent_cannot_be_read_afterwards(cpu, chain, how):
    allocator = ggml.GraphAllocator(cpu.buffer_type)
    allocator.alloc_graph(chain.graph)
    view = chain.context.view_1d(chain.out, 4, 0)
    other = Chain(cpu, 64)
    if how == "reserve":
        allocator.reserve(other.graph)
    elif how == "another":
        allocator.alloc_graph(other.graph)
        other.check(cpu)
    elif how == "collected":
        gone = weakref.ref(allocator)
        del allocator
        gc.collect()
        assert gone() is None
    else:
        getattr(allocator, how)()
    assert unreadable(*chain.tensors(), view)
    with pytest.raises(ggml.NoDataError, match="no memory"):
        cpu.compute(chain.graph)
    assert chain.weights["w"].get().any()  # was never the allocator's
    if how != "collected":
        allocator.close()
    other.context.close()
    other.weights.close()


def test_closing_the_graph_takes_the_memory_back(cpu, chain):
    allocator = ggml.GraphAllocator(cpu.buffer_type)
    allocator.alloc_graph(chain.graph)
    chain.graph.close()
    assert unreadable(chain.x, chain.out)
    allocator.close()


def test_a_graph_is_lent_again(cpu, chain):
    with ggml.GraphAllocator(cpu.buffer_type) as allocator:
        for _ in range(3):
            allocator.alloc_graph(chain.graph)
            chain.check(cpu)
            allocator.reset()
        allocator.alloc_graph(chain.graph)
        late = chain.context.view_1d(chain.out, 4, 0)
        chain.check(cpu)
        np.testing.assert_array_equal(late.get(), chain.out.get().reshape(-1)[:4])


def test_memory_is_used_again(cpu):
    with ggml.Context() as context, ggml.GraphAllocator(cpu.buffer_type) as allocator:
        x = context.new_tensor("f32", 1 << 16)
        x.set_input()
        y = x
        for _ in range(20):
            y = context.cont(context.relu(y))
        graph = context.new_graph(64)
        graph.build_forward_expand(y)
        allocator.alloc_graph(graph)
        assert x.nbytes * 2 <= allocator.buffer_size() <= x.nbytes * 4


def test_reserving_is_enough_for_smaller_graphs(cpu):
    with (
        Chain(cpu, 16) as small,
        Chain(cpu, 64) as large,
        ggml.GraphAllocator(cpu.buffer_type) as allocator,
    ):
        allocator.reserve(large.graph)
        assert unreadable(*large.tensors())
        size = allocator.buffer_size()
        assert size > 0
        for case in (small, large, small):
            allocator.alloc_graph(case.graph)
            case.check(cpu)
            assert allocator.buffer_size() == size


@pytest.mark.needs("ggml_gallocr_reserve_n_size")
def test_measuring_changes_nothing(cpu, chain):
    with ggml.GraphAllocator(cpu.buffer_type) as allocator, Chain(cpu, 256) as large:
        allocator.alloc_graph(chain.graph)
        chain.x.set(np.ones(chain.x.shape, np.float32))
        values = chain.x.get()
        sizes = allocator.measure(large.graph)
        assert allocator.buffer_size() < sizes[0]
        np.testing.assert_array_equal(chain.x.get(), values)
        chain.check(cpu)
        allocator.reserve(large.graph)
        assert (allocator.buffer_size(),) == sizes


def edges(context, crossed):
    """Graphs of the same counts, types and sizes: in the crossed one, a is needed to the end."""
    x = context.new_tensor("f32", 1024)
    x.set_input()
    a = context.scale(x, 2)
    b = context.scale(a, 3)
    c = context.scale(b, 5)
    out = context.add(c, a if crossed else b)
    out.set_output()
    graph = context.new_graph(16)
    graph.build_forward_expand(out)
    return x, out, graph, 30 + (2 if crossed else 6)


def test_a_graph_with_other_edges_gets_a_layout_of_its_own(cpu):
    with ggml.Context() as context, ggml.GraphAllocator(cpu.buffer_type) as allocator:
        plain, crossed = edges(context, False), edges(context, True)
        for x, out, graph, factor in (plain, crossed, plain, crossed):
            allocator.alloc_graph(graph)
            x.set(np.ones(1024))
            cpu.compute(graph)
            assert set(out.get()) == {factor}


def test_the_instrumented_allocator_sees_other_edges_by_itself(cpu):
    """For who calls it through `lib`, or the scheduler does: upstream's computes nonsense here."""
    with ggml.Context() as context:
        _x, _out, first, _ = edges(context, False)
        x, out, second, factor = edges(context, True)
        raw = lib.ggml_gallocr_new(cpu.buffer_type.ptr)
        try:
            assert lib.ggml_gallocr_reserve(raw, first.ptr)
            assert lib.ggml_gallocr_alloc_graph(raw, second.ptr)
            x.set(np.ones(1024))
            cpu.compute(second)
            assert set(out.get()) == {factor}
        finally:
            lib.ggml_gallocr_free(raw)
            lent = ffi.new("struct ggml_tensor *[]", [t.ptr for t in (*second.nodes, x)])
            lib.gp_take_memory(lent, len(lent))


# --- several buffers


def test_ids_say_which_buffer(cpu, chain):
    extra = ggml.device("CPU").extra_buffer_types
    if not extra:
        pytest.skip("one buffer type")
    with ggml.GraphAllocator(cpu.buffer_type, extra[0]) as allocator:
        with pytest.raises(ggml.ArgumentError, match=r"2 buffer types: first call reserve\("):
            allocator.alloc_graph(chain.graph)
        n_nodes, n_leafs = chain.graph.n_nodes, chain.graph.n_leafs
        allocator.reserve(chain.graph, [0] * n_nodes, [0] * n_leafs)
        allocator.alloc_graph(chain.graph)
        chain.check(cpu)
        assert allocator.buffer_size(0) > 0
        with ggml.Context() as context:
            graph = context.new_graph(8)
            graph.build_forward_expand(context.relu(context.new_tensor("f32", 4)))
            with pytest.raises(ggml.ArgumentError, match=r"1 node and 1 leaf, but ids .* 3 and 2"):
                allocator.alloc_graph(graph)


@pytest.mark.needs("ggml_gallocr_reserve_n_size")
def test_a_buffer_type_twice_is_one_buffer(cpu, chain):
    buft = cpu.buffer_type
    with ggml.GraphAllocator(buft, buft) as allocator:
        ids = [i % 2 for i in range(chain.graph.n_nodes)], [1] * chain.graph.n_leafs
        sizes = allocator.measure(chain.graph, *ids)
        assert sizes[0] > 0 and sizes[1] == 0
        allocator.reserve(chain.graph, *ids)
        allocator.alloc_graph(chain.graph)
        chain.check(cpu)
        assert (allocator.buffer_size(0), allocator.buffer_size(1)) == sizes


# --- beside a scheduler


def test_one_lender_at_a_time(cpu, chain):
    scheduler, allocator = ggml.Scheduler([cpu]), ggml.GraphAllocator(cpu.buffer_type)
    scheduler.alloc_graph(chain.graph)
    for use in (allocator.alloc_graph, allocator.reserve, allocator.measure):
        with pytest.raises(ggml.ArgumentError, match="allocated on <Scheduler"):
            use(chain.graph)
    scheduler.reset()
    allocator.alloc_graph(chain.graph)
    for use in (scheduler.alloc_graph, scheduler.reserve, scheduler.compute):
        with pytest.raises(ggml.ArgumentError, match="allocated on <GraphAllocator CPU>"):
            use(chain.graph)
    second = ggml.GraphAllocator(cpu.buffer_type)
    with pytest.raises(ggml.ArgumentError, match="allocated on <GraphAllocator CPU>"):
        second.alloc_graph(chain.graph)
    with pytest.raises(ggml.ArgumentError, match="allocated on <GraphAllocator CPU>"):
        chain.graph.build_forward_expand(chain.context.relu(chain.out))
    allocator.reset()
    scheduler.alloc_graph(chain.graph)
    for lender in (scheduler, allocator, second):
        lender.close()


def test_computing_what_has_no_memory_says_so(cpu, chain):
    with pytest.raises(ggml.NoDataError, match="leaf 'x' of the graph has no memory"):
        cpu.compute(chain.graph)
    with ggml.Context() as context:
        a = context.from_numpy(np.ones(4, np.float32))
        context.alloc(cpu)
        graph = context.new_graph(8)
        y = context.relu(a)
        y.name = "y"
        graph.build_forward_expand(y)
        with pytest.raises(ggml.NoDataError, match=r"node 'y' .* GraphAllocator.alloc_graph"):
            cpu.compute(graph)


# --- TensorAllocator


def test_tensors_are_placed_one_after_the_other(cpu):
    with ggml.Context() as context, cpu.buffer_type.alloc(1024) as buffer:
        a = context.from_numpy(np.arange(5, dtype=np.float32), "a")
        b = context.new_tensor("f32", 8, name="b")
        allocator = ggml.TensorAllocator(buffer)
        start = allocator.n_free
        allocator.alloc(a)
        allocator.alloc(b)
        alignment = buffer.type.alignment
        used = sum(-(-buffer.alloc_size(t) // alignment) * alignment for t in (a, b))
        assert (start - allocator.n_free, allocator.n_used) == (used, used)
        assert int(ffi.cast("uintptr_t", b.ptr.data)) % alignment == 0
        b.set(np.full(8, 7))
        np.testing.assert_array_equal(a.get(), np.arange(5))
        assert "free" in repr(allocator)


def test_no_room_is_an_error(cpu):
    with ggml.Context() as context, cpu.buffer_type.alloc(256) as buffer:
        allocator = ggml.TensorAllocator(buffer)
        allocator.alloc(context.new_tensor("f32", 16))
        left = allocator.n_free
        with pytest.raises(ggml.AllocError, match=rf"4,000 bytes, but only {left} are free"):
            allocator.alloc(context.new_tensor("f32", 1000, name="big"))
        assert allocator.n_free == left  # and goes on
        allocator.alloc(context.new_tensor("f32", 4))


def test_a_tensor_allocator_of_a_closed_buffer(cpu):
    with ggml.Context() as context:
        buffer = cpu.buffer_type.alloc(256)
        tensor = context.new_tensor("f32", 4)
        allocator = ggml.TensorAllocator(buffer)
        allocator.alloc(tensor)
        buffer.close()
        assert unreadable(tensor) and "closed" in repr(allocator)
        for use in (lambda: allocator.alloc(tensor), lambda: allocator.n_free):
            with pytest.raises(ggml.ClosedError, match="Buffer"):
                use()

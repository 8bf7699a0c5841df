"""A leaf may be a view (`view_tensor`) of a tensor that is not in the graph."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_py as ggml


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


def squares(n, size=256):
    """A graph of squares of views of `n` views of arrays outside of it: n hidden tensors."""
    outside, ctx = ggml.Context(), ggml.Context()
    arrays = [outside.from_numpy(np.full(8, i, np.float32)) for i in range(n)]
    outside.alloc("CPU")
    graph = ctx.new_graph(size)
    results = [ctx.sqr(ctx.view_1d(ctx.view_tensor(array), 4, 0)) for array in arrays]
    for result in results:
        result.set_output()
        graph.build_forward_expand(result)
    return graph, results


@pytest.mark.parametrize("n", [1, 2, 3, 20, 60])
def test_what_a_leaf_views_has_room_in_the_allocators_table(cpu, n):
    graph, results = squares(n)
    with ggml.GraphAllocator(cpu.buffer_type) as allocator:
        allocator.alloc_graph(graph)
        cpu.compute(graph)
        assert [r.get()[0] for r in results] == [i * i for i in range(n)]
    with ggml.Scheduler([cpu], graph_size=256) as sched:
        sched.alloc_graph(graph)
        sched.compute(graph)
        assert [r.get()[3] for r in results] == [i * i for i in range(n)]


# Read by an op, the view is on the backend of an input.
@pytest.mark.parametrize(("marked", "read"), [(False, False), (False, True), (True, False)])
def test_a_view_of_what_has_no_memory_is_refused_by_name(cpu, marked, read):
    ctx = ggml.Context()
    x = ctx.new_tensor("f32", 4, name="x")
    if marked:
        x.set_input()
    graph = ctx.new_graph(16)
    view = ctx.view_tensor(x)
    graph.build_forward_expand(ctx.sqr(view) if read else view)
    graph.build_forward_expand(ctx.cpy(x, ctx.sqr(x)))
    with ggml.Scheduler([cpu]) as sched:
        for call in (sched.alloc_graph, sched.reserve, *([sched.plan] if read else ())):
            with pytest.raises(
                ggml.ArgumentError, match=r"no backend for leaf.*(view_tensor|only through views)"
            ):
                call(graph)
        x.set_input()
        other = ctx.new_graph(16)
        other.build_forward_expand(ctx.sqr(x))
        sched.alloc_graph(other)  # the scheduler can be used again


def compared(graph, cpu):
    with ggml.device("CPU").init() as other:
        ggml.compare_graph_backend(cpu, other, graph, lambda *results: True)


def test_a_comparison_copies_what_is_viewed(cpu):
    outside, ctx = ggml.Context(), ggml.Context()
    arrays = [outside.from_numpy(np.full(4, i, np.float32)) for i in range(64)]
    outside.alloc(cpu)
    results = [
        ctx.add(*(ctx.view_tensor(array) for array in arrays[i : i + 2])) for i in range(0, 64, 2)
    ]
    ctx.alloc(cpu)
    for size, refused in ((64, True), (128, False)):
        with ggml.Context() as own:
            graph = own.new_graph(size)
            graph.build_forward_expand(*results)
            if refused:  # upstream's table has room for twice the nodes
                with pytest.raises(ggml.ArgumentError, match="with a size above 64"):
                    compared(graph, cpu)
            else:
                compared(graph, cpu)


def test_a_comparison_of_a_view_of_a_long_chain_does_not_overflow_the_stack(cpu):
    outside, ctx = ggml.Context(reserve=1 << 26), ggml.Context(reserve=1 << 27)
    x = outside.new_tensor("f32", 1)
    for _ in range(150_000):
        x = outside.sqr(x)
    outside.alloc(cpu)
    graph = ctx.new_graph(1 << 20)
    graph.build_forward_expand(ctx.sqr(ctx.view_tensor(x)))
    ctx.alloc(cpu)
    with pytest.raises(ggml.ArgumentError, match="more than 10,000 tensors"):
        compared(graph, cpu)

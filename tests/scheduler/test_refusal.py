"""Graphs that upstream's scheduler aborts on: an error with the numbers, and nothing is lost."""

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.trace.rules import rules_of


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


def good(ctx):
    x = ctx.new_tensor("f32", 8, name="x")
    x.set_input()
    graph = ctx.new_graph(8)
    graph.build_forward_expand(ctx.sqr(x))
    return x, graph


def still_works(sched):
    with ggml.Context() as ctx:
        x, graph = good(ctx)
        sched.alloc_graph(graph)
        x.set(np.full(8, 3.0))
        sched.compute(graph)
        assert graph.nodes[0].get().tolist() == [9.0] * 8
        sched.reset()


@pytest.mark.parametrize("use", ["plan", "alloc_graph", "reserve"])
def test_a_node_that_nobody_supports_is_named(cpu, use):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        x = ctx.new_tensor("f32", 256, name="x")
        x.set_input()
        y = ctx.cast(ctx.sqr(x), "iq2_xxs")
        y.name = "y"
        graph = ctx.new_graph(8)
        graph.build_forward_expand(y)
        with pytest.raises(ggml.ArgumentError, match=r"supports 'y' = CPY\(f32 \[256, "):
            getattr(sched, use)(graph)
        still_works(sched)


@pytest.mark.parametrize("use", ["alloc_graph", "reserve"])
def test_a_leaf_that_is_read_through_views_only_is_named(cpu, use):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        x = ctx.new_tensor("f32", 8, name="x")
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.sqr(ctx.view_1d(x, 4, 0)))
        assert sched.plan(graph).node("x").backend is None
        with pytest.raises(ggml.ArgumentError, match=r"leaf 'x', which .*call set_input\(\)"):
            getattr(sched, use)(graph)
        still_works(sched)


def test_memory_that_no_backend_reads(cpu):
    with (
        ggml.sim_device("elsewhere").init() as gpu,
        ggml.Context() as weights,
        ggml.Context() as ctx,
        ggml.Scheduler([cpu]) as sched,
    ):
        w = weights.new_tensor("f32", 8, name="w")
        weights.alloc(gpu, usage="weights")
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.sqr(w))
        words = r"'w' is in elsewhere memory, which no backend of this scheduler \(CPU\) can read"
        with pytest.raises(ggml.ArgumentError, match=words):
            sched.plan(graph)
        still_works(sched)


def test_other_leafs_are_not_blamed(cpu):
    """An input, and one that is allocated, have their place."""
    with ggml.Context() as weights, ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        w = weights.new_tensor("f32", 8, name="w")
        weights.alloc(cpu, usage="weights")
        a, x = ctx.new_tensor("f32", 8, name="a"), ctx.new_tensor("f32", 8, name="x")
        a.set_input()
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.sqr(a), ctx.sqr(w), ctx.sqr(ctx.view_1d(x, 4, 0)))
        assert [leaf.name for leaf in graph.leafs] == ["a", "w", "x"]
        with pytest.raises(ggml.ArgumentError, match=r"leaf 'x', which has no memory"):
            sched.alloc_graph(graph)
        still_works(sched)


@pytest.mark.parametrize("use", ["plan", "alloc_graph", "reserve"])
def test_a_full_hash_set_says_what_is_in_it(cpu, use):
    """llama.cpp #28614, #16555: other sources and the NULL of pass 3 take slots, too."""
    with ggml.Context() as ctx, ggml.Scheduler([cpu], graph_size=8) as sched:
        size = sched.hash_set_size
        rules = rules_of(sched.plan(good(ctx)[1]).settings)
        if use == "reserve" and rules.reserve_ignores_pins:
            pytest.skip("reserve drops the pins first, and there is room without them")
        x = ctx.new_tensor("f32", 8, name="x")
        x.set_input()
        y = x
        for _ in range(size - 1):
            y = ctx.sqr(y)
        graph = ctx.new_graph(64)
        graph.build_forward_expand(y)
        sched.set_tensor_backend(ctx.new_tensor("f32", 8, name="elsewhere"), cpu)
        words = rf"{size - 1} nodes and 1 leaf\. Together with pin.* than the {size} tensors"
        with pytest.raises(ggml.ArgumentError, match=words):
            getattr(sched, use)(graph)
        sched.reset()
        still_works(sched)


@pytest.mark.needs(release="0.18.1", why="30 inputs before it")
def test_more_inputs_than_an_old_release_had_room_for(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu], parallel=True) as sched:
        xs = [ctx.new_tensor("f32", 8, name=f"x{i}") for i in range(40)]
        total = xs[0]
        for x in xs:
            x.set_input()
            total = ctx.add(total, x)
        graph = ctx.new_graph(128)
        graph.build_forward_expand(total)
        assert sched.plan(graph).n_splits == 1


@pytest.mark.parametrize("through", ["itself", "a view"])
def test_a_pin_to_a_backend_that_cannot_read_the_tensor(cpu, through):
    """Upstream makes no copy of it, and a GPU would read an address of the host's."""
    with (
        ggml.sim_device("refusing").init() as gpu,
        ggml.Context() as weights,
        ggml.Scheduler([gpu, cpu]) as sched,
    ):
        w = weights.new_tensor("f32", 8, name="w")
        weights.alloc(cpu, usage="weights")
        pinned = w if through == "itself" else weights.view_1d(w, 4, 0)
        with pytest.raises(ggml.ArgumentError, match=r"is in CPU memory, which refusing cannot"):
            sched.set_tensor_backend(pinned, gpu)
        sched.set_tensor_backend(pinned, cpu)
        still_works(sched)


@pytest.mark.parametrize(("op", "instead"), [("sqr", "pin it to gpu0, which"), ("relu", "")])
def test_a_pin_of_an_op_whose_result_is_elsewhere(cpu, op, instead):
    """Its remedy is of the pin that was asked for, and true: the GPU supports SQR alone."""
    with (
        ggml.sim_device("gpu0", supports={"SQR": True}) as sim,
        sim.init() as gpu,
        ggml.Context() as ctx,
        ggml.Scheduler([gpu, cpu]) as sched,
    ):
        y = getattr(ctx, op)(ctx.new_tensor("f32", 8, name="x"))
        y.name = "y"
        ctx.alloc(gpu)
        with pytest.raises(ggml.ArgumentError, match="do not pin it") as caught:
            sched.set_tensor_backend(y, cpu)
        assert "'y' is in gpu0 memory, which CPU cannot read" in str(caught.value)
        assert ("pin it to" in str(caught.value)) == bool(instead) and instead in str(caught.value)
        assert "pin the ops that use it" not in str(caught.value)
        if instead:
            sched.set_tensor_backend(y, gpu)

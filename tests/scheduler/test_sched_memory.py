"""What a scheduler needs, gets, and when its buffers are laid out anew."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.scheduler import scheduler
from ggml_py.tensors.lent import _OPEN

from ..support.graphs import CASES, mlp


def small(context, n, name="x"):
    x = context.new_tensor("f32", n, name=name)
    x.set_input()
    square = context.sqr(x)
    y = context.scale(square, 2.0)
    square.name, y.name = "square", "y"
    graph = context.new_graph()
    graph.build_forward_expand(y)
    return graph


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


@pytest.mark.needs("ggml_backend_sched_reserve_size")
@pytest.mark.parametrize("case", CASES)
def test_reserve_size_is_what_reserve_takes_and_changes_nothing(case):
    case = CASES[case]()
    try:
        sched, graph = case.scheduler, case.graph
        plan = sched.plan(graph)
        sizes = sched.reserve_size(graph)
        assert [sched.buffer_size(b) for b in case.backends] == [0] * len(case.backends)
        assert sched.plan(graph) == plan
        sched.reserve(graph)
        assert sizes == {b.name: sched.buffer_size(b) for b in case.backends}
        assert max(sizes.values()) > 0
    finally:
        case.close()


@pytest.mark.needs("ggml_backend_sched_reserve_size")
def test_reserve_size_keeps_pins(cpu):
    """Upstream's own drops them, and does not count them (that they count: test_copy_callback)."""
    case = mlp()
    try:
        sched = case.scheduler
        own = sched.plan(case.graph)
        sched.set_tensor_backend(case.graph["h"], case.backends[-1])
        sched.reserve_size(case.graph)
        assert sched.plan(case.graph).node("h").cause.code in ("usr", "3.upg")
        assert own.node("h").cause.code not in ("usr", "3.upg")
    finally:
        case.close()


def test_buffer_types_are_the_backends_unless_given(cpu):
    with ggml.Scheduler([cpu]) as sched:
        assert sched.buffer_type(cpu) == cpu.buffer_type


def test_reallocations_have_a_reason(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        assert (sched.n_reallocations, sched.reallocations) == (0, ())
        graphs = [small(ctx, 1000), small(ctx, 1000), small(ctx, 5000, "long")]
        longer = ctx.new_graph()
        longer.build_forward_expand(ctx.add(graphs[0]["y"], graphs[0]["x"]))
        for graph in (*graphs, longer, graphs[2]):
            sched.alloc_graph(graph)
            sched.reset()
        told = sched.reallocations
        assert [r.reason for r in told] == ["first", "node", "nodes", "nodes"]
        assert [r.grew for r in told] == [True, True, False, False]
        assert sched.n_reallocations == 4
        assert told[0].before == {"CPU": 0} and told[0].after == told[1].before
        assert told[1].text == "node 'square' takes 20,000 bytes, but there was room for 4,000"
        assert told[1].tensor == "square"
        assert told[1].after == {"CPU": sched.buffer_size(cpu)}
        assert "3 nodes, the previous one had 2" in told[2].text


def test_a_reserved_scheduler_is_not_laid_out_anew(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        sched.reserve(small(ctx, 5000))
        for n in (5000, 1000, 4000):
            sched.alloc_graph(small(ctx, n))
            sched.reset()
        assert sched.n_reallocations == 0


def test_a_source_that_grew_is_named(cpu):
    def graph(ctx, n):
        a, b = ctx.new_tensor("f32", n, 4, name="a"), ctx.new_tensor("f32", n, 4, name="b")
        out = ctx.mul_mat(a, b)
        out.name = "out"
        g = ctx.new_graph()
        g.build_forward_expand(out)
        return g

    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        sched.reserve(graph(ctx, 64))
        sched.alloc_graph(graph(ctx, 640))
        (only,) = sched.reallocations
        assert (only.reason, only.tensor) == ("src", "a")
        assert only.text == (
            "'a', source 0 of 'out', takes 10,240 bytes, but there was room for 1,024"
        )


def test_only_the_newest_reallocations_are_kept(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        x = ctx.new_tensor("f32", 8, name="x")
        one, two = ctx.new_graph(), ctx.new_graph()
        one.build_forward_expand(ctx.sqr(x))
        two.build_forward_expand(ctx.sqr(ctx.sqr(x)))
        for _ in range(150):
            for graph in (one, two):
                sched.alloc_graph(graph)
                sched.reset()
        assert sched.n_reallocations == 300
        assert len(sched.reallocations) == 256
        assert {r.reason for r in sched.reallocations} == {"nodes"}


def test_a_failed_allocation_says_how_much_was_attempted(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        huge = small(ctx, 1 << 50)
        with pytest.raises(ggml.AllocError, match=r"^CPU could not allocate [\d,]{21} bytes") as e:
            sched.alloc_graph(huge)
        assert list(e.value.sizes) == ["CPU"] and e.value.sizes["CPU"] >= 4 << 50
        with pytest.raises(ggml.AllocError) as e:
            sched.reserve(huge)
        assert e.value.sizes["CPU"] >= 4 << 50
        # nothing of it is left behind, the pins of before stay
        fits = small(ctx, 8)
        sched.set_tensor_backend(fits["y"], cpu)
        with pytest.raises(ggml.AllocError):
            sched.alloc_graph(huge)
        assert sched.alloc_graph(fits).node("y").cause.code == "usr"
        fits["x"].set(np.arange(8))
        sched.compute(fits)
        assert fits["y"].get().tolist() == [2.0 * i * i for i in range(8)]


def test_async_is_finished_after_synchronize(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        graph = small(ctx, 100)
        sched.alloc_graph(graph)
        graph["x"].set(np.arange(100))
        sched.compute_async(graph)
        sched.synchronize()
        np.testing.assert_array_equal(graph["y"].get(), 2.0 * np.arange(100) ** 2)


def test_async_does_not_wait(cpu, monkeypatch):
    """The CPU is done when it returns, so only what is called can be seen."""
    called = []

    class Seen:
        def __getattr__(self, name):
            called.append(name)
            return getattr(ggml.lib, name)

    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        graph = small(ctx, 4)
        sched.alloc_graph(graph)
        graph["x"].set([1, 2, 3, 4])
        monkeypatch.setattr(scheduler, "lib", Seen())
        sched.compute_async(graph)
        asked, called[:] = list(called), []
        graph["x"].set([1, 2, 3, 4])
        sched.compute(graph)
        monkeypatch.undo()
    assert "ggml_backend_sched_graph_compute_async" in asked
    assert not {"ggml_backend_sched_graph_compute", "ggml_backend_sched_synchronize"} & set(asked)
    assert "ggml_backend_sched_graph_compute" in called


def test_async_raises_what_a_callback_raised(cpu):
    def callback(tensor, ask):
        raise KeyError(tensor.name)

    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        graph = small(ctx, 4)
        sched.set_eval_callback(callback)
        sched.alloc_graph(graph)
        graph["x"].set([1, 2, 3, 4])
        with pytest.raises(KeyError, match="square"):
            sched.compute_async(graph)


def test_an_eval_callback_can_change_what_comes_next(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        graph = small(ctx, 4)
        first = graph.nodes[0]

        def callback(tensor, ask):
            if not ask:
                tensor.set(tensor.get() + 100)
            return tensor == first or not ask

        sched.set_eval_callback(callback)
        sched.alloc_graph(graph)
        graph["x"].set([1, 2, 3, 4])
        sched.compute(graph)
        assert graph["y"].get().tolist() == [202, 208, 218, 232]


def test_a_collected_scheduler_ends_its_loans():
    case = mlp()
    before = len(_OPEN)
    case.scheduler.alloc_graph(case.graph)
    assert len(_OPEN) == before + 1
    case.scheduler = None
    gc.collect()
    assert len(_OPEN) == before
    for item in (case.context, case.weights, *case.backends):
        item.close()


def test_a_graph_of_as_many_nodes_with_other_edges_is_laid_out_anew(cpu):
    """Upstream looks at counts and sizes only, and computes it in the other's layout."""

    def graph(ctx, far):
        x = ctx.new_tensor("f32", 64, name="x")
        x.set_input()
        chain = [ctx.sqr(x)]
        for _ in range(5):
            chain.append(ctx.scale(chain[-1], 2.0))
        out = ctx.add(chain[-1], chain[0] if far else chain[-2])
        out.name = "out"
        g = ctx.new_graph()
        g.build_forward_expand(out)
        return g

    values = np.arange(64, dtype=np.float32)
    want = {True: 33.0 * values**2, False: 48.0 * values**2}
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        near, far = graph(ctx, far=False), graph(ctx, far=True)
        for g, is_far in ((near, False), (far, True), (near, False)):
            sched.alloc_graph(g)
            g["x"].set(values)
            sched.compute(g)
            np.testing.assert_array_equal(g["out"].get(), want[is_far])
            sched.reset()
        assert [r.reason for r in sched.reallocations] == ["first", "edges", "edges"]
        assert [r.ours for r in sched.reallocations] == [False, True, True]
        assert "upstream compares only counts and sizes" in sched.reallocations[1].text
        sched.alloc_graph(near)  # the same again fits
        assert sched.n_reallocations == 3


@pytest.mark.parametrize("devices", [False, True])
def test_what_upstream_would_lay_out_anew_is_told_apart(cpu, sims, devices):
    """Also later on: it compares with the layout that it would still have."""

    def graph(ctx, n, far, more=False):
        a, b = (ctx.new_tensor("f32", n, name=name) for name in "ab")
        a.set_input(), b.set_input()
        s, t = ctx.sqr(a), ctx.sqr(b)
        y = ctx.mul(ctx.add(s, t), s if far else t)
        g = ctx.new_graph(64)
        g.build_forward_expand(ctx.sqr(y) if more else y)
        return g

    steps = [  # (elements, edges, one node more): why it is laid out anew, and whether that is ours
        ((100, True), ("first", False)),
        ((50, False), ("edges", True)),  # upstream goes on with the layout for 100
        ((75, False), ("node", True)),
        ((75, False), None),
        ((200, False), ("node", False)),
        ((100, True), ("edges", True)),
        ((150, True), ("node", True)),
        ((100, True, True), ("backend" if devices else "nodes", False)),
        ((100, True, True), None),
        ((101, True, True), ("node", False)),
    ]  # fmt: skip
    backends = [*([sims().init()] if devices else []), cpu]
    with ggml.Context() as ctx, ggml.Scheduler(backends) as sched:
        for args, expected in steps:
            before = sched.n_reallocations
            sched.alloc_graph(graph(ctx, *args))
            sched.reset()
            made = [(r.reason, r.ours) for r in sched.reallocations[before:]]
            assert made == ([] if expected is None else [expected]), args
        sched.alloc_graph(graph(ctx, 50, False, True))
        sched.reset()
        sched.reserve(graph(ctx, 50, False, True))  # forgets what upstream would have had
        sched.alloc_graph(graph(ctx, 60, False, True))
        assert sched.reallocations[-1].reason == "node" and not sched.reallocations[-1].ours
    for backend in backends[:-1]:
        backend.close()


def test_a_leaf_that_needs_memory_where_one_had_its_own_is_laid_out_anew(cpu):
    """Upstream writes through the buffer that the other leaf did not have."""
    with ggml.Context() as weights, ggml.Context() as ctx, ggml.Scheduler([cpu]) as sched:
        w = weights.new_tensor("f32", 8, 8, name="w")
        weights.alloc(cpu, usage="weights")
        w.set(np.eye(8))
        x = ctx.new_tensor("f32", 8, 8, name="x")
        x.set_input()
        one, two = ctx.new_graph(), ctx.new_graph()
        one.build_forward_expand(ctx.cont(ctx.mul_mat(w, w)))
        two.build_forward_expand(ctx.mul_mat(x, ctx.reshape_2d(w, 8, 8)))
        for g in (one, two):
            sched.alloc_graph(g)
            x.set(np.full((8, 8), 3.0)) if g is two else None
            sched.compute(g)
            assert g.nodes[-1].get()[0, 0] == (3.0 if g is two else 1.0)
            sched.reset()

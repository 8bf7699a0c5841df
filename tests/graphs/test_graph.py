"""Graphs: building, copies, DOT files, and that nothing outlives its memory."""

import gc
import logging
import re

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.enums import Op

ARGUMENT = ggml.ArgumentError


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=2) as backend:
        yield backend


@pytest.fixture
def weights():
    with ggml.Context() as context:
        yield context


@pytest.fixture
def ctx(weights):
    with ggml.Context() as context:
        yield context


def simple(ctx, weights, cpu, size=16, **options):
    """y = (a + b)^2 in a graph."""
    a = weights.from_numpy(np.arange(4, dtype=np.float32), "a")
    b = weights.from_numpy(np.ones(4, np.float32), "b")
    weights.alloc(cpu)
    y = ctx.sqr(ctx.add(a, b))
    y.name = "y"
    graph = ctx.new_graph(size, **options)
    graph.build_forward_expand(y)
    return graph, y


def test_an_added_node_is_computed(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu)
    more = ctx.sum(y)
    graph.add_node(more)
    assert graph.nodes[-1] == more and graph.n_nodes == 3
    ctx.alloc(cpu)
    cpu.compute(graph)
    assert more.get() == 1 + 4 + 9 + 16


def test_nodes_that_cannot_be_added(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu, size=3)
    with pytest.raises(ARGUMENT, match="already"):
        graph.add_node(y)
    with pytest.raises(ARGUMENT, match=r"needs .* which is not in this graph"):
        graph.add_node(ctx.sqr(ctx.sqr(y)))
    view = ctx.view_1d(ctx.sqr(y), 1, 0)
    with pytest.raises(ARGUMENT, match="not in this graph"):
        graph.add_node(view)
    graph.add_node(ctx.sqr(y))
    with pytest.raises(ARGUMENT, match="full"):
        graph.add_node(ctx.sqrt(y))
    with pytest.raises(TypeError, match="Tensor"):
        graph.add_node("y")


def test_a_cleared_graph_takes_other_nodes(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu)
    graph.clear()
    assert (graph.n_nodes, graph.n_leafs) == (0, 0) and y not in graph
    other = ctx.neg(weights["a"])
    graph.build_forward_expand(other)
    with ggml.Scheduler([cpu]) as scheduler:
        scheduler.compute(graph)
        assert other.get().tolist() == [0, -1, -2, -3]


def test_a_copy_has_the_same_tensors_and_computes(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu)
    dup = graph.dup()
    assert dup.nodes == graph.nodes and dup.leafs == graph.leafs and dup.size == graph.size
    graph.close()
    with ggml.Scheduler([cpu]) as scheduler:
        scheduler.compute(dup)
        assert y.get().tolist() == [1, 4, 9, 16]


def test_copying_over_a_graph_with_the_same_tensors(ctx, weights, cpu):
    """ggml_graph_cpy alone would write its use counts out of bounds."""
    graph, y = simple(ctx, weights, cpu)
    other = ctx.new_graph(32)
    other.build_forward_expand(ctx.neg(y))
    graph.copy_to(other)
    assert other.nodes == graph.nodes
    with ggml.Scheduler([cpu]) as scheduler:
        scheduler.compute(other)
        assert y.get().tolist() == [1, 4, 9, 16]


def test_copies_that_cannot_be(ctx, weights, cpu):
    graph, _y = simple(ctx, weights, cpu, grads=True)
    for other in (ctx.new_graph(8, grads=True), ctx.new_graph(16)):
        with pytest.raises(ARGUMENT, match="expected at least size=16, grads=True"):
            graph.copy_to(other)
    with pytest.raises(ARGUMENT, match="itself"):
        graph.copy_to(graph)
    with pytest.raises(TypeError, match="expected a Graph, got Tensor"):
        graph.copy_to(graph.nodes[0])


def test_an_allocated_graph_is_not_changed(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu, grads=True)
    other = graph.dup()
    with ggml.Scheduler([cpu]) as scheduler:
        scheduler.alloc_graph(graph)
        for change in (
            lambda: graph.add_node(ctx.sqr(y)),
            lambda: graph.build_forward_expand(ctx.sqr(y)),
            graph.build_backward_expand,
            graph.clear,
            lambda: other.copy_to(graph),
        ):
            with pytest.raises(ARGUMENT, match=r"allocated on <Scheduler CPU>: reset\(\)"):
                change()
        scheduler.compute(graph)
        assert y.get().tolist() == [1, 4, 9, 16]
        scheduler.reset()
        graph.clear()


def test_closing_an_allocated_graph_takes_the_memory_back(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu)
    with ggml.Scheduler([cpu]) as scheduler:
        scheduler.compute(graph)
        graph.close()
        with pytest.raises(ggml.NoDataError):
            y.get()
        with ctx.new_graph(16) as another:
            another.build_forward_expand(y)
            scheduler.compute(another)
            assert y.get().tolist() == [1, 4, 9, 16]


def test_a_scheduler_that_nobody_closed_takes_its_memory_back(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu)
    scheduler = ggml.Scheduler([cpu])
    scheduler.compute(graph)
    assert y.get().tolist() == [1, 4, 9, 16]
    del scheduler
    gc.collect()
    with pytest.raises(ggml.NoDataError):
        y.get()


def test_tensors_of_a_graph_end_with_their_own_context(weights, cpu):
    """The graph is of one context, the nodes are of another that nobody told the first about."""
    with ggml.Context() as of_graph:
        ctx = ggml.Context()
        _first, y = simple(ctx, weights, cpu)
        graph = of_graph.new_graph(16)
        graph.build_forward_expand(y)
        node, leaf = graph.nodes[-1], graph["a"]
        assert node == y and leaf == weights["a"]
        ctx.close()
        assert graph.closed and not of_graph.closed
        with pytest.raises(ggml.ClosedError):
            _ = node.ne
        assert leaf.ne == (4, 1, 1, 1)


def test_the_print_goes_to_the_log(ctx, weights, cpu, caplog):
    graph, _y = simple(ctx, weights, cpu)
    with caplog.at_level(logging.INFO, "ggml"):
        graph.print()
    assert "n_nodes = 2" in caplog.text and re.search(r"\[ +4, +1, +1\] +SQR", caplog.text)


def test_a_dot_file_has_every_node_and_edge(ctx, weights, cpu, tmp_path):
    graph, _y = simple(ctx, weights, cpu)
    path = tmp_path / "graph ä.dot"
    graph.to_dot(path)
    text = path.read_text()
    assert text.startswith("digraph G {") and text.endswith("}\n")
    assert len(re.findall(r"-> ", text)) == 3  # a, b -> add -> sqr
    assert "y (f32)" in text and text.count("pink") == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_dot_file_that_cannot_be_written(ctx, weights, cpu, tmp_path):
    graph, y = simple(ctx, weights, cpu)
    with pytest.raises(FileNotFoundError):
        graph.to_dot(tmp_path / "missing" / "x.dot")
    y.name = 'a "quoted" name'
    with pytest.raises(ARGUMENT, match="quotes"):
        graph.to_dot(tmp_path / "x.dot")
    assert list(tmp_path.iterdir()) == []


def test_comparing_backends_shows_every_result(ctx, weights, cpu):
    graph, _y = simple(ctx, weights, cpu)
    graph.build_forward_expand(ctx.reshape_2d(graph.nodes[-1], 2, 2))
    ctx.alloc(cpu)
    seen = []

    def look(index, t1, t2):
        seen.append((index, t1.op, t1.get().tolist(), t2.get().tolist()))
        return True

    with ggml.device("CPU").init(n_threads=1) as other:
        ggml.compare_graph_backend(cpu, other, graph, look)
        assert seen == [  # views compute nothing and are not shown
            (0, Op.ADD, [1, 2, 3, 4], [1, 2, 3, 4]),
            (1, Op.SQR, [1, 4, 9, 16], [1, 4, 9, 16]),
        ]
        seen.clear()
        ggml.compare_graph_backend(cpu, other, graph, lambda *a: look(*a) and False)
        assert len(seen) == 1
        seen.clear()
        ggml.compare_graph_backend(cpu, other, graph, look, [graph.nodes[1]])
        assert [row[0] for row in seen] == [1]


def test_comparing_backends_raises_what_the_callback_raised(ctx, weights, cpu):
    graph, y = simple(ctx, weights, cpu)
    ctx.alloc(cpu)
    kept = []

    def fail(index, t1, t2):
        kept.append(t2)
        raise ZeroDivisionError("mine")

    with ggml.device("CPU").init(n_threads=1) as other:
        with pytest.raises(ZeroDivisionError, match="mine"):
            ggml.compare_graph_backend(cpu, other, graph, fail)
        assert len(kept) == 1
        with pytest.raises(ggml.ClosedError):  # the copy is gone
            kept[0].get()
        with pytest.raises(ARGUMENT, match="not a node"):
            ggml.compare_graph_backend(cpu, other, graph, fail, [weights["a"]])
        with pytest.raises(TypeError, match="expected a Graph, got Tensor"):
            ggml.compare_graph_backend(cpu, other, y, fail)
        with pytest.raises(TypeError, match="function"):
            ggml.compare_graph_backend(cpu, other, graph, None)


def test_comparing_backends_looks_first(ctx, weights, cpu):
    graph, _y = simple(ctx, weights, cpu)
    with pytest.raises(ggml.NoDataError):
        ggml.compare_graph_backend(cpu, cpu, graph, lambda *_: True)
    ctx.alloc(cpu)
    with ggml.device("BLAS").init() as blas, pytest.raises(ARGUMENT, match="BLAS cannot compute"):
        ggml.compare_graph_backend(cpu, blas, graph, lambda *_: True)
    with pytest.raises(ARGUMENT, match="empty"):
        ggml.compare_graph_backend(cpu, cpu, ctx.new_graph(), lambda *_: True)

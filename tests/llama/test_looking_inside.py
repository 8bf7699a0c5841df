"""libllama's scheduler and graphs are public: they can be read, exported and planned elsewhere."""

import gc

import pytest

import ggml_py as ggml
from ggml_py import llama
from ggml_py.boundary.handle import LIVE
from ggml_py.errors import ArgumentError, BusyError, ClosedError, ModelError, NoDataError

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]


@pytest.fixture(scope="module")
def file(oracle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside")
    oracle.run("test-llama-archs", "-a", "^deepseek2$", "-s", 42, "-o", folder)
    (path,) = folder.glob("*.gguf")
    return path


@pytest.fixture
def model(file):
    with (
        ggml.sim_device("in0", profile="rtx4090"),
        llama.open(file, devices=("in0",), n_gpu_layers=1) as model,
    ):
        yield model


def test_a_graph_is_the_one_that_is_planned(model):
    for shape in ((1, 0, 1), (32, 5, 1)):
        plan = model.plan(*shape)
        with model.graph(*shape) as graph:
            assert [t.name for t in graph.nodes] == [t.name for t in plan.nodes]
            assert [t.op.name for t in graph.nodes] == [t.op for t in plan.nodes]
            assert [t.ne for t in graph.nodes] == [t.ne for t in plan.nodes]
            node = graph["attn_norm-1"]
            assert [s.name for s in node.src] == ["norm-1", "blk.1.attn_norm.weight"]
        assert model.plan(*shape).text() == plan.text()  # nothing is left of it
        for read in (lambda node=node: node.name, lambda graph=graph: graph.n_nodes):
            with pytest.raises(ClosedError):
                read()
    with pytest.raises(ModelError), model.graph(5000):
        pass


def test_a_graph_is_planned_on_another_scheduler(model):
    with model.graph(8) as graph, ggml.Scheduler(model.scheduler.backends) as mine:
        free = mine.plan(graph)
        assert {node.backend for node in free.nodes} == {"in0", "CPU"}
        assert free.text() == mine.plan(graph).text()
        assert not any(node.cause == "usr" for node in free.nodes)  # llama.cpp's pins stay behind
        assert mine.reserve_size(graph)["in0"] > 0


def test_a_graph_without_weights_gets_no_memory(model):
    with model.graph(8) as graph, ggml.Scheduler(model.scheduler.backends) as mine:
        for use in (mine.alloc_graph, mine.reserve, lambda g: mine.alloc_graph(g.dup())):
            with pytest.raises(ArgumentError, match="this graph is libllama's, without weights"):
                use(graph)
        with pytest.raises(NoDataError):
            mine.compute(graph)
        with pytest.raises(ArgumentError, match="this graph is libllama's"):
            graph.clear()
        with pytest.raises(BusyError):
            model.plan(1)
    assert model.plan(1).n_splits


def test_the_scheduler_can_be_read(model):
    sched = model.scheduler
    assert sched is model.scheduler
    assert [b.name for b in sched.backends] == ["in0", "CPU"]
    assert sched.n_copies == 1
    model.eval([1, 2, 3])
    running = model.scheduler
    assert running is not sched
    assert running.n_splits == model.plan(3).n_splits == running.state.n_splits
    assert len(running.state.splits) == running.n_splits
    assert all(running.buffer_size(b) > 0 for b in running.backends)
    assert running.inspect()["backends"] == ["in0", "CPU"]
    assert "n_backends = 2" in str(running.state)
    assert not hasattr(running, "alloc_graph")


def test_one_that_libllama_replaces_is_closed(model):
    """embed() makes libllama reserve again, with another scheduler."""
    model.eval([1, 2, 3])
    native = model._loaded().context
    before, address = model.scheduler, model._library.lib.gpl_sched(native.ptr)
    model._library.lib.llama_set_causal_attn(native.ptr, False)
    model.reset()
    model.eval([4])
    if model._library.lib.gpl_sched(native.ptr) != address:
        assert before.closed
        with pytest.raises(ClosedError):
            before.n_splits  # noqa: B018
    assert model.scheduler.n_splits > 0


def test_nothing_is_left_open(file):
    gc.collect()
    before = dict(LIVE)
    with llama.open(file, repack=False) as model:
        sched = model.scheduler
        with model.graph(3) as graph:
            node = graph.nodes[0]
        kept = sched.backends[0]
    for read in (lambda: sched.n_splits, lambda: sched.state.n_splits, lambda: kept.name):
        with pytest.raises(ClosedError):
            read()
    del node, graph
    gc.collect()
    assert dict(LIVE) == before

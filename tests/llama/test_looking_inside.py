"""libllama's scheduler and graphs are public: they can be read, exported and planned elsewhere."""

import gc
import os
import shutil

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import llama
from ggml_py.boundary.handle import LIVE
from ggml_py.errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    DamagedFileError,
    ModelError,
    NoDataError,
)

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]


@pytest.fixture(scope="module")
def file(oracle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside")
    oracle.run("test-llama-archs", "-a", "^llama$", "-s", 42, "-o", folder)
    (dense,) = folder.glob("llama-dense.gguf")
    dense.rename(folder / "llama.gguf")
    oracle.run("test-llama-archs", "-a", "^deepseek2$", "-s", 42, "-o", folder)
    (path,) = folder.glob("deepseek2*.gguf")
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


def test_an_embedded_text_is_not_continued(model):
    expected = model.eval([6])
    for _ in range(2):
        model.embed([1, 2, 3])
        assert model.n_past == 0
    assert np.array_equal(model.eval([6]), expected)


def test_names_to_watch_are_texts(model):
    for wrong in ([1, 2], b"ab", [None]):
        with pytest.raises(TypeError, match="watch: expected names like 'ffn_out-0', or patterns"):
            model.eval([1], watch=wrong)
    assert model.n_past == 0


def test_closing_while_it_is_used_closes_nothing(file):
    model = llama.open(file)
    with model.graph(8) as graph:
        with pytest.raises(BusyError):
            model.close()
        assert not model.closed and graph.n_nodes
    model.eval([1])
    model.close()
    assert model.closed
    assert not LIVE["ContextHandle"] and not LIVE["LlamaHandle"]


def test_parts_of_nodes_are_not_watched(file):
    with (
        ggml.sim_device("part0", profile="rtx4090"), ggml.sim_device("part1", profile="rtx4090"),
        llama.open(file.parent / "llama.gguf", devices=("part0", "part1"), n_gpu_layers=-1,
                   split_mode="tensor") as model,
    ):  # fmt: skip
        with pytest.raises(ModelError, match='with split_mode "tensor" each device has a part'):
            model.eval([1], watch=["l_out-*"])
        assert model.eval([1]).ndim == 1


def test_a_file_that_changes_is_not_mixed_with_another(file, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copy(file.parent / "llama.gguf", path)
    with llama.open(path) as model:
        model.plan(1)
        shutil.copy(file, tmp_path / "other.gguf")
        (tmp_path / "other.gguf").replace(path)
        with pytest.raises(DamagedFileError, match="has changed since it was opened"):
            model.eval([1])


def test_a_file_that_is_cut_while_it_is_mapped(file, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copy(file.parent / "llama.gguf", path)
    whole = path.read_bytes()
    with llama.open(path, repack=False) as model:
        logits = model.eval([1])
        os.truncate(path, 4096)
        with pytest.raises(DamagedFileError):
            model.eval([2])
        with path.open("r+b") as again:
            again.write(whole)
        model.reset()
        assert (model.eval([1]) == logits).all()


def test_logits_are_those_of_the_last_token(oracle, tmp_path):
    """cogvlm's graph has a row for each token, whichever are asked for."""
    oracle.run("test-llama-archs", "-a", "^cogvlm$", "-s", 42, "-o", tmp_path)
    (path,) = tmp_path.glob("*.gguf")
    with llama.open(path, n_ctx=256) as model:
        every = model.eval([1, 2, 3], all_logits=True)
        model.reset()
        assert (model.eval([1, 2, 3]) == every[-1]).all()
        assert (every[0] != every[-1]).any()


def test_progress_of_the_weights(file):
    shares = []
    with llama.open(file, progress=shares.append) as model:
        assert shares[0] < shares[-1] == 1.0
        assert model.eval([1]).ndim == 1
    with pytest.raises(ZeroDivisionError):
        llama.open(file, progress=lambda share: 1 // 0)
    with pytest.raises(ModelError, match="progress stopped the loading"):
        llama.open(file, progress=lambda share: False)


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

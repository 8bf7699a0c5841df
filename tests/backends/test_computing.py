"""What is looked at before each compute, and not again while nothing can have changed."""

from __future__ import annotations

import contextlib
import random
import signal
import time

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.callback import STORED
from ggml_py.graphs import graph as graph_module

from ..support import graphs

X = np.ones((48, 64), np.float32)


@pytest.fixture
def mlp():
    with contextlib.closing(graphs.mlp()) as case:
        case.scheduler.alloc_graph(case.graph)
        case.graph["inp"].set(X)
        case.scheduler.compute(case.graph)
        yield case


@pytest.fixture
def looks(monkeypatch):
    """How often the graph's tensors were looked at."""
    seen = []

    class Counting:
        def __getattr__(self, name):
            return getattr(ggml.lib, name)

        def gp_graph_without_data(self, graph):
            seen.append(graph)
            return ggml.lib.gp_graph_without_data(graph)

    monkeypatch.setattr(graph_module, "lib", Counting())
    return seen


def test_computes_look_once_at_a_graph_that_nobody_changes(mlp, looks):
    other = mlp.context.new_tensor("f32", 4)
    mlp.graph["inp"].set(X)
    mlp.scheduler.compute(mlp.graph)
    looks.clear()
    for _ in range(3):
        mlp.graph["inp"].set(2 * X)
        mlp.context.relu(other)  # a new tensor, in no graph
        mlp.scheduler.compute(mlp.graph)
        out = mlp.graph["out"].get()
    assert looks == [] and np.abs(out).max() > 0
    with mlp.backends[-1].buffer_type.alloc(64):
        mlp.graph["inp"].set(X)
        mlp.scheduler.compute(mlp.graph)  # somebody allocated
    assert len(looks) == 1


def _close_weights(case):
    case.weights._buffers[0].close()


def _close_weights_that_an_array_keeps(case):
    kept = case.graph["up"].numpy()
    case.weights._buffers[0].close()
    assert kept.shape == (128, 64)


def _close_while_another_is_made(case):
    case.weights._buffers[0].close()
    case.backends[-1].buffer_type.alloc(1 << 16)


def _take_with_raw_calls(case):
    ggml.lib.gp_take_memory([case.graph["down"].ptr], 1)


@pytest.mark.parametrize(
    "lose",
    [_close_weights, _close_weights_that_an_array_keeps, _close_while_another_is_made,
     _take_with_raw_calls],
)  # fmt: skip
def test_memory_that_goes_between_two_computes_is_missed(mlp, lose):
    lose(mlp)
    for _ in range(2):
        with pytest.raises(ggml.NoDataError, match=r"leaf '(up|down)' of the graph has no memory"):
            mlp.scheduler.compute(mlp.graph)


def test_memory_of_a_source_that_the_graph_does_not_know_of_is_missed():
    with ggml.Context() as context, ggml.device("CPU").init(n_threads=1) as cpu:
        node = context.soft_max_ext(context.new_tensor("f32", 4, name="scores"), None, 1.0, 0.0)
        context.alloc(cpu).clear()
        graph = context.new_graph(8)
        graph.build_forward_expand(node)
        cpu.compute(graph)
        with ggml.Context() as lent:
            node.add_sinks(lent.new_tensor("f32", 1, name="late"))
            with pytest.raises(ggml.NoDataError, match="'late' of the graph has no memory"):
                cpu.compute(graph)
            buffer = lent.alloc(cpu)
            for tensor in (context["scores"], lent["late"]):
                tensor.set(np.zeros(tensor.ne[0], np.float32))
            cpu.compute(graph)
            np.testing.assert_allclose(node.get(), np.full(4, 0.2), rtol=1e-6)
            buffer.close()
            with pytest.raises(ggml.NoDataError, match="'late' of the graph has no memory"):
                cpu.compute(graph)


def test_a_graph_that_an_allocator_takes_back_is_missed():
    with ggml.Context() as context, ggml.device("CPU").init(n_threads=1) as cpu:
        x = context.new_tensor("f32", 4, name="x")
        x.set_input()
        graph = context.new_graph(8)
        graph.build_forward_expand(context.relu(x))
        with ggml.GraphAllocator(cpu.buffer_type) as allocator:
            allocator.alloc_graph(graph)
            x.set(np.ones(4, np.float32))
            cpu.compute(graph)
            allocator.reset()
            with pytest.raises(ggml.NoDataError, match="'x' of the graph has no memory"):
                cpu.compute(graph)


def test_what_a_callback_raised_outside_of_computes_is_no_error_of_the_next(mlp):
    """Its exception waits for whoever waits for the call; a compute forgets it and looks on."""

    def fail(_tensor, _ask):
        raise RuntimeError("never seen")

    mlp.scheduler.set_eval_callback(fail)
    ggml.lib.ggml_backend_sched_graph_compute(mlp.scheduler.ptr, mlp.graph.ptr)  # nobody asks
    mlp.scheduler._eval_callback._call = lambda _tensor, ask: not ask
    mlp.graph["inp"].set(X)
    mlp.scheduler.compute(mlp.graph)
    assert not STORED


def test_a_compute_that_is_refused_leaves_the_one_that_goes_on_alone():
    """What the outer one has stored is its own."""
    refused = []

    def fail(_dst, _a, _ith, _nth):
        raise LookupError("of the first op")

    def again(_dst, _a, _ith, _nth):
        try:
            scheduler.compute(graph)
        except ggml.BusyError as error:
            refused.append(error)

    with ggml.Context() as context, ggml.device("CPU").init(n_threads=1) as cpu:
        x = context.new_tensor("f32", 4)
        x.set_input()
        graph = context.new_graph(8)
        graph.build_forward_expand(context.map_custom1(context.map_custom1(x, fail), again))
        with ggml.Scheduler([cpu]) as scheduler:
            scheduler.alloc_graph(graph)
            x.set(np.ones(4, np.float32))
            with pytest.raises(LookupError, match="of the first op"):
                scheduler.compute(graph)
    assert len(refused) == 1


@pytest.mark.thorough("long")
def test_signals_at_any_moment_leave_everything_usable(mlp):
    """Their handlers run between any two lines of ours, and may raise there."""

    class Signalled(Exception):
        pass

    def handler(*_):
        raise Signalled

    x, want = mlp.graph["inp"], mlp.graph["out"].get()
    before = signal.signal(signal.SIGALRM, handler)
    raised, end = 0, time.monotonic() + 2
    try:
        while time.monotonic() < end:
            with contextlib.suppress(Signalled):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 + random.random() * 2e-4)
                    for _ in range(20):
                        mlp.scheduler.compute(mlp.graph)
                except Signalled:
                    raised += 1
                    raise
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised > 100
    x.set(X)
    mlp.scheduler.compute(mlp.graph)
    np.testing.assert_array_equal(mlp.graph["out"].get(), want)

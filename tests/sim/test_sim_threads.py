"""A simulated device keeps its threads from one graph to the next."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml

TASKS = Path("/proc/self/task")
needs_proc = pytest.mark.skipif(not TASKS.exists(), reason="threads are counted in /proc")


@contextmanager
def computing(device, n_threads):
    """A backend with so many threads, and a call that computes on it."""
    with device.init(n_threads=n_threads) as backend, ggml.Context() as context:
        x = context.new_tensor("f32", 64, 64)
        graph = context.new_graph()
        y = context.mul_mat(x, x)
        graph.build_forward_expand(y)
        context.alloc(backend)
        x.set(np.ones((64, 64), np.float32))

        def compute():
            backend.compute(graph)
            return float(y.get()[0, 0])

        yield backend, compute


def threads():
    return {task.name for task in TASKS.iterdir()}


@needs_proc
@pytest.mark.parametrize("async_, queue", [(True, 1), (False, 0)])
def test_threads_are_kept(sims, async_, queue):
    before = threads()
    with computing(sims(async_=async_), 3) as (backend, compute):
        assert compute() == 64
        kept = threads() - before
        assert len(kept) == queue + 2
        assert [compute() for _ in range(5)] == [64] * 5
        assert threads() - before == kept

        backend.n_threads = 2
        assert compute() == 64
        assert len(threads() - before) == queue + 1

        backend.n_threads = 1
        assert compute() == 64
        assert len(threads() - before) == queue
    assert threads() <= before

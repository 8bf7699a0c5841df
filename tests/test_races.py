"""Races that ThreadSanitizer found (benchmarks/SANITIZERS.md), each made to happen."""

from __future__ import annotations

import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ggml_py as ggml


def elsewhere(work):
    """What `work()` raises on another thread, or returns."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        return future.exception(timeout=60) or future.result()


@pytest.mark.parametrize("how", ["backend", "plan", "cpu plan"])
def test_a_graph_does_not_grow_between_the_check_and_the_compute(how, monkeypatch):
    """It would get a tensor that the backend cannot read, or more work than there is memory for."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 4)
        graph, y, z = ctx.new_graph(8), ctx.sqr(x), ctx.neg(x)
        graph.build_forward_expand(y)
        ctx.alloc(cpu)
        x.set(np.ones(4, np.float32))
        if how == "backend":
            compute = lambda: cpu.compute(graph)  # noqa: E731
        else:
            plan = cpu.graph_plan(graph) if how == "plan" else ggml.CpuPlan(graph, n_threads=1)
            compute = plan.compute
        check, raised = ggml.Graph._check_buffers, []

        def late(*args):
            check(*args)
            raised.append(elsewhere(lambda: graph.build_forward_expand(z)))

        monkeypatch.setattr(ggml.Graph, "_check_buffers", late)
        compute()
        assert [type(error) for error in raised] == [ggml.BusyError]


def test_a_backend_that_closes_while_a_scheduler_is_made_on_it_is_freed_later(monkeypatch):
    """ThreadSanitizer found the read of its memory."""
    from ggml_py import scheduler

    backends = [ggml.device("CPU").init(n_threads=1) for _ in range(2)]
    freed = [backend._finalizer for backend in backends]
    native, alive = scheduler.lib, []

    class Lib:
        def __getattr__(self, name):
            return getattr(native, name)

        def ggml_backend_sched_new(self, *args):
            elsewhere(backends[0].close)
            alive.append(freed[0].alive)
            return native.ggml_backend_sched_new(*args)

    monkeypatch.setattr(scheduler, "lib", Lib())
    with pytest.raises(ggml.ClosedError):
        ggml.Scheduler(backends, graph_size=8)
    assert alive == [True]
    gc.collect()
    assert not freed[0].alive
    backends[1].close()


def test_memory_that_a_tensor_gets_while_it_is_planned_stays():
    """As another thread may give it, through another context's or graph's tensors."""
    with contextlib.ExitStack() as stack:
        ctx = stack.enter_context(ggml.Context())
        cpu = ggml.device("CPU")
        asked = []

        def supports(_tensor):
            if not asked:
                asked.append(ctx.alloc(cpu.buffer_type))
            return True

        gpu = stack.enter_context(ggml.sim_device("late", supports=supports, async_=False))
        backends = [stack.enter_context(d.init(n_threads=1)) for d in (gpu, cpu)]
        x = ctx.new_tensor("f32", 4)
        x.set_input()
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.sqr(x))
        with ggml.Scheduler(backends, graph_size=16) as sched:
            sched.plan(graph)
        assert asked and x.buffer is not None
        x.set(np.ones(4, np.float32))
        assert x.get().tolist() == [1, 1, 1, 1]

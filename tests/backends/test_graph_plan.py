"""Plans: computed many times, closed with what they borrow, and never on what moved."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD

linked = pytest.mark.skipif(BUILD["portable"], reason="the CPU backend is a loaded module")
VALUES = np.random.default_rng(0).standard_normal((64, 64), np.float32)


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=2) as backend:
        yield backend


class Product:
    """y = w x of quantised weights (which take scratch memory), on an allocator."""

    def __init__(self, cpu):
        self.context, self.weights = ggml.Context(), ggml.Context()
        self.w = self.weights.from_numpy(VALUES, "w", "q8_0")
        self.weights.alloc(cpu)
        self.x = self.context.new_tensor("f32", 64, 64, name="x")
        self.x.set_input()
        self.y = self.context.mul_mat(self.w, self.x)
        self.y.set_output()
        self.graph = self.context.new_graph(16)
        self.graph.build_forward_expand(self.y)
        self.allocator = ggml.GraphAllocator(cpu.buffer_type)

    def alloc(self):
        self.allocator.alloc_graph(self.graph)
        self.x.set(VALUES)

    def check(self):
        np.testing.assert_allclose(self.y.get(), VALUES @ VALUES.T, atol=0.3)
        self.y.set(np.zeros((64, 64)))

    def close(self):
        for handle in (self.allocator, self.context, self.weights):
            handle.close()


@pytest.fixture
def product(cpu):
    made = Product(cpu)
    yield made
    made.close()


def test_a_plan_computes_as_often_as_one_likes(cpu, product):
    product.alloc()
    with cpu.graph_plan(product.graph) as plan:
        assert repr(plan) == "<GraphPlan of <Graph 1 node>>"
        for _ in range(3):
            plan.compute()
            product.check()


def test_plans_close_with_what_they_borrow(cpu, product):
    product.alloc()
    for close in ("pool", "backend", "graph"):
        backend, pool = ggml.device("CPU").init(), ggml.ThreadPool(2)
        backend.set_threadpool(pool)
        with product.context.new_graph(16) as graph:
            graph.build_forward_expand(product.y)
            plan = backend.graph_plan(graph)
            plan.compute()
            product.check()
            {"pool": pool, "backend": backend, "graph": graph}[close].close()
            assert plan.closed
            with pytest.raises(ggml.ClosedError, match="GraphPlan"):
                plan.compute()
        backend.close()
        pool.close()


def test_a_plan_keeps_its_pool(cpu, product):
    product.alloc()
    cpu.set_threadpool(ggml.ThreadPool(2))
    plan = cpu.graph_plan(product.graph)
    cpu.set_threadpool(None)
    gc.collect()
    assert plan.threadpool is not None and not plan.threadpool.closed
    plan.compute()
    product.check()


def test_what_moved_is_not_computed(cpu, product):
    with pytest.raises(ggml.NoDataError, match="'x' of the graph has no memory"):
        cpu.graph_plan(product.graph)
    product.alloc()
    plan = cpu.graph_plan(product.graph)
    product.allocator.reset()
    with pytest.raises(ggml.NoDataError, match="'x' of the graph has no memory"):
        plan.compute()
    with ggml.GraphAllocator(cpu.buffer_type) as other:
        other.alloc_graph(product.graph)
        product.x.set(VALUES)
        with pytest.raises(ggml.ArgumentError, match="moved, after this plan was made"):
            plan.compute()
        product.graph.close()
        assert plan.closed


def test_a_graph_that_grew_is_not_computed(cpu):
    with ggml.Context() as context:
        x = context.from_numpy(np.ones((4, 4), np.float32))
        y = context.relu(x)
        z = context.relu(y)
        context.alloc(cpu)
        graph = context.new_graph(8)
        graph.build_forward_expand(y)
        plan = cpu.graph_plan(graph)
        graph.build_forward_expand(z)
        with pytest.raises(ggml.ArgumentError, match="the graph grew"):
            plan.compute()


def test_a_backend_without_plans_says_so(cpu):
    with ggml.Context() as context, ggml.device("BLAS").init() as blas:
        x = context.from_numpy(np.ones((4, 4), np.float32))
        y = context.mul_mat(x, x)
        context.alloc(cpu)
        graph = context.new_graph(8)
        graph.build_forward_expand(y)
        with pytest.raises(ggml.MissingFunctionError, match=r"BLAS has no graph plans: use .*"):
            blas.graph_plan(graph)


@linked
def test_a_cpu_plan_tells_its_work_size_before_there_is_memory(product):
    plan = ggml.CpuPlan(product.graph, n_threads=2)
    assert plan.work_size >= 64 * 64  # x as q8_0
    assert plan.n_threads == 2
    assert f"2 threads, {plan.work_size:,} bytes" in repr(plan)
    with pytest.raises(ggml.NoDataError):
        plan.compute()
    product.alloc()
    for _ in range(2):
        plan.compute()
        product.check()


@linked
def test_a_cpu_plan_follows_the_graph(cpu):
    with ggml.Context() as context:
        x = context.from_numpy(VALUES, type="q8_0")
        small = context.relu(context.from_numpy(np.ones(4, np.float32)))
        big = context.mul_mat(x, context.from_numpy(VALUES))
        context.alloc(cpu)
        graph = context.new_graph(8)
        graph.build_forward_expand(small)
        plan = ggml.CpuPlan(graph, 2)
        assert plan.work_size < 64 * 64
        graph.build_forward_expand(big)
        plan.compute()
        assert plan.work_size >= 64 * 64
        np.testing.assert_allclose(big.get(), VALUES @ VALUES.T, atol=0.3)


@linked
def test_a_cpu_plan_with_a_pool_and_a_function_that_stops(product):
    product.alloc()
    with ggml.ThreadPool(2) as pool:
        plan = ggml.CpuPlan(product.graph, threadpool=pool)
        plan.compute()
        product.check()
        with pytest.raises(ggml.ArgumentError, match="n_threads=3: expected 1 to 2"):
            ggml.CpuPlan(product.graph, 3, pool)
    assert plan.closed
    stopped = ggml.CpuPlan(product.graph, abort_callback=lambda: True)
    with pytest.raises(ggml.ComputeError, match="aborted"):
        stopped.compute()


@linked
def test_the_plain_implementation_gives_the_same(cpu, product):
    product.alloc()
    cpu.compute(product.graph)
    fast = product.y.get()
    try:
        cpu.set_use_ref(True)
    except ggml.MissingFunctionError:
        pytest.skip("an old release")
    cpu.compute(product.graph)
    np.testing.assert_allclose(product.y.get(), fast, atol=0.05)
    ggml.CpuPlan(product.graph, use_ref=True).compute()
    np.testing.assert_allclose(product.y.get(), fast, atol=0.05)


def test_memory_that_the_backend_cannot_read_is_refused(cpu):
    extra = ggml.device("CPU").extra_buffer_types
    if not extra:
        pytest.skip("all its memory is host memory")
    with ggml.Context() as context, ggml.Context() as weights, ggml.device("BLAS").init() as blas:
        w = weights.new_tensor("q4_0", 64, 64)
        weights.alloc(extra[0])
        x = context.from_numpy(VALUES)
        y = context.mul_mat(w, x)
        context.alloc(cpu)
        graph = context.new_graph(8)
        graph.build_forward_expand(y)
        with pytest.raises(ggml.ArgumentError, match=r"CPU_REPACK memory, which BLAS cannot read"):
            blas.compute(graph)

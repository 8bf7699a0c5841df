"""Allocators, thread pools, plans, modules."""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse


def _galloc(env, *bufts):
    return env.later(ggml.GraphAllocator(*bufts or (env.cpu.buffer_type,)))


def _pool(env, **kwargs):
    return env.later(ggml.ThreadPool(2, **kwargs))


def _two(env):
    """An allocator of two buffers, of the same type."""
    return _galloc(env, env.cpu.buffer_type, env.cpu.buffer_type)


def _empty(env):
    return env.later(env.other.new_graph(8))


def _crowded(env):
    tallocr = ggml.TensorAllocator(env.later(env.cpu.buffer_type.alloc(128)))
    tallocr.alloc(env.other.new_tensor("f32", 16))
    tallocr.alloc(env.other.new_tensor("f32", 17))


def _lent_elsewhere(env):
    env.allocated()
    _galloc(env).alloc_graph(env.graph)


def _scheduled_elsewhere(env):
    with _galloc(env) as allocator:
        allocator.alloc_graph(env.graph)
        env.scheduler.alloc_graph(env.graph)


def _grown(env):
    env.allocated()
    plan = env.cpu.graph_plan(env.graph)
    env.scheduler.reset()
    plan.compute()


def _closed_pool(env):
    pool = _pool(env)
    pool.close()
    env.cpu.set_threadpool(pool)


def _too_many_for_pool(env):
    env.cpu.set_threadpool(_pool(env))
    env.cpu.n_threads = 3


def _reserved_for_another(env):
    allocator = _two(env)
    allocator.reserve(env.graph, [0, 1], [0, 0])
    graph = env.later(env.other.new_graph(8))
    graph.build_forward_expand(env.other.sqr(env.other.new_tensor("f32", 4)))
    allocator.alloc_graph(graph)


def _plan_in_plan(env):
    env.allocated().x.set(np.ones((3, 8)))
    pool = _pool(env)
    ggml.CpuPlan(env.graph, threadpool=pool, abort_callback=lambda: pool.pause()).compute()


A, T = ggml.ArgumentError, TypeError
def _unload_cpu(_env):
    next(r for r in ggml.registries() if r.name == "CPU").unload()


MISUSES = [
    misuse(
        "galloc-none", lambda e: ggml.GraphAllocator(), A, "no buffer type", "expected at least one"
    ),
    misuse(
        "galloc-backend",
        lambda e: ggml.GraphAllocator(e.cpu),
        T,
        "got Backend",
        "expected a BufferType",
    ),
    misuse(
        "galloc-graph", lambda e: _galloc(e).alloc_graph(e.y), T, "got Tensor", "expected a Graph"
    ),
    misuse(
        "galloc-empty",
        lambda e: _galloc(e).alloc_graph(_empty(e)),
        A,
        "the graph is empty",
        "build_forward_expand",
    ),
    misuse(
        "galloc-several",
        lambda e: _two(e).alloc_graph(e.graph),
        A,
        "2 buffer types",
        "call reserve(",
    ),
    misuse(
        "galloc-few-ids",
        lambda e: _two(e).reserve(e.graph, [0], [0, 0]),
        A,
        "1 node_buffer_ids",
        "2 nodes",
    ),
    misuse(
        "galloc-id",
        lambda e: _two(e).reserve(e.graph, [0, 2], [0, 0]),
        A,
        "node_buffer_ids=2",
        "expected 0 to 1",
    ),
    misuse(
        "galloc-id-float",
        lambda e: _two(e).reserve(e.graph, [0, 0.5], [0, 0]),
        T,
        "float 0.5",
        "whole number",
    ),
    misuse(
        "galloc-half-ids",
        lambda e: _two(e).reserve(e.graph, [0, 0]),
        A,
        "ids for both nodes and leafs",
        "or for neither",
    ),
    misuse("galloc-another", _reserved_for_another, A, "1 node and 1 leaf", "call reserve()"),
    misuse("galloc-size", lambda e: _galloc(e).buffer_size(1), A, "buffer_id=1", "expected 0"),
    misuse("galloc-scheduled", _lent_elsewhere, A, "<Scheduler CPU>", "reset() that one first"),
    misuse(
        "sched-allocated", _scheduled_elsewhere, A, "<GraphAllocator CPU>", "reset() that one first"
    ),
    misuse("tallocr-full", _crowded, ggml.AllocError, "takes 96 bytes", "64 are free"),
    misuse(
        "tallocr-twice",
        lambda e: ggml.TensorAllocator(e.buffer).alloc(e.w),
        A,
        "'w' already has memory",
        "expected one without",
    ),
    misuse(
        "tallocr-backend",
        lambda e: ggml.TensorAllocator(e.cpu),
        T,
        "got Backend",
        "expected a Buffer",
    ),
    misuse(
        "compute-bare",
        lambda e: e.cpu.compute(e.graph),
        ggml.NoDataError,
        "leaf 'x'",
        "never allocated",
    ),
    misuse(
        "plan-bare",
        lambda e: e.cpu.graph_plan(e.graph),
        ggml.NoDataError,
        "leaf 'x'",
        "never allocated",
    ),
    misuse("plan-moved", _grown, ggml.NoDataError, "leaf 'x'", "never allocated"),
    misuse("plan-graph", lambda e: ggml.CpuPlan(e.y), T, "got Tensor", "expected a Graph"),
    misuse(
        "plan-threads", lambda e: ggml.CpuPlan(e.graph, 0), A, "n_threads=0", "expected 1 to 512"
    ),
    misuse(
        "plan-pause",
        _plan_in_plan,
        ggml.BusyError,
        "this ThreadPool is computing",
        "wait until that returns",
    ),
    misuse("pool-threads", lambda e: ggml.ThreadPool(0), A, "n_threads=0", "expected 1 to 512"),
    misuse("pool-poll", lambda e: ggml.ThreadPool(1, poll=101), A, "poll=101", "expected 0 to 100"),
    misuse("pool-prio", lambda e: ggml.ThreadPool(1, prio="urgent"), A, "'urgent'", "realtime"),
    misuse("pool-cpu", lambda e: ggml.ThreadPool(1, cpumask=[511]), A, "CPU 511", "may not use"),
    misuse(
        "pool-no-cpu",
        lambda e: ggml.ThreadPool(1, cpumask=[]),
        A,
        "no CPU",
        "expected at least one",
    ),
    misuse("pool-number", lambda e: e.cpu.set_threadpool(2), T, "int 2", "expected a ThreadPool"),
    misuse(
        "pool-closed", _closed_pool, ggml.ClosedError, "this ThreadPool is closed", "make another"
    ),
    misuse("pool-small", _too_many_for_pool, A, "n_threads=3", "at most 2"),
    misuse(
        "abort-true",
        lambda e: e.cpu.set_abort_callback(True),
        T,
        "bool True",
        "expected a function",
    ),
    misuse("numa", lambda e: e.cpu.device.numa_init("north"), A, "'north'", "isolate"),
    misuse("unload", _unload_cpu, A, "registry CPU", "load_backend"),
]

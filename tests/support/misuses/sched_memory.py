"""Schedulers: memory that is not to be had, measuring, copy callbacks, async computes."""

import ggml_py as ggml

from ..misuses import misuse


def _huge(env):
    """A graph of tensors that no machine has memory for; nothing of it is allocated."""
    x = env.other.new_tensor("f32", 1 << 50, name="x")
    x.set_input()
    graph = env.other.new_graph(8)
    graph.build_forward_expand(env.other.sqr(x))
    return graph


def _blas(env):
    return env.later(ggml.device("BLAS").init(n_threads=1))


def _second(env):
    graph = env.other.new_graph(8)
    graph.build_forward_expand(env.other.sqr(env.w))
    return graph


MISUSES = [
    misuse("alloc-huge", lambda e: e.scheduler.alloc_graph(_huge(e)), ggml.AllocError,
           "CPU could not allocate", "needs less"),
    misuse("reserve-huge", lambda e: e.scheduler.reserve(_huge(e)), ggml.AllocError,
           "it needs, in bytes: CPU 4,503,", "A smaller batch",
           needs=("ggml_backend_sched_reserve_size",)),
    misuse("alloc-huge-twice", lambda e: [_failed(e), e.scheduler.alloc_graph(_huge(e))],
           ggml.AllocError, "CPU could not allocate", "needs less"),
    misuse("reserve_size-none", lambda e: e.scheduler.reserve_size(None), TypeError,
           "got NoneType", "expected a Graph"),
    misuse("reserve_size-empty", lambda e: e.scheduler.reserve_size(e.other.new_graph(8)),
           ValueError, "the graph is empty", "build_forward_expand"),
    misuse("reserve_size-allocated",
           lambda e: e.allocated().scheduler.reserve_size(e.graph), ValueError,
           "allocated here", "reset() first"),
    misuse("reserve_size-elsewhere",
           lambda e: e.later(ggml.Scheduler([e.cpu])).reserve_size(e.allocated().graph),
           ValueError, "allocated on <Scheduler CPU>", "reset() that one first"),
    misuse("buffer_type-foreign", lambda e: e.scheduler.buffer_type(_blas(e)), ValueError,
           "<Backend BLAS> is not a backend of this scheduler", "it has CPU"),
    misuse("buffer_type-str", lambda e: e.scheduler.buffer_type("CPU"), TypeError, "str 'CPU'",
           "expected a Backend"),
    misuse("copy-callback-int", lambda e: e.scheduler.set_copy_callback(5), TypeError, "int 5",
           "expected a function of (backend, src, dst, nodes)"),
    misuse("async-none", lambda e: e.scheduler.compute_async(None), TypeError, "got NoneType",
           "expected a Graph"),
    misuse("async-second-graph", lambda e: e.allocated().scheduler.compute_async(_second(e)),
           ValueError, "another graph is allocated", "call reset() first"),
    misuse("async-inputs-never-set", lambda e: e.scheduler.compute_async(e.graph),
           ggml.NoDataError, "leaf 'x' of the graph has no memory", "call alloc_graph first"),
]  # fmt: skip


def _failed(env):
    """The first time leaves nothing that the second could trip over."""
    try:
        env.scheduler.alloc_graph(_huge(env))
    except ggml.AllocError as error:
        assert error.sizes["CPU"] >= 4 << 50

"""Schedulers: backends, sizes, pins, callbacks, one graph at a time."""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

BAD = ggml.ArgumentError


def _new(id, act, given, expected, error=BAD):
    return misuse(f"new/{id}", act, error, given, expected)


def _row(id, act, given, expected, error=BAD, **options):
    return misuse(id, act, error, given, expected, **options)


def _second(env):
    """Another graph."""
    graph = env.other.new_graph(8)
    graph.build_forward_expand(env.other.sqr(env.w))
    return graph


def _blas(env):
    return env.later(ggml.device("BLAS").init(n_threads=1))


def _seventeen(env):
    backends = [env.later(env.cpu.device.init(n_threads=1)) for _ in range(17)]
    ggml.Scheduler(backends)


def _larger_than_the_hash_set(env):
    x = env.w
    for _ in range(40):
        x = env.other.sqr(x)
    graph = env.other.new_graph(64)
    graph.build_forward_expand(x)
    env.scheduler.plan(graph)


def _cannot_run(env, use):
    """A result that must land in memory whose type no backend can write."""
    into = env.weights.new_tensor("iq2_xxs", 256, name="into")
    a = env.weights.new_tensor("f32", 256, name="a")
    env.weights.alloc(env.cpu)
    graph = env.other.new_graph(8)
    graph.build_forward_expand(env.other.cpy(env.other.sqr(a), into))
    return getattr(env.scheduler, use), graph


def _plan_cannot_run(env):
    use, graph = _cannot_run(env, "plan")
    use(graph)


def _alloc_cannot_run(env):
    use, graph = _cannot_run(env, "alloc_graph")
    use(graph)


def _reserve_cannot_run(env):
    use, graph = _cannot_run(env, "reserve")
    use(graph)


def _computing(env, callback):
    """Ready to compute with an eval callback."""
    env.allocated().x.set(np.ones((3, 8)))
    env.scheduler.set_eval_callback(callback)
    return env.scheduler


def _array(*types):
    return lambda e: ggml.Scheduler([e.cpu], buffer_types=list(types))


MISUSES = [
    _new("no-backends", lambda e: ggml.Scheduler([]), "0 backends", "takes 1 to 16"),
    _new("seventeen", _seventeen, "17 backends", "takes 1 to 16"),
    _new("one-backend-not-a-list", lambda e: ggml.Scheduler(e.cpu), "got Backend",
         "expected a sequence of Backends", TypeError),
    _new("none", lambda e: ggml.Scheduler(None), "got NoneType", "expected a sequence of Backends",
         TypeError),
    _new("name", lambda e: ggml.Scheduler("CPU"), "str 'CPU'", "a sequence of Backends", TypeError),
    _new("device", lambda e: ggml.Scheduler([e.cpu.device]), "got Device", "expected a Backend",
         TypeError),
    _new("none-in-list", lambda e: ggml.Scheduler([None, e.cpu]), "got NoneType",
         "expected a Backend", TypeError),
    _new("no-cpu-at-the-end", lambda e: ggml.Scheduler([e.cpu, _blas(e)]), "BLAS (ACCEL)",
         "device('CPU').init()"),
    _new("no-cpu-at-all", lambda e: ggml.Scheduler([_blas(e)]), "BLAS (ACCEL)",
         "device('CPU').init()"),
    _new("twice", lambda e: ggml.Scheduler([e.cpu, e.cpu]), "CPU is given twice", "Device.init"),
    _new("size-zero", lambda e: ggml.Scheduler([e.cpu], graph_size=0), "graph_size=0",
         "expected 1 to"),
    _new("size-negative", lambda e: ggml.Scheduler([e.cpu], graph_size=-1), "graph_size=-1",
         "expected 1 to"),
    _new("size-str", lambda e: ggml.Scheduler([e.cpu], "2048"), "str '2048'",
         "graph_size: expected a whole number", TypeError),
    _new("size-none", lambda e: ggml.Scheduler([e.cpu], None), "got NoneType",
         "graph_size: expected a whole number", TypeError),
    _new("size-huge", lambda e: ggml.Scheduler([e.cpu], 1 << 62), f"graph_size={1 << 62}",
         "expected 1 to"),
    _new("size-beyond-memory", lambda e: ggml.Scheduler([e.cpu], 1 << 31),
         "graph_size=2,147,483,648", "expected less", ggml.AllocError),
    _new("buffer-types-none", _array(None), "got NoneType", "expected a BufferType", TypeError),
    _new("buffer-types-str", _array("CPU"), "str 'CPU'", "expected a BufferType", TypeError),
    _new("buffer-types-too-many",
         lambda e: ggml.Scheduler([e.cpu], buffer_types=[e.cpu.buffer_type] * 2),
         "2 buffer types", "for 1 backend"),
    _new("buffer-types-empty", _array(), "0 buffer types", "for 1 backend"),
    _row("plan/str", lambda e: e.scheduler.plan("x"), "str 'x'", "expected a Graph", TypeError),
    _row("plan/none", lambda e: e.scheduler.plan(None), "got NoneType", "expected a Graph",
         TypeError),
    _row("plan/tensor", lambda e: e.scheduler.plan(e.y), "got Tensor", "expected a Graph",
         TypeError),
    _row("plan/empty", lambda e: e.scheduler.plan(e.other.new_graph(8)), "the graph is empty",
         "build_forward_expand"),
    _row("plan/larger-than-the-hash-set", _larger_than_the_hash_set,
         "40 nodes + 1 leaf = 41", "graph_size=41 or more"),
    _row("plan/cannot-run", _plan_cannot_run, "CPY(f32 [256, 1, 1, 1]",
         "no backend of this scheduler (CPU) can run CPY"),
    _row("alloc/cannot-run", _alloc_cannot_run, "iq2_xxs [256, 1, 1, 1] 'into'",
         "no backend of this scheduler (CPU) can run CPY"),
    _row("reserve/cannot-run", _reserve_cannot_run, "is already in CPU memory",
         "give the result another type or other memory"),
    _row("alloc/str", lambda e: e.scheduler.alloc_graph("x"), "str 'x'", "expected a Graph",
         TypeError),
    _row("alloc/twice", lambda e: e.allocated().scheduler.alloc_graph(e.graph),
         "a graph allocated already", "call reset() first"),
    _row("alloc_without_plan/none", lambda e: e.scheduler.alloc_without_plan(None), "got NoneType",
         "expected a Graph", TypeError),
    _row("alloc_without_plan/twice", lambda e: e.allocated().scheduler.alloc_without_plan(e.graph),
         "has a graph allocated already", "call reset() first"),
    _row("alloc/second-graph", lambda e: e.allocated().scheduler.alloc_graph(_second(e)),
         "a graph allocated already", "call reset() first"),
    _row("alloc/empty", lambda e: e.scheduler.alloc_graph(e.other.new_graph(8)),
         "the graph is empty", "build_forward_expand"),
    _row("alloc/on-another-scheduler",
         lambda e: e.later(ggml.Scheduler([e.cpu])).alloc_graph(e.allocated().graph),
         "allocated on <Scheduler CPU>", "reset() that one first"),
    _row("reserve/while-allocated", lambda e: e.allocated().scheduler.reserve(e.graph),
         "a graph allocated already", "call reset() first"),
    _row("reserve/none", lambda e: e.scheduler.reserve(None), "got NoneType", "expected a Graph",
         TypeError),
    _row("compute/none", lambda e: e.scheduler.compute(None), "got NoneType", "expected a Graph",
         TypeError),
    _row("compute/none-while-allocated", lambda e: e.allocated().scheduler.compute(None),
         "got NoneType", "expected a Graph", TypeError),
    _row("compute/never-set", lambda e: e.allocated().scheduler.compute(e.graph), "input 'x'",
         "call set(array) after the graph has memory", ggml.NoDataError),
    _row("compute_by/none", lambda e: e.scheduler.compute_by(None, print, ()), "got NoneType",
         "expected a Graph", TypeError),
    _row("compute_by/no-function", lambda e: e.scheduler.compute_by(e.graph, None, ()),
         "got NoneType", "expected a native function", TypeError),
    _row("compute_by/second-graph",
         lambda e: e.allocated().scheduler.compute_by(_second(e), print, ()),
         "another graph is allocated", "reset()"),
    _row("compute/second-graph", lambda e: e.allocated().scheduler.compute(_second(e)),
         "another graph is allocated", "call reset() first"),
    _row("pin/none-tensor", lambda e: e.scheduler.set_tensor_backend(None, e.cpu), "got NoneType",
         "expected a Tensor", TypeError),
    _row("pin/name", lambda e: e.scheduler.set_tensor_backend("y", e.cpu), "str 'y'",
         "expected a Tensor", TypeError),
    _row("pin/none-backend", lambda e: e.scheduler.set_tensor_backend(e.y, None), "got NoneType",
         "expected a Backend", TypeError),
    _row("pin/backend-name", lambda e: e.scheduler.set_tensor_backend(e.y, "CPU"), "str 'CPU'",
         "expected a Backend", TypeError),
    _row("pin/swapped", lambda e: e.scheduler.set_tensor_backend(e.cpu, e.y), "got Backend",
         "expected a Tensor", TypeError),
    _row("pin/foreign-backend", lambda e: e.scheduler.set_tensor_backend(e.y, _blas(e)),
         "<Backend BLAS> is not a backend of this scheduler", "it has CPU"),
    _row("pin/too-many", lambda e: [e.scheduler.set_tensor_backend(t, e.cpu) for t in [
         e.other.new_tensor("f32", 1) for _ in range(100)]], "tensors are pinned", "graph_size="),
    _row("tensor_backend/str", lambda e: e.scheduler.tensor_backend("y"), "str 'y'",
         "expected a Tensor", TypeError),
    _row("buffer_size/foreign", lambda e: e.scheduler.buffer_size(_blas(e)), "<Backend BLAS>",
         "it has CPU"),
    _row("buffer_size/none", lambda e: e.scheduler.buffer_size(None), "got NoneType",
         "expected a Backend", TypeError),
    _row("callback/int", lambda e: e.scheduler.set_eval_callback(5), "int 5",
         "expected a function of (tensor, ask)", TypeError),
    _row("callback/str", lambda e: e.scheduler.set_eval_callback("print"), "str 'print'",
         "expected a function of (tensor, ask)", TypeError),
    _row("callback/wrong-arguments",
         lambda e: _computing(e, lambda t: True).compute(e.graph), "2 were given", "takes 1",
         TypeError),
    _row("callback/raises", lambda e: _computing(e, lambda t, ask: int(t.name)).compute(e.graph),
         "invalid literal", "base 10", ValueError),
]  # fmt: skip

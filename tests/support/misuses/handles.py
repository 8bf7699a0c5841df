"""Closed objects, and what lived in them."""

import copy
import pickle

import numpy as np

import ggml_py as ggml

from ..misuses import misuse


def _row(id, act, kind):
    return misuse(id, act, ggml.ClosedError, f"this {kind} is closed", "make another")


def _no_data(id, act, given, expected="Context.alloc"):
    return misuse(id, act, ggml.NoDataError, given, expected)


def _graph_of_two_contexts(env):
    """A graph whose weights' context is closed before the graph is planned."""
    graph = env.other.new_graph(8)
    graph.build_forward_expand(env.other.sqr(env.w))
    env.weights.close()
    env.scheduler.plan(graph)


def _buffer_under_scheduled(env):
    env.allocated().x.set(np.ones((3, 8)))
    env.buffer.close()
    env.scheduler.compute(env.graph)


def _view_outlives(env):
    view = env.weights.view_1d(env.w, 8, 0)
    env.buffer.close()
    view.get()


def _in_with(env):
    with env.graph:
        pass
    with env.graph:
        pass


def _iterating(env):
    for _ in env.weights:
        env.weights.close()


def _gguf(env):
    path = env.tmp_path / "x.gguf"
    ggml.write_gguf(path, {"a": 1}, [("t", np.ones(4), "f32", (4,))])
    file = ggml.Gguf.open(path)
    file.close()
    return file


MISUSES = [
    *[
        misuse(f"{name}/{how.__name__}", lambda e, n=name, f=how: f(getattr(e, n)), TypeError,
               kind, "cannot be copied or pickled", "Make another")
        for how in (copy.copy, copy.deepcopy, pickle.dumps)
        for name, kind in (("cpu", "Backend"), ("graph", "Graph"), ("weights", "Context"),
                           ("scheduler", "Scheduler"), ("buffer", "Buffer"))
    ],
    misuse("cpu/__init__", lambda e: e.cpu.__init__(e.cpu.ptr, ggml.device("CPU"), 1), TypeError,
           "this Backend is already made", "make another"),
    _row("scheduler/plan", lambda e: (e.scheduler.close(), e.scheduler.plan(e.graph)), "Scheduler"),
    _row("scheduler/alloc", lambda e: (e.scheduler.close(), e.scheduler.alloc_graph(e.graph)),
         "Scheduler"),
    _row("scheduler/compute", lambda e: (e.scheduler.close(), e.scheduler.compute(e.graph)),
         "Scheduler"),
    _row("scheduler/reserve", lambda e: (e.scheduler.close(), e.scheduler.reserve(e.graph)),
         "Scheduler"),
    _row("scheduler/reset", lambda e: (e.scheduler.close(), e.scheduler.reset()), "Scheduler"),
    _row("scheduler/synchronize", lambda e: (e.scheduler.close(), e.scheduler.synchronize()),
         "Scheduler"),
    _row("scheduler/inspect", lambda e: (e.scheduler.close(), e.scheduler.inspect()), "Scheduler"),
    _row("scheduler/state", lambda e: (e.scheduler.close(), e.scheduler.state.n_splits),
         "Scheduler"),
    _row("scheduler/n_splits", lambda e: (e.scheduler.close(), e.scheduler.n_splits), "Scheduler"),
    _row("scheduler/eval-callback",
         lambda e: (e.scheduler.close(), e.scheduler.set_eval_callback(lambda t, a: True)),
         "Scheduler"),
    _row("scheduler/pin",
         lambda e: (e.scheduler.close(), e.scheduler.set_tensor_backend(e.y, e.cpu)),
         "Scheduler"),
    _row("scheduler/tensor_backend",
         lambda e: (e.scheduler.close(), e.scheduler.tensor_backend(e.y)), "Scheduler"),
    _row("scheduler/buffer_size",
         lambda e: (e.scheduler.close(), e.scheduler.buffer_size(e.cpu)), "Scheduler"),
    _row("scheduler/of-closed-backend",
         lambda e: (e.cpu.close(), e.scheduler.plan(e.graph)), "Scheduler"),
    _row("scheduler/new-with-closed-backend",
         lambda e: (e.cpu.close(), ggml.Scheduler([e.cpu])), "Backend"),
    _row("scheduler/new-with-one-closed-of-two",
         lambda e: (e.cpu.close(), ggml.Scheduler([e.cpu, e.later(e.cpu.device.init())])),
         "Backend"),
    _row("graph/plan", lambda e: (e.graph.close(), e.scheduler.plan(e.graph)), "Graph"),
    _row("graph/alloc", lambda e: (e.graph.close(), e.scheduler.alloc_graph(e.graph)), "Graph"),
    _row("graph/compute", lambda e: (e.graph.close(), e.scheduler.compute(e.graph)), "Graph"),
    _row("graph/compute-allocated",
         lambda e: (e.allocated().graph.close(), e.scheduler.compute(e.graph)), "Graph"),
    _row("graph/plan-allocated",
         lambda e: (e.allocated().graph.close(), e.scheduler.plan(e.graph)), "Graph"),
    _row("graph/reserve", lambda e: (e.graph.close(), e.scheduler.reserve(e.graph)), "Graph"),
    _row("graph/on-a-backend", lambda e: (e.graph.close(), e.cpu.compute(e.graph)), "Graph"),
    _row("graph/build", lambda e: (e.graph.close(), e.graph.build_forward_expand(e.y)), "Graph"),
    _row("graph/nodes", lambda e: (e.graph.close(), e.graph.nodes), "Graph"),
    _row("graph/leafs", lambda e: (e.graph.close(), e.graph.leafs), "Graph"),
    _row("graph/name", lambda e: (e.graph.close(), e.graph["y"]), "Graph"),
    _row("graph/with-twice", _in_with, "Graph"),
    _row("graph/its-context-closed",
         lambda e: (e.context.close(), e.scheduler.plan(e.graph)), "Graph"),
    _row("graph/allocated-and-context-closed",
         lambda e: (e.allocated().context.close(), e.scheduler.compute(e.graph)),
         "Graph"),
    _row("graph/weights-closed", _graph_of_two_contexts, "Graph"),
    _row("context/new_tensor",
         lambda e: (e.context.close(), e.context.new_tensor("f32", 4)), "Context"),
    _row("context/from_numpy",
         lambda e: (e.context.close(), e.context.from_numpy(np.ones(4))), "Context"),
    _row("context/new_graph", lambda e: (e.context.close(), e.context.new_graph()), "Context"),
    _row("context/op", lambda e: (e.context.close(), e.context.sqr(e.x)), "Context"),
    _row("context/op-on-open-tensor",
         lambda e: (e.other.close(), e.other.sqr(e.w)), "Context"),
    _row("context/op-with-closed-operand",
         lambda e: (e.context.close(), e.other.sqr(e.x)), "Context"),
    _row("context/op-with-second-closed",
         lambda e: (e.context.close(), e.other.mul_mat(e.w, e.x)), "Context"),
    _row("context/dup_tensor", lambda e: (e.context.close(), e.other.dup_tensor(e.x)), "Context"),
    _row("context/view_tensor", lambda e: (e.context.close(), e.other.view_tensor(e.x)), "Context"),
    _row("context/custom-op",
         lambda e: (e.context.close(), e.other.map_custom1(e.x, lambda d, a, i, n: None)),
         "Context"),
    _row("context/alloc", lambda e: (e.other.close(), e.other.alloc(e.cpu)), "Context"),
    _row("context/name", lambda e: (e.context.close(), e.context["x"]), "Context"),
    _row("context/iterate", lambda e: (e.context.close(), list(e.context)), "Context"),
    _row("context/closed-while-iterating", _iterating, "Context"),
    _row("context/in-a-callback",
         lambda e: (e.other.close(), e.allocated().x.set(np.ones((3, 8))),
                    e.scheduler.set_eval_callback(lambda t, ask: e.other.sqr(t) is t),
                    e.scheduler.compute(e.graph)), "Context"),
    _row("context/in-a-graph",
         lambda e: (e.weights.close(), e.other.new_graph().build_forward_expand(e.w)),
         "Context"),
    _row("context/alloc-on-closed-backend",
         lambda e: (e.cpu.close(), e.other.alloc(e.cpu)), "Backend"),
    _row("tensor/ne", lambda e: (e.context.close(), e.x.ne), "Context"),
    _row("tensor/name", lambda e: (e.context.close(), e.x.name), "Context"),
    _row("tensor/set", lambda e: (e.weights.close(), e.w.set(np.ones((8, 8)))), "Context"),
    _row("tensor/get", lambda e: (e.weights.close(), e.w.get()), "Context"),
    _row("tensor/numpy", lambda e: (e.weights.close(), e.w.numpy()), "Context"),
    _row("tensor/src", lambda e: (e.context.close(), e.y.src), "Context"),
    _row("tensor/buffer", lambda e: (e.weights.close(), e.w.buffer), "Context"),
    _row("tensor/copy-to-closed",
         lambda e: (e.allocated().context.close(), e.w.copy_to(e.x)), "Context"),
    _row("tensor/pinned",
         lambda e: (e.weights.close(), e.scheduler.set_tensor_backend(e.w, e.cpu)),
         "Context"),
    _row("buffer/size", lambda e: (e.buffer.close(), e.buffer.size), "Buffer"),
    _row("buffer/clear", lambda e: (e.buffer.close(), e.buffer.clear()), "Buffer"),
    _row("buffer/usage", lambda e: (e.buffer.close(), e.buffer.usage), "Buffer"),
    _row("buffer/tensor-alloc",
         lambda e: (e.buffer.close(), e.x.alloc(e.buffer)), "Buffer"),
    _no_data("buffer/get", lambda e: (e.buffer.close(), e.w.get()), "'w' has no memory"),
    _no_data("buffer/set", lambda e: (e.buffer.close(), e.w.set(np.ones((8, 8)))),
             "'w' has no memory"),
    _no_data("buffer/numpy", lambda e: (e.buffer.close(), e.w.numpy()), "'w' has no memory"),
    _no_data("buffer/view", _view_outlives, "has no memory"),
    _no_data("buffer/under-allocated-graph", _buffer_under_scheduled, "leaf 'w' of the graph",
             "closed"),
    _no_data("buffer/under-graph", lambda e: (e.buffer.close(), e.scheduler.compute(e.graph)),
             "of the graph has no memory", "alloc_graph"),
    _no_data("buffer/on-a-backend",
             lambda e: (e.context.alloc(e.cpu), e.buffer.close(), e.cpu.compute(e.graph)),
             "leaf 'w' of the graph has no memory", "closed"),
    _row("backend/compute", lambda e: (e.cpu.close(), e.cpu.compute(e.graph)), "Backend"),
    _row("backend/n_threads", lambda e: (e.cpu.close(), setattr(e.cpu, "n_threads", 2)), "Backend"),
    _row("backend/name", lambda e: (e.cpu.close(), e.cpu.name), "Backend"),
    _row("backend/supports_op", lambda e: (e.cpu.close(), e.cpu.supports_op(e.y)), "Backend"),
    _row("backend/buffer_type", lambda e: (e.cpu.close(), e.cpu.buffer_type), "Backend"),
    _row("backend/synchronize", lambda e: (e.cpu.close(), e.cpu.synchronize()), "Backend"),
    _row("backend/pin",
         lambda e: (lambda b: (b.close(), e.scheduler.set_tensor_backend(e.y, b)))(
             e.cpu.device.init()), "Backend"),
    _row("backend/copy_async",
         lambda e: (e.cpu.close(), e.cpu.copy_async(e.cpu, e.w, e.w)), "Backend"),
    _row("gguf/version", lambda e: _gguf(e).version, "Gguf"),
    _row("gguf/metadata", lambda e: _gguf(e).metadata, "Gguf"),
    _row("gguf/data_offset", lambda e: _gguf(e).data_offset, "Gguf"),
]  # fmt: skip

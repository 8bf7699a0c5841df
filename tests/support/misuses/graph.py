"""Graphs: what goes in, how many, when they may change."""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

BAD, NO_DATA = ggml.ArgumentError, ggml.NoDataError


def _row(id, act, given, expected, error=BAD, **options):
    return misuse(id, act, error, given, expected, **options)


def _full(env):
    x = env.w
    for _ in range(20):
        x = env.other.sqr(x)
    env.other.new_graph(4).build_forward_expand(x)


def _full_of_leafs(env):
    total = env.w
    for _ in range(20):
        total = env.other.add(total, env.other.new_tensor("f32", 8, 8))
    env.other.new_graph(4).build_forward_expand(total)


def _full_used_again(env):
    graph = env.other.new_graph(1)
    try:
        graph.build_forward_expand(env.other.sqr(env.other.sqr(env.w)))
    except ggml.AbortError:
        graph.build_forward_expand(env.other.sqr(env.w))


def _unallocated(env):
    graph = env.other.new_graph(8)
    graph.build_forward_expand(env.other.sqr(env.other.new_tensor("f32", 4, name="lost")))
    env.cpu.compute(graph)


def _node_unallocated(env):
    graph = env.other.new_graph(8)
    graph.build_forward_expand(env.other.sqr(env.w))
    env.cpu.compute(graph)


def _changed_and_changed_back(env):
    env.allocated().graph.build_forward_expand(env.context.sqr(env.y))


MISUSES = [
    _row("size/zero", lambda e: e.other.new_graph(0), "size=0", "expected 1 to"),
    _row("size/negative", lambda e: e.other.new_graph(-5), "size=-5", "expected 1 to"),
    _row("size/str", lambda e: e.other.new_graph("8"), "str '8'", "size: expected a whole number",
         TypeError),
    _row("size/float", lambda e: e.other.new_graph(8.5), "float 8.5",
         "size: expected a whole number", TypeError),
    _row("size/tensor", lambda e: e.other.new_graph(e.y), "got Tensor",
         "size: expected a whole number", TypeError),
    _row("size/huge", lambda e: e.other.new_graph(1 << 40), "size=1099511627776", "expected 1 to"),
    _row("size/overflowing", lambda e: e.other.new_graph((1 << 61) + 1), "size=2305843009213693953",
         "expected 1 to"),
    _row("build/nothing", lambda e: e.graph.build_forward_expand(), "without tensors",
         "expected the graph's results", TypeError),
    _row("build/none", lambda e: e.graph.build_forward_expand(None), "got NoneType",
         "expected a Tensor", TypeError),
    _row("build/list", lambda e: e.graph.build_forward_expand([e.y]), "got list",
         "expected a Tensor", TypeError),
    _row("build/array", lambda e: e.graph.build_forward_expand(np.ones(3)), "got ndarray",
         "expected a Tensor", TypeError),
    _row("build/str", lambda e: e.graph.build_forward_expand("y"), "str 'y'", "expected a Tensor",
         TypeError),
    _row("build/pointer", lambda e: e.graph.build_forward_expand(e.y.ptr), "got _CDataBase",
         "expected a Tensor", TypeError),
    _row("build/second-is-none", lambda e: e.graph.build_forward_expand(e.y, None), "got NoneType",
         "expected a Tensor", TypeError),
    _row("build/while-allocated", _changed_and_changed_back, "allocated on <Scheduler CPU>",
         "reset() that one first"),
    _row("build/full", _full, "the graph is full", "larger new_graph(size)", ggml.AbortError,
         abort="ggml counts; the message has the advice"),
    _row("build/full-of-leafs", _full_of_leafs, "the graph is full", "larger new_graph(size)",
         ggml.AbortError, abort="as above"),
    _row("build/full-used-again", _full_used_again, "Graph was left half-changed",
         "close it and make another", ggml.SpoiledError),
    _row("name/unknown", lambda e: e.graph["nosuch"], "'nosuch'", "no node or leaf named",
         KeyError),
    _row("name/int", lambda e: e.graph[0], "int 0", "name: expected a str", TypeError),
    _row("name/slice", lambda e: e.graph[0:2], "got slice", "name: expected a str", TypeError),
    _row("name/nul", lambda e: e.graph["y\0"], r"'y\x00'", "without NUL"),
    _row("compute/leaf-without-memory", _unallocated, "leaf 'lost' of the graph has no memory",
         "never allocated", NO_DATA),
    _row("compute/node-without-memory", _node_unallocated, "of the graph has no memory",
         "compute the graph with a Scheduler", NO_DATA),
    _row("compute/scheduler-unset-leaf", lambda e: e.scheduler.compute(e.graph),
         "leaf 'x' of the graph has no memory", "call alloc_graph first", NO_DATA),
]  # fmt: skip

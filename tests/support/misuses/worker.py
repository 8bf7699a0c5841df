"""Wrong numbers in the data of a compute, shapes that upstream does not look at, and `isolate`."""

import os
import signal
import threading
from functools import partial

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

DATA = "only the kernel sees the data, and only on the thread that comes to it"
SHAPE = "the condition says what was expected"


def _computing(env, build, n_threads=2):
    """What computes build(context) with `n_threads`, its indices filled with `99`."""
    cpu, context = ggml.device("CPU").init(n_threads=n_threads), ggml.Context()
    env.later(context, cpu)
    out, ids = build(context)
    out.name = "rows"
    graph = context.new_graph(16)
    graph.build_forward_expand(out)
    context.alloc(cpu).clear()
    ids.set(np.full(ids.ne[::-1], 99))
    return partial(cpu.compute, graph)


def _get_rows(c):
    ids = c.new_tensor("i32", 8)
    return c.get_rows(c.new_tensor("f32", 8, 8), ids), ids


def _set_rows(c):
    ids = c.new_tensor("i64", 8)
    return c.set_rows(c.new_tensor("f32", 8, 8), c.new_tensor("f32", 8, 8), ids), ids


def _mul_mat_id(c):
    ids = c.new_tensor("i32", 1, 8)
    experts = c.new_tensor("f32", 8, 8, 4)
    return c.mul_mat_id(experts, c.new_tensor("f32", 8, 1, 8), ids), ids


def _add_id(c):
    ids = c.new_tensor("i32", 1, 8)
    return c.add_id(c.new_tensor("f32", 8, 1, 8), c.new_tensor("f32", 8, 4), ids), ids


def _whole_numbers(c):
    weights = c.new_tensor("i32", 8, 8)
    return c.mul_mat(weights, c.new_tensor("f32", 8, 8)), weights


def _silu_back(env):
    env.other.silu_back(env.other.new_tensor("f32", 8), env.other.new_tensor("f32", 4))


def _set_outside(env):
    a, b = env.other.new_tensor("f32", 8), env.other.new_tensor("f32", 4)
    env.other.set_1d(a, b, 20)


def _acc_outside(env):
    a, b = env.other.new_tensor("f32", 8), env.other.new_tensor("f32", 4)
    env.other.acc(a, b, 16, 16, 16, 20)


def _top_none(env):
    env.other.top_k(env.other.new_tensor("f32", 8), 0)


def _im2col_back(env):
    a, b = env.other.new_tensor("f32", 2, 4, 4), env.other.new_tensor("f32", 2, 4, 4)
    env.other.im2col_back(a, b, [8, 8, 8, 8], 1, 1, 0, 0, 1, 1, True)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


MISUSES = [
    misuse("get_rows", lambda e: _computing(e, _get_rows)(), ggml.AbortError, "node: GET_ROWS",
           "i01 < ne01", "'rows'", abort=DATA),
    misuse("get_rows-1", lambda e: _computing(e, _get_rows, 1)(), ggml.AbortError, "node: GET_ROWS",
           "i01 < ne01", "'rows'", abort=DATA),
    misuse("set_rows", lambda e: _computing(e, _set_rows)(), ggml.AbortError, "node: SET_ROWS",
           "i1 < ne1", abort=DATA),
    misuse("mul_mat_id", lambda e: _computing(e, _mul_mat_id)(), ggml.AbortError, "MUL_MAT_ID",
           "i02 < n_as", abort=DATA),
    misuse("add_id", lambda e: _computing(e, _add_id)(), ggml.AbortError, "node: ADD_ID",
           "i11 < ne11", abort=DATA),
    misuse("mul_mat-i32", lambda e: _computing(e, _whole_numbers)(), ggml.AbortError, "src[0]: i32",
           "mul_mat has no kernel for this type", abort="upstream's supports_op says yes to it"),
    misuse("silu_back", _silu_back, ggml.AbortError, "f32 [4, 1, 1, 1]", "ggml_are_same_shape",
           abort=SHAPE),
    misuse("set", _set_outside, ggml.AbortError, "offset: 20", "<= ggml_nbytes(a)", abort=SHAPE),
    misuse("acc", _acc_outside, ggml.AbortError, "offset: 20", "<= ggml_nbytes(a)", abort=SHAPE),
    misuse("top_k", _top_none, ggml.AbortError, "k: 0", "k > 0", abort=SHAPE,
           needs=("Op.TOP_K",)),
    misuse("im2col_back", _im2col_back, ggml.AbortError, "f32 [2, 4, 4, 1]", "a->ne[1] ==",
           abort=SHAPE),
    misuse("isolate-none", lambda e: ggml.isolate(None), TypeError, "NoneType",
           "expected a function"),
    misuse("isolate-called", lambda e: ggml.isolate(os.getpid()), TypeError, "got int",
           "expected a function"),
    misuse("isolate-lambda", lambda e: ggml.isolate(lambda: 1), ggml.ArgumentError,
           "lambda", "give a function defined in a module"),
    misuse("isolate-tensor", lambda e: ggml.isolate(len, e.x), ggml.ArgumentError,
           "cannot be sent", "arrays and plain values"),
    misuse("isolate-lock", lambda e: ggml.isolate(len, threading.Lock()), ggml.ArgumentError,
           "lock", "arrays and plain values"),
    misuse("isolate-timeout-str", lambda e: ggml.isolate(os.getpid, timeout="3"), TypeError,
           "timeout='3'", "expected seconds"),
    misuse("isolate-timeout-0", lambda e: ggml.isolate(os.getpid, timeout=0), ggml.ArgumentError,
           "timeout=0", "more than 0"),
    misuse("isolate-killed", lambda e: ggml.isolate(_kill), ggml.IsolatedDeath, "_kill",
           "SIGKILL", "memory runs out"),
    misuse("isolate-result", lambda e: ggml.isolate(ggml.Context), ggml.ArgumentError,
           "a Context", "return arrays"),
]

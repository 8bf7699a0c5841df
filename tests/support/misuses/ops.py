"""Ops: operands that are no tensors, of a wrong shape or type, numbers that no op takes.

ggml checks shapes and types itself. Its assertions are AbortErrors with the call, the assertion and
the operands, each with type, ne and name; for the most used ops with the rule in words, too, whose
table has a test of its own (test_op_rules.py).
"""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

NAMED = "ggml asserts it; the message has the assertion and each operand's type, ne and name"


def _abort(op, act, operand, *more):
    return misuse(op, act, ggml.AbortError, f"ggml_{op.partition('/')[0]}", operand, *more,
                  abort=NAMED)  # fmt: skip


def _type(id, act, given, expected="expected a Tensor"):
    return misuse(id, act, TypeError, given, expected)


def _bad(id, act, given, expected, error=ggml.ArgumentError):
    return misuse(id, act, error, given, expected)


def _t(env, type, *ne, name="t"):
    return env.other.new_tensor(type, *ne, name=name)


def _computed(env, tensor, **values):
    """Computes `tensor` on the CPU, with the data of its sources by name."""
    graph = env.other.new_graph(16)
    graph.build_forward_expand(tensor)
    env.other.alloc(env.cpu)
    for name, data in values.items():
        env.other[name].set(data)
    env.cpu.compute(graph)


MISUSES = [
    _abort("add", lambda e: e.other.add(e.w, _t(e, "f32", 7)), "f32 [8, 8, 1, 1] 'w'",
           "f32 [7, 1, 1, 1] 't'", "ggml_can_repeat(b, a)"),
    _abort("add/swapped", lambda e: e.other.add(_t(e, "f32", 8), e.w), "f32 [8, 1, 1, 1] 't'",
           "f32 [8, 8, 1, 1] 'w'"),
    _abort("sub", lambda e: e.other.sub(e.w, _t(e, "f32", 3)), "f32 [3, 1, 1, 1] 't'"),
    _abort("mul", lambda e: e.other.mul(e.w, _t(e, "f32", 8, 3)), "f32 [8, 3, 1, 1] 't'"),
    _abort("div", lambda e: e.other.div(e.w, _t(e, "f32", 8, 8, 2)), "f32 [8, 8, 2, 1] 't'"),
    _abort("mul_mat", lambda e: e.other.mul_mat(e.w, _t(e, "f32", 7, 3)),
           "b: f32 [7, 3, 1, 1] 't'", "ggml_can_mul_mat(a, b)"),
    _abort("mul_mat/transposed", lambda e: e.other.mul_mat(e.other.transpose(e.w), e.w),
           "(transposed)", "!ggml_is_transposed(a)"),
    _abort("mul_mat/batches", lambda e: e.other.mul_mat(_t(e, "f32", 8, 2, 3), _t(
           e, "f32", 8, 2, 2, name="u")), "f32 [8, 2, 3, 1] 't'", "f32 [8, 2, 2, 1] 'u'"),
    _abort("mul_mat_id", lambda e: e.other.mul_mat_id(_t(e, "f32", 8, 8, 4), _t(
           e, "f32", 8, 2, 3), _t(e, "f32", 2, 3, name="ids")), "f32 [2, 3, 1, 1] 'ids'",
           "GGML_TYPE_I32"),
    _abort("out_prod", lambda e: e.other.out_prod(e.w, _t(e, "f32", 8, 3)),
           "f32 [8, 3, 1, 1] 't'"),
    _abort("get_rows", lambda e: e.other.get_rows(e.w, _t(e, "f32", 3)), "f32 [3, 1, 1, 1] 't'"),
    _abort("set_rows", lambda e: e.other.set_rows(e.w, _t(e, "f32", 7, 3), _t(
           e, "i64", 3, name="rows")), "f32 [7, 3, 1, 1] 't'", "i64 [3, 1, 1, 1] 'rows'"),
    _abort("concat", lambda e: e.other.concat(e.w, _t(e, "f32", 7, 3), 0), "f32 [7, 3, 1, 1] 't'",
           "dim: 0"),
    _abort("concat/dim", lambda e: e.other.concat(e.w, e.w, 4), "dim: 4", "GGML_MAX_DIMS"),
    _abort("concat/types", lambda e: e.other.concat(e.w, _t(e, "f16", 8, 8), 0),
           "f16 [8, 8, 1, 1] 't'"),
    _abort("reshape_2d", lambda e: e.other.reshape_2d(e.w, 5, 5), "ne0: 5", "f32 [8, 8, 1, 1] 'w'"),
    _abort("reshape_1d", lambda e: e.other.reshape_1d(e.other.transpose(e.w), 64),
           "(transposed)", "ggml_is_contiguous(a)"),
    _abort("reshape_4d", lambda e: e.other.reshape_4d(e.w, 2, 2, 2, 2), "ne3: 2",
           "f32 [8, 8, 1, 1] 'w'"),
    _abort("permute/twice", lambda e: e.other.permute(e.w, 0, 0, 1, 2), "axis1: 0", "axis0"),
    _abort("permute/range", lambda e: e.other.permute(e.w, 0, 1, 2, 4), "axis3: 4",
           "GGML_MAX_DIMS"),
    _abort("permute/negative", lambda e: e.other.permute(e.w, -1, 1, 2, 3), "axis0: -1", ">= 0"),
    _abort("repeat", lambda e: e.other.repeat(e.w, _t(e, "f32", 12, 8)), "f32 [12, 8, 1, 1] 't'",
           "ggml_can_repeat(a, b)"),
    _abort("cpy", lambda e: e.other.cpy(e.w, _t(e, "f32", 63)), "f32 [63, 1, 1, 1] 't'",
           "ggml_nelements(a) == ggml_nelements(b)"),
    _abort("soft_max_ext", lambda e: e.other.soft_max_ext(e.w, _t(e, "i32", 8, 8), 1.0, 0.0),
           "i32 [8, 8, 1, 1] 't'"),
    _abort("soft_max_ext/mask-ne", lambda e: e.other.soft_max_ext(e.w, _t(e, "f32", 4, 8), 1, 0),
           "f32 [4, 8, 1, 1] 't'"),
    _abort("rope", lambda e: e.other.rope(e.w, _t(e, "f32", 8), 8, 0), "f32 [8, 1, 1, 1] 't'",
           "GGML_TYPE_I32"),
    _abort("rope/positions", lambda e: e.other.rope(_t(e, "f32", 8, 2, 3), _t(
           e, "i32", 5, name="pos"), 8, 0), "i32 [5, 1, 1, 1] 'pos'", "a->ne[2]"),
    _abort("flash_attn_ext", lambda e: e.other.flash_attn_ext(
           _t(e, "f32", 64, 4, 2), _t(e, "f16", 32, 4, 2, name="k"), _t(
               e, "f16", 64, 4, 2, name="v"), None, 1.0, 0.0, 0.0), "k: f16 [32, 4, 2, 1] 'k'"),
    _abort("conv_1d", lambda e: e.other.conv_1d(_t(e, "f16", 3, 4, 2), _t(
           e, "f32", 9, 5, name="u"), 1, 0, 1), "f32 [9, 5, 1, 1] 'u'"),
    _abort("diag", lambda e: e.other.diag(e.w), "f32 [8, 8, 1, 1] 'w'", "ne[1] == 1"),
    _abort("argmax", lambda e: e.other.argmax(_t(e, "f32", 4, 4, 4)), "f32 [4, 4, 4, 1] 't'"),
    _abort("top_k", lambda e: e.other.top_k(e.w, 9), "k: 9", "ne[0] >= k"),
    _abort("cross_entropy_loss", lambda e: e.other.cross_entropy_loss(e.w, _t(e, "f32", 8)),
           "f32 [8, 1, 1, 1] 't'", "ggml_are_same_shape"),
    _abort("get_rows/quantised-ids", lambda e: e.other.get_rows(e.w, _t(e, "q8_0", 32)),
           "q8_0 [32, 1, 1, 1] 't'"),
    _abort("im2col", lambda e: e.other.im2col(_t(e, "f16", 3, 3, 5, 1), _t(
           e, "f32", 9, 9, 4, 1, name="u"), 1, 1, 0, 0, 1, 1, True, "f16"),
           "f32 [9, 9, 4, 1] 'u'"),
    _type("add/none", lambda e: e.other.add(e.w, None), "got NoneType"),
    _type("add/number", lambda e: e.other.add(e.w, 1.0), "got float 1.0"),
    _type("add/array", lambda e: e.other.add(e.w, np.ones(8)), "got ndarray"),
    _type("add/first-none", lambda e: e.other.add(None, e.w), "got NoneType"),
    _type("mul_mat/str", lambda e: e.other.mul_mat("w", e.x), "str 'w'"),
    _type("sqr/graph", lambda e: e.other.sqr(e.graph), "got Graph"),
    _type("sqr/context", lambda e: e.other.sqr(e.other), "got Context"),
    _type("sqr/pointer", lambda e: e.other.sqr(e.w.ptr), "got _CDataBase"),
    _type("soft_max_ext/mask-number", lambda e: e.other.soft_max_ext(e.w, 5, 1.0, 0.0),
          "got int 5"),
    _type("scale/str", lambda e: e.other.scale(e.w, "2"), "s='2'", "must be real number"),
    _type("scale/none", lambda e: e.other.scale(e.w, None), "s=None", "must be real number"),
    _type("reshape/float", lambda e: e.other.reshape_1d(e.w, 64.0), "ne0=64.0",
          "an integer is required"),
    _type("reshape/str", lambda e: e.other.reshape_1d(e.w, "64"), "ne0='64'",
          "an integer is required"),
    _type("missing-argument", lambda e: e.other.mul_mat(e.w), "mul_mat() missing", "'b'"),
    _type("too-many", lambda e: e.other.sqr(e.w, e.w), "takes 2 positional arguments", "3 were"),
    _bad("reshape/beyond-int64", lambda e: e.other.reshape_1d(e.w, 1 << 70), f"ne0={1 << 70}",
         "big"),
    _bad("permute/beyond-int", lambda e: e.other.permute(e.w, 1 << 40, 1, 2, 3), "axis0=1099",
         "does not fit"),
    _bad("view/negative-offset", lambda e: e.other.view_1d(e.w, 8, -4), "offset=-4", "negative"),
    _bad("view/huge-stride", lambda e: e.other.view_2d(e.w, 8, 2, 1 << 64, 0), "nb1=184",
         "too big"),
    _bad("rope_multi/sections", lambda e: e.other.rope_multi(
         _t(e, "f32", 8, 2, 3), _t(e, "i32", 12), None, 8, [1, 1], 8, 0, 1, 1, 0, 1, 0, 0),
         "sections [1, 1]", "expected 4 numbers"),
    _bad("rope_multi/sections-none", lambda e: e.other.rope_multi(
         _t(e, "f32", 8, 2, 3), _t(e, "i32", 12), None, 8, None, 8, 0, 1, 1, 0, 1, 0, 0),
         "got NoneType", "sections: expected 4 numbers", TypeError),
    _bad("cast/type", lambda e: e.other.cast(e.w, "f33"), "type 'f33'", "expected one of"),
    _bad("unary/name", lambda e: e.other.unary(e.w, "relu6"), "UnaryOp 'relu6'",
         "expected one of"),
    _bad("unary/number", lambda e: e.other.unary(e.w, 999), "UnaryOp 999", "expected one of"),
    _bad("unary/float", lambda e: e.other.unary(e.w, 1.5), "float 1.5",
         "UnaryOp: expected a whole number", TypeError),
    _bad("unary/none", lambda e: e.other.unary(e.w, None), "got NoneType",
         "UnaryOp: expected a whole number", TypeError),
    _bad("argsort/order", lambda e: e.other.argsort(e.w, "down"), "SortOrder 'down'",
         "expected one of asc, desc"),
    _bad("pool/kind", lambda e: e.other.pool_1d(e.w, "min", 2, 2, 0), "OpPool 'min'",
         "expected one of max, avg"),
    _bad("glu/name", lambda e: e.other.glu(e.w, "siglu", False), "GluOp 'siglu'",
         "expected one of"),
    _bad("no-such-op", lambda e: e.other.matmul(e.w, e.x), "'Context'", "'matmul'",
         AttributeError),
    _bad("custom/not-callable", lambda e: e.other.map_custom1(e.w, 5), "int",
         "fun: expected a function", TypeError),
    _bad("custom/arguments", lambda e: e.other.map_custom1(e.w, lambda d: None),
         "is called as fun(dst, a, ith, nth)", "does not take", TypeError),
    _bad("custom/type", lambda e: e.other.map_custom1(_t(e, "q8_0", 32), lambda d, a, i, n: None),
         "source 't' is q8_0", "Convert it to f32 with `cast`"),
    _bad("custom/n_tasks", lambda e: e.other.map_custom1(e.w, lambda d, a, i, n: 0, n_tasks=0),
         "n_tasks=0", "or -1 for all threads"),
    _bad("custom/n_tasks-huge", lambda e: e.other.map_custom1(e.w, lambda d, a, i, n: 0, 1 << 40),
         f"n_tasks={1 << 40}", "or -1 for all threads"),
    _bad("custom/n_tasks-str", lambda e: e.other.map_custom1(e.w, lambda d, a, i, n: 0, "2"),
         "str", "n_tasks: expected", TypeError),
    _bad("custom/too-many-sources",
         lambda e: e.other.custom_4d("f32", 1, 1, 1, 1, [e.w] * 12, lambda *a: None),
         "12 sources", "takes at most 9"),
    _bad("custom/source-none", lambda e: e.other.map_custom2(e.w, None, lambda *a: None),
         "got NoneType", "expected a Tensor", TypeError),
    _bad("custom/ne-negative",
         lambda e: e.other.custom_4d("f32", -1, 1, 1, 1, [e.w], lambda *a: None), "ne0=-1",
         "at least 0"),
    _bad("custom/ne-float",
         lambda e: e.other.custom_4d("f32", 2.0, 1, 1, 1, [e.w], lambda *a: None), "float 2.0",
         "ne0: expected a whole number", TypeError),
    _bad("custom/args-not-a-list",
         lambda e: e.other.custom_4d("f32", 1, 1, 1, 1, 5, lambda *a: None), "int",
         "sequence of Tensors", TypeError),
    misuse("compute/rows-out-of-range",
           lambda e: _computed(e, e.other.get_rows(e.w, _t(e, "i32", 2, name="ids")),
                               ids=[0, 99]),
           ggml.AbortError, "ggml_backend_graph_compute", "i01", abort="found while computing",
           at=_computed),
]  # fmt: skip

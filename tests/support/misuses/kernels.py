"""Operands and numbers that no check of upstream looks at (native/made_rules.h, kernel_rules.h).

Each was a write or read beside the tensor, a call of NULL, a result that was not written, a loop
without an end, or other numbers than from operands in line. docs/KERNELS.md has the rules.
"""

import ggml_py as ggml

from ..misuses import misuse

MADE = "a rule of made_rules.h; the message has it and each operand's type, ne and name"
KERNEL = "what only the CPU's kernel needs: found before the graph is computed, with the node"


def _t(env, type, *ne, name="t"):
    return env.other.new_tensor(type, *ne, name=name)


def _param(env, *ne):
    tensor = _t(env, "f32", *ne)
    tensor.set_param()
    return tensor


def _computed(env, tensor):
    graph = env.other.new_graph(16)
    graph.build_forward_expand(tensor)
    env.other.alloc(env.cpu).clear()
    env.cpu.compute(graph)


def _made(id, act, operand, expected, *more, at=None):
    return misuse(id, act, ggml.AbortError, f"ggml_{id.partition('/')[0]}", operand, expected,
                  *more, abort=MADE, at=at)  # fmt: skip


def _kernel(id, act, *words):
    return misuse(f"{id}/on-the-cpu", lambda e: _computed(e, act(e)), ggml.AbortError,
                  "on the CPU: expected", *words, abort=KERNEL, at=_computed)  # fmt: skip


def _rope(env, ne, n_dims, mode=0):
    return env.other.rope(_t(env, "f32", *ne), _t(env, "i32", ne[2], name="pos"), n_dims, mode)


def _crop(env, type, ne, *whole):
    """The first numbers of each row of a larger tensor."""
    base = _t(env, type, *whole, name="whole")
    return env.other.view_4d(base, *(*ne, 1, 1, 1)[:4], *base.nb[1:], 0)


def _strided(env, type, n):
    """n numbers that are not side by side."""
    column = env.other.view_2d(_t(env, type, 2, n), 1, n, 8, 0)
    return env.other.permute(column, 1, 0, 2, 3)


def _soft_max_with_strided_sinks(env):
    made = env.other.soft_max(_t(env, "f32", 8, 2, 4))
    made.add_sinks(_strided(env, "f32", 4))
    return made


MISUSES = [
    _made("rope/odd", lambda e: _rope(e, (7, 2, 3), 2), "f32 [7, 2, 3, 1]",
          "an even length", at=_rope),
    _kernel("rope/n_dims", lambda e: _rope(e, (8, 2, 3), 0), "ROPE", "n_dims above 0"),
    _made("rope/n_dims-negative", lambda e: _rope(e, (8, 2, 3), -2), "n_dims: -2",
          "n_dims of at least 0", at=_rope),
    _made("rope/n_dims-long", lambda e: _rope(e, (8, 2, 3), 10), "n_dims: 10",
          "at least n_dims", at=_rope),
    _made("rope_multi/factors", lambda e: e.other.rope_multi(
          _t(e, "f32", 16, 1, 2), _t(e, "i32", 8), _t(e, "f32", 4, name="c"), 8, [1, 1, 1, 1], 24,
          32, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0), "f32 [4, 1, 1, 1] 'c'", "for each pair of a row"),
    _made("rope_multi/sections", lambda e: e.other.rope_multi(
          _t(e, "f32", 16, 1, 2), _t(e, "i32", 8), None, 16, [2, -2, 1, 0], 8,
          32, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0), "n_dims: 16", "sections of at least 0"),
    _made("group_norm", lambda e: e.other.group_norm(_t(e, "f32", 8, 8, 4), -1, 1e-5),
          "n_groups: -1", "n_groups above 0"),
    _made("group_norm/many", lambda e: e.other.group_norm(_t(e, "f32", 8, 8, 4), 2**31 - 1, 1e-5),
          "n_groups", "n_groups above 0"),
    _made("conv_transpose_1d", lambda e: e.other.conv_transpose_1d(
          _t(e, "f32", 4, 2, 3), _t(e, "f32", 2, 3), -1, 0, 1), "s0: -1", "a stride above 0"),
    _made("conv_transpose_2d_p0", lambda e: e.other.conv_transpose_2d_p0(
          _t(e, "f16", 4, 4, 2, 3), _t(e, "f32", 2, 2, 3), -1), "stride: -1", "a stride above 0"),
    _made("get_rows_back", lambda e: e.other.get_rows_back(
          _t(e, "f32", 8, 2), _t(e, "i32", 5), _t(e, "f32", 8, 4)), "i32 [5",
          "an index in b for each row of a"),
    _made("opt_step_adamw", lambda e: e.other.opt_step_adamw(
          _param(e, 8, 2), _t(e, "f32", 8, 2), _t(e, "i8", 8, 2), _t(e, "i8", 8, 2),
          _t(e, "f32", 7)), "i8 [8, 2, 1, 1]", "momenta in f32"),
    _made("opt_step_sgd", lambda e: e.other.opt_step_sgd(
          _param(e, 8, 2), _t(e, "i8", 8, 2), _t(e, "f32", 2)), "i8 [8, 2", "a gradient in f32"),
    _made("add1", lambda e: e.other.add1(_t(e, "f32", 8), _t(e, "f16", 1)), "f16 [1", "b in f32"),
    _made("set", lambda e: e.other.set(_t(e, "f32", 8), _t(e, "i32", 4), 32, 32, 32, 0),
          "i32 [4", "b of a's type"),
    _made("acc", lambda e: e.other.acc(_t(e, "f32", 8), _t(e, "f32", 4, 2), 4, 8, 8, 0),
          "nb1: 4", "keep b's rows apart"),
    _made("add_id", lambda e: e.other.add_id(
          _t(e, "f32", 8, 2, 1), _t(e, "f32", 8, 4, 1, 0), _t(e, "i32", 2, 1)),
          "f32 [8, 4, 1, 0]", "operands that have elements"),
    *([_made("dsv4_hc_comb", lambda e: e.other.dsv4_hc_comb(
          _t(e, "f32", 24, 2), _t(e, "f32", 3), _t(e, "f32", 24), 1e-6, 2**31 - 1),
          "n_iter", "at most 65536 iterations")] if hasattr(ggml.Context, "dsv4_hc_comb") else []),
    _made("set/offset", lambda e: e.other.set(_t(e, "f32", 8), _t(e, "f32", 4), 32, 32, 32, 3),
          "offset: 3", "in bytes, of whole elements"),
    _made("rms_norm_back", lambda e: e.other.rms_norm_back(
          _t(e, "f32", 8), _t(e, "i32", 8), 1e-5), "i32 [8", "b in f32"),
    _made("soft_max_ext_back", lambda e: e.other.soft_max_ext_back(
          _t(e, "f32", 8), _t(e, "f16", 8), 1.0, 0.0), "f16 [8", "b in f32"),
    _made("cross_entropy_loss_back", lambda e: e.other.cross_entropy_loss_back(
          _t(e, "f32", 1), _t(e, "f16", 8, 2), _t(e, "f16", 8, 2)), "f16 [8, 2", "b and c in f32"),
    _made("pool_1d/window", lambda e: e.other.pool_1d(
          _t(e, "f32", 8), "max", 20, 2**31 - 1, 0), "k0: 20", "within the padded row"),
    _made("pool_1d/stride", lambda e: e.other.pool_1d(_t(e, "f32", 8), "max", 10, -1, 0),
          "s0: -1", "a stride above 0"),
    _made("pool_2d/kind", lambda e: e.other.pool_2d(
          _t(e, "f32", 8, 8), 2, 2, 2, 2, 2, 0.0, 0.0), "op: 2", "max or avg"),
    _made("roll", lambda e: e.other.roll(_t(e, "f32", 8), -(2**31), 0, 0, 0),
          "shift0: -2.147", "shifts within the tensor"),
    _made("im2col", lambda e: e.other.im2col(
          _t(e, "f16", 3, 2), _t(e, "f32", 9, 2), 1, 0, 0, 1, 1, 0, False, "f16"),
          "p1: 1", "p1 = 0 in one dimension"),
    _made("im2col_3d", lambda e: e.other.im2col_3d(
          _t(e, "f16", 2, 2, 2, 2), _t(e, "f32", 4, 4, 4, 3), 2, 1, 1, 1, 0, 0, 0, 1, 1, 1, "f16"),
          "IC: 2", "IC channels in a and in b"),
    _made("conv_3d", lambda e: e.other.conv_3d(
          _t(e, "f16", 2, 2, 2, 2), _t(e, "f32", 4, 4, 4, 3), 2, 1, 1, 1, 0, 0, 0, 1, 1, 1),
          "IC: 2", "IM2COL_3D: expected IC channels"),
    _made("rwkv_wkv6/no-token", lambda e: e.other.rwkv_wkv6(
          *[_t(e, "f32", 64, 1, 0)] * 3, _t(e, "f32", 64, 1), _t(e, "f32", 64, 1, 0),
          _t(e, "f32", 4096, 1)), "f32 [64, 1, 0, 1]", "operands that have elements"),
    _kernel("set_rows", lambda e: e.other.set_rows(
            _t(e, "i64", 8, 4), _t(e, "f32", 8, 1), e.other.cast(e.other.arange(0, 1, 1), "i32")),
            "convert to", "i64 [8, 4"),
    _kernel("conv_2d", lambda e: e.other.conv_2d(
            _t(e, "f32", 3, 3, 1, 1), _crop(e, "f32", (5, 5), 9, 9), 1, 1, 0, 0, 1, 1),
            "IM2COL", "contiguous rows of the image", "ctx.cont()", "src[1] [4, 36,"),
    _kernel("add_sinks", _soft_max_with_strided_sinks, "SOFT_MAX", "contiguous sinks"),
    _kernel("ssm_conv", lambda e: e.other.ssm_conv(
            _t(e, "f32", 4, 8, 1), _crop(e, "f32", (4, 8), 6, 8)), "SSM_CONV", "a contiguous c"),
    _kernel("ssm_conv/type", lambda e: e.other.ssm_conv(
            _t(e, "f32", 4, 8, 1), _t(e, "f16", 4, 8)), "SSM_CONV", "c in f32"),
    _kernel("get_rel_pos", lambda e: e.other.get_rel_pos(_crop(e, "f16", (8, 3), 9, 3), 2, 2),
            "GET_REL_POS", "a contiguous a"),
    _kernel("opt_step_adamw", lambda e: e.other.opt_step_adamw(
            _param(e, 8, 2), _crop(e, "f32", (8, 2), 9, 2), _t(e, "f32", 8, 2),
            _t(e, "f32", 8, 2), _t(e, "f32", 7)), "OPT_STEP_ADAMW", "with the strides of a"),
    _kernel("opt_step_sgd", lambda e: e.other.opt_step_sgd(
            _param(e, 8, 2), _crop(e, "f32", (8, 2), 9, 2), _t(e, "f32", 2)),
            "OPT_STEP_SGD", "with the strides of a"),
    _kernel("rope", lambda e: e.other.rope(
            _t(e, "f32", 8, 2, 3), _strided(e, "i32", 3), 8, 0), "ROPE", "contiguous positions"),
    _kernel("conv_transpose_2d_p0", lambda e: e.other.conv_transpose_2d_p0(
            _crop(e, "f16", (2, 2, 2, 3), 3, 2, 2, 3), _t(e, "f32", 2, 2, 3), 1),
            "CONV_TRANSPOSE_2D", "contiguous rows"),
    _kernel("im2col_back", lambda e: e.other.im2col_back(
            _crop(e, "f32", (9, 3, 3, 1), 10, 3, 3, 1), _t(e, "f32", 3, 3, 1, 1), [5, 5, 1, 1],
            1, 1, 0, 0, 1, 1, True), "IM2COL_BACK", "a contiguous gradient"),
    _kernel("add", lambda e: e.other.add(_t(e, "iq2_xxs", 256, 2), _t(e, "f32", 256, 2)),
            "ADD", "read and quantize to"),
    _kernel("add1", lambda e: e.other.add1(_t(e, "q4_0", 32, 1, 1, 2), _t(e, "f32", 1)),
            "ADD1", "three dimensions"),
    _kernel("get_rows", lambda e: e.other.get_rows(
            _t(e, "q8_1", 32, 2), e.other.cast(e.other.arange(0, 1, 1), "i32")),
            "GET_ROWS", "that the CPU can read"),
    _kernel("cpy/rows", lambda e: e.other.cpy(_t(e, "f32", 64, 2), _t(e, "q4_0", 32, 4)),
            "CPY", "no longer than the result's"),
    _made("view_1d", lambda e: e.other.view_1d(_t(e, "f32", 8), 4, 2), "offset: 2",
          "an offset, in bytes, of whole elements"),
    _made("view_2d", lambda e: e.other.view_2d(_t(e, "f16", 8, 2), 4, 2, 9, 0), "nb1: 9",
          "strides, in bytes, of whole elements"),
    _made("view_2d/blocks", lambda e: e.other.view_2d(_t(e, "q4_0", 64, 2), 32, 2, 32, 0),
          "nb1: 32", "strides, in bytes, of whole elements or blocks"),
]  # fmt: skip

"""Shapes, strides and types that constructors take and CPU kernels go out of bounds by.

Each was an overflow under AddressSanitizer, or a call of a kernel that is NULL
(benchmarks/SANITIZERS.md).
"""

import ggml_py as ggml

from ..misuses import misuse

ASSERTED = "an assertion added to ggml; the message has it and each operand's type, ne and name"


def _t(env, type, *ne, name="t"):
    return env.other.new_tensor(type, *ne, name=name)


def _computed(env, tensor):
    graph = env.other.new_graph(16)
    graph.build_forward_expand(tensor)
    env.other.alloc(env.cpu).clear()
    env.cpu.compute(graph)


def _made(id, act, operand, *more):
    return misuse(id, act, ggml.AbortError, f"ggml_{id.partition('/')[0]}", operand, *more,
                  abort=ASSERTED)  # fmt: skip


def _kernel(id, act, *words):
    return misuse(f"{id}/computed", lambda e: _computed(e, act(e)), ggml.AbortError, *words,
                  abort="found while computing", at=_computed)  # fmt: skip


def _every(env):
    """Matrices of 4 by 4, at distances that are no multiples of one another."""
    return env.other.permute(_t(env, "f32", 4, 2, 4, 4), 0, 3, 1, 2)


NO_KERNEL = ("f64", "i8", "i16", "i32", "i64")

MISUSES = [
    _made("cont_4d/blocks", lambda e: e.other.cont_4d(_t(e, "q4_0", 32, 2), 4, 4, 1, 4),
          "q4_0 [32, 2, 1, 1]", "ggml_blck_size"),
    _made("win_part", lambda e: e.other.win_part(_t(e, "f32", 3, 4, 4), 0), "w: 0", "w > 0"),
    _made("win_unpart/windows", lambda e: e.other.win_unpart(_t(e, "f32", 64, 32), 1, 8, 2),
          "f32 [64, 32, 1, 1]", "a->ne[1] == w"),
    _made("win_unpart/count", lambda e: e.other.win_unpart(_t(e, "f32", 3, 2, 2, 3), 4, 4, 2),
          "f32 [3, 2, 2, 3]", "a->ne[3]"),
    _made("win_unpart/w", lambda e: e.other.win_unpart(_t(e, "f32", 3, 1, 1, 1), 2, 4, 0),
          "w: 0", "w > 0"),
    _made("pool_1d/type", lambda e: e.other.pool_1d(_t(e, "i64", 4, 32), 0, 4, 4, 4), "i64 [4"),
    _made("pool_1d/strides", lambda e: e.other.pool_1d(_every(e), 0, 2, 2, 0), "contiguous"),
    _made("pool_2d/type", lambda e: e.other.pool_2d(
          _t(e, "q4_0", 32, 3, 3), 0, 8, 2, 4, 3, 1, 1), "q4_0 [32"),
    _made("pool_2d_back/types", lambda e: e.other.pool_2d_back(
          _t(e, "i32", 1, 3, 4), _t(e, "f16", 4, 3, 4), 0, 2, 1, 1, 3, 1, 0), "f16 [4, 3, 4, 1]"),
    _made("pool_2d_back/planes", lambda e: e.other.pool_2d_back(
          _t(e, "f32", 1, 3, 4), _t(e, "f32", 4, 3, 5), 0, 2, 1, 1, 3, 1, 0), "ne[2] == af->ne[2]"),
    _made("out_prod/type", lambda e: e.other.out_prod(
          _t(e, "q4_0", 32, 4), _t(e, "q4_0", 32, 4)), "b->type == GGML_TYPE_F32"),
    _made("conv_2d_direct/type", lambda e: e.other.conv_2d_direct(
          _t(e, "f16", 4), _t(e, "f16", 4), 2, 1, 8, 0, 4, 1), "image->type == GGML_TYPE_F32"),
    _made("conv_2d_dw_direct/type", lambda e: e.other.conv_2d_dw_direct(
          _t(e, "f32", 4), _t(e, "f16", 32), 2, 2, 0, 3, 1, 1), "image->type == GGML_TYPE_F32"),
    _made("im2col/stride", lambda e: e.other.im2col(
          _t(e, "f16", 3, 3, 1, 1), _t(e, "f32", 9, 9, 1, 1), 0, 1, 0, 0, 1, 1, True, "f16"),
          "s > 0"),
    _made("flash_attn_ext/query", lambda e: e.other.flash_attn_ext(
          _t(e, "f16", 33, 2), _t(e, "f16", 33, 2), _t(e, "f16", 33, 2), None, 1, 0, 0),
          "q->type == GGML_TYPE_F32"),
    _made("flash_attn_ext/values", lambda e: e.other.flash_attn_ext(
          _t(e, "f32", 32, 2), _t(e, "f16", 32, 9), _t(e, "f16", 32, 2), None, 1, 0, 0),
          "k->ne[1] == v->ne[1]"),
    _made("flash_attn_ext/mask", lambda e: e.other.flash_attn_ext(
          _t(e, "f32", 32, 2), _t(e, "f16", 32, 9), _t(e, "f16", 32, 9), _t(e, "f16", 0, 64), 1, 0,
          0), "mask->ne[0] >= k->ne[1]"),
    _made("leaky_relu", lambda e: e.other.leaky_relu(_every(e), 0.1, True), "evenly spaced"),
    _made("argsort", lambda e: e.other.argsort(_every(e), 0), "evenly spaced"),
    _made("cross_entropy_loss", lambda e: e.other.cross_entropy_loss(_every(e), _every(e)),
          "evenly spaced"),
    _made("diag_mask_inf_inplace", lambda e: e.other.diag_mask_inf_inplace(_every(e), 0),
          "evenly spaced"),
    _made("diag_mask_zero_inplace", lambda e: e.other.diag_mask_zero_inplace(_every(e), 0),
          "evenly spaced"),
    _made("timestep_embedding", lambda e: e.other.timestep_embedding(_t(e, "f32", 64, 0), 2, 1),
          "timesteps->ne[0]"),
    _made("rwkv_wkv7", lambda e: e.other.rwkv_wkv7(
          _t(e, "f32", 1), *[_t(e, "f32", 64, 1, 1)] * 5, _t(e, "f32", 4096)),
          "ggml_are_same_shape(r, k)"),
    _made("rwkv_wkv6", lambda e: e.other.rwkv_wkv6(
          *[_t(e, "f32", 64, 1, 3)] * 5, _t(e, "f32", 4096, 2)), "n_tokens % n_seqs"),
    _made("gated_linear_attn", lambda e: e.other.gated_linear_attn(
          *[_t(e, "bf16", 64, 1, 1)] * 4, _t(e, "bf16", 4096), 1.0), "GGML_TYPE_F32"),
    _kernel("sum", lambda e: e.other.sum(e.other.transpose(_t(e, "f32", 4, 8))), "SUM", "nb[0]"),
    *(_kernel(f"mul_mat/{type}", lambda e, type=type: e.other.mul_mat(
          _t(e, type, 64, 4), _t(e, "f32", 64, 4)), "MUL_MAT", "no kernel") for type in NO_KERNEL),
    *(_kernel(f"mul_mat_id/{type}", lambda e, type=type: e.other.mul_mat_id(
          _t(e, type, 64, 4, 1), _t(e, "f32", 64, 1, 1), e.other.cast(
              e.other.arange(0, 1, 1), "i32")), "MUL_MAT_ID", "no kernel") for type in NO_KERNEL),
    *(_kernel(f"flash_attn_ext/{type}", lambda e, type=type: e.other.flash_attn_ext(
          _t(e, "f32", 64, 1), _t(e, type, 64, 4), _t(e, "f16", 64, 4), None, 1, 0, 0),
          "FLASH_ATTN_EXT", "unsupported K-type") for type in (*NO_KERNEL, "q8_1")),
    *([_made("pad_ext_circular", lambda e: e.other.pad_ext_circular(
             _t(e, "f32", 3), 4, 4, 0, 0, 0, 0, 0, 0), "lp0: 4", "lp0 <= a->ne[0]")]
      if hasattr(ggml.Context, "pad_ext_circular") else []),
]  # fmt: skip

"""Arguments that each constructor of a Context accepts. No two numbers of a call are the same where
its op keeps them in different places."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import Any

import ggml_py as ggml
from ggml_py.graphs.ops import Ops

# All but one that upstream has not finished: it aborts.
NAMES = sorted({n for n, f in vars(Ops).items() if not n.startswith("_") and callable(f)}
               - {"flash_attn_back"})  # fmt: skip
Sample = tuple[Any, ...]  # arguments in order; "f32 4 3" is a tensor

_PLAIN = "f32 8 6 4 2"  # used for every tensor of a constructor without samples here
_ROPE = ("f32 8 4 3", "i32 3")
_MULTI = ("f32 8 4 3", "i32 12")
_CURVE = (7, 1e4, 1.0, 0.5, 1.5, 32.0, 2.0)  # n_ctx_orig and the floats of rope_ext
_SECTIONS = [1, 2, 1, 0]
_MROPE = 8
_SET = (_PLAIN, "f32 4 3 2 2")
_STRIDES = (32, 192, 768)
_HEADS = "f32 8 2 3"  # for the linear attention ops

SAMPLES: dict[str, list[Sample]] = {
    "acc": [(*_SET, *_STRIDES, 4), (*_SET, 32, 192, 384, 8)],
    "acc_inplace": [(*_SET, *_STRIDES, 4), (*_SET, 32, 192, 384, 8)],
    "add1": [("f32 8 6", "f32 1")],
    "add1_inplace": [("f32 8 6", "f32 1")],
    "add_cast": [("f16 8 6", "f32 8 6", "f32")],
    "add_id": [("f32 8 2 3", "f32 8 5", "i32 2 3")],
    "add_rel_pos": [("f32 9 6 4", "f32 3 3 2 4", "f32 3 3 2 4")],
    "add_rel_pos_inplace": [("f32 9 6 4", "f32 3 3 2 4", "f32 3 3 2 4")],
    "arange": [(1.0, 9.0, 2.0)],
    "argmax": [("f32 8 6",)],
    "col2im_1d": [("f32 12 5", 3, 2, 1)],
    "cont_1d": [("f32 8 6", 48), ("f32 5 7", 35)],
    "cont_2d": [("f32 8 6 4", 12, 16), ("f32 5 7", 7, 5)],
    "cont_3d": [("f32 8 6 4", 12, 2, 8), ("f32 5 7 3", 7, 3, 5)],
    "cont_4d": [("f32 8 6 4", 6, 2, 1, 16), ("f32 5 7 3 2", 7, 3, 5, 2)],
    "conv_1d": [("f16 3 4 5", "f32 16 4 2", 2, 1, 1)],
    "conv_1d_dw": [("f16 3 1 4", "f32 16 4 1", 2, 1, 1)],
    "conv_1d_dw_ph": [("f16 3 1 4", "f32 16 4 1", 2, 1)],
    "conv_1d_ph": [("f16 3 4 5", "f32 16 4 2", 2, 1)],
    "conv_2d_dw": [("f16 3 2 1 4", "f32 16 12 4 2", 2, 3, 1, 4, 5, 6)],
    "conv_2d": [("f16 3 2 4 5", "f32 16 12 4 2", 2, 3, 1, 4, 5, 6)],
    "conv_3d": [("f16 3 2 2 6", "f32 16 12 8 4", 2, 4, 3, 1, 5, 6, 7, 8, 9, 10)],
    "conv_2d_direct": [("f32 3 2 4 5", "f32 16 12 4 2", 2, 3, 1, 4, 5, 6)],
    "conv_2d_dw_direct": [("f32 3 2 1 4", "f32 16 12 4 2", 2, 3, 1, 4, 5, 6)],
    "conv_3d_direct": [
        ("f32 3 2 2 6", "f32 16 12 8 4", 2, 3, 1, 4, 5, 6, 7, 8, 9, 2, 2, 3),
        ("f32 3 2 2 10", "f32 16 12 8 15", 2, 3, 1, 4, 5, 6, 7, 8, 9, 5, 3, 2),
    ],
    "conv_transpose_1d": [("f32 3 2 4", "f32 7 4", 2, 0, 1)],
    "conv_transpose_2d_p0": [("f16 3 2 5 4", "f32 7 6 4 2", 2)],
    "cross_entropy_loss_back": [("f32 1", "f32 8 6", "f32 8 6")],
    "diag": [("f32 8 1 3",)],
    "dsv4_hc_comb": [("f32 24 5", "f32 3", "f32 24", 0.5, 3)],
    "dsv4_hc_post": [("f32 8 3", "f32 8 4 3", "f32 4 3", "f32 4 4 3")],
    "dsv4_hc_pre": [("f32 8 4 3", "f32 4 3")],
    "dsv4_hc_pre_gated": [("f32 8 4 3", "f32 8 4 3", 0.5)],
    "flash_attn_ext": [("f32 8 3 4", "f16 8 32 2", "f16 8 32 2", "f16 32 64", 0.5, 1.5, 2.0)],
    "gated_delta_net": [
        (_HEADS, _HEADS, _HEADS, "f32 1 2 3", "f32 1 2 3", "f32 8 8 2", 2),
    ],
    "gated_linear_attn": [(_HEADS, _HEADS, _HEADS, _HEADS, "f32 128 1", 0.5)],
    "get_rel_pos": [("f32 8 9", 5, 5), ("f32 8 13", 7, 7)],
    "get_rows": [("f32 8 6", "i32 4")],
    "get_rows_back": [("f32 8 4", "i32 4", "f32 8 6")],
    "im2col": [
        ("f16 3 2 4 5", "f32 16 12 4 2", 2, 3, 1, 4, 5, 6, True, "f16"),
        ("f16 3 4 4 5", "f32 16 4 4", 2, 3, 1, 0, 2, 1, True, "f16"),  # may be of 1-D, too
    ],
    "im2col_3d": [("f16 3 2 2 6", "f32 16 12 8 4", 2, 4, 3, 1, 5, 6, 7, 8, 9, 10, "f16")],
    "im2col_back": [("f32 24 7 7 2", "f16 3 2 4 5", [16, 12, 4, 2], 2, 3, 1, 4, 2, 1, True)],
    "interpolate": [(_PLAIN, 4, 3, 2, 1, 1)],
    "lightning_indexer": [("f32 8 4 3", "f32 8 1 5", "f32 4 3", "f16 5 3")],
    "mul_mat_id": [("f32 8 4 3", "f32 8 2 5", "i32 2 5")],
    "opt_step_adamw": [(_PLAIN, _PLAIN, _PLAIN, _PLAIN, "f32 7")],
    "opt_step_sgd": [(_PLAIN, _PLAIN, "f32 2")],
    "pad_ext_circular": [("f32 9 10 11 12", 1, 2, 3, 4, 5, 6, 7, 8)],
    "permute": [(_PLAIN, 1, 0, 3, 2)],
    "pool_1d": [(_PLAIN, 0, 3, 2, 1)],
    "pool_2d": [(_PLAIN, 0, 5, 3, 4, 2, 2.0, 1.0)],
    "pool_2d_back": [(_PLAIN, _PLAIN, 0, 5, 3, 4, 2, 2.0, 1.0)],
    "repeat_4d": [("f32 2 3 4 5", 2, 6, 12, 20)],
    "reshape_1d": [(_PLAIN, 384)],
    "reshape_2d": [(_PLAIN, 12, 32)],
    "reshape_3d": [(_PLAIN, 12, 4, 8)],
    "reshape_4d": [(_PLAIN, 12, 4, 2, 4)],
    "roll": [("f32 8 6 5 9", 1, 2, 3, 4)],
    "rope": [(*_ROPE, 6, 2)],
    "rope_custom": [(*_ROPE, 6, 2, *_CURVE)],
    "rope_custom_inplace": [(*_ROPE, 6, 2, *_CURVE)],
    "rope_ext": [(*_ROPE, "f32 4", 6, 2, *_CURVE)],
    "rope_ext_back": [(*_ROPE, "f32 4", 6, 2, *_CURVE)],
    "rope_ext_inplace": [(*_ROPE, "f32 4", 6, 2, *_CURVE)],
    "rope_inplace": [(*_ROPE, 6, 2)],
    "rope_multi": [(*_MULTI, "f32 4", 6, _SECTIONS, _MROPE, *_CURVE)],
    "rope_multi_back": [(*_MULTI, "f32 4", 6, _SECTIONS, _MROPE, *_CURVE)],
    "rope_multi_inplace": [(*_MULTI, "f32 4", 6, _SECTIONS, _MROPE, *_CURVE)],
    "rwkv_wkv6": [(_HEADS, _HEADS, _HEADS, "f32 8 2", _HEADS, "f32 128 1")],
    "rwkv_wkv7": [(*[_HEADS] * 6, "f32 128 1")],
    "set": [(*_SET, *_STRIDES, 4)],
    "set_1d": [("f32 48", "f32 8", 16)],
    "set_1d_inplace": [("f32 48", "f32 8", 16)],
    "set_2d": [("f32 8 6", "f32 4 3", 32, 16)],
    "set_2d_inplace": [("f32 8 6", "f32 4 3", 32, 16)],
    "set_inplace": [(*_SET, *_STRIDES, 4)],
    "set_rows": [("f32 8 6", "f32 8 4", "i64 4")],
    "soft_max_ext": [(_PLAIN, "f16 8 6", 0.5, 2.0)],
    "soft_max_ext_back": [(_PLAIN, _PLAIN, 0.5, 0.0)],
    "soft_max_ext_back_inplace": [(_PLAIN, _PLAIN, 0.5, 0.0)],
    "soft_max_ext_inplace": [(_PLAIN, "f16 8 6", 0.5, 2.0)],
    "solve_tri": [("f32 6 6", "f32 8 6", True, True, False)],
    "ssm_conv": [("f32 7 6 2", "f32 4 6")],
    "ssm_scan": [
        ("f32 5 4 3 2", "f32 4 3 6 2", "f32 3 6 2", "f32 1 3", "f32 5 1 6 2", "f32 5 1 6 2",
         "i32 2", 2),
    ],
    "tri": [("f32 6 6", 1)],
    "upscale": [("f32 5 7 3 2", 2, 1)],
    "view_1d": [(_PLAIN, 5, 8)],
    "view_2d": [(_PLAIN, 5, 3, 32, 8)],
    "view_3d": [(_PLAIN, 5, 3, 2, 32, 192, 8)],
    "view_4d": [(_PLAIN, 5, 3, 2, 2, 32, 192, 768, 8)],
    "upscale_ext": [(_PLAIN, 9, 8, 7, 6, 1)],
    "win_part": [("f32 8 12 10", 3)],
    "win_unpart": [("f32 8 3 3 4", 5, 6, 3), ("f32 8 2 2 4", 3, 4, 2)],
}  # fmt: skip


def samples_of(method: str) -> list[Sample]:
    """Arguments that a constructor accepts."""
    if method in SAMPLES:
        return SAMPLES[method]
    kinds = [str(p.annotation) for p in _parameters(method)]
    numbers = itertools.count(1)
    given = {"Tensor": lambda: _PLAIN, "TypeLike": lambda: "f16", "bool": lambda: True,
             "enums": lambda: 1, "float": lambda: next(numbers) / 2}  # fmt: skip
    words = [re.split(r"\W", kind)[0] for kind in kinds]
    return [tuple(given.get(word, lambda: next(numbers))() for word in words)]


def call(
    ctx: ggml.Context, method: str, sample: Sample, optional: bool = True
) -> tuple[ggml.Tensor, dict[str, Any]]:
    """The node that a constructor makes of a sample, and the arguments by name. Without `optional`
    it gets no tensor that may be absent."""
    given = {}
    for parameter, value in zip(_parameters(method), sample, strict=True):
        if str(parameter.annotation).startswith("Tensor"):
            type_, *ne = value.split()
            absent = not optional and "None" in str(parameter.annotation)
            value = None if absent else ctx.new_tensor(type_, *map(int, ne))
        elif parameter.name == "max_bias" and not optional:
            value = 0.0  # others need a mask
        given[parameter.name] = value
    if method.startswith("opt_step"):
        given["a"].set_param()
    return getattr(ctx, method)(**given), given


def _parameters(method: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(Ops, method)).parameters.values())[1:]

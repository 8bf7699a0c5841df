"""How much arithmetic an op takes: an estimate from its shapes, documented in docs/FLOPS.md.

A multiplication, an addition and any other function of one number count one each. Moving numbers
counts nothing. For matrix products, convolutions, attention and the recurrent ops the formulas are
those of upstream's test-backend-ops, where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from .record import VIEW_OPS, TensorRecord

# Ops that only move, make or hide numbers.
FREE = VIEW_OPS | {
    "NONE", "DUP", "CPY", "CONT", "SET", "GET_ROWS", "SET_ROWS", "REPEAT", "CONCAT", "PAD",
    "PAD_REFLECT_1D", "ROLL", "TRI", "DIAG", "DIAG_MASK_INF", "DIAG_MASK_ZERO", "FILL", "ARANGE",
    "IM2COL", "IM2COL_3D", "WIN_PART", "WIN_UNPART", "GET_REL_POS",
    "CUSTOM", "MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3",  # what these do is not known
}  # fmt: skip

# Operations for each element of the result; 1 for every op that is not in these tables.
PER_ELEMENT = {
    "NORM": 5, "GROUP_NORM": 5, "RMS_NORM": 3, "L2_NORM": 3, "RMS_NORM_BACK": 6,
    "SOFT_MAX": 5, "SOFT_MAX_BACK": 4, "ROPE": 3, "ROPE_BACK": 3, "GLU": 2, "SILU_BACK": 5,
    "ADD_REL_POS": 2,
    "OPT_STEP_ADAMW": 12, "OPT_STEP_SGD": 4,
}  # fmt: skip

# Operations for each element of src[0].
PER_SOURCE_ELEMENT = {
    "SUM": 1, "SUM_ROWS": 1, "MEAN": 1, "CUMSUM": 1, "ARGMAX": 1, "COUNT_EQUAL": 1,
    "REPEAT_BACK": 1, "GET_ROWS_BACK": 1, "IM2COL_BACK": 1, "COL2IM_1D": 1, "POOL_2D_BACK": 1,
    "CROSS_ENTROPY_LOSS": 5, "CROSS_ENTROPY_LOSS_BACK": 6,
}  # fmt: skip

_Sources = Sequence[TensorRecord]


def flops(t: TensorRecord, sources: _Sources) -> int:
    """The estimated floating-point operations of computing `t`. `sources` are its sources in order,
    without empty ones."""
    if t.op in FREE:
        return 0
    try:
        if t.op in PER_SOURCE_ELEMENT:
            return PER_SOURCE_ELEMENT[t.op] * prod(sources[0].ne)
        if t.op in _FORMULAS:
            return _FORMULAS[t.op](t, sources)
    except (
        IndexError,
        ValueError,
    ):  # a tensor made by hand, without all its sources
        pass
    return PER_ELEMENT.get(t.op, 1) * prod(t.ne)


def _mul_mat(t: TensorRecord, s: _Sources) -> int:
    return 2 * s[0].ne[0] * prod(t.ne)


def _out_prod(t: TensorRecord, s: _Sources) -> int:
    return 2 * s[0].ne[1] * prod(t.ne)


def _flash_attn(t: TensorRecord, s: _Sources) -> int:
    q, k, v = s[:3]
    return 2 * prod(q.ne[1:]) * (k.ne[0] + v.ne[0]) * k.ne[1]


def _flash_attn_back(t: TensorRecord, s: _Sources) -> int:
    return _flash_attn(t, s) * 5 // 2  # five products rather than two


def _conv_2d(t: TensorRecord, s: _Sources) -> int:
    return (2 * prod(s[0].ne[:3]) - 1) * prod(t.ne)


def _conv_3d(t: TensorRecord, s: _Sources) -> int:
    channels = t.op_params[9] if len(t.op_params) > 9 else 1
    return (2 * prod(s[0].ne[:3]) * channels - 1) * prod(t.ne)


def _conv_2d_dw(t: TensorRecord, s: _Sources) -> int:
    return 2 * prod(s[0].ne[:2]) * prod(t.ne)


def _conv_transpose_1d(t: TensorRecord, s: _Sources) -> int:
    return 2 * prod(s[0].ne) * s[1].ne[0]


def _conv_transpose_2d(t: TensorRecord, s: _Sources) -> int:
    return 2 * prod(s[0].ne) * s[1].ne[0] * s[1].ne[1] * s[1].ne[3]


def _pool(t: TensorRecord, s: _Sources) -> int:
    # op_params: the kind, then the window
    window = t.op_params[1:3] if t.op == "POOL_2D" else t.op_params[1:2]
    return prod(window) * prod(t.ne)


def _sorted(t: TensorRecord, s: _Sources) -> int:
    return prod(s[0].ne) * (s[0].ne[0] - 1).bit_length()


def _ssm_conv(t: TensorRecord, s: _Sources) -> int:
    return 2 * s[1].ne[0] * prod(t.ne)


def _ssm_scan(t: TensorRecord, s: _Sources) -> int:
    state, x = s[:2]
    return 5 * state.ne[0] * prod(x.ne)  # per state: decay, input, their sum, two for the result


def _gated_delta_net(t: TensorRecord, s: _Sources) -> int:
    v = s[2]
    return (4 + 2 * v.ne[0]) * prod(v.ne)


def _recurrent(per_state: int) -> Callable[[TensorRecord, _Sources], int]:
    # Each head has a square state of the head's size, which each token changes.
    return lambda t, s: per_state * s[0].ne[0] * prod(s[0].ne)


def _solve_tri(t: TensorRecord, s: _Sources) -> int:
    a, b = s[:2]
    return a.ne[0] * (a.ne[0] + 1) * b.ne[0] * prod(a.ne[2:])


def _lightning_indexer(t: TensorRecord, s: _Sources) -> int:
    q, k = s[:2]
    return ((2 * q.ne[0] + 2) * q.ne[1] + 1) * k.ne[2] * q.ne[2] * q.ne[3]


_FORMULAS: dict[str, Callable[[TensorRecord, _Sources], int]] = {
    "MUL_MAT": _mul_mat,
    "MUL_MAT_ID": _mul_mat,
    "OUT_PROD": _out_prod,
    "FLASH_ATTN_EXT": _flash_attn,
    "FLASH_ATTN_BACK": _flash_attn_back,
    "CONV_2D": _conv_2d,
    "CONV_3D": _conv_3d,
    "CONV_2D_DW": _conv_2d_dw,
    "CONV_TRANSPOSE_1D": _conv_transpose_1d,
    "CONV_TRANSPOSE_2D": _conv_transpose_2d,
    "POOL_1D": _pool,
    "POOL_2D": _pool,
    "ARGSORT": _sorted,
    "TOP_K": _sorted,
    "ACC": lambda t, s: prod(s[1].ne),
    "SSM_CONV": _ssm_conv,
    "SSM_SCAN": _ssm_scan,
    "GATED_DELTA_NET": _gated_delta_net,
    "GATED_LINEAR_ATTN": _recurrent(5),
    "RWKV_WKV6": _recurrent(6),
    "RWKV_WKV7": _recurrent(8),
    "SOLVE_TRI": _solve_tri,
    "LIGHTNING_INDEXER": _lightning_indexer,
    "DSV4_HC_PRE": lambda t, s: 2 * prod(s[0].ne),
    "DSV4_HC_POST": lambda t, s: 2 * prod(t.ne),
}

"""The rest of ops.py: convolutions, pooling, images, sorting, recurrent state."""

from __future__ import annotations

from .call import Call, Operand
from .params import Get, OpParams, Row, Value, has, kind, ne, out_type, param, real, rename

_POOLS = ("max", "avg")
_MODES = ("nearest", "bilinear", "bicubic")
_FLAGS = {1 << 8: "align_corners", 1 << 9: "antialias"}


def _numbers(names: str, first: int = 0) -> dict[str, Get]:
    """Parameters of the op by name, one after another."""
    return {name: param(first + i) for i, name in enumerate(names.split())}


# ---- convolutions: source 0 is the kernel, source 1 the input


def _channels_first(call: Call) -> Value:
    straight = (0, 1, 2, 3)
    return int(call.source(0).order != straight or call.source(1).order != straight)


def _one_step(row: Row) -> None:
    for name in ("stride", "padding", "dilation"):
        row[f"{name}0"] = row.pop(name)


_IM2COL = OpParams(
    same={"type_input": kind(1), "type_kernel": kind(0), "dst_type": out_type, "is_2D": param(6)},
    size={"ne_input": ne(1), "ne_kernel": ne(0)},
    soft=_numbers("s0 s1 p0 p1 d0 d1"),
)
_IM2COL_3D = OpParams(
    same={"type_input": kind(1), "type_kernel": kind(0), "dst_type": out_type},
    size={"ne_input": lambda c: _input_3d(c.source(1)), "ne_kernel": ne(0)},
    soft=_numbers("s0 s1 s2 p0 p1 p2 d0 d1 d2 IC") | {"v": lambda c: int(not _plain(c))},
    default={"v": 0},
)


def _plain(call: Call) -> bool:
    return call.source(1).contiguous


def _input_3d(source: Operand) -> Value:
    # The test's view leaves out two elements of each dimension.
    return source.ne if source.contiguous or source.whole is None else source.whole


_CONV_2D = OpParams(
    same={"type_kernel": kind(0), "cwhn": _channels_first},
    size={"ne_input": ne(1), "ne_kernel": ne(0)},
    soft=_numbers("stride0 stride1 padding0 padding1 dilation0 dilation1"),
    default={"type_kernel": "f32"},
)
_CONV_2D_DW = OpParams(
    same={"type_kernel": kind(0), "cwhn": _channels_first},
    size={"ne_input": ne(1), "ne_kernel": ne(0)},
    soft={"stride0": param(0), "padding0": param(2), "dilation0": param(4)},
    default={"type_kernel": "f32"},
    tidy=_one_step,
)
_CONV_3D = OpParams(
    same={"type_kernel": kind(0)},
    size={
        "N": param(10),
        "IC": param(9),
        "OC": param(11),
        **{name: ne(1, i) for i, name in enumerate(("IW", "IH", "ID"))},
        **{name: ne(0, i) for i, name in enumerate(("KW", "KH", "KD"))},
    },
    soft=_numbers("s0 s1 s2 p0 p1 p2 d0 d1 d2"),
)
_CONV_TRANSPOSE_1D = OpParams(
    size={"ne_input": ne(1), "ne_kernel": ne(0)}, soft=_numbers("s0 p0 d0")
)
_CONV_TRANSPOSE_2D = OpParams(
    same={"kernel_type": kind(0)},
    size={"ne_input": ne(1), "ne_kernel": ne(0)},
    soft={"stride": param(0)},
    default={"kernel_type": "f16"},
)
_COL2IM = OpParams(
    same={"type": kind(0)},
    size={
        "K": lambda c: c.source(0).ne[0] // c.params[1],
        "OC": param(1),
        "T_in": ne(0, 1),
    },
    soft={"s0": param(0), "p0": param(2)},
)

# ---- pooling, images


def _pool(call: Call) -> Value:
    return _POOLS[call.params[0]]


def _pool_op(names: str) -> OpParams:
    return OpParams(
        same={"type_input": kind(0), "pool_type": _pool},
        size={"ne_input": ne(0), **_numbers(names, 1)},
    )


def _mode(call: Call) -> Value:
    return _mode_name(call.params[0])


def _mode_name(number: int) -> str:
    flags = [name for bit, name in _FLAGS.items() if number & bit]
    return "|".join([_MODES[number & 0xFF], *flags])


def _upscaled(row: Row) -> None:
    mode, flags = row["mode"], row.pop("flags", "none")
    if isinstance(mode, int):  # a combination without a name
        row["mode"] = _mode_name(mode)
    elif flags != "none":
        row["mode"] = f"{mode}|{flags}"
    factor, shape = row.pop("scale_factor", None), row["ne"]
    assert isinstance(shape, tuple)
    if row.get("transpose"):
        row["ne"] = shape = (shape[1], shape[0], *shape[2:])
    if isinstance(factor, int):
        row["ne_tgt"] = (shape[0] * factor, shape[1] * factor, *shape[2:])


_UPSCALE = OpParams(
    same={"type": kind(0), "mode": _mode},
    size={"ne": ne(0), "ne_tgt": lambda c: c.out.ne},
    soft={"transpose": lambda c: int(c.source(0).order == (1, 0, 2, 3))},
    default={"transpose": 0},
    tidy=_upscaled,
)


def _padded(row: Row) -> None:
    rename(pad_0="rp0", pad_1="rp1")(row)
    for side in ("lp0", "lp1", "lp2", "lp3", "rp2", "rp3"):
        row.setdefault(side, 0)
    row["left"] = int(any(row[side] for side in ("lp0", "lp1", "lp2", "lp3")))
    if "tfrm" in row:
        row["v"] = row["tfrm"]


def _pad_layout(call: Call) -> Value:
    a = call.source(0)
    return 0 if a.contiguous else 1 if a.order == (0, 1, 2, 3) else 2


_PAD = OpParams(
    same={
        "type": kind(0),
        "circular": param(8),
        "left": lambda c: int(any(c.params[i] for i in (0, 2, 4, 6))),
        "v": _pad_layout,
    },
    size={"ne_a": lambda c: _pad_whole(c.source(0))},
    soft=_numbers("lp0 rp0 lp1 rp1 lp2 rp2 lp3 rp3"),
    default={"circular": 0, "v": 0},
    tidy=_padded,
)


def _pad_whole(source: Operand) -> Value:
    if source.contiguous:
        return source.ne
    if source.order != (0, 1, 2, 3):
        return tuple(source.ne[i] for i in source.order)
    whole = source.whole
    halved = whole and all(b == (a + 1) // 2 for a, b in zip(whole, source.ne, strict=True))
    return whole if whole and halved else source.ne


def _first_two(row: Row) -> None:
    """The test names four dimensions but uses two."""
    shape = row["ne_a"]
    assert isinstance(shape, tuple)
    row["ne_a"] = (*shape[:2], 1, 1)


_REFLECT = OpParams(
    same={"type": kind(0)},
    size={"ne_a": ne(0)},
    soft={"pad_0": param(0), "pad_1": param(1)},
    tidy=_first_two,
)
_ROLL = OpParams(
    soft={
        "shift0": param(0),
        "shift1": param(1),
        "shift3": param(2),
        "shift4": param(3),
        "permute": lambda c: int(c.source(0).order != (0, 1, 2, 3)),
    },
    default={"permute": 0},
)
_TIMESTEP = OpParams(same={"type": kind(0)}, size={"ne_a": ne(0), "dim": param(0)})
_ARANGE = OpParams(
    same={"type": out_type}, soft={"start": real(0), "stop": real(1), "step": real(2)}
)
_SOLVE_TRI = OpParams(same={"type": kind(0)}, size={"ne_lhs": ne(0), "ne_rhs": ne(1)})


def _compared(row: Row) -> None:
    """The test counts over the argmax of the tensor in its row."""
    shape = row["ne"]
    assert isinstance(shape, tuple)
    row["ne"] = (shape[1], shape[2], shape[3], 1)


_COUNT_EQUAL = OpParams(size={"ne": ne(0)}, tidy=_compared)


# ---- sorting

_ARGSORT = OpParams(same={"type": kind(0)}, size={"ne": ne(0)}, soft={"order": param(0)})
_TOP_K = OpParams(same={"type": kind(0)}, size={"ne": ne(0), "k": lambda c: c.out.ne[0]})


# ---- state


def _tokens_in(source: int, dim: int, states: int) -> Get:
    """Tokens per sequence: all tokens, divided by the number of sequences in the state."""
    return lambda c: c.source(source).ne[dim] // c.source(states).ne[1]


def _linear_attention(states: int) -> OpParams:
    return OpParams(
        same={"type": kind(0), "head_size": ne(0, 0)},
        size={
            "head_count": ne(0, 1),
            "n_seq_tokens": _tokens_in(0, 2, states),
            "n_seqs": ne(states, 1),
        },
    )


_DELTA_NET = OpParams(
    same={"type": kind(0), "head_size": ne(0, 0), "kda": lambda c: int(c.source(3).ne[0] > 1)},
    size={
        "head_count": ne(0, 1),
        "n_seq_tokens": ne(0, 2),
        "n_seqs": ne(0, 3),
        "v_repeat": lambda c: c.source(2).ne[1] // c.source(0).ne[1],
        "K": lambda c: max(1, c.params[0]),
    },
    soft={"permuted": lambda c: int(c.source(2).order != (0, 1, 2, 3))},
    default={"K": 1},
)
_SSM_CONV = OpParams(same={"type": kind(0)}, size={"ne_a": ne(0), "ne_b": ne(1)})
_SSM_SCAN = OpParams(
    same={"type": kind(0), "d_state": ne(0, 0), "head_dim": ne(0, 1)},
    size={
        "n_head": ne(0, 2),
        "n_group": ne(4, 1),
        "n_seq_tokens": ne(1, 2),
        "n_seqs": ne(1, 3),
        "K": lambda c: max(1, c.params[0]),
    },
    default={"K": 1},
)
_HC_COMB = OpParams(size={"n_tokens": ne(0, 1), "n_iter": param(1)})
_HC_PRE = OpParams(
    same={"gated": param(1)},
    size={"n_embd": ne(0, 0), "n_hc": ne(0, 1), "n_tokens": ne(0, 2)},
    default={"gated": 0, "n_hc": 4},
)
_HC_POST = OpParams(
    same={"identity": lambda c: int(not has(3)(c))},
    size={"n_embd": ne(0, 0), "n_tokens": ne(0, 1)},
    default={"identity": 0},
)

MORE_OPS: dict[str, OpParams] = {
    "IM2COL": _IM2COL,
    "IM2COL_3D": _IM2COL_3D,
    "CONV_2D": _CONV_2D,
    "CONV_2D_DW": _CONV_2D_DW,
    "CONV_3D": _CONV_3D,
    "CONV_TRANSPOSE_1D": _CONV_TRANSPOSE_1D,
    "CONV_TRANSPOSE_2D": _CONV_TRANSPOSE_2D,
    "COL2IM_1D": _COL2IM,
    "POOL_1D": _pool_op("k0 s0 p0"),
    "POOL_2D": _pool_op("k0 k1 s0 s1 p0 p1"),
    "UPSCALE": _UPSCALE,
    "PAD": _PAD,
    "PAD_REFLECT_1D": _REFLECT,
    "ROLL": _ROLL,
    "TIMESTEP_EMBEDDING": _TIMESTEP,
    "ARANGE": _ARANGE,
    "SOLVE_TRI": _SOLVE_TRI,
    "COUNT_EQUAL": _COUNT_EQUAL,
    "ARGSORT": _ARGSORT,
    "TOP_K": _TOP_K,
    "RWKV_WKV6": _linear_attention(5),
    "RWKV_WKV7": _linear_attention(6),
    "GATED_LINEAR_ATTN": _linear_attention(4),
    "GATED_DELTA_NET": _DELTA_NET,
    "SSM_CONV": _SSM_CONV,
    "SSM_SCAN": _SSM_SCAN,
    "DSV4_HC_COMB": _HC_COMB,
    "DSV4_HC_PRE": _HC_PRE,
    "DSV4_HC_POST": _HC_POST,
}

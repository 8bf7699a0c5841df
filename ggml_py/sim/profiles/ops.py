"""The parameters of upstream's tests for each op, and where a call has them.

The source is tests/test-backend-ops.cpp: a row of docs/ops/*.csv is what a test case prints about
itself. An op that is not listed here has no rows to compare a call with.
"""

from __future__ import annotations

from .call import Call, block_size
from .copy_ops import COPY_OPS
from .other_ops import MORE_OPS
from .params import (
    OpParams,
    Row,
    Value,
    before_halving,
    has,
    inplace,
    kind,
    ne,
    nonzero,
    order,
    over,
    param,
    real,
    rename,
    strided,
    transposed,
)

_IDENTITY = (0, 1, 2, 3)


# ---- matrices


def _batches(call: Call) -> Value:
    return call.source(0).ne[2:]


def _repeats(call: Call) -> Value:
    return over(call.source(1).ne[2:], call.source(0).ne[2:])


def _row_in_memory(call: Call) -> Value:
    a = call.source(0)
    return a.row if a.order == _IDENTITY and a.row != a.ne[0] else 0


def _rows_in_memory(call: Call) -> Value:
    a = call.source(0)
    rows = a.nb[2] // a.nb[1]
    return rows if a.order == _IDENTITY and a.ne[2] > 1 and rows != a.ne[1] else 0


def _repeated(call: Call) -> Value:
    return tuple(int(n > 1) for n in over(call.source(1).ne[2:], call.source(0).ne[2:]))


def _note_repeated(row: Row) -> None:
    nr = row["nr"]
    assert isinstance(nr, tuple)
    row["repeated"] = tuple(int(n > 1) for n in nr)
    k = row.get("k", 0)
    assert isinstance(k, int)
    row.setdefault("k_v", 2 * k if row.get("v") else 0)  # what tests did before they had k_v


_PRODUCT = OpParams(
    same={"type_a": kind(0), "type_b": kind(1), "repeated": _repeated},
    size={
        "m": ne(0, 1),
        "n": ne(1, 1),
        "k": ne(0, 0),
        "bs": _batches,
        "nr": _repeats,
        "k_v": _row_in_memory,
        "m_v": _rows_in_memory,
    },
    soft={"per": order(0)},
    default={"m_v": 0},
    tidy=_note_repeated,
)


def _note_precision(row: Row) -> None:
    """Above the largest f16, the test requires that source 1 is not rounded to f16."""
    amax, largest, prec_f32 = row.get("amax", 1.0), 65504, 10
    row["b_prec"] = prec_f32 if isinstance(amax, (int, float)) and amax > largest else 0


_PRODUCT_ID = OpParams(
    same={"type_a": kind(0), "type_b": kind(1), "b_prec": param(3)},
    size={
        "n_mats": ne(0, 2),
        "n_used": ne(2, 0),
        "m": ne(0, 1),
        "n": ne(2, 1),
        "k": ne(0, 0),
        "m_v": _rows_in_memory,
    },
    soft={"b": lambda c: int(c.source(1).ne[1] == 1 and c.source(2).ne[0] > 1)},
    default={"m_v": 0},
    tidy=_note_precision,
)
_OUT_PRODUCT = OpParams(
    same={
        "type_a": kind(0),
        "type_b": kind(1),
        "repeated": _repeated,
        "trans_b": transposed(1),
    },
    size={"m": ne(0, 0), "n": ne(1, 0), "k": ne(0, 1), "bs": _batches, "nr": _repeats},
    tidy=_note_repeated,
)


# ---- attention


def _heads_padded(row: Row) -> None:
    rename(type_KV="type_K")(row)
    row.setdefault("type_V", row["type_K"])
    # The test pads head sizes to whole blocks.
    for head, type_ in (("hsk", "type_K"), ("hsv", "type_V")):
        block, size = block_size(str(row[type_])), row[head]
        assert isinstance(size, int)
        row[head] = -(-size // block) * block
    for name in ("max_bias", "logit_softcap"):
        row[name] = int(row[name] != 0)
    nr = row["nr23"]
    assert isinstance(nr, tuple)
    row["streams"] = int(nr[1] > 1)
    row["prec"] = {"def": 0, "f32": 10}.get(str(row.get("prec", "f32")), 0)


_ATTENTION = OpParams(
    same={
        "type_K": kind(1),
        "type_V": kind(2),
        "hsk": ne(1, 0),
        "hsv": ne(2, 0),
        "mask": has(3),
        "sinks": has(4),
        "max_bias": nonzero(1),
        "logit_softcap": nonzero(2),
        "streams": lambda c: int(c.source(0).ne[3] > 1),
    },
    size={
        "nh": ne(1, 2),
        "nr23": lambda c: (c.source(0).ne[2] // c.source(1).ne[2], c.source(0).ne[3]),
        "kv": ne(1, 1),
        "nb": ne(0, 1),
    },
    soft={
        "prec": param(3),
        "permute": order(0),
        "kv_view": strided(1),
        "n_kv_max": param(4),
    },
    default={"sinks": 0, "kv_view": 1, "n_kv_max": 0},
    tidy=_heads_padded,
)


def _mask_ne(call: Call) -> Value:
    return call.source(1 if call.has(1) else 0).ne


def _mask_kind(call: Call) -> Value:
    return call.source(1).type if call.has(1) else "none"


def _no_mask_no_kind(row: Row) -> None:
    if not row["mask"]:
        row["m_prec"] = "none"
        full, nr = row["ne"], row.get("nr23", (1, 1))
        assert isinstance(full, tuple) and isinstance(nr, tuple)
        row["ne"] = (full[0], full[1], full[2] * nr[0], full[3] * nr[1])
        row["nr23"] = (1, 1)


_SOFT_MAX = OpParams(
    same={"type": kind(0), "mask": has(1), "m_prec": _mask_kind, "sinks": has(2)},
    size={
        "ne": _mask_ne,
        "nr23": lambda c: over(c.source(0).ne[2:], c.source(1 if c.has(1) else 0).ne[2:]),
    },
    soft={"scale": real(0), "max_bias": real(1), "inplace": inplace},
    default={"sinks": 0, "nr23": (1, 1), "inplace": 0, "m_prec": "f32"},
    tidy=_no_mask_no_kind,
)
_SOFT_MAX_BACK = OpParams(
    same={"type": kind(0), "max_bias": nonzero(1)},
    size={"ne": ne(0)},
    soft={"scale": real(0)},
    tidy=lambda row: row.update(max_bias=int(row["max_bias"] != 0)),
)


def _rope_dims(call: Call) -> Value:
    vision = 24
    return call.params[1] * (2 if call.params[2] == vision else 1)


def _rope_view(call: Call) -> Value:
    a = call.source(0)
    if a.contiguous or a.whole is None:
        return int(not a.contiguous)
    return 2 if a.whole == (2 * a.ne[0], *a.ne[1:]) else 1


_ROPE = OpParams(
    same={"type": kind(0), "mode": param(2)},
    size={"ne_a": ne(0), "n_dims": _rope_dims},
    soft={
        "fs": real(6),
        "ef": real(7),
        "af": real(8),
        "ff": has(2),
        "v": _rope_view,
        "inplace": inplace,
        "n_offs": param(15),
    },
    default={"inplace": 0, "n_offs": 0},
)
_INDEXER = OpParams(
    same={"hsk": ne(0, 0), "type_K": kind(1)},
    size={"nh": ne(0, 1), "kv": ne(1, 2), "nb": ne(0, 2), "ns": ne(0, 3), "nm": ne(3, 3)},
)


# ---- element by element


def _operands(row: Row) -> None:
    row.setdefault("type_b", row["type"])
    shape = row["ne"]
    if row.get("src_overlap") and isinstance(shape, tuple):  # two views of two thirds
        row["ne"] = (*shape[:3], 2 * (shape[3] // 3))


_BINARY = OpParams(
    same={
        "type": kind(0),
        "type_b": kind(1),
        "perm1": lambda c: int(c.source(1).order != _IDENTITY),
    },
    size={"ne": ne(1), "nr": lambda c: over(c.source(0).ne, c.source(1).ne)},
    default={"perm1": 0},
    tidy=_operands,
)
_UNARY = OpParams(
    same={"type": kind(0), "v": strided(0)},
    size={"ne_a": ne(0)},
    default={"v": 0},
    tidy=rename(ne="ne_a"),
)
_GLU = OpParams(
    same={"type": kind(0), "v": strided(0), "split": has(1)},
    size={"ne_a": ne(0)},
    soft={"swapped": param(1)},
    default={"split": 0, "swapped": 0},
)
_GLU_LIMITED = OpParams(same={"type": kind(0), "v": strided(0)}, size={"ne_a": ne(0)})


def _summed(row: Row) -> None:
    shape, turn = row["ne"], row.get("permute", 0)
    assert isinstance(shape, tuple)
    if row.get("slice"):
        row["ne"] = (*shape[:2], shape[2] // 2, shape[3] - 1)
    row["v"] = int(bool(turn or row.get("slice")))
    # A row has the arguments of permute, or only a flag that there are some.
    row["permute"] = turn if isinstance(turn, tuple) else (0, 2, 3, 1) if turn else _IDENTITY


_SUM = OpParams(
    same={"type": kind(0), "v": strided(0)},
    size={"ne": lambda c: tuple(c.source(0).ne[i] for i in c.source(0).order)},
    soft={"permute": order(0)},
    tidy=_summed,
)
_PLAIN = OpParams(same={"type": kind(0)}, size={"ne": ne(0)})
_SCALE = OpParams(
    same={"type": kind(0), "bias": nonzero(1)},
    size={"ne": ne(0)},
    soft={"scale": real(0), "inplace": inplace},
    default={"bias": 0, "inplace": 0},
    tidy=lambda row: row.update(bias=int(row.get("bias", 0) != 0)),
)
_CLAMP = OpParams(
    same={"type": kind(0)},
    size={"ne": ne(0)},
    soft={"v": strided(0), "min": real(0), "max": real(1)},
    default={"v": 0},
)
_LEAKY = OpParams(same={"type": kind(0)}, size={"ne_a": ne(0)}, soft={"negative_slope": real(0)})
_ADD_ID = OpParams(
    same={"type_a": kind(0), "type_b": kind(1)},
    size={
        "n_embd": ne(0, 0),
        "n_experts": ne(1, 1),
        "n_experts_used": ne(0, 1),
        "n_token": ne(0, 2),
    },
)

# ---- norms

_NORM = OpParams(
    same={"type": kind(0), "v": strided(0), "noncontig_rows": transposed(0)},
    size={"ne": lambda c: before_halving(c.source(0))},
    soft={"eps": real(0), "inplace": inplace},
    default={"v": 0, "noncontig_rows": 0, "inplace": 0, "eps": 0.0},
    # Transposed rows are not contiguous either.
    tidy=lambda row: row.update(v=int(bool(row.get("v") or row.get("noncontig_rows")))),
)
_GROUP_NORM = OpParams(
    same={"type": kind(0)}, size={"ne": ne(0), "num_groups": param(0)}, soft={"eps": real(1)}
)
_NORM_BACK = OpParams(same={"type": kind(0)}, size={"ne": ne(0)}, soft={"eps": real(0)})


def _each(op: OpParams, names: str) -> dict[str, OpParams]:
    return dict.fromkeys(names.split(), op)


_SHAPES = _each(
    _PLAIN,
    """
    SQR SQRT LOG SIN COS ARGMAX CUMSUM DIAG DIAG_MASK_INF TRI FILL ADD1 CROSS_ENTROPY_LOSS
    OPT_STEP_ADAMW OPT_STEP_SGD""",
)
_ELEMENTS = _each(
    _UNARY,
    """
    ABS SGN NEG STEP TANH ELU RELU SIGMOID GELU GELU_QUICK SILU HARDSWISH HARDSIGMOID EXP EXPM1
    SOFTPLUS GELU_ERF XIELU FLOOR CEIL ROUND TRUNC""",
)
OPS: dict[str, OpParams] = {
    "MUL_MAT": _PRODUCT,
    "MUL_MAT_HADAMARD": _PRODUCT,
    "MUL_MAT_ID": _PRODUCT_ID,
    "OUT_PROD": _OUT_PRODUCT,
    "FLASH_ATTN_EXT": _ATTENTION,
    "LIGHTNING_INDEXER": _INDEXER,
    "SOFT_MAX": _SOFT_MAX,
    "SOFT_MAX_BACK": _SOFT_MAX_BACK,
    "ROPE": _ROPE,
    "ROPE_BACK": _ROPE,
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), _BINARY),
    **_ELEMENTS,
    **_SHAPES,
    **dict.fromkeys(("SUM", "SUM_ROWS", "MEAN"), _SUM),
    **dict.fromkeys(("REGLU", "GEGLU", "SWIGLU", "GEGLU_ERF", "GEGLU_QUICK"), _GLU),
    **dict.fromkeys(("SWIGLU_OAI", "SWIGLU_CLAMP"), _GLU_LIMITED),
    "SCALE": _SCALE,
    "CLAMP": _CLAMP,
    "LEAKY_RELU": _LEAKY,
    "ADD_ID": _ADD_ID,
    **dict.fromkeys(("NORM", "RMS_NORM", "L2_NORM"), _NORM),
    "GROUP_NORM": _GROUP_NORM,
    "RMS_NORM_BACK": _NORM_BACK,
    "SILU_BACK": _PLAIN,
    "CROSS_ENTROPY_LOSS_BACK": OpParams(same={"type": kind(1)}, size={"ne": ne(1)}),
    **COPY_OPS,
    **MORE_OPS,
}

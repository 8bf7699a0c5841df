"""The part of ops.py for rows, copies and layouts."""

from __future__ import annotations

from .call import Call, Operand, block_size
from .params import (
    Get,
    OpParams,
    Row,
    Value,
    inplace,
    kind,
    ne,
    out_ne,
    out_type,
    over,
    param,
    rename,
    strided,
)

_IDENTITY = (0, 1, 2, 3)


def _whole_dim(source: Operand, dim: int) -> int:
    return source.whole[dim] if source.whole else source.ne[dim]


def _rows_asked(call: Call) -> Value:
    ids = call.source(1)
    return ids.whole[0] - 1 if ids.whole and _part(1)(call) else ids.ne[0]


def _part(index: int) -> Get:
    """Whether a source is a view of a larger tensor."""
    return lambda call: int(call.source(index).whole not in (None, call.source(index).ne))


_GET_ROWS = OpParams(
    same={"type": kind(0)},
    size={"n": ne(0, 0), "m": ne(0, 1), "r": _rows_asked, "be1": ne(0, 2), "be2": ne(0, 3)},
    soft={"v": _part(1), "vs0": _part(0)},
    default={"be2": 1, "vs0": 0},
    tidy=rename(b="be1"),
)
_GET_ROWS_BACK = OpParams(
    same={"type": kind(0)},
    size={
        "n": ne(0, 0),
        "m": lambda c: c.out.ne[1],
        "r": lambda c: _whole_dim(c.source(1), 0),
        "b": ne(1, 1),
    },
    soft={"v": strided(1)},
)
_SET_ROWS = OpParams(
    same={"type_src": kind(0), "type_dst": out_type, "type_idx": kind(1)},
    size={
        "ne": lambda c: (*c.out.ne[:2], *c.source(1).ne[1:3]),
        "nr23": lambda c: over(c.out.ne[2:], c.source(1).ne[1:3]),
        "r": lambda c: _whole_dim(c.source(1), 0),
    },
    soft={"v": strided(0)},
    default={"type_src": "f32", "type_idx": "i64"},
    tidy=rename(type="type_dst"),
)


def _before_permute(call: Call) -> Value:
    a = call.source(0)
    return tuple(a.ne[i] for i in a.order)


def _permutation(call: Call) -> Value:
    """How source 0 was permuted; zeros if it was not, as the tests write it."""
    found = call.source(0).order
    return (0, 0, 0, 0) if found == _IDENTITY else found


def _transposed_or_permuted(call: Call) -> Value:
    return int(call.source(0).order == (1, 0, 2, 3))


def _copied_layout(row: Row) -> None:
    rename(ne="ne_src")(row)
    if row.get("_src_transpose"):
        row["permute_src"] = (1, 0, 2, 3)
    row["dst_alloc"] = int("dst_alloc" in row)


_CPY = OpParams(
    same={"type_src": kind(0), "type_dst": kind(1), "permute_src": _permutation},
    size={"ne_src": _before_permute},
    soft={
        "permute_dst": lambda c: (0, 0, 0, 0) if (o := c.source(1).order) == _IDENTITY else o,
        "dst_alloc": lambda c: int(c.source(1).order == _IDENTITY and not c.source(1).contiguous),
    },
    tidy=_copied_layout,
)


def _cont_layout(row: Row) -> None:
    if any(row.get("permute", ())):  # type: ignore[arg-type]
        row["layout"] = row["permute"]
    elif row.get("use_view_slice"):
        row["layout"] = "slice"
    else:
        row["layout"] = (1, 0, 2, 3)


def _layout(call: Call) -> Value:
    a = call.source(0)
    if a.order != _IDENTITY:
        return a.order
    return "contiguous" if a.contiguous else "slice"


def _cont_ne(call: Call) -> Value:
    a = call.source(0)
    sliced = a.whole and a.order == _IDENTITY and not a.contiguous
    return a.whole if a.whole and sliced else _before_permute(call)


_CONT = OpParams(
    same={"type": kind(0)}, size={"ne": _cont_ne}, soft={"layout": _layout}, tidy=_cont_layout
)
_DUP = OpParams(
    same={"type": kind(0), "permute": _permutation},
    size={"ne": _before_permute},
    default={"permute": (0, 0, 0, 0)},
)
_SET = OpParams(
    same={"type_src": kind(1), "type_dst": kind(0)},
    size={"ne": ne(1)},
    soft={"inplace": inplace},
    default={"inplace": 0},
)
_ACC = OpParams(same={"type": kind(0)}, size={"ne_a": ne(0), "ne_b": ne(1)})


def _gaps(source: Operand) -> int:
    """0 if contiguous, 1 if there are gaps inside planes, 4 if there are gaps only between larger
    parts."""
    if source.contiguous:
        return 0
    ne, nb = source.ne, source.nb
    planes = nb[1] == nb[0] * ne[0] // block_size(source.type) and nb[2] == nb[1] * ne[1]
    return 4 if planes else 1


_CONCAT = OpParams(
    same={"type": kind(0), "dim": param(0)},
    size={"ne_a": ne(0), "ne_b_d": lambda c: c.source(1).ne[c.params[0]]},
    soft={"v": lambda c: _gaps(c.source(0)) | 2 * _gaps(c.source(1))},
    default={"v": 0},
)
_REPEAT = OpParams(
    same={"type": kind(0)}, size={"ne": ne(0), "nr": lambda c: over(c.out.ne, c.source(0).ne)}
)
_REPEAT_BACK = OpParams(
    same={"type": kind(0)},
    size={"ne": out_ne, "nr": lambda c: over(c.source(0).ne, c.out.ne)},
    soft={"v": strided(0)},
    default={"v": 0},
)


COPY_OPS: dict[str, OpParams] = {
    "GET_ROWS": _GET_ROWS,
    "GET_ROWS_BACK": _GET_ROWS_BACK,
    "SET_ROWS": _SET_ROWS,
    "CPY": _CPY,
    "CONT": _CONT,
    "DUP": _DUP,
    "SET": _SET,
    "ACC": _ACC,
    "CONCAT": _CONCAT,
    "REPEAT": _REPEAT,
    "REPEAT_BACK": _REPEAT_BACK,
}

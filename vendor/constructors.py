"""Writes ggml_py/variants/constructor_table.py: where nodes keep their constructor's arguments.

    python -m vendor.constructors       with the default pin's build in the tree

Each constructor is called with samples, and the findings of ggml_py/variants/learn.py on each
result are combined. A constructor that cannot be learnt must have its reason in `LEFT_OUT`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from typing import Any

from ggml_py import Context, GgmlError, enums
from ggml_py.boundary.ffi import BUILD
from ggml_py.graphs.ops import Ops
from ggml_py.trace.record import VIEW_OPS
from ggml_py.variants.constructor import (
    FIXED,
    SHAPE,
    WORD,
    WORDS,
    Argument,
    Constructor,
    plain,
    signature,
)
from ggml_py.variants.learn import learn, methods_of
from ggml_py.variants.making import Maker, Node
from vendor import identity

TARGET = identity.ROOT / "ggml_py" / "variants" / "constructor_table.py"

Sample = tuple[Any, ...]  # arguments in order; "f32 4 3" is a tensor
Table = dict[str, list[Constructor]]  # by op

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
    "conv_2d_direct": [("f32 3 2 4 5", "f32 16 12 4 2", 2, 3, 1, 4, 2, 1)],
    "conv_2d_dw_direct": [("f32 3 2 1 4", "f32 16 12 4 2", 2, 3, 1, 4, 2, 1)],
    "conv_3d_direct": [
        ("f32 3 2 2 6", "f32 16 12 8 4", 2, 3, 1, 1, 4, 2, 2, 1, 3, 2, 2, 3),
        ("f32 3 2 2 10", "f32 16 12 8 15", 2, 3, 1, 1, 4, 2, 2, 1, 3, 5, 3, 2),
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
        ("f16 3 2 4 5", "f32 16 12 4 2", 2, 3, 1, 4, 2, 1, True, "f16"),
        ("f16 3 4 4 5", "f32 16 4 4", 2, 3, 1, 0, 2, 1, True, "f16"),  # may be of 1-D, too
    ],
    "im2col_3d": [("f16 3 2 2 6", "f32 16 12 8 4", 2, 2, 3, 1, 1, 4, 2, 2, 1, 3, "f16")],
    "im2col_back": [("f32 24 7 7 2", "f16 3 2 4 5", [16, 12, 4, 2], 2, 3, 1, 4, 2, 1, True)],
    "lightning_indexer": [("f32 8 4 3", "f32 8 1 5", "f32 4 3", "f16 5 3")],
    "mul_mat_id": [("f32 8 4 3", "f32 8 2 5", "i32 2 5")],
    "repeat_4d": [("f32 2 3 4 5", 2, 6, 12, 20)],
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
    "solve_tri": [("f32 6 6", "f32 8 6", True, True, False)],
    "ssm_conv": [("f32 7 6 2", "f32 4 6")],
    "ssm_scan": [
        ("f32 5 4 3 2", "f32 4 3 6 2", "f32 3 6 2", "f32 1 3", "f32 5 1 6 2", "f32 5 1 6 2",
         "i32 2", 2),
    ],
    "tri": [("f32 6 6", 1)],
    "upscale": [("f32 5 7 3 2", 2, 1)],
    "win_part": [("f32 8 12 10", 3)],
    "win_unpart": [("f32 8 3 3 4", 5, 6, 3), ("f32 8 2 2 4", 3, 4, 2)],
}  # fmt: skip

_SEVERAL = "it makes several nodes"
_SHAPED = "its shape comes from a tensor that the node does not keep"
_PARAM = "its first tensor must be a parameter (set_param)"
# Arguments that upstream so far accepts only one value for.
ONLY = {"conv_transpose_1d": ("p0", "d0"), "solve_tri": ("left", "lower", "uni")}
LEFT_OUT = {
    "conv_1d": _SEVERAL,
    "conv_1d_dw": _SEVERAL,
    "conv_1d_dw_ph": _SEVERAL,
    "conv_1d_ph": _SEVERAL,
    "conv_2d_dw": _SEVERAL,
    "flash_attn_back": "upstream has not finished it: it aborts",
    "get_rows_back": _SHAPED,
    "im2col_back": "its shape is a list of numbers that must fit together",
    "opt_step_adamw": _PARAM,
    "opt_step_sgd": _PARAM,
    "repeat": _SHAPED,
    "repeat_back": _SHAPED,
    "upscale": "the node keeps only the result's sizes, not the scale factor",
}
_VIEW = re.compile(r"view_[1-4]d|reshape(_[1-4]d)?|permute|transpose")


def samples_of(method: str) -> list[Sample]:
    """Arguments that a constructor accepts."""
    if method in SAMPLES:
        return SAMPLES[method]
    takes = signature(method)
    given: dict[str, Any] = {"float": 0.5, "Sequence[int]": [1, 2, 1, 2], "TypeLike": "f16"}
    values = {name: given.get(kind, plain(kind, enums.Type.F32, 1)) for name, kind in takes.kinds}
    return [tuple(values.get(name, _PLAIN) for name in takes.names)]


def table() -> Table:
    """The constructors of each op. Raises ValueError if one is neither learnt nor in `LEFT_OUT`, or
    is in `LEFT_OUT` needlessly."""
    found: dict[str, dict[str, Constructor]] = {}
    missing = []
    for method in (name for name in vars(Ops) if not name.startswith("_") and name != "ptr"):
        op, constructor = ("VIEW", None) if _VIEW.fullmatch(method) else _learnt(method)
        if constructor is not None:
            found.setdefault(op, {})[method] = constructor
        elif op not in VIEW_OPS and (not op or method in methods_of(op, inplace=True)):
            missing.append(method)
    if set(missing) != set(LEFT_OUT):
        raise ValueError(
            f"not learnt: {sorted(set(missing) - set(LEFT_OUT))}; needlessly left out: "
            f"{sorted(set(LEFT_OUT) - set(missing))}"
        )
    return {op: [found[op][m] for m in methods_of(op, inplace=True) if m in found[op]]
            for op in sorted(found)}  # fmt: skip


def _learnt(method: str) -> tuple[str, Constructor | None]:
    """The op that a constructor makes ("" if it refuses its samples), and what was learnt of it."""
    op, found = "", []
    takes = signature(method)
    with Context(reserve=4 << 20) as context, Context(reserve=4 << 20) as scratch:
        for sample in samples_of(method):
            given = dict(zip(takes.names, sample, strict=True))
            sizes = {name: given[name].split() for name in takes.tensors}
            tensors = {name: context.new_tensor(type_, *map(int, ne))
                       for name, (type_, *ne) in sizes.items()}  # fmt: skip
            others = {
                name: enums.Type[given[name].upper()] if kind == "TypeLike" else given[name]
                for name, kind in takes.kinds
            }
            try:
                node = Node.of(getattr(context, method)(**tensors, **others))
            except (GgmlError, OverflowError):
                continue
            op = enums.Op(node.op).name
            row = learn(Maker(node, scratch), method, others)
            found += [(node, row)] if row is not None else []
        return op, _together(found) if found else None


def _together(found: list[tuple[Node, Constructor]]) -> Constructor | None:
    """One constructor as learnt from all its samples. None if an argument cannot be read from a
    node."""
    method, operands, arguments = found[0][1]
    merged = []
    for i in range(len(arguments)):
        one = _argument(method, [(node, row.arguments[i]) for node, row in found])
        if one is None:
            return None
        merged.append(one)
    if any(row.operands != operands or place < 0 for _, row in found for _, place in row.operands):
        raise ValueError(f"{method}: samples lack an operand, or have it at different places")
    return Constructor(method, operands, tuple(merged))


def _argument(method: str, told: list[tuple[Node, Argument]]) -> Argument | None:
    """Where nodes keep an argument, according to all samples."""
    name = told[0][1].name
    free = [one for _, one in told if one.where != FIXED]
    if len({(one.where, one.at[:1]) for one in free}) > 1:
        raise ValueError(f"{method}: samples disagree on {name}: {free}")
    if free and free[0].where == WORD:
        first = free[0].at[0]
        return Argument(name, WORD, (first, *sorted({w for one in free for w in one.at} - {first})))
    if free:
        return free[0]
    values = [one.at[0] for _, one in told]
    if name in ONLY.get(method, ()):
        return Argument(name, FIXED, (values[0],))
    if len(set(map(str, values))) > 1:  # never varied alone: where do all samples keep it?
        for where, n in ((WORD, WORDS), (SHAPE, 4)):
            for at in range(n):
                kept = [(node.params if where == WORD else node.ne)[at] for node, _ in told]
                if kept == values:
                    return Argument(name, where, (at,))
    return None


def text(found: Table) -> str:
    """The file's text."""
    release = BUILD["ggml_version"]
    lines = [
        f'"""GENERATED by vendor/constructors.py from ggml {release}; do not edit."""\n',
        "from .constructor import Argument as A",
        "from .constructor import Constructor\n",
        f'RELEASE = "{release}"\n',
        "CONSTRUCTORS: dict[str, tuple[Constructor, ...]] = {",
    ]
    for op, constructors in found.items():
        lines.append(f'    "{op}": (')
        for one in constructors:
            made = f"        Constructor({_quoted(one.method)}, {_quoted(one.operands)}"
            if len(made) > 96:
                made = made.replace(", ((", ",\n            ((", 1)
            lines.append(f"{made}, (" if one.arguments else f"{made}),")
            arguments = [f"A{_quoted(tuple(a))}," for a in one.arguments]
            lines += textwrap.wrap(
                " ".join(a.replace(" ", "\0") for a in arguments), 99,
                initial_indent=" " * 12, subsequent_indent=" " * 12, break_long_words=False,
            )  # fmt: skip
            lines += ["        )),"] if one.arguments else []
        lines.append("    ),")
    return "\n".join([*lines, "}  # fmt: skip", ""]).replace("\0", " ")


def _quoted(value: Any) -> str:
    return repr(value).replace("'", '"')


def main() -> None:
    """Writes the table for the build in the tree."""
    TARGET.write_text(text(table()), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()

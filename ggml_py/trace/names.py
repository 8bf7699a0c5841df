"""How answers about a plan name things."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .record import NODE, Capture, TensorRecord

if TYPE_CHECKING:
    from .planned import PlanTensor

# Inputs with a column or a number for each token, by the programs' names.
TOKEN_INPUTS = ("inp_tokens", "inp_embd", "embd", "tokens", "leaf_tokens")


def label(t: PlanTensor) -> str:
    """Its name, with the number in front if ggml made the name up: "node 3 (view)". A name that
    repeats has the op and the number behind it: "Qcur-0 (ROPE, node 12)"."""
    return _label(t.record, t.plan.n_named.get(t.name, 0) > 1)


def short_label(t: PlanTensor) -> str:
    """The same without what tells equal names apart, for tables that show it."""
    return _label(t.record, False)


def label_in(capture: Capture, t: TensorRecord) -> str:
    """The label of a tensor before there is a plan."""
    return _label(t, sum(other.name == t.name for other in capture.tensors) > 1)


def _label(t: TensorRecord, repeats: bool) -> str:
    number = f"node {t.id}" if t.kind == NODE else f"tensor {t.id}"
    if not _is_given(t.name):
        return number + t.name
    return f"{t.name} ({t.op_desc}, {number})" if repeats else t.name


def _is_given(name: str) -> bool:
    return bool(name) and not name.startswith(" ")


def quoted(t: PlanTensor) -> str:
    """The label in quotation marks."""
    return f"'{label(t)}'"


def place(t: PlanTensor) -> str:
    """Its backend; "unknown" if a log or a snapshot does not say."""
    return t.backend or ("no backend" if t.plan.capture.source == "scheduler" else "unknown")


def signature(t: PlanTensor) -> str:
    """ "MUL_MAT(q4_0 [64, 32], f32 [64, 8])"; a leaf is "f32 [64, 8]"."""
    if t.op == "NONE":
        return shape(t)
    return f"{t.record.op_desc}({', '.join(map(shape, t.srcs))})"


def shape(t: PlanTensor) -> str:
    """ "f32 [64, 8]": type and ne without trailing ones; "?" for a tensor of a debug log."""
    if not t.ne:
        return t.type
    ne = list(t.ne)
    while len(ne) > 1 and ne[-1] == 1:
        ne.pop()
    return f"{t.type} {ne}"


def memory(t: PlanTensor) -> str:
    """Where it is, or will be: "CPU memory"."""
    return f"{t.buft.name} memory" if t.buft else f"{t.backend}'s memory"


def counted(n: int, one: str, many: str = "") -> str:
    """ "1 split", "2 splits", "0 copies". `many` is the plural, if it is not `one` with an s."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def joined(names: Iterable[str]) -> str:
    """ "gpu0, BLAS and CPU" """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# --- layers in names


# "ffn_out-3", "Kcur-3 (view)", "blk.3.ffn_up.weight", "cache_k_l3"; v.blk.3., enc.blk.3. too.
_LAYER = re.compile(
    r"(?:^|\.)(?:blk|blocks|layers|h)\.(\d{1,6})\.|(?:-|_l)(\d{1,6})(?= \(|$)", re.ASCII
)
_BLOCK = re.compile(r"blk\.(\d+)\.(.*)", re.DOTALL)
# Only the numbers, to replace them: in names of nodes, and in names of weights too.
_OF_NODE = r"(?<=-)\d+(?=$| )|(?<=_l)\d+(?=$| )"
NODE_LAYER_NUMBER = re.compile(_OF_NODE)
LAYER_NUMBER = re.compile(_OF_NODE + r"|(?<=\bblk\.)\d+(?=\.)")


_CACHE = re.compile(r"cache_[kvrs]_l\d+")


def layer_in(name: str) -> int | None:
    """The number of the layer in a name, or None."""
    found = _LAYER.search(name)
    return int(found[1] or found[2]) if found else None


def block_of(name: str) -> tuple[str, str] | None:
    """The number of a weight's block, as written, and the rest of its name: ("3", "ffn_up.weight")
    for "blk.3.ffn_up.weight". None for a weight outside the blocks."""
    found = _BLOCK.fullmatch(name)
    return (found[1], found[2]) if found else None


def is_cache(name: str) -> bool:
    """Whether it is the name of a model's cache or states: "cache_k_l3"."""
    return _CACHE.fullmatch(name) is not None


def is_of_file(name: str) -> bool:
    """Whether it is the name of a weight in a model's file: "token_embd.weight"."""
    return block_of(name) is not None or name.endswith((".weight", ".bias"))

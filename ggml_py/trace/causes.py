"""Upstream's cause codes and the stages of its passes: one row each, and nowhere else.

vendor/stages.py generates `native/stages.h` from the stages. The reference scheduler, causes,
explanations, why-not, advice and the readers of logs and files look codes up here. A code without
a row is shown as upstream prints it. C: SET_CAUSE in ggml-backend.cpp
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Stage(NamedTuple):
    """A part of ggml_backend_sched_split_graph: a pass, or a sweep of pass 2."""

    name: str  # of the constant, here and in C++
    number: int  # recorded as `Placement.stage`
    pass_: int
    title: str = ""  # as `Plan.passes` prints it; "" for a stage without a row there
    row: int = -1  # index in `Placement.passes` of the backend after this stage


USER, PASS_1, PASS_2, GPU_DOWN, GPU_UP, REST_DOWN, REST_UP, PASS_3, PASS_4, PASS_5 = STAGE_ROWS = (
    Stage("USER", 0, 0),
    Stage("PASS_1", 10, 1, "1", 0),
    Stage("PASS_2", 20, 2),
    Stage("GPU_DOWN", 21, 2, "2 gpu down", 1),
    Stage("GPU_UP", 22, 2, "2 gpu up", 2),
    Stage("REST_DOWN", 23, 2, "2 rest down", 3),
    Stage("REST_UP", 24, 2, "2 rest up", 4),
    Stage("PASS_3", 30, 3, "3", 5),
    Stage("PASS_4", 40, 4, "4", 6),
    Stage("PASS_5", 50, 5),
)
NOT_KNOWN = -1  # a log does not say which sweep it was
STAGES = {stage.number: stage for stage in STAGE_ROWS if stage.row >= 0}

# Where a chain of causes ends.
PIN, INPUT, MEMORY = "pin", "input flag", "buffer"


class Code(NamedTuple):
    """The meaning of a code for a tensor.

    `text` is a sentence with fields. `backend` and `last` (the last backend) are names, and `who`
    is the witness. `buft` is the memory that the tensor is in. `weight` is the weight that it
    follows; `within` and `memory` are two phrases for the place of that weight. `by` is the author
    of a pin, and `why` a clause with the reason, if one was given. `unsure` is the sentence to use
    when the stage is not known.
    """

    code: str
    pass_: int  # the pass that sets it; 0: before the first
    text: str
    witness: str = ""  # how to find the witness: a key of `cause.WITNESSES`
    root: str = ""  # what a chain of causes ends with here; "": it goes on
    rule: str = ""  # the rule that answers why-not for it: a key of `reasons.RULES`
    numbered: bool = False  # the code ends with the number of a source
    unsure: str = ""


PINNED = Code(
    "usr", 0, "{by} pinned it to {backend} (set_tensor_backend){why}", root=PIN
)  # fmt: skip
ALLOCATED = Code(
    "1.dst", 1, "it is already allocated in {buft}, which {backend} can read",
    root=MEMORY, rule="own memory",
)  # fmt: skip
VIEW_ALLOCATED = Code(
    "1.vsrc", 1, "it is a view of {who}, which is already allocated where {backend} can read it",
    "view", rule="own memory",
)  # fmt: skip
GRAPH_INPUT = Code(
    "1.inp", 1, "it is a graph input; inputs go to the last backend, {last}",
    root=INPUT, rule="input",
)  # fmt: skip
WEIGHT = Code(
    "1.wgt", 1, "it follows its weight {weight}{within}, which {backend} can read",
    "source", rule="weight", numbered=True,
)  # fmt: skip
OFFLOADED = Code(
    "1.off", 1,
    "{backend} offloads it: its weight {weight} is in host memory{memory}, and {backend} has a "
    "higher priority, supports the op and wants it at this batch size",
    "weight", rule="offloaded",
)  # fmt: skip
SPREAD = Code(
    "2.sup", 2,
    "{backend} supports it and spread {direction} to it from its neighbour {who} (sweep of {kind})",
    "neighbour", rule="sweep",
    unsure="{backend} supports it and spread to it from a neighbour, or nothing else placed it",
)  # fmt: skip
MOST_SOURCES = Code(
    "3.best", 3,
    "no neighbour's backend supports it; {backend} does, and can read the most sources",
    rule="most sources",
)  # fmt: skip
UPGRADED = Code(
    "3.upg", 3,
    "moved up to {backend}, which has a higher priority than the backend chosen before, shares its "
    "buffer type, supports the op and can read all sources",
)  # fmt: skip
VIEW = Code(
    "4.vsrc", 4, "it is a view of {who}, so it is where that tensor is", "view", rule="view"
)  # fmt: skip
CONSUMER = Code(
    "4.cur", 4, "nothing placed it earlier, so it goes where its first consumer, {who}, runs",
    "reader", rule="consumer",
)  # fmt: skip
FIRST_ABLE = Code(
    "2.sup", 4, "nothing else placed it, and {backend} is the first backend that supports the op",
    rule="fallback",
)  # fmt: skip
SPLIT_COPY = Code(
    "4.cpy", 5, "a copy of {who} made for a split on {backend}, which cannot read the original",
    "copied",
)  # fmt: skip
INPUT_COPY = Code(
    "6.cpy", 6, "a copy of the graph input {who} for pipeline parallelism", "copied",
    unsure="a graph input, itself the current one of its copies for pipeline parallelism",
)  # fmt: skip

CODES = [
    PINNED, ALLOCATED, VIEW_ALLOCATED, GRAPH_INPUT, WEIGHT, OFFLOADED, SPREAD, MOST_SOURCES,
    UPGRADED, VIEW, CONSUMER, FIRST_ABLE, SPLIT_COPY, INPUT_COPY,
]  # fmt: skip
EXAMPLES = f"{SPREAD.code!r} or '{WEIGHT.code}0'"
# Codes that a log may contain, including those of other releases.
_NUMBERED = "|".join(re.escape(row.code) for row in CODES if row.numbered)
PATTERN = re.compile(rf"{PINNED.code}|({_NUMBERED})\d+|(?!{_NUMBERED})\d\.\w+")


@lru_cache(maxsize=1000)  # a page asks for each tensor
def find(code: str, stage: int = NOT_KNOWN) -> Code | None:
    """The row of a code that was set in `stage`, or None."""
    rows = [row for row in CODES if row.code == code or (row.numbered and is_of(row, code))]
    pass_ = STAGES[stage].pass_ if stage in STAGES else NOT_KNOWN
    return next((row for row in rows if row.pass_ == pass_), rows[0] if rows else None)


def is_of(row: Code, code: str) -> bool:
    """Whether `code` belongs to the row; the number of a source does not matter."""
    return code.startswith(row.code) if row.numbered else code == row.code


def source_of(row: Code, code: str) -> int:
    """The number of the source that a code names; -1 if it is damaged."""
    number = code[len(row.code) :]
    return int(number) if number.isdecimal() else -1


def follows_weight(code: str) -> bool:
    """Whether `code` says that a weight of the node decided."""
    return is_of(WEIGHT, code) or is_of(OFFLOADED, code)


def stage_of_print(code: str) -> int:
    """The stage that set a code, as far as the code alone tells."""
    row = find(code)
    if row is None or row.pass_ == GPU_DOWN.pass_:
        pass_ = int(code[0]) if row is None and code[:1].isdigit() else NOT_KNOWN
    else:
        pass_ = min(row.pass_, PASS_5.pass_)
    known = {s.pass_: s.number for s in (PASS_1, PASS_3, PASS_4, PASS_5)}
    return known.get(pass_, NOT_KNOWN)

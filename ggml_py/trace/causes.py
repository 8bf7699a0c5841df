"""Upstream's cause codes and the stages of its passes: one row each, and nowhere else.

`native/stages.h` is generated from the stages (vendor/stages.py). The reference scheduler, causes,
explanations, why-not, advice and the readers of logs and files look things up here. A code that
has no row is shown as it is printed. C: SET_CAUSE in ggml-backend.cpp
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Stage(NamedTuple):
    """A part of ggml_backend_sched_split_graph: a pass, or a sweep of pass 2."""

    name: str  # the constant's, here and in C++
    number: int  # what is recorded as `Placement.stage`
    pass_: int
    title: str = ""  # what `Plan.passes` prints; "" for a stage that has no row there
    row: int = -1  # of `Placement.passes`: the assignment after it


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
NOT_KNOWN = -1  # a log does not tell which sweep it was
STAGES = {stage.number: stage for stage in STAGE_ROWS if stage.row >= 0}

# Where a chain of causes ends.
PIN, INPUT, MEMORY = "pin", "input flag", "buffer"


class Code(NamedTuple):
    """What a code says about a tensor.

    `text` is a sentence, filled in with `backend`, `who` (the witness), `buft` (where the tensor
    lies), `last` (the last backend), `weight`, `lies` and `lies_and` (the weight it follows, and
    the words for where that is). `unsure` is the sentence where the stage is not known.
    """

    code: str
    pass_: int  # that sets it; 0: before the first
    text: str
    witness: str = ""  # what it follows from: a key of `cause.WITNESSES`
    root: str = ""  # where a chain of causes ends with it
    rule: str = ""  # the rule of why-not that answers for it: a key of `reasons.RULES`
    numbered: bool = False  # the number of a source follows
    unsure: str = ""


PINNED = Code(
    "usr", 0, "the caller pinned it to {backend} (set_tensor_backend)", root=PIN
)  # fmt: skip
ALLOCATED = Code(
    "1.dst", 1, "it is allocated already, in {buft}, which {backend} reads",
    root=MEMORY, rule="own memory",
)  # fmt: skip
VIEW_ALLOCATED = Code(
    "1.vsrc", 1, "it is a view of {who}, which is allocated where {backend} reads it",
    "view", rule="own memory",
)  # fmt: skip
GRAPH_INPUT = Code(
    "1.inp", 1, "it is a graph input; inputs go to the last backend, {last}",
    root=INPUT, rule="input",
)  # fmt: skip
WEIGHT = Code(
    "1.wgt", 1, "it follows its weight {weight}, which {lies_and}{backend} reads",
    "source", rule="weight", numbered=True,
)  # fmt: skip
OFFLOADED = Code(
    "1.off", 1,
    "{backend} offloads it: its weight {weight} is in host memory{lies}, and {backend}, of higher "
    "priority, supports the op and wants it at this batch size",
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
    "no neighbour's backend supports it: {backend} does, and reads most of its sources",
    rule="most sources",
)  # fmt: skip
UPGRADED = Code(
    "3.upg", 3,
    "moved up to {backend}, of higher priority: it shares the buffer type of the backend chosen "
    "before, supports the op and reads all of its sources",
)  # fmt: skip
VIEW = Code(
    "4.vsrc", 4, "a view is where the tensor is that it views, {who}", "view", rule="view"
)  # fmt: skip
CONSUMER = Code(
    "4.cur", 4, "nothing placed it before its first consumer, {who}: it is where that runs",
    "reader", rule="consumer",
)  # fmt: skip
FIRST_ABLE = Code(
    "2.sup", 4, "nothing else placed it: {backend} is the first backend that supports the op",
    rule="fallback",
)  # fmt: skip
SPLIT_COPY = Code(
    "4.cpy", 5, "a copy of {who} made for a split on {backend}, which cannot read the original",
    "copied",
)  # fmt: skip
INPUT_COPY = Code(
    "6.cpy", 6, "a copy of the graph input {who} for pipeline parallelism", "copied",
    unsure="a graph input that is the current one of its copies for pipeline parallelism",
)  # fmt: skip

CODES = [
    PINNED, ALLOCATED, VIEW_ALLOCATED, GRAPH_INPUT, WEIGHT, OFFLOADED, SPREAD, MOST_SOURCES,
    UPGRADED, VIEW, CONSUMER, FIRST_ABLE, SPLIT_COPY, INPUT_COPY,
]  # fmt: skip
EXAMPLES = f"{SPREAD.code!r} or '{WEIGHT.code}0'"
# What a log may have: codes of other releases, too.
_NUMBERED = "|".join(re.escape(row.code) for row in CODES if row.numbered)
PATTERN = re.compile(rf"{PINNED.code}|({_NUMBERED})\d+|(?!{_NUMBERED})\d\.\w+")


def find(code: str, stage: int = NOT_KNOWN) -> Code | None:
    """The row of a code that was set in a stage; None where there is none."""
    rows = [row for row in CODES if row.code == code or (row.numbered and is_of(row, code))]
    pass_ = STAGES[stage].pass_ if stage in STAGES else NOT_KNOWN
    return next((row for row in rows if row.pass_ == pass_), rows[0] if rows else None)


def is_of(row: Code, code: str) -> bool:
    """Whether `code` is of that row, with or without the number of a source."""
    return code.startswith(row.code) if row.numbered else code == row.code


def source_of(row: Code, code: str) -> int:
    """The number of the source that a code names; -1 where it is damaged."""
    number = code[len(row.code) :]
    return int(number) if number.isdecimal() else -1


def follows_weight(code: str) -> bool:
    """Whether a weight of the node's decided."""
    return is_of(WEIGHT, code) or is_of(OFFLOADED, code)


def stage_of_print(code: str) -> int:
    """The stage in which a code was set, as far as the code alone tells."""
    row = find(code)
    if row is None or row.pass_ == GPU_DOWN.pass_:
        pass_ = int(code[0]) if row is None and code[:1].isdigit() else NOT_KNOWN
    else:
        pass_ = min(row.pass_, PASS_5.pass_)
    known = {s.pass_: s.number for s in (PASS_1, PASS_3, PASS_4, PASS_5)}
    return known.get(pass_, NOT_KNOWN)

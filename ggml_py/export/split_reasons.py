"""Why a graph has its splits, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..trace.answers.remedy import Remedy
from ..trace.answers.why_splits import SplitGroup, SplitReason, WhySplits
from ..trace.names import counted
from ..trace.planned import Planned, format_bytes
from .wrapping import wrapped

_MOST = 3  # reasons shown
_OPS = 3  # ops shown of one reason
_NARROWEST = 40  # columns


def lines(plan: Planned, why: WhySplits, remedy: Remedy | None, width: int) -> Iterator[str]:
    """The reasons, most bytes first, and the remedy, wrapped to the width."""
    width = max(width, _NARROWEST)
    part = " of this part" if plan.capture.is_partial else ""
    if why.reasons:
        yield f"why {counted(plan.n_splits, 'split')}{part} and not one on {why.main}"
    groups = _by_rule(why.reasons)
    for reasons in groups[:_MOST]:
        yield from wrapped(_head(reasons, plan.capture.is_partial), "  ", width, "    ")
        costliest = max(reasons, key=lambda reason: reason.bytes + reason.copy_bytes)
        yield from wrapped(costliest.text, "    ", width)
    if groups[_MOST:]:
        ops = _ops(reason for reasons in groups[_MOST:] for reason in reasons)
        yield from wrapped(f"… {counted(len(groups) - _MOST, 'more reason')}: {ops}", "  ", width)
    if remedy is not None:
        yield from wrapped(f"remedy: {remedy}", "", width, "  ")


def _by_rule(reasons: Iterable[SplitReason]) -> list[list[SplitReason]]:
    """Groups of reasons with the same rule and backend, in the order of their first."""
    groups: dict[tuple[str, str], list[SplitReason]] = {}
    for reason in reasons:
        groups.setdefault((reason.reason, reason.backend), []).append(reason)
    return list(groups.values())


def _head(reasons: Sequence[SplitReason], is_excerpt: bool) -> str:
    splits = {split for reason in reasons for split in reason.splits}
    copied = sum(reason.copy_bytes for reason in reasons)
    first = reasons[0]
    where = f"{_ops(reasons)} on {first.backend} [{first.reason}]"
    text = f"{where}: {counted(len(splits), 'split')}"
    if is_excerpt and not any(reason.n_copies for reason in reasons):
        return text  # they may be missing
    return f"{text}, {format_bytes(copied)} copied"


def _ops(reasons: Iterable[SplitReason]) -> str:
    """ "144× MUL_MAT_ID, GET_ROWS" """
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason.op] = counts.get(reason.op, 0) + len(reason.nodes)
    return short_ops(tuple(counts.items()))


def short_ops(counts: Sequence[tuple[str, int]]) -> str:
    """The first few ops, and how many of each."""
    shown = ", ".join(f"{n}× {op}" if n > 1 else op for op, n in counts[:_OPS])
    return shown + (", …" if len(counts) > _OPS else "")


def numbers(group: SplitGroup) -> str:
    """ "#2–#96: 48 ×", or "#1" for a single split."""
    first, last = group.splits[0], group.splits[-1]
    return f"#{first}–#{last}: {len(group.splits)} ×" if first != last else f"#{first}"

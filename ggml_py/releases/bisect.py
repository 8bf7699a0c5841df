"""Finds the release between two that first plans something otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..trace.rules import RELEASES, find_release
from .compare import Comparison, compared
from .conditions import check_names, rounds_of
from .conditions import condition as holds
from .planned_cases import Progress, plans_under, prepared
from .tasks import Made, Work


@dataclass(frozen=True)
class Bisection:
    """Where a condition turns: it does not hold for `last`, and holds for `first`, the next known
    release."""

    condition: str
    last: str
    first: str
    tried: tuple[tuple[str, bool], ...]  # release, whether it holds
    unknown: tuple[str, ...]  # releases without a plan of a case for which it holds in `first`
    comparison: Comparison  # of these two

    def __str__(self) -> str:
        steps = ", ".join(
            f"{release} {'yes' if held else 'no plan' if release in self.unknown else 'no'}"
            for release, held in self.tried
        )
        before = f"not in {self.last}, and first in {self.first}"
        if self.last in self.unknown:
            before = f"first seen in {self.first}; {self.last} has no plan, so it may be older"
        return f"{self.condition}: {before} (asked: {steps})\n{self.comparison}"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "condition": self.condition, "last": self.last, "first": self.first,
            "tried": [list(one) for one in self.tried], "unknown": list(self.unknown),
            "comparison": self.comparison.to_dict(),
        }  # fmt: skip


def bisect(
    good: str,
    bad: str,
    cases: Sequence[Work],
    condition: str = "",
    *,
    build: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Bisection:
    """The release of the table that first fulfils a condition, between `good`, which does not, and
    `bad`, which does.

    `condition` holds if it holds for any of the cases. It is one of these:

    - of a plan: "splits > 40", "copies >= 3", "copy_bytes > 1000000", "nodes != 133", "ffn_out-0
      on gpu0", "ffn_out-0 not on gpu0", "fallback" or "fallback of FLASH_ATTN_EXT"
      (`checks.assert_no_fallback`);
    - of a run of the graph (`Observed`): "waits > 9", "copied_bytes > 1000000", "reallocations >
      0", "buffer_bytes > 1000000";
    - compared with `good`: "error > 1e-4" of an output, "time > 1.1" of a compute;
    - "": anything differs from `good`. A release without a plan fulfils only this one.

    Raises ValueError if the condition means nothing, if it is about a run that was not seen, and if
    it holds for both releases or for neither.
    """
    held = holds(condition)
    labels = _between(good, bad)
    rounds = rounds_of(condition)
    known: dict[str, list[Made]] = {}
    timed: dict[str, list[list[Made]]] = {}

    def plans(label: str) -> list[Made]:
        if label not in known:
            key = prepared(label, build)
            known[label] = plans_under([key], cases, jobs, build=build)[0]
        return known[label]

    def beside(label: str) -> tuple[list[Made], list[Made]]:
        """Results of the first release, and of this one; timed by turns, if they are timed."""
        if not rounds or label == labels[0]:
            return plans(labels[0]), plans(label)
        if label not in timed:
            keys = [prepared(one, build) for one in (labels[0], label)]
            timed[label] = plans_under(keys, cases, jobs, build=build, rounds=rounds)
            known[label] = timed[label][1]
        return timed[label][0], timed[label][1]

    def turned(label: str) -> bool:
        if condition:
            first, made = beside(label)
            return any(map(held, made, first))
        return bool(compared(labels[0], label, cases, plans(labels[0]), plans(label)))

    said = condition or f"a plan differs from that of {good}"
    tried = [(label, turned(label)) for label in (labels[0], labels[-1])]
    check_names(condition, [made.plan for made in plans(labels[-1]) if made.plan is not None])
    if tried[0][1] or not tried[1][1]:
        if all(made.plan is None for made in plans(labels[0])):
            raise ValueError(f"{good} has no plan of {cases[0].name}: {plans(labels[0])[0].error}")
        both = "already holds for" if tried[0][1] else "does not hold for"
        raise ValueError(f"{said}: {both} {good if tried[0][1] else bad}, so nothing turns between")
    low, high = 0, len(labels) - 1
    steps = max(1, (high - low).bit_length())
    while high - low > 1:
        middle = (low + high) // 2
        now = turned(labels[middle])
        tried.append((labels[middle], now))
        low, high = (low, middle) if now else (middle, high)
        if progress is not None:
            progress(min(1.0, (len(tried) - 2) / steps))
    ends = labels[low], labels[high]
    made = list(map(plans, ends))
    if rounds:  # both were timed beside the first release, and not beside each other
        keys = [prepared(label, build) for label in ends]
        made = plans_under(keys, cases, jobs, build=build, rounds=rounds)
    found = compared(*ends, cases, *made)
    there = list(map(held, *reversed(beside(labels[high]))))
    unknown = [
        label for label, now in tried
        if not now and any(
            a and made.plan is None for a, made in zip(there, plans(label), strict=True)
        )
    ]  # fmt: skip
    return Bisection(said, labels[low], labels[high], tuple(tried), tuple(unknown), found)


def _between(good: str, bad: str) -> list[str]:
    """The labels from `good` to `bad`."""
    known = [release.label for release in RELEASES]
    ends = []
    for name, text in (("good", good), ("bad", bad)):
        label = find_release(text, name).label
        if label not in known:
            raise ValueError(f"{name}={text!r} has no package: expected one of {', '.join(known)}")
        ends.append(known.index(label))
    if ends[0] == ends[1]:
        raise ValueError(f"{good} and {bad} are one release: name two")
    part = known[min(ends) : max(ends) + 1]
    return part if ends[0] < ends[1] else part[::-1]

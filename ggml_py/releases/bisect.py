"""Finds the release between two that first plans something otherwise."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..plan import Plan
from ..trace.rules import RELEASES, find_release
from .compare import Comparison, compared
from .planning import Progress, plans_under, prepared
from .work import Made, Work

_NUMBER = re.compile(r"(splits|copies|copy_bytes|nodes) *(<=|>=|==|!=|<|>) *(\d+)")
_PLACE = re.compile(r"(.+?) (on|not on) (\S+)")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
CONDITIONS = '"splits > 40", "copies >= 3", "nodes != 133", "NODE on GPU", "NODE not on GPU"'


@dataclass(frozen=True)
class Bisection:
    """Where a condition turns: it does not hold for `last`, and holds for `first`, the next known
    release."""

    condition: str
    last: str
    first: str
    tried: tuple[tuple[str, bool], ...]  # release, whether it holds
    comparison: Comparison  # of these two

    def __str__(self) -> str:
        steps = ", ".join(f"{release} {'yes' if held else 'no'}" for release, held in self.tried)
        return (
            f"{self.condition}: not in {self.last}, and first in {self.first} (asked: {steps})\n"
            f"{self.comparison}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "condition": self.condition, "last": self.last, "first": self.first,
            "tried": [list(one) for one in self.tried], "comparison": self.comparison.to_dict(),
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

    `condition` is about the plans of the cases, and holds if it does for any: "splits > 40",
    "copies >= 3", "copy_bytes > 1000000", "nodes != 133", "ffn_out-0 on gpu0", "ffn_out-0 not on
    gpu0"; "" means that a plan differs from that of `good`. A release that has no plan fulfils only
    "". Raises ValueError if the condition means nothing, or holds for both releases or for neither.
    """
    held = _condition(condition)
    labels = _between(good, bad)
    known: dict[str, list[Made]] = {}

    def plans(label: str) -> list[Made]:
        if label not in known:
            known[label] = plans_under([prepared(label, build)], cases, jobs)[0]
        return known[label]

    def turned(label: str) -> bool:
        if condition:
            return any(held(made.plan) for made in plans(label) if made.plan is not None)
        return bool(compared(labels[0], label, cases, plans(labels[0]), plans(label)))

    said = condition or f"a plan differs from that of {good}"
    tried = [(label, turned(label)) for label in (labels[0], labels[-1])]
    _check_names(condition, [made.plan for made in plans(labels[-1]) if made.plan is not None])
    if tried[0][1] or not tried[1][1]:
        for case, made in zip(cases, plans(labels[0]), strict=True):
            if made.plan is None:
                raise ValueError(f"{good} has no plan of {case.name}: {made.error}")
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
    found = compared(*ends, cases, *map(plans, ends))
    return Bisection(said, labels[low], labels[high], tuple(tried), found)


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


def _condition(text: str) -> Callable[[Plan], bool]:
    if found := _NUMBER.fullmatch(text.strip()):
        what, sign, number = found.groups()
        return lambda plan: _COMPARE[sign](_numbers(plan)[what], int(number))
    if found := _PLACE.fullmatch(text.strip()):
        node, verb, backend = found.groups()
        return lambda plan: any(
            (t.backend == backend) == (verb == "on") for t in plan.nodes if t.name == node
        )
    if text:
        raise ValueError(f"{text!r} is no condition: expected one such as {CONDITIONS}")
    return lambda _plan: False


def _check_names(condition: str, plans: Sequence[Plan]) -> None:
    """Raises ValueError for a node or backend that no plan has."""
    if found := _PLACE.fullmatch(condition.strip()):
        node, _verb, backend = found.groups()
        if not any(t.name == node for plan in plans for t in plan.nodes):
            raise ValueError(f"{condition}: no plan has a node '{node}'")
        names = dict.fromkeys(b.name for plan in plans for b in plan.backends)
        if backend not in names:
            raise ValueError(f"{condition}: no backend '{backend}', only {', '.join(names)}")


def _numbers(plan: Plan) -> dict[str, int]:
    return {
        "splits": plan.n_splits, "copies": plan.n_inputs, "copy_bytes": plan.copy_bytes,
        "nodes": plan.capture.n_nodes,
    }  # fmt: skip

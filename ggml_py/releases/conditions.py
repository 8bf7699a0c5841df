"""Conditions on a release's result for a piece of work, which `bisect` looks for."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence

from ..checks import assert_no_fallback
from ..plan import Plan
from .outputs import output_error, time_change
from .tasks import Made

_NUMBER = re.compile(r"(\w+) *(<=|>=|==|!=|<|>) *(\d+|\d*\.?\d+(?:e[+-]?\d+)?)")
_PLACE = re.compile(r"(.+?) (on|not on) (\S+)")
_FALLBACK = re.compile(r"fallback(?: of ([\w,]+))?")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_OF_PLAN: dict[str, Callable[[Plan], int]] = {
    "splits": lambda plan: plan.n_splits,
    "copies": lambda plan: plan.n_inputs,
    "copy_bytes": lambda plan: plan.copy_bytes,
    "nodes": lambda plan: plan.capture.n_nodes,
}
_OF_RUN = ("waits", "copied_bytes", "reallocations", "buffer_bytes")
_AGAINST = ("error", "time")  # numbers that need the first release's result
ROUNDS = 10  # of timing
CONDITIONS = (
    '"splits > 40", "copies >= 3", "waits > 9", "error > 1e-4", "time > 1.1", "NODE on GPU", '
    '"NODE not on GPU", "fallback", "fallback of FLASH_ATTN_EXT"'
)


def condition(text: str) -> Callable[[Made, Made], bool]:
    """Whether a condition holds for what a release made, the first argument, beside what the first
    release made. "" never holds, and neither does any other without a plan. "error" is that of the
    output that differs most, "time" how many times as long a compute takes; it does not hold if
    chance may have led to it. Raises ValueError for a text that means nothing, and, when it is
    asked, for a run that was not seen."""
    given = text.strip()
    if found := _NUMBER.fullmatch(given):
        what, sign, number = found.groups()
        compare, bound = _COMPARE[sign], float(number)
        if what in (*_OF_PLAN, *_OF_RUN) and number.isdecimal():
            return lambda made, _first: (
                made.plan is not None and compare(_number(made, what), bound)
            )
        if what == "error":
            return lambda made, first: made.plan is not None and compare(_error(first, made), bound)
        if what == "time":
            return lambda made, first: made.plan is not None and _time(first, made, compare, bound)
    elif found := _FALLBACK.fullmatch(given):
        ops = found[1].split(",") if found[1] else ()
        return lambda made, _first: made.plan is not None and _falls_back(made.plan, ops)
    elif found := _PLACE.fullmatch(given):
        node, verb, backend = found.groups()
        return lambda made, _first: (
            made.plan is not None
            and any(
                (t.backend == backend) == (verb == "on") for t in made.plan.nodes if t.name == node
            )
        )
    if given:
        raise ValueError(
            f"{text!r} is no condition: expected one such as {CONDITIONS}. Numbers are "
            f"{', '.join((*_OF_PLAN, *_OF_RUN, *_AGAINST))}"
        )
    return lambda _made, _first: False


def rounds_of(text: str) -> int:
    """How many rounds of timing a condition needs."""
    found = _NUMBER.fullmatch(text.strip())
    return ROUNDS if found and found[1] == "time" else 0


def check_names(text: str, plans: Sequence[Plan]) -> None:
    """Raises ValueError for a node, backend or op of the condition that no plan has."""
    given = text.strip()
    if (found := _FALLBACK.fullmatch(given)) and found[1]:
        ops = {t.op for plan in plans for t in plan.nodes}
        for op in found[1].split(","):
            if op not in ops:
                raise ValueError(f"{text}: no plan has an op {op}")
    elif not _NUMBER.fullmatch(given) and (found := _PLACE.fullmatch(given)):
        node, _verb, backend = found.groups()
        if not any(t.name == node for plan in plans for t in plan.nodes):
            raise ValueError(f"{text}: no plan has a node '{node}'")
        names = dict.fromkeys(b.name for plan in plans for b in plan.backends)
        if backend not in names:
            raise ValueError(f"{text}: no backend '{backend}', only {', '.join(names)}")


def _number(made: Made, what: str) -> int:
    assert made.plan is not None
    if what in _OF_PLAN:
        return _OF_PLAN[what](made.plan)
    seen = made.observed
    if seen is None or (what in ("waits", "copied_bytes") and seen.waits is None):
        raise ValueError(
            f"{what} is not known: {seen.left_out if seen else 'nothing was observed'}. Conditions "
            f"on plans can be asked: {', '.join(_OF_PLAN)}"
        )
    if seen.left_out and not seen.allocated:
        raise ValueError(f"{what} is not known: {seen.left_out}")
    return {
        "waits": seen.waits or 0, "copied_bytes": sum(copy.nbytes for copy in seen.copies),
        "reallocations": len(seen.reallocations), "buffer_bytes": sum(seen.allocated.values()),
    }[what]  # fmt: skip


def _error(first: Made, made: Made) -> float:
    found = output_error(first, made)
    if found is None:
        raise ValueError(f"error is not known: {_unseen(first, made)}")
    return found.error


def _time(first: Made, made: Made, compare: Callable[[float, float], bool], bound: float) -> bool:
    if first is made:  # a release beside itself
        return compare(1.0, bound)
    found = time_change(first, made)
    if found is None:
        raise ValueError(f"time is not known: {_unseen(first, made)}")
    return found.significant and compare(found.ratio, bound)


def _unseen(first: Made, made: Made) -> str:
    for one in (made, first):
        if one.plan is None:
            return f"no plan: {one.error}"
        if one.observed is not None and (one.observed.left_out or one.observed.untimed):
            return one.observed.left_out or one.observed.untimed
    return "no output that both releases compute"


def _falls_back(plan: Plan, ops: Sequence[str]) -> bool:
    try:
        assert_no_fallback(plan, op=ops)
    except AssertionError:
        return True
    return False

"""Conditions on what a release makes of a piece of work: those that `bisect` looks for."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence

from ..checks import assert_no_fallback
from ..plan import Plan
from .work import Made

_NUMBER = re.compile(r"(\w+) *(<=|>=|==|!=|<|>) *(\d+)")
_PLACE = re.compile(r"(.+?) (on|not on) (\S+)")
_FALLBACK = re.compile(r"fallback(?: of ([\w,]+))?")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
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
CONDITIONS = (
    '"splits > 40", "copies >= 3", "waits > 9", "NODE on GPU", "NODE not on GPU", "fallback", '
    '"fallback of FLASH_ATTN_EXT"'
)


def condition(text: str) -> Callable[[Made], bool]:
    """Whether a condition holds for what a release made. "" never holds, and neither does any other
    without a plan. Raises ValueError for a text that means nothing, and, when it is asked, for a
    run that was not seen."""
    given = text.strip()
    if found := _NUMBER.fullmatch(given):
        what, sign, number = found.groups()
        if what in (*_OF_PLAN, *_OF_RUN):
            return lambda made: (
                made.plan is not None and _COMPARE[sign](_number(made, what), int(number))
            )
    elif found := _FALLBACK.fullmatch(given):
        ops = found[1].split(",") if found[1] else ()
        return lambda made: made.plan is not None and _falls_back(made.plan, ops)
    elif found := _PLACE.fullmatch(given):
        node, verb, backend = found.groups()
        return lambda made: (
            made.plan is not None
            and any(
                (t.backend == backend) == (verb == "on") for t in made.plan.nodes if t.name == node
            )
        )
    if given:
        raise ValueError(
            f"{text!r} is no condition: expected one such as {CONDITIONS}. Numbers are "
            f"{', '.join((*_OF_PLAN, *_OF_RUN))}"
        )
    return lambda _made: False


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


def _falls_back(plan: Plan, ops: Sequence[str]) -> bool:
    try:
        assert_no_fallback(plan, op=ops)
    except AssertionError:
        return True
    return False

"""One colour per backend, the same in every picture of a plan."""

from __future__ import annotations

from ..trace.plan import Plan

# Told apart by people who see colours otherwise, too; the last backend, the CPU, is always grey.
_COLORS = ("#4477aa", "#228833", "#aa3377", "#ee6677", "#66ccee", "#ccbb44")
_LAST = "#bbbbbb"
NOBODY = "#ffffff"


def colors(plan: Plan) -> dict[str, str]:
    """By the backend's name."""
    names = [b.name for b in plan.backends]
    return {n: _COLORS[i % len(_COLORS)] for i, n in enumerate(names[:-1])} | {names[-1]: _LAST}

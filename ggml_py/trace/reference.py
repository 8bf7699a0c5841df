"""The reference scheduler: the public names of `planning`."""

from __future__ import annotations

from ..plan import Plan
from ..typed import typed
from .planning import CannotPlanError as CannotPlanError
from .planning import plan_by_rules
from .record import Capture
from .steps import RawStep


@typed
def plan(capture: Capture, steps: list[RawStep] | None = None) -> Plan:
    """The plan that ggml's scheduler makes of a capture, by the rules of the capture's release.

    Appends every question and every decision to `steps`, if given. Raises `CannotPlanError` if
    upstream would abort, ValueError for a capture without the backends' answers.
    """
    return plan_by_rules(capture, Plan, steps)

"""The steps of a plan by tensor: where and when it was placed, and what the sweeps brought it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ...typed import typed
from ..causes import STAGES
from ..planning import reference_of
from ..refusals import Refused, refused
from ..steps import Step, raw_steps_of, step_of

if TYPE_CHECKING:
    from ..planned import Planned, PlanTensor

# Number of the stage, by pass and sweep of a step.
_CODES = {(stage.pass_, stage.title[2:]): number for number, stage in STAGES.items()}
SWEEPS = tuple(number for number, stage in STAGES.items() if stage.pass_ == 2)
_GPU_SWEEPS, _DOWN = SWEEPS[:2], SWEEPS[::2]


@dataclass(frozen=True)
class Meeting:
    """What one sweep of pass 2 brought to a node that had no backend yet.

    `carrier` is the node that the sweep came from (or None), which is on `backend`. `outcome` is
    "taken", "unsupported" (that backend does not support the op), "stopped" or "nothing". A gpu
    sweep is stopped if the carrier is on the last backend, which these sweeps do not carry on. A
    sweep brings nothing if no node on that side had a backend. `why` says why that backend does not
    support the op.
    """

    sweep: str
    carrier: PlanTensor | None
    backend: str
    outcome: str
    why: Refused | None = None


class Decisions:
    """The steps of `plan`, a plan of the reference scheduler, by tensor."""

    def __init__(self, plan: Planned) -> None:
        self.plan = plan
        self.placements = reference_of(plan).outcome.placements
        self._raw = raw_steps_of(plan)
        self._about: dict[int, list[int]] = {}  # numbers of steps
        self._copies: dict[tuple[int, int], int] = {}
        self._step = cache(lambda i: step_of(plan, i))
        for i, step in enumerate(self._raw):
            self._about.setdefault(step.tensor, []).append(i)
            if step.query == "copy" and step.witness >= 0:
                self._copies.setdefault((step.witness, step.backend), i)

    @typed
    def about(self, t: PlanTensor) -> list[Step]:
        """All steps about `t`."""
        return [self._step(i) for i in self._about.get(t.id, ())]

    @typed
    def copy(self, source: int, backend: int) -> Step | None:
        """The first step that copied tensor `source` to `backend`."""
        i = self._copies.get((source, backend))
        return None if i is None else self._step(i)

    @typed
    def placement(self, t: PlanTensor, before: int | None = None) -> Step | None:
        """The last step that placed `t`, or the last one before step `before`."""
        found: int | None = None
        for i in self._about.get(t.id, ()):
            if before is not None and i >= before:
                break
            if self._raw[i].query in ("assign", "pin"):
                found = i
        return None if found is None else self._step(found)

    @typed
    def meetings(self, t: PlanTensor) -> Iterator[Meeting]:
        """The backends that the sweeps brought to node `t`, with outcomes, until one placed it."""
        placements = self.placements
        if t.index is None or t.is_view_op or placements[t.id].passes[0] >= 0:
            return
        last = len(self.plan.backends) - 1
        for stage in SWEEPS:
            row = STAGES[stage].row
            carrier, b = self._carrier(t.id, row, stage in _DOWN)
            name = self.plan.backends[b].name if b >= 0 else ""
            outcome = "unsupported"
            if placements[t.id].passes[row] >= 0:
                outcome = "taken"
            elif carrier is None:
                outcome = "nothing"
            elif stage in _GPU_SWEEPS and b == last:
                outcome = "stopped"
            why = refused(self.plan.tensor(t.id), b) if outcome == "unsupported" else None
            yield Meeting(STAGES[stage].title[2:], carrier, name, outcome, why)
            if outcome == "taken":
                return

    def _carrier(self, index: int, row: int, down: bool) -> tuple[PlanTensor | None, int]:
        """The nearest node that had a backend when the sweep passed it, and that backend."""
        nodes, placements = self.plan.capture.tensors, self.placements
        for i in range(index - 1, -1, -1) if down else range(index + 1, len(self.plan.nodes)):
            b = placements[i].passes[row]
            if b >= 0 and not nodes[i].is_view_op:
                return self.plan.tensor(i), b
        return None, -1


def decisions_of(plan: Planned) -> Decisions:
    """The steps of a plan by tensor, cached."""
    return plan.derived(Decisions)


def stage_of(step: Step) -> int:
    """The number of a step's stage, a key of `causes.STAGES`; 0 for pass 5."""
    return _CODES.get((step.pass_, step.sweep), 0)

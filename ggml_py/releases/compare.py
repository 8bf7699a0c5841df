"""What two releases make of the same work, case by case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..cost import Machine
from ..cost.time_difference import PredictedTime, predicted_time
from ..trace.answers.diff import Diff, diff
from ..trace.names import counted
from .attribution import Attribution, agrees, changes, explained, parting
from .outputs import MIN_ROUNDS, OutputError, TimeChange, output_error, time_change
from .planned_cases import Progress, plans_under, prepared
from .runs import run_changes
from .source_changes import SourceChange, lines_of, source_changes
from .tasks import Made, Work

_CASES, _ROWS = 8, 3  # cases whose differences are shown, and rows of each kind
_ONLY_CONFIRMED = (
    "its build has no causes. The plans are the reference scheduler's; the release's own told only "
    "the backend of each node and the number of splits, which are the same"
)


@dataclass(frozen=True)
class Compared:
    """One case under two releases."""

    case: str
    before: Made
    after: Made
    diff: Diff | None  # None unless both releases plan it
    changes: tuple[Attribution, ...]  # what led from one plan to the other
    run: tuple[Attribution, ...]  # what else differs: memory, waits, copies, outputs, times
    agrees: tuple[bool | None, bool | None]  # whether the reference makes the same plans
    predicted: PredictedTime | None = None  # if a machine was given

    @property
    def errors(self) -> tuple[str, str]:
        """Why there is no plan; "" with one."""
        return self.before.error, self.after.error

    @property
    def differs(self) -> bool:
        """Whether the releases decide differently, or only one of them can."""
        if self.diff is None:
            return (self.before.plan is None) != (self.after.plan is None)
        return bool(self.diff) or bool(self.changes) or bool(self.run)

    @property
    def is_explained(self) -> bool:
        """Whether a changed rule leads to the plan after."""
        return any(change.kind == "rule" and change.decides for change in self.changes)

    def headline(self) -> str:
        """The difference, in a line."""
        if self.run and not self.diff and not self.changes:
            return "the same plan, which runs otherwise"
        if self.diff is not None:
            return self.diff.headline()
        said = [f"no plan: {error}" if error else "plans it" for error in self.errors]
        return said[0] if said[0] == said[1] else f"{said[0]} → {said[1]}"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "case": self.case, "differs": self.differs, "headline": self.headline(),
            "errors": list(self.errors), "reference_agrees": list(self.agrees),
            "changes": [change._asdict() for change in self.changes],
            "run": [change._asdict() for change in self.run],
            "observed": [_observed(made) for made in (self.before, self.after)],
            "output_error": _as_dict(output_error(self.before, self.after)),
            "time": _as_dict(time_change(self.before, self.after)),
            "predicted": None if self.predicted is None else self.predicted.to_dict(),
            "diff": self.diff.to_dict() if self.diff is not None else None,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """All cases under two releases; true if any differs."""

    before: str
    after: str
    rows: tuple[Compared, ...]
    # The lines that differ; () if no case differs, None if a source is not on this machine.
    sources: tuple[SourceChange, ...] | None = ()

    def __bool__(self) -> bool:
        return bool(self.different)

    @property
    def different(self) -> tuple[Compared, ...]:
        """The cases that the releases decide differently."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def only_confirmed(self) -> tuple[str, ...]:
        """The releases whose build has no causes: their plans are the reference's."""
        sides = (
            (self.before, [row.before for row in self.rows]),
            (self.after, [row.after for row in self.rows]),
        )
        return tuple(
            release for release, sides_made in sides
            if any(m.observed and m.plan and m.plan.planner == "reference" for m in sides_made)
        )  # fmt: skip

    def headline(self) -> str:
        """One line."""
        n, failed = len(self.different), sum(row.diff is None for row in self.rows)
        cases = counted(len(self.rows), "case")
        without = f"; {counted(failed, 'case')} without a plan in one or both" if failed else ""
        differ = "differs" if 1 in (n, len(self.rows)) else "differ"
        return f"{self.before} → {self.after}: {n} of {cases} {differ}{without}"

    def __str__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """Each case that differs: what moved, the causes on both sides, and why; then the lines of
        the sources that differ. Without `verbose` the first rows of each."""
        lines = [self.headline()]
        shown, rules = 0, dict[str, str]()
        for row in self.rows:
            if row.differs or row.diff is None:
                lines.append(f"{row.case}: {row.headline()}")
            for change in (*row.changes, *row.run) if row.differs else ():
                said = change.text
                if change.kind == "rule" and rules.setdefault(said, row.case) != row.case:
                    said = f"the same as of {rules[said]}"
                lines.append(f"  {change.kind}: {said}")
            if row.differs and row.diff is not None and (verbose or shown < _CASES):
                shown += bool(row.diff)
                lines += [f"  {line}" for line in _moved(row.diff, verbose)]
            for release, agreed in zip((self.before, self.after), row.agrees, strict=True):
                if agreed is False and not row.is_explained:
                    lines.append(
                        f"  {row.case}: the reference scheduler plans otherwise by the rules of "
                        f"{release}: its reasons are not proven here"
                    )
        lines += self._untimed()
        lines += [f"{release}: {_ONLY_CONFIRMED}" for release in self.only_confirmed]
        if self.sources:
            lines += lines_of(self.sources, verbose)
        elif self.sources is None:
            lines.append("the sources are not compared: one of them is not on this machine")
        return "\n".join(lines)

    def _untimed(self) -> list[str]:
        """The cases that were to be timed and were not, with the first one's reason."""
        why = [(row.case, seen.untimed) for row in self.rows if (seen := row.after.observed)]
        rows = [(case, text) for case, text in why if text]
        return [f"not timed: {counted(len(rows), 'case')}; {': '.join(rows[0])}"] if rows else []

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "before": self.before, "after": self.after, "headline": self.headline(),
            "n_different": len(self.different), "only_confirmed": list(self.only_confirmed),
            "sources": None if self.sources is None else [one._asdict() for one in self.sources],
            "cases": [row.to_dict() for row in self.rows],
        }  # fmt: skip


def compare(
    before: str,
    after: str,
    cases: Iterable[Work],
    *,
    build: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
    rounds: int = 0,
    observe: bool = True,
    machine: Machine | None = None,
) -> Comparison:
    """The differences between the plans of releases `before` and `after`, case by case, and why.

    A release is any name that `ggml-py build --list` prints, or the folder of a checkout. A missing
    build is made, unless `build` is false. A case that a release cannot plan is in the result with
    the reason. With `rounds`, computes are timed by turns in this number of rounds, at least
    `MIN_ROUNDS`. Without `observe` graphs are only planned. With `machine`, as `ggml-py calibrate`
    measured it, plans that differ have a predicted time. Raises `NotBuiltError`, and ValueError
    for an unknown name and too few rounds.
    """
    if rounds and not observe:
        raise ValueError("what is only planned is not timed: give rounds or observe=False")
    if 0 < rounds < MIN_ROUNDS:
        raise ValueError(f"{rounds} rounds: expected at least {MIN_ROUNDS}, or none")
    work = list(cases)
    labels = [prepared(release, build) for release in (before, after)]
    if labels[0] == labels[1]:
        raise ValueError(f"{before} and {after} are the same build, {labels[0]}: name two releases")
    made = plans_under(labels, work, jobs, progress, build, rounds, observe)
    found = compared(before, after, work, *made, machine=machine)
    return replace(found, sources=source_changes(before, after)) if found else found


def compared(
    before: str,
    after: str,
    cases: Sequence[Work],
    made_before: Sequence[Made],
    made_after: Sequence[Made],
    *,
    machine: Machine | None = None,
) -> Comparison:
    """The comparison of these results of `plans_under`."""
    rows = [_row(*one, machine) for one in zip(cases, made_before, made_after, strict=True)]
    if any(change.kind == "unknown" for row in rows for change in row.changes):
        rows = _explained(rows)
    return Comparison(before, after, tuple(rows))


def _explained(rows: Sequence[Compared]) -> list[Compared]:
    """With the change of a rule that leads to all plans after, in place of "unknown"."""
    pairs = [
        (a, b) if (a := row.before.plan) is not None and (b := row.after.plan) is not None else None
        for row in rows
    ]
    found = explained(pairs)
    if not found:
        return list(rows)
    one = found[0]
    text = one.text if len(found) == 1 else f"{one.text}; or {found[1].text}"
    made = Attribution("rule", one.field, text, True)
    return [
        replace(row, changes=tuple(made if c.kind == "unknown" else c for c in row.changes))
        if row.agrees[1] is False
        else row
        for row in rows
    ]


def _moved(moved: Diff, verbose: bool) -> list[str]:
    """The rows of a difference, each below its title; without `verbose` the first of each."""
    lines = []
    for title, rows in moved.sections():
        shown = rows if verbose else rows[:_ROWS]
        if title != "made with":
            lines += [f"{title}: {row}" for row in shown]
            if len(rows) > len(shown):
                lines.append(f"{title}: and {len(rows) - len(shown)} more")
    return lines


def _row(case: Work, before: Made, after: Made, machine: Machine | None) -> Compared:
    a, b = before.plan, after.plan
    agreed = [
        agrees(plan) if plan is not None and plan.planner != "reference" else None
        for plan in (a, b)
    ]
    agreement = agreed[0], agreed[1]
    if a is None or b is None:
        return Compared(case.name, before, after, None, (), (), agreement)
    moved, why, run = diff(a, b), changes(a, b), run_changes(before, after)
    if (parts := parting(a, b)) is not None:
        why = (parts, *why)
    predicted = None if machine is None else predicted_time(a, b, machine)
    if predicted is not None and (moved or why):
        run = (*run, Attribution("predicted", "", str(predicted), False))
    return Compared(case.name, before, after, moved, why, run, agreement, predicted)


def _observed(made: Made) -> dict[str, Any] | None:
    if made.observed is None:
        return None
    copies = [copy._asdict() for copy in made.observed.copies]
    outputs = [{"name": o.name, "op": o.op, "digest": o.digest} for o in made.observed.outputs]
    return {**made.observed._asdict(), "copies": copies, "outputs": outputs}


def _as_dict(found: OutputError | TimeChange | None) -> dict[str, Any] | None:
    """An error that is no number is null."""
    if found is None:
        return None
    return {k: None if v in (math.inf, -math.inf) else v for k, v in found._asdict().items()}

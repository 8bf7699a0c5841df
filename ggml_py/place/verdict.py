"""Whether another way is worth taking: the gain against the error of the prediction, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..cost.bench_rows import BenchRow
from ..trace.units import format_ms, format_number
from .evaluate import SURE, Way, WorkloadTime, doubt, more_late

_LEAST_MS = 0.05  # part of a graph's time, from which on a backend is named


@dataclass(frozen=True)
class Verdict:
    """What to do. `keep` is true where nothing should be changed."""

    keep: bool
    chosen: Way
    given: Way
    text: str  # a sentence
    reason: str  # what takes the time now, and then; "" if nothing is known
    # The least gain, as a part of the given way's time, that the prediction can be sure of.
    certain_from: float | None


def judge(
    given: Way,
    best: Way | None,
    spread: float,
    no_measure: str = "",
    quickest: Way | None = None,
) -> Verdict:
    """Compares the way that was given with the best one, which has no changes whose gain may be an
    error. Where that is not certain to gain, the `quickest` may be: by all changes together.
    `spread` is how far repetitions of measurements on this machine are apart, as a part of them;
    `no_measure` says why none can be made."""
    verdict = _judge(given, best, spread, no_measure)
    if verdict.keep and best is not None and quickest is not None:
        of_all = _judge(given, quickest, spread, no_measure)
        verdict = verdict if of_all.keep else of_all
    return verdict


def _judge(given: Way, best: Way | None, spread: float, no_measure: str) -> Verdict:
    if best is None:
        text = "nothing that was tried can be run here with a time that is known"
        if given.why_not:
            text += f": of the flags given, {given.why_not}"
        return Verdict(True, given, given, text, "", None)
    if given.n_unknown and not given.refused and not given.lacks:
        text = f"how long the flags given take is not known: {given.why_not}"
        if given.most_seconds < best.seconds:
            text += (
                f". They take {_seconds_of(given.most_seconds)} at most, less than the quickest "
                f"way whose time is known ({_seconds(best)} with {best.flags})"
            )
            return Verdict(True, given, given, text, "", None)
        text += f". The quickest way whose time is known: {best.flags}"
        return Verdict(False, best, given, text, reason(None, best), None)
    if not given.usable:
        text = f"the flags given do not run here: {given.why_not}"
        return Verdict(False, best, given, text, reason(None, best), None)
    close = _close(given)
    if best.flags == given.flags:
        text = "keep what you have: nothing that was tried is quicker" + close
        return Verdict(True, given, given, text, "", None)
    gain = given.seconds - best.seconds
    error = SURE * doubt(given, best) + more_late(best, given)
    share, certain = gain / given.seconds, error / given.seconds
    if gain > error:
        text = (
            f"{format_number(given.seconds / best.seconds)} times as fast: {_seconds(given)} → "
            f"{_seconds(best)} for the workload, and a gain is certain from {certain:.0%} of the "
            f"time on{close}"
        )
        return Verdict(False, best, given, text, reason(given, best), certain)
    measured = SURE * 2**0.5 * spread
    text = (
        f"keep what you have: {share:.1%} less time is predicted, and a gain is certain only from "
        f"{certain:.0%} on"
    )
    if not no_measure:
        text += f". --measure would tell from about {measured:.0%} on"
    text += close
    return Verdict(True, given, given, text, reason(given, best), certain)


def _close(given: Way) -> str:
    """A sentence on the bytes that the flags given leave below the reserve; "" if none."""
    if not given.below_reserve:
        return ""
    less = ", ".join(f"{n / 2**20:.0f} MiB on {name}" for name, n in given.below_reserve.items())
    return f". The flags given leave less free than --reserve asks for, by {less}"


def _seconds(way: Way) -> str:
    return _seconds_of(way.seconds)


def _seconds_of(seconds: float) -> str:
    return format_ms(seconds)


def reason(before: Way | None, after: Way) -> str:
    """Where the time of a token goes, before and after, of the workload that takes most time; in
    the phase that changes most."""
    if not after.parts:
        return ""
    weighted = [part.workload.weight * part.seconds for part in after.parts]
    i = weighted.index(max(weighted))
    phases = _phases(after.parts[i])
    if before is not None and before.parts:
        was = _phases(before.parts[i])
        name = max(phases, key=lambda phase: abs(_total(was[phase]) - _total(phases[phase])))
        return f"{_NAMES[name]} takes {_told(was[name])}; then {_told(phases[name])}"
    name = max(phases, key=lambda phase: _total(phases[phase]))
    return f"{_NAMES[name]} takes {_told(phases[name])}"


_NAMES = {"prompt": "a token of the prompt", "gen": "a generated token"}


def _phases(part: WorkloadTime) -> dict[str, dict[str, float]]:
    """For "prompt" and "gen" the milliseconds of a token by backend, and those of copies."""
    rows = (("prompt", part.prompt, 1), ("gen", part.gen, part.workload.n_parallel))
    return {name: _milliseconds(row, n) for name, row, n in rows if row is not None}


def _milliseconds(row: BenchRow, n_sequences: int) -> dict[str, float]:
    """As the last of its graphs has them."""
    n_tokens, _past, cost = row.graphs[-1]
    each = 1e3 / n_tokens / n_sequences
    found: dict[str, float] = {}
    for split in cost.splits:
        where = f"on {split.backend}"
        found[where] = found.get(where, 0.0) + each * split.seconds
    for copy in cost.copies:  # a split's time has that of its copies
        found[f"on {copy.to}"] -= each * (copy.seconds or 0.0)
        found["in copies"] = found.get("in copies", 0.0) + each * (copy.seconds or 0.0)
    return found


def _total(parts: dict[str, float]) -> float:
    return sum(parts.values())


def _told(parts: dict[str, float]) -> str:
    least = _LEAST_MS * _total(parts)
    named: Iterable[str] = (
        f"{format_ms(1e-3 * ms)} {where}" for where, ms in parts.items() if ms >= least
    )
    return " and ".join(named)

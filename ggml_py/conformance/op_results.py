"""What upstream's `test-backend-ops` said of a device, as data, and the difference of two such."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..trace.names import counted

OK, FAILED, UNSUPPORTED = "ok", "failed", "not supported"
UNDECIDED = "undecided"  # the random inputs of the case gave NaN on both devices
NOT_RUN = "not run"  # the program ended before this case, or in it

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What differs is printed on the same line: before the case, or before FAIL.
_CASE = re.compile(r"(?:^|\s)([A-Z][A-Z0-9_]*)\((.*?)\): (?:(.*) )?(OK|FAIL|not supported.*)$")
_ERROR = re.compile(r"ERR = ([0-9.einfa+-]+) > ([0-9.e+-]+)")
_BOTH_NAN = re.compile(r"NaN at index \d+ \(\S+=-?nan \S+=-?nan\)")


class OpCase(NamedTuple):
    """One case: an op with types, shapes and parameters."""

    op: str
    params: str  # as the program prints them
    outcome: str
    text: str = ""  # what the program said about it
    error: float | None = None  # the normalised mean squared error; upstream prints it of failures
    limit: float | None = None  # what upstream allows there

    @property
    def excess(self) -> float:
        """How many times the limit the error is; infinite for a failure without a number."""
        if self.error is None or not self.limit:
            return float("inf")
        return self.error / self.limit


class OpRow(NamedTuple):
    """The cases of one op, counted."""

    op: str
    ok: int
    failed: int
    undecided: int
    unsupported: int
    not_run: int
    worst: OpCase | None  # of those that failed
    ended: str  # how the program ended in this op; "" if it went through

    @property
    def wrong(self) -> bool:
        """Whether a case failed or ended the program."""
        return bool(self.failed or self.ended)


@dataclass(frozen=True)
class OpResults:
    """Every case that was asked about, in the program's order. True if nothing failed."""

    device: str
    release: str  # the label of the build
    source: str  # where the cases come from
    cases: tuple[OpCase, ...]
    ended: dict[str, str] = field(default_factory=dict)  # by op: how the program ended in it
    notes: tuple[str, ...] = ()
    support_only: bool = False  # nothing was computed: "ok" only means supported

    def __bool__(self) -> bool:
        return not any(row.wrong for row in self.rows)

    @property
    def rows(self) -> list[OpRow]:
        """One per op, by name."""
        ops = dict.fromkeys(sorted({case.op for case in self.cases} | set(self.ended)))
        return [self._row(op) for op in ops]

    def _row(self, op: str) -> OpRow:
        mine = [case for case in self.cases if case.op == op]
        n = Counter(case.outcome for case in mine)
        failed = [case for case in mine if case.outcome == FAILED]
        worst = max(failed, key=lambda case: case.excess, default=None)
        return OpRow(op, n[OK], n[FAILED], n[UNDECIDED], n[UNSUPPORTED], n[NOT_RUN], worst,
                     self.ended.get(op, ""))  # fmt: skip

    @property
    def supported_ops(self) -> set[str]:
        """The ops of which the device supports a case."""
        return {case.op for case in self.cases if case.outcome != UNSUPPORTED}

    def headline(self) -> str:
        """One line."""
        n = Counter(case.outcome for case in self.cases)
        ops = [row for row in self.rows if row.ok or row.failed or row.undecided or row.not_run]
        parts = [f"{n[OK]:,} right", f"{n[FAILED]:,} wrong"]
        if self.support_only:
            parts = [f"{n[OK]:,} supported (nothing was computed)"]
        parts += [f"{n[key]:,} {key}" for key in (UNDECIDED, NOT_RUN) if n[key]]
        parts.append(f"{n[UNSUPPORTED]:,} not supported")
        ends = f"; the program ended in {', '.join(self.ended)}" if self.ended else ""
        return (
            f"{self.device}, ggml {self.release}: {counted(len(self.cases), 'case')} of "
            f"{self.source}: {', '.join(parts)}; {counted(len(ops), 'op')} supported{ends}"
        )

    def __str__(self) -> str:
        lines = [self.headline()]
        shown = [row for row in self.rows if row.ok + row.failed + row.undecided + row.not_run
                 or row.ended]  # fmt: skip
        width = max([2, *(len(row.op) for row in shown)])
        if shown:
            supported = "supported" if self.support_only else "right  wrong"
            lines.append(f"{'op':{width}}  {supported}  not supported")
        for row in shown:
            counts = f"{row.ok:9}" if self.support_only else f"{row.ok:5}  {row.failed:5}"
            text = f"{row.op:{width}}  {counts}  {row.unsupported:13}"
            if row.undecided:
                text += f"  {row.undecided} undecided: NaN on both"
            if row.ended:
                text += f"  {row.ended}; {row.not_run} not run"
            lines.append(text)
            if row.worst is not None:
                lines.append(f"{'':{width}}  worst: {row.worst.text} in {row.worst.params}")
        nothing = [row.op for row in self.rows if row.op not in {one.op for one in shown}]
        if nothing:
            lines.append(f"not supported in any case: {', '.join(nothing)}")
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write. Cases that are right are only counted."""
        return {
            "device": self.device, "release": self.release, "source": self.source,
            "right": None if self.support_only else bool(self), "headline": self.headline(),
            "ops": [
                {**row._asdict(), "worst": row.worst._asdict() if row.worst else None}
                for row in self.rows
            ],
            "failed": [case._asdict() for case in self.cases if case.outcome == FAILED],
            "undecided": [case._asdict() for case in self.cases if case.outcome == UNDECIDED],
            "notes": list(self.notes),
        }  # fmt: skip


class CaseChange(NamedTuple):
    """A case that two releases answer differently."""

    op: str
    params: str
    before: str
    after: str


@dataclass(frozen=True)
class OpResultsDiff:
    """What a device does otherwise in another release. True if something is worse."""

    before: OpResults
    after: OpResults

    def __bool__(self) -> bool:
        return bool(self.newly_wrong or self.no_longer_supported or self.ops_lost)

    @property
    def ops_gained(self) -> list[str]:
        """Ops of which a case is supported now and none was, whatever their cases are."""
        return sorted(self.after.supported_ops - self.before.supported_ops)

    @property
    def ops_lost(self) -> list[str]:
        """Ops that both releases test, of which a case was supported and none is now."""
        tested = {case.op for case in self.after.cases}
        return sorted((self.before.supported_ops - self.after.supported_ops) & tested)

    @property
    def changes(self) -> list[CaseChange]:
        """The cases of both releases whose outcome changed, in the order of the later one."""
        old = {(case.op, case.params): case.outcome for case in self.before.cases}
        return [
            CaseChange(case.op, case.params, old[case.op, case.params], case.outcome)
            for case in self.after.cases
            if old.get((case.op, case.params), case.outcome) != case.outcome
        ]

    @property
    def newly_wrong(self) -> list[CaseChange]:
        """Cases that fail now, or end the program, and did not."""
        return [c for c in self.changes if c.after in (FAILED, NOT_RUN) and c.before != FAILED]

    @property
    def newly_right(self) -> list[CaseChange]:
        """Cases that failed and no longer do."""
        return [c for c in self.changes if c.before in (FAILED, NOT_RUN) and c.after == OK]

    @property
    def newly_supported(self) -> list[CaseChange]:
        """Cases that were not supported."""
        return [c for c in self.changes if c.before == UNSUPPORTED]

    @property
    def no_longer_supported(self) -> list[CaseChange]:
        """Cases that were supported."""
        return [c for c in self.changes if c.after == UNSUPPORTED]

    @property
    def only(self) -> tuple[Counter[str], Counter[str]]:
        """Per op the number of cases that only the earlier, only the later release has."""
        a, b = ({(c.op, c.params) for c in one.cases} for one in (self.before, self.after))
        return Counter(op for op, _ in a - b), Counter(op for op, _ in b - a)

    def headline(self) -> str:
        """One line."""
        keys = [{(c.op, c.params) for c in one.cases} for one in (self.before, self.after)]
        return (
            f"{self.after.device}, ggml {self.before.release} → {self.after.release}: "
            f"{counted(len(keys[0] & keys[1]), 'case')} of both, {len(self.changes):,} changed: "
            f"{len(self.newly_wrong):,} newly wrong, {len(self.newly_right):,} newly right, "
            f"{len(self.newly_supported):,} newly supported, "
            f"{len(self.no_longer_supported):,} no longer supported"
        )

    def __str__(self) -> str:
        lines = [self.before.headline(), self.after.headline(), self.headline()]
        if self.ops_gained:
            lines.append(f"ops that no case of was supported before: {', '.join(self.ops_gained)}")
        if self.ops_lost:
            lines.append(f"ops that no case of is supported now: {', '.join(self.ops_lost)}")
        for title, changed in self._groups():
            per_op: dict[str, list[CaseChange]] = {}
            for change in changed:
                per_op.setdefault(change.op, []).append(change)
            for op, some in per_op.items():
                lines.append(f"{title}: {op}, {counted(len(some), 'case')}: {some[0].params}"
                             f"{', …' if len(some) > 1 else ''}")  # fmt: skip
        for one, counts in zip((self.before, self.after), self.only, strict=True):
            if counts:
                said = ", ".join(f"{op} {n}" for op, n in sorted(counts.items()))
                lines.append(f"cases only {one.release} has, not compared: {said}")
        return "\n".join(lines)

    def _groups(self) -> Iterable[tuple[str, list[CaseChange]]]:
        return (
            ("newly wrong", self.newly_wrong),
            ("no longer supported", self.no_longer_supported),
            ("newly supported", self.newly_supported),
            ("newly right", self.newly_right),
        )

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "before": self.before.to_dict(), "after": self.after.to_dict(),
            "headline": self.headline(),
            **{title.replace(" ", "_"): [c._asdict() for c in some]
               for title, some in self._groups()},
            "ops_gained": self.ops_gained, "ops_lost": self.ops_lost,
            "only_before": dict(self.only[0]), "only_after": dict(self.only[1]),
        }  # fmt: skip


def parse_case(line: str) -> OpCase | None:
    """The case that a line of `test-backend-ops test` is about; None for another line."""
    line = _ANSI.sub("", line).rstrip()
    match = _CASE.search(line)
    if match is None:
        return None
    op, params, between, said = match.groups()
    if said.startswith("not supported"):
        return OpCase(op, params, UNSUPPORTED)
    if said == "OK":
        return OpCase(op, params, OK)
    text = " ".join(f"{line[: match.start()]} {between or ''}".split()) or "it says FAIL"
    number = _ERROR.search(text)
    error, limit = (float(number[1]), float(number[2])) if number else (None, None)
    return OpCase(op, params, UNDECIDED if _both_nan(text) else FAILED, text, error, limit)


def _both_nan(text: str) -> bool:
    """Whether all that the program complains of is NaN on both devices."""
    return bool(_BOTH_NAN.search(text)) and not _ERROR.search(_BOTH_NAN.sub("", text)) and (
        text.count("NaN") == len(_BOTH_NAN.findall(text)) and "mismatch" not in text
    )  # fmt: skip

"""Profiles from records: what a device that is not here answered to upstream's op tests.

A profile knows the test cases that upstream ran on the device. It answers for an op from the
nearest case, by the rules in docs/PROFILES.md. Every answer names its row. Where upstream's own
function can be asked instead (card.py), that is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import ArgumentError
from . import rows as profile_rows
from .profiles.call import VIEWS, Call, call_of_record
from .profiles.ops import OPS
from .profiles.params import OpParams, Row, Value

_SOFT = 4.0  # a soft parameter that differs counts as much as a factor of 16 in one dimension
_ALIGNED = 1.0  # each power of two that divides only one number counts as much as a factor of 2
_CACHED = 1 << 16
_HADAMARD = 1  # ggml_mul_mat_set_hint

# offload_op of upstream's backends, in all releases. Backends that are not listed have none.
OFFLOAD = {
    "cuda": ("rows", 32), "hip": ("rows", 32), "musa": ("rows", 32), "vulkan": ("rows", 32),
    "sycl": ("rows", 32), "et": ("rows", 1), "metal": ("products", 32), "cann": ("ne1", 32),
}  # fmt: skip

Same = tuple[Value, ...]


@dataclass(frozen=True)
class Decision:
    """What a profile says about one op, and why.

    `basis` is "exact" (exactly this case was tested), "agreed" (all cases with these types and
    flags have this answer), "nearest" (they differ: the nearest in size decides), "unrecorded" (no
    case has these flags: the most similar decides), "unknown" (no case has these types and head
    sizes, which counts as not supported), "view" (nothing is computed) or "source" (upstream's own
    function answered). `row` is what the answer rests on: the case as upstream writes it, or the
    lines of upstream's source; None if there is none.
    """

    supported: bool
    row: str | None
    text: str
    basis: str

    def __bool__(self) -> bool:
        return self.supported


class _Case(NamedTuple):
    text: str
    supported: bool
    row: Row


class _Cases:
    """The rows of one op, by their `same` parameters."""

    def __init__(self, op: str, answers: profile_rows.Answers) -> None:
        self.op = op
        self.spec = OPS.get(op, OpParams())
        self.groups: dict[Same, list[_Case]] = {}
        for text, supported in answers:
            row = self._tidied(text)
            same = tuple(row.get(name, "") for name in self.spec.same)
            self.groups.setdefault(same, []).append(_Case(text, supported, row))

    def _tidied(self, text: str) -> Row:
        try:
            row = {**self.spec.default, **profile_rows.parsed(text)}
            if self.spec.tidy:
                self.spec.tidy(row)
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"the row {self.op}({text}) cannot be read ({error!r}): expected the output of "
                "`test-backend-ops support --output csv`"
            ) from None
        return row

    def distance(self, row: Row, asked: Row) -> float:
        """How far a row is in the parameters other than `same`; 0 for exactly this case."""
        total = sum(_ratio(row.get(name, asked[name]), asked[name]) for name in self.spec.size)
        return total + _SOFT * sum(row.get(n, asked[n]) != asked[n] for n in self.spec.soft)

    def nearest(self, cases: Iterable[_Case], asked: Row) -> tuple[float, bool, _Case]:
        """The smallest distance, whether all cases at it are supported, and one of those cases."""
        ranked = [(self.distance(case.row, asked), case) for case in cases]
        least = min(distance for distance, _ in ranked)
        ties = [case for distance, case in ranked if distance == least]
        supported = all(case.supported for case in ties)
        return least, supported, next(case for case in ties if case.supported == supported)

    def alike(self, same: Same) -> list[_Case]:
        """The rows that differ in the fewest `same` parameters. Among equals, prefers those that
        differ in later parameters, then those whose numbers differ by less."""

        def far(key: Same) -> tuple[int, list[bool], float]:
            differs = [mine != theirs for mine, theirs in zip(same, key, strict=True)]
            return sum(differs), differs, sum(map(_ratio, key, same))

        return self.groups[min(self.groups, key=far)]

    def unknown(self, same: Same) -> str:
        """The types and head sizes that no row of the op has, or has together; "" if there are
        none."""
        kinds = [i for i, name in enumerate(self.spec.same) if _is_kind(name)]
        for i in kinds:
            if all(key[i] != same[i] for key in self.groups):
                return self.written(same, [i])
        together = {tuple(key[i] for i in kinds) for key in self.groups}
        return "" if tuple(same[i] for i in kinds) in together else self.written(same, kinds)

    def written(self, same: Same, which: Iterable[int] | None = None) -> str:
        """The `same` parameters as they are written in rows: all, or those with these numbers."""
        names = list(self.spec.same)
        chosen = range(len(names)) if which is None else which
        return ", ".join(f"{names[i]}={_text(same[i])}" for i in chosen)


def _is_kind(name: str) -> bool:
    """Whether a parameter is a type or a head size, by which backends choose their kernels."""
    return name.startswith("type") or name in ("hsk", "hsv", "m_prec")


def _text(value: Value) -> str:
    return str(list(value)).replace(" ", "") if isinstance(value, tuple) else str(value)


def _ratio(a: Value, b: Value) -> float:
    """Powers of two between two numbers; for two shapes, the sum over their dimensions."""
    if a == b:
        return 0.0
    if isinstance(a, tuple) and isinstance(b, tuple):
        return sum(map(_ratio, a, b))
    if isinstance(a, str) or isinstance(b, str) or isinstance(a, tuple) or isinstance(b, tuple):
        return 0.0  # words are compared where they matter
    apart = abs(math.log2((1 + abs(a)) / (1 + abs(b))))
    return apart + _ALIGNED * abs(_alignment(int(a)) - _alignment(int(b)))


def _alignment(number: int) -> int:
    """How often 2 divides it, up to 5 times: kernels that need multiples of 32 refuse the rest."""
    return (number & -number & 31 or 32).bit_length()


class Profile:
    """What one device supports, as far as that is on record. Needs no native library.

    A `strict` profile answers yes only where the record leaves no doubt.
    """

    def __init__(self, record: profile_rows.DeviceRecord, strict: bool) -> None:
        self.name = record.name
        self.strict = strict
        self._record = record
        self._cases: dict[str, _Cases] = {}
        self._decided: dict[Any, Decision] = {}

    def __repr__(self) -> str:
        return f"<Profile {self._record.title}{', strict' if self.strict else ''}>"

    @property
    def title(self) -> str:
        """The record, in words."""
        return self._record.title

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that have rows, by upstream's description ("MUL_MAT", "SILU")."""
        return tuple(sorted(self._record.ops()))

    @property
    def offload(self) -> tuple[str, int]:
        """Which ops the device wants even though their weights are in host memory: what counts as
        rows, and the minimum number of them (0: no ops). "rows" counts like CUDA, "products" like
        Metal (only MUL_MAT and MUL_MAT_ID), "ne1" like CANN. A file does not say: 32 rows."""
        if isinstance(self._record, profile_rows.BuiltRecord):
            return OFFLOAD.get(self.name, ("rows", 0))
        return "rows", 32

    def decide(self, tensor: Any) -> Decision:
        """Whether the device can compute the op of `tensor`, and the row that says so.

        Also takes nodes of a plan (even a recorded one) and `Call`s, which need no native library.
        Raises `ArgumentError` for nodes of a plan that was read from a debug log.
        """
        if isinstance(tensor, Call):
            return self._decide(tensor)
        if hasattr(tensor, "record"):
            return self._decide(recorded_call(tensor.plan, tensor.record))
        from ..tensors.call import call_of, key_of  # here: plans work without the library

        try:
            key = key_of(tensor)
        except AttributeError:
            kind = type(tensor).__name__
            raise TypeError(f"expected a Tensor, a node of a plan or a Call, got {kind}") from None
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= _CACHED:
                self._decided.clear()
            found = self._decided[key] = self._decide(call_of(tensor))
        return found

    def supports(self, tensor: Any) -> bool:
        """Whether the device can compute the op of `tensor`."""
        return self.decide(tensor).supported

    def answers(self, plan: Any, backend: str) -> dict[tuple[str, int], bool]:
        """The answers that make `backend` this device in `plan.what_if(supports=...)`, one for each
        node of a `Plan` (even a recorded one). Needs no native library.
        """
        nodes = ((t.id, recorded_call(plan, t)) for t in plan.capture.tensors if t.kind == "node")
        return {(backend, i): self._decide(call).supported for i, call in nodes}

    def _decide(self, call: Call) -> Decision:
        if call.op in VIEWS:
            return Decision(True, None, f"yes: {call.op} computes nothing", "view")
        found = self._from_record(call)
        if age := self._record.age:
            found = replace(found, text=f"{found.text} (from the record of ggml {age})")
        return found

    def _from_record(self, call: Call) -> Decision:
        name = call.op
        hinted = name == "MUL_MAT" and call.params[1] == _HADAMARD
        if hinted and "MUL_MAT_HADAMARD" in self._record.ops():  # older records lack it
            name = "MUL_MAT_HADAMARD"
        cases = self._cases_of(name)
        if not cases.groups:
            return _unknown(f"{self._record.title} has no row of {name}")
        return self._decide_in(cases, cases.spec.of(call))

    def _cases_of(self, op: str) -> _Cases:
        found = self._cases.get(op)
        if found is None:
            found = self._cases[op] = _Cases(op, self._record.answers(op))
        return found

    def _decide_in(self, cases: _Cases, asked: Row) -> Decision:
        same = tuple(asked[name] for name in cases.spec.same)
        group = cases.groups.get(same)
        if group is None:
            return self._unrecorded(cases, same, asked)
        distance, supported, case = cases.nearest(group, asked)
        row = f"{cases.op}({case.text})"
        if distance == 0:
            return _decision(supported, row, f"tested: {row}", "exact")
        n_yes = sum(one.supported for one in group)
        these = f"of {cases.op} with {cases.written(same)}" if same else f"of {cases.op}"
        if n_yes in (0, len(group)):
            text = f"all {len(group)} rows {these} say so, the nearest: {row}"
            if len(group) == 1:
                text = f"the only row {these} says so: {row}"
            return _decision(supported, row, text, "agreed")
        text = f"the rows {these} differ ({n_yes} yes, {len(group) - n_yes} no)"
        if self.strict:
            return _decision(False, row, f"{text}, and none is this case (strict)", "nearest")
        return _decision(supported, row, f"{text}, the nearest in size: {row}", "nearest")

    def _unrecorded(self, cases: _Cases, same: Same, asked: Row) -> Decision:
        text = f"no such case on record: {cases.op} with {cases.written(same)}"
        if unknown := cases.unknown(same):
            return _unknown(f"{text}; no row has {unknown}")
        _, supported, case = cases.nearest(cases.alike(same), asked)
        row = f"{cases.op}({case.text})"
        if self.strict:
            return _decision(False, row, f"{text} (strict); the most similar: {row}", "unrecorded")
        return _decision(supported, row, f"{text}; the most similar: {row}", "unrecorded")


def recorded_call(plan: Any, record: Any) -> Call:
    """The op call of a tensor of a plan. Raises `ArgumentError` for a plan from a debug log."""
    if plan.capture.source != "scheduler":
        raise ArgumentError(
            f"'{record.name}' of a plan from a {plan.capture.source}, which has no shapes or "
            "parameters: expected a plan that a scheduler made (`Plan.to_json` keeps it)"
        )
    return call_of_record(record, plan.capture.tensors)


def _decision(supported: bool, row: str | None, text: str, basis: str) -> Decision:
    return Decision(supported, row, f"{'yes' if supported else 'no'}: {text}", basis)


def _unknown(why: str) -> Decision:
    return Decision(False, None, f"unknown: {why}, which counts as not supported", "unknown")

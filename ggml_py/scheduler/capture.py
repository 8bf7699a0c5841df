"""Reads a plan out of the native scheduler, as the plain data of `trace`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Protocol

from .. import enums
from ..boundary.ffi import BUILD, NULL, ffi, lib, text
from ..errors import MissingFunctionError
from ..plan import Plan
from ..sim.profile import NOT_ON_RECORD as UNRECORDED
from ..sim.profile import Profile
from ..sim.profiles.call import call_of_record
from ..sim.sim_device import profiles_of_files
from ..trace.decode import Meaning, Records, read
from ..trace.layout import GraphLayout
from ..trace.provenance import UNKNOWN, Provenance
from ..trace.record import (
    NODE,
    NOT_ON_RECORD,
    Capture,
    Outcome,
    RefusalRecord,
    collection_paused,
)
from ..trace.structs import Member, StructLayout
from ..typed import typed

if TYPE_CHECKING:
    from ..graphs.graph import Graph


class _Layouts(Mapping[str, StructLayout]):
    """Our C records by name, laid out as the compiler told cffi."""

    def __getitem__(self, struct: str) -> StructLayout:
        return layout_of(struct)

    def __iter__(self) -> Iterator[str]:
        return (name for name in ffi.list_types()[1] if name.startswith("gp_"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def layout_of(struct: str) -> StructLayout:
    """The layout of one of our C records, as the compiler told cffi."""
    ctype = ffi.typeof(f"struct {struct}")
    members = (Member(name, _format(item.type), item.offset) for name, item in ctype.fields)
    return StructLayout(ffi.sizeof(ctype), tuple(members))


def _format(ctype: Any) -> str | StructLayout:
    if ctype.kind == "array":
        if ctype.item.cname == "char":
            return f"S{ctype.length}"
        return f"{_format(ctype.item)}:{ctype.length}"
    if ctype.kind == "struct":
        return layout_of(ctype.cname.partition(" ")[2])
    kind = "u" if ctype.cname.startswith(("u", "_Bool")) else "i"
    return f"{kind}{ffi.sizeof(ctype)}"


@cache
def _op_name(op: int) -> str:
    return text(lib.ggml_op_name(op))


@cache
def _type_name(type_: int) -> str:
    return text(lib.ggml_type_name(type_))


_LAYOUTS = _Layouts()
_MEANING = Meaning(
    _op_name, _type_name, lib.GGML_MAX_SRC,
    {flag.name.lower(): flag.value for flag in enums.TensorFlag if flag.name and flag.value},
    {usage.value: usage.name.lower() for usage in enums.BackendBufferUsage},
    {kind.value: kind.name for kind in enums.BackendDevType},
)  # fmt: skip


def _copied(plan: Any, reasons: dict[int, tuple[str, str]], norms: str | None) -> Records:
    """The numbers and arrays of a struct gp_plan."""
    numbers: dict[str, int] = {}
    arrays: dict[str, bytes] = {}
    for name, member in ffi.typeof("struct gp_plan").fields:
        value = getattr(plan, name)
        if member.type.kind == "primitive":
            numbers[name] = value
        elif name != "impl":
            size = getattr(plan, f"n_{name}") * ffi.sizeof(member.type.item)
            arrays[name] = bytes(ffi.buffer(value, size)) if size else b""
    known = norms is not None
    return Records(numbers, arrays, BUILD["ggml_version"], BUILD["key"], reasons, norms, known)


class _NativePlan(Plan):
    """A plan that converts its records to Python objects on first access. Converting takes several
    times as long as planning."""

    @classmethod
    def of_records(cls, records: Records, provenance: Provenance) -> Plan:
        """The plan that the records describe."""
        plan = cls.__new__(cls)
        found = {"planner": "native", "choices": (), "provenance": provenance}
        vars(plan).update(found, _records=records)  # a frozen dataclass
        return plan

    def _look(self) -> None:
        with _lock:
            records = vars(self).pop("_records", None)
            if records is not None:
                with collection_paused():
                    capture, outcome, layout = read(records, _LAYOUTS, _MEANING)
                vars(self).update(capture=capture, outcome=outcome, layout=layout)

    @cached_property
    def capture(self) -> Capture:
        """See `Plan`."""
        self._look()
        found: Capture = vars(self)["capture"]
        return found

    @cached_property
    def outcome(self) -> Outcome:
        """See `Plan`."""
        self._look()
        found: Outcome = vars(self)["outcome"]
        return found

    @cached_property
    def layout(self) -> GraphLayout | None:
        """See `Plan`."""
        self._look()
        found: GraphLayout | None = vars(self)["layout"]
        return found

    def __reduce__(self) -> tuple[type[Plan], tuple[Any, ...]]:
        told = (self.promise, self.breakdown, self.layout, self.choices, self.provenance)
        return Plan, (self.capture, self.outcome, self.planner, *told)


_lock = threading.Lock()  # one for all plans


def _with_unrecorded(capture: Capture, profiles: Mapping[str, Profile]) -> Capture:
    """The capture, with the ops that devices do not have on record; `profiles` is by device."""
    found = [
        RefusalRecord(t.id, b, NOT_ON_RECORD)
        for b, backend in enumerate(capture.backends)
        if (profile := profiles.get(backend.device)) is not None
        for t in capture.tensors
        if t.kind == NODE and not t.supports >> b & 1
        and profile.decide(call_of_record(t, capture.tensors)).basis == UNRECORDED
    ]  # fmt: skip
    return replace(capture, refusals=(*(capture.refusals or ()), *found)) if found else capture


def read_plan(
    ask: Any,
    scheduler: Any,
    graph: Any,
    pins: dict[Any, tuple[Any, str, str]],
    norms: str | None = None,
    provenance: Provenance = UNKNOWN,
) -> Plan:
    """Returns the Plan that the native function `ask` gives. `pins` says who pinned tensors, and
    why. For a graph that libllama built its pins are known, but for the reason `norms` for norms.
    C: gp_sched_plan, gp_sched_read"""
    reasons = {
        int(ffi.cast("uintptr_t", raw)): (by, why) for raw, (_t, by, why) in pins.items() if by
    }
    found = ffi.new("struct gp_plan **")
    try:
        ask(scheduler, graph, found)  # gives a plan even when a Python predicate raised
        if found[0] == NULL:
            raise MissingFunctionError("the scheduler holds no plan: give it a graph first")
        plan = _NativePlan.of_records(_copied(found[0], reasons, norms), provenance)
        if profiles := profiles_of_files():
            vars(plan).update(capture=_with_unrecorded(plan.capture, profiles))
        return plan
    finally:
        if found[0] != NULL:
            lib.gp_plan_free(found[0])


class Planner(Protocol):
    """What `capture` needs of a `Scheduler`."""

    def plan(self, graph: Graph) -> Plan:
        """Plans a graph."""


@typed
def capture(scheduler: Planner, graph: Graph) -> Capture:
    """Returns everything that `scheduler` would look at to plan `graph`, including what each of its
    backends answers about each node. Changes neither of them.

    Raises what `Scheduler.plan` raises. C: gp_sched_plan
    """
    return scheduler.plan(graph).capture

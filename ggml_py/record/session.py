"""What a record has: processes, their schedulers, and the plans that these made."""

from __future__ import annotations

import contextlib
import re
import struct
from array import array
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..export.json.checked import check
from ..files.bounds import RECORD
from ..files.damage import INTERNAL, said
from ..files.reading import open_file, read_file
from ..files.secrets import hidden
from ..plan import Plan
from ..trace.decode import Layouts, Meaning, Records, read
from ..trace.html import MOST, table, text_html
from ..trace.names import TOKEN_INPUTS, counted
from ..trace.pins import NORMS
from ..trace.planned import Planned, format_bytes
from ..trace.probes import FUSED_OPS, refused_in
from ..trace.record import OF_PROGRAM, collection_paused
from ..trace.structs import Columns, Rows, numbers
from ..typed import typed
from . import stream
from .pipeline import no_pipeline
from .program_facts import made_in
from .reallocs import realloc_reason

if TYPE_CHECKING:
    from ..run import Run

DECODE, PROMPT, RESERVED, OTHER = KINDS = ("decode", "prompt", "reserved", "other")
_KV_CACHE = re.compile(rb"cache_[kv]_l\d+")
_LISTED = ("name", "nbytes", "op", "type", "ne")  # what a list of plans shows comes from these


@dataclass(eq=False)
class Process:
    """One process that was recorded. `ended` is true if it recorded its own end. Otherwise it was
    killed, ended without notice (_exit, exec) or still runs, and its counts are lower bounds."""

    pid: int
    head: dict[str, Any]
    ended: bool = False
    left_out: int = 0  # plans and computes that were not written: --max-size, --first, a full disk
    schedulers: dict[int, dict[str, Any]] = field(default_factory=dict)
    rows: list[bytes] = field(default_factory=list)  # arrays of gp_tensor_record
    bases: list[int] = field(default_factory=list)  # the number of the first row of each,
    starts: list[int] = field(default_factory=list)  # and its place among all rows
    n_rows: int = 0
    plans: dict[int, RecordedPlan] = field(default_factory=dict)
    runs: list[tuple[bytes, bytes]] = field(default_factory=list)  # computes, and their events

    def __str__(self) -> str:
        return f"{self.program}[{self.pid}]"

    def add_rows(self, rows: Rows, ids: Sequence[int]) -> None:
        """Adds the new rows of a plan whose tensors are `ids`. Rows are numbered as they are
        written, and the last new one has the plan's highest number: chunks before it may be lost.
        Raises ValueError for numbers that other rows have."""
        if not len(rows):
            return
        base = max(ids, default=-1) + 1 - len(rows)
        after = self.bases[-1] + self.n_rows - self.starts[-1] if self.rows else 0
        if base < after:
            raise ValueError("its rows have numbers of earlier ones")
        if len({id for id in ids if id >= base}) != len(rows):
            raise ValueError("its new rows are not those of its tensors")
        if base > after or not self.rows:  # some before it are lost
            self.bases.append(base)
            self.starts.append(self.n_rows)
        self.rows.append(rows.content)
        self.n_rows += len(rows)

    def places(self, ids: Sequence[int]) -> array[int]:
        """Where rows are in `_table`. Raises ValueError for lost ones."""
        found = array("q")
        ends = [*self.starts[1:], self.n_rows]
        for id in ids:
            part = bisect(self.bases, id) - 1
            place = id - self.bases[part] + self.starts[part] if part >= 0 else self.n_rows
            if part < 0 or place >= ends[part]:
                raise ValueError("some of its tensors were in a part that is lost")
            found.append(place)
        return found

    def check(self) -> Process:
        """Itself. Raises one of `INTERNAL` for a head that does not say what is needed."""
        about = self.head.get("about") or {}
        if not isinstance(about, dict):
            raise ValueError(f"about is {type(about).__name__}, expected an object")
        names = (*self.meaning.flags, *self.head["ops"], *self.head["types"])
        if any(type(name) is not str for name in names) or self.meaning.max_src < 1:
            raise ValueError("ops, types and flags: expected names, and max_src above 0")
        _ = self.argv, self.started, self.layouts[_TENSOR]
        return self

    @property
    def program(self) -> str:
        """Its name."""
        return str(self.head.get("program", "?"))

    @property
    def argv(self) -> tuple[str, ...]:
        """Its command line, without secrets."""
        return hidden(map(str, self.head.get("argv", ())))

    @property
    def started(self) -> int:
        """When its record began, ns since the epoch."""
        return int(self.head.get("time", 0))

    @property
    def upstream(self) -> str:
        """The version of its ggml."""
        return str(self.head.get("ggml_version", "?"))

    @cached_property
    def run(self) -> Run:
        """Its computes with their times. Raises ValueError if they were not recorded."""
        from .computes import run_of

        return run_of(self)

    @cached_property
    def layouts(self) -> Layouts:
        """The layouts of its arrays."""
        return stream.layouts(self.head["layouts"])

    @cached_property
    def _table(self) -> Rows:
        """All rows of its tensors."""
        return Rows(self.layouts[_TENSOR], b"".join(self.rows))

    @cached_property
    def listed(self) -> Columns:
        """Those columns of `_table` that a list of plans needs."""
        return {name: self._table[name] for name in _LISTED}

    @cached_property
    def meaning(self) -> Meaning:
        """What its numbers stand for."""
        ops, types = list(self.head["ops"]), list(self.head["types"])

        def name(names: list[str], i: int) -> str:
            return names[i] if 0 <= i < len(names) else f"{i}"

        numbers = self.head["enums"]
        return Meaning(
            lambda op: name(ops, op),
            lambda type_: name(types, type_),
            int(self.head["max_src"]),
            numbers["TensorFlag"],
            {n: text for text, n in numbers["BackendBufferUsage"].items()},
            {n: text for text, n in numbers["BackendDevType"].items()},
        )


_TENSOR = "gp_tensor_record"
_MOST_TENSORS = 1 << 20  # of a plan: each takes 4 bytes in the file and hundreds in memory
_MOST_COMPUTES = 1 << 25  # of one scheduler


@dataclass(eq=False)
class RecordedPlan:
    """One of the distinct plans of a process. The counts are those of all its schedulers."""

    index: int  # in the record, from 0
    process: Process
    number: int  # in its process
    scheduler: int  # that made it first
    thread: int
    before: int  # number of the plan that the scheduler made before it; -1: none
    sections: dict[str, bytes]
    rows: Sequence[int]  # the places of its tensors in the process's table
    at: int  # byte of the file
    planned: int = 0  # so often it was made,
    allocated: int = 0  # given memory
    computed: int = 0  # and computed
    first: int = 0  # ns since the epoch
    last: int = 0
    reallocs: int = 0  # so often memory was laid out again for it
    reasons: list[str] = field(default_factory=list)  # for that, each once
    counts: dict[int, Any] = field(default_factory=dict)  # gp_record_seen of each scheduler

    @cached_property
    def scalars(self) -> dict[str, int]:
        """The numbers of `struct gp_record_plan`."""
        (one,) = self._rows("plan", "gp_record_plan")
        return {name: int(value) for name, value in one.items()}

    def _listed(self, name: str) -> list[Any]:
        """What all its tensors have in a column of `Process.listed`."""
        column = self.process.listed[name]
        return [column[i] for i in self.rows]

    def check(self) -> None:
        """Raises one of `INTERNAL` if a list of plans could not show it."""
        _ = self.n_nodes, self.n_splits, self.n_copies, self.copy_bytes, self.n_tokens, self.n_ctx
        _ = self.difference, self.ops, self.scalars["n_copies"]

    def _rows(self, tag: str, struct: str) -> Rows:
        return Rows(self.process.layouts[struct], self.sections[tag])

    @property
    def n_nodes(self) -> int:
        """Nodes of its graph."""
        return self.scalars["n_nodes"]

    @property
    def n_splits(self) -> int:
        """Splits of its graph."""
        return len(self._rows("splits", "gp_split_record"))

    @property
    def n_copies(self) -> int:
        """Inputs of all its splits."""
        return len(self._rows("inputs", "gp_input_record"))

    @cached_property
    def copy_bytes(self) -> int:
        """Bytes that they copy."""
        nbytes = self._listed("nbytes")
        copied = self._rows("inputs", "gp_input_record")["tensor"]
        if outside := [i for i in copied if not 0 <= i < len(nbytes)]:
            raise ValueError(f"its splits copy tensor {outside[0]}, of {len(nbytes):,}")
        return sum(nbytes[i] for i in copied)

    @cached_property
    def n_tokens(self) -> int | None:
        """Tokens of the batch, if the graph has an input with a known name for them."""
        names = self._listed("name")
        for name in TOKEN_INPUTS:
            if name.encode() in names:
                listed, place = self.process.listed, self.rows[names.index(name.encode())]
                # Token ids are in one row; embeddings have a row for each token.
                is_ids = self.process.meaning.type(listed["type"][place]) == "i32"
                return int(listed["ne"][place][0 if is_ids else 1])
        return None

    @cached_property
    def n_ctx(self) -> int | None:
        """Room in tokens, for all sequences together, in the largest cache of llama.cpp that the
        graph uses. None without a cache, and for caches of older releases, which have one row."""
        names, shapes = (self.process.listed[name] for name in ("name", "ne"))
        caches = (shapes[i] for i in self.rows if _KV_CACHE.fullmatch(names[i]))
        return max((ne[1] * ne[2] for ne in caches if ne[1] > 1), default=None)

    @property
    def kind(self) -> str:
        """One of `KINDS`. "reserved": it was never given memory of its own, only room was made for
        it. "decode" and "prompt" need an input whose name is known: one token, or more."""
        if not self.allocated and not self.computed:
            return RESERVED
        if self.n_tokens is None:
            return OTHER
        return DECODE if self.n_tokens == 1 else PROMPT

    @property
    def label(self) -> str:
        """Its kind, with the number of tokens: "prompt of 512"."""
        return self.kind if self.n_tokens is None else f"{self.kind} of {self.n_tokens}"

    @property
    def difference(self) -> str:
        """How it differs from the plan that its scheduler made before it: "0: 'x' is [1], not
        [64]"; "first" without one."""
        why = self.sections.get("why", b"not recorded").decode("utf-8", "replace")
        before = self.process.plans.get(self.before)
        return why if before is None else f"{before.index}: {why}"

    @property
    def laid_out_as(self) -> RecordedPlan | None:
        """The plan in whose layout its graph last got its memory: itself, unless an earlier, larger
        graph was laid out and this one fits into it. None if it got none, or if that is not known:
        a record of an older version, or another plan that was left out."""
        last = max(self.counts.values(), key=lambda row: int(row["last"]), default=None)
        if last is None or not self.allocated or "layout" not in last:
            return None
        return self.process.plans.get(last["layout"])

    @property
    def plan(self) -> Plan:
        """The plan itself. Raises ValueError if a part of it is damaged."""
        return self._plan

    @cached_property
    def _plan(self) -> Plan:
        try:
            with collection_paused():
                return self._checked()
        except INTERNAL as error:
            raise ValueError(
                f"plan {self.index} of the record (byte {self.at:,}) is damaged: {said(error)}"
            ) from error

    def _checked(self) -> Plan:
        records = self._records()
        capture, outcome, layout = read(records, self.process.layouts, self.process.meaning)
        made = made_in(
            self.process, self.scheduler, capture.backends, self.n_tokens, self.n_ctx, self.first
        )
        plan = Plan(capture, outcome, "native", layout=layout, provenance=made)
        check(plan)
        choices = *refused_in(self._probes(), plan), *no_pipeline(plan, self._follows_a_pipeline)
        return plan.chosen(choices)

    @property
    def _follows_a_pipeline(self) -> bool:
        """Whether the scheduler before its own, for the same devices, had copies for pipeline
        parallelism and computed nothing. C++: llama_context::sched_reserve"""
        known = self.process.schedulers
        devices = known.get(self.scheduler, {}).get("backends")
        before = [s for s in known if s < self.scheduler and known[s].get("backends") == devices]
        s = max(before, default=-1)
        plans = [p for p in self.process.plans.values() if s in p._schedulers]
        computed = sum(int(p.counts[s]["computed"]) for p in plans if s in p.counts)
        return not computed and any(p.scalars["n_copies"] > 1 for p in plans)

    @cached_property
    def ops(self) -> frozenset[str]:
        """The ops of its nodes."""
        return frozenset(map(self.process.meaning.op, {*self._listed("op")[: self.n_nodes]}))

    def _probes(self) -> Iterator[Planned]:
        """Earlier plans of one of its schedulers with a fused op that it does without."""
        lacking = FUSED_OPS - self.ops
        for other in self.process.plans.values() if lacking else ():
            if other.index >= self.index:
                return
            if self._schedulers & other._schedulers and other.ops & lacking:
                with contextlib.suppress(ValueError):  # it is damaged
                    yield other.plan

    @property
    def _schedulers(self) -> set[int]:
        return {self.scheduler, *self.counts}

    def _records(self) -> Records:
        about = self.process.head.get("about") or {}
        build = f"{about.get('release') or self.process.upstream}-{OF_PROGRAM}"
        arrays = {_TAGS.get(tag, tag): content for tag, content in self.sections.items()}
        arrays["tensors"] = self.process._table.at(self.rows).content
        # Older records have it in a section of its own, still older ones have no layouts.
        (layout_of,) = struct.unpack("<i", arrays.get("layoutof", bytes(4)))
        numbers = {"layout_of": layout_of, **self.scalars}
        return Records(numbers, arrays, self.process.upstream, build, {}, NORMS)


_SEEN = ("plan", "scheduler", "planned", "allocated", "computed", "first", "last")
# What chunks of each type have.
_CHUNKS = {
    "head": "what it says of a process", "schd": "what it says of a scheduler", "note": "a note",
    "seen": "counts of plans", "allc": "memory laid out again", "runs": "computes",
}  # fmt: skip
_NAMED = 8  # damaged plans in a sentence

# Arrays of struct gp_plan with another tag than their name.
_TAGS = {
    "deps": "alloc_deps", "cpunodes": "cpu_nodes", "capacity": "capacities",
    "lorder": "layout_order", "lbuffers": "layout_buffers",
}  # fmt: skip


class DamagedPlan(NamedTuple):
    """A plan that cannot be read."""

    number: int  # in its process; -1 if that is not known
    process: str  # "llama-server[4711]"
    at: int  # byte of the file
    why: str

    def __str__(self) -> str:
        number = f"plan {self.number}" if self.number >= 0 else "a plan"
        return f"{number} of {self.process} (byte {self.at:,}): {self.why}"


class Record:
    """A record that `ggml-py record` or `ggml_py.record` wrote.

    `plans` are its distinct plans, in the order they were made; `processes` made them.
    Damaged parts are left out and named in `damage`, plans in `damaged`.
    """

    def __init__(self, path: Path | str, content: bytes) -> None:
        """Raises TypeError for a content that is not bytes, and ValueError as `read`."""
        if not isinstance(content, bytes):
            raise TypeError(f"content: expected bytes, got {type(content).__name__}")
        self.path = Path(path)
        self.damage: list[stream.Damage] = []
        self.damaged: list[DamagedPlan] = []
        self.processes: list[Process] = []
        self.plans: list[RecordedPlan] = []
        with collection_paused():
            self._read(content)
        if not self.processes:
            raise ValueError(
                f"{path}: the record is empty: no scheduler planned a graph, or its first chunk is "
                "damaged"
            )

    def _read(self, content: bytes) -> None:
        newest: dict[int, Process] = {}  # by its number
        for chunk in stream.chunks(content, self.damage):
            try:
                self._take(chunk, newest)
            except INTERNAL as error:
                owner = newest.get(chunk.process)
                if chunk.type == "plan":
                    self._leave_out(-1, owner, chunk.at, said(error))
                else:
                    what = f"{_CHUNKS.get(chunk.type, chunk.type)}: {said(error)}"
                    is_end = chunk.at + chunk.size == len(content)
                    self.damage.append(stream.Damage(chunk.at, chunk.size, is_end, what))
        for plan in self.plans:
            try:
                plan.check()
            except INTERNAL as error:
                self._leave_out(plan.number, plan.process, plan.at, said(error))
                del plan.process.plans[plan.number]
        self.plans = [plan for plan in self.plans if plan.number in plan.process.plans]
        for index, plan in enumerate(self.plans):
            plan.index = index

    @classmethod
    @typed
    def read(cls, path: Path | str) -> Record:
        """Reads a record. Raises ValueError if the file is none, or if nothing of it is whole."""
        with open_file(path) as file:  # whatever else it is, it may be larger
            if file.read(len(stream.MAGIC)) != stream.MAGIC:
                raise ValueError(f"{path} is not a record that `ggml-py record` wrote")
        content = read_file(path, RECORD)
        return cls(path, content)

    @property
    def unreadable(self) -> int:
        """The number of `damaged` plans."""
        return len(self.damaged)

    def whole(self) -> list[tuple[RecordedPlan, Plan]]:
        """All plans that can be read completely; the others are in `damaged` from then on."""
        found = []
        for one in self.plans:
            try:
                found.append((one, one.plan))
            except ValueError as error:
                if not any(one.at == known.at for known in self.damaged):
                    why = str(error).partition(" is damaged: ")[2]
                    self._leave_out(one.number, one.process, one.at, why)
        return found

    @property
    def damaged_plans(self) -> str:
        """A sentence on the plans that cannot be read; "" without one."""
        found = self.damaged
        if not found:
            return ""
        n = len({one.at for one in found} | {plan.at for plan in self.plans})
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        are = "is" if len(found) == 1 else "are"
        which = "; ".join(map(str, found[:_NAMED]))
        return f"{len(found)} of {counted(n, 'plan')} {are} damaged: {which}{more}"

    def _leave_out(self, number: int, owner: Process | None, at: int, why: str) -> None:
        process = "a process whose head is damaged" if owner is None else str(owner)
        self.damaged.append(DamagedPlan(number, process, at, why))

    def _take(self, chunk: stream.Chunk, newest: dict[int, Process]) -> None:
        if chunk.type == "head":
            newest.pop(chunk.process, None)
            head = chunk.data()
            process = Process(int(head["pid"]), head).check()
            newest[chunk.process] = process
            self.processes.append(process)
            return
        owner = newest.get(chunk.process)
        if owner is None:  # its head is damaged: its numbers mean nothing
            if chunk.type == "plan":
                self._leave_out(-1, None, chunk.at, "its numbers mean nothing without the head")
            return
        if chunk.type == "schd":
            data = chunk.data()
            for backend in data["backends"]:
                if not isinstance(backend["name"], str):
                    raise ValueError(f"a backend is named {backend['name']!r}, expected text")
                _ = backend["async"], backend.get("device")
            owner.schedulers[int(data["scheduler"])] = data
        elif chunk.type == "note":
            data = chunk.data()
            owner.left_out = int(data.get("left_out", owner.left_out))
            owner.ended = bool(data.get("ended", owner.ended))
        elif chunk.type == "plan":
            self._take_plan(chunk, owner)
        elif chunk.type == "seen":
            _take_seen(chunk, owner)
        elif chunk.type == "allc":
            _take_realloc(chunk, owner)
        elif chunk.type == "runs":
            _take_runs(chunk, owner)

    def _take_plan(self, chunk: stream.Chunk, owner: Process) -> None:
        sections = {tag: bytes(part) for tag, part in chunk.sections().items()}
        rows = Rows(owner.layouts[_TENSOR], sections.pop("rows"))
        ids = numbers(sections["ids"], "u4")
        if len(ids) > _MOST_TENSORS:
            raise ValueError(f"{len(ids):,} tensors, the most that is read is {_MOST_TENSORS:,}")
        owner.add_rows(rows, ids)  # later plans have some of them, whatever this one is
        (head,) = Rows(owner.layouts["gp_record_plan"], sections["plan"])
        number = int(head["plan"])
        try:
            if number in owner.plans:
                raise ValueError("an earlier plan has its number")
            places = owner.places(ids)
        except ValueError as error:
            self._leave_out(number, owner, chunk.at, str(error))
            return
        time = int(head["time"])
        plan = RecordedPlan(
            len(self.plans), owner, number, int(head["scheduler"]), int(head["thread"]),
            int(head["before"]), sections, places, chunk.at, planned=1, first=time, last=time,
        )  # fmt: skip
        owner.plans[number] = plan
        self.plans.append(plan)

    @typed
    def find(self, kind: str) -> list[RecordedPlan]:
        """The plans of a kind, the most computed first. Raises ValueError for an unknown kind."""
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}: expected {', '.join(KINDS)}")
        found = [plan for plan in self.plans if plan.kind == kind]
        return sorted(found, key=lambda plan: (-plan.computed, -plan.planned, plan.index))

    def __iter__(self) -> Iterator[RecordedPlan]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def _repr_html_(self) -> str:
        """A row for each of the first plans."""
        rows = [[one.index, str(one.process), one.label, one.n_splits, format_bytes(one.copy_bytes),
                 one.computed] for one in self.plans[:MOST]]  # fmt: skip
        more = len(self.plans) - len(rows)
        said = text_html(repr(self)[1:-1]) + table(
            ["plan", "process", "kind", "splits", "copied", "computes"], rows
        )
        return said + (text_html(f"{more} more") if more else "")

    def __repr__(self) -> str:
        return f"<Record {self.path}: {len(self.plans)} plans of {len(self.processes)} processes>"


def _take_runs(chunk: stream.Chunk, owner: Process) -> None:
    parts = chunk.sections()
    computes = Rows(owner.layouts["gp_record_compute"], bytes(parts["computes"]))
    events = Rows(owner.layouts["gp_run_event"], bytes(parts["events"]))
    which = computes["compute"]
    if which and not 0 <= min(which) <= max(which) < _MOST_COMPUTES:
        raise ValueError(f"a compute of number {max(which):,}, the most is {_MOST_COMPUTES:,}")
    if sum(computes["n_events"]) != len(events):
        raise ValueError(f"{len(events):,} events, and its computes say another number")
    owner.runs.append((computes.content, events.content))


def _take_seen(chunk: stream.Chunk, owner: Process) -> None:
    """Later counts of the same scheduler and plan replace earlier ones."""
    found = Rows(owner.layouts["gp_record_seen"], bytes(chunk.sections()["seen"]))
    if lacking := {*_SEEN} - {*found.layout.by_name}:
        raise ValueError(f"counts without {', '.join(sorted(lacking))}")
    for row in found:
        plan = owner.plans.get(int(row["plan"]))
        if plan is not None:
            plan.counts[int(row["scheduler"])] = row
            rows = plan.counts.values()
            for name in ("planned", "allocated", "computed"):
                setattr(plan, name, sum(int(row[name]) for row in rows))
            plan.first = min(int(row["first"]) for row in rows)
            plan.last = max(int(row["last"]) for row in rows)


def _take_realloc(chunk: stream.Chunk, owner: Process) -> None:
    for row in Rows(owner.layouts["gp_record_realloc"], bytes(chunk.sections()["reallocs"])):
        plan = owner.plans.get(int(row["plan"]))
        if plan is not None:
            plan.reallocs += 1
            reason = realloc_reason(row["reason"])
            if reason not in plan.reasons:
                plan.reasons.append(reason)

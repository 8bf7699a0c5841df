"""What a record has: processes, their schedulers, and the plans that these made."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plan import Plan
from ..trace.decode import Layouts, Meaning, Records, read
from ..trace.pins import NORMS
from ..trace.planned import Planned
from ..trace.probes import FUSED_OPS, refused_in
from ..trace.record import OF_PROGRAM, collection_paused
from ..typed import typed
from . import stream
from .pipeline import no_pipeline
from .program_facts import made_in
from .reallocs import realloc_reason

if TYPE_CHECKING:
    from ..run import Run

DECODE, PROMPT, RESERVED, OTHER = KINDS = ("decode", "prompt", "reserved", "other")
# Inputs with a column or a number for each token, by the programs' names.
_TOKENS = ("inp_tokens", "inp_embd", "embd", "tokens", "leaf_tokens")
_KV_CACHE = re.compile(rb"cache_[kv]_l\d+")


@dataclass(eq=False)
class Process:
    """One process that was recorded. `ended` is true if it recorded its own end. Otherwise it was
    killed, ended without notice (_exit, exec) or still runs, and its counts are lower bounds."""

    pid: int
    head: dict[str, Any]
    ended: bool = False
    left_out: int = 0  # plans and computes that were not written: --max-size, --first, a full disk
    schedulers: dict[int, dict[str, Any]] = field(default_factory=dict)
    rows: list[np.ndarray[Any, Any]] = field(default_factory=list)  # arrays of gp_tensor_record
    n_rows: int = 0  # in all of them
    plans: dict[int, RecordedPlan] = field(default_factory=dict)
    runs: list[tuple[bytes, bytes]] = field(default_factory=list)  # computes, and their events

    @property
    def program(self) -> str:
        """Its name."""
        return str(self.head.get("program", "?"))

    @property
    def argv(self) -> tuple[str, ...]:
        """Its command line."""
        return tuple(map(str, self.head.get("argv", ())))

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
        """The dtypes of its arrays."""
        return stream.layouts(self.head["layouts"])

    @cached_property
    def table(self) -> np.ndarray[Any, Any]:
        """All rows of its tensors."""
        dtype = self.layouts[_TENSOR]
        return np.concatenate(self.rows, dtype=dtype) if self.rows else np.empty(0, dtype)

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
        dtype = self.process.layouts["gp_record_plan"]
        (one,) = np.frombuffer(self.sections["plan"], dtype)
        return {name: int(one[name]) for name in dtype.names or ()}

    @cached_property
    def tensors(self) -> np.ndarray[Any, Any]:
        """The rows of its tensors, without addresses."""
        ids = np.frombuffer(self.sections["ids"], "<u4")
        found: np.ndarray[Any, Any] = self.process.table[ids]
        return found

    @property
    def n_nodes(self) -> int:
        """Nodes of its graph."""
        return self.scalars["n_nodes"]

    @property
    def n_splits(self) -> int:
        """Splits of its graph."""
        size = self.process.layouts["gp_split_record"].itemsize
        return len(self.sections["splits"]) // size

    @property
    def n_copies(self) -> int:
        """Inputs of all its splits."""
        size = self.process.layouts["gp_input_record"].itemsize
        return len(self.sections["inputs"]) // size

    @cached_property
    def copy_bytes(self) -> int:
        """Bytes that they copy."""
        inputs = np.frombuffer(self.sections["inputs"], self.process.layouts["gp_input_record"])
        return int(self.tensors["nbytes"][inputs["tensor"]].sum())

    @cached_property
    def n_tokens(self) -> int | None:
        """Tokens of the batch, if the graph has an input with a known name for them."""
        names = self.tensors["name"]
        for name in _TOKENS:
            found = np.flatnonzero(names == name.encode())
            if len(found):
                row = self.tensors[found[0]]
                # Token ids are in one row; embeddings have a row for each token.
                is_ids = self.process.meaning.type(int(row["type"])) == "i32"
                return int(row["ne"][0 if is_ids else 1])
        return None

    @cached_property
    def n_ctx(self) -> int | None:
        """Room in tokens, for all sequences together, in the largest cache of llama.cpp that the
        graph uses. None without a cache, and for caches of older releases, which have one row."""
        names = self.tensors["name"]
        rows = [
            self.tensors[i] for i in np.flatnonzero(np.char.startswith(names, b"cache_"))
            if _KV_CACHE.fullmatch(names[i])
        ]  # fmt: skip
        sizes = (int(r["ne"][1]) * int(r["ne"][2]) for r in rows if r["ne"][1] > 1)
        return max(sizes, default=None)

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
        if last is None or not self.allocated or "layout" not in (last.dtype.names or ()):
            return None
        return self.process.plans.get(int(last["layout"]))

    @property
    def plan(self) -> Plan:
        """The plan itself. Raises ValueError if a part of it is damaged."""
        return self._plan

    @cached_property
    def _plan(self) -> Plan:
        try:
            with collection_paused():
                found = read(self._records(), self.process.layouts, self.process.meaning)
        except (KeyError, IndexError, ValueError, UnicodeDecodeError) as error:
            raise ValueError(f"plan {self.index} of the record is damaged: {error}") from error
        capture, outcome, layout = found
        made = made_in(
            self.process, self.scheduler, capture.backends, self.n_tokens, self.n_ctx, self.first
        )
        plan = Plan(capture, outcome, "native", layout=layout, provenance=made)
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
        n = self.n_nodes
        return frozenset(map(self.process.meaning.op, np.unique(self.tensors["op"][:n]).tolist()))

    def _probes(self) -> Iterator[Planned]:
        """Earlier plans of one of its schedulers with a fused op that it does without."""
        lacking = FUSED_OPS - self.ops
        for other in self.process.plans.values() if lacking else ():
            if other.index >= self.index:
                return
            if self._schedulers & other._schedulers and other.ops & lacking:
                yield other.plan

    @property
    def _schedulers(self) -> set[int]:
        return {self.scheduler, *self.counts}

    def _records(self) -> Records:
        about = self.process.head.get("about") or {}
        build = f"{about.get('release') or self.process.upstream}-{OF_PROGRAM}"
        arrays = {_TAGS.get(tag, tag): content for tag, content in self.sections.items()}
        arrays["tensors"] = self.tensors.tobytes()
        # Older records have it in a section of its own, still older ones have no layouts.
        (layout_of,) = struct.unpack("<i", arrays.get("layoutof", bytes(4)))
        numbers = {"layout_of": layout_of, **self.scalars}
        return Records(numbers, arrays, self.process.upstream, build, {}, NORMS)


# Arrays of struct gp_plan with another tag than their name.
_TAGS = {
    "deps": "alloc_deps", "cpunodes": "cpu_nodes", "capacity": "capacities",
    "lorder": "layout_order", "lbuffers": "layout_buffers",
}  # fmt: skip


class Record:
    """A record that `ggml-py record` or `ggml_py.record` wrote.

    `plans` are its distinct plans, in the order they were made; `processes` made them. Damaged
    parts are left out and named in `damage`.
    """

    def __init__(self, path: Path | str, content: bytes) -> None:
        """Raises TypeError for a content that is not bytes, and ValueError as `read`."""
        if not isinstance(content, bytes):
            raise TypeError(f"content: expected bytes, got {type(content).__name__}")
        self.path = Path(path)
        self.damage: list[stream.Damage] = []
        self.processes: list[Process] = []
        self.plans: list[RecordedPlan] = []
        self.unreadable = 0  # plans whose tensors were in a damaged part
        newest: dict[int, Process] = {}  # by its number
        for chunk in stream.chunks(content, self.damage):
            self._take(chunk, newest)
        if not self.processes:
            raise ValueError(
                f"{path}: the record is empty: no scheduler planned a graph, or its first chunk is "
                "damaged"
            )

    @classmethod
    @typed
    def read(cls, path: Path | str) -> Record:
        """Reads a record. Raises ValueError if the file is none, or if nothing of it is whole."""
        content = Path(path).read_bytes()
        if not content.startswith(stream.MAGIC):
            raise ValueError(f"{path} is not a record that `ggml-py record` wrote")
        return cls(path, content)

    def _take(self, chunk: stream.Chunk, newest: dict[int, Process]) -> None:
        if chunk.type == "head":
            head = chunk.data()
            newest[chunk.process] = process = Process(int(head["pid"]), head)
            self.processes.append(process)
            return
        owner = newest.get(chunk.process)
        if owner is None:  # its head is damaged: its numbers mean nothing
            self.unreadable += chunk.type == "plan"
            return
        if chunk.type == "schd":
            data = chunk.data()
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
            parts = chunk.sections()
            owner.runs.append((bytes(parts["computes"]), bytes(parts["events"])))

    def _take_plan(self, chunk: stream.Chunk, owner: Process) -> None:
        sections = {tag: bytes(part) for tag, part in chunk.sections().items()}
        (head,) = np.frombuffer(sections["plan"], owner.layouts["gp_record_plan"])
        rows = np.frombuffer(sections.pop("rows"), owner.layouts[_TENSOR])
        number, n_rows = int(head["plan"]), owner.n_rows + len(rows)
        ids = np.frombuffer(sections["ids"], "<u4")
        # Rows are numbered as they are written: after a lost chunk the numbers do not fit.
        if number != len(owner.plans) or (len(ids) and int(ids.max()) >= n_rows):
            self.unreadable += 1
            return
        owner.rows.append(rows)
        owner.n_rows = n_rows
        time = int(head["time"])
        plan = RecordedPlan(
            len(self.plans), owner, number, int(head["scheduler"]), int(head["thread"]),
            int(head["before"]), sections, planned=1, first=time, last=time,
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

    def __repr__(self) -> str:
        return f"<Record {self.path}: {len(self.plans)} plans of {len(self.processes)} processes>"


def _take_seen(chunk: stream.Chunk, owner: Process) -> None:
    """Later counts of the same scheduler and plan replace earlier ones."""
    for row in np.frombuffer(chunk.sections()["seen"], owner.layouts["gp_record_seen"]):
        plan = owner.plans.get(int(row["plan"]))
        if plan is not None:
            plan.counts[int(row["scheduler"])] = row
            rows = plan.counts.values()
            for name in ("planned", "allocated", "computed"):
                setattr(plan, name, sum(int(row[name]) for row in rows))
            plan.first = min(int(row["first"]) for row in rows)
            plan.last = max(int(row["last"]) for row in rows)


def _take_realloc(chunk: stream.Chunk, owner: Process) -> None:
    for row in np.frombuffer(chunk.sections()["reallocs"], owner.layouts["gp_record_realloc"]):
        plan = owner.plans.get(int(row["plan"]))
        if plan is not None:
            plan.reallocs += 1
            reason = realloc_reason(row["reason"])
            if reason not in plan.reasons:
                plan.reasons.append(reason)

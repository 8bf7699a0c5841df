"""A plan: which backend runs each node, how the graph is cut into splits, what is copied.

Plain data, read out of the scheduler once; nothing here touches the native library.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answers.passes import passes_text
from .names import AtLeast
from .plan_tensor import PlanTensor as PlanTensor
from .record import (
    COPY,
    NODE,
    BackendRecord,
    BufferRecord,
    Capture,
    CpuRecord,
    Outcome,
    Settings,
    SplitRecord,
    TensorRecord,
    dumped_name,
)  # fmt: skip
from .split import Split as Split
from .split import SplitInput as SplitInput
from .split import order_of_plan

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..backends.device import Device
    from .advice.facts import Finding
    from .answers.decisions import Decisions
    from .answers.diff import Diff
    from .answers.explain import Explanation
    from .answers.why_not import WhyNot
    from .shares import DeviceShare
    from .steps import Step
    from .what_if import Moves, Offload, Pins, Supports


@dataclass(frozen=True, eq=False)
class Plan:
    """What a planner decided for one graph: ggml's own scheduler, or the reference."""

    capture: Capture
    outcome: Outcome
    planner: str = "native"  # or "reference", "debug log", "snapshot"

    def __repr__(self) -> str:
        return f"<Plan: {self.headline()}>"

    def __eq__(self, other: object) -> bool:
        """Equal when graph and outcome are, whoever planned; where tensors lay in memory is not
        recorded."""
        if not isinstance(other, Plan):
            return NotImplemented
        return self.capture == other.capture and self.outcome == other.outcome

    __hash__ = object.__hash__

    @property
    def settings(self) -> Settings:
        """What it was made with."""
        return self.capture.settings

    @property
    def backends(self) -> tuple[BackendRecord, ...]:
        """The backends, highest priority first."""
        return self.capture.backends

    @property
    def buffers(self) -> tuple[BufferRecord, ...]:
        """The buffers that tensors of the graph lived in before planning."""
        return self.capture.buffers

    @cached_property
    def tensors(self) -> tuple[TensorRecord, ...]:
        """By id: the nodes in graph order, the leafs, the others, the copies."""
        return self.capture.tensors + self.outcome.copies

    @cached_property
    def n_named(self) -> Mapping[str, int]:
        """How many tensors have each name; copies are not counted."""
        return Counter(t.name for t in self.capture.tensors)

    @property
    def split_records(self) -> tuple[SplitRecord, ...]:
        """The splits as they were recorded."""
        return self.outcome.splits

    @cached_property
    def nodes(self) -> tuple[PlanTensor, ...]:
        """The nodes, in graph order."""
        return tuple(PlanTensor(self, t.id) for t in self.tensors if t.kind == NODE)

    @cached_property
    def leafs(self) -> tuple[PlanTensor, ...]:
        """The leafs (weights and inputs), in graph order."""
        return tuple(PlanTensor(self, i) for i in self.capture.leaf_ids)

    @cached_property
    def copies(self) -> tuple[PlanTensor, ...]:
        """By tensor, backend and which of the n_copies: the copies that the scheduler made, and of
        graph inputs that have some for pipeline parallelism the original, which is the current one.
        """
        placed, now = self.outcome.placements, self.settings.cur_copy
        at = {}
        for t in self.tensors:
            if t.kind == COPY:
                p = placed[t.id]
                at[p.copy_of, p.backend, p.copy_index] = t.id
        at = {(of, b, now): of for of, b, _i in at} | at
        return tuple(PlanTensor(self, at[key]) for key in sorted(at))

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """The splits, in the order they are computed."""
        return tuple(Split(self, i, record) for i, record in enumerate(self.split_records))

    @cached_property
    def copied(self) -> tuple[SplitInput, ...]:
        """What is copied between backends in one evaluation, in that order: what all counts of
        copies and of their bytes count."""
        return tuple(given for split in self.splits for given in split.inputs)

    @cached_property
    def copied_for(self) -> Mapping[int, Sequence[Split]]:
        """The splits that each tensor is copied for, by its id; none for what is not copied."""
        found: dict[int, list[Split]] = {}
        for given in self.copied:
            found.setdefault(given.tensor.id, []).append(given.split)
        return found

    @cached_property
    def order(self) -> tuple[PlanTensor, ...] | None:
        """The nodes as they are computed: `nodes`, unless a backend reorders those of its splits;
        None where a backend may and nobody knows how."""
        order = order_of_plan(self)
        return None if order is None else tuple(map(self.tensor, order))

    @cached_property
    def on_cpu(self) -> Mapping[int, CpuRecord]:
        """How the CPU backend computes its nodes, by their ids (`PlanTensor.cpu`)."""
        return {record.node: record for record in self.capture.cpu}

    @property
    def moved(self) -> tuple[PlanTensor, ...] | None:
        """The nodes that backends took out of the graph's order; None where `order` is."""
        found: list[PlanTensor] = []
        for split in self.splits:
            if (moved := split.moved) is None:
                return None
            found += moved
        return tuple(found)

    @property
    def n_splits(self) -> int:
        """Runs of nodes that the graph is cut into."""
        return len(self.split_records)

    @property
    def copy_bytes(self) -> int:
        """Bytes copied between backends in one evaluation; of a log the least, an `int` whose
        `most` says how many they may be."""
        return sum(given.nbytes for given in self.copied)

    @property
    def n_inputs(self) -> int:
        """Tensors copied between backends in one evaluation."""
        return sum(len(record.inputs) for record in self.split_records)

    @property
    def assignments(self) -> Mapping[int, str | None]:
        """Tensor id -> name of its backend; leafs and copies included."""
        return {t.id: self.tensor(t.id).backend for t in self.tensors}

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every question the scheduler asked and every decision it made, in order.

        By the reference scheduler over this plan's capture. Raises ValueError for a plan that does
        not hold what the backends answer (`from_debug_log`).
        """
        from .steps import steps_of

        return steps_of(self)

    @cached_property
    def reference(self) -> Plan:
        """What the reference scheduler makes of the same graph; equal to this plan unless this
        plan's ggml has a rule that the reference does not know."""
        from . import reference

        return self if self.planner == "reference" else reference.plan(self.capture)

    def what_if(
        self,
        *,
        pins: Pins | None = None,
        supports: Supports | None = None,
        offload: Offload | None = None,
        move_weights: Moves | None = None,
        op_offload: bool | None = None,
        drop: Iterable[str] = (),
        upstream: str | None = None,
        parallel: bool | None = None,
    ) -> Plan:
        """The reference scheduler's plan of the same graph under other circumstances.

        Tensors are meant by name (the last one that has it), shell pattern or id. `pins` are
        {"ffn_norm-3": "CPU"}, None takes one away; a pattern pins the nodes that are computed.
        `supports` is {("gpu0", "TOP_K"): True}, by op, its description, or node; `offload` is the
        same for "wants the op although its weight has to be copied", a number being the least rows.
        `move_weights={"blk.3.*": "gpu0"}` puts what has memory before planning (the KV cache too)
        into memory of that backend, or of a buffer type, with its views. `drop=["BLAS"]` leaves
        backends out. `upstream="0.17.0"` plans by the rules of another release, by any name that
        `ggml-py build --list` prints.

        Approximate: types and layouts stay (no repacking); backends that answer differently about
        tensors in other memory are not asked again; nobody looks whether the memory suffices; the
        other backends keep the buffer types they allocated from. Otherwise it is the plan that
        ggml makes once the change is real.

        Raises KeyError for names that match nothing, ValueError and TypeError for changes that make
        no sense, `reference.CannotPlanError` (a ValueError) where ggml would abort.
        """
        from .what_if import what_if

        return what_if(
            self, pins, supports, offload, move_weights, op_offload, drop, upstream, parallel
        )

    @cached_property
    def decisions(self) -> Decisions:
        """`steps`, by tensor."""
        from .answers.decisions import Decisions

        return Decisions(self)

    def explain(self, which: str | int | PlanTensor) -> Explanation:
        """Why a tensor is where it is: the chain of decisions, back to its root.

        `which` is a node's index or a name, as `node` takes it. Printed, it is text to read; its
        `headline` is one line ("1.off via src[4] blk.0.attn_sinks.weight"). Raises KeyError.
        """
        from .answers.explain import explain

        return explain(self, self._subject(which))

    def why_not(
        self, which: str | int | PlanTensor, backend: str, device: Device | Backend | None = None
    ) -> WhyNot:
        """Why a tensor is not on a backend: the first rule that kept it off, what would have kept
        it off then, and what would change it, tried with `what_if`.

        `which` is a node's index or a name, as `node` takes it; `backend` a name or its device's.
        With a live `device`, where the op is not supported, the answer has the nearest variant that
        the device supports. Raises KeyError for names that are not there, ValueError for a plan
        that does not hold what the backends answer (`from_debug_log`).
        """
        from .answers.why_not import why_not

        return why_not(self, self._subject(which), backend, device)

    def _subject(self, which: str | int | PlanTensor) -> PlanTensor:
        if not isinstance(which, PlanTensor):
            return self.node(which)
        if which.plan is not self and which.plan != self:
            raise ValueError(f"{which!r} is of another plan: expected one of this, or its name")
        return self.tensor(which.id)

    def tensor(self, id: int) -> PlanTensor:
        """Any tensor by its id."""
        return PlanTensor(self, id)

    def node(self, which: str | int) -> PlanTensor:
        """A node by index, or by name: names repeat in real graphs, the last one is meant.

        A name that no node has finds the leaf, the copy or the view source. A name that ggml's
        debug print has cut finds the tensor with the whole name. Raises KeyError, which lists the
        names if there are several.
        """
        if isinstance(which, int):
            if not 0 <= which < len(self.nodes):
                raise KeyError(f"node {which}: the graph has nodes 0..{len(self.nodes) - 1}")
            return self.nodes[which]
        for t in (*reversed(self.nodes), *self.leafs):
            if t.name == which:
                return t
        for record in reversed(self.tensors):
            if record.name == which:
                return self.tensor(record.id)
        whole = {r.name: None for r in self.tensors if which == dumped_name(r.name) != r.name}
        if len(whole) == 1:
            return self.node(next(iter(whole)))
        if whole:
            first = ", ".join([*whole][:10]) + ", …" * (len(whole) > 10)
            raise KeyError(f"no node named '{which}'; {len(whole)} names are cut so: {first}")
        names = list(dict.fromkeys(t.name for t in (*self.nodes, *self.leafs) if t.name))
        near = [name for name in names if which in name][:5]
        near = near or get_close_matches(which, names, 5)
        raise KeyError(
            f"no node named '{which}'" + (f"; like it: {', '.join(near)}" if near else "")
        )

    def find(self, pattern: str) -> tuple[PlanTensor, ...]:
        """All nodes, then leafs, whose name matches a shell pattern ("Qcur-*")."""
        every = (*self.nodes, *self.leafs)
        return tuple(t for t in every if fnmatch.fnmatchcase(t.name, pattern))

    def passes(self) -> str:
        """The assignment after each pass and sweep: a letter per node, '?' = not assigned yet; then
        the same for the leafs, where there are some.

        View ops take part from pass 4 on. The last line names the backends' letters. Raises
        ValueError for a plan that does not hold it (`from_debug_log`).
        """
        if self.capture.source != "scheduler":
            raise ValueError(f"a {self.capture.source} does not have the passes, only their result")
        return passes_text(self)

    @cached_property
    def has_causes(self) -> bool:
        """Whether it has any cause: a log of ggml as it is released has none."""
        return any(p.cause for p in self.outcome.placements)

    @cached_property
    def has_compute_flags(self) -> bool:
        """Whether this release marks the nodes that are computed (since 0.9.6)."""
        return any("compute" in node.flags for node in self.nodes)

    def nodes_per_backend(self) -> dict[str, int]:
        """How many nodes each backend computes."""
        counts = Counter(n.backend for n in self.nodes if n.is_computed)
        return {b.name: counts[b.name] for b in self.backends}

    def shares(self) -> list[DeviceShare] | None:
        """Each backend's part of the nodes, of the FLOPs (estimated), of the bytes that are read
        and written, and the weights in its memory. None for a plan without shapes (`unknown`)."""
        from .shares import shares

        return shares(self)

    def headline(self) -> str:
        """One line: splits, copies, bytes copied; who has how much of nodes, FLOPs and bytes."""
        from .shares import in_words

        per_backend = self.nodes_per_backend()
        total = sum(per_backend.values()) or 1
        nodes = ", ".join(f"{name} {n} ({n / total:.0%})" for name, n in per_backend.items())
        shares = self.shares()
        start = (
            f"{self.n_splits} splits, {self.n_inputs} copies "
            f"({format_bytes(self.copy_bytes)}), nodes: {nodes}"
        )
        return start if shares is None else f"{start}; {in_words(shares)}"

    def diff(self, other: Plan, backends: Mapping[str, str] | None = None) -> Diff:
        """What `other` decides otherwise: assignments, causes, splits, copies and their bytes. True
        when there is something; `str` of it is a report.

        Tensors are matched by name, and by position where names fail. `backends` renames backends
        of this plan: {"gpu0": "CUDA0"}. Raises KeyError for a backend that it does not have.
        """
        from .answers.diff import diff

        return diff(self, other, backends)

    def advice(self, min_bytes: int = 1 << 20) -> tuple[Finding, ...]:
        """What its owner may want to change, by bytes per evaluation, the most first.

        Findings that are only about copies of fewer than `min_bytes` bytes together are left out.
        Of a plan that was read from a debug log the last finding, GP100, names the checks that it
        does not hold enough for. Each id has a page: docs/advice/README.md. Raises ValueError for
        a `min_bytes` that is no number of bytes.
        """
        from .advice.checks import advice

        return advice(self, min_bytes)

    def text(self) -> str:
        """Upstream's GGML_SCHED_DEBUG=2 layout, line for line, with the cause column filled."""
        from ..export import to_text

        return to_text.render(self)

    def snapshot(self) -> str:
        """A page for version control: who runs each node and why, splits, copies; a change of the
        plan is a small change of the page. Without what depends on the machine."""
        from ..export.snapshot import render

        return render(self)

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """The plan as JSON data; written to `path` when one is given (whole or not at all)."""
        from ..export.json import plan as to_json

        return to_json.write(self, path) if path is not None else to_json.render(self)

    def export(
        self,
        path: str | Path,
        format: str | None = None,
        *,
        other: Plan | None = None,
        force: bool = False,
    ) -> None:
        """Writes the plan in a format that the file's name tells: "plan.html" is a page to look at,
        "plan.json.gz" what `from_json` reads. `export.formats.EXPORTERS` lists them; `format` names
        another. `other` is a plan to compare it with, in formats that can.

        The file is whole or not there. Raises FileExistsError where one is there already, unless
        `force`; ValueError for a name or format that is not known.
        """
        from ..export import formats

        formats.export(self, path, format, other, force)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from ..export import to_notebook

        return to_notebook.plan(self)

    @staticmethod
    def from_json(path: str | Path) -> Plan:
        """A plan that `to_json` wrote. Raises ValueError for anything else."""
        from ..export.json import plan as to_json

        return to_json.read(path)

    @staticmethod
    def from_debug_log(text: str, index: int = -1, upstream: str | None = None) -> Plan:
        """The plan in a log with what ggml prints for GGML_SCHED_DEBUG=2, whatever is around it.

        A log has a print for each time that the scheduler planned; `index` chooses one, the last
        one unless told. `upstream` is ggml's version, which is guessed otherwise. What a print does
        not tell is in `unknown`. Raises ValueError for a text without a whole print.
        """
        from ..export.debug_log_plan import from_debug_log

        return from_debug_log(text, index, upstream)

    @staticmethod
    def from_snapshot(text: str) -> Plan:
        """The plan on a page that `snapshot` wrote, as far as that tells (`unknown`). Raises
        ValueError for any other text."""
        from ..export.snapshot_plan import from_snapshot

        return from_snapshot(text)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What is not known of a plan that was read from a log or a snapshot, in sentences."""
        from ..export.debug_log_plan import unknown
        from ..export.snapshot_plan import SOURCE, UNKNOWN

        return UNKNOWN if self.capture.source == SOURCE else unknown(self)


def format_bytes(n: float) -> str:
    """Bytes with a unit: 1.5 MiB; "at least 1.5 MiB", or "less than 1.0 KiB", of what a log has."""
    if isinstance(n, AtLeast):
        bound = format_bytes(int(n) or n.most + 1)
        return f"at least {bound}" if n else f"less than {bound}"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError

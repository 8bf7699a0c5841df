"""The public `Plan`: the data of `trace.planned`, with methods to query and export it.

Each method is one call into `trace/` (answers) or `export/` (formats), which is loaded on first
use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .trace.plan_tensor import PlanTensor
from .trace.planned import Planned
from .trace.promise import MemoryRow as MemoryRow
from .trace.promise import Promise as Promise
from .trace.promise import as_texts as as_texts
from .typed import typed

if TYPE_CHECKING:
    from .advice.finding import Finding
    from .backends.backend import Backend
    from .backends.device import Device
    from .cost.cost import Cost
    from .cost.machine import Machine
    from .memory.plan_memory import PlanMemory
    from .trace.answers.decisions import Decisions
    from .trace.answers.diff import Diff
    from .trace.answers.explain import Explanation
    from .trace.answers.shares import DeviceShare
    from .trace.answers.what_if import Moves, Offload, Pins, Supports
    from .trace.answers.why_not import WhyNot
    from .trace.steps import Step


class Plan(Planned):
    """What a planner, ggml's own scheduler or the reference, decided for one graph."""

    def __repr__(self) -> str:
        return f"<Plan: {self.headline()}>"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every question the scheduler asked and every decision it made, in order.

        The reference scheduler computes them from this plan's capture. Raises ValueError for a plan
        without the answers of the backends (`from_debug_log`).
        """
        from .trace.steps import steps_of

        return steps_of(self)

    @property
    def reference(self) -> Plan:
        """The reference scheduler's plan of the same graph. It equals this plan unless this plan's
        ggml has a rule that the reference does not know."""
        from .trace.planning import reference_of

        return reference_of(self)

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

        Tensors are given by name (the last one with that name), shell pattern or id. `pins` is
        {"ffn_norm-3": "CPU"}; None removes a pin, and a pattern pins the nodes that are computed.
        `supports` is {("gpu0", "TOP_K"): True}, by op, op description or node. `offload` has the
        same form and says whether a backend wants an op although its weight must be copied; a
        number is the minimum number of rows. `move_weights={"blk.3.*": "gpu0"}` moves tensors that
        have memory before planning (the KV cache too), with their views, into memory of that
        backend or buffer type. `drop=["BLAS"]` leaves backends out. `upstream="0.17.0"` plans by
        the rules of another release, given by any name that `ggml-py build --list` prints.

        Approximations: types and layouts stay (no repacking). Backends that answer differently
        about tensors in other memory are not asked again. Whether the memory suffices is not
        checked. The other backends keep the buffer types they allocated from. Otherwise it is the
        plan that ggml makes once the change is real.

        Raises KeyError for names that match nothing, ValueError and TypeError for invalid changes,
        `reference.CannotPlanError` (a ValueError) if ggml would abort.
        """
        from .trace.answers.what_if import what_if

        return what_if(
            self, pins=pins, supports=supports, offload=offload, move_weights=move_weights,
            op_offload=op_offload, drop=drop, upstream=upstream, parallel=parallel,
        )  # fmt: skip

    def check_changes(self, **changes: Any) -> None:
        """Raises what `what_if` raises for changes that mean nothing. Nothing is planned."""
        from .trace.answers.what_if import changed

        changed(self, **changes)

    @property
    def decisions(self) -> Decisions:
        """`steps`, by tensor."""
        from .trace.answers.decisions import decisions_of

        return decisions_of(self)

    def explain(self, which: str | int | PlanTensor) -> Explanation:
        """Why a tensor is where it is: the chain of decisions, back to its root.

        `which` is a node's index or a name, as for `node`. `str` of the explanation is a report;
        its `headline` is one line ("1.off via src[4] blk.0.attn_sinks.weight"). Raises KeyError.
        """
        from .trace.answers.explain import explain

        return explain(self, self._subject(which))

    def why_not(
        self, which: str | int | PlanTensor, backend: str, device: Device | Backend | None = None
    ) -> WhyNot:
        """Why a tensor is not on a backend: the first rule that kept it off, the rules that come
        next, and changes that move it. The changes were tried with `what_if`.

        `which` is a node's index or a name, as for `node`; `backend` is its name or its device's.
        If the op is not supported and a live `device` is given, the answer has the nearest variant
        that the device supports. Raises KeyError for unknown names, ValueError for a plan without
        the answers of the backends (`from_debug_log`).
        """
        from .trace.answers.why_not import why_not

        ask = None
        if device is not None:
            from .variants.nearest import nearest

            ask = partial(nearest, device=device)
        return why_not(self, self._subject(which), backend, ask)

    def _subject(self, which: str | int | PlanTensor) -> PlanTensor:
        if not isinstance(which, PlanTensor):
            return self.node(which)
        if which.plan is not self and which.plan != self:
            raise ValueError(f"{which!r} is of another plan: expected one of this, or its name")
        return self.tensor(which.id)

    def passes(self) -> str:
        """The assignment after each pass and sweep: one letter per node, '?' = not assigned yet.
        Then the same for the leafs, if there are any.

        View ops take part from pass 4 on. The last line gives the backends' letters. Raises
        ValueError for a plan without this information (`from_debug_log`).
        """
        from .trace.answers.passes import passes_text

        return passes_text(self)

    def shares(self) -> list[DeviceShare] | None:
        """Each backend's share of the nodes, the FLOPs (estimated) and the bytes read and written,
        and the weights in its memory. None for a plan without shapes (`unknown`)."""
        from .trace.answers.shares import shares

        return shares(self)

    def headline(self) -> str:
        """One line: splits, copies, bytes copied, and the backends' shares of nodes, FLOPs and
        bytes."""
        from .trace.answers.shares import headline

        return headline(self)

    @property
    def memory(self) -> PlanMemory:
        """The memory that the graph is computed in: each tensor's place and lifetime, the bytes
        alive at each node, and the peak. It also has the tensors that had memory before, and the
        sizes of all buffers if the plan is a model's. `unknown` says why a plan has no such places.
        C: ggml_gallocr_reserve_n
        """
        from .memory.plan_memory import memory_of

        return memory_of(self)

    def cost(self, machine: Machine, n_past: int | None = None) -> Cost:
        """The predicted time of each node, copy and split, and of the graph. It comes with an
        interval that holds in nine of ten cases, its bound, and the samples of `machine` behind it.

        `n_past` is the number of tokens that the cache has before the graph: attention skips cells
        that are empty. By default it is what a model's plan was made with (`promise.n_past`); in
        any other plan all cells that the graph reads count as full. A node of a kind that was not
        measured has no time (None), and widens the interval of the total. Raises ValueError for a
        plan without shapes (`from_debug_log`).
        """
        from .cost.cost import cost_of

        return cost_of(self, machine, n_past)

    def diff(self, other: Plan, backends: Mapping[str, str] | None = None) -> Diff:
        """The differences of `other` from this plan: assignments, causes, splits, copies and their
        bytes. True if there are any; `str` of it is a report.

        Tensors are matched by name, or by position where names do not match. `backends` renames
        backends of this plan: {"gpu0": "CUDA0"}. Raises KeyError for a backend that it lacks.
        """
        from .trace.answers.diff import diff

        return diff(self, other, backends)

    def advice(
        self, min_bytes: int = 1 << 20, machine: Machine | None = None
    ) -> tuple[Finding, ...]:
        """The findings of this plan, the most bytes per evaluation first. With `machine` they are
        ordered by the predicted time of their nodes and copies (`Finding.seconds`).

        Findings that only concern copies of fewer than `min_bytes` bytes in total are left out. For
        a plan from a debug log the last finding, GP100, names the checks that the log has too
        little information for. Each id has a page: docs/advice/README.md. Raises ValueError if
        `min_bytes` is not a number of bytes, and with `machine` for a plan without shapes.
        """
        from .advice.all_findings import advice
        from .advice.finding import Findings

        return Findings(advice(self, min_bytes, None if machine is None else self.cost(machine)))

    def text(self) -> str:
        """The plan in the layout of upstream's GGML_SCHED_DEBUG=2, line for line, with the cause
        column filled."""
        from .export import to_text

        return to_text.render(self)

    def snapshot(self) -> str:
        """A page for version control: the backend of each node and why, splits, copies. A change of
        the plan makes a small change of the page. It has nothing that depends on the machine."""
        from .export.snapshot import render

        return render(self)

    @typed
    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """The plan as JSON data. With `path` it is also written there, completely or not at all."""
        from .export.json import plan_file as to_json

        return to_json.write(self, path) if path is not None else to_json.render(self)

    @typed("path", "format", "force", "machine")
    def export(
        self,
        path: str | Path,
        format: str | None = None,
        *,
        other: Plan | None = None,
        force: bool = False,
        machine: Machine | None = None,
    ) -> None:
        """Writes the plan in the format of the file's name: "plan.html" is a page to view,
        "plan.json.gz" can be read by `from_json`. `export.formats.EXPORTERS` lists the formats;
        `format` names another than the file name's. `other` is a plan to compare with, in formats
        that can. With `machine` a page, a trace and a profile have the predicted times of
        nodes, copies and splits.

        The file is written completely or not at all. Raises FileExistsError if it exists, unless
        `force`, and ValueError for an unknown name or format.
        """
        from .export import formats

        formats.export(self, path, format, other, force, machine)

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from .export import to_notebook

        return to_notebook.plan(self)

    @staticmethod
    @typed
    def from_json(path: str | Path) -> Plan:
        """Reads a plan that `to_json` wrote. Raises ValueError for anything else."""
        from .export.json import plan_file as to_json

        return Plan.of(to_json.read(path))

    @staticmethod
    def from_debug_log(text: str, index: int = -1, upstream: str | None = None) -> Plan:
        """Reads a plan from a log with ggml's output for GGML_SCHED_DEBUG=2; other lines may
        surround it.

        A log has one print for each time that the scheduler planned. `index` chooses one, by
        default the last. `upstream` is ggml's version, which is guessed if not given. `unknown`
        lists what the print lacks. Raises ValueError for a text without a complete print.
        """
        from .export.debug_log_plan import from_debug_log

        return Plan.of(from_debug_log(text, index, upstream))

    @staticmethod
    def from_snapshot(text: str) -> Plan:
        """Reads the plan on a page that `snapshot` wrote; `unknown` lists what the page lacks.
        Raises ValueError for any other text."""
        from .export.snapshot_plan import from_snapshot

        return Plan.of(from_snapshot(text))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Sentences that say what is not known of a plan read from a log or a snapshot."""
        from .export.snapshot_plan import unknown

        return unknown(self)

"""A plan as users have it: the data of `trace.planned`, and every question that it answers.

Each method is one call: the answers are in `trace/`, the formats in `export/`, and they are loaded
when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .trace.plan_tensor import PlanTensor
from .trace.planned import Planned

if TYPE_CHECKING:
    from .backends.backend import Backend
    from .backends.device import Device
    from .trace.advice.facts import Finding
    from .trace.answers.decisions import Decisions
    from .trace.answers.diff import Diff
    from .trace.answers.explain import Explanation
    from .trace.answers.shares import DeviceShare
    from .trace.answers.what_if import Moves, Offload, Pins, Supports
    from .trace.answers.why_not import WhyNot
    from .trace.steps import Step


class Plan(Planned):
    """What a planner decided for one graph: ggml's own scheduler, or the reference."""

    def __repr__(self) -> str:
        return f"<Plan: {self.headline()}>"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every question the scheduler asked and every decision it made, in order.

        By the reference scheduler over this plan's capture. Raises ValueError for a plan that does
        not hold what the backends answer (`from_debug_log`).
        """
        from .trace.steps import steps_of

        return steps_of(self)

    @property
    def reference(self) -> Plan:
        """What the reference scheduler makes of the same graph; equal to this plan unless this
        plan's ggml has a rule that the reference does not know."""
        from .trace.reference import reference_of

        return as_plan(reference_of(self))

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
        from .trace.answers.what_if import what_if

        changed = what_if(
            self, pins, supports, offload, move_weights, op_offload, drop, upstream, parallel
        )
        return as_plan(changed)

    @property
    def decisions(self) -> Decisions:
        """`steps`, by tensor."""
        from .trace.answers.decisions import decisions_of

        return decisions_of(self)

    def explain(self, which: str | int | PlanTensor) -> Explanation:
        """Why a tensor is where it is: the chain of decisions, back to its root.

        `which` is a node's index or a name, as `node` takes it. Printed, it is text to read; its
        `headline` is one line ("1.off via src[4] blk.0.attn_sinks.weight"). Raises KeyError.
        """
        from .trace.answers.explain import explain

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
        from .trace.answers.why_not import why_not

        ask = None
        if device is not None:
            from .variants.search import nearest

            ask = partial(nearest, device=device)
        return why_not(self, self._subject(which), backend, ask)

    def _subject(self, which: str | int | PlanTensor) -> PlanTensor:
        if not isinstance(which, PlanTensor):
            return self.node(which)
        if which.plan is not self and which.plan != self:
            raise ValueError(f"{which!r} is of another plan: expected one of this, or its name")
        return self.tensor(which.id)

    def passes(self) -> str:
        """The assignment after each pass and sweep: a letter per node, '?' = not assigned yet; then
        the same for the leafs, where there are some.

        View ops take part from pass 4 on. The last line names the backends' letters. Raises
        ValueError for a plan that does not hold it (`from_debug_log`).
        """
        from .trace.answers.passes import passes_text

        return passes_text(self)

    def shares(self) -> list[DeviceShare] | None:
        """Each backend's part of the nodes, of the FLOPs (estimated), of the bytes that are read
        and written, and the weights in its memory. None for a plan without shapes (`unknown`)."""
        from .trace.answers.shares import shares

        return shares(self)

    def headline(self) -> str:
        """One line: splits, copies, bytes copied; who has how much of nodes, FLOPs and bytes."""
        from .trace.answers.shares import headline

        return headline(self)

    def diff(self, other: Plan, backends: Mapping[str, str] | None = None) -> Diff:
        """What `other` decides otherwise: assignments, causes, splits, copies and their bytes. True
        when there is something; `str` of it is a report.

        Tensors are matched by name, and by position where names fail. `backends` renames backends
        of this plan: {"gpu0": "CUDA0"}. Raises KeyError for a backend that it does not have.
        """
        from .trace.answers.diff import diff

        return diff(self, other, backends)

    def advice(self, min_bytes: int = 1 << 20) -> tuple[Finding, ...]:
        """What its owner may want to change, by bytes per evaluation, the most first.

        Findings that are only about copies of fewer than `min_bytes` bytes together are left out.
        Of a plan that was read from a debug log the last finding, GP100, names the checks that it
        does not hold enough for. Each id has a page: docs/advice/README.md. Raises ValueError for
        a `min_bytes` that is no number of bytes.
        """
        from .trace.advice.checks import advice

        return advice(self, min_bytes)

    def text(self) -> str:
        """Upstream's GGML_SCHED_DEBUG=2 layout, line for line, with the cause column filled."""
        from .export import to_text

        return to_text.render(self)

    def snapshot(self) -> str:
        """A page for version control: who runs each node and why, splits, copies; a change of the
        plan is a small change of the page. Without what depends on the machine."""
        from .export.snapshot import render

        return render(self)

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """The plan as JSON data; written to `path` when one is given (whole or not at all)."""
        from .export.json import plan as to_json

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
        from .export import formats

        formats.export(self, path, format, other, force)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from .export import to_notebook

        return to_notebook.plan(self)

    @staticmethod
    def from_json(path: str | Path) -> Plan:
        """A plan that `to_json` wrote. Raises ValueError for anything else."""
        from .export.json import plan as to_json

        return as_plan(to_json.read(path))

    @staticmethod
    def from_debug_log(text: str, index: int = -1, upstream: str | None = None) -> Plan:
        """The plan in a log with what ggml prints for GGML_SCHED_DEBUG=2, whatever is around it.

        A log has a print for each time that the scheduler planned; `index` chooses one, the last
        one unless told. `upstream` is ggml's version, which is guessed otherwise. What a print does
        not tell is in `unknown`. Raises ValueError for a text without a whole print.
        """
        from .export.debug_log_plan import from_debug_log

        return as_plan(from_debug_log(text, index, upstream))

    @staticmethod
    def from_snapshot(text: str) -> Plan:
        """The plan on a page that `snapshot` wrote, as far as that tells (`unknown`). Raises
        ValueError for any other text."""
        from .export.snapshot_plan import from_snapshot

        return as_plan(from_snapshot(text))

    @property
    def unknown(self) -> tuple[str, ...]:
        """What is not known of a plan that was read from a log or a snapshot, in sentences."""
        from .export.snapshot_plan import unknown

        return unknown(self)


def as_plan(planned: Planned) -> Plan:
    """What a layer below made, by the class that it has."""
    assert isinstance(planned, Plan)  # `make_plan` makes no other
    return planned

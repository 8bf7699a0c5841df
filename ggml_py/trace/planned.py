"""A plan: which backend runs each node, how the graph is cut into splits, what is copied.

Plain data, read out of the scheduler once; nothing here touches the native library.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, TypeVar

from ..typed import describe, is_whole, typed
from .choice import Choice
from .layout import GraphLayout
from .plan_tensor import PlanTensor as PlanTensor
from .promise import NOTHING, MemoryRow, Promise
from .provenance import UNKNOWN, Provenance
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
    collection_paused,
    dumped_name,
)  # fmt: skip
from .split import Split as Split
from .split import SplitInput as SplitInput
from .split import order_of_plan
from .units import format_bytes as format_bytes

T = TypeVar("T")
P = TypeVar("P", bound="Planned")
# The last one: not read out yet.
_DATA = ("capture", "outcome", "planner", "layout", "choices", "provenance", "_records")
_OF_A_MODEL = ("promise", "breakdown")


@dataclass(frozen=True, eq=False)
class Planned:
    """What a planner, ggml's own scheduler or the reference, decided for one graph.

    It has the data and what follows from it alone. `ggml_py.Plan` has the rest.
    """

    capture: Capture
    outcome: Outcome
    planner: str = "native"  # or "reference", "debug log", "snapshot"
    promise: Promise = NOTHING
    breakdown: tuple[MemoryRow, ...] = ()  # of the model's context, if it was planned for one
    layout: GraphLayout | None = None  # of its compute buffers; None: not known
    choices: tuple[Choice, ...] = ()  # what llama.cpp decided before it planned
    provenance: Provenance = UNKNOWN  # how it was made, as far as that is known

    def __eq__(self, other: object) -> bool:
        """Equal if graph and outcome are, whichever planner made them, and when. Addresses in
        memory are not recorded."""
        if not isinstance(other, Planned):
            return NotImplemented
        return self.capture == other.capture and self.outcome == other.outcome

    __hash__ = object.__hash__

    @classmethod
    def of(cls: type[P], plan: Planned) -> P:
        """`plan` as an object of this class."""
        if isinstance(plan, cls):
            return plan
        if not isinstance(plan, Planned):
            raise TypeError(f"expected a plan, got {type(plan).__name__}")
        made = object.__new__(cls)
        data = {k: v for k, v in vars(plan).items() if k in (*_DATA, *_OF_A_MODEL)}
        vars(made).update(data)  # a frozen dataclass
        return made

    def derived(self, make: Callable[[Any], T]) -> T:
        """`make(self)`, cached."""
        made = self.__dict__.setdefault("_derived", {})
        if make not in made:
            with collection_paused():
                made[make] = make(self)
        found: T = made[make]
        return found

    @typed
    def promised(
        self: P,
        promise: Promise,
        breakdown: Iterable[MemoryRow] = (),
        provenance: Provenance | None = None,
    ) -> P:
        """The same plan as such a promise, with the memory that goes with it, and with another
        `provenance` if one is given."""
        made = object.__new__(type(self))
        data = {name: value for name, value in vars(self).items() if name in _DATA}
        vars(made).update(data, promise=promise, breakdown=tuple(breakdown))  # a frozen dataclass
        if provenance is not None:
            vars(made).update(provenance=provenance)
        return made

    def chosen(self: P, choices: Iterable[Choice]) -> P:
        """The same plan with llama.cpp's decisions before it."""
        made = object.__new__(type(self))
        vars(made).update({k: v for k, v in vars(self).items() if k != "_derived"})
        vars(made).update(choices=tuple(choices))  # a frozen dataclass
        return made

    def made(self: P, provenance: Provenance) -> P:
        """The same plan, made so."""
        return self.promised(self.promise, self.breakdown, provenance)

    @property
    def settings(self) -> Settings:
        """The settings it was made with."""
        return self.capture.settings

    @property
    def backends(self) -> tuple[BackendRecord, ...]:
        """The backends, highest priority first."""
        return self.capture.backends

    @property
    def buffers(self) -> tuple[BufferRecord, ...]:
        """The buffers that tensors of the graph were in before planning."""
        return self.capture.buffers

    @cached_property
    def tensors(self) -> tuple[TensorRecord, ...]:
        """All tensors by id: nodes in graph order, leafs, others, copies."""
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
        """The copies that the scheduler made, sorted by tensor, backend and which of the n_copies
        it is. Of a graph input with copies for pipeline parallelism the original is included: it is
        the current one."""
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
        with collection_paused():
            return tuple(Split(self, i, record) for i, record in enumerate(self.split_records))

    @cached_property
    def copied(self) -> tuple[SplitInput, ...]:
        """The tensors copied between backends in one evaluation, in order. All counts of copies and
        copied bytes count these."""
        return tuple(given for split in self.splits for given in split.inputs)

    @cached_property
    def copied_for(self) -> Mapping[int, Sequence[Split]]:
        """The splits that each tensor is copied for, by its id; only copied tensors are in it."""
        found: dict[int, list[Split]] = {}
        for given in self.copied:
            found.setdefault(given.tensor.id, []).append(given.split)
        return found

    @cached_property
    def order(self) -> tuple[PlanTensor, ...] | None:
        """The nodes in the order they are computed: `nodes`, unless a backend reorders its splits.
        None if a backend may do so and the order is not known."""
        order = order_of_plan(self)
        return None if order is None else tuple(map(self.tensor, order))

    @cached_property
    def on_cpu(self) -> Mapping[int, CpuRecord]:
        """How the CPU backend computes its nodes, by their ids (`PlanTensor.cpu`)."""
        return {record.node: record for record in self.capture.cpu}

    @property
    def moved(self) -> tuple[PlanTensor, ...] | None:
        """The nodes that backends took out of graph order; None if `order` is None."""
        found: list[PlanTensor] = []
        for split in self.splits:
            if (moved := split.moved) is None:
                return None
            found += moved
        return tuple(found)

    @property
    def n_splits(self) -> int:
        """Number of splits."""
        return len(self.split_records)

    @property
    def copy_bytes(self) -> int:
        """Bytes copied between backends in one evaluation. From a log it is a lower bound, an `int`
        whose `most` is the upper bound."""
        return sum(given.nbytes for given in self.copied)

    @property
    def n_inputs(self) -> int:
        """Number of tensors copied between backends in one evaluation."""
        return len(self.copied)

    @property
    def assignments(self) -> Mapping[int, str | None]:
        """Tensor id -> name of its backend, including leafs and copies."""
        return {t.id: self.tensor(t.id).backend for t in self.tensors}

    def tensor(self, id: int) -> PlanTensor:
        """Any tensor by its id. Raises KeyError."""
        try:
            if id >= 0:
                return PlanTensor(self, id)
        except (TypeError, ValueError, IndexError):
            pass
        n = len(self.capture.tensors)
        raise KeyError(f"tensor {id!r}: the ids of this plan are 0 to {n - 1}")

    def node(self, which: str | int) -> PlanTensor:
        """A node by index or by name. Names repeat in real graphs; the last node with the name is
        returned.

        A name that no node has finds the leaf, copy or view source with it. A name as cut by ggml's
        debug print finds the tensor with the whole name. Raises KeyError, which lists the names if
        several match.
        """
        if not isinstance(which, str):
            if not is_whole(which):
                raise TypeError(f"expected the name or the index of a node, got {describe(which)}")
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
            raise KeyError(f"no node named '{which}'; {len(whole)} names begin with it: {first}")
        if any(which in (b.name, b.device) for b in self.backends):
            raise KeyError(f"no node named '{which}': it is a backend")
        names = list(dict.fromkeys(t.name for t in (*self.nodes, *self.leafs) if t.name))
        near = [name for name in names if which in name][:5]
        near = near or get_close_matches(which, names, 5)
        raise KeyError(
            f"no node named '{which}'" + (f"; similar: {', '.join(near)}" if near else "")
        )

    @typed
    def find(self, pattern: str) -> tuple[PlanTensor, ...]:
        """All nodes, then all leafs, whose names match a shell pattern ("Qcur-*")."""
        every = (*self.nodes, *self.leafs)
        return tuple(t for t in every if fnmatch.fnmatchcase(t.name, pattern))

    @cached_property
    def has_causes(self) -> bool:
        """Whether it has any cause: a log of a released build of ggml has none."""
        return any(p.cause for p in self.outcome.placements)

    @cached_property
    def has_compute_flags(self) -> bool:
        """Whether its release marks the nodes that are computed (since 0.9.6)."""
        return any("compute" in node.flags for node in self.nodes)

    def nodes_per_backend(self) -> dict[str, int]:
        """How many nodes each backend computes."""
        counts = Counter(n.backend for n in self.nodes if n.is_computed)
        return {b.name: counts[b.name] for b in self.backends}

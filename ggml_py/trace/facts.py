"""A plan as checks and answers look at it: what is copied, who reads it, and which option of
llama.cpp would change it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import causes
from .answers.what_if import what_if
from .names import block_of, quoted
from .planned import Planned, format_bytes
from .record import DUMPED_NAME, LEAF, NODE, TensorRecord

if TYPE_CHECKING:
    from typing import TypeGuard

    from .record import Capture

_HOST_BACKENDS = ("BLAS", "CPU")  # ggml's backends without memory of their own, in a log


class Option(NamedTuple):
    """An option of llama.cpp that may mend a finding. Nothing here says whether the model then fits
    its devices, or is quicker: `place.judge` finds out."""

    flags: str  # as on a command line
    changes: dict[str, Any]  # as `ggml-py` takes it; "overrides" come before those given


class CopiedTensor(NamedTuple):
    """A tensor that is copied to a backend in each evaluation."""

    tensor: TensorRecord
    holder: TensorRecord  # that has the memory: the tensor itself, or its view source
    to: int
    readers: tuple[TensorRecord, ...]  # the nodes there that read the copy


class Facts:
    """A plan as the checks see it. They run in the order of their table, and each leaves out what
    an earlier one has explained (`explain`), so no byte is reported twice."""

    def __init__(self, plan: Planned, min_bytes: int) -> None:
        self.plan = plan
        self.capture: Capture = plan.capture
        self.from_log = plan.capture.source != "scheduler"
        self.min_bytes = min_bytes
        self.last = len(plan.backends) - 1
        self.where = [p.backend for p in plan.outcome.placements]
        self.computed = [n.record for n in plan.nodes if n.is_computed]
        self.readers: dict[int, list[TensorRecord]] = {}
        for t in self.capture.tensors:
            for src in dict.fromkeys(t.src):
                self.readers.setdefault(src, []).append(t)
        self.copies = list(self._copies())
        self.explained: set[tuple[int, int]] = set()
        self.explained_nodes: set[int] = set()

    def _copies(self) -> Iterator[CopiedTensor]:
        for given in self.plan.copied:
            t = given.tensor.record
            to = self.plan.split_records[given.split.index].backend
            readers = tuple(
                r for r in self.readers.get(t.id, ())
                if r.kind == NODE and not r.is_view_op and self.where[r.id] == to
            )  # fmt: skip
            yield CopiedTensor(t, self.holder(t), to, readers)

    # --- tensors and backends

    def holder(self, t: TensorRecord) -> TensorRecord:
        """The tensor that has the memory: `t` itself, or its view source."""
        return self.capture.tensors[t.view_src] if t.view_src >= 0 else t

    def name(self, b: int) -> str:
        """A backend's name; -1 is an unknown backend."""
        return self.plan.backends[b].name if b >= 0 else "another backend"

    def memory(self, b: int) -> str:
        """The name of a backend's buffer type, as llama.cpp's -ot takes it."""
        return self.capture.own_memory(b)

    def has_own_memory(self, b: int) -> bool:
        """Whether the last backend, the CPU, cannot read what backend `b` allocates: true for a
        GPU, false for BLAS."""
        if self.from_log:
            return b != self.last and self.name(b) not in _HOST_BACKENDS
        buft = self.plan.backends[b].buft
        return not self.capture.bufts[buft].readers >> self.last & 1

    @property
    def devices(self) -> list[int]:
        """The backends with memory of their own, highest priority first."""
        return [b for b in range(self.last) if self.has_own_memory(b)]

    def room(self, b: int) -> int | None:
        """Free bytes in a backend's memory beside the plan's model; None if they are not known."""
        backend = self.plan.backends[b]
        made = self.plan.provenance.device(backend.device) or self.plan.provenance.device(
            backend.name
        )
        if made is None or made.memory_free is None or not self.plan.breakdown:
            return None
        held = sum(row.nbytes for row in self.plan.breakdown if row.device == made.name)
        return made.memory_free - held

    def all_readers(self, t: TensorRecord) -> list[TensorRecord]:
        """The nodes that compute with a tensor or with views of it."""
        ids = [t.id, *(v.id for v in self.capture.tensors if v.view_src == t.id)]
        return [r for i in ids for r in self.readers.get(i, ()) if not r.is_view_op]

    def is_weight(self, t: TensorRecord) -> bool:
        """Whether it is a weight; in a log, whether it has llama.cpp's name for one."""
        if self.from_log:
            return t.kind == LEAF and t.name.endswith((".weight", ".bias"))
        return self.capture.is_weight(t)

    def may_be_weight(self, t: TensorRecord) -> bool:
        """Whether it is a weight, or a leaf whose name a log has cut at 20 bytes, which may be
        one."""
        cut = self.from_log and len(t.name.encode()) >= DUMPED_NAME and not self.is_state(t)
        return self.is_weight(t) or (cut and t.kind == LEAF)

    def is_state(self, t: TensorRecord) -> bool:
        """Whether it lives from one evaluation to the next, such as a KV cache."""
        if self.from_log:
            return t.kind != NODE and t.name.startswith("cache_")
        return t.buffer >= 0 and not self.capture.is_weight(t) and "input" not in t.flags

    def cause(self, t: TensorRecord) -> str:
        """Its cause code."""
        return self.plan.outcome.placements[t.id].cause

    def sources(self, t: TensorRecord) -> list[TensorRecord]:
        """Its sources."""
        return [self.capture.tensors[i] for i in t.src if i >= 0]

    def followed_weight(self, t: TensorRecord) -> TensorRecord | None:
        """The weight that placed `t` in pass 1: upstream looks only at its first weight."""
        if not causes.follows_weight(self.cause(t)):
            return None
        return next((s for s in self.sources(t) if self.capture.is_weight(s)), None)

    # --- what is copied

    def unexplained(self) -> Iterator[CopiedTensor]:
        """Copies without a finding so far."""
        return (c for c in self.copies if (c.tensor.id, c.to) not in self.explained)

    def explain(self, copies: Iterable[CopiedTensor], nodes: Iterable[TensorRecord] = ()) -> None:
        """Marks copies and nodes as having a finding."""
        self.explained.update((c.tensor.id, c.to) for c in copies)
        self.explained_nodes.update(t.id for t in nodes)

    def around(self, nodes: Iterable[TensorRecord]) -> list[CopiedTensor]:
        """The copies that only these nodes read, and the copies of their results."""
        ids = {t.id for t in nodes}
        return [
            c
            for c in self.unexplained()
            if c.holder.id in ids or (c.readers and all(r.id in ids for r in c.readers))
        ]

    # --- the same graph, changed

    def what_if(self, **changes: Any) -> Planned | None:
        """`Plan.what_if`; None if the change is impossible or ggml would abort."""
        if self.from_log:
            return None
        try:
            return what_if(self.plan, **changes)
        except ValueError:
            return None

    def is_better(self, after: Planned | None) -> TypeGuard[Planned]:
        """Whether `after` has fewer splits or copies fewer bytes, and not more of the other."""
        if after is None:
            return False
        now = self.plan.n_splits, self.plan.copy_bytes
        then = after.n_splits, after.copy_bytes
        return then != now and then[0] <= now[0] and then[1] <= now[1]

    def compared(self, after: Planned) -> str:
        """ "2 splits instead of 34, 1.2 KiB copied instead of 3.0 MiB"."""
        now, then = self.plan, after
        told = []
        if then.n_splits != now.n_splits:
            splits = verb(then.splits, "split", "splits")
            told.append(f"{then.n_splits} {splits} instead of {now.n_splits}")
        copied, instead = format_bytes(then.copy_bytes), format_bytes(now.copy_bytes)
        if copied != instead:
            told.append(f"{copied} copied instead of {instead}")
        return ", ".join(told) or "the same splits and bytes copied"

    def of(self, tensors: Sequence[TensorRecord], one: str) -> str:
        """ "MUL_MAT 'ffn_up-3'", or "12 weights ('blk.0.ffn_up.weight' to
        'blk.11.ffn_up.weight')"."""
        first, last = (quoted(self.plan.tensor(t.id)) for t in (tensors[0], tensors[-1]))
        if len(tensors) == 1:
            return f"{one} {first}"
        between = ", " if len(tensors) == 2 else " to "
        return f"{len(tensors)} {one}s ({first}{between}{last})"


def nbytes(copies: Iterable[CopiedTensor]) -> int:
    """Their size in bytes."""
    return sum(c.tensor.nbytes for c in copies)


def verb(tensors: Sequence[object], one: str = "is", many: str = "are") -> str:
    """The form of a word for this number of tensors."""
    return one if len(tensors) == 1 else many


def override(facts: Facts, weights: list[TensorRecord], to: int) -> Option:
    """llama.cpp's --override-tensor for these weights."""
    names = [w.name for w in weights]
    others = {t.name for t in facts.capture.tensors if facts.is_weight(t)}.difference(names)
    text = f"{weight_pattern(names, others)}={facts.memory(to)}"
    return Option(f"-ot '{text}'", {"overrides": (text,)})


ALL_LAYERS = Option("-ngl all", {"n_gpu_layers": -1})
CACHE_THERE = Option("-kvo", {"offload_kqv": True})
CACHE_HERE = Option("-nkvo", {"offload_kqv": False})
NO_OP_OFFLOAD = Option("--no-op-offload", {"op_offload": False})


def weight_pattern(names: Sequence[str], others: Iterable[str]) -> str:
    """A regular expression for the names of these weights and of none of the graph's others: by
    block, if they are all in blocks."""
    blocks = [block for block in map(block_of, names) if block]
    if len(names) == 1 or len(blocks) < len(names):
        # llama.cpp searches anywhere: output.weight is also in blk.0.attn_output.weight.
        return "|".join(
            re.escape(name) if name.startswith("blk.") else f"^{re.escape(name)}"
            for name in dict.fromkeys(names)
        )
    kinds: dict[str, set[str]] = {}
    for number, kind in blocks:
        kinds.setdefault(number, set()).add(kind)
    elsewhere = [block for block in map(block_of, others) if block]
    every = sorted(set().union(*kinds.values()))
    if len(kinds) > 3 and elsewhere and not any(kind in every for _number, kind in elsewhere):
        return rf"blk\.\d+\.{_one_of([re.escape(kind) for kind in every])}"
    taken = {number for number, _kind in elsewhere}
    alike: dict[tuple[str, ...], list[str]] = {}  # blocks by their kinds; none: whole blocks
    for number, those in kinds.items():
        whole = number not in taken and len(those) > 3
        alike.setdefault(() if whole else tuple(sorted(those)), []).append(number)
    return "|".join(
        rf"blk\.{_one_of(numbers)}\." + (_one_of([re.escape(k) for k in those]) if those else "")
        for those, numbers in alike.items()
    )


def _one_of(patterns: list[str]) -> str:
    return f"({'|'.join(patterns)})" if len(patterns) > 1 else patterns[0]

"""The facts about a graph before it is planned, and the result of planning: plain data.

A `Capture` holds everything that the scheduler looks at: the graph, where its tensors are, and what
every backend answers about every node. An `Outcome` is what a planner made of it.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from ..files.similar import meant
from ..typed import typed
from .fields import (
    About,
    BackendIndex,
    BackendIndexOrNone,
    BackendSet,
    BufferIndexOrNone,
    BuftIndex,
    CopyId,
    Count,
    NodeId,
    PlannedId,
    PlannedIdOrNone,
    TensorId,
    TensorIdOrNone,
)

VIEW_OPS = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"})
NODE, LEAF, OTHER, COPY = TENSOR_KINDS = ("node", "leaf", "other", "copy")
# Bytes that a GGML_SCHED_DEBUG=2 dump keeps of the names of tensors, ops and backends.
DUMPED_NAME, DUMPED_OP, DUMPED_BACKEND = 20, 10, 5


MAX_SRC = 16  # GGML_MAX_SRC is 10
MAX_COPIES = 16  # four times GGML_SCHED_MAX_COPIES
Room = Annotated[int, About(low=0, end=1 << 31)]  # for inputs of a split
SOURCES = ("scheduler", "debug log", "snapshot")

# In place of a build's hash: another program's ggml, and the rules of another release.
NOT_BUILDS = OF_PROGRAM, OF_RULES = "record", "whatif"


@typed
def dumped_name(name: str, width: int = DUMPED_NAME) -> str:
    """A name as such a dump prints it."""
    return name.encode("utf-8", "surrogatepass")[:width].decode("utf-8", "replace")


class TensorRecord(NamedTuple):
    """One tensor, as the user built it. Ids are indices into `Capture.tensors`; -1 means none.

    A set of backends is a bit mask: bit b stands for `Capture.backends[b]`.
    """

    id: int
    # node, leaf, other (reached only as source or view source), copy
    kind: Annotated[str, About(one_of=TENSOR_KINDS)]
    name: str
    op: str
    op_desc: str  # what upstream prints: SILU rather than UNARY
    type: str
    ne: tuple[Count, ...]
    nb: tuple[Count, ...]
    nbytes: Count
    flags: tuple[str, ...]
    op_params: tuple[int, ...]
    src: tuple[TensorIdOrNone, ...]  # without trailing -1
    view_src: TensorIdOrNone
    view_offs: Count
    buffer: BufferIndexOrNone  # index into Capture.buffers
    use_count: Count
    pin: BackendIndexOrNone  # index of the backend that it was pinned to
    supports: BackendSet  # backends that support the op
    offload: BackendSet  # backends that want the op when its weights are in host memory

    @property
    def is_view_op(self) -> bool:
        """Whether it is a VIEW, RESHAPE, PERMUTE or TRANSPOSE, which compute nothing."""
        return self.op in VIEW_OPS


@typed
def named_tensor(id: int, kind: str, name: str, op: str, nbytes: int = 0) -> TensorRecord:
    """A tensor of which no more is known, as in a log or a snapshot."""
    return TensorRecord(
        id=id, kind=kind, name=name, op=op, op_desc=op, type="?", ne=(), nb=(), nbytes=nbytes,
        flags=(), op_params=(), src=(), view_src=-1, view_offs=0, buffer=-1, use_count=0, pin=-1,
        supports=0, offload=0,
    )  # fmt: skip


class Placement(NamedTuple):
    """What planning decided for one tensor."""

    backend: int  # index into Capture.backends; -1: none, but of nodes and copies
    cause: str  # upstream's code; "" if none was set
    stage: int  # that set the cause, a key of `causes.STAGES`
    # nodes and leafs: the backend after each of `PASS_NAMES`
    passes: tuple[BackendIndexOrNone, ...]
    planned_src: tuple[PlannedIdOrNone, ...]  # sources in the planned graph, some of them copies
    copy_of: int = -1
    copy_index: int = -1


class BuftRecord(NamedTuple):
    """A buffer type."""

    name: str
    is_host: bool
    readers: BackendSet  # backends that can use it


class BufferRecord(NamedTuple):
    """A buffer that tensors of the graph were in before planning."""

    buft: BuftIndex  # index into Capture.bufts
    usage: str
    size: Count


class BackendRecord(NamedTuple):
    """One backend of the scheduler, highest priority first."""

    name: str
    device: str
    device_type: str
    buft: int  # index into Capture.bufts: what the scheduler allocates from


class ComputeBufferRecord(NamedTuple):
    """A buffer type that the scheduler allocates from."""

    backend: BackendIndex  # index into Capture.backends: the first one that has it
    alignment: Count  # bytes
    max_size: Count  # bytes; a larger buffer is several


class AllocSizeRecord(NamedTuple):
    """A tensor that takes more memory than its `nbytes`. C: ggml_backend_buft_get_alloc_size"""

    tensor: TensorId
    backend: BackendIndex  # as in ComputeBufferRecord
    size: Annotated[int, About(low=0, end=1 << 63)]  # bytes


class PinRecord(NamedTuple):
    """Who pinned a tensor, and why, if whoever did it said so."""

    tensor: TensorId
    by: str  # "llama.cpp"
    why: str  # a clause


NOT_ON_RECORD = -1  # as RefusalRecord.srcs


class RefusalRecord(NamedTuple):
    """An op that a backend refuses because of its sources' memory, or because its profile does not
    have the op on record."""

    tensor: TensorId  # of the op
    backend: BackendIndex  # index into Capture.backends
    # bit j: it refuses the memory of source j; 0: only that of several together; NOT_ON_RECORD
    srcs: Annotated[int, About(low=NOT_ON_RECORD, end=1 << MAX_SRC)]


class SplitRecord(NamedTuple):
    backend: BackendIndex
    start: Count
    end: Count
    inputs: tuple[tuple[TensorId, CopyId], ...]  # (id of the source, id of the copy)


class OptimizedRecord(NamedTuple):
    """What a backend's `graph_optimize` made of a split."""

    backend: BackendIndex  # index into Capture.backends
    start: Count  # of the split's nodes
    end: Count
    order: tuple[int, ...]  # the nodes' ids as they are computed; empty: in graph order
    # (id kept, id of the node until which it is kept)
    alloc_deps: tuple[tuple[PlannedId, int], ...]


class CpuRecord(NamedTuple):
    """How the CPU backend computes a node, according to its own code."""

    node: NodeId
    n_threads: Count  # that compute its split
    n_tasks: Count  # threads that upstream divides the work among
    work_size: Count  # bytes of scratch memory that it needs
    buft: str  # the extra buffer type whose kernel computes it ("CPU_REPACK"); "": ggml-cpu's own
    kernel: str  # that kernel: "q4_0_8x8_q8_0", or the name of upstream's class
    layout: str  # of its weight there: "q4_0_8x8"; "" if upstream has no name for it
    fused: tuple[NodeId, ...]  # ids of the nodes fused with it, and its own; (): not fused


class Settings(NamedTuple):
    """The settings that a plan was made with."""

    upstream: str  # ggml version
    build: str  # key of the native build: the release's label and a hash
    op_offload: bool
    n_copies: Annotated[int, About(low=1, end=MAX_COPIES + 1)]
    cur_copy: Count
    hash_set_size: Count  # tensors that the scheduler has room for
    # Pins of tensors outside the graph; each takes a slot too.
    pins_elsewhere: Annotated[int, About("n_pins_elsewhere", low=0)]

    @property
    def release(self) -> str:
        """The release's label in vendor/upstream.toml: ggml's version, or a longer one if two
        packages have the same version."""
        return self.build.rpartition("-")[0].removesuffix("-pristine") or self.upstream

    @property
    def native_build(self) -> str | None:
        """The key of the build that planned it; None if it is not known, or if none did."""
        label, _sign, digest = self.build.rpartition("-")
        return self.build if label and digest not in NOT_BUILDS else None


UNPRINTED_OP = "?"  # of a tensor that an excerpt of a log reads: a leaf, or a node before it


class PrintRecord(NamedTuple):
    """The part of a plan that a debug print shows."""

    first_split: int  # number of its first split in the plan; -1: not printed
    first_node: int  # number of its first node in the graph
    begins_inside: bool  # its first split began before it
    # "": nothing is known to follow; "open": nodes may follow; "cut": nodes are missing
    end: Annotated[str, About(one_of=("", "open", "cut"))]
    has_nodes: bool  # False for GGML_SCHED_DEBUG=1
    name_width: int  # bytes that it has for a name

    @property
    def is_partial(self) -> bool:
        """Whether a part of the plan is missing, or may be."""
        begins = self.first_split != 0 or self.begins_inside
        return begins or bool(self.end) or not self.has_nodes


@dataclass(frozen=True, slots=True)
class Capture:
    """Everything that the scheduler looks at when it plans one graph."""

    settings: Settings
    backends: tuple[BackendRecord, ...]
    bufts: tuple[BuftRecord, ...]
    buffers: tuple[BufferRecord, ...]
    tensors: tuple[TensorRecord, ...]  # by id: nodes in graph order, then leafs, then others
    leaf_ids: Annotated[tuple[int, ...], About("leafs")]
    # Pins (tensor, backend) that the last reset dropped and nobody made again. They have no effect.
    dropped_pins: tuple[tuple[TensorId, BackendIndex], ...] = field(default=(), compare=False)
    # Room for inputs in each split slot, left by earlier plans: used only by 0.18.1 to 0.23.
    split_capacities: Annotated[tuple[Room, ...], About("capacities")] = field(
        default=(), compare=False
    )
    # The backend that an earlier plan left in split 0, which a graph of only views does not set.
    left_backend: BackendIndex = field(default=0, compare=False)
    # Backends that have a `graph_optimize` (a bit mask), and what it made of their splits.
    optimizers: BackendSet = 0
    optimized: tuple[OptimizedRecord, ...] = ()
    # Answers for the nodes on CPU backends; () if they were not asked.
    cpu: tuple[CpuRecord, ...] = field(default=(), compare=False)
    pins: tuple[PinRecord, ...] = field(default=(), compare=False)  # pins with an author or reason
    # Buffers of the memory that graphs are computed in; () if not known.
    compute_buffers: Annotated[tuple[ComputeBufferRecord, ...], About("layout_buffers")] = field(
        default=(), compare=False
    )
    alloc_sizes: tuple[AllocSizeRecord, ...] = field(default=(), compare=False)
    # Each "no" to an op that is about memory; the others are about the op. None: not known (in
    # files of older versions).
    refusals: tuple[RefusalRecord, ...] | None = field(default=None, compare=False)
    # The last two are without the backends' answers.
    source: Annotated[str, About(one_of=SOURCES)] = "scheduler"
    # Whether the last line of a log may be incomplete.
    may_be_cut: bool = field(default=False, compare=False)
    printed: PrintRecord | None = field(default=None, compare=False)  # of a log

    @property
    def is_partial(self) -> bool:
        """Whether it is an excerpt of a plan, or may be."""
        return self.printed is not None and self.printed.is_partial

    @property
    def begins_late(self) -> bool:
        """Whether it is an excerpt of a plan without the plan's beginning."""
        printed = self.printed
        return printed is not None and (printed.first_split != 0 or printed.begins_inside)

    @property
    def first_node(self) -> int:
        """The number of its first node in the graph: 0 unless it is an excerpt."""
        return 0 if self.printed is None else self.printed.first_node

    @property
    def first_split(self) -> int:
        """The number of its first split in the plan: 0 unless it is an excerpt; -1: not known."""
        return 0 if self.printed is None else self.printed.first_split

    @property
    def n_nodes(self) -> int:
        """Number of nodes; their ids are 0 to n_nodes - 1."""
        return bisect_left(self.tensors, True, key=lambda t: t.kind != NODE)

    def check_answers(self) -> None:
        """Raises ValueError if the capture does not contain the backends' answers."""
        if self.source != "scheduler":
            raise ValueError(
                f"this plan was read from a {self.source}, which does not contain what the "
                "backends support: plan the graph with Scheduler.plan, or load a file that "
                "Plan.to_json wrote"
            )

    @typed
    def backend_index(self, name: str) -> int:
        """The number of a backend, by its name or its device's. KeyError lists the names."""
        for key in ("name", "device"):
            for i, backend in enumerate(self.backends):
                if getattr(backend, key) == name:
                    return i
        for i, backend in enumerate(self.backends):
            if name.lower() in (backend.name.lower(), backend.device.lower()):
                return i
        names = [b.name for b in self.backends]
        hint = meant(name, names)
        if any(t.name == name for t in self.tensors):
            hint = f". '{name}' is a tensor"
        elif not hint:
            hint = ". Others take part if their devices are given when it is planned (-d)"
        raise KeyError(f"no backend '{name}' in this plan; it has {', '.join(names)}{hint}")

    def own_memory(self, b: int) -> str:
        """The name of a backend's own buffer type, as llama.cpp's -ot takes it. The scheduler may
        allocate from another: for the CPU, from a GPU's host memory."""
        backend, names = self.backends[b], [buft.name for buft in self.bufts]
        if backend.device_type == "CPU":
            return "CPU"  # ggml_backend_cpu_buffer_type
        own = [name for name in (backend.device, backend.name) if name in names]
        return own[0] if own else names[backend.buft] if backend.buft >= 0 else backend.name

    def names(self, backends: int | Iterable[int]) -> list[str]:
        """The names of a set of backends."""
        if isinstance(backends, int):
            backends = [b for b in range(len(self.backends)) if backends >> b & 1]
        return [self.backends[b].name for b in backends]

    def is_weight(self, t: TensorRecord) -> bool:
        """Whether it is itself (not through its view source) in a buffer marked as weights."""
        return t.buffer >= 0 and self.buffers[t.buffer].usage == "weights"

    def buft_of(self, t: TensorRecord) -> int:
        """The buffer type that it is in, itself or through its view source; -1: in none yet."""
        holder = self.tensors[t.view_src] if t.view_src >= 0 else t
        return self.buffers[holder.buffer].buft if holder.buffer >= 0 else -1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a planner made of a capture."""

    placements: tuple[Placement, ...]  # by id: the capture's tensors, then the copies
    copies: tuple[TensorRecord, ...]  # their ids follow the capture's
    splits: tuple[SplitRecord, ...]
    hash_set_used: Count


_pausing = threading.RLock()
_pauses = 0  # of all threads that are in `collection_paused`
_was_on = True  # before the first of them


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses garbage collection. Each round would visit all records made so far, although none is
    garbage, and the time per node would grow with the graph. It is the process's: the last of
    several threads in here restores it."""
    global _pauses, _was_on
    counted = False
    try:
        with _pausing:
            _pauses += 1
            counted = True
            if _pauses == 1:
                _was_on = gc.isenabled()
                gc.disable()
        yield
    finally:
        if counted:
            with _pausing:
                _pauses -= 1
                if not _pauses and _was_on:
                    gc.enable()

"""Draws a small graph with its devices, memory and answers, as a capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..plan import Plan
from ..trace import reference
from ..trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    ComputeBufferRecord,
    OptimizedRecord,
    Settings,
    TensorRecord,
)
from ..trace.rules import RELEASES

_SIZES = {"f32": 4, "i32": 4, "f16": 2}
_NE = (64, 8, 1, 1)


@dataclass(eq=False)
class Drawn:
    """A tensor of a drawing. `size` is bytes."""

    name: str
    op: str
    ne: tuple[int, ...]
    type: str = "f32"
    src: Sequence[Drawn | None] = ()
    view_of: Drawn | None = None
    offset: int = 0
    flags: tuple[str, ...] = ()
    memory: str = ""  # the buffer type that it is in
    usage: str = "weights"
    pin: str = ""
    supports: tuple[str, ...] | None = None  # None: all
    offload: tuple[str, ...] = ()
    params: tuple[int, ...] = ()
    kind: str = ""  # of a UNARY or GLU
    of: str = NODE
    nb: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        size, nb = _SIZES[self.type], []
        for n in (1, *self.ne[:3]):
            size *= n
            nb.append(size)
        self.nb = tuple(nb)

    @property
    def size(self) -> int:
        return self.nb[3] * self.ne[3]


class Drawing:
    """A graph for these devices, whose last is "CPU". "gpuN" has memory of its own; "blasN"
    computes in the CPU's; "CPU_REPACK" is memory that the CPU alone reads. `limits` are the
    largest buffers of devices, in bytes."""

    def __init__(
        self,
        *devices: str,
        n_copies: int = 1,
        op_offload: bool = True,
        limits: dict[str, int] | None = None,
    ) -> None:
        self.devices = devices or ("gpu0", "CPU")
        self.n_copies, self.op_offload = n_copies, op_offload
        self.limits = limits or {}
        # For a graph that is wholly on the first device. `order` has its nodes in the order of this
        # device, by their numbers. `keep` has pairs: a kept tensor, and the node that ends this.
        self.order: list[int] = []
        self.keep: list[tuple[Drawn, Drawn]] = []
        self.nodes: list[Drawn] = []
        self.leafs: list[Drawn] = []

    def weight(self, memory: str, name: str = "", ne: tuple[int, ...] = (64, 64, 1, 1)) -> Drawn:
        """A matrix in that memory, which is marked as weights."""
        return self.leaf(name or f"weight-{len(self.leafs)}", ne, memory=memory)

    def input(self, name: str = "", ne: tuple[int, ...] = _NE, type: str = "f32") -> Drawn:
        """An input of the graph."""
        name = name or f"inp-{len(self.leafs)}"
        return self.leaf(name, ne, type=type, flags=("input",))

    def leaf(self, name: str, ne: tuple[int, ...] = _NE, **fields: Any) -> Drawn:
        """Any other leaf."""
        made = Drawn(name, "NONE", ne, of=LEAF, **fields)
        self.leafs.append(made)
        return made

    def node(self, op: str, *src: Drawn | None, name: str = "", **fields: Any) -> Drawn:
        """A node; without `ne` it is as large as its last source."""
        last = src[-1] if src else None
        ne = fields.pop("ne", None) or (last.ne if last else _NE)
        name = name or f"{op.lower()}-{len(self.nodes)}"
        made = Drawn(name, op, ne, src=src, **fields)
        self.nodes.append(made)
        return made

    def view(
        self,
        viewed: Drawn,
        op: str = "VIEW",
        ne: tuple[int, ...] | None = None,
        offset: int = 0,
        **fields: Any,
    ) -> Drawn:
        """A view of a tensor, which need not be whole."""
        base = viewed.view_of or viewed
        at = viewed.offset + offset
        return self.node(
            op, viewed, ne=ne or viewed.ne, view_of=base, offset=at, type=viewed.type, **fields
        )

    def write(self, to: Drawn, what: Drawn, **fields: Any) -> Drawn:
        """A copy of `what` into `to`, such as a cache, in place."""
        base = to.view_of or to
        return self.node(
            "CPY", what, to, ne=to.ne, view_of=base, offset=to.offset, type=to.type, **fields
        )

    def chain(self, x: Drawn, *ops: str, **fields: Any) -> Drawn:
        """Nodes one after another; of an op with two sources both are the node before."""
        for op in ops:
            x = self.node(op, *([x, x] if op in ("ADD", "MUL") else [x]), **fields)
        return x

    def plan(self) -> Plan:
        """The plan that the reference makes of it."""
        capture = self.capture()
        return Plan(capture, reference.plan(capture).outcome)

    def capture(self) -> Capture:
        """The graph as the scheduler sees it."""
        names, everyone = self.devices, (1 << len(self.devices)) - 1
        hosts = [d for d in names if not d.startswith("gpu")]
        bufts = [d for d in names if d.startswith("gpu")] + ["CPU"]
        buft_of = {d: bufts.index("CPU" if d in hosts else d) for d in names}
        every = (*self.nodes, *self.leafs)
        ids = {id(t): i for i, t in enumerate(every)}
        places = list(dict.fromkeys((t.memory, t.usage) for t in every if t.memory))
        bufts += [m for m in dict.fromkeys(t.memory for t in every) if m and m not in bufts]

        def mask(devices: Sequence[str]) -> int:
            return sum(1 << names.index(d) for d in devices)

        def record(i: int, t: Drawn) -> TensorRecord:
            params = (*t.params, *[0] * (16 - len(t.params)))
            uses = sum(s is t for node in self.nodes for s in node.src)
            src = tuple(-1 if s is None else ids[id(s)] for s in t.src)
            return TensorRecord(
                id=i, kind=t.of, name=t.name, op=t.op, op_desc=t.kind or t.op, type=t.type,
                ne=t.ne, nb=t.nb, nbytes=t.size, flags=t.flags, op_params=params, src=src,
                view_src=-1 if t.view_of is None else ids[id(t.view_of)], view_offs=t.offset,
                buffer=places.index((t.memory, t.usage)) if t.memory else -1, use_count=uses,
                pin=names.index(t.pin) if t.pin else -1,
                supports=everyone if t.supports is None else mask(t.supports),
                offload=mask(t.offload),
            )  # fmt: skip

        kinds = {"g": "GPU", "b": "ACCEL", "C": "CPU"}
        newest = RELEASES[0]
        return Capture(
            Settings(
                newest.ggml, f"{newest.label}-0", self.op_offload, self.n_copies, 0, 1024, 0
            ),
            tuple(BackendRecord(d, d, kinds[d[0]], buft_of[d]) for d in names),
            tuple(
                BuftRecord(b, b == "CPU", mask(hosts if b == "CPU" else (b.partition("_")[0],)))
                for b in bufts
            ),
            tuple(BufferRecord(bufts.index(m), usage, 256) for m, usage in places),
            tuple(record(i, t) for i, t in enumerate(every)),
            tuple(ids[id(t)] for t in self.leafs),
            optimizers=int(bool(self.order)),
            optimized=(
                OptimizedRecord(
                    0,
                    0,
                    len(self.nodes),
                    tuple(self.order),
                    tuple((ids[id(kept)], ids[id(until)]) for kept, until in self.keep),
                ),
            )
            if self.order
            else (),
            compute_buffers=tuple(
                ComputeBufferRecord(names.index(d), 128, n) for d, n in self.limits.items()
            ),
        )  # fmt: skip

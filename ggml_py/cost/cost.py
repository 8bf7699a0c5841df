"""The predicted cost of a plan: seconds with an interval for each node, copy and split, and in all.

Time is added up along the plan: a backend that is not asynchronous computes its splits on the
caller's thread, one after the other; an asynchronous one has a queue of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..trace.html import table, text_html
from ..trace.planned import Planned
from ..trace.record import NODE
from ..trace.split import SplitInput
from ..trace.units import format_time, format_times
from ..typed import typed
from .applied import machine_for, stale
from .assumptions import assumed
from .coldness import coldnesses
from .datasheets import SheetEstimator
from .estimate import OVERHEAD, Estimator
from .machine import Machine, MeasuredDevice, is_server
from .sample import COPY_FROM, COPY_TO, DRIFT, MAPPED, PINNED, SPLIT
from .unmeasured import no_total, unmeasured
from .work import ATTENTION, NodeWork, fused_heads, work_of

SURE = 0.9  # the part of cases in which the measured time is in the interval
_DEVIATIONS = 1.645  # of a normal distribution, for that part
# Relative difference of two runs of a program although nothing was changed (the memory that a
# process gets makes its products faster or slower for its whole life). The samples do not show it.
# With it nine of ten of the measurements that may be looked at are in the interval
# (docs/COST_CHECKED.md). The change of the device's speed while it was measured is added.
BETWEEN_RUNS = 0.06
# By the end of a buffer type's name.
_MEMORY = (("_Host", PINNED), ("_Mapped", MAPPED))
# Times on GPUs were compared on one machine only: generation had about this error, and prompts took
# up to 2.4 times as long as predicted, for a reason that is not known (docs/COST_CHECKED.md).
ON_GPU, MORE_ON_GPU = 0.12, 1.0
# Most time of a node that was not measured, as a multiple of its time at a slow rate: nine of ten
# of the device's samples exceed that rate. The least is nothing.
_UNKNOWN = 3.0
_SLOWEST, _LATEST = 1e8, 1e-3  # bytes a second and seconds, at most, of a copy of that kind
PREDICTED, SHEETS = "predicted", "data sheets"
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One node that is computed. `seconds` is None if nothing like it was measured."""

    id: int
    backend: str
    seconds: float | None
    error: float  # relative, one standard deviation
    bound: str  # bytes, flops, overhead; "fused": another node's time has it; "unknown"
    work: NodeWork | None
    samples: tuple[int, ...]  # indices into the device's samples

    @property
    def interval(self) -> Interval | None:
        """Low and high, in seconds."""
        return None if self.seconds is None else _interval(self.seconds, self.error)


@dataclass(frozen=True, slots=True)
class CopyCost:
    """One tensor that is copied to the backend of a split."""

    tensor: int  # id
    split: int
    source: str
    to: str
    bytes: int
    seconds: float | None
    error: float
    bound: str
    samples: tuple[int, ...]

    @property
    def interval(self) -> Interval | None:
        """Low and high, in seconds."""
        return None if self.seconds is None else _interval(self.seconds, self.error)


@dataclass(frozen=True, slots=True)
class SplitCost:
    """One split: its copies, its nodes and what starting it takes. Unknown nodes count nothing."""

    index: int
    backend: str
    seconds: float
    interval: Interval
    bound: str  # what most of its time is bound by
    start: float  # seconds after the graph's
    end: float


@dataclass(frozen=True)
class Cost:
    """What a plan is predicted to take on a machine, from `Plan.cost`."""

    plan: Planned
    machine: Machine
    nodes: tuple[NodeCost, ...]
    copies: tuple[CopyCost, ...]
    splits: tuple[SplitCost, ...]
    seconds: float  # in all; unknown nodes count nothing
    interval: Interval  # that contains the time in nine of ten cases
    bound: str
    coldness: dict[str, float]  # by backend: the part of what it reads that no cache still has
    # Seconds that the total may be wrong by (one standard deviation), by device and kind of work:
    # the same error in every plan that has such work.
    errors: Mapping[tuple[str, str], float]
    # Most seconds of nodes without measurements, and of a GPU beyond its prediction.
    unknown_seconds: float
    # Seconds between the ends of two such graphs, one directly after the other. Fewer than
    # `seconds` with several copies of the inputs (parallel, n_copies): the devices then compute
    # parts of different graphs at the same time, and the busiest one is what all wait for.
    following: float
    # Outputs that a program reads from a device afterwards, such as logits; not of what nodes read.
    outputs: tuple[CopyCost, ...] = ()
    stale: tuple[str, ...] = field(default=())  # why the machine's file may not apply
    assumed: tuple[str, ...] = field(default=())  # what it takes for granted, in sentences

    def __repr__(self) -> str:
        return f"<Cost {self.headline()}>"

    @property
    def known_by(self) -> str:
        """The origin of its times: "predicted" from a calibration, or "data sheets" in part."""
        return PREDICTED if self.machine.is_measured and not self.machine.cards else SHEETS

    @property
    def unknown(self) -> tuple[NodeCost, ...]:
        """The nodes for which nothing was measured."""
        return tuple(node for node in self.nodes if node.seconds is None)

    @property
    def missing_copies(self) -> tuple[CopyCost, ...]:
        """The copies for which nothing was measured."""
        return tuple(copy for copy in (*self.copies, *self.outputs) if copy.seconds is None)

    @typed
    def node(self, id: int) -> NodeCost | None:
        """The cost of a node, by its id; None if it computes nothing."""
        return next((node for node in self.nodes if node.id == id), None)

    def headline(self) -> str:
        """The total in one line."""
        if why := no_total(self):
            return why
        text = f"{format_times(self.seconds, self.interval)}, bound by {self.bound}"
        n, c = len(self.unknown), len(self.missing_copies)
        parts = [f"{n} of {len(self.nodes)} nodes"] * bool(n) + [f"{c} copies"] * bool(c)
        return text + (f"; not known: {' and '.join(parts)}" if parts else "")

    def _repr_html_(self) -> str:
        """The headline, the time by backend, and the assumptions."""
        spent: dict[str, float] = {}
        for split in self.splits:
            spent[split.backend] = spent.get(split.backend, 0.0) + split.seconds
        whole = sum(spent.values()) or 1.0
        rows = [[name, format_time(s), f"{s / whole:.0%}"] for name, s in spent.items()]
        said = text_html("\n".join([f"{self.headline()} ({self.known_by})", *self.assumed]))
        return said + table(["backend", "time of its splits", ""], rows)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "seconds": self.seconds,
            "interval": limits(self.interval),
            "unmeasured": unmeasured(self),
            "bound": self.bound,
            "unknown_nodes": [node.id for node in self.unknown],
            "unknown_copies": [[c.tensor, c.split] for c in self.missing_copies],
            "stale": list(self.stale),
            "assumed": list(self.assumed),
            "nodes": [
                {"id": n.id, "backend": n.backend, "seconds": n.seconds,
                 "interval": None if n.interval is None else list(n.interval), "bound": n.bound,
                 "key": n.work.key if n.work else None, "samples": list(n.samples)}
                for n in self.nodes
            ],
            "copies": [
                {"tensor": c.tensor, "split": c.split, "from": c.source, "to": c.to,
                 "bytes": c.bytes, "seconds": c.seconds,
                 "interval": None if c.interval is None else list(c.interval), "bound": c.bound,
                 "samples": list(c.samples)}
                for c in self.copies
            ],
            "outputs": [
                {"tensor": c.tensor, "from": c.source, "to": c.to, "bytes": c.bytes,
                 "seconds": c.seconds, "bound": c.bound}
                for c in self.outputs
            ],
            "splits": [
                {"index": s.index, "backend": s.backend, "seconds": s.seconds,
                 "interval": list(s.interval), "bound": s.bound, "start": s.start, "end": s.end}
                for s in self.splits
            ],
        }  # fmt: skip


@typed
def cost_of(plan: Planned, machine: Machine, n_past: int | None = None) -> Cost:
    """What a plan takes on a machine. See `Plan.cost`."""
    if not isinstance(machine, Machine):
        raise TypeError(
            f"machine: expected a Machine, which Machine.load reads, got {type(machine).__name__}"
        )
    if plan.capture.source != "scheduler":
        raise ValueError(
            f"this plan was read from a {plan.capture.source}, which lacks the shapes that a "
            "prediction needs: plan the graph with Scheduler.plan, or load a file that "
            "Plan.to_json wrote"
        )
    return _Adder(plan, machine_for(plan, machine), n_past).cost()


class _Adder:
    """Adds up one plan."""

    def __init__(self, plan: Planned, machine: Machine, n_past: int | None) -> None:
        self.plan, self.machine = plan, machine
        self.n_past = plan.promise.n_past if n_past is None else n_past
        self.names = [b.name for b in plan.backends]
        self.estimators = [estimator_of(machine, b.name, b.device) for b in plan.backends]
        self.n_threads = [
            machine.n_threads if b.device_type == "CPU" or b.name == "BLAS" else 1
            for b in plan.backends
        ]
        self.by_key: dict[tuple[int, str], float] = {}  # seconds × error, which add up per kind
        self.unknown = 0.0  # seconds that unknown nodes may take at most

    def cost(self) -> Cost:
        plan = self.plan
        nodes = self._nodes()
        copies: list[CopyCost] = []
        splits: list[SplitCost] = []
        free = [0.0] * len(self.names)  # when each backend is done with what it was given
        host, bounds = 0.0, dict[str, float]()
        ends: dict[int, float] = {}
        busy = [0.0] * len(self.names)  # what each backend does while the caller goes on
        caller = 0.0
        at = 0
        ordered = nodes
        for index, record in enumerate(plan.split_records):
            b = record.backend
            estimator = self.estimators[b]
            mine: dict[str, float] = {}
            variance = 0.0
            start = host
            took = 0.0
            for given in plan.splits[index].inputs:
                copy = self._copy(given, index)
                copies.append(copy)
                source = given.tensor.placement.backend
                host = max(host, ends.get(source, 0.0), free[b])
                host += copy.seconds or 0.0
                took += copy.seconds or 0.0
                _add(mine, copy.bound, copy.seconds or 0.0)
                variance += ((copy.seconds or 0.0) * copy.error) ** 2
            work = 0.0
            while at < len(ordered) and ordered[at].id < record.end:
                node = ordered[at]
                at += 1
                seconds = node.seconds or 0.0
                work += seconds
                _add(mine, node.bound, seconds)
                variance += (seconds * node.error) ** 2
            if estimator is not None:
                begins = estimator.split(work)
                host += begins.seconds
                took += begins.seconds
                _add(mine, OVERHEAD, begins.seconds)
                error = begins.seconds * begins.error
                variance += error**2
                self.by_key[b, SPLIT] = self.by_key.get((b, SPLIT), 0.0) + error
            waits = estimator is None or not estimator.device.asynchronous
            caller += took + (work if waits else 0.0)
            busy[b] += 0.0 if waits else work
            took += work
            done = max(host, free[b]) + work
            free[b] = ends[b] = done
            if waits:
                host = done
            error = math.sqrt(variance) / took + BETWEEN_RUNS if took else 0.0
            splits.append(SplitCost(
                index, self.names[b], took, _interval(took, error), _most(mine), start, done
            ))  # fmt: skip
            for bound, seconds in mine.items():
                _add(bounds, bound, seconds)
        outputs = tuple(self._outputs())
        read = sum(copy.seconds or 0.0 for copy in outputs)
        for copy in outputs:
            _add(bounds, copy.bound, copy.seconds or 0.0)
        total = max([host, *free]) + read
        caller += read
        for b, estimator in enumerate(self.estimators):
            if estimator is not None and estimator.drift:
                spent = sum(split.seconds for split in splits if split.backend == self.names[b])
                self.by_key[b, DRIFT] = spent * estimator.drift
        for b in self._gpus():
            gpu = sum(split.seconds for split in splits if split.backend == self.names[b])
            self.by_key[b, "GPU"] = gpu * ON_GPU
            self.unknown += gpu * MORE_ON_GPU
        return Cost(
            plan, self.machine, nodes, tuple(copies), tuple(splits), total,
            self._total_interval(total), _most(bounds),
            dict(zip(self.names, self.coldness, strict=True)),
            {(self.names[b], kind): error for (b, kind), error in self.by_key.items()},
            self.unknown,
            max(caller, *busy) if plan.settings.n_copies > 1 else total,
            outputs,
            stale(plan, self.machine),
            self._assumed(nodes),
        )  # fmt: skip

    def _assumed(self, nodes: Iterable[NodeCost]) -> tuple[str, ...]:
        full = any(
            self.n_past is None and node.seconds is not None
            and node.work is not None and node.work.key.startswith(ATTENTION)
            for node in nodes
        )  # fmt: skip
        gpus = [self.names[b] for b in self._gpus()]
        return tuple(assumed(self.plan, self.machine, self.estimators, gpus, full))

    def _gpus(self) -> list[int]:
        """The backends of real GPUs that were measured."""
        return [
            b for b, e in enumerate(self.estimators)
            if isinstance(e, Estimator) and (e.heads_at_once or _is_gpu(e.device))
            and any(record.backend == b for record in self.plan.split_records)
        ]  # fmt: skip

    def _nodes(self) -> tuple[NodeCost, ...]:
        plan, found = self.plan, []
        flagged = plan.has_compute_flags
        placed = plan.outcome.placements
        heads, fused = fused_heads(plan)
        self.coldness = coldnesses(plan, self.estimators)
        for t in plan.capture.tensors:
            if t.kind != NODE:
                break  # nodes come first
            if t.is_view_op or (flagged and "compute" not in t.flags):
                continue
            b = placed[t.id].backend
            if t.id in fused:
                found.append(NodeCost(t.id, self.names[b], 0.0, 0.0, "fused", None, ()))
                continue
            work = work_of(plan, t, b, self.n_threads[b], heads, self.n_past)
            found.append(self._node(t.id, b, work))
        return tuple(found)

    def _node(self, id: int, b: int, work: NodeWork) -> NodeCost:
        estimator = self.estimators[b]
        estimate = None if estimator is None else estimator.estimate(work, self.coldness[b])
        if estimate is None:
            self.unknown += self._most_of(b, work)
            return NodeCost(id, self.names[b], None, 0.0, "unknown", work, ())
        key = (b, work.key)
        self.by_key[key] = self.by_key.get(key, 0.0) + estimate.seconds * estimate.error
        return NodeCost(
            id, self.names[b], estimate.seconds, estimate.error, estimate.bound, work,
            estimate.samples,
        )  # fmt: skip

    def _most_of(self, b: int, work: NodeWork) -> float:
        """What an unknown node may take: a multiple of the time for its bytes and operations."""
        known = self.estimators[b] or self.estimators[-1]
        if known is None:
            return math.inf  # nothing says how slow it may be
        bandwidth, speed = known.slow
        by_bytes = work.bytes / bandwidth if bandwidth else 0.0
        by_flops = work.flops / speed if speed else 0.0
        return _UNKNOWN * (by_bytes + by_flops + known.cold_node.seconds)

    def _copy(self, given: SplitInput, index: int) -> CopyCost:
        a = given.tensor.placement.backend
        b = self.plan.capture.backend_index(given.dst_backend)
        memory = self._memory(given, a, b)
        return self._copied(given.tensor.id, index, int(given.nbytes), (a, b), memory)

    def _outputs(self) -> Iterator[CopyCost]:
        """Results that no node reads, on backends whose memory the host cannot read."""
        plan, capture = self.plan, self.plan.capture
        read = {i for t in capture.tensors for i in t.src}
        placed, last = plan.outcome.placements, len(self.names) - 1
        for t in capture.tensors:
            if t.kind != NODE:
                break  # nodes come first
            b = placed[t.id].backend
            there = b != last and not capture.bufts[plan.backends[b].buft].is_host
            if there and "output" in t.flags and t.id not in read and not t.is_view_op:
                yield self._copied(t.id, plan.n_splits - 1, t.nbytes, (b, last), "")

    def _copied(
        self, id: int, index: int, nbytes: int, way: tuple[int, int], memory: str
    ) -> CopyCost:
        """What copying a tensor from one backend to another takes."""
        a, b = way
        there, here = self.estimators[b], self.estimators[a]
        estimate, name = None, ""
        if there is not None and here is not None:
            name = f"{here.device.name} {there.device.name}"
            for kind in (memory, ""):
                estimate = estimate or (
                    there.copy(COPY_FROM + here.device.name + kind, nbytes)
                    or here.copy(COPY_TO + there.device.name + kind, nbytes)
                )
        source, to = self.names[a] if a >= 0 else "?", self.names[b]
        if estimate is None:
            self.unknown += nbytes / _SLOWEST + _LATEST
            return CopyCost(id, index, source, to, nbytes, None, 0.0, "unknown", ())
        key = (b, f"copy {name}")
        self.by_key[key] = self.by_key.get(key, 0.0) + estimate.seconds * estimate.error
        return CopyCost(
            id, index, source, to, nbytes, estimate.seconds, estimate.error, estimate.bound,
            estimate.samples,
        )  # fmt: skip

    def _memory(self, given: SplitInput, a: int, b: int) -> str:
        """The kind of the host's memory in a copy from backend a to b: of the tensor's own buffer
        type, or of the type that the program gave a backend. "" if it is the usual kind."""
        capture = self.plan.capture
        own = capture.buft_of(given.tensor.record)
        bufts = (own if own >= 0 else self.plan.backends[a].buft, self.plan.backends[b].buft)
        return next(filter(None, (memory_of(self.plan, i) for i in bufts)), "")

    def _total_interval(self, total: float) -> Interval:
        """Errors of one kind of work are the same error, those of several kinds are not; all share
        what runs differ by."""
        own = math.sqrt(sum(error**2 for error in self.by_key.values()))
        deviation = math.hypot(own, total * BETWEEN_RUNS)
        low, high = total - _DEVIATIONS * deviation, total + _DEVIATIONS * deviation
        return max(low, 0.0), high + self.unknown


@typed
def limits(interval: Interval) -> list[float | None]:
    """For JSON: None for an end that nothing limits."""
    return [end if math.isfinite(end) else None for end in interval]


@typed
def estimator_of(machine: Machine, backend: str, device: str) -> Estimator | SheetEstimator | None:
    """The device's, kept with the machine: from what was measured, otherwise from the data sheet of
    the card that it stands for."""
    kept = machine._derived
    for name in (backend, device):
        made: Estimator | SheetEstimator | None = None
        found, card = _measured(machine, name, backend), machine.cards.get(name)
        if found is not None and not (card and found.is_simulated):
            name = f"{found.name} {found.description}"
            made = kept.get(name) or Estimator(found)
        elif card is not None:
            made = kept.get(name) or SheetEstimator(name, card)
        if made is not None:
            kept[name] = made
            return made
    return None


@typed
def memory_of(plan: Planned, buft: int) -> str:
    """What memory a buffer type is, as samples of copies name it: `PINNED`, `MAPPED` or ""."""
    name = plan.capture.bufts[buft].name if buft >= 0 else ""
    return next((memory for end, memory in _MEMORY if name.endswith(end)), "")


def _measured(machine: Machine, name: str, backend: str) -> MeasuredDevice | None:
    """The device of that name. Servers are numbered by each process, so a server is found by its
    address, which its backend's name has: "RPC0[HOST:PORT]"."""
    if backend.startswith("RPC") and "[" in backend:
        return next((d for d in machine.devices if is_server(backend, d)), None)
    return machine.device(name)


def _is_gpu(device: MeasuredDevice) -> bool:
    """Whether it is a real GPU of this machine: ggml calls a server on any device one."""
    is_gpu = device.type in ("GPU", "IGPU") and not device.name.startswith("RPC")
    return is_gpu and not device.is_simulated


def _interval(seconds: float, error: float) -> Interval:
    return max(seconds * (1 - _DEVIATIONS * error), 0.0), seconds * (1 + _DEVIATIONS * error)


def _add(sums: dict[str, float], bound: str, seconds: float) -> None:
    sums[bound] = sums.get(bound, 0.0) + seconds


def _most(sums: dict[str, float]) -> str:
    return max(sums, key=lambda bound: sums[bound], default=OVERHEAD)

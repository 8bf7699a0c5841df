"""Plans recorded graphs on devices that answer as the recorded ones did. Also observes this
release's compute buffers, reallocations, waits and copies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..backends.backend import Backend
from ..backends.buffer import BufferType
from ..backends.device import Device
from ..backends.device import devices as all_devices
from ..backends.sharing import changing
from ..boundary.ffi import ffi, lib
from ..enums import Type
from ..errors import AbortError, AllocError, ArgumentError
from ..plan import Plan
from ..sim.assumed import assuming
from ..sim.profiles.call import CUSTOM_OPS
from ..sim.sim_device import SimDevice, sim_device
from ..tensors.tensor import Tensor
from ..trace.planned import format_bytes
from ..trace.record import VIEW_OPS, BuftRecord, Capture, TensorRecord
from ..typed import typed
from ..variants.rebuild import not_made
from .capture import read_plan
from .observed import (
    Observed,
    allocated_steps,
    layout_lines,
    median_seconds,
    run_again,
    run_once,
    unplaced_lines,
)
from .process_facts import made_again
from .rebuilt import Places, RebuiltGraph, rebuilt
from .refusal import deciding
from .scheduler import Scheduler
from .uninstrumented import plan_by_reference

MAX_BYTES, MAX_FLOPS = 256 << 20, 5 * 10**9  # of a graph that is computed to look at its run
_DEVICE_MEMORY = 1 << 44  # bytes of a device that stands in; taken as it is used


@typed
def replay_as_recorded(plan: Plan) -> Plan:
    """The plan that this release's scheduler makes of a plan's graph, with devices that answer as
    the recorded ones did. Devices that are not here are simulated.

    Raises what `replay` does, and `ArgumentError` if the recorded memory cannot be stood in for.
    """
    with AsRecorded(plan) as recorded:
        return recorded.plan(plan)


class _Pinned(NamedTuple):
    """A recorded graph that was made again for a scheduler, and its pins."""

    scheduler: Scheduler
    memory: RebuiltGraph
    pins: list[tuple[Tensor, Backend]]

    def pin(self) -> None:
        """Sets the pins, which every reset drops."""
        for tensor, backend in self.pins:
            self.scheduler.set_tensor_backend(tensor, backend)


class _Ordering:
    """A `graph_optimize` that orders the nodes of a split as the recorded one did, and keeps what
    it kept. It leaves a split alone that the record does not have."""

    def __init__(self, backend: int) -> None:
        self._backend = backend
        self._capture: Capture | None = None
        self._tensors: Sequence[Tensor] = ()
        self._ids: dict[int, int] = {}
        self.asked: list[str] = []  # what it was asked about, in lines

    def about(self, capture: Capture | None, tensors: Sequence[Tensor]) -> None:
        """The graph that it will be asked about, by the tensors' ids."""
        self._capture, self._tensors = capture, tensors
        self._ids = {int(ffi.cast("uintptr_t", t.ptr)): i for i, t in enumerate(tensors)}

    def __call__(self, nodes: Any) -> Any:
        """The nodes in the recorded order."""
        ids = [self._ids.get(int(ffi.cast("uintptr_t", node.ptr)), -1) for node in nodes]
        self.asked.append(f"nodes {', '.join(map(str, ids))}")
        for made in self._capture.optimized if self._capture else ():
            order = made.order or tuple(range(made.start, made.end))
            if made.backend == self._backend and sorted(ids) == sorted(order):
                for kept, until in made.alloc_deps:
                    if kept < len(self._tensors):
                        nodes.add_alloc_dep(self._tensors[kept], self._tensors[until])
                return [ids.index(i) for i in order]
        return nodes


class AsRecorded:
    """A scheduler on devices that answer as those of a recorded plan did, for the plans that one
    scheduler made. Devices that are not here are simulated while the block lasts.

    `size` is the number of tensors that it has room for (0: as many as `plan` has). `n_threads` is
    the number of the CPU's threads (as usual). C: ggml_backend_sched_new
    """

    @typed
    def __init__(self, plan: Plan, size: int = 0, n_threads: int | None = None) -> None:
        plan.capture.check_answers()
        self._first = plan.capture
        self._size, self._n_threads = size, n_threads
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> AsRecorded:
        with contextlib.ExitStack() as stack:
            self._orderings: list[_Ordering] = []
            self._devices = _stand_ins(self._first, stack, self._orderings)
            self._backends = [
                stack.enter_context(device.init(self._n_threads)) for device in self._devices
            ]
            self._scheduler = stack.enter_context(self._new_scheduler())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _new_scheduler(self) -> Scheduler:
        settings = self._first.settings
        places = Places(self._first, self._devices, ())
        return Scheduler(
            self._backends,
            graph_size=max(settings.hash_set_size, len(self._first.tensors), self._size),
            parallel=settings.n_copies > 1,
            op_offload=settings.op_offload,
            buffer_types=[places.scheduler_buft(b, d) for b, d in enumerate(self._devices)],
        )

    def plan(self, plan: Plan) -> Plan:
        """The plan that this scheduler makes of a plan's graph, after all that it planned before:
        in some releases plans depend on earlier ones. A build without causes only confirms the
        reference's plan (`uninstrumented.py`). Raises `ArgumentError` if the recorded memory cannot
        be stood in for. C: ggml_backend_sched_split_graph, ggml_backend_sched_reset"""
        scheduler, capture = self._scheduler, plan.capture
        with self._graph(scheduler, capture) as made:
            graph = made.memory.graph
            if not scheduler._tracing:
                again = plan_by_reference(scheduler, graph, capture, made.memory.tensors)
            else:
                with changing("planning", scheduler, graph, graph=graph):
                    with deciding(scheduler, graph, True):  # its own plan, not one beside it
                        lib.ggml_backend_sched_split_graph(scheduler.ptr, graph.ptr)
                    again = read_plan(lib.gp_sched_read, scheduler.ptr, graph.ptr, {})
            scheduler.reset()
        named = [
            now._replace(name=was.name, device=was.device)
            for was, now in zip(capture.backends, again.capture.backends, strict=True)
        ]  # fmt: skip
        return Plan(
            replace(again.capture, backends=tuple(named)), again.outcome, again.planner,
            provenance=made_again(plan.provenance),
        )  # fmt: skip

    def observe(self, plan: Plan, reserve: Plan | None = None, in_depth: bool = False) -> Observed:
        """What this release does with the graph on a new scheduler: `reserve` with the pins, then
        memory with the pins, then a compute on made-up values if that is small (`MAX_BYTES`,
        `MAX_FLOPS`). The graph that is reserved is that of `reserve`, if given; `in_depth` computes
        it more often, in other ways (`run_again`). C: ggml_backend_sched_reserve,
        ggml_backend_sched_alloc_graph, ggml_backend_sched_graph_compute"""
        why_not = _not_computed(plan)
        if not self._scheduler._tracing:
            why_not = "not computed: this build of ggml is not instrumented"
        data, why_not = not why_not, why_not or _not_made(plan)
        reserved: dict[str, int] = {}
        try:
            with self._ready(plan, data, reserve) as (scheduler, made, reserve_steps):
                memory = made.memory
                reserved = self._sizes(scheduler)
                tells = scheduler._tracing
                before = scheduler.n_reallocations if tells else 0
                steps = self._noted(scheduler, lambda: scheduler.alloc_without_plan(memory.graph))
                made_plan = self._read(scheduler, memory) if tells else plan
                layout = layout_lines(made_plan)
                allocated = self._sizes(scheduler)
                again = scheduler.reallocations if tells else ()
                more = scheduler.n_reallocations - before if tells else 0
                said = tuple(one.text for one in again[len(again) - more :])
                why_not = why_not or self._cannot_compute(memory)
                found = Observed(
                    reserved, allocated, said, None, (), why_not, layout=layout, steps=steps
                )
                if why_not:
                    return found
                found = run_once(scheduler, memory, made_plan, found)
                if not in_depth:
                    return found

                def allocate(waiting: bool) -> Plan:
                    scheduler.reset()
                    if waiting:
                        scheduler.synchronize()
                    made.pin()
                    scheduler.alloc_without_plan(memory.graph)
                    return self._read(scheduler, memory)

                later = run_again(scheduler, memory, allocate, made.pin, found.outputs)
                scheduler.reset()
                unplaced = unplaced_lines(scheduler, memory, lambda: self._sizes(scheduler))
                asked = [f"asked for an order: {line}" for o in self._orderings for line in o.asked]
                return found._replace(later=(*reserve_steps, *later, *asked, *unplaced))
        except AllocError as error:
            return Observed(reserved, {}, (), None, (), str(error))
        except AbortError as error:
            first = str(error).partition("\n")[0]
            return Observed(reserved, {}, (), None, (), f"the compute was stopped: {first}")

    def median_seconds(self, plan: Plan) -> float:
        """The median time of a compute, on made-up values. Raises `ArgumentError` for a graph that
        `observe` does not compute, and for one on simulated devices, whose time is the CPU's."""
        simulated = [device.name for device in self._devices if isinstance(device, SimDevice)]
        if simulated:
            raise ArgumentError(f"{', '.join(simulated)} is simulated here, on the CPU")
        if why_not := _not_computed(plan) or _not_made(plan):
            raise ArgumentError(why_not)
        with self._ready(plan, True) as (scheduler, made, _steps):
            if why_not := self._cannot_compute(made.memory):
                raise ArgumentError(why_not)
            scheduler.alloc_without_plan(made.memory.graph)
            return median_seconds(scheduler, made.memory)

    @staticmethod
    def _noted(scheduler: Scheduler, work: Callable[[], object]) -> tuple[str, ...]:
        """The waits while `work` runs, in lines; () if this build does not tell."""
        if scheduler._tracing:
            return allocated_steps(scheduler, work)
        work()
        return ()

    @staticmethod
    def _read(scheduler: Scheduler, memory: RebuiltGraph) -> Plan:
        """The plan of the graph that has memory, with its layout."""
        return read_plan(lib.gp_sched_read, scheduler.ptr, memory.graph.ptr, {})

    @contextlib.contextmanager
    def _ready(
        self, plan: Plan, data: bool, reserve: Plan | None = None
    ) -> Iterator[tuple[Scheduler, _Pinned, list[str]]]:
        """A new scheduler that has reserved the graph, or that of `reserve`, the graph with its
        pins, and what `reserve` waited for, in lines."""
        with self._new_scheduler() as scheduler:
            steps: tuple[str, ...] = ()
            for one in self._orderings:
                one.asked.clear()
            if reserve is not None:
                with self._graph(scheduler, reserve.capture) as other:
                    steps = self._noted(scheduler, lambda: scheduler.reserve(other.memory.graph))
            with self._graph(scheduler, plan.capture, data=data) as made:
                if reserve is None:
                    steps = self._noted(scheduler, lambda: scheduler.reserve(made.memory.graph))
                    made.pin()
                yield scheduler, made, [f"reserve: {step}" for step in steps]

    @contextlib.contextmanager
    def _graph(
        self, scheduler: Scheduler, capture: Capture, data: bool = False
    ) -> Iterator[_Pinned]:
        """The graph with its pins, while the devices answer as recorded."""
        places = Places(capture, self._devices, ())
        _check_memory(capture, places)
        with rebuilt(capture, places, data) as memory, _answering(capture, places, memory):
            pins = [
                (tensor, self._backends[backend])
                for t, tensor in zip(capture.tensors, memory.tensors, strict=True)
                if t.pin >= 0 and (backend := places.backend_of(t.pin)) is not None
            ]
            made = _Pinned(scheduler, memory, pins)
            made.pin()
            for one in self._orderings:
                one.about(capture, memory.tensors)
            try:
                yield made
            finally:
                for one in self._orderings:
                    one.about(None, ())

    def _sizes(self, scheduler: Scheduler) -> dict[str, int]:
        return {backend.name: scheduler.buffer_size(backend) for backend in self._backends}

    def _cannot_compute(self, memory: RebuiltGraph) -> str:
        """A sentence on the first op without a kernel on any device here; "" if all have one."""
        cpu = self._devices[-1]
        for tensor in memory.graph.nodes:
            if tensor.op.name not in VIEW_OPS and not cpu.supports_op(tensor):
                return f"not computed: the CPU, which simulates devices, has no {tensor.op.name}"
        return ""


def _extent(t: TensorRecord) -> int:
    """Bytes by shape and strides: those that a file says may be wrong. C: ggml_nbytes"""
    kind = Type.__members__.get(t.type.upper())
    if kind is None or 0 in t.ne:
        return t.nbytes
    first = t.ne[0] * t.nb[0] // int(lib.ggml_blck_size(kind))
    return first + sum((n - 1) * step for n, step in zip(t.ne[1:], t.nb[1:], strict=False))


def _not_computed(plan: Plan) -> str:
    """Why the graph is not computed; "" if it is."""
    custom = next((node.op for node in plan.nodes if node.op in CUSTOM_OPS), None)
    if custom is not None:
        return f"not computed: {custom} calls a function of the program that made the graph"
    nbytes = sum(_extent(t) for t in plan.capture.tensors if t.view_src < 0)
    if nbytes > MAX_BYTES:
        return f"not computed: {format_bytes(nbytes)} of data, above {format_bytes(MAX_BYTES)}"
    work = sum(node.flops or 0 for node in plan.nodes)
    if work > MAX_FLOPS:
        return f"not computed: {work / 1e9:.0f} GFLOP, above {MAX_FLOPS / 1e9:.0f}"
    return ""


def _not_made(plan: Plan) -> str:
    """Why kernels must not see the graph; "" if they may."""
    odd = not_made(plan.capture.tensors)
    if odd is None:
        return ""
    return f"not computed: no constructor of ggml makes '{odd.name}' = {odd.op_desc}"


def _stand_ins(
    capture: Capture, stack: contextlib.ExitStack, orderings: list[_Ordering]
) -> list[Device]:
    """The recorded devices, or simulated ones in their place."""
    here = {device.name: device for device in all_devices()}
    last = len(capture.backends) - 1
    found: list[Device] = []
    names = [backend.device for backend in capture.backends]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"two backends of the plan are on {twice}: nothing here can stand in")
    if any(backend.device_type == "META" for backend in capture.backends):
        raise ArgumentError(
            "the plan is of a model split by tensors (-sm tensor): nothing here can stand in for "
            "its meta device"
        )
    for b, recorded in enumerate(capture.backends):
        if b == last and recorded.device_type == "CPU":
            found.append(here["CPU"])
        elif recorded.device in here:
            found.append(here[recorded.device])
        else:
            buft = capture.bufts[recorded.buft]
            pinned = any(one.is_host and one.name.endswith("_Host") for one in capture.bufts)
            sizes = [one.max_size for one in capture.compute_buffers if one.backend == b]
            limit = sizes[0] if sizes and sizes[0] < _DEVICE_MEMORY else None
            ordering = _Ordering(b) if capture.optimizers >> b & 1 else None
            orderings += [ordering] if ordering else []
            made = sim_device(
                recorded.device, type=recorded.device_type.lower(), memory=_DEVICE_MEMORY,
                host=buft.is_host, host_buffer=pinned and not buft.is_host, max_size=limit,
                graph_optimize=ordering,
            )  # fmt: skip
            found.append(stack.enter_context(made))
    return found


def _check_memory(capture: Capture, places: Places) -> None:
    """Raises `ArgumentError` if the memory that stands in for the recorded one is host memory where
    that was not, or can be read by other backends: then a scheduler decides otherwise."""
    found: dict[str, tuple[bool, int]] = {}

    def check(what: str, recorded: BuftRecord, buft: BufferType) -> None:
        if buft.name not in found:
            readers = (device.supports_buft(buft) << b for b, device in enumerate(places.devices))
            found[buft.name] = buft.is_host, sum(readers)
        if found[buft.name] != (recorded.is_host, recorded.readers):
            raise ArgumentError(
                f"{what} in {recorded.name} memory, for which none of this machine stands in: plan "
                "the graph again on devices that you name"
            )

    for t in capture.tensors:
        if t.buffer >= 0:
            buffer = capture.buffers[t.buffer]
            check(f"'{t.name}' was", capture.bufts[buffer.buft], places.of(t, buffer))
    for b, backend in enumerate(capture.backends):
        if backend.buft >= 0:
            buft = places.scheduler_buft(b, places.devices[b])
            check(f"{backend.name} computed", capture.bufts[backend.buft], buft)


def _answering(capture: Capture, places: Places, memory: RebuiltGraph) -> Any:
    """While it lasts, the devices answer about the graph's nodes as the recorded ones did."""
    ids = {int(ffi.cast("uintptr_t", t.ptr)): i for i, t in enumerate(memory.tensors)}
    places_of = {places.backend_of(b): b for b in range(len(capture.backends))}

    def answers(field: str, b: int) -> Any:
        def answer(tensor: Tensor) -> bool | None:
            i = ids.get(int(ffi.cast("uintptr_t", tensor.ptr)))
            return None if i is None else bool(getattr(capture.tensors[i], field) >> b & 1)

        return answer

    known = {d: places_of[i] for i, d in enumerate(places.devices) if i in places_of}
    return assuming(
        {device: answers("supports", b) for device, b in known.items()},
        {device: answers("offload", b) for device, b in known.items()},
    )

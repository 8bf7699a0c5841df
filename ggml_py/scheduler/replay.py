"""Plans a recorded graph again: the graph of any plan that has the backends' answers becomes a real
one, without data, and upstream's scheduler plans it on the devices that are given."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import enums
from ..backends.buffer import Buffer, BufferType
from ..backends.device import Device
from ..backends.device import devices as all_devices
from ..boundary.ffi import ffi, lib, text
from ..errors import ArgumentError
from ..graphs.context import Context
from ..graphs.graph import Graph
from ..plan import Plan
from ..sim.assumed import assuming
from ..sim.device import sim_device
from ..tensors.tensor import Tensor
from ..trace.record import NODE, BufferRecord, Capture, TensorRecord
from .scheduler import Scheduler
from .uninstrumented import plan_by_reference

_NO_DATA = "a graph of a record has no data: it can be planned, and not computed"
# Where tensors with memory are said to be: backends compare, and nobody reads.
_BASE, _STEP = 1 << 44, 1 << 30


class Replayed(NamedTuple):
    """A recorded graph, planned again."""

    plan: Plan
    # What the new devices did not have, and what was taken instead: (buffer type, its substitute).
    substitutes: tuple[tuple[str, str], ...]
    unmatched: tuple[str, ...]  # rules of `weights` that match no weight
    n_weights: int


def replay(
    plan: Plan,
    devices: Sequence[Device],
    weights: Sequence[tuple[str, str]] = (),
    *,
    op_offload: bool | None = None,
    parallel: bool | None = None,
    as_answered: bool = False,
) -> Replayed:
    """The plan that upstream's scheduler makes of a plan's graph on other devices, by priority; the
    last is a CPU.

    Tensors that had memory stay in the buffer type of that name if the devices have it. The memory
    of the first recorded GPU otherwise becomes that of the first given one, and so on; what is left
    goes to the CPU. `weights` are pairs (regular expression, device or buffer type), as llama.cpp's
    -ot: the first that matches a weight's name says where it is. Pins stay on the backend in the
    same place.
    `op_offload` and `parallel` are as recorded unless they are given. With `as_answered` the
    devices support and offload what the recorded ones did, so that only the scheduler may decide
    otherwise.

    Raises ValueError for a plan without the answers of the backends, `ArgumentError` for devices
    that make no scheduler, names that mean no memory, and ops or types that this release lacks.
    C: ggml_backend_sched_split_graph
    """
    capture = plan.capture
    capture.check_answers()
    with contextlib.ExitStack() as stack:
        backends = [stack.enter_context(device.init()) for device in devices]
        places = _Places(capture, devices, weights)
        memory = stack.enter_context(_rebuilt(capture, places))
        settings = capture.settings
        copies = settings.n_copies > 1 if parallel is None else parallel
        bufts = [places.scheduler_buft(b, device) for b, device in enumerate(devices)]
        scheduler = stack.enter_context(
            Scheduler(
                backends,
                graph_size=max(settings.hash_set_size, len(capture.tensors)),
                parallel=copies,
                op_offload=settings.op_offload if op_offload is None else op_offload,
                buffer_types=bufts,
            )
        )
        for t, tensor in zip(capture.tensors, memory.tensors, strict=True):
            backend = places.backend_of(t.pin) if t.pin >= 0 else None
            if backend is not None:
                scheduler.set_tensor_backend(tensor, backends[backend])
        with _answering(capture, places, memory) if as_answered else contextlib.nullcontext():
            if as_answered and not scheduler._tracing:
                found = plan_by_reference(scheduler, memory.graph, capture, memory.tensors)
            else:
                found = scheduler.plan(memory.graph)
        n_weights = sum(map(capture.is_weight, capture.tensors))
        return Replayed(found, places.substitutes, places.unmatched, n_weights)


def replay_as_recorded(plan: Plan) -> Plan:
    """The plan that this release's scheduler makes of a plan's graph, with devices that answer as
    the recorded ones did. Devices that are not here are simulated. A build without causes only
    confirms the reference's plan (`uninstrumented.py`); `planner` says so.

    Raises what `replay` does, and `ArgumentError` if the recorded memory cannot be stood in for.
    """
    capture = plan.capture
    capture.check_answers()
    with contextlib.ExitStack() as stack:
        here = {device.name: device for device in all_devices()}
        last = len(capture.backends) - 1
        devices = []
        for b, recorded in enumerate(capture.backends):
            if b == last and recorded.device_type == "CPU":
                devices.append(here["CPU"])
            elif recorded.device in here:
                devices.append(here[recorded.device])
            else:
                buft = capture.bufts[recorded.buft]
                pinned = any(one.is_host and one.name.endswith("_Host") for one in capture.bufts)
                made = sim_device(
                    recorded.device, type=recorded.device_type.lower(),
                    host=buft.is_host, host_buffer=pinned and not buft.is_host,
                )  # fmt: skip
                devices.append(stack.enter_context(made))
        again = replay(plan, devices, as_answered=True).plan
    _check_readers(capture, again.capture)
    return again


def _check_readers(was: Capture, now: Capture) -> None:
    """Raises `ArgumentError` if the scheduler was told something else about the memory."""

    def seen(capture: Capture, buft: int) -> tuple[bool, int] | None:
        return None if buft < 0 else capture.bufts[buft][1:]

    for a, b in zip(was.tensors, now.tensors, strict=True):
        if seen(was, was.buft_of(a)) != seen(now, now.buft_of(b)):
            raise ArgumentError(
                f"'{a.name}' was in {was.bufts[was.buft_of(a)].name} memory, for which none of "
                "this machine stands in: plan the graph again on devices that you name"
            )
    for one, other in zip(was.backends, now.backends, strict=True):
        if seen(was, one.buft) != seen(now, other.buft):
            raise ArgumentError(
                f"{one.name} computed in {was.bufts[one.buft].name} memory, for which none of this "
                "machine stands in: plan the graph again on devices that you name"
            )


def _answering(capture: Capture, places: _Places, memory: _Memory) -> Any:
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


class _Places:
    """Which memory of the given devices stands for the recorded one."""

    def __init__(
        self, capture: Capture, devices: Sequence[Device], weights: Sequence[tuple[str, str]]
    ) -> None:
        self.capture, self.devices = capture, devices
        self._bufts = _buffer_types(devices)
        self._rules = [(_pattern(regex), self._named(name)) for regex, name in weights]
        self._taken: dict[str, str] = {}
        self._used: set[str] = set()

    @property
    def unmatched(self) -> tuple[str, ...]:
        return tuple(p.pattern for p, _buft in self._rules if p.pattern not in self._used)

    @property
    def substitutes(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._taken.items())

    def _named(self, name: str) -> BufferType:
        for device in self.devices:
            if device.name == name:
                return device.buffer_type
        if name in self._bufts:
            return self._bufts[name]
        raise ArgumentError(
            f"no device or buffer type {name!r}: expected one of {', '.join(self._bufts)}"
        )

    def of(self, t: TensorRecord, buffer: BufferRecord) -> BufferType:
        """Where a tensor that had memory is now."""
        for pattern, buft in self._rules if buffer.usage == "weights" else ():
            if pattern.search(t.name):
                self._used.add(pattern.pattern)
                return buft
        return self._like(self.capture.bufts[buffer.buft].name)

    def _like(self, name: str) -> BufferType:
        if name in self._bufts:
            return self._bufts[name]
        hosts = [d.host_buffer_type for d in self.devices if d.host_buffer_type]
        found = hosts[0] if name.endswith("_Host") and hosts else self._device_of(name).buffer_type
        self._taken[name] = found.name
        return found

    def _device_of(self, buft: str) -> Device:
        """The given device in the place of the recorded one whose own memory that is."""
        for b, recorded in enumerate(self.capture.backends):
            if buft in (recorded.device, recorded.name) and recorded.device_type != "CPU":
                index = self.backend_of(b)
                if index is not None:
                    return self.devices[index]
        return self.devices[-1]

    def backend_of(self, recorded: int) -> int | None:
        """The given backend in the place of a recorded one: of the same name, or as manyth of its
        kind."""
        backends = self.capture.backends
        names = [device.name for device in self.devices]
        if backends[recorded].device in names:
            return names.index(backends[recorded].device)
        is_cpu = backends[recorded].device_type == "CPU"
        if is_cpu:
            return len(self.devices) - 1
        place = sum(b.device_type != "CPU" for b in backends[:recorded])
        others = [i for i, device in enumerate(self.devices) if device.type.name != "CPU"]
        return others[place] if place < len(others) else None

    def scheduler_buft(self, b: int, device: Device) -> BufferType:
        """What the scheduler allocates from for a given backend: as recorded, if it can use it."""
        for i, recorded in enumerate(self.capture.backends):
            if self.backend_of(i) == b and recorded.buft >= 0:
                buft = self._bufts.get(self.capture.bufts[recorded.buft].name)
                if buft is not None and device.supports_buft(buft):
                    return buft
        return device.buffer_type


def _pattern(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise ArgumentError(f"{regex!r} is no regular expression: {error}") from None


def _buffer_types(devices: Sequence[Device]) -> Mapping[str, BufferType]:
    found: dict[str, BufferType] = {}
    for device in devices:
        host = device.host_buffer_type
        for buft in (device.buffer_type, *device.extra_buffer_types, *([host] if host else ())):
            found.setdefault(buft.name, buft)
    cpu = devices[-1]
    if cpu.props.caps.buffer_from_host_ptr:
        # The type of mapped files has no function that returns it.
        memory = np.zeros(2 * cpu.buffer_type.alignment, np.uint8)
        aligned = memory[-memory.ctypes.data % cpu.buffer_type.alignment :]
        with cpu.buffer_from(aligned[: cpu.buffer_type.alignment]) as mapped:
            found.setdefault(mapped.type.name, mapped.type)
    return found


class _Memory(NamedTuple):
    """The graph that was made, and its tensors by their ids in the record."""

    graph: Graph
    tensors: list[Tensor]


@contextlib.contextmanager
def _rebuilt(capture: Capture, places: _Places) -> Iterator[_Memory]:
    """The graph of a capture. Tensors that had memory are in empty buffers of their types."""
    size = len(capture.tensors)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(Context())
        buffers: dict[tuple[int, str], Buffer] = {}
        raw = [_tensor(context, t) for t in capture.tensors]
        for t, tensor in zip(capture.tensors, raw, strict=True):
            for i, source in enumerate(t.src):
                if source >= 0:
                    tensor.src[i] = raw[source]
            if t.view_src >= 0:
                tensor.view_src = raw[t.view_src]
                tensor.view_offs = t.view_offs
            if t.buffer >= 0:
                record = capture.buffers[t.buffer]
                buft = places.of(t, record)
                key = (t.buffer, buft.name)
                if key not in buffers:
                    buffers[key] = stack.enter_context(buft.alloc(0))
                    buffers[key].usage = record.usage
                tensor.buffer = buffers[key].ptr
                tensor.data = ffi.cast("void *", _BASE + _STEP * t.id)
        for t, tensor in zip(capture.tensors, raw, strict=True):
            if t.view_src >= 0 and raw[t.view_src].data != ffi.NULL:
                tensor.data = ffi.cast("char *", raw[t.view_src].data) + t.view_offs
        nodes = [raw[t.id] for t in capture.tensors if t.kind == NODE]
        leafs = [raw[i] for i in capture.leaf_ids]
        counts = [capture.tensors[i].use_count for i in (*range(len(nodes)), *capture.leaf_ids)]
        native = lib.ggml_new_graph_custom(context.ptr, size, False)
        lib.gp_graph_fill(
            native, ffi.new("struct ggml_tensor *[]", nodes), len(nodes),
            ffi.new("struct ggml_tensor *[]", leafs), len(leafs), ffi.new("int32_t[]", counts),
        )  # fmt: skip
        graph = stack.enter_context(Graph._borrow(native, context, only_read=_NO_DATA))
        yield _Memory(graph, [Tensor(one, context) for one in raw])


def _tensor(context: Context, t: TensorRecord) -> Any:
    op = _OPS.get(t.op)
    type_ = _TYPES.get(t.type)
    if op is None or type_ is None:
        raise ArgumentError(
            f"'{t.name}' is a {t.op} of type {t.type}: release {enums.UPSTREAM} has no such "
            f"{'op' if op is None else 'type'}"
        )
    tensor = lib.ggml_new_tensor(context.ptr, type_, 4, [0, 1, 1, 1])
    tensor.ne, tensor.nb = list(t.ne), list(t.nb)
    lib.ggml_set_name(tensor, t.name.encode())
    tensor.op = op
    for i, word in enumerate(t.op_params):
        tensor.op_params[i] = word
    tensor.flags = sum(_FLAGS.get(flag, 0) for flag in t.flags)  # older releases have fewer
    return tensor


_OPS = {text(lib.ggml_op_name(op)): int(op) for op in enums.Op if op.name != "COUNT"}
_TYPES = {text(lib.ggml_type_name(t)): int(t) for t in enums.Type if t.name != "COUNT"}
_FLAGS = {flag.name.lower(): int(flag) for flag in enums.TensorFlag if flag.name}

"""Makes a real graph of a recorded one, with the memory that given devices have for it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import enums
from ..backends.buffer import BufferType
from ..backends.device import Device
from ..boundary.arguments import integer
from ..boundary.ffi import NULL, ffi, lib
from ..errors import ArgumentError
from ..graphs.context import Context
from ..graphs.graph import Graph
from ..graphs.node import new_tensor, set_op, set_view
from ..tensors.tensor import Tensor
from ..trace.record import NODE, VIEW_OPS, BufferRecord, Capture, TensorRecord

# Where tensors with memory are said to be: backends compare, and nobody reads.
_BASE, _STEP = 1 << 44, 1 << 30
_INT_MAX = (1 << 31) - 1


class Places:
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
        """Index of the given backend in the place of a recorded one: the one with its name, else
        the CPU for a CPU, else the one at the same position among the other devices. None if there
        are fewer."""
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
        """The buffer type for a given backend's compute buffer: as recorded, if it can use that."""
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


class RebuiltGraph(NamedTuple):
    """The graph that was made, and its tensors by their ids in the record."""

    graph: Graph
    tensors: list[Tensor]
    unread: tuple[int, ...] = ()  # ids of the computed nodes that no other node reads


@contextlib.contextmanager
def rebuilt(capture: Capture, places: Places, data: bool = False) -> Iterator[RebuiltGraph]:
    """The graph of a capture. Tensors that had memory get buffers of their types. Without `data`
    the buffers are empty, and the graph can only be planned. With `data` they hold zeros, and it
    can be computed. Some releases skip nodes without the compute flag: if no node was recorded with
    it, they compute all."""
    size = len(capture.tensors)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(Context())
        raw = [new_tensor(context, t.type, t.ne, t.nb, t.name) for t in capture.tensors]
        in_memory: dict[tuple[int, str], tuple[BufferType, list[TensorRecord]]] = {}
        for t, tensor in zip(capture.tensors, raw, strict=True):
            src = [raw[i] if i >= 0 else NULL for i in t.src]
            set_op(tensor, t.op, t.op_desc, t.op_params, src)
            tensor.flags = sum(_FLAGS.get(flag, 0) for flag in t.flags)  # older releases have fewer
            if t.view_src >= 0:
                set_view(tensor, raw[t.view_src], t.view_offs, inside=data)
            if t.buffer >= 0:
                buft = places.of(t, capture.buffers[t.buffer])
                in_memory.setdefault((t.buffer, buft.name), (buft, []))[1].append(t)
        for (index, _name), (buft, tensors) in in_memory.items():
            own = [t for t in tensors if t.view_src < 0]
            offsets, n = _offsets(buft, [raw[t.id] for t in own]) if data else ([], 0)
            buffer = stack.enter_context(buft.alloc(n))
            buffer.usage = capture.buffers[index].usage
            if data:
                buffer.clear()
            base = ffi.cast("char *", lib.ggml_backend_buffer_get_base(buffer.ptr))
            for t, at in zip(own, offsets, strict=False):
                where = ffi.cast("void *", base + at)
                lib.ggml_backend_tensor_alloc(buffer.ptr, raw[t.id], where)
            for t in tensors if not data else ():
                raw[t.id].buffer = buffer.ptr
                raw[t.id].data = ffi.cast("void *", _BASE + _STEP * t.id)
        for t, tensor in zip(capture.tensors, raw, strict=True):
            if t.view_src < 0 or raw[t.view_src].data == NULL:
                continue
            if data:
                lib.ggml_backend_view_init(tensor)
            else:
                tensor.data = ffi.cast("char *", raw[t.view_src].data) + t.view_offs
        nodes = [raw[t.id] for t in capture.tensors if t.kind == NODE]
        if data and not any("compute" in t.flags for t in capture.tensors):
            for node in nodes:
                node.flags |= _FLAGS.get("compute", 0)
        leafs = [raw[i] for i in capture.leaf_ids]
        users = [capture.tensors[i] for i in (*range(len(nodes)), *capture.leaf_ids)]
        counts = [integer(f"use_count of '{t.name}'", t.use_count, 0, _INT_MAX) for t in users]
        native = lib.ggml_new_graph_custom(context.ptr, size, False)
        lib.gp_graph_fill(
            native, ffi.new("struct ggml_tensor *[]", nodes), len(nodes),
            ffi.new("struct ggml_tensor *[]", leafs), len(leafs), ffi.new("int32_t[]", counts),
        )  # fmt: skip
        graph = stack.enter_context(Graph._borrow(native, context))
        yield RebuiltGraph(graph, [Tensor(one, context) for one in raw], _unread(capture))


def _unread(capture: Capture) -> tuple[int, ...]:
    """The computed nodes that no other reads, but for views that none reads. The planned graph does
    not tell: there some nodes read copies."""
    computed = [t for t in capture.tensors if t.kind == NODE and t.op not in (*VIEW_OPS, "NONE")]
    sources = {i for t in computed for i in t.src if i >= 0}
    sources |= {capture.tensors[i].view_src for i in sources}
    return tuple(t.id for t in computed if t.id not in sources)


def _offsets(buft: BufferType, tensors: Sequence[Any]) -> tuple[list[int], int]:
    """Where tensors are in one buffer, and its size."""
    at, found = 0, []
    for tensor in tensors:
        found.append(at)
        size = int(lib.ggml_backend_buft_get_alloc_size(buft.ptr, tensor))
        at += -(-size // buft.alignment) * buft.alignment
    return found, at


_FLAGS = {flag.name.lower(): int(flag) for flag in enums.TensorFlag if flag.name}

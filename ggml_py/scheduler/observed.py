"""What was seen of a graph that a release allocated and computed, besides its plan."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from typing import NamedTuple

import numpy as np

from .. import enums
from ..boundary.ffi import NULL, ffi, lib
from ..errors import GgmlError
from ..tensors.tensor import Tensor
from ..trace.record import VIEW_OPS
from ..trace.run import WAIT
from .made_up import MadeUp
from .rebuilt import RebuiltGraph
from .recording import Recording
from .scheduler import Scheduler

_SAMPLE, _OUTPUTS = 4096, 256  # values that are kept of all outputs of a graph, and outputs
_ROUND, _COMPUTES = 0.1, 100  # seconds and computes of which a round takes the median


class RunCopy(NamedTuple):
    """A copy that a compute made."""

    tensor: str
    to: str  # the backend
    nbytes: int


class Output(NamedTuple):
    """A computed node that no other node reads, except a view that none reads."""

    name: str
    op: str
    digest: str  # of its bytes
    sample: tuple[float, ...]  # of its values, evenly spread


class Observed(NamedTuple):
    """What a release does with a graph besides planning it. Sizes are those of the devices that
    stand in for the recorded ones. () and {} if it did not come so far; `left_out` says why."""

    reserved: dict[str, int]  # bytes of compute buffer after `reserve` with the pins, by backend
    allocated: dict[str, int]  # the same, when the pins were made again and the graph got memory
    reallocations: tuple[str, ...]  # why `reserve` was not enough for the same graph
    waits: int | None  # waits of the host in one compute; None if it was not computed
    copies: tuple[RunCopy, ...]  # of that compute, in their order
    left_out: str = ""
    outputs: tuple[Output, ...] = ()  # of that compute, on made-up values
    seconds: tuple[float, ...] = ()  # of a compute, a median for each round that was asked for
    untimed: str = ""  # why there are no rounds though they were asked for

    @classmethod
    def from_json(cls, text: str) -> Observed:
        """Of what `json.dumps` makes of one."""
        reserved, allocated, reallocations, waits, copies, left_out, outputs, *_times = json.loads(
            text
        )
        return cls(
            reserved, allocated, tuple(reallocations), waits,
            tuple(RunCopy(*one) for one in copies), left_out,
            tuple(Output(a, b, c, tuple(sample)) for a, b, c, sample in outputs),
        )  # fmt: skip


def run_once(scheduler: Scheduler, memory: RebuiltGraph, seen: Observed) -> Observed:
    """With what one compute on made-up values does. The graph has memory."""
    MadeUp(memory.tensors).write()
    with Recording(scheduler) as recording:
        scheduler.compute(memory.graph)
    run = recording.run
    copies = [
        RunCopy(copy.name, split.backend, copy.event.nbytes)
        for compute in run.computes for split in compute.splits for copy in split.copies
    ]  # fmt: skip
    waits = sum(event.kind == WAIT for event in run.events)
    return seen._replace(waits=waits, copies=tuple(copies), outputs=_outputs(memory))


def median_seconds(scheduler: Scheduler, memory: RebuiltGraph) -> float:
    """Of a compute on made-up values and the wait for its end, after one that does not count."""
    taken: list[float] = []
    values = MadeUp(memory.tensors)
    values.write()
    scheduler.compute(memory.graph)
    while len(taken) < 3 or (sum(taken) < _ROUND and len(taken) < _COMPUTES):
        values.write_inputs()
        start = time.perf_counter()
        scheduler.compute(memory.graph)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _outputs(memory: RebuiltGraph) -> tuple[Output, ...]:
    nodes = memory.graph.nodes
    computing = [n for n in nodes if n.op.name not in VIEW_OPS and n.op.name != "NONE"]
    # A view that nobody reads, as of a graph that ends with a RESHAPE, leaves its base an output.
    read = {
        _address(one)
        for node in computing
        for source in node.ptr.src
        if source != NULL
        for one in (source, source.view_src)
    }
    found = [
        node for node in computing
        if node.n_elements and _is_computed(node) and _address(node.ptr) not in read
    ]  # fmt: skip
    found = found[-_OUTPUTS:]
    return tuple(_output(node, _SAMPLE // len(found)) for node in found)


def _output(node: Tensor, n: int) -> Output:
    raw = np.empty(node.nbytes, np.uint8)
    lib.ggml_backend_tensor_get(node.ptr, ffi.from_buffer(raw), 0, raw.nbytes)
    digest = hashlib.sha256(raw.tobytes()).hexdigest()
    try:
        values = node.get().reshape(-1)
    except GgmlError:  # a type without floats
        values = raw
    places = np.linspace(0, values.size - 1, min(values.size, n)).astype(np.int64)
    sample = values[places].astype(np.float64).tolist()
    return Output(node.name, node.op.name, digest, tuple(sample))


def _is_computed(node: Tensor) -> bool:
    """Whether its branch was selected. C: ggml_build_forward_select, since 0.21.0"""
    computed = getattr(enums.TensorFlag, "COMPUTE", None)
    return computed is None or bool(node.flags & computed)


def _address(ptr: object) -> int:
    return 0 if ptr == NULL else int(ffi.cast("uintptr_t", ptr))

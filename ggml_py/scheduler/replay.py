"""Plans a recorded graph again: the graph of any plan that has the backends' answers becomes a real
one, without data, and upstream's scheduler plans it on the devices that are given."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from ..backends.device import Device
from ..errors import ArgumentError
from ..plan import Plan
from ..typed import typed
from .rebuilt import Places, rebuilt
from .scheduler import Scheduler


class Replayed(NamedTuple):
    """A recorded graph, planned again."""

    plan: Plan
    # (recorded buffer type that the new devices lack, its substitute)
    substitutes: tuple[tuple[str, str], ...]
    unmatched: tuple[str, ...]  # rules of `weights` that match no weight
    n_weights: int


@typed
def replay(
    plan: Plan,
    devices: Sequence[Device],
    weights: Sequence[tuple[str, str]] = (),
    *,
    op_offload: bool | None = None,
    parallel: bool | None = None,
) -> Replayed:
    """The plan that upstream's scheduler makes of a plan's graph on other devices, by priority; the
    last is a CPU.

    Tensors that had memory stay in the buffer type of that name if the devices have it. Otherwise
    the first given GPU stands for the first recorded GPU, and so on. Memory of further devices goes
    to the CPU. `weights` are pairs (regular expression, device or buffer type), as llama.cpp's -ot:
    the first that matches a weight's name says where it is. Pins stay on the backend in the same
    place. `op_offload` and `parallel` are as recorded unless they are given.

    Raises ValueError for a plan without the answers of the backends. Raises `ArgumentError` for
    devices that make no scheduler, names that mean no memory, and ops or types that this release
    lacks. C: ggml_backend_sched_split_graph
    """
    capture = plan.capture
    capture.check_answers()
    if not len(devices):
        raise ArgumentError("devices: expected at least one, the last a CPU")
    with contextlib.ExitStack() as stack:
        backends = [stack.enter_context(device.init()) for device in devices]
        places = Places(capture, devices, weights)
        memory = stack.enter_context(rebuilt(capture, places))
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
        found = scheduler.plan(memory.graph)
        n_weights = sum(map(capture.is_weight, capture.tensors))
        return Replayed(found, places.substitutes, places.unmatched, n_weights)

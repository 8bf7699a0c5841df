"""Machines with round numbers, for tests of predictions."""

from ggml_py.cost.machine import Described, Machine, MeasuredDevice
from ggml_py.cost.sample import Sample

WAS = Described(
    processor="a processor", cores=2, cache=32 << 20, memory=1 << 34, system="Linux",
    ggml="0.26.0", build="0.26.0-12345678", n_threads=1, date="2026-11-26T00:00:00+00:00",
    seconds=80.0, load=(0.1, 0.0),
)  # fmt: skip


def sample(key, at=(), *seconds, bytes=0, flops=0):
    return Sample(key, tuple(map(float, at)), tuple(map(float, seconds)), bytes, flops)


def machine(*samples, name="CPU", type="CPU", asynchronous=False, more=(), **described):
    """One device, and `more`."""
    made = MeasuredDevice(name, name, type, asynchronous, tuple(samples), "")
    return Machine(WAS.__class__(**{**vars(WAS), **described}), (made, *more))


def device(name, *samples, type="GPU", asynchronous=False):
    return MeasuredDevice(name, name, type, asynchronous, tuple(samples), "")


def knows_all(plans, n_threads=1, gflops=20.0, gbps=10.0, **described):
    """A machine whose CPU has times for all work of these plans, by its operations and bytes."""
    empty = machine(n_threads=n_threads)
    works = {}
    for plan in plans:
        for node in plan.cost(empty, n_past=1 << 30).nodes:  # as if all cells had tokens
            if node.work is not None:
                works[node.work.key, node.work.at] = node.work
    samples = [
        sample(key, at, 1e-6 + (w.flops / gflops + w.bytes / gbps) * 1e-9 / w.times / n_threads,
               bytes=int(w.bytes / w.times), flops=int(w.flops / w.times))
        for (key, at), w in works.items()
    ]  # fmt: skip
    return machine(*samples, n_threads=n_threads, **described)

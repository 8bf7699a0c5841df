"""Every kind of handle: how to make one and how to use it briefly. A kind without a row fails
test_handle.py. test_cycles.py makes, uses and closes each kind in the table 2,000 times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ggml_py as ggml
import ggml_py.gguf.reader
from ggml_py.boundary.handle import Handle


class Stand:
    """The objects that the kinds need: y = x² on the CPU, allocated, and a file."""

    def __init__(self, folder: Path) -> None:
        self.cpu = ggml.device("CPU").init(n_threads=1)
        self.context = ggml.Context()
        self.x = self.context.new_tensor("f32", 4)
        self.y = self.context.sqr(self.x)
        self.graph = self.context.new_graph(16)
        self.graph.build_forward_expand(self.y)
        self.p = self.context.new_tensor("f32", 4)
        self.p.set_param()
        self.context.alloc(self.cpu)
        self.x.set([1, 2, 3, 4])
        self.trained = self.context.mul(self.p, self.x)
        self.scheduler = ggml.Scheduler([self.cpu], graph_size=128)
        self.path = folder / "x.gguf"
        ggml.write_gguf(self.path, {"a": 1}, [("t", np.ones(4), "f32", (4,))])

    def close(self) -> None:
        for handle in (self.scheduler, self.context, self.cpu):
            handle.close()


@dataclass(frozen=True)
class Kind:
    """`make` returns a new handle. `use` uses it and raises if it does not work."""

    make: Callable[[Stand], Handle]
    use: Callable[[Stand, Any], None]


def _compute(stand: Stand, backend: ggml.Backend) -> None:
    backend.compute(stand.graph)
    assert stand.y.get()[3] == 16


def _fill(stand: Stand, buffer: ggml.Buffer) -> None:
    buffer.clear(1)
    with ggml.Context(reserve=4096) as context:
        tensor = context.new_tensor("f32", 4)
        tensor.alloc(buffer)
        tensor.set([5, 6, 7, 8])
        assert tensor.get()[3] == 8


def _build(stand: Stand, context: ggml.Context) -> None:
    a = context.new_tensor("f32", 4, name="a")
    assert context.add(a, stand.x).ne == (4, 1, 1, 1)


def _expand(stand: Stand, graph: ggml.Graph) -> None:
    graph.build_forward_expand(stand.y)
    assert graph.n_nodes == 1


@contextlib.contextmanager
def _unallocated(stand: Stand) -> Iterator[tuple[ggml.Graph, ggml.Tensor]]:
    """A graph that is closed while it is still allocated."""
    with ggml.Context() as context:
        z = context.sqr(context.sqr(stand.x))
        graph = context.new_graph(16)
        graph.build_forward_expand(z)
        yield graph, z


def _schedule(stand: Stand, scheduler: ggml.Scheduler) -> None:
    with _unallocated(stand) as (graph, z):
        scheduler.alloc_graph(graph)
        scheduler.compute(graph)
        assert z.get()[3] == 256


def _read(stand: Stand, file: ggml.Gguf) -> None:
    assert "t" in file.tensors


def _lend(stand: Stand, allocator: ggml.GraphAllocator) -> None:
    with _unallocated(stand) as (graph, z):
        allocator.alloc_graph(graph)
        stand.cpu.compute(graph)
        assert z.get()[3] == 256


def _pooled(stand: Stand, pool: ggml.ThreadPool) -> None:
    stand.cpu.set_threadpool(pool)
    _compute(stand, stand.cpu)
    stand.cpu.set_threadpool(None)  # the backend would hold it


def _planned(stand: Stand, plan: ggml.GraphPlan | ggml.CpuPlan) -> None:
    plan.compute()
    assert stand.y.get()[3] == 16


def _train(stand: Stand, opt: ggml.OptContext) -> None:
    stand.scheduler.reset()  # others of the kind may be open
    stand.p.set([1, 1, 1, 1])
    opt.alloc()
    opt.eval()
    assert stand.p.get().tolist() == [0, -1, -2, -3]
    opt.alloc(backward=False)
    opt.eval()


def _batch(stand: Stand, dataset: ggml.Dataset) -> None:
    assert dataset.get_batch_host(1, 2)[0].tolist() == [[4, 5]]


def _empty(stand: Stand, result: ggml.OptResult) -> None:
    assert result.ndata == 0 and result.pred.size == 0


def _event(stand: Stand) -> ggml.Event:
    """A placeholder, made and freed like a real one, because the CPU has none. test_rpc.py has real
    ones."""
    event = ggml.Event.__new__(ggml.Event)
    Handle.__init__(event, ggml.ffi.cast("ggml_backend_event_t", 16), lambda _ptr: None)
    event.device, event._recorded = stand.cpu.device, False
    return event


def _no_event(stand: Stand, event: ggml.Event) -> None:
    event.synchronize()


KINDS: dict[str, Kind] = {
    "Backend": Kind(lambda s: ggml.device("CPU").init(n_threads=1), _compute),
    "Event": Kind(_event, _no_event),
    "Buffer": Kind(lambda s: s.cpu.buffer_type.alloc(64), _fill),
    "Context": Kind(lambda s: ggml.Context(), _build),
    "Graph": Kind(lambda s: s.context.new_graph(16), _expand),
    "Scheduler": Kind(lambda s: ggml.Scheduler([s.cpu], graph_size=16), _schedule),
    "GraphAllocator": Kind(lambda s: ggml.GraphAllocator(s.cpu.buffer_type), _lend),
    "ThreadPool": Kind(lambda s: ggml.ThreadPool(2), _pooled),
    "GraphPlan": Kind(lambda s: s.cpu.graph_plan(s.graph), _planned),
    "CpuPlan": Kind(lambda s: ggml.CpuPlan(s.graph), _planned),
    "OptContext": Kind(
        lambda s: ggml.OptContext(
            s.scheduler, "sum", ggml.SGD(alpha=1), inputs=s.x, outputs=s.trained
        ),
        _train,
    ),
    "Dataset": Kind(lambda s: ggml.Dataset(np.arange(6).reshape(3, 2)), _batch),
    "OptResult": Kind(lambda s: ggml.OptResult(), _empty),
    "Gguf": Kind(lambda s: ggml.Gguf.open(s.path), _read),
}

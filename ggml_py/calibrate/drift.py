"""The same products, measured now and then while a device is measured.

Other virtual machines and heat make the machine's memory or cores slower for seconds or minutes.
The repetitions of one sample do not show this. A host also moves virtual cores to other cores.
Where two then no longer share a cache, threads take longer to wait for each other at the end of
every node.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice

import numpy as np

from ..cost.sample import DRIFT, HOT_DRIFT, WIDE_DRIFT
from ..errors import GgmlError, ServerLostError
from ..graphs.context import Context
from .filled import own_memory, size_of
from .node_times import GRAPH_SIZE, Bench

_SHAPE = (768, 768)
_MOST = 128 << 20  # bytes of weights that are kept meanwhile
_EVERY, _SECONDS = 4.0, 0.03  # seconds between two looks at least, and of one product in it
_COLUMNS = {DRIFT: 1, HOT_DRIFT: 1, WIDE_DRIFT: 512}
_HOT = 5 << 19  # bytes of weights that a cache of any core has
_WORK = 2e8  # multiplications of a graph at least


class Drift:
    """Measures three products again and again. Two have one column: with many matrices it waits for
    memory (or for a cache of 128 MiB), with few matrices its threads wait for each other. The third
    has many columns and waits for the cores."""

    def __init__(self, bench: Bench, stack: ExitStack, cold: int) -> None:
        self._bench, self._next = bench, 0.0
        total = min(cold, _MOST)
        filled = own_memory(bench.backend, "q8_0", total)
        stack.callback(filled.close)
        self._weights = stack.enter_context(filled.matrices("q8_0", _SHAPE, total))
        # Of one product, one for each look, by the kind of drift.
        self.seconds: dict[str, list[float]] = {
            kind: [] for kind, n in _COLUMNS.items() if _computes(bench, n)
        }

    def look(self, now: bool = False) -> None:
        """Measures if the last time is long enough ago. Call between two kinds of work."""
        if time.monotonic() < self._next and not now:
            return
        for kind, seconds in self.seconds.items():
            seconds.append(self._product(kind))
        self._next = time.monotonic() + _EVERY

    def _product(self, kind: str) -> float:
        """The seconds of one."""
        (k, m), n, weights = _SHAPE, _COLUMNS[kind], self._weights
        if kind == HOT_DRIFT:
            few = weights[: _HOT // size_of("q8_0", _SHAPE)]
            weights = list(islice(cycle(few), len(weights)))
        elif kind == WIDE_DRIFT:
            weights = weights[: self._bench.enough(_WORK, k * m * n)]
        with Context(16 << 20) as context:
            x = context.new_tensor("f32", k, n)
            graph = context.new_graph(GRAPH_SIZE)
            for weight in weights:
                graph.build_forward_expand(context.mul_mat(weight, x))
            taken = self._bench.times(graph, {x: np.zeros((n, k), np.float32)}, _SECONDS)
            self._bench.scheduler.reset()
        return statistics.median(taken) / len(weights)


@contextmanager
def drift_of(bench: Bench, cold: int) -> Iterator[Drift | None]:
    """The looks at a device, kept as samples at the end. None if the device does not compute such
    products or has no memory for them. `cold` bytes are more than its caches hold."""
    with ExitStack() as stack:
        drift = None
        if any(_computes(bench, n) for n in _COLUMNS.values()):
            with _without_it():
                drift = Drift(bench, stack, cold)
        try:
            yield drift
        finally:
            for kind, seconds in drift.seconds.items() if drift is not None else ():
                if seconds:
                    bench.keep(kind, (), seconds)


def look_at(drift: Drift | None) -> None:
    """A look, if it is time. One that fails is passed over: what else is measured says why."""
    if drift is not None:
        with _without_it():
            drift.look()


@contextmanager
def _without_it() -> Iterator[None]:
    try:
        yield
    except ServerLostError:
        raise
    except GgmlError:
        pass


def _computes(bench: Bench, n: int) -> bool:
    with Context(1 << 20) as context:
        weight, x = context.new_tensor("q8_0", *_SHAPE), context.new_tensor("f32", _SHAPE[0], n)
        return bench.device.supports_op(context.mul_mat(weight, x))

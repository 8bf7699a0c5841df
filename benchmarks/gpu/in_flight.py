"""A chain of products whose matrices alternate between devices, for graphs that are not waited for:
each is allocated and given its input while those before it are computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import ggml_py as ggml

N_EMBD, N_TOKENS, N_LAYER, N_GRAPHS = 256, 64, 8, 16
Values = npt.NDArray[np.float32]


def _matrices() -> list[Values]:
    rng = np.random.default_rng(0)
    scale = np.float32(N_EMBD**-0.5)
    return [rng.standard_normal((N_EMBD, N_EMBD), np.float32) * scale for _ in range(N_LAYER)]


def _inputs() -> list[Values]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((N_TOKENS, N_EMBD), np.float32) for _ in range(N_GRAPHS)]


def expected() -> list[Values]:
    """What each graph gives, computed by numpy."""
    results = []
    for values in _inputs():
        for matrix in _matrices():
            values = np.maximum(values @ matrix.T, 0)
        results.append(values)
    return results


def submitted(devices: Sequence[ggml.Device], parallel: bool) -> dict[str, Any]:
    """All graphs, one after the other without waiting. Results are read in the end."""
    backends = [device.init() for device in (*devices, ggml.device("CPU"))]
    contexts, weights = [], []
    for index, matrix in enumerate(_matrices()):
        context = ggml.Context()
        weights.append(context.from_numpy(matrix, f"w{index}"))
        context.alloc(backends[index % len(devices)], usage="weights")
        contexts.append(context)
    last = ggml.Context()  # results have memory of their own, where the last layer is
    kept = [last.new_tensor("f32", N_EMBD, N_TOKENS) for _ in range(N_GRAPHS)]
    last.alloc(backends[(N_LAYER - 1) % len(devices)])
    scheduler = ggml.Scheduler(backends, parallel=parallel)
    graphs = []
    for keep in kept:
        context = ggml.Context()
        x = context.new_tensor("f32", N_EMBD, N_TOKENS, name="x")
        x.set_input()
        y = x
        for matrix in weights:
            y = context.relu(context.mul_mat(matrix, y))
        graph = context.new_graph()
        graph.build_forward_expand(context.cpy(y, keep))
        graphs.append((context, graph, x))
    slots = set()
    start = time.perf_counter()
    for (_context, graph, x), values in zip(graphs, _inputs(), strict=True):
        scheduler.alloc_graph(graph)
        slots.add(scheduler.inspect()["cur_copy"])
        x.set(values)
        scheduler.compute_async(graph)
        scheduler.reset()
    handed_over = time.perf_counter() - start
    scheduler.synchronize()
    done = time.perf_counter() - start
    worst = max(
        float(np.abs(keep.get() - one).max() / np.abs(one).max())
        for keep, one in zip(kept, expected(), strict=True)
    )
    n_splits = scheduler.n_splits
    for handle in (scheduler, *(one for one, _g, _x in graphs), last, *contexts, *backends):
        handle.close()
    return {
        "devices": [device.name for device in devices],
        "parallel": parallel,
        "graphs": N_GRAPHS,
        "n_splits": n_splits,
        "slots": sorted(slots),
        "handed_over_ms": handed_over * 1e3,
        "done_ms": done * 1e3,
        "worst": worst,
    }

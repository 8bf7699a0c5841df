"""The cost per node of captures, plan files and the reference scheduler.

    python benchmarks/planning.py

All figures are medians of five. `ggml` is upstream's own planning plus asking every backend about
every node. `capture` also copies the result into Python. `reference` plans the capture again, and
`steps` does so noting every question. `write` and `read` are the plan's file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi, lib
from ggml_py.scheduler import capture
from ggml_py.trace import reference
from ggml_py.trace.steps import steps_of

SIZES = (1_000, 5_000, 20_000, 100_000)


def layered(n: int) -> tuple[ggml.Graph, ggml.Scheduler, list[Any]]:
    """A chain of products and activations, with as many weights as a model of that size has."""
    backends = [ggml.device(name).init() for name in ("BLAS", "CPU")]
    weights, context = ggml.Context(), ggml.Context()
    w = [weights.new_tensor("f32", 64, 64, name=f"w{i}") for i in range(n // 10)]
    weights.alloc(backends[-1], usage="weights")
    x = context.new_tensor("f32", 64, 48, name="inp")
    x.set_input()
    for i in range(n):
        x = context.relu(x) if i % 5 else context.mul_mat(w[i // 5 % len(w)], x)
    graph = context.new_graph(2 * n)
    graph.build_forward_expand(x)
    return graph, ggml.Scheduler(backends, graph_size=2 * n), [weights, context]


def median(function: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(n: int, rounds: int) -> dict[str, float]:
    graph, scheduler, _alive = layered(n)
    plan = scheduler.plan(graph)
    assert plan.reference == plan

    def native() -> None:
        found = ffi.new("struct gp_plan **")
        lib.gp_sched_plan(scheduler.ptr, graph.ptr, found)
        lib.gp_plan_free(found[0])

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json.gz"
        row = {
            "nodes": n,
            "ggml": median(native, rounds),
            "capture": median(lambda: capture.capture(scheduler, graph), rounds),
            "reference": median(lambda: reference.plan(plan.capture), rounds),
            "steps": median(lambda: steps_of(plan), rounds),
            "write": median(lambda: plan.to_json(path), rounds),
            "read": median(lambda: ggml.Plan.from_json(path), rounds),
            "file": path.stat().st_size,
            "json": len(gzip.decompress(path.read_bytes())),
        }
    scheduler.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(int(n), options.rounds) for n in options.sizes.split(",")]
    if options.json:
        print(json.dumps(rows))
        return
    table = Table("nodes", *list(rows[0])[1:7], "file", caption="ms (µs a node); file in MB")
    for row in rows:
        cells = [f"{row[k] * 1e3:.0f} ({row[k] * 1e6 / row['nodes']:.1f})" for k in list(row)[1:7]]
        table.add_row(f"{row['nodes']:,}", *cells, f"{row['file'] / 1e6:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()

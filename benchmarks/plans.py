"""The cost of tracing to the scheduler, compared with upstream's own without our instrumentation.

    python benchmarks/plans.py          builds the pristine library on first use, half a minute

Measures splitting a graph with tracing on and off, from 1,000 to 100,000 nodes, whole plans, and a
compute with an eval callback.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from rounds import Row, children, compare, parser, seconds, show

import ggml_py as ggml

SIZES = (1_000, 10_000, 100_000)
# A chain with a weight in every fourth node, on BLAS and CPU, so that the sweeps have work to do.
CASE = """
import ggml_py as ggml

class Case:
    def __init__(self, n):
        self.backends = [ggml.device(name).init(n_threads=1) for name in ("BLAS", "CPU")]
        self.weights, self.ctx = ggml.Context(), ggml.Context()
        w = self.weights.new_tensor("f32", 64, 64)
        self.weights.alloc(self.backends[-1], usage="weights")
        x = self.ctx.new_tensor("f32", 64, 64)
        x.set_input()
        for i in range(n):
            x = self.ctx.mul_mat(w, x) if i % 4 == 0 else self.ctx.relu(x)
        self.graph = self.ctx.new_graph(2 * n)
        self.graph.build_forward_expand(x)
        self.sched = ggml.Scheduler(self.backends, 2 * n)
        self.ptr, self.raw = self.sched.ptr, self.graph.ptr

    def split(self):
        clock = time.perf_counter
        best = 1e9
        for _ in range(max(1, 3000 // self.graph.n_nodes)):
            start = clock()
            ggml.lib.ggml_backend_sched_split_graph(self.ptr, self.raw)
            best = min(best, clock() - start)
            self.sched.reset()
        return best

    def close(self):
        for item in (self.sched, self.ctx, self.weights, *self.backends):
            item.close()
"""
SPLIT = CASE + "case = Case({n})\nrounds(case.split)\n"


def pristine() -> str:
    """The key of the pristine build, built if necessary."""
    command = [sys.executable, "-m", "ggml_py", "build", "--pristine", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return str(json.loads(done.stdout.splitlines()[-1])["key"])


def case(n: int) -> object:
    """The case, in this process."""
    names: dict[str, object] = {}
    exec("import time\n" + CASE, names)
    return names["Case"](n)  # type: ignore[operator]


def splitting(rounds: int) -> list[Row]:
    """Tracing on and off compared with the pristine build, and the time per node compared with that
    at the smallest size."""
    found = []
    key = pristine()
    smallest = case(SIZES[0])
    for n in SIZES:
        traced, plain = case(n), case(n)
        ggml.lib.gp_sched_trace(plain.ptr, False)
        code = SPLIT.format(n=n)
        with children(pristine=(code, {"GGML_PY_UPSTREAM": key})) as peers:
            for how, ours, bar in (("on", traced, 1.3), ("off", plain, 1.02)):
                what, bars = f"split of {n:,} nodes, tracing {how}", {"pristine": bar}
                found += compare(what, ours.split, peers, rounds=rounds, bars=bars)
        if n > SIZES[0]:
            found += compare(
                f"{n:,} nodes, for each", lambda: traced.split() / n,  # noqa: B023
                {f"{SIZES[0]:,} nodes, for each": lambda: smallest.split() / SIZES[0]},
                rounds=rounds, unit="ns",
            )  # fmt: skip
        for item in (traced, plain):
            item.close()
    smallest.close()
    return found


def plans(rounds: int) -> list[Row]:
    """Plans, and plans with their records, which are made on demand, compared with the native
    split."""
    n = 1000
    planned = case(n)
    sched, graph = planned.sched, planned.graph
    works: dict[str, Callable[[], object]] = {
        f"Scheduler.plan, {n:,} nodes": lambda: sched.plan(graph),
        f"Scheduler.plan and its records, {n:,} nodes": lambda: sched.plan(graph).capture,
    }
    found = []
    for what, work in works.items():
        peers: dict[str, Callable[[], float]] = {"native split": planned.split}
        found += compare(what, lambda work=work: seconds(work), peers, rounds=rounds)  # type: ignore[misc]
    planned.close()
    return found


def callbacks(rounds: int) -> list[Row]:
    """A compute of tiny nodes that calls Python for each, compared with one without a callback."""
    n = 2000
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 4)
        x.set_input()
        y = x
        for _ in range(n):
            y = ctx.sqr(y)
        graph = ctx.new_graph(n + 10)
        graph.build_forward_expand(y)
        with ggml.Scheduler([cpu], n + 10) as sched:
            sched.alloc_graph(graph)

            def compute(callback: object) -> float:
                sched.set_eval_callback(callback)  # type: ignore[arg-type]
                x.set([1, 1, 1, 1])
                return seconds(lambda: sched.compute(graph)) / n

            found = compare(
                "compute, eval callback asked, by node", lambda: compute(lambda t, ask: not ask),
                {"without a callback": lambda: compute(None)}, rounds=rounds, unit="µs",
            )  # fmt: skip
            return found + compare(
                "compute, eval callback sees each, by node", lambda: compute(lambda t, ask: True),
                {"without a callback": lambda: compute(None)}, rounds=rounds, unit="µs",
            )  # fmt: skip


def rows(rounds: int, _peer: str) -> list[Row]:
    """All rows."""
    return splitting(rounds) + plans(rounds) + callbacks(rounds)


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

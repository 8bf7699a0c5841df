"""Computing from Python: a matrix product, and a graph so small that only the overhead counts.

    python benchmarks/computes.py [--peer PYTHON]

Compared with numpy, raw cffi (the same library without our objects) and ggml-python. ggml-python
has its own build of ggml, so its product measures that build, not Python.
"""

from __future__ import annotations

import contextlib

import numpy as np
from rounds import Row, child, compare, parser, seconds, show

import ggml_py as ggml

N = 1024
# As ggml-python's documentation does it: a context, the CPU backend, ctypes throughout.
PEER = """
import ctypes
import ggml
import numpy as np

n, steps, in_calls = {n}, {steps}, {calls}
backend = ggml.ggml_backend_cpu_init()
ggml.ggml_backend_cpu_set_n_threads(backend, {threads})
size = ggml.ggml_tensor_overhead() * (steps + 10) + ggml.ggml_graph_overhead()
ctx = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
a = ggml.ggml_new_tensor_2d(ctx, ggml.GGML_TYPE_F32, n, n)
b = ggml.ggml_new_tensor_2d(ctx, ggml.GGML_TYPE_F32, n, n)
y = ggml.ggml_mul_mat(ctx, a, b)
for _ in range(steps - 1):
    y = ggml.ggml_relu(ctx, y)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_backend_alloc_ctx_tensors(ctx, backend)
values = np.ones((n, n), np.float32)
for t in (a, b):
    pointer = values.ctypes.data_as(ctypes.c_void_p)
    ggml.ggml_backend_tensor_set(t, pointer, 0, values.nbytes)

def run():
    start = clock()
    for _ in range(in_calls):
        ggml.ggml_backend_graph_compute(backend, graph)
    return (clock() - start) / in_calls

rounds(run)
"""


def graphs(
    rounds: int, peer: str, n: int, steps: int, calls: int, n_threads: int, what: str, unit: str
) -> list[Row]:
    """Measures one graph: a product of n x n matrices, and `steps - 1` activations."""
    with contextlib.ExitStack() as stack:
        cpu = stack.enter_context(ggml.device("CPU").init(n_threads=n_threads))
        ctx = stack.enter_context(ggml.Context())
        a, b = ctx.new_tensor("f32", n, n), ctx.new_tensor("f32", n, n)
        y = ctx.mul_mat(a, b)
        for _ in range(steps - 1):
            y = ctx.relu(y)
        graph = ctx.new_graph()
        graph.build_forward_expand(y)
        ctx.alloc(cpu)
        values = np.ones((n, n), np.float32)
        a.set(values)
        b.set(values)
        sched = stack.enter_context(ggml.Scheduler([cpu]))
        sched.alloc_graph(graph)
        compute, backend, native = ggml.lib.ggml_backend_graph_compute, cpu.ptr, graph.ptr

        def ours() -> float:
            return seconds(lambda: [sched.compute(graph) for _ in range(calls)]) / calls

        def raw() -> float:
            return seconds(lambda: [compute(backend, native) for _ in range(calls)]) / calls

        def by_numpy() -> float:
            def work() -> None:
                result = values @ values
                for _ in range(steps - 1):
                    result = np.maximum(result, 0)

            return seconds(lambda: [work() for _ in range(calls)]) / calls

        peers = {"raw cffi, no scheduler": raw, "numpy": by_numpy}
        code = PEER.format(n=n, steps=steps, calls=calls, threads=n_threads)
        run = stack.enter_context(child(code, peer))
        if run is not None:
            peers["ggml-python 0.0.45"] = run
        return compare(what, ours, peers, rounds=rounds, unit=unit, pause=0.2 * (n_threads - 1))


def rows(rounds: int, peer: str) -> list[Row]:
    """The product and the small graph."""
    product = graphs(rounds, peer, N, 1, 3, 2, f"mul_mat f32 {N}x{N}, 2 threads", "ms")
    small = graphs(rounds, peer, 8, 10, 200, 1, "graph of 10 tiny nodes, 1 thread", "µs")
    return product + small


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

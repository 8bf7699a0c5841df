"""How long a device takes per op: ggml's `perf-metal` example in Python, for any backend.

    python examples/perf_metrics.py --device CPU --n-embd 1024 --n-iter 10

First it measures the cost of starting an op, with a long chain of tiny ones. Then it measures the
ops in which language models spend their time, with the arithmetic and memory rates they reach.
"""

import argparse
import math
import time

import numpy as np

import ggml_py as ggml


def chain(c, n_op):
    """x = x · b and x = x * 1, again and again on 8 x 8 matrices. At the end all are 42."""
    x = c.from_numpy(np.ones((8, 8), np.float32))
    b = c.from_numpy(np.full((8, 8), 1 / 8, np.float32))
    for _ in range(n_op):
        x = c.scale(c.mul_mat(x, b), 1.0)
    return c.scale(x, 42.0)


def ops(c, n):
    """The ops to measure, and their FLOPs: n_embd = n, heads of 64, 512 tokens in the cache."""
    def filled(kind, *ne):
        return c.from_numpy(np.linspace(-1, 1, math.prod(ne)).reshape(ne[::-1]), type=kind)

    for n_tokens in (1, 128):
        x, heads = filled("f32", n, n_tokens), filled("f32", 64, n // 64, n_tokens)
        for kind in ("f16", "q4_0", "q8_0"):
            product = c.mul_mat(filled(kind, n, n), x)
            yield f"{kind} {n} x {n}, {n_tokens} tokens", product, 2 * n * product.n_elements
        k, v = (filled("f16", 64, 512, n // 64) for _ in "kv")
        attn = c.flash_attn_ext(c.permute(heads, 0, 2, 1, 3), k, v, None, 0.125, 0.0, 0.0)
        yield f"512 x {n}, {n_tokens} tokens", attn, 4 * 512 * attn.n_elements
        positions = c.from_numpy(np.arange(n_tokens, dtype=np.int32))
        for result in (c.rope(heads, positions, 64, 0), c.rms_norm(x, 1e-5), c.soft_max(x),
                       c.add(x, x)):  # fmt: skip
            yield f"{n}, {n_tokens} tokens", result, 0


def seconds(backend, result, n_iter):
    """The mean time of a compute, after one to warm up, and the number of nodes."""
    with ggml.Context() as c:
        graph = c.new_graph(8192)
        graph.build_forward_expand(result)
        backend.compute(graph)
        backend.synchronize()
        start = time.perf_counter()
        for _ in range(n_iter):
            backend.compute(graph)
        backend.synchronize()
        return (time.perf_counter() - start) / n_iter, graph.n_nodes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--device", default=ggml.devices()[-1].name)
    for name, default in (("--n-op", 1024), ("--n-iter", 10), ("--n-embd", 1024)):
        parser.add_argument(name, type=int, default=default)
    asked = parser.parse_args()
    with ggml.device(asked.device).init() as backend, ggml.Context() as c:
        last, cases = chain(c, asked.n_op), list(ops(c, asked.n_embd))
        c.alloc(backend)
        took, n = seconds(backend, last, asked.n_iter)
        print(f"{n} nodes, {took / n * 1e6:.2f} µs each; the last is all {np.unique(last.get())}")
        for what, out, flops in cases:
            took, _n = seconds(backend, out, asked.n_iter)
            rate = sum(t.nbytes for t in {out, *out.src}) / took
            print(f"{out.op.name:14} {what:28} {took * 1e3:8.3f} ms {rate / 1e9:8.2f} GB/s",
                  f"{flops / took / 1e9:8.2f} GFLOP/s" if flops else "")  # fmt: skip

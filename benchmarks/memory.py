"""Resident memory per node of a graph, with its Tensor objects alive and without them.

    python benchmarks/memory.py [--peer PYTHON]
"""

from __future__ import annotations

import sys

from rounds import Row, child, parser, row, show

BEGIN = """
import gc, resource
PAGE = resource.getpagesize()

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * PAGE

def once(build, n={n}):
    build(1000)
    before = resident()
    kept = build(n)
    return (resident() - before) / n

"""
OURS = """
import ggml_py as ggml

def build(n):
    ctx = ggml.Context()
    x = ctx.new_tensor("f32", 8)
    kept = [ctx, x]
    for _ in range(n):
        x = ctx.sqr(x)
        {keep}
    return kept

rounds(lambda: once(build))
"""
RAW = """
import ggml_py as ggml

def build(n):
    ctx = ggml.Context()
    ptr, x, sqr = ctx.ptr, ctx.new_tensor("f32", 8).ptr, ggml.lib.ggml_sqr
    kept = [ctx]
    for _ in range(n):
        x = sqr(ptr, x)
        kept.append(x)
    return kept

rounds(lambda: once(build))
"""
PEER = """
import ggml

def build(n):
    size = ggml.ggml_tensor_overhead() * (n + 10)
    ctx = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    x = ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_F32, 8)
    kept = [ctx]
    for _ in range(n):
        x = ggml.ggml_sqr(ctx, x)
        kept.append(x)
    return kept

rounds(lambda: once(build))
"""
N = 200_000


def bytes_of(code: str, interpreter: str = sys.executable) -> float | None:
    """Bytes measured in a process of its own: memory is freed too late to measure twice in one."""
    with child(BEGIN.replace("{n}", str(N)) + code, interpreter) as run:
        return None if run is None else run()


def rows(rounds: int, peer: str) -> list[Row]:
    """The rows with the Tensors kept, and without them."""
    found = []
    for what, keep in (("kept", "kept.append(x)"), ("dropped", "pass")):
        ours, raw, theirs = [], [], []
        for _ in range(min(rounds, 5)):
            ours.append(bytes_of(OURS.replace("{keep}", keep)) or 0.0)
            raw.append(bytes_of(RAW) or 0.0)
            theirs.append(bytes_of(PEER, peer))
        name = f"memory of a node, its Tensor {what}"
        found.append(row(name, "raw cffi, pointers kept", "B", ours, raw))
        if None not in theirs:
            found.append(row(name, "ggml-python 0.0.45, pointers kept", "B", ours, theirs))  # type: ignore[arg-type]
    return found


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

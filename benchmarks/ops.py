"""How long building one op takes: ours, beside the same call with nothing around it.

    python benchmarks/ops.py [--peer PYTHON]

PYTHON is an interpreter that has the peer, `pip install ggml-python==0.0.45` (it compiles ggml, so
give it a virtual environment of its own); without one its row says so. Every round builds a graph's
worth of ops in a fresh context, as inference does, the peers in turn; medians over the rounds, and
ratios within one round, for the machine may be shared.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import cffi
from rich.console import Console
from rich.table import Table

import ggml_py as ggml
from ggml_py import _ffi

N_OPS = 2000  # nodes of a middle-sized model's graph
Round = Callable[[], float]  # nanoseconds per op

_PEER = """
import gc, sys, time, ggml
gc.disable()
for line in sys.stdin:
    n = int(line)
    size = ggml.ggml_tensor_overhead() * (n + 10)
    ctx = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    a = ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_F32, 8)
    start = time.perf_counter_ns()
    for _ in range(n):
        ggml.ggml_add(ctx, a, a)
    took = time.perf_counter_ns() - start
    ggml.ggml_free(ctx)
    print(took / n, flush=True)
"""


def ours() -> float:
    """`ctx.add(a, a)`: checked, with a Tensor as result."""
    with ggml.Context() as ctx:
        a = ctx.new_tensor("f32", 8)
        start = time.perf_counter_ns()
        for _ in range(N_OPS):
            ctx.add(a, a)
        return (time.perf_counter_ns() - start) / N_OPS


def raw() -> float:
    """`lib.ggml_add`: guarded, pointers in and out."""
    with ggml.Context() as ctx:
        add, ptr, a = ggml.lib.ggml_add, ctx.ptr, ctx.new_tensor("f32", 8).ptr
        start = time.perf_counter_ns()
        for _ in range(N_OPS):
            add(ptr, a, a)
        return (time.perf_counter_ns() - start) / N_OPS


def plain_cffi() -> Round:
    """cffi's ABI mode on the same library: no compiled wrapper, no guard."""
    ffi = cffi.FFI()
    ffi.cdef("void * ggml_add(void * ctx, void * a, void * b);")
    add = ffi.dlopen(str(_ffi.BUILD["folder"] / "libggml-base.so.0")).ggml_add

    def run() -> float:
        with ggml.Context() as ctx:
            ptr = ffi.cast("void *", int(ggml.ffi.cast("uintptr_t", ctx.ptr)))
            tensor = ctx.new_tensor("f32", 8)
            a = ffi.cast("void *", int(ggml.ffi.cast("uintptr_t", tensor.ptr)))
            start = time.perf_counter_ns()
            for _ in range(N_OPS):
                add(ptr, a, a)
            return (time.perf_counter_ns() - start) / N_OPS

    return run


@contextlib.contextmanager
def ggml_python(python: str) -> Iterator[Round | None]:
    """The peer in a process of its own; None where it cannot be imported."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    found = subprocess.run([python, "-c", "import ggml"], capture_output=True, env=environment)
    if found.returncode:
        yield None
        return
    with subprocess.Popen(
        [python, "-c", _PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    ) as process:  # fmt: skip

        def run() -> float:
            assert process.stdin and process.stdout
            print(N_OPS, file=process.stdin, flush=True)
            return float(process.stdout.readline())

        yield run
        assert process.stdin
        process.stdin.close()


def main() -> None:
    """Runs the rounds and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=sys.executable, help="a Python that has ggml-python")
    parser.add_argument("--rounds", type=int, default=51)
    args = parser.parse_args()
    gc.disable()
    with ggml_python(args.peer) as peer:
        rounds: dict[str, Round] = {
            "ctx.add(a, b), Tensors": ours,
            "lib.ggml_add, cffi API mode": raw,
            "cffi ABI mode, no guard": plain_cffi(),
        }
        if peer is not None:
            rounds["ggml-python, ctypes, pointers"] = peer
        times: dict[str, list[float]] = {name: [] for name in rounds}
        for run in rounds.values():
            run()  # warm up
        for _ in range(args.rounds):
            for name, run in rounds.items():
                times[name].append(run())
    table = Table("one ggml_add", "ns (min-max)", "ours / this")
    for name, theirs in times.items():
        ratios = [a / b for a, b in zip(next(iter(times.values())), theirs, strict=True)]
        low, high = min(theirs), max(theirs)
        table.add_row(
            name, f"{statistics.median(theirs):.0f} ({low:.0f}-{high:.0f})",
            f"{statistics.median(ratios):.2f}",
        )  # fmt: skip
    if peer is None:
        table.add_row("ggml-python", "not importable", "see --help")
    Console().print(table)


if __name__ == "__main__":
    main()

"""How fast data goes into tensors and out, beside memcpy of as many bytes.

    python benchmarks/copies.py [--rounds 31]

`set` and `get(out=)` of equal types copy once; `get` has a new array to fault in, so its peer is a
copy into a new array too. Rounds alternate; GB/s are medians, ratios medians within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

import ggml_py as ggml


def seconds(work: Callable[[], object], n: int) -> float:
    """How long one of `n` calls takes."""
    start = time.perf_counter()
    for _ in range(n):
        work()
    return (time.perf_counter() - start) / n


def rows(n_bytes: int, type_: str) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """What is measured, and its peer."""
    context = ggml.Context()
    array = np.ones(n_bytes // 4, np.float32)
    if type_ == "f16":
        array = np.ones(n_bytes // 2, np.float16)
    tensor = context.from_numpy(array)
    context.alloc("CPU")
    out, other = np.empty_like(array), np.empty_like(array)

    def memcpy() -> None:
        ctypes.memmove(other.ctypes.data, array.ctypes.data, n_bytes)

    return {
        "set": (lambda: tensor.set(array), memcpy),
        "get(out=)": (lambda: tensor.get(out=out), memcpy),
        "get": (lambda: tensor.get(), lambda: array.copy()),
    }


def main() -> None:
    """Runs the rounds and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    args = parser.parse_args()
    table = Table("type", "size", "what", "GB/s", "peer GB/s", "ours / peer (min-max)")
    for type_ in ("f32", "f16"):
        for n_bytes in (64 << 10, 1 << 20, 16 << 20, 256 << 20):
            for what, pair in rows(n_bytes, type_).items():
                n = max(1, (16 << 20) // n_bytes)
                times: tuple[list[float], list[float]] = ([], [])
                for i in range(args.rounds + 1):
                    for taken, work in zip(times, pair, strict=True):
                        took = seconds(work, n)
                        if i:  # the first warms up
                            taken.append(took)
                ratios = [theirs / ours for ours, theirs in zip(*times, strict=True)]
                ours, theirs = (n_bytes / statistics.median(t) / 1e9 for t in times)
                size = f"{n_bytes / (1 << 20):g} MiB"
                span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
                table.add_row(type_, size, what, f"{ours:.1f}", f"{theirs:.1f}", span)
    Console().print(table)


if __name__ == "__main__":
    main()

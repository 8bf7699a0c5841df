"""How fast data is copied into and out of tensors, compared with memcpy of as many bytes.

    python benchmarks/copies.py

`set` and `get(out=)` of equal types copy once. `get` must fault in a new array, so its peer also
copies into a new array. A view copies nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from rounds import Row, compare, parser, seconds, show

import ggml_py as ggml

SIZES = (1 << 20, 16 << 20, 256 << 20)
BAR = 1 / 0.9  # of memcpy's time: 0.9 of its bandwidth


def each(work: Callable[[], object], n: int) -> Callable[[], float]:
    """Seconds of one of `n` calls."""

    def run() -> float:
        return seconds(lambda: [work() for _ in range(n)]) / n

    return run


def copies(rounds: int, n_bytes: int) -> list[Row]:
    """Measures one size: in, out, out into a new array, and a view."""
    with ggml.Context() as context:
        array = np.ones(n_bytes // 4, np.float32)
        tensor = context.from_numpy(array)
        context.alloc("CPU")
        out = np.empty_like(array)
        # memcpy uses the same memory: numpy asks for large pages, ggml does not, and this matters.
        inside = int(ggml.ffi.cast("uintptr_t", tensor.ptr.data))
        given, got = array.ctypes.data, out.ctypes.data
        n = max(1, (16 << 20) // n_bytes)
        size = f"{n_bytes >> 20} MiB"
        cases: dict[str, tuple[Callable[[], object], str, Callable[[], object], float | None]] = {
            "set": (
                lambda: tensor.set(array), "memcpy",
                lambda: ctypes.memmove(inside, given, n_bytes), BAR,
            ),
            "get(out=)": (
                lambda: tensor.get(out=out), "memcpy",
                lambda: ctypes.memmove(got, inside, n_bytes), BAR,
            ),
            "get": (tensor.get, "array.copy", array.copy, None),
        }  # fmt: skip
        found = []
        for what, (ours, name, theirs, bar) in cases.items():
            bars = {} if bar is None else {name: bar}
            found += compare(
                f"{what}, f32, {size}", each(ours, n), {name: each(theirs, n)},
                rounds=rounds, bars=bars,
            )  # fmt: skip
        if n_bytes == SIZES[0]:
            frombuffer = each(lambda: np.frombuffer(array, np.float32), 1000)
            found += compare(
                "numpy(), a view", each(tensor.numpy, 1000), {"numpy.frombuffer": frombuffer},
                rounds=rounds, unit="µs",
            )  # fmt: skip
        return found


def rows(rounds: int, _peer: str) -> list[Row]:
    """The rows of all sizes."""
    return [row for n_bytes in SIZES for row in copies(rounds, n_bytes)]


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

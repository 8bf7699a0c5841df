"""The time to build one op: our method, compared with the bare call.

    python benchmarks/ops.py [--peer PYTHON]

Every round builds a graph's worth of ops in a new context, as inference does.
"""

from __future__ import annotations

from pathlib import Path

import cffi
from rounds import Row, child, compare, parser, seconds, show

import ggml_py as ggml
from ggml_py.boundary import ffi as _ffi

N = 2000  # nodes in the graph of a medium-sized model
PEER = f"""
import gc
import ggml

gc.disable()

def run():
    size = ggml.ggml_tensor_overhead() * {N + 10}
    ctx = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    a = ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_F32, 8)
    add = ggml.ggml_add
    start = clock()
    for _ in range({N}):
        add(ctx, a, a)
    took = clock() - start
    ggml.ggml_free(ctx)
    return took / {N}

rounds(run)
"""


def ours() -> float:
    """`ctx.add(a, a)`: checked, returns a Tensor."""
    with ggml.Context() as ctx:
        a = ctx.new_tensor("f32", 8)

        def work() -> None:
            for _ in range(N):
                ctx.add(a, a)

        return seconds(work) / N


def foreign() -> float:
    """The same with an operand of another context, as with weights."""
    with ggml.Context() as ctx:
        a, w = ctx.new_tensor("f32", 8), WEIGHT

        def work() -> None:
            for _ in range(N):
                ctx.add(a, w)

        return seconds(work) / N


def raw() -> float:
    """`lib.ggml_add`: guarded, pointers in and out."""
    with ggml.Context() as ctx:
        add, ptr, a = ggml.lib.ggml_add, ctx.ptr, ctx.new_tensor("f32", 8).ptr

        def work() -> None:
            for _ in range(N):
                add(ptr, a, a)

        return seconds(work) / N


def plain_cffi() -> float:
    """cffi's ABI mode on the same library: no compiled wrapper, no guard."""
    with ggml.Context() as ctx:
        ptr = FFI.cast("void *", int(ggml.ffi.cast("uintptr_t", ctx.ptr)))
        a = FFI.cast("void *", int(ggml.ffi.cast("uintptr_t", ctx.new_tensor("f32", 8).ptr)))

        def work() -> None:
            for _ in range(N):
                ADD(ptr, a, a)

        return seconds(work) / N


FFI = cffi.FFI()
FFI.cdef("void * ggml_add(void * ctx, void * a, void * b);")
WEIGHT = ggml.Context().new_tensor("f32", 8)
ADD = FFI.dlopen(str(next(Path(_ffi.BUILD["folder"]).glob("libggml-base.*")))).ggml_add


def rows(rounds: int, peer: str) -> list[Row]:
    """One op with operands of the same context, and with an operand of another context."""
    rounds *= 3  # the rounds are short
    with child(PEER, peer) as theirs:
        peers = {} if theirs is None else {"ggml-python 0.0.45": theirs}
        bars = {"ggml-python 0.0.45": 0.75}
        raws = {"raw cffi, guarded": raw, "raw cffi, ABI mode": plain_cffi}
        found = compare(
            "ctx.add(a, b)", ours, {**peers, **raws}, rounds=rounds, unit="ns", bars=bars
        )
        return found + compare(
            "ctx.add(a, b), b of another context", foreign, peers or raws,
            rounds=rounds, unit="ns", bars=bars,
        )  # fmt: skip


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

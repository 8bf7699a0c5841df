"""Operands with the same numbers in other layouts, in memory that shows all writes.

An `Operand` is what an op reads: a type, a shape and its blocks. `place` makes a tensor of it,
plain or as a view that is cropped, permuted, repeated, or has odd strides in dimensions of size 1.
All tensors of a `World` lie in one array with gaps in between. Array and gaps are filled with a
pattern.
"""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

import ggml_py as ggml
from ggml_py import ffi, lib
from ggml_py.enums import Type

LAYOUTS = ("crop", "permute", "crop+permute", "units", "repeat", "odd")
GAP = 192  # bytes between tensors, a multiple of 64
ROOM = 1 << 20
BLOCKS = 4096  # blocks of each type, to take data from


@cache
def traits(type_: str) -> tuple[int, int]:
    """Number of elements and bytes in a block."""
    number = Type[type_.upper()]
    return int(lib.ggml_blck_size(number)), int(lib.ggml_type_size(number))


@cache
def traits_of(number: int) -> tuple[int, int]:
    """Like `traits`, by the type's number."""
    return int(lib.ggml_blck_size(number)), int(lib.ggml_type_size(number))


@cache
def twice(type_: str) -> np.ndarray:
    """The pool twice in a row, so that each block is followed by as many blocks as it has."""
    return np.concatenate([pool(type_)] * 2)


@cache
def pool(type_: str) -> np.ndarray:
    """Blocks of ordinary numbers."""
    n, size = traits(type_)
    chance = np.random.default_rng(size)
    if type_ in ("i8", "i16", "i32", "i64"):
        return chance.integers(0, 5, BLOCKS).astype(f"i{size}").view(f"V{size}")
    values = chance.standard_normal(BLOCKS * n).astype("f4").round(3)
    if type_ in ("f32", "f64", "f16"):
        return values.astype({"f32": "f4", "f64": "f8", "f16": "f2"}[type_]).view(f"V{size}")
    if type_ == "bf16":
        return (values.view("u4") >> 16).astype("u2").view("V2")
    if type_ in ("q4_0", "q5_1", "q8_0", "q4_K", "q6_K", "iq4_nl", "mxfp4"):
        blocks = np.zeros(BLOCKS * size, "u1")
        lib.ggml_quantize_chunk(
            Type[type_.upper()], ffi.from_buffer("float[]", values),
            ffi.from_buffer("char[]", blocks), 0, BLOCKS, n, ffi.NULL,
        )  # fmt: skip
        return blocks.view(f"V{size}")
    blocks = chance.integers(0, 256, (BLOCKS, size)).astype("u1")
    blocks[:, :8] = np.tile(np.float16([0.5]).view("u1"), 4)  # scales are at one end
    blocks[:, -4:] = np.tile(np.float16([0.5]).view("u1"), 2)
    return blocks.reshape(-1).view(f"V{size}")


@dataclass
class Operand:
    """An operand. `blocks` has the tensor's shape in blocks, outermost dimension first."""

    type: str
    ne: tuple[int, int, int, int]
    blocks: np.ndarray

    @classmethod
    def drawn(cls, rng: random.Random, type_: str, *ne: int) -> Operand:
        whole = (*ne, 1, 1, 1, 1)[:4]
        n = traits(type_)[0]
        shape = (whole[3], whole[2], whole[1], whole[0] // n)
        count, start = math.prod(shape), rng.randrange(BLOCKS)
        blocks = twice(type_)[start : start + BLOCKS]
        blocks = blocks[:count] if count <= BLOCKS else np.resize(blocks, count)
        return cls(type_, whole, blocks.reshape(shape))

    @classmethod
    def of(cls, values: np.ndarray, type_: str) -> Operand:
        """An operand from numbers, in numpy's order."""
        shape = (1,) * (4 - values.ndim) + values.shape
        dtype = {"f": "f", "i": "i"}[type_[0]] + str(int(type_[1:]) // 8)
        array = np.ascontiguousarray(values.reshape(shape).astype(dtype))
        return cls(type_, shape[::-1], array.view(f"V{array.itemsize}").reshape(shape))

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes


@cache
def _asan() -> tuple[Callable[..., None], ...] | None:
    """The functions that make memory unreadable and readable, if AddressSanitizer is loaded."""
    runtime = ctypes.CDLL(None)
    if not hasattr(runtime, "__asan_poison_memory_region"):
        return None
    names = ("__asan_poison_memory_region", "__asan_unpoison_memory_region")
    functions = [getattr(runtime, name) for name in names]
    for function in functions:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        function.restype = None
    return tuple(functions)


class World:
    """One array, the tensors in it, and each tensor's memory."""

    def __init__(self) -> None:
        self.memory = np.empty(ROOM + 64, "u1")
        self._start = -self.memory.ctypes.data % 64
        self._raw = ffi.from_buffer("char[]", self.memory)
        self.address = int(ffi.cast("uintptr_t", self._raw))
        base = ffi.cast("void *", self.address + self._start)
        self._buffer = lib.ggml_backend_cpu_buffer_from_ptr(base, ROOM)
        self.renew()

    def renew(self) -> None:
        """Starts over with a new context, without tensors."""
        self.context = ggml.Context()
        self.used = 0
        self._take(GAP)

    def _take(self, nbytes: int) -> int:
        """Reserves `nbytes` bytes and returns their offset in the buffer."""
        at, self.used = self.used, self.used + (nbytes + 63) // 64 * 64
        if self.used > ROOM - 1024:
            raise MemoryError
        return at

    def fill(self, pattern: int) -> None:
        """Fills everything that is used, tensors and gaps, with this byte."""
        self.memory[self._start : self._start + self.used] = pattern

    def give_memory(self, tensors: list[ggml.Tensor]) -> None:
        """Gives memory to all tensors of the context, in the order in which they were made."""
        for t in tensors:
            if t.view_src is not None:
                if t.ptr.buffer == ffi.NULL:
                    lib.ggml_backend_view_init(t.ptr)
                continue
            at = self._take(t.nbytes)
            where = ffi.cast("void *", self.address + self._start + at)
            lib.ggml_backend_tensor_alloc(self._buffer, t.ptr, where)
            self._take(GAP)

    def shut(self, tensors: list[ggml.Tensor]) -> None:
        """With AddressSanitizer, makes everything but these tensors unreadable and unwritable."""
        if (asan := _asan()) is None:
            return
        poison, unpoison = asan
        poison(self.address + self._start, self.used)
        for t in tensors:
            if 0 in t.ne:  # it may still have many rows
                continue
            ne, nb, at = t.ne, t.nb, int(ffi.cast("uintptr_t", t.ptr.data))
            n, size = traits_of(t.ptr.type)
            if nb[0] != size:
                unpoison(at, t.nbytes)
                continue
            for i in np.ndindex(ne[3], ne[2], ne[1]):
                unpoison(at + i[0] * nb[3] + i[1] * nb[2] + i[2] * nb[1], ne[0] // n * size)

    def open(self) -> None:
        """Makes everything readable again."""
        if (asan := _asan()) is not None:
            asan[1](self.address + self._start, self.used)

    def bytes_of(self, t: ggml.Tensor, memory: np.ndarray | None = None) -> np.ndarray:
        """The tensor's blocks, with its strides, in `memory`, which is as large as our array."""
        memory = self.memory if memory is None else memory
        n, size = traits_of(t.ptr.type)
        at = int(ffi.cast("uintptr_t", t.ptr.data)) - self.address
        ne, nb = t.ne, t.nb
        shape = (ne[3], ne[2], ne[1], ne[0] // n, size)
        if 0 in shape:
            return np.empty(0, "u1")  # numpy may refuse this shape as too large
        return np.ndarray(shape, "u1", memory, at, (nb[3], nb[2], nb[1], nb[0], 1))

    def everything(self) -> np.ndarray:
        """The used part of the array."""
        return self.memory[: self._start + self.used]


def write(world: World, t: ggml.Tensor, blocks: np.ndarray) -> None:
    """Writes the operand's blocks into its tensor."""
    into = world.bytes_of(t)
    if into.size:
        into[...] = blocks.view("u1").reshape(into.shape)


def variant(rng: random.Random, operand: Operand) -> str:
    """A layout that is possible for this operand. "repeat" changes `operand`."""
    layout = rng.choice(LAYOUTS)
    if layout == "repeat":
        axis = rng.randrange(3)  # in numpy's order
        operand.blocks = np.repeat(
            operand.blocks[(slice(None),) * axis + (slice(0, 1),)], operand.blocks.shape[axis], axis
        )
        return f"repeat{3 - axis}"
    return layout


def place(world: World, operand: Operand, layout: str, seed: int) -> ggml.Tensor:
    """A tensor with this layout. `write` sets its numbers once it has memory."""
    rng = random.Random(seed)
    ctx, ne = world.context, operand.ne
    n, size = traits(operand.type)
    if layout == "plain" or 0 in ne:
        return ctx.new_tensor(operand.type, *ne)
    if layout.startswith("repeat"):
        axis = int(layout[6:])
        held = [1 if i == axis else length for i, length in enumerate(ne)]
        base = ctx.new_tensor(operand.type, *held)
        nb = [0 if i == axis else base.nb[i] for i in range(4)]
        return ctx.view_4d(base, *ne, *nb[1:], 0)
    if layout == "units":  # the stride of a dimension of 1 does not matter
        base = ctx.new_tensor(operand.type, *ne)
        nb = [b if ne[i] > 1 else size * rng.choice((0, 1, 3, 40)) for i, b in enumerate(base.nb)]
        return ctx.view_4d(base, *ne, *nb[1:], 0)
    if layout == "odd":
        rows = [ne[0] + n, *ne[1:]]
        base = ctx.new_tensor(operand.type, *rows)
        return ctx.view_4d(base, *ne, *base.nb[1:], 1)
    if layout == "crop":
        return _cropped(ctx, rng, operand.type, list(ne))
    # Axis i of the stored array is axis order[i] of the view.
    order = [0, *rng.sample((1, 2, 3), 3)] if n > 1 else rng.sample(range(4), 4)
    stored = [ne[axis] for axis in order]
    if layout == "permute":
        base = ctx.new_tensor(operand.type, *stored)
    else:
        base = _cropped(ctx, rng, operand.type, stored)
    return ctx.permute(base, *order)


def _cropped(ctx: ggml.Context, rng: random.Random, type_: str, ne: list[int]) -> ggml.Tensor:
    n, _size = traits(type_)
    before = [rng.choice((0, 1)) for _ in ne]
    after = [rng.choice((0, 1, 3)) for _ in ne]
    step = (n, 1, 1, 1)
    whole = [
        length + (before[i] + after[i]) * step[i] if length * 4 < 4096 else length
        for i, length in enumerate(ne)
    ]
    first = [b if w > length else 0 for b, w, length in zip(before, whole, ne, strict=True)]
    base = ctx.new_tensor(type_, *whole)
    offset = sum(f * nb for f, nb in zip(first, base.nb, strict=True))
    return ctx.view_4d(base, *ne, *base.nb[1:], offset)

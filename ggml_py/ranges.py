"""Whether a part of a tensor is inside of it: upstream looks at sizes, and not at strides."""

from __future__ import annotations

import math

from ._arguments import whole
from ._ffi import NULL, lib
from .errors import ArgumentError
from .tensor import Tensor


def check_view(a: Tensor, ne: tuple[int, ...], nb: tuple[int, ...], offset: int) -> None:
    """Raises `ArgumentError` for a view of `a` that is not all in its memory; `nb` from dimension 1
    on."""
    ptr = a.ptr
    start, limit = 0, 0
    if ptr.view_src == NULL:
        limit = lib.ggml_nbytes(ptr)
    else:
        start, limit = ptr.view_offs, lib.ggml_nbytes(ptr.view_src)
    _check("a view", a, ne, nb, offset, start, limit, dense=True)


def check_part(a: Tensor, b: Tensor, nb: tuple[int, ...], offset: int) -> None:
    """Raises `ArgumentError` for `b` at a place that is not all in `a`; strides that are not in
    `nb` are those of `a`."""
    _check(f"'{b.name}'", a, b.ne, nb + a.nb[len(nb) + 1 :], offset, 0, a.nbytes)


def _check(
    what: str, a: Tensor, ne: tuple[int, ...], nb: tuple[int, ...], offset: int,
    start: int, limit: int, dense: bool = False,
) -> None:  # fmt: skip
    numbers = {f"ne{i}": n for i, n in enumerate(ne)} | {f"nb{i}": n for i, n in enumerate(nb, 1)}
    for name, number in {**numbers, "offset": offset}.items():
        if type(number) is not int or number < 0:
            whole(name, number)
    block = lib.ggml_blck_size(a._ptr.type)
    if ne[0] % block:
        raise ArgumentError(
            f"{what} of ne0 {ne[0]}: expected a multiple of {block}, the elements in a block of "
            f"{a.type.name.lower()}"
        )
    if 0 in ne:
        return
    end = offset + ne[0] // block * lib.ggml_type_size(a._ptr.type)
    for n, stride in zip(ne[1:], nb, strict=False):
        end += (n - 1) * stride
    if dense:  # upstream wants room for all elements, whatever the strides
        size = math.prod(ne) // block * lib.ggml_type_size(a._ptr.type)
        end = max(end, offset + size)
    if start + end > limit:
        strides = f", strides of {', '.join(map(str, nb[: len(ne) - 1]))} bytes" * (len(ne) > 1)
        has = f"the {limit:,} bytes that it is a view of" if start else f"its {limit:,} bytes"
        at = f"{start:,} + {offset:,}" if start else f"{offset:,}"
        raise ArgumentError(
            f"{what} of ne {list(ne)}{strides}, from byte {at} on, ends at byte {start + end:,} "
            f"of '{a.name}' ({a.type.name.lower()} {list(a.ne)}): expected to end in {has}"
        )

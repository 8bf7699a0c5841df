"""Checks that a view is inside its tensor. Upstream checks sizes, but not strides."""

from __future__ import annotations

from functools import lru_cache
from operator import index

from ..boundary.arguments import SIZE_MAX, integer
from ..boundary.ffi import lib
from ..errors import ArgumentError
from ..tensors.tensor import Tensor

WHOLE = frozenset({int})  # not bool, nor types that need `index`


@lru_cache(64)  # there are fewer types
def _block(type_: int) -> tuple[int, int]:
    """Elements and bytes per block."""
    return lib.ggml_blck_size(type_), lib.ggml_type_size(type_)


def check_view(a: Tensor, ne: tuple[int, ...], nb: tuple[int, ...], offset: int) -> None:
    """Raises `ArgumentError` unless a view of `a` is all in its memory; `nb` is that of dimensions
    1 to 3."""
    ptr = a.ptr
    view_src = ptr.view_src
    if view_src:
        start, limit = ptr.view_offs, lib.ggml_nbytes(view_src)
    else:
        start, limit = 0, lib.ggml_nbytes(ptr)
    numbers = (*ne, *nb, offset)
    if not WHOLE.issuperset(map(type, numbers)) or min(numbers) < 0 or max(numbers) > SIZE_MAX:
        ne = tuple([integer(f"ne{i}", n) for i, n in enumerate(ne)])
        nb, offset = tuple([index(n) for n in nb]), index(offset)
        if not all(0 <= n < 1 << 64 for n in (*nb, offset)):
            return  # not a size_t: cffi will raise
    block, size = _block(ptr.type)
    row, rest = divmod(ne[0], block)
    if rest:
        raise ArgumentError(
            f"a view of ne0 {ne[0]}: expected a multiple of {block}, the elements in a block of "
            f"{a.type.name.lower()}"
        )
    if 0 in ne:
        return
    last = nbytes = row * size
    for n, stride in zip(ne[1:], nb, strict=False):
        last += (n - 1) * stride
        nbytes *= n
    # Upstream requires room for all elements, whatever the strides.
    end = offset + max(last, nbytes)
    if start + end > limit:
        strides = f", strides of {', '.join(map(str, nb[: len(ne) - 1]))} bytes" * (len(ne) > 1)
        has = f"the {limit:,} bytes that it views" if start else f"its {limit:,} bytes"
        at = f"{start:,} + {offset:,}" if start else f"{offset:,}"
        raise ArgumentError(
            f"a view of ne {list(ne)}{strides}, from byte {at} on, ends at byte {start + end:,} "
            f"of '{a.name}' ({a.type.name.lower()} {list(a.ne)}): expected it to end within {has}"
        )

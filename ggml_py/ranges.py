"""Whether a part of a tensor is inside of it: upstream looks at sizes, and not at strides."""

from __future__ import annotations

import math
from operator import index

from ._arguments import SIZE_MAX, whole
from ._ffi import NULL, lib
from .errors import ArgumentError
from .tensor import Tensor

_WHOLE = frozenset({int})  # no bool, and nothing that `index` would have to look at


def check_view(a: Tensor, ne: tuple[int, ...], nb: tuple[int, ...], offset: int) -> None:
    """Raises `ArgumentError` for a view of `a` that is not all in its memory; `nb` from dimension 1
    on."""
    ptr = a.ptr
    start, limit = 0, 0
    if ptr.view_src == NULL:
        limit = lib.ggml_nbytes(ptr)
    else:
        start, limit = ptr.view_offs, lib.ggml_nbytes(ptr.view_src)
    numbers = (*ne, *nb, offset)
    if not _WHOLE.issuperset(map(type, numbers)) or min(numbers) < 0 or max(numbers) > SIZE_MAX:
        ne = tuple([whole(f"ne{i}", n) for i, n in enumerate(ne)])
        nb, offset = tuple([index(n) for n in nb]), index(offset)
        if not all(0 <= n < 1 << 64 for n in (*nb, offset)):
            return  # no size_t, as cffi will say
    block = lib.ggml_blck_size(ptr.type)
    if ne[0] % block:
        raise ArgumentError(
            f"a view of ne0 {ne[0]}: expected a multiple of {block}, the elements in a block of "
            f"{a.type.name.lower()}"
        )
    if 0 in ne:
        return
    size = lib.ggml_type_size(ptr.type)
    end = offset + ne[0] // block * size
    for i, stride in enumerate(nb[: len(ne) - 1], 1):
        end += (ne[i] - 1) * stride
    # Upstream wants room for all elements, whatever the strides.
    end = max(end, offset + math.prod(ne) // block * size)
    if start + end > limit:
        strides = f", strides of {', '.join(map(str, nb[: len(ne) - 1]))} bytes" * (len(ne) > 1)
        has = f"the {limit:,} bytes that it is a view of" if start else f"its {limit:,} bytes"
        at = f"{start:,} + {offset:,}" if start else f"{offset:,}"
        raise ArgumentError(
            f"a view of ne {list(ne)}{strides}, from byte {at} on, ends at byte {start + end:,} "
            f"of '{a.name}' ({a.type.name.lower()} {list(a.ne)}): expected to end in {has}"
        )

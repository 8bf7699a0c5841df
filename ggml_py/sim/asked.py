"""The op that a live tensor is the result of, as profiles are asked about it.

The native library is loaded where a tensor is there: a recorded graph can be asked about without.
"""

from __future__ import annotations

from typing import Any

from .profiles.call import Call, Four, Source


def call_of(tensor: Any) -> Call:
    """The call that a live `Tensor` is the result of."""
    from .. import enums
    from ..boundary.ffi import NULL, lib, text

    def four(values: Any) -> Four:
        return (values[0], values[1], values[2], values[3])

    def source(ptr: Any) -> Source:
        view = ptr.view_src
        whole = None if view == NULL else four(view.ne)
        return Source(enums.Type(ptr.type).name.lower(), four(ptr.ne), four(ptr.nb), whole)

    ptr = tensor.ptr
    found = [None if one == NULL else source(one) for one in ptr.src]
    while found and found[-1] is None:
        found.pop()
    view, first = ptr.view_src, ptr.src[0]
    inplace = view != NULL and first != NULL and view in (first, first.view_src)
    op = text(lib.ggml_op_desc(ptr))
    return Call(op, source(ptr), tuple(found), tuple(ptr.op_params), inplace)


def key_of(tensor: Any) -> tuple[Any, ...]:
    """What `call_of` depends on, gathered in a few microseconds: for a cache of decisions."""
    from ..boundary.ffi import NULL, ffi

    ptr = tensor.ptr
    view, first = ptr.view_src, ptr.src[0]
    key = [ffi.buffer(ptr.op_params)[:], ptr.op]
    key.append(view != NULL and first != NULL and view in (first, first.view_src))
    for one in (ptr, *ptr.src):
        if one == NULL:
            key.append(None)
            continue
        key += one.type, ffi.buffer(one.ne)[:], ffi.buffer(one.nb)[:]
        if one.view_src != NULL:
            key.append(ffi.buffer(one.view_src.ne)[:])
    return tuple(key)

"""The op that computes a live tensor, with its operands, as plain data."""

from __future__ import annotations

from typing import Any

from .. import enums
from ..boundary.ffi import NULL, lib, text
from ..sim.profiles.call import SELF, Call, Operand, four
from .tensor import Tensor


def call_of(tensor: Tensor) -> Call:
    """The op call that computes a live tensor."""

    def source(ptr: Any) -> Operand:
        view = ptr.view_src
        whole = None if view == NULL else four(view.ne)
        type_ = enums.Type(ptr.type).name.lower()
        return Operand(type_, four(ptr.ne), four(ptr.nb), whole, text(ptr.name))

    ptr = tensor.ptr
    root, src = ptr.view_src, list(ptr.src)
    while src and src[-1] == NULL:
        src.pop()
    found = [p for i, p in enumerate(src) if p not in (NULL, ptr) and p not in src[:i]]
    views = [place for place, p in enumerate(src)
             if root != NULL and p in found and root in (p, p.view_src)]  # fmt: skip
    return Call(
        op=text(lib.ggml_op_desc(ptr)),
        kind=text(lib.ggml_op_name(ptr.op)),
        out=source(ptr),
        operands=tuple(source(p) for p in found),
        places=tuple(SELF if p == ptr else -1 if p == NULL else found.index(p) for p in src),
        params=tuple(ptr.op_params),
        views=tuple(views),
    )

"""Tensors that are a scheduler's own: the copies that it makes for splits.

They show up as `Tensor.src` of an allocated graph, in callbacks, and nowhere else. Their memory is
the scheduler's, so they can be used while it holds the graph and raise `ClosedError` afterwards.
"""

from __future__ import annotations

from typing import Any

from ..boundary.ffi import ffi
from ..errors import ClosedError

_OPEN: list[Loan] = []  # nearly always empty: only plans with copies have loans


class Loan:
    """Stands where a Tensor has its context, for the tensors between two addresses."""

    __slots__ = ("_first", "_last", "closed")

    def __init__(self, first: int, size: int) -> None:
        self._first, self._last = first, first + size
        self.closed = False
        _OPEN.append(self)

    @property
    def ptr(self) -> None:
        """What `Tensor.ptr` asks its context for."""
        if self.closed:
            raise ClosedError("this tensor was a scheduler's copy, and its graph was reset")

    def close(self) -> None:
        """The scheduler no longer holds the tensors."""
        if not self.closed:
            self.closed = True
            _OPEN.remove(self)


def lender_of(ptr: Any, context: Any) -> Any:
    """The Loan that a native tensor belongs to; `context` when it is no scheduler's."""
    if _OPEN:
        address = int(ffi.cast("uintptr_t", ptr))
        for loan in _OPEN:
            if loan._first <= address < loan._last:
                return loan
    return context

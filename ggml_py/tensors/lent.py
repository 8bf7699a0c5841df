"""Lent tensors: an object here takes the place of the context of a Tensor owned by somebody else.

A scheduler lends its copies for splits, which appear as `Tensor.src` of an allocated graph and in
callbacks. They work while it holds the graph. A call lends a tensor to the function that it shows
the tensor to. Afterwards the tensor raises `ClosedError`.
"""

from __future__ import annotations

from typing import Any

from ..boundary.ffi import ffi
from ..errors import ClosedError

_OPEN: list[Loan] = []  # nearly always empty: only plans with copies have loans


class Loan:
    """Takes the place of a Tensor's context, for the tensors between two addresses."""

    __slots__ = ("_first", "_last", "closed")

    def __init__(self, first: int, size: int) -> None:
        self._first, self._last = first, first + size
        self.closed = False
        _OPEN.append(self)

    @property
    def ptr(self) -> None:
        """`Tensor.ptr` reads this of its context. Raises `ClosedError` after the reset."""
        if self.closed:
            raise ClosedError("this tensor was a scheduler's copy, and its graph was reset")

    def close(self) -> None:
        """Ends the loan: the scheduler no longer holds the tensors."""
        if not self.closed:
            self.closed = True
            _OPEN.remove(self)


class Lent:
    """Takes the place of a Tensor's context while the user's function looks at the Tensor."""

    __slots__ = ("closed", "what")

    def __init__(self, what: str) -> None:
        self.closed = False
        self.what = what

    @property
    def ptr(self) -> None:
        """`Tensor.ptr` reads this of its context. Raises `ClosedError` after the call."""
        if self.closed:
            raise ClosedError(f"this tensor was lent to {self.what} for one call")


def lender_of(ptr: Any, context: Any) -> Any:
    """The Loan that a native tensor belongs to; `context` if it is not a scheduler's."""
    if _OPEN:
        address = int(ffi.cast("uintptr_t", ptr))
        for loan in tuple(_OPEN):  # other threads end theirs meanwhile
            if loan._first <= address < loan._last:
                return loan
    return context

"""Reads the state of a sequence piece by piece, and raises errors for damage."""

from __future__ import annotations

import struct

from ...errors import ModelError


class StateReader:
    """Reads `data` from start to end; `where` is its name in errors.

    Each read raises `ModelError` if the data ends too early.
    """

    def __init__(self, data: bytes | bytearray | memoryview, where: str) -> None:
        self._data = memoryview(data).cast("B")
        self._at = 0
        self._where = where

    def take(self, n: int) -> memoryview:
        """The next n bytes."""
        left = len(self._data) - self._at
        if n > left:
            raise self.error(
                f"ends after {len(self._data)} bytes, {n - left} too early: it is incomplete"
            )
        self._at += n
        return self._data[self._at - n : self._at]

    def number(self, kind: str = "I") -> int:
        """The next number; `kind` is its format in `struct`."""
        value: int = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]
        return value

    def expect(self, ours: int, what: str, kind: str = "I") -> None:
        """Reads a number that must be `ours`. Raises `ModelError` for any other."""
        theirs = self.number(kind)
        if theirs != ours:
            raise self.error(
                f"has {what} {theirs}, but this model has {ours}: it is from another model, or "
                "from this one loaded with other options"
            )

    def end(self) -> None:
        """Raises `ModelError` unless everything was read."""
        left = len(self._data) - self._at
        if left:
            raise self.error(
                f"has {left} byte{'s' * (left != 1)} too many: it is from another model"
            )

    def error(self, message: str) -> ModelError:
        """An error with this message about the data."""
        return ModelError(f"{self._where} {message}")

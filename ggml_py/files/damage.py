"""What Python raises where it meets damaged content, and how an error of ours says it."""

from __future__ import annotations

import struct

# Readers catch these in one place and raise ValueError with what `said` makes of them.
INTERNAL = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error, MemoryError,
    RecursionError, OSError,
)  # fmt: skip


def said(error: BaseException) -> str:
    """The fault in damaged content, in a clause, by the exception of an internal call."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}" if error.args else "a part is missing"
    if isinstance(error, MemoryError):
        return "it says sizes that do not fit into the memory"
    if isinstance(error, RecursionError):
        return "its lists are nested too deeply"
    if isinstance(error, ValueError):
        return str(error)
    return f"a value in it is not of the expected kind ({error})"

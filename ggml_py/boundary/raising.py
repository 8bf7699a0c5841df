"""Makes exceptions of the guards' records. Called by the native module (native/module.h)."""

from __future__ import annotations

from pathlib import Path

from .. import log
from ..errors import (
    AbortError,
    ArgumentError,
    BusyError,
    ComputeError,
    DamagedFileError,
    GgmlError,
    LeftError,
    MissingFunctionError,
    ServerLostError,
)
from .op_rules import rule_of

# enum gp_error_kind of native/guard.h
_ABORT, _NULL, _MISSING, _STATUS, _FILE, _RPC, _LEFT = 1, 2, 3, 5, 6, 7, 8
_BUSY = "busy: "  # prefix of an abort of native/pin_hooks.h


def from_native(
    kind: int, call: str, message: str, operands: str, file: str, line: int
) -> GgmlError:
    """The exception for what a guard recorded."""
    if kind == _NULL:
        return ArgumentError(f"{call}: argument '{message}' is NULL (None), expected an object")
    if kind == _MISSING:
        return MissingFunctionError(
            f"{call} is not in this build: its backend is a module (portable builds) or was not "
            "built, or the build is pristine. "
            "`ggml-py build --list` lists the builds; `ggml-py build --backend ...` makes one."
        )
    if kind == _STATUS:
        return ComputeError(message)
    if kind == _FILE:
        return DamagedFileError(message, _damage(message, int(operands)))
    if kind in (_RPC, _LEFT):
        return (ServerLostError if kind == _RPC else LeftError)(message, call, file)
    if message.startswith(_BUSY):
        return BusyError(message.removeprefix(_BUSY))
    rule = rule_of(call, message, operands)
    return AbortError(message, call, operands, file, line, log.recent(), rule)


def _damage(path: str, nbytes: int) -> str:
    try:
        now = Path(path).stat().st_size
    except OSError as error:
        return f"can no longer be read ({error.strerror})"
    if now < nbytes:
        return f"was truncated while it was mapped: it had at least {nbytes:,} bytes, now {now:,}"
    return (
        "could not be read while it was mapped: its disk fails, or it was truncated and rewritten"
    )

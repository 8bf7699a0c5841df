"""Every exception of ggml_py. Each inherits `GgmlError` and the builtin that fits."""

from __future__ import annotations

from . import _log


class GgmlError(Exception):
    """Base of all errors of ggml_py."""


class NotBuiltError(GgmlError, ImportError):
    """The native library is missing, or is not the one asked for."""


class ClosedError(GgmlError, ValueError):
    """An object was used after it (or the object it lives in) was closed."""


class BusyError(GgmlError, RuntimeError):
    """An object is in the middle of a native call, of another thread or further up the stack."""


class SpoiledError(GgmlError, RuntimeError):
    """An assertion of ggml failed while it was changing this object: it can only be closed."""


class ArgumentError(GgmlError, ValueError):
    """An argument that the call cannot take: what was given, what was expected."""


class MissingFunctionError(GgmlError, NotImplementedError, AttributeError):
    """This build does not contain it: its backend was not built, or a later release has it.

    An AttributeError too, so that `hasattr(lib, "ggml_fill")` tells whether this release has it.
    """


class UnknownDeviceError(GgmlError, LookupError):
    """No device of that name; the message lists the names."""


class RpcError(GgmlError, ConnectionError):
    """No RPC server answers at an endpoint, or none that this release can talk to."""


class LoadError(GgmlError, ImportError):
    """A native library that cannot be loaded: a backend's module, or ours in such a process."""


class AllocError(GgmlError, MemoryError):
    """A backend could not allocate what a graph or a context needs.

    `sizes` has the bytes that were attempted, by backend or buffer type, where they are known.
    """

    def __init__(self, message: str, sizes: dict[str, int] | None = None) -> None:
        super().__init__(message)
        self.sizes = sizes or {}


class NoDataError(GgmlError, ValueError):
    """The tensor has no memory: its context or graph is not allocated, or no longer."""


class ComputeError(GgmlError, RuntimeError):
    """A backend reported that a compute failed."""


class GgufError(GgmlError, ValueError):
    """A GGUF file that cannot be read or written."""


class ModelError(GgmlError, ValueError):
    """A model file that lacks what its architecture needs, or input that the model cannot take."""


class AbortError(GgmlError, RuntimeError):
    """An assertion of ggml failed; upstream would have ended the process (C: ggml_abort).

    `condition` is upstream's text, `file` and `line` its place in upstream's source, `call` the C
    function that was called, `operands` its arguments as "name: type ne 'name'", `log` the last
    lines that ggml logged.
    """

    def __init__(self, condition: str, call: str, operands: str, file: str, line: int) -> None:
        self.condition = condition
        self.call = call
        self.operands = operands.splitlines()
        self.file = file
        self.line = line
        self.log = _log.recent()
        where = f" at {file}:{line}" if file else ""
        parts = [f"{call}: {condition}{where}"]
        parts += [f"  {operand}" for operand in self.operands]
        super().__init__("\n".join(parts))


# enum gp_error_kind of native/guard.h
_ABORT, _NULL, _MISSING = 1, 2, 3


def from_native(
    kind: int, call: str, message: str, operands: str, file: str, line: int
) -> GgmlError:
    """The exception for what a guard recorded. Called by the native module (native/module.h)."""
    if kind == _NULL:
        return ArgumentError(f"{call}: argument '{message}' is NULL (None), expected an object")
    if kind == _MISSING:
        return MissingFunctionError(
            f"{call} is not in this build: its backend was not built in, or the build is pristine. "
            "`ggml-py build --list` shows the builds; `ggml-py build --backend ...` makes one."
        )
    return AbortError(message, call, operands, file, line)

"""All exceptions of ggml_py. Each inherits from `GgmlError` and from the matching builtin."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any


class GgmlError(Exception):
    """Base of all errors of ggml_py. They can be pickled, with all their attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[GgmlError], args: tuple[Any, ...], attributes: dict[str, Any]) -> GgmlError:
    # Without __init__, which takes other arguments; by the base with the same memory layout.
    base: Any = kind.__base__
    error: GgmlError = base.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class NotBuiltError(GgmlError, ImportError):
    """The native library is missing, or is not the requested one."""


class ClosedError(GgmlError, ValueError):
    """An object was used after it, or the object that it belongs to, was closed."""


class BusyError(GgmlError, RuntimeError):
    """An object is being used by a native call, on another thread or further up the stack."""


class SpoiledError(GgmlError, RuntimeError):
    """An assertion of ggml failed while this object was being changed. It can only be closed."""


class ArgumentError(GgmlError, ValueError):
    """An argument that the call cannot take. Says what was given and what was expected."""


class MissingFunctionError(GgmlError, NotImplementedError, AttributeError):
    """This build lacks the function: its backend was not built, or only later releases have it.

    It is also an AttributeError, so `hasattr(lib, "ggml_fill")` tells whether this release has it.
    """


class UnknownDeviceError(GgmlError, LookupError):
    """No device has that name; the message lists the names."""


class RpcError(GgmlError, ConnectionError):
    """No RPC server answers at an endpoint, or this release cannot talk to it."""


class ServerLostError(RpcError):
    """The connection to an RPC server is lost: the server ended, was silent for longer than its
    `timeout`, or gave an impossible answer. Later calls on that connection raise it again.

    `endpoint` is the server, `condition` what happened to it, `call` the C function that was
    called. The contents of the server's memory are gone. Close the backends, buffers and schedulers
    on it. When a server listens there again, `Device.init` connects to it.
    """

    def __init__(self, condition: str, call: str, endpoint: str) -> None:
        self.condition = condition
        self.call = call
        self.endpoint = endpoint
        if condition.endswith("while connecting"):
            advice = (
                "It must be an RPC server of the same ggml release with no other client at the "
                "moment; its own output says more"
            )
        else:
            advice = (
                "If the server ended or refused a request, its own output says why. The contents "
                "of its memory are gone: close the objects on it. When a server listens there "
                "again, Device.init() connects anew"
            )
        super().__init__(f"{condition}. {advice}")


class LeftError(RpcError):
    """A signal ended the wait for an RPC server: the `__context__` of that `KeyboardInterrupt`.

    The connection stays usable; an object that the call was changing (a scheduler) is spoiled.
    """

    def __init__(self, condition: str, call: str, endpoint: str) -> None:
        self.condition = condition
        self.call = call
        self.endpoint = endpoint
        super().__init__(condition)


class LoadError(GgmlError, ImportError):
    """A native library cannot be loaded: a backend's module, or ours in this kind of process."""


class AllocError(GgmlError, MemoryError):
    """A backend could not allocate the memory that a graph or a context needs.

    `sizes` has the bytes that were requested, by backend or buffer type, if known. `too_large` has
    the names of tensors that are larger than the largest buffer there.
    """

    def __init__(
        self, message: str, sizes: dict[str, int] | None = None, too_large: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.sizes, self.too_large = sizes or {}, too_large


class NoDataError(GgmlError, ValueError):
    """The tensor has no memory: its context or graph is not allocated, or no longer allocated. Or
    it has no data: it was never set or computed, or its memory was used again."""


class ComputeError(GgmlError, RuntimeError):
    """A backend reported that a compute failed."""


class GgufError(GgmlError, ValueError):
    """A GGUF file cannot be read or written."""


class DamagedFileError(GgmlError, OSError):
    """A file was truncated, changed or unreadable while it was mapped, so results and copies made
    from it meanwhile are not valid. `path` is the file."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(
            f"{path} {why}. Results and copies made from it meanwhile are not valid: get the file "
            "again and load it again. (A mapped file stays intact if it is deleted, or replaced by "
            "a rename)"
        )


class ModelError(GgmlError, ValueError):
    """A model file lacks something that its architecture needs, or input does not fit the model."""


class PlacementError(GgmlError, RuntimeError):
    """A plan does not meet the requirements of the `strict` block around it; `plan` is the Plan."""

    def __init__(self, message: str, plan: Any) -> None:
        super().__init__(message)
        self.plan = plan


# Advice on assertions whose text does not say enough, by a piece of upstream's text.
_ADVICE = {
    "GGML_ASSERT(obj_new)": "the context is full: make it with a larger reserve=",
    "n_nodes < cgraph->size": "the graph is full: make it with a larger new_graph(size)",
    "n_leafs < cgraph->size": "the graph is full: make it with a larger new_graph(size)",
    "GGML_HASHSET_FULL": "the graph is full: make it with a larger new_graph(size)",
}


_WIDE = "{} is f64, which ggml can copy but not compute with: use from_numpy(array, type='f32')"


def _f64(operands: list[str]) -> list[str]:
    """The names of operands (not of results: "node: OP f64 ..") that are f64."""
    return [line.rpartition("] ")[2] for line in operands if ": f64 [" in line]


class AbortError(GgmlError, RuntimeError):
    """An assertion of ggml failed; upstream would have ended the process (C: ggml_abort).

    `condition` is upstream's text, `file` and `line` its place in upstream's source, `call` the C
    function that was called, `operands` its arguments as "name: type ne 'name'", `log` the last
    lines that ggml logged. For frequently used ops `rule` explains the condition; it is "" for
    others.
    """

    def __init__(
        self,
        condition: str,
        call: str,
        operands: str,
        file: str,
        line: int,
        log: Sequence[str] = (),
        rule: str = "",
    ) -> None:
        self.condition = condition
        self.rule = rule
        self.call = call
        self.operands = operands.splitlines()
        self.file = file
        self.line = line
        self.log = list(log)
        where = f" at {file}:{line}" if file else ""
        parts = [f"{call}: {rule}", f"  {condition}{where}"] if rule else []
        parts = parts or [f"{call}: {condition}{where}"]
        parts += [f"  {advice}" for known, advice in _ADVICE.items() if known in condition]
        parts += [f"  {_WIDE.format(name)}" for name in _f64(self.operands)]
        parts += [f"  {operand}" for operand in self.operands]
        super().__init__("\n".join(parts))


class IsolatedDeath(GgmlError, RuntimeError):
    """The process of `isolate` ended without a result.

    `call` is the function's name. `exitcode` is as in `subprocess` (negative: the signal), and
    `signal` is the signal's name or None. `seconds` is the lifetime of the process. `lines` are the
    last lines of its stderr: after a signal they include Python's stack at that time.
    """

    def __init__(self, call: str, exitcode: int, seconds: float, lines: list[str]) -> None:
        self.call = call
        self.exitcode = exitcode
        self.signal = _signal_name(-exitcode) if exitcode < 0 else None
        self.seconds = seconds
        self.lines = lines
        how = f"was killed by {self.signal}" if self.signal else f"exited with status {exitcode}"
        message = f"{call}: its process {how} after {seconds:.1f} s"
        if self.signal == "SIGKILL":
            message += " (the system does that when memory runs out)"
        super().__init__(_with_lines(message, lines))


class IsolatedTimeout(GgmlError, TimeoutError):
    """The process of `isolate` took longer than its `timeout` and was killed.

    `call` is the function's name, `timeout` is in seconds, `lines` are the last lines of its
    stderr.
    """

    def __init__(self, call: str, timeout: float, lines: list[str]) -> None:
        self.call = call
        self.timeout = timeout
        self.lines = lines
        message = f"{call}: its process was killed after it exceeded timeout={timeout:g} s"
        super().__init__(_with_lines(message, lines))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one


def _with_lines(message: str, lines: list[str]) -> str:
    return "\n  ".join([f"{message}; its last output:" if lines else message, *lines])

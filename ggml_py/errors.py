"""Every exception of ggml_py. Each inherits `GgmlError` and the builtin that fits."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any


class GgmlError(Exception):
    """Base of all errors of ggml_py. They can be pickled, with all their attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[GgmlError], args: tuple[Any, ...], attributes: dict[str, Any]) -> GgmlError:
    # Without __init__, which takes other arguments; the base whose memory layout it has makes it.
    base: Any = kind.__base__
    error: GgmlError = base.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


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


class ServerLostError(RpcError):
    """The connection to an RPC server is lost: the server ended, was silent for longer than its
    `timeout`, or gave an answer that cannot be. Later calls on that connection raise it again.

    `endpoint` is the server, `condition` what became of it, `call` the C function that was called.
    What was in the server's memory is gone. Close the backends, buffers and schedulers on it; when
    a server listens there again, `Device.init` connects to it.
    """

    def __init__(self, condition: str, call: str, endpoint: str) -> None:
        self.condition = condition
        self.call = call
        self.endpoint = endpoint
        if condition.endswith("while connecting"):
            advice = (
                "It has to be an RPC server of the same ggml release that serves nobody else just "
                "now; its own output says more"
            )
        else:
            advice = (
                "If it ended or refused what it was asked, its own output says why. What was in "
                "its memory is gone: close what is on it; when a server listens there again, "
                "Device.init() connects anew"
            )
        super().__init__(f"{condition}. {advice}")


class LeftError(RpcError):
    """A signal ended the wait for an RPC server: the `__context__` of that `KeyboardInterrupt`.

    The connection can be used; what the call was changing (a scheduler) may not.
    """

    def __init__(self, condition: str, call: str, endpoint: str) -> None:
        self.condition = condition
        self.call = call
        self.endpoint = endpoint
        super().__init__(condition)


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


class DamagedFileError(GgmlError, OSError):
    """A file was cut, changed, or could not be read, while it was mapped: what was computed or
    copied meanwhile is not what it had. `path` is the file."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(
            f"{path} {why}. What was computed or copied from it meanwhile is not valid: get the "
            "file again and load it again. (A file that is deleted, or replaced by a rename, stays "
            "whole for who has it mapped)"
        )


class ModelError(GgmlError, ValueError):
    """A model file that lacks what its architecture needs, or input that the model cannot take."""


class PlacementError(GgmlError, RuntimeError):
    """A plan that is not as the block of `strict` around it requires; `plan` is that `Plan`."""

    def __init__(self, message: str, plan: Any) -> None:
        super().__init__(message)
        self.plan = plan


# What to do about assertions that say less than they could; by a piece of upstream's text.
_ADVICE = {
    "GGML_ASSERT(obj_new)": "the context is full: make it with a larger reserve=",
    "n_nodes < cgraph->size": "the graph is full: make it with a larger new_graph(size)",
    "n_leafs < cgraph->size": "the graph is full: make it with a larger new_graph(size)",
    "GGML_HASHSET_FULL": "the graph is full: make it with a larger new_graph(size)",
}


_WIDE = "{} is f64, which ggml copies and computes nothing with: from_numpy(array, type='f32')"


def _f64(operands: list[str]) -> list[str]:
    """The names of operands (not of results: "node: OP f64 ..") that are f64."""
    return [line.rpartition("] ")[2] for line in operands if ": f64 [" in line]


class AbortError(GgmlError, RuntimeError):
    """An assertion of ggml failed; upstream would have ended the process (C: ggml_abort).

    `condition` is upstream's text, `file` and `line` its place in upstream's source, `call` the C
    function that was called, `operands` its arguments as "name: type ne 'name'", `log` the last
    lines that ggml logged. `rule` says what the condition means, for ops that are much used; "" for
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

    `call` is the function's name, `exitcode` as in `subprocess` (negative: the signal), `signal`
    the signal's name or None, `seconds` how long it lived, `lines` the last ones of its stderr
    (for a signal with Python's own stack at the time).
    """

    def __init__(self, call: str, exitcode: int, seconds: float, lines: list[str]) -> None:
        self.call = call
        self.exitcode = exitcode
        self.signal = _signal_name(-exitcode) if exitcode < 0 else None
        self.seconds = seconds
        self.lines = lines
        how = f"was ended by {self.signal}" if self.signal else f"exited with status {exitcode}"
        message = f"{call}: its process {how} after {seconds:.1f} s"
        if self.signal == "SIGKILL":
            message += " (what the system does when memory runs out)"
        super().__init__(_with_lines(message, lines))


class IsolatedTimeout(GgmlError, TimeoutError):
    """The process of `isolate` took longer than its `timeout` and was ended.

    `call` is the function's name, `timeout` in seconds, `lines` the last ones of its stderr.
    """

    def __init__(self, call: str, timeout: float, lines: list[str]) -> None:
        self.call = call
        self.timeout = timeout
        self.lines = lines
        message = f"{call}: its process was ended, it took longer than timeout={timeout:g} s"
        super().__init__(_with_lines(message, lines))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one


def _with_lines(message: str, lines: list[str]) -> str:
    return "\n  ".join([f"{message}; the last it said:" if lines else message, *lines])

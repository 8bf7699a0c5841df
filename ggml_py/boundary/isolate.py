"""Runs a function in its own process, whose death is an exception here.

1. The child is a fresh interpreter (spawn): a fork would copy locks that threads hold.
2. Function and arguments go in through the child's stdin; the result comes back through a separate
   pipe. stdout is the caller's. stderr is relayed, so its last lines are known.
3. The child's stdin stays open as long as the caller lives. When it closes, the child ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing import process, spawn
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any, BinaryIO, ParamSpec, TypeVar

from ..errors import ArgumentError, IsolatedDeath, IsolatedTimeout
from ..typed import typed

P = ParamSpec("P")
T = TypeVar("T")

_LINES, _CHARACTERS = 20, 2000  # last lines of stderr in an exception, and the last of each line
_CHUNK = 1 << 20
_POLL = 0.05  # seconds until a death is noticed


def isolate(
    function: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any
) -> T:
    """Runs function(*args, **kwargs) in a new process; returns its result or raises its exception.

    For code that may end the process: unknown model files, drivers, `lib` with wrong pointers.
    Everything is pickled in both directions. The function must be defined in a module, or in a
    script that guards its start with ``if __name__ == "__main__"``. It takes and returns arrays and
    plain values, not tensors or other handles. A call also takes the time to start Python and
    import what the function needs.

    Raises `IsolatedDeath` if the process ended without a result (a signal, out of memory,
    `os._exit`), `IsolatedTimeout` if it was killed after `timeout` seconds, `ArgumentError` if
    something cannot be pickled. Ctrl-C ends the process too.
    """
    if not callable(function):
        raise TypeError(f"isolate: expected a function first, got {type(function).__name__}")
    if timeout is not None:
        if not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout={timeout!r}: expected seconds or None")
        if not timeout > 0:
            raise ArgumentError(f"timeout={timeout}: expected seconds, more than 0, or None")
    name = getattr(function, "__qualname__", repr(function))
    try:
        work = pickle.dumps((function, args, kwargs), protocol=5)
    except Exception as error:
        raise ArgumentError(
            f"isolate: {name} or its arguments cannot be sent to another process ({error}): "
            "give a function defined in a module, and arrays and plain values"
        ) from error
    child = _Child(name, work)
    try:
        return child.result(timeout)  # type: ignore[no-any-return]
    finally:
        child.end()


class _Child:
    """One process, from its start to the result."""

    def __init__(self, name: str, work: bytes) -> None:
        self.name, self.started = name, time.monotonic()
        setup = spawn.get_preparation_data(name)
        setup.pop("authkey", None)  # cannot be pickled, and is only for processes that talk back
        if not os.path.exists(setup.get("init_main_from_path", "")):  # noqa: PTH110
            setup.pop("init_main_from_path", None)  # "<stdin>"
        prepared = pickle.dumps(setup)
        self._to_send = memoryview(
            len(prepared).to_bytes(8, "little") + len(work).to_bytes(8, "little") + prepared + work
        )
        self._received = bytearray()
        # The last lines: characters that are left out, and the rest.
        self._stderr: deque[tuple[int, str]] = deque([(0, "")], maxlen=_LINES + 1)
        result, write_end = os.pipe()
        self._result: BinaryIO = open(result, "rb", buffering=0)  # noqa: PTH123, SIM115
        program = f"import sys; sys.path[:] = {sys.path!r}; import {__name__} as i; i"
        try:
            self._process = subprocess.Popen(
                [spawn.get_executable(), "-c", f"{program}.serve({write_end})"],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(write_end,),
                bufsize=0,
            )
        except BaseException:
            self._result.close()
            raise
        finally:
            os.close(write_end)

    def result(self, timeout: float | None) -> Any:
        self._exchange(timeout)
        if not self._complete():
            seconds = time.monotonic() - self.started
            raise IsolatedDeath(self.name, self._process.returncode, seconds, self._lines())
        ok, value, text = pickle.loads(self._received[8:])
        if ok:
            return value
        raise value from RemoteTraceback(f"\n{text}")

    def end(self) -> None:
        process = self._process
        process.kill()  # it has nothing more to do; harmless if it has ended
        process.wait()
        for stream in (process.stdin, process.stderr, self._result):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _exchange(self, timeout: float | None) -> None:
        """Sends the work and receives, until the result is complete or the process has ended.

        The end of the pipes is not a reliable sign: processes that the child starts may hold them
        open.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for stream in (process.stdin, process.stderr, self._result):
                os.set_blocking(stream.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            selector.register(process.stderr, selectors.EVENT_READ)
            selector.register(self._result, selectors.EVENT_READ)
            while not self._complete():
                left = self._left(timeout)
                ready = selector.select(_POLL if left is None else min(left, _POLL))
                for key, _ in ready:
                    if key.fileobj is process.stdin:
                        if not self._send():
                            selector.unregister(process.stdin)
                    elif not self._receive(key.fd):
                        selector.unregister(key.fileobj)
                if not ready and process.poll() is not None:
                    break
            with contextlib.suppress(BlockingIOError):
                while self._receive(process.stderr.fileno()):
                    pass

    def _left(self, timeout: float | None) -> float | None:
        """The seconds that the child has left. Raises `IsolatedTimeout` if there are none."""
        if timeout is None:
            return None
        left = self.started + timeout - time.monotonic()
        if left <= 0:
            raise IsolatedTimeout(self.name, timeout, self._lines())
        return left

    def _send(self) -> bool:
        """Sends as much as the pipe takes; False when there is nothing more to send."""
        assert self._process.stdin is not None
        try:
            self._to_send = self._to_send[os.write(self._process.stdin.fileno(), self._to_send) :]
        except BrokenPipeError:
            return False  # it died; the end of the result shows that
        return len(self._to_send) > 0

    def _receive(self, fd: int) -> bool:
        """Reads a piece of the result or of stderr; False at the end."""
        piece = os.read(fd, _CHUNK)
        if fd == self._result.fileno():
            self._received += piece
        elif piece:
            text = piece.decode(errors="replace")
            if sys.stderr is not None:
                sys.stderr.write(text)
                sys.stderr.flush()
            first, *lines = text.split("\n")
            before, begun = self._stderr.pop()
            self._stderr.append(_end_of(begun + first, before))
            self._stderr.extend(map(_end_of, lines))
        return len(piece) > 0

    def _complete(self) -> bool:
        received = self._received
        return len(received) >= 8 and len(received) - 8 >= int.from_bytes(received[:8], "little")

    def _lines(self) -> list[str]:
        return [
            f"(after {before:,} characters) {line}" if before else line
            for before, line in self._stderr if line.strip()
        ]  # fmt: skip


def _end_of(line: str, before: int = 0) -> tuple[int, str]:
    """How many characters of a line are left out, `before` it was this long, and its end."""
    return before + max(len(line) - _CHARACTERS, 0), line[-_CHARACTERS:]


def serve(result: int) -> None:
    """The child: reads the work from stdin, writes the outcome to the pipe `result`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to both; the caller decides
    faulthandler.enable()
    caller = os.fdopen(os.dup(0), "rb")
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.set_inheritable(result, False)
    n_setup, n_work = (int.from_bytes(caller.read(8), "little") for _ in range(2))
    setup, work = caller.read(n_setup), caller.read(n_work)
    if len(work) < n_work:
        os._exit(1)  # the caller died
    threading.Thread(target=_end_with, args=(caller,), daemon=True).start()
    answer = _answer(setup, work)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with open(result, "wb") as pipe:
        pipe.write(len(answer).to_bytes(8, "little"))
        pipe.write(answer)
    os._exit(0)  # skips native destructors, which may hang or crash although all went well


def _end_with(caller: BinaryIO) -> None:
    caller.read()  # returns when the caller's end of the pipe is closed
    os._exit(1)


def _answer(setup: bytes, work: bytes) -> bytes:
    """(True, result, "") or (False, exception, traceback), pickled."""
    try:
        function, args, kwargs = _load(setup, work)
        value = function(*args, **kwargs)
    except SystemExit:
        raise
    except BaseException as error:
        return _pickled_error(error)
    try:
        return pickle.dumps((True, value, ""), protocol=5)
    except Exception as error:
        return _pickled_error(
            ArgumentError(
                f"isolate: the result, a {type(value).__name__}, cannot be sent back ({error}): "
                "return arrays (tensor.get()) and plain values"
            )
        )


def _load(setup: bytes, work: bytes) -> Any:
    # As in multiprocessing: the caller's main module is imported under another name. If it calls
    # isolate while it is imported, spawn.get_preparation_data says that the guard is missing.
    current: Any = process.current_process()
    current._inheriting = True
    spawn.prepare(pickle.loads(setup))
    del current._inheriting
    try:
        return pickle.loads(work)
    except AttributeError as error:
        raise ArgumentError(
            f"isolate: the new process does not find the function ({error}): define it in a "
            "module, not in an interactive session"
        ) from error


def _pickled_error(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled = pickle.dumps((False, error, text), protocol=5)
        pickle.loads(pickled)
    except Exception:
        stand_in = RuntimeError(f"{type(error).__name__}: {error}")
        pickled = pickle.dumps((False, stand_in, text), protocol=5)
    return pickled


@typed
def last_error(said: str) -> str:
    """The error that a process of ours printed, without the usage below it; the last line of
    others, such as a traceback."""
    lines = said.strip().splitlines()
    found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (found or lines or [""])[-1]

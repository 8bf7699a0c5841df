"""Ctrl-C: delayed for a moment, so that what was printed is also counted; never lost.

An exception that is raised inside a finalizer, a `__del__` or a callback of C goes to
`sys.unraisablehook`, which prints it, and the verb goes on. Ctrl-C raises one wherever it comes, so
`never_lost` sends it again.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

_AGAIN = 0.02  # seconds: by then the finalizer is over; if it is not, the hook is called again


def never_lost() -> None:
    """From now on, a `KeyboardInterrupt` that Python would ignore comes again."""
    usual = sys.unraisablehook

    def hook(ignored: Any) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            usual(ignored)
            return
        again = threading.Timer(_AGAIN, _interrupt)
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def _interrupt() -> None:
    if hasattr(signal, "pthread_kill"):  # it ends a wait for the system, too
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
    else:
        signal.raise_signal(signal.SIGINT)


class CtrlC:
    """Between `hold` and `release`, Ctrl-C waits; otherwise it works as usual. If it is ignored, as
    in a shell's background jobs, it stays ignored."""

    def __init__(self) -> None:
        self._holds = self._came = False

    def __enter__(self) -> CtrlC:
        self._usual = signal.getsignal(signal.SIGINT)
        if self._usual is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_raised: object) -> None:
        signal.signal(signal.SIGINT, self._usual)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._holds:
            raise KeyboardInterrupt
        self._came = True

    def hold(self) -> None:
        """From now on Ctrl-C waits."""
        self._holds = True

    def release(self) -> None:
        """Ctrl-C waits no longer. Raises KeyboardInterrupt if it came in between."""
        self._holds = False
        if self._came:
            self._came = False
            raise KeyboardInterrupt

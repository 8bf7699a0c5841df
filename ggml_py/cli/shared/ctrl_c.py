"""Delays Ctrl-C for a moment, so that what was printed is also counted."""

from __future__ import annotations

import signal
from types import FrameType


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

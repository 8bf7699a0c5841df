"""Sends ggml's log to `logging.getLogger("ggml")`; errors contain its last lines."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from _thread import interrupt_main, start_new_thread
from collections import deque
from types import TracebackType
from typing import Any

logger = logging.getLogger("ggml")

# enum ggml_log_level. CONT continues the previous line, at that line's level.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONT = 5

_serial = itertools.count(1)
_recent: deque[tuple[int, str]] = deque(maxlen=32)
_thread = threading.local()  # `line`: the level and the beginning of an unfinished line


def recent() -> list[str]:
    """The last lines of warnings and errors that ggml logged, oldest first."""
    return [line for _, line in list(_recent)]


def mark() -> int:
    """The current position in the log, for `since`."""
    return _recent[-1][0] if _recent else 0


def since(mark: int) -> list[str]:
    """The warnings and errors logged after `mark`, as far as they are still kept."""
    return [line for n, line in list(_recent) if n > mark]


def receive(level: int, text: str) -> None:
    """Takes one piece of ggml's log. Joins parts of lines, then logs line by line."""
    known, pending = getattr(_thread, "line", (logging.INFO, ""))
    at = known if level == _CONT else _LEVELS.get(level, logging.INFO)
    *lines, pending = (pending + text).split("\n")
    _thread.line = (at, pending)
    for line in lines:
        if at >= logging.WARNING and line:
            _recent.append((next(_serial), line))
        logger.log(at, "%s", line)


def _raised(
    _type: type[BaseException], error: BaseException, _traceback: TracebackType | None
) -> None:
    """Handles an exception in the log function: it cannot pass through C, and no call waits for the
    log. A Ctrl-C is raised again when C has returned; any other exception is shown."""
    if not isinstance(error, KeyboardInterrupt):
        raise error
    start_new_thread(_interrupt_soon, ())


def _interrupt_soon() -> None:
    time.sleep(0.01)  # without the pause it would be raised in `_raised`
    interrupt_main()


def install(ffi: Any, lib: Any) -> None:
    """Sends ggml's log here (C: ggml_log_set)."""

    @ffi.def_extern(name="gp_on_log", onerror=_raised)  # type: ignore[untyped-decorator]
    def on_log(level: int, text: Any, _user_data: Any) -> None:
        receive(level, ffi.string(text).decode("utf-8", "replace"))

    lib.ggml_log_set(lib.gp_on_log, ffi.NULL)

"""ggml's log goes to `logging.getLogger("ggml")`; errors carry the last lines."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

logger = logging.getLogger("ggml")

# enum ggml_log_level. CONT continues the line before it, at that line's level.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONT = 5

_recent: deque[str] = deque(maxlen=32)
_count = 0  # of all that ever came into _recent
_pending = ""
_level = logging.INFO


def recent() -> list[str]:
    """The last lines of warnings and errors that ggml logged, oldest first."""
    return list(_recent)


def mark() -> int:
    """A place in the log, for `since`."""
    return _count


def since(mark: int) -> list[str]:
    """The warnings and errors logged after `mark`, as far as they are kept."""
    return list(_recent)[len(_recent) - min(_count - mark, len(_recent)) :]


def receive(level: int, text: str) -> None:
    """Takes one piece of ggml's log: parts of lines are put together, then logged line by line."""
    global _pending, _level, _count
    if level != _CONT:
        _level = _LEVELS.get(level, logging.INFO)
    *lines, _pending = (_pending + text).split("\n")
    for line in lines:
        if _level >= logging.WARNING and line:
            _recent.append(line)
            _count += 1
        logger.log(_level, "%s", line)


def install(ffi: Any, lib: Any) -> None:
    """Sends ggml's log here (C: ggml_log_set)."""

    @ffi.def_extern(name="gp_on_log")  # type: ignore[untyped-decorator]
    def on_log(level: int, text: Any, _user_data: Any) -> None:
        receive(level, ffi.string(text).decode("utf-8", "replace"))

    lib.ggml_log_set(lib.gp_on_log, ffi.NULL)

"""Frames of our functions that only a traceback keeps: they give up what they hold."""

from __future__ import annotations

import contextlib
import gc
import inspect
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parent)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def clear_dead_frames() -> None:
    """Whoever keeps an exception (a list of errors, the prompt's `sys.last_value`) keeps the frames
    that it went through, with the pointers in their local variables."""
    for one in gc.get_objects():
        if type(one) is FrameType and one.f_code.co_filename.startswith(_OURS):
            if one.f_code.co_flags & _SUSPENDED:
                continue  # it may go on, and clearing it would end it
            with contextlib.suppress(RuntimeError):  # it is running
                one.clear()

"""Frames of our functions that only a traceback keeps: they give up the pointer that is closed."""

from __future__ import annotations

import contextlib
import gc
import inspect
from pathlib import Path
from types import CellType, FrameType
from typing import Any

_OURS = str(Path(__file__).parent.parent)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_DEPTH = 3  # a frame has it, or has a tuple of arguments that has it


def clear_dead_frames(ptr: Any) -> None:
    """Whoever keeps an exception (a list of errors, the prompt's `sys.last_value`) keeps the frames
    that it went through, with the pointers in their local variables.

    By the referrers of `ptr`, not by all objects: those that other threads are just making, such as
    a tuple that still grows, must not be touched.
    """
    looked_at: list[Any] = [ptr]
    for _ in range(_DEPTH):
        found = gc.get_referrers(*looked_at)
        looked_at = [one for one in found if isinstance(one, tuple | dict | CellType)]
        for one in found:
            if type(one) is FrameType and one.f_code.co_filename.startswith(_OURS):
                if one.f_code.co_flags & _SUSPENDED:
                    continue  # it may go on, and clearing it would end it
                with contextlib.suppress(RuntimeError):  # it is running
                    one.clear()
        if not looked_at:
            break

"""Clears frames of our functions that a traceback keeps alive and that hold a closed pointer."""

from __future__ import annotations

import contextlib
import gc
import inspect
from pathlib import Path
from types import CellType, FrameType
from typing import Any

_OURS = str(Path(__file__).parent.parent)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_DEPTH = 3  # a frame holds it directly, or through a tuple of arguments


def clear_dead_frames(ptr: Any) -> None:
    """Clears the finished frames of our functions that hold `ptr`.

    A kept exception (in a list of errors, or the prompt's `sys.last_value`) keeps the frames it
    passed through, with the pointers in their local variables.

    Searches the referrers of `ptr`, not all objects: an object that another thread is just making,
    such as a tuple that still grows, must not be touched.
    """
    looked_at: list[Any] = [ptr]
    for _ in range(_DEPTH):
        found = gc.get_referrers(*looked_at)
        looked_at = [one for one in found if isinstance(one, tuple | dict | CellType)]
        for one in found:
            if type(one) is FrameType and one.f_code.co_filename.startswith(_OURS):
                if one.f_code.co_flags & _SUSPENDED:
                    continue  # it may resume, and clearing would end it
                with contextlib.suppress(RuntimeError):  # it is running
                    one.clear()
        if not looked_at:
            break

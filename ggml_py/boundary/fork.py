"""Finds the handles that other threads were using when this process was forked.

In the child those threads are gone and nobody finishes their calls. Their handles may be
half-changed, and would be busy for ever.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .handle import Handle

_several = False  # whether there were several threads at the last fork


def _look() -> None:
    global _several
    _several = len(sys._current_frames()) > 1


def left_in_use(kind: type[Handle]) -> list[Handle]:
    """In the child: the handles that other threads were using. Marks them as no longer used."""
    if not _several:
        return []
    me = threading.get_ident()
    frozen = gc.get_freeze_count() > 0  # servers freeze before they fork; that hides objects
    if frozen:
        gc.unfreeze()
    # Without handles that were still being made.
    every = (one for one in gc.get_objects() if issubclass(type(one), kind))
    handles = [one for one in every if hasattr(one, "_readers")]
    if frozen:
        gc.freeze()
    for handle in handles:
        handle._readers = tuple(one for one in handle._readers if one == me)
    found = [one for one in handles if one._user is not None and one._user[1] != me]
    for handle in found:
        handle._user = None
    return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look)

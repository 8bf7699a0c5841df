"""Finds the handles that other threads were using when this process was forked.

In the child those threads are gone and nobody finishes their calls. Their handles may be
half-changed, and would be busy for ever.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .handle import Handle

_several = False  # whether there were several threads at the last fork
_IMPORTED_IN_CALLS = (
    "graphs.graph_plan", "backends.registry", "backends.rpc", "gguf.writer", "graphs.alloc",
    "graphs.compare", "scheduler.capture", "scheduler.scheduler", "scheduler.view", "sim.device",
    "tensors.dlpack", "train.fit", "variants.search",
)  # fmt: skip


def _look() -> None:
    global _several
    _several = len(sys._current_frames()) > 1
    if _several:  # one may be importing: the module's lock would stay locked in the child
        for name in _IMPORTED_IN_CALLS:
            importlib.import_module(f"ggml_py.{name}")


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

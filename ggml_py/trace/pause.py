"""Making thousands of records at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Garbage collection waits meanwhile: each round would look at all records made so far, none of
    which is garbage, and the time per node would grow with the graph."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

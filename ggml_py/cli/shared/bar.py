"""A progress bar on standard error if that is a terminal. The caller draws it; no thread does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from ...files.foreign import visible

_SLOW = 0.3  # seconds; anything faster shows no bar
_PAUSE = 0.1  # seconds between two redraws


@contextmanager
def bar(what: str, wanted: bool = True, at_once: bool = False) -> Iterator[Callable[[float], None]]:
    """Gives a function to call with the share that is done, 0.0 to 1.0. It draws on terminals only,
    and costs almost nothing between two redraws. Without `at_once`, quick work shows no bar. The
    bar disappears at the end."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _share: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with ExitStack() as stack:
        shown = Progress(console=console, transient=True, auto_refresh=False)
        task = shown.add_task(escape(visible(what)), total=1.0)
        due = time.monotonic() + (0.0 if at_once else _SLOW)

        def stop() -> None:
            with suppress(IndexError):  # it was only half started
                shown.stop()

        def show(share: float) -> None:
            nonlocal due
            now = time.monotonic()
            if now < due:
                return
            if not shown.live.is_started:
                # Before the start: Ctrl-C may come in the middle of it, with the cursor hidden.
                stack.callback(console.show_cursor)
                stack.callback(stop)
                shown.start()
            due = now + _PAUSE
            shown.update(task, completed=share, refresh=True)

        yield show


@contextmanager
def line(what: str, wanted: bool = True) -> Iterator[None]:
    """Shows `what` on terminals until the end of the block: work whose share is not known."""
    if not wanted or not sys.stderr.isatty():
        yield
        return
    print(f"{visible(what)} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)

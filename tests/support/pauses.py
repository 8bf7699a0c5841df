"""Threads that change places at any line: what a busy machine does once in a thousand runs."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import threading
import time
from pathlib import Path

import ggml_py

PACKAGE = str(Path(ggml_py.__file__).parent)
OFTEN, LONGEST, IN_ALL = 0.1, 4e-4, 0.4  # of the lines; seconds of a pause; seconds of a thread


@contextlib.contextmanager
def pauses(seed=0):
    """Every thread that starts meanwhile pauses before some lines of the package, by chance, so
    that other threads go on between any two of them."""
    seeds = itertools.count(seed * 1000)
    kept: list[object] = []  # Python 3.11 borrows a thread's trace functions while it calls them

    def start(frame, event, arg):
        chance, left = random.Random(next(seeds)), IN_ALL

        def line(_frame, event, _arg):
            nonlocal left
            if event == "line" and chance.random() < OFTEN:
                before = time.monotonic()
                time.sleep(chance.random() * LONGEST)
                left -= time.monotonic() - before
                if left < 0:  # the rest of the thread runs at its usual speed
                    sys.settrace(None)
                    return None
            return line

        def call(frame, _event, _arg):
            return line if frame.f_code.co_filename.startswith(PACKAGE) else None

        kept.append((call, line))
        sys.settrace(call)
        return call(frame, event, arg)

    before = threading.gettrace()
    threading.settrace(start)
    try:
        yield
    finally:
        threading.settrace(before)  # type: ignore[arg-type]


@contextlib.contextmanager
def switching(how):
    """Python changes threads every microsecond instead of every five milliseconds ("often"), and
    then also at lines where threads would rarely meet ("at any line")."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with pauses() if how == "at any line" else contextlib.nullcontext():
            yield
    finally:
        sys.setswitchinterval(before)

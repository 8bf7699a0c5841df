"""Messages of a build: one error class, short steps with times on stderr, a download bar."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any


class BuildError(Exception):
    """A build cannot continue. The message is one line: what was given and what to do about it."""


class OutsideError(BuildError):
    """A program failed for a reason outside of its input: a full disk, too little memory."""


def say(text: str) -> None:
    """Print one line of progress to stderr. stdout is kept for results."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announce `title`, then, if the block succeeds, how many seconds it took."""
    say(f"{title} ...")
    start = time.monotonic()
    yield
    say(f"{title}: {time.monotonic() - start:.1f} s")


# A file size limit (ulimit -f) gives EFBIG. To the user it looks like a full disk.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


# Only `ggml-py build` has an option for it.
ANOTHER = "choose another folder with XDG_CACHE_HOME=DIR in the environment (build: --cache DIR)"


def full_message(doing: str, folder: Path, hint: str = ANOTHER) -> str:
    """The message for a full disk, with the free space in MB."""
    try:
        free = f"{shutil.disk_usage(folder).free / 1e6:.0f} MB free there"
    except OSError:
        free = "free space unknown"
    return (
        f"disk full while {doing} in {folder} ({free}; a build needs about 400 MB, --reference "
        f"1 GB more): free some space, or {hint}"
    )


_SAID_FULL = re.compile(r"No space left on device|File size limit exceeded|Disk quota exceeded")
_SAID_KILLED = re.compile(r"Killed signal terminated|out of memory|cannot allocate memory", re.I)


def said_full(output: str) -> bool:
    """Whether a compiler or linker says that the disk is full."""
    return _SAID_FULL.search(output) is not None


def check_outside(doing: str, folder: Path, code: int, output: str) -> None:
    """Raise OutsideError if a program that ended with `code` failed for a reason outside of its
    input."""
    if said_full(output):
        raise OutsideError(full_message(doing, folder))
    if code < 0 or _SAID_KILLED.search(output):
        raise OutsideError(
            f"{doing}: the compiler was killed, probably for lack of memory; a build needs about "
            "1 GB for each of its jobs (--jobs N)"
        )


@contextlib.contextmanager
def writing(doing: str, folder: Path, hint: str = ANOTHER) -> Iterator[None]:
    """Turn a full disk or a refused write inside the block into a BuildError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise BuildError(full_message(doing, folder, hint)) from error
        if error.errno in REFUSED:
            where = error.filename or folder
            raise BuildError(f"not writable while {doing}: {where} ({error.strerror}): {hint}") \
                from error
        raise


class PlainBar:
    """A download bar without rich: one line, rewritten; in a pipe, a line every 25 %."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title, self.total, self.done, self.shown = title, total, 0, 0

    def __enter__(self) -> PlainBar:
        return self

    def update(self, increment: int) -> None:
        """Count `increment` more bytes."""
        self.done += increment
        tty = sys.stderr.isatty()
        share = 100 * self.done // self.total if self.total else 0
        if share < self.shown + (1 if tty else 25):
            return
        self.shown = share
        line = f"{self.title} {self.done / 1e6:.1f} MB {share}%"
        print(f"\r{line}" if tty else line, end="" if tty else "\n", file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if sys.stderr.isatty() and self.shown:
            print(file=sys.stderr)


class RichBar:
    """A download bar drawn by rich, with speed and remaining time."""

    def __init__(self, title: str, total: int | None) -> None:
        from rich import console, progress

        self.progress = progress.Progress(
            progress.TextColumn(title),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console.Console(stderr=True),
        )
        self.task = self.progress.add_task(title, total=total)

    def __enter__(self) -> RichBar:
        self.progress.start()
        return self

    def update(self, increment: int) -> None:
        """Count `increment` more bytes."""
        self.progress.update(self.task, advance=increment)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()


def download_bar(title: str, total: int | None) -> Any:
    """A progress tracker for pypi-simple, with `total` in bytes: rich's, or a plain one without."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return RichBar(title, total)
    return PlainBar(title, total)

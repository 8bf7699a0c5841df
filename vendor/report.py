"""What a build says: one error class, short steps with times on stderr, a download bar."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any


class BuildError(Exception):
    """A build that cannot go on: one line saying what was given and what to do about it."""


def say(text: str) -> None:
    """Print one line of progress; stderr, so that stdout holds only results."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announce `title`, then how many seconds its block took (only when it succeeds)."""
    say(f"{title} ...")
    start = time.monotonic()
    yield
    say(f"{title}: {time.monotonic() - start:.1f} s")


# EFBIG is what a file size limit (ulimit -f) gives: for the user, the same wall.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


ANOTHER = "choose another folder with --cache DIR"


def full_message(doing: str, folder: Path, hint: str = ANOTHER) -> str:
    """The one line for a full disk; free space is in MB."""
    try:
        free = f"{shutil.disk_usage(folder).free / 1e6:.0f} MB free there"
    except OSError:
        free = "free space unknown"
    return (
        f"disk full while {doing} in {folder} ({free}; a build needs about 400 MB, --reference "
        f"1 GB more): free some space, or {hint}"
    )


@contextlib.contextmanager
def writing(doing: str, folder: Path, hint: str = ANOTHER) -> Iterator[None]:
    """Turn a full disk or a refused write inside the block into a BuildError that says so."""
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
    """A download bar for a terminal without rich: one line, rewritten; in a pipe, every 25 %."""

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
    """The same bar drawn by rich, with speed and time left."""

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
    """A progress tracker as pypi-simple wants it, `total` in bytes: rich's, else a plain one."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            return RichBar(title, total)
    return PlainBar(title, total)

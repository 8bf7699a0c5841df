"""Files of results: one JSON file for each part, written whole or not at all. Kept files
are compressed, because they have raw samples."""

from __future__ import annotations

import datetime
import gzip
import json
import os
from pathlib import Path
from typing import Any

FORMAT = 1
MOST_BYTES = 12 << 20  # of one file; the tool that brings files back takes 16 MiB each
MOST_FILES = 8  # that it brings back
TAIL = 6000  # characters of a part's output that are kept

# How a part ended. The first two are results; after the others it is run again.
PASSED, FAILED = "passed", "failed"
TIMED_OUT, DIED = "timed out", "died"
FINAL = (PASSED, FAILED)
STATUSES = (*FINAL, TIMED_OUT, DIED)
NEEDED = {
    "format": int, "part": str, "status": str, "date": str, "commit": str, "kit": str,
    "dry_run": bool, "device": dict, "seconds": (int, float), "result": dict, "about": dict,
}  # fmt: skip


class BadResultError(ValueError):
    """A file that is not the result of a part. The text says what is wrong."""


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def write(path: Path, data: Any) -> None:
    """Writes JSON with a rename, so that nobody reads half of it. Raises `BadResultError` if it is
    too large to be brought back, or holds a number that JSON does not have."""
    try:
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise BadResultError(f"{path.name}: {error}") from error
    if len(text.encode()) > MOST_BYTES:
        raise BadResultError(
            f"{path.name} would have {len(text.encode()):,} bytes: expected at most "
            f"{MOST_BYTES:,}; keep counts in place of rows"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new{os.getpid()}")
    content = text.encode()
    new.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    new.replace(path)


def read(path: Path) -> dict[str, Any]:
    """A part's result. Raises `BadResultError`."""
    try:
        content = path.read_bytes()
        data = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (OSError, ValueError) as error:
        raise BadResultError(f"{path}: not a file of results ({error})") from error
    if not isinstance(data, dict):
        raise BadResultError(f"{path}: expected an object, got {type(data).__name__}")
    for name, kind in NEEDED.items():
        if not isinstance(data.get(name), kind):
            raise BadResultError(f"{path}: {name}={data.get(name)!r} is not what a result has")
    if data["format"] != FORMAT or data["status"] not in STATUSES:
        raise BadResultError(
            f"{path}: format {data['format']}, status {data['status']!r}: expected {FORMAT} and "
            f"one of {', '.join(STATUSES)}"
        )
    return data


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in a folder by part; files that are none are left out."""
    found = {}
    for path in sorted(folder.glob("*.json*")) if folder.is_dir() else ():
        try:
            found[path.name.partition(".")[0]] = read(path)
        except BadResultError:
            continue
    return {name: data for name, data in found.items() if data["part"] == name}

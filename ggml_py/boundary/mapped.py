"""Watches mapped files: one that is truncated while it is mapped must not end the process."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import AllocError, DamagedFileError
from .address_space import lack
from .ffi import ffi, lib

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = np.memmap[Any, np.dtype[np.uint8]]


class Stamp(NamedTuple):
    """Identifies a file, to notice that it is no longer the one that was opened."""

    device: int
    inode: int
    size: int
    changed: int  # ns

    @classmethod
    def of(cls, file: IO[bytes]) -> Stamp:
        """The stamp of an open file."""
        now = os.fstat(file.fileno())
        return cls(now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)

    def check(self, file: IO[bytes], path: Path) -> None:
        """Raises `DamagedFileError` if `file` at `path` is another file or was written to."""
        now = Stamp.of(file)
        if now != self:
            had = f"{self.size:,} bytes then, {now.size:,} now" if now.size != self.size else ""
            had = had or "it was written to, or is another file now"
            raise DamagedFileError(os.fspath(path), f"has changed since it was opened: {had}")


def map_file(path: Path, opened: Stamp, offset: int = 0, nbytes: int | None = None) -> Bytes:
    """Maps a file for reading: all its bytes, or `nbytes` from `offset` on. Reading bytes that are
    gone by then gives zeroes and raises `DamagedFileError`.

    Raises `DamagedFileError` if the file is no longer the one that was `opened`, `AllocError` if
    the process cannot get that much address space. C: gp_mapped_add
    """
    with path.open("rb", buffering=0) as file:
        opened.check(file, path)
        try:
            array = np.memmap(file, np.uint8, "r", offset, None if nbytes is None else (nbytes,))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            n = opened.size if nbytes is None else nbytes
            raise AllocError(
                f"the {n:,} bytes of {path} cannot be mapped"
                + (lack(n) or ": this process cannot get that much more address space"),
                {"file": opened.size},
            ) from None
        watch(array, path, os.dup(file.fileno()))
    return array


class MappedPart(NamedTuple):
    """A part of a file that this process has mapped."""

    path: Path
    begin: int  # address
    nbytes: int
    offset: int  # in the file


def mappings(paths: Sequence[Path]) -> list[MappedPart]:
    """The mapped parts of these files, whoever mapped them. None where the system does not tell
    (it does on Linux)."""
    files = {}
    for path in paths:
        found = path.stat()
        files[(os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)] = path
    rows: list[str] = []
    if files:
        with contextlib.suppress(OSError):
            rows = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    parts = []
    for row in rows:
        addresses, _how, offset, device, inode = row.split(maxsplit=5)[:5]
        major, minor = (int(n, 16) for n in device.split(":"))
        if (path := files.get((major, minor, int(inode)))) is not None:  # type: ignore[assignment]
            begin, end = (int(n, 16) for n in addresses.split("-"))
            parts.append(MappedPart(path, begin, end - begin, int(offset, 16)))
    return parts


def watch_mapping(mapping: MappedPart) -> Any:
    """Watches somebody else's mapping, until gp_mapped_remove gets the result. C: gp_mapped_add"""
    with mapping.path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        nbytes = min(mapping.nbytes, size - mapping.offset)
        begin = ffi.cast("void *", mapping.begin)
        fd = os.dup(file.fileno())
        return lib.gp_mapped_add(begin, nbytes, os.fsencode(mapping.path), fd, mapping.offset)


def watch_mapped(array: npt.NDArray[Any]) -> None:
    """Watches the caller's mapping, if `array` is a view of one."""
    base: object = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if isinstance(base, np.memmap):
        watch(base, Path(base.filename or "a mapped file"))


def watch(array: np.memmap[Any, Any], path: Path, fd: int = -1) -> None:
    """Watches an array's mapping for as long as it exists. `fd` is the file if it is mapped
    read-only. C: gp_mapped_add"""
    mapped: mmap.mmap = vars(array)["_mmap"]
    memory = np.frombuffer(mapped, np.uint8)
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    begin = ffi.cast("void *", memory.ctypes.data)
    handle = lib.gp_mapped_add(begin, memory.nbytes, os.fsencode(path), fd, start)
    weakref.finalize(mapped, lib.gp_mapped_remove, handle).atexit = False

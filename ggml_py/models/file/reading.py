"""Copies weights out of the mapped file, and says how far that is."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...backends.buffer import BufferType
from ...boundary.ffi import ffi, lib
from ...enums import BackendDevType
from ...errors import ModelError
from ...tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Unread = list[tuple[Tensor, BufferType, Bytes]]

Progress = Callable[[float], object]
PIECE = 16 << 20  # bytes that a thread copies at once
CALL = 64 << 20  # for each thread, in one call: long enough to start it, and Ctrl-C waits for it


class _Piece(NamedTuple):
    at: int  # of its tensor in the list
    start: int
    nbytes: int
    n_threads: int  # that copy it and others in one call; 0: it has a call of its own


def read(unread: Unread, path: str, progress: Progress | None, n_threads: int) -> None:
    """Copies every array into its tensor, from the last to the first; what is done leaves the list,
    and the mapped file's pages leave the memory: weights are there once.

    Into the CPU's memory `n_threads` threads copy, for laying weights out anew is work, and so is
    getting fresh memory from the system. Other devices' pieces are set one by one: upstream asks no
    backend to bear anything else, and some are far away.

    `progress` is called with the share of all bytes that is done: 0.0, after each call of C, 1.0.
    What it raises ends the reading, and so does False, with a `ModelError`. A tensor is one piece
    where its memory cannot be set in parts. C: gp_set_pieces
    """
    total = sum(raw.nbytes for _tensor, _buft, raw in unread)
    done = 0
    _tell(progress, 0.0, total, path)
    for group in _groups(_pieces(unread, min(n_threads, os.cpu_count() or 1))):
        copied = ffi.new("struct gp_piece[]", [_described(unread, piece) for piece in group])
        lib.gp_set_pieces(copied, len(group), group[0].n_threads)
        done += sum(piece.nbytes for piece in group)
        del unread[group[-1].at + 1 :]
        if done < total:
            _tell(progress, done / total, total, path)
    unread.clear()
    _tell(progress, 1.0, total, path)


def _pieces(unread: Unread, n_threads: int) -> Iterator[_Piece]:
    for at, (_tensor, buft, raw) in reversed(list(enumerate(unread))):
        step = PIECE if takes_pieces(buft) else raw.nbytes
        for start in range(0, raw.nbytes, step):
            nbytes = min(step, raw.nbytes - start)
            yield _Piece(at, start, nbytes, n_threads if _is_the_cpus(buft) else 0)


def _groups(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Those that one call copies."""
    group: list[_Piece] = []
    nbytes = 0
    for piece in pieces:
        n_threads, nbytes = piece.n_threads, nbytes + piece.nbytes
        if group and (n_threads != group[0].n_threads or nbytes > n_threads * CALL):
            yield group
            group, nbytes = [], piece.nbytes
        group.append(piece)
    if group:
        yield group


def _described(unread: Unread, piece: _Piece) -> dict[str, object]:
    """As gp_set_pieces wants it."""
    tensor, _buft, raw = unread[piece.at]
    return {
        "tensor": tensor.ptr,
        "data": ffi.cast("char *", ffi.from_buffer(raw)) + piece.start,
        "offset": piece.start,
        "nbytes": piece.nbytes,
        "mapped": isinstance(getattr(raw, "_mmap", None), mmap.mmap),
    }


def _is_the_cpus(buft: BufferType) -> bool:
    device = buft.device
    return buft.is_host or device is None or device.type == BackendDevType.CPU


def takes_pieces(buft: BufferType) -> bool:
    """Whether its tensors may be set in parts: the host's memory, and that of devices which
    llama.cpp's loader uploads to so. Others may lay a tensor out anew as it is set, for which they
    want all of it (CPU_REPACK asserts that).
    """
    device = buft.device
    if buft.is_host or device is None:
        return buft.is_host
    caps = device.props.caps
    return buft == device.buffer_type and caps.async_ and caps.host_buffer and caps.events


def _tell(progress: Progress | None, share: float, total: int, path: str) -> None:
    if progress is not None and progress(share) is False:
        raise ModelError(
            f"{path}: loading was cancelled: progress({share:.2f}) returned False, "
            f"{share * total:,.0f} of {total:,} bytes were read. The model must be loaded again"
        )

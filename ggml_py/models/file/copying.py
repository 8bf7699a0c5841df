"""Copies weights out of the mapped file and reports progress."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...backends.buffer import BufferType
from ...boundary.ffi import ffi, lib
from ...enums import BackendDevType
from ...errors import ModelError
from ...llama.options import Progress
from ...tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Unread = list[tuple[Tensor, BufferType, Bytes]]

PIECE = 16 << 20  # bytes that a thread copies at once
CALL = 64 << 20  # bytes per thread and C call: worth a thread's start, short enough for Ctrl-C


class _Piece(NamedTuple):
    at: int  # index of its tensor in the list
    start: int
    nbytes: int
    n_threads: int  # threads that copy it and other pieces in one call; 0: a call of its own


def read(unread: Unread, path: str, progress: Progress | None, n_threads: int) -> None:
    """Copies every array into its tensor, from the last to the first. Copied arrays are removed
    from the list, and the mapped file's pages from memory, so weights are in memory only once.

    `n_threads` threads copy into the CPU's memory, because changing the layout of weights and
    getting fresh memory from the system both take time. For other devices pieces are set one by
    one: upstream requires no more of a backend, and some devices are remote.

    `progress` is called with the share of all bytes that has been copied: with 0.0, after each C
    call, and with 1.0. If it raises, reading ends with that error; if it returns False, with a
    `ModelError`. A tensor is a single piece if its memory cannot be set in parts. C: gp_set_pieces
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
    """Groups the pieces that one C call copies."""
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
    """The piece as a struct gp_piece."""
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
    """Whether tensors of this buffer type may be set in parts. That is so for host memory, and for
    devices to which llama.cpp's loader uploads in parts. Other buffer types may change a tensor's
    layout when it is set, and need the whole tensor (CPU_REPACK asserts this).
    """
    device = buft.device
    if buft.is_host or device is None:
        return buft.is_host
    caps = device.props.caps
    return buft == device.buffer_type and caps.async_ and caps.host_buffer and caps.events


def _tell(progress: Progress | None, share: float, total: int, path: str) -> None:
    if progress is not None and progress(share) is False:
        raise ModelError(
            f"{path}: loading was cancelled: progress({share:.2f}) returned False, with "
            f"{share * total:,.0f} of {total:,} bytes read. The model must be loaded again"
        )

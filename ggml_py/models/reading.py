"""Copies weights out of the mapped file, and says how far that is."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .._ffi import ffi, lib
from ..buffer import BufferType
from ..errors import ModelError
from ..tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    Unread = list[tuple[Tensor, BufferType, npt.NDArray[np.uint8]]]

Progress = Callable[[float], object]
PIECE = 16 << 20  # bytes: on the order of ten milliseconds


def read(unread: Unread, path: str, progress: Progress | None) -> None:
    """Copies every array into its tensor, from the last to the first; what is done leaves the list,
    and the mapped file's pages leave the memory: weights are there once.

    `progress` is called with the share of all bytes that is done: 0.0, after each piece, 1.0. What
    it raises ends the reading, and so does False, with a `ModelError`. A tensor is one piece where
    its memory cannot be set in parts.
    """
    total = sum(raw.nbytes for _tensor, _buft, raw in unread)
    done = 0
    _tell(progress, 0.0, total, path)
    while unread:
        tensor, buft, raw = unread[-1]
        step = PIECE if takes_pieces(buft) else raw.nbytes
        for start in range(0, raw.nbytes, step):
            piece = raw[start : start + step]
            lib.ggml_backend_tensor_set(tensor.ptr, ffi.from_buffer(piece), start, piece.nbytes)
            let_go(raw[: start + step])
            done += piece.nbytes
            if done < total:
                _tell(progress, done / total, total, path)
        unread.pop()
    _tell(progress, 1.0, total, path)


def let_go(raw: npt.NDArray[np.uint8]) -> None:
    """Gives the pages of a mapped file back to the system, which has them in its cache for whoever
    reads them again. Other arrays, and systems without that, stay as they are. C: madvise"""
    file = getattr(raw, "_mmap", None)
    if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        first = raw.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
        start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (first + raw.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            file.madvise(mmap.MADV_DONTNEED, start, end - start)


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

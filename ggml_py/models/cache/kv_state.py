"""Keys and values of one sequence to bytes and back: llama_kv_cache::state_write, state_read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...boundary.ffi import ffi, lib
from ...errors import ModelError
from ...tensors.tensor import Tensor
from .cells import POS_END, Idxs
from .kv_cache import KvCache
from .memory import Memory
from .state_reader import StateReader

if TYPE_CHECKING:
    import numpy.typing as npt


def write(caches: Sequence[KvCache], seq: int) -> Iterator[bytes]:
    """The bytes of all caches, one after the other."""
    for cache in caches:
        yield struct.pack("<I", cache.cells.n_stream)
        for stream, cells in enumerate(cache.cells.streams):
            idxs = np.empty(0, np.int64)
            if cells is cache.cells.of(seq)[0]:
                idxs = _seen(cache, seq)
            yield struct.pack("<I", len(idxs))
            if len(idxs):
                meta = np.empty((len(idxs), 3), "<i4")  # position, number of sequences, sequence
                meta[:, 0], meta[:, 1], meta[:, 2] = cells.pos[idxs], 1, seq
                yield meta.tobytes()
                yield from _write_tensors(cache, stream, idxs)


def _seen(cache: KvCache, seq: int) -> Idxs:
    """The sequence's cells, without those that no later token sees."""
    cells, row = cache.cells.of(seq)
    mine = cells.has[row]
    if cells.n_swa:
        mine = mine & (cells.pos > cells.last(row) - cells.n_swa)
    return np.flatnonzero(mine)


def _write_tensors(cache: KvCache, stream: int, idxs: Idxs) -> Iterator[bytes]:
    yield struct.pack("<4I", cache.v_trans, len(cache.k), cache.n_rot_k, cache.n_rot_v)
    for tensor in cache.k.values():
        yield struct.pack("<iQ", tensor.type, tensor.nb[1])
        yield _get(tensor, _places(cache, tensor, stream, idxs, False))
    for tensor in cache.v.values():
        if cache.v_trans:
            yield struct.pack("<iII", tensor.type, tensor.nb[0], tensor.ne[0])
        else:
            yield struct.pack("<iQ", tensor.type, tensor.nb[1])
        yield _get(tensor, _places(cache, tensor, stream, idxs, cache.v_trans))


@dataclass(frozen=True)
class _Part:
    """The state that was read for one cache."""

    cache: KvCache
    pos: npt.NDArray[np.int32]
    data: list[memoryview]  # of K's tensors, then V's


def read(
    memory: Memory, caches: Sequence[KvCache], seq: int, reader: StateReader
) -> Callable[[], None]:
    """Reads the state for all `caches` of `memory` and changes nothing. Returns a function that
    replaces the sequence by the state.

    Both raise `ModelError`: the function if there are not enough cells, before it changes any.
    """
    parts = [part for cache in caches for part in _read_cache(cache, reader)]
    return lambda: _place(memory, seq, parts)


def _read_cache(cache: KvCache, reader: StateReader) -> list[_Part]:
    streams = cache.cells
    reader.expect(streams.n_stream, "n_stream (one per sequence without kv_unified)")
    parts: list[_Part] = []
    for _stream in range(streams.n_stream):
        n = reader.number()
        if not n:
            continue
        if parts:
            raise reader.error("has cells of several sequences: it is damaged")
        meta = np.frombuffer(reader.take(12 * n), "<i4").reshape(n, 3)
        pos = meta[:, 0]
        beyond = POS_END - streams.size  # from there on no tokens could follow
        possible = pos.min() >= 0 and pos.max() < beyond and len(np.unique(pos)) == n
        if not possible or (meta[:, 1] != 1).any():
            raise reader.error("has impossible positions: it is damaged, or from another model")
        parts.append(_Part(cache, pos.astype(np.int32), _read_tensors(cache, n, reader)))
    return parts


def _read_tensors(cache: KvCache, n: int, reader: StateReader) -> list[memoryview]:
    reader.expect(int(cache.v_trans), "transposed values (1 without flash attention):")
    reader.expect(len(cache.k), "n_layer")
    reader.expect(cache.n_rot_k, "rotated keys (n_rot):")
    reader.expect(cache.n_rot_v, "rotated values (n_rot):")
    data = []
    for tensor in cache.k.values():
        reader.expect(tensor.type, "keys of type", "i")
        reader.expect(tensor.nb[1], "bytes of keys per token:", "Q")
        data.append(reader.take(n * tensor.nb[1]))
    for tensor in cache.v.values():
        reader.expect(tensor.type, "values of type", "i")
        if cache.v_trans:
            reader.expect(tensor.nb[0], "bytes per value:")
            reader.expect(tensor.ne[0], "values per token:")
        else:
            reader.expect(tensor.nb[1], "bytes of values per token:", "Q")
        data.append(reader.take(n * tensor.nb[1]))
    return data


def _place(memory: Memory, seq: int, parts: list[_Part]) -> None:
    saved = memory.save()
    memory.seq_rm(seq, 0, POS_END)
    found = []
    for part in parts:
        cells, row = part.cache.cells.of(seq)
        idxs = cells.find(len(part.pos))
        if idxs is None:
            n_free = cells.n_free()
            memory.restore(saved, [])
            raise ModelError(
                f"the context is full: the state has {len(part.pos)} tokens, but only {n_free} "
                "cells are free beside the other sequences. Remove tokens (seq_rm, reset), or load "
                "with a larger n_ctx (-c)"
            )
        found.append((part, cells, row, idxs))
    try:
        for part, cells, row, idxs in found:
            cells.put(idxs, part.pos, [((row,), slice(None))])
            _put_tensors(part, seq, idxs)
    except BaseException:
        memory.seq_rm(seq, 0, POS_END)
        raise


def _put_tensors(part: _Part, seq: int, idxs: Idxs) -> None:
    cache = part.cache
    stream = 0 if cache.cells.n_stream == 1 else seq
    tensors = [*cache.k.values(), *cache.v.values()]
    for i, (tensor, data) in enumerate(zip(tensors, part.data, strict=True)):
        transposed = cache.v_trans and i >= len(cache.k)
        at = 0
        for offset, size in _places(cache, tensor, stream, idxs, transposed):
            piece = ffi.from_buffer(data[at : at + size])
            lib.ggml_backend_tensor_set(tensor.ptr, piece, offset, size)
            at += size


def _get(tensor: Tensor, places: list[tuple[int, int]]) -> bytes:
    data = bytearray(sum(size for _offset, size in places))
    at = 0
    for offset, size in places:
        target = ffi.from_buffer(memoryview(data)[at : at + size])
        lib.ggml_backend_tensor_get(tensor.ptr, target, offset, size)
        at += size
    return bytes(data)


def _places(
    cache: KvCache, tensor: Tensor, stream: int, idxs: Idxs, transposed: bool
) -> list[tuple[int, int]]:
    """Offsets and sizes of the bytes of these cells, in the order in which they are written.
    Neighbouring cells are one piece. If transposed, each element has its cells in turn."""
    first = np.flatnonzero(np.diff(idxs, prepend=-2) != 1)
    n_cells = np.diff(first, append=len(idxs))
    runs = list(zip(idxs[first].tolist(), n_cells.tolist(), strict=True))
    start = stream * tensor.nb[2]
    if not transposed:
        nb1 = tensor.nb[1]
        return [(start + i * nb1, n * nb1) for i, n in runs]
    nb0, size = tensor.nb[0], cache.cells.size
    return [(start + (j * size + i) * nb0, n * nb0) for j in range(tensor.ne[0]) for i, n in runs]

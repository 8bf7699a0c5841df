"""The state of one sequence of a recurrent model to bytes and back: llama_memory_recurrent."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from ...boundary.ffi import ffi, lib
from ...tensors.tensor import Tensor
from .cells import POS_END
from .recurrent_cells import RecurrentCells
from .state_reader import StateReader


def write(
    cells: RecurrentCells, r: Sequence[Tensor], s: Sequence[Tensor], seq: int
) -> Iterator[bytes]:
    """The bytes: the position, then the sequence's row of each tensor. `r` and `s` have a tensor
    per layer, see `RecurrentCache`."""
    pos, row = cells.pos(seq), cells.row(seq)
    yield struct.pack("<I", pos >= 0)
    if pos >= 0:
        yield struct.pack("<iI", pos, 0)
    yield struct.pack("<2I", 0, len(r))  # the states are not transposed
    for tensor in (*r, *s):
        nb1 = tensor.nb[1]
        yield struct.pack("<iQ", tensor.type, nb1)
        if pos >= 0:
            data = bytearray(nb1)
            lib.ggml_backend_tensor_get(tensor.ptr, ffi.from_buffer(data), row * nb1, nb1)
            yield bytes(data)


def read(
    cells: RecurrentCells, r: Sequence[Tensor], s: Sequence[Tensor], seq: int, reader: StateReader
) -> Callable[[], None]:
    """Reads the state and changes nothing. Returns a function that replaces the sequence by it."""
    n, pos = reader.number(), -1
    if n > 1:
        raise reader.error(f"has {n} states for one sequence: it is damaged")
    if n:
        pos = reader.number("i")
        if reader.number() or not 0 <= pos < POS_END:
            raise reader.error("has an impossible position: it is damaged, or from another model")
    reader.expect(0, "transposed states:")
    reader.expect(len(r), "n_layer")
    rows = []
    for tensor in (*r, *s):
        reader.expect(tensor.type, "states of type", "i")
        reader.expect(tensor.nb[1], "bytes per state:", "Q")
        rows.append((tensor, reader.take(n * tensor.nb[1])))

    def place() -> None:
        cells.forget(seq)
        if not n:
            return
        row = cells.put(seq, pos)
        try:
            for tensor, data in rows:
                nb1 = tensor.nb[1]
                lib.ggml_backend_tensor_set(tensor.ptr, ffi.from_buffer(data), row * nb1, nb1)
        except BaseException:
            cells.forget(seq)
            raise

    return place

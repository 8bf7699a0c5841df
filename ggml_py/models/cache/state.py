"""Sequences as bytes and files, in libllama's formats (llama-context.cpp)."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...boundary.arguments import describe
from ...errors import ModelError
from ...files.reading import read_file
from ...files.writing import whole_file
from .memory import Memory
from .state_reader import StateReader

_DATA_MAGIC = 0xAF143CD8
_FILE_MAGIC, _FILE_VERSION = 0x67677371, 4  # LLAMA_STATE_SEQ_MAGIC "ggsq", …_VERSION
_SESSION_MAGIC = 0x6767736E  # "ggsn", of all sequences


def get_data(memory: Memory, seq: int) -> bytes:
    """The state of a sequence. C: llama_state_seq_get_data"""
    return b"".join((struct.pack("<Ii", _DATA_MAGIC, seq), *memory.state_write(seq)))


def set_data(memory: Memory, seq: int, data: Any) -> None:
    """Replaces a sequence. Raises TypeError and `ModelError`, and then changes nothing.
    C: llama_state_seq_set_data"""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data: expected bytes, got {describe(data)}")
    reader = StateReader(data, "the state")
    if reader.number() != _DATA_MAGIC:
        raise reader.error("does not begin like one: expected bytes that seq_state returned")
    reader.number("i")  # the sequence's number when it was saved
    _read(memory, seq, reader)


def save_file(memory: Memory, path: Path, seq: int, tokens: Sequence[int]) -> None:
    """Writes tokens and state. Raises OSError, and then leaves an existing file unchanged.
    C: llama_state_seq_save_file"""
    with whole_file(path) as out:
        out.write(struct.pack("<3I", _FILE_MAGIC, _FILE_VERSION, len(tokens)))
        out.write(np.asarray(tokens, "<i4").tobytes())
        for piece in memory.state_write(seq):
            out.write(piece)


def load_file(memory: Memory, path: Path, seq: int) -> list[int]:
    """Replaces a sequence by a file's and returns the file's tokens. Raises `ModelError` and
    OSError, and then changes nothing. C: llama_state_seq_load_file"""
    reader = StateReader(_content(path), os.fspath(path))
    magic = reader.number()
    if magic != _FILE_MAGIC:
        all_of_them = ": it has all sequences (llama_state_save_file)"
        raise reader.error(
            f"is not the file of a sequence{all_of_them if magic == _SESSION_MAGIC else ''}: "
            "expected a file that save_seq or llama_state_seq_save_file wrote"
        )
    version = reader.number()
    if version != _FILE_VERSION:
        raise reader.error(f"has format version {version}: expected {_FILE_VERSION}")
    tokens: list[int] = np.frombuffer(reader.take(4 * reader.number()), "<i4").tolist()
    _read(memory, seq, reader)
    return tokens


def _content(path: Path) -> bytes:
    try:
        return read_file(path, 1 << 40)  # a large model's cache fits
    except ValueError as error:
        raise ModelError(str(error)) from None


def _read(memory: Memory, seq: int, reader: StateReader) -> None:
    place = memory.state_read(seq, reader)
    reader.end()
    place()

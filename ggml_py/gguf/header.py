"""Checks the header of a GGUF file before ggml's own parser reads it."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import BinaryIO, NoReturn

from .. import enums
from ..boundary.ffi import lib, text
from ..errors import GgufError
from ..files.bounds import HEADER, HEADER_STRINGS
from ..files.kinds import N_HEAD, kind_of

ADVICE = "Get the file again, or convert the model again"
_G = enums.GgufType
_WIDTHS = {
    1: (_G.UINT8, _G.INT8, _G.BOOL),
    2: (_G.UINT16, _G.INT16),
    4: (_G.UINT32, _G.INT32, _G.FLOAT32),
    8: (_G.UINT64, _G.INT64, _G.FLOAT64),
}
_WIDTH_OF = {int(type_): width for width, types in _WIDTHS.items() for type_ in types}
_U32, _I32, _U64, _I64 = (struct.Struct(f"={code}") for code in "IiQq")


class HeaderCheck:
    """Walks a header before ggml's parser, and raises `GgufError` for input it handles badly.

    For errors that ggml's parser reports well (magic, version, negative counts, duplicates,
    extents, offsets) the walk stops and leaves them to it. The file is read in windows, not mapped:
    if a mapped file shrank, SIGBUS would end the process.
    """

    WINDOW = 1 << 20
    MAX_KEY = 65535  # the format's own limit, which upstream does not enforce
    MAX_NAME = 63  # GGML_MAX_NAME with its NUL
    # Upstream's limit is 2^30 elements if the rest of the file is large enough. A file of some
    # gigabytes nearly always has such a rest. Upstream then reads the elements one by one, through
    # a callback and fread, for minutes (gguf_reader::read). It creates all strings (32 bytes each)
    # before it reads the first, and copies them (gguf_read_emplace_helper): eight times the bytes
    # that a false count claims. A tensor costs 344 bytes (more while the vector grows) and 368 in
    # the context, for 24 in the file.
    MAX_ITEMS = 1 << 22
    MAX_TENSORS, MAX_KV = 1 << 17, 1 << 16
    MAX_STRING = 1 << 28

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.window = b""
        self.start = 0  # where the window begins in the file
        self.at = 0
        self.alignment = 32
        self.n_strings = 0  # in arrays

    def fail(self, what: str) -> NoReturn:
        raise GgufError(f"{self.path} cannot be read as GGUF: {what}. {ADVICE}")

    def ends(self, what: str, n: int) -> NoReturn:
        # Upstream says "failed to read key-value pairs" wherever the file ends.
        self.fail(f"{what} takes {n:,} bytes from byte {self.at:,}, the file has {self.size:,}")

    def take(self, n: int, what: str) -> int:
        """Steps over `n` bytes; returns their position in the window."""
        at = self.at - self.start
        if at + n > len(self.window):
            if self.at + n > self.size:
                self.ends(what, n)
            self.file.seek(self.at)
            self.check_end()
            self.window, self.start, at = self.file.read(max(n, self.WINDOW)), self.at, 0
            if len(self.window) < n:
                self.ends(what, n)
        self.at += n
        return at

    def skip(self, n: int, what: str) -> None:
        if self.at + n > self.size:
            self.ends(what, n)
        self.at += n
        self.check_end()

    def check_end(self) -> None:
        if self.at > HEADER:
            self.fail(f"its header has more than {HEADER >> 20} MiB")

    def number(self, kind: struct.Struct, what: str) -> int:
        at = self.take(kind.size, what)
        return int(kind.unpack_from(self.window, at)[0])

    def limit(self, n: int, most: int, what: str) -> int:
        if n > most:
            self.fail(f"{what} {n:,}, expected at most {most:,}")
        return n

    def name(self, most: int, what: str) -> str:
        """A key or a tensor's name."""
        length = f"the length of {what} at byte {self.at:,}"
        n = self.limit(self.number(_U64, length), most, f"{length} is")
        at = self.take(n, what)
        raw = self.window[at : at + n]
        # Upstream compares whole names for duplicates, but returns them up to the first NUL, so two
        # of its names could be one here. Bytes that are not UTF-8 would also become equal letters.
        try:
            name = raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"{what} {raw[:64]!r} is not UTF-8 ({error.reason})")
        if "\0" in name:
            self.fail(f"{what} {name[:64]!r} contains a NUL, which no name may contain")
        return name

    def run(self) -> None:
        """Checks the whole header. Returns early if ggml's parser gives a good message itself."""
        head = self.file.read(N_HEAD)
        if head[:4] != b"GGUF":
            kind = kind_of(head)
            if kind is not None:
                raise GgufError(kind.told(self.path, "a GGUF file"))
            if len(head) >= 4:
                return
        if self.size < 24:
            self.fail(f"a GGUF header has 24 bytes, this file has only {self.size}")
        self.skip(4, "the magic")
        if self.number(_U32, "the version") not in (2, 3):
            return
        n_tensors = self.number(_I64, "the number of tensors")
        n_kv = self.number(_I64, "the number of keys")
        if n_tensors < 0 or n_kv < 0:
            return
        for n, most, least, what in (
            (n_kv, self.MAX_KV, 13, "keys"),
            (n_tensors, self.MAX_TENSORS, 24, "tensors"),
        ):
            self.limit(n, most, f"the header counts {what}:")
            if n * least > self.size:
                self.fail(
                    f"the header counts {n:,} {what}, too many for the file's {self.size:,} bytes"
                )
        for i in range(n_kv):
            if not self.pair(i):
                return
        for i in range(n_tensors):
            if not self.tensor(i):
                return
        # Upstream says "failed to seek to beginning of data section", also for a truncated file.
        alignment = self.alignment
        if alignment == 0 or alignment & (alignment - 1):
            return
        data = -(-self.at // alignment) * alignment
        if n_tensors and data > self.size:
            self.fail(
                f"its data begins at byte {data:,} (aligned to {alignment:,}), the file has "
                f"{self.size:,}"
            )

    def pair(self, i: int) -> bool:
        """Checks one key and its value. False if the walk cannot go on."""
        key = self.name(self.MAX_KEY, f"key {i}")
        if not key:
            self.fail(f"key {i} is empty")  # older parsers assert
        what = f"the value of {key[:64]!r}"
        type_, n, array = self.number(_I32, what), 1, False
        if key == "general.alignment" and 0 <= type_ < _G.COUNT and type_ != _G.UINT32:
            name = text(lib.gguf_type_name(type_))
            self.fail(f"'general.alignment' must be of type u32 but is {name}")
        if type_ == _G.ARRAY:
            array, type_, n = True, self.number(_I32, what), self.number(_U64, what)
            if type_ == _G.ARRAY:
                self.fail(f"{what} is an array of arrays, which no reader accepts")
        if type_ == _G.STRING:
            if array:
                self.strings(n, what)
            else:
                n = self.number(_U64, what)
                # Upstream catches bad_alloc for arrays only (gguf_read_emplace_helper).
                self.skip(self.limit(n, self.MAX_STRING, f"{what} is a string of length"), what)
            return True
        if type_ not in _WIDTH_OF:
            return False
        nbytes = n * _WIDTH_OF[type_]
        if self.at + nbytes > self.size:
            self.ends(what, nbytes)
        self.limit(n, self.MAX_ITEMS, f"{what} is an array of length")
        if key == "general.alignment":
            self.alignment = self.number(_U32, what)
        else:
            self.skip(nbytes, what)
        return True

    def strings(self, n: int, what: str) -> None:
        """Steps over `n` strings. Without calls: a vocabulary has hundreds of thousands."""
        if self.at + 8 * n > self.size:
            self.ends(what, 8 * n)
        self.n_strings += n
        said = f"{what} is an array of strings of length"
        more = f" (with the arrays before it {self.n_strings:,})" if self.n_strings > n else ""
        if self.n_strings > HEADER_STRINGS:
            self.fail(f"{said} {n:,}{more}, expected at most {HEADER_STRINGS:,}")
        unpack, window, at = _U64.unpack_from, self.window, self.at - self.start
        for i in range(n):
            try:
                at += 8 + unpack(window, at)[0]
            except (struct.error, OverflowError):  # beyond the window
                self.at = self.start + at
                at = self.take(8, f"string {i} of {what}")
                window = self.window
                at += 8 + unpack(window, at)[0]
            if self.start + at > self.size:
                self.fail(
                    f"string {i} of {n:,} in {what} ends at byte {self.start + at:,}, the file has "
                    f"{self.size:,}"
                )
        self.at = self.start + at

    def tensor(self, i: int) -> bool:
        """Checks the entry of one tensor. False if the walk cannot go on."""
        name = self.name(self.MAX_NAME, f"the name of tensor {i}")
        what = f"the entry of tensor {name!r}"
        n_dims = self.number(_U32, what)
        if n_dims > 4:
            return False
        ne = [self.number(_I64, what) for _ in range(n_dims)]
        type_ = self.number(_I32, what)
        self.number(_U64, what)
        if not 0 <= type_ < lib.GGML_TYPE_COUNT or min(ne, default=1) < 0:
            return False
        block = lib.ggml_blck_size(type_)
        if block == 0:
            # Upstream says that the row is not a multiple of 0.
            self.fail(
                f"tensor {name!r} is of type {type_}, which ggml has removed; a current model "
                "file has it in another type"
            )
        # Upstream keeps elements below 2^63 and bytes below 2^64, and skips extents of 0, so
        # offsets and strides (int64 in kernels and in numpy) could overflow. From 2^62 on an
        # assertion in ggml_new_tensor_impl, stricter than the parser's own check, fails and leaks
        # the context.
        n = math.prod(max(n, 1) for n in ne)
        if max(n, n // block * lib.ggml_type_size(type_)) >= 1 << 61:
            self.fail(f"tensor {name!r} with ne {ne} is larger than the address space")
        return True

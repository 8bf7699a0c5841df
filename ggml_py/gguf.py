"""GGUF files: metadata and tensors of a model, read with ggml's own parser and by mmap; written."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias

import numpy as np

from . import _log, enums
from ._ffi import NULL, ffi, lib, text
from ._handle import Handle
from .context import Context
from .errors import ArgumentError, GgufError
from .tensor import TypeLike, encode, type_of

if TYPE_CHECKING:
    import numpy.typing as npt

_SCALARS: dict[enums.GgufType, tuple[str, Any]] = {
    enums.GgufType.UINT8: ("u8", np.uint8),
    enums.GgufType.INT8: ("i8", np.int8),
    enums.GgufType.UINT16: ("u16", np.uint16),
    enums.GgufType.INT16: ("i16", np.int16),
    enums.GgufType.UINT32: ("u32", np.uint32),
    enums.GgufType.INT32: ("i32", np.int32),
    enums.GgufType.FLOAT32: ("f32", np.float32),
    enums.GgufType.UINT64: ("u64", np.uint64),
    enums.GgufType.INT64: ("i64", np.int64),
    enums.GgufType.FLOAT64: ("f64", np.float64),
    enums.GgufType.BOOL: ("bool", np.bool_),
}
_WIDTHS = {int(type_): np.dtype(dtype).itemsize for type_, (_, dtype) in _SCALARS.items()}
_BY_DTYPE = {np.dtype(dtype): type_ for type_, (_suffix, dtype) in _SCALARS.items()}

# What `write_gguf` takes for one tensor: name, data, type, ne. Data is an array (converted to the
# type), raw bytes of the type as uint8, or a function that makes one of these when its turn comes.
TensorData: TypeAlias = "npt.ArrayLike | Callable[[], npt.ArrayLike]"
TensorEntry: TypeAlias = "tuple[str, TensorData, TypeLike, tuple[int, ...]]"


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a file: `ne` in ggml's order, `offset` in bytes from the start of the file."""

    name: str
    type: enums.Type
    ne: tuple[int, int, int, int]
    offset: int
    nbytes: int


_ADVICE = "Get the file again, or convert the model again"
_U32, _I32, _U64, _I64 = (struct.Struct(f"={code}") for code in "IiQq")


class _HeaderCheck:
    """Walks a header before ggml's parser does, and raises `GgufError` for what that takes badly.

    Where its own message is good (magic, version, counts below zero, duplicates, extents, offsets)
    the walk ends and ggml tells. Read in windows, not mapped: a file that shrinks meanwhile would
    end the process with SIGBUS.
    """

    WINDOW = 1 << 20
    MAX_KEY = 65535  # the format's own limit, which upstream does not hold
    MAX_NAME = 63  # GGML_MAX_NAME with its NUL
    # Upstream's limit is 2^30 elements where the rest of the file has room, which in a file of some
    # GB is nearly always. It then reads one by one, through a callback and fread
    # (gguf_reader::read), for minutes; makes all strings (32 bytes each) before it reads the first,
    # and copies them (gguf_read_emplace_helper): eight times the bytes that a lie claims. A tensor
    # costs 344 bytes (more while the vector grows) and 368 in the context, for 24 in the file.
    MAX_ITEMS, MAX_STRINGS = 1 << 22, 1 << 20
    MAX_TENSORS, MAX_KV = 1 << 17, 1 << 16
    MAX_STRING = 1 << 28

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.window = b""
        self.start = 0  # of the window, in the file
        self.at = 0
        self.alignment = 32

    def fail(self, what: str) -> NoReturn:
        raise GgufError(f"{self.path} cannot be read as GGUF: {what}. {_ADVICE}")

    def ends(self, what: str, n: int) -> NoReturn:
        # Upstream says "failed to read key-value pairs" for every place where a file may end.
        self.fail(f"{what} takes {n:,} bytes from byte {self.at:,}, the file has {self.size:,}")

    def take(self, n: int, what: str) -> int:
        """Steps over `n` bytes; gives where in the window they are."""
        at = self.at - self.start
        if at + n > len(self.window):
            if self.at + n > self.size:
                self.ends(what, n)
            self.file.seek(self.at)
            self.window, self.start, at = self.file.read(max(n, self.WINDOW)), self.at, 0
            if len(self.window) < n:
                self.ends(what, n)
        self.at += n
        return at

    def skip(self, n: int, what: str) -> None:
        if self.at + n > self.size:
            self.ends(what, n)
        self.at += n

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
        # Upstream compares whole names for duplicates, and hands them out up to the first NUL: two
        # of its names would be one here. Bytes that are no UTF-8 become the same letters, too.
        try:
            name = raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"{what} {raw[:64]!r} is not UTF-8 ({error.reason})")
        if "\0" in name:
            self.fail(f"{what} {name[:64]!r} has a NUL in it, which no name may have")
        return name

    def run(self) -> None:
        """The whole header. Returns early where ggml's parser gives a good message itself."""
        if self.size < 24:
            self.fail(f"a GGUF file has a header of 24 bytes, this one has {self.size} in all")
        at = self.take(4, "the magic")
        if self.window[at : at + 4] != b"GGUF":
            return
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
                self.fail(f"the header counts {n:,} {what}, the file's {self.size:,} bytes do not")
        for i in range(n_kv):
            if not self.pair(i):
                return
        for i in range(n_tensors):
            if not self.tensor(i):
                return
        # Upstream: "failed to seek to beginning of data section", of a truncated file as well.
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
        """One key and its value; False where the walk cannot go on."""
        key = self.name(self.MAX_KEY, f"key {i}")
        what = f"the value of {key[:64]!r}"
        type_, n, array = self.number(_I32, what), 1, False
        if type_ == enums.GgufType.ARRAY:
            array, type_, n = True, self.number(_I32, what), self.number(_U64, what)
            if type_ == enums.GgufType.ARRAY:
                self.fail(f"{what} is an array of arrays, which no reader takes")
        if type_ == enums.GgufType.STRING:
            if array:
                self.strings(n, what)
            else:
                n = self.number(_U64, what)
                # Upstream catches bad_alloc for arrays only (gguf_read_emplace_helper).
                self.skip(self.limit(n, self.MAX_STRING, f"{what} is a string of length"), what)
            return True
        if type_ not in _WIDTHS:
            return False
        nbytes = n * _WIDTHS[type_]
        if self.at + nbytes > self.size:
            self.ends(what, nbytes)
        self.limit(n, self.MAX_ITEMS, f"{what} is an array of length")
        if key == "general.alignment" and type_ == enums.GgufType.UINT32 and not array:
            self.alignment = self.number(_U32, what)
        else:
            self.skip(nbytes, what)
        return True

    def strings(self, n: int, what: str) -> None:
        """Steps over `n` strings: a vocabulary has hundreds of thousands, so without calls."""
        if self.at + 8 * n > self.size:
            self.ends(what, 8 * n)
        self.limit(n, self.MAX_STRINGS, f"{what} is an array of strings of length")
        unpack, window, at = _U64.unpack_from, self.window, self.at - self.start
        for i in range(n):
            try:
                at += 8 + unpack(window, at)[0]
            except (struct.error, OverflowError):  # behind the window
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
        """One tensor's entry; False where the walk cannot go on."""
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
            # Upstream says that the row is no multiple of 0.
            self.fail(
                f"tensor {name!r} is of type {type_}, which ggml has removed; a model file of "
                "today has it in another type"
            )
        # Upstream holds elements below 2^63 and bytes below 2^64, and skips extents of 0: offsets
        # and strides (int64 in kernels and in numpy) would wrap.
        if math.prod(max(n, 1) for n in ne) // block * lib.ggml_type_size(type_) >= 1 << 63:
            self.fail(f"tensor {name!r} with ne {ne} takes more bytes than there are addresses")
        return True


class Gguf(Handle):
    """An open GGUF file: its metadata, and by name (in the order of the file) where its `tensors`
    are. C: gguf_context"""

    __slots__ = ("__dict__", "path", "tensors")

    def __init__(self, ptr: Any, path: Path, infos: Any) -> None:
        """`infos` is the ggml context that holds the tensors' metadata; read and freed here."""
        super().__init__(ptr, lib.gguf_free)
        self.path = path
        try:
            self.tensors: dict[str, GgufTensor] = {t.name: t for t in self._read_tensors(infos)}
        finally:
            lib.ggml_free(infos)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Gguf:
        """Reads the header; data stays on disk.

        Raises `GgufError` for what is no GGUF file, or is damaged or shorter than its tensors.
        C: gguf_init_from_file
        """
        path = Path(path)
        if not path.is_file():
            raise GgufError(f"{path}: no such file")
        with path.open("rb", buffering=0) as file:
            _HeaderCheck(path, file).run()
        params = ffi.new("struct gguf_init_params *")
        infos = ffi.new("struct ggml_context **")
        params.no_alloc, params.ctx = True, infos
        mark = _log.mark()
        ptr = lib.gguf_init_from_file(os.fsencode(path), params[0])
        if ptr == NULL:
            # Each line begins with upstream's function; after the reason a summary follows.
            said = [line.partition(": ")[2] or line for line in _log.since(mark)]
            reasons = [line for line in said if not line.startswith("failed to read")]
            why = "; ".join(reasons or said) or "not a GGUF file"
            raise GgufError(f"{path} cannot be read as GGUF: {why}. {_ADVICE}")
        gguf = cls(ptr, path, infos[0])
        gguf._check_size()
        return gguf

    def __repr__(self) -> str:
        return f"<Gguf {self.path}{' closed' if self.closed else ''}>"

    def _read_tensors(self, infos: Any) -> Iterator[GgufTensor]:
        tensor = lib.ggml_get_first_tensor(infos)
        for i in range(lib.gguf_get_n_tensors(self.ptr)):
            ne = tensor.ne
            yield GgufTensor(
                text(tensor.name),
                enums.Type(tensor.type),
                (ne[0], ne[1], ne[2], ne[3]),
                self.data_offset + lib.gguf_get_tensor_offset(self.ptr, i),
                lib.ggml_nbytes(tensor),
            )
            tensor = lib.ggml_get_next_tensor(infos, tensor)

    def _check_size(self) -> None:
        size = self.path.stat().st_size
        for tensor in self.tensors.values():
            if tensor.offset + tensor.nbytes > size:
                self.close()
                raise GgufError(
                    f"{self.path} is truncated: tensor '{tensor.name}' ends at byte "
                    f"{tensor.offset + tensor.nbytes:,}, the file has {size:,}. Get it again"
                )

    @property
    def version(self) -> int:
        """C: gguf_get_version"""
        return int(lib.gguf_get_version(self.ptr))

    @property
    def alignment(self) -> int:
        """Bytes to which tensors are aligned. C: gguf_get_alignment"""
        return int(lib.gguf_get_alignment(self.ptr))

    @property
    def data_offset(self) -> int:
        """Bytes before the first tensor. C: gguf_get_data_offset"""
        return int(lib.gguf_get_data_offset(self.ptr))

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """All key-value pairs: int, float, bool, str; arrays as numpy arrays or lists of str.

        A string ends at its first NUL, as it does in llama.cpp. C: gguf_get_val_str
        """
        n = lib.gguf_get_n_kv(self.ptr)
        return {text(lib.gguf_get_key(self.ptr, i)): self._value(i) for i in range(n)}

    def _value(self, i: int) -> Any:
        type_ = enums.GgufType(lib.gguf_get_kv_type(self.ptr, i))
        if type_ == enums.GgufType.STRING:
            return text(lib.gguf_get_val_str(self.ptr, i))
        if type_ != enums.GgufType.ARRAY:
            return getattr(lib, f"gguf_get_val_{_SCALARS[type_][0]}")(self.ptr, i)
        n = lib.gguf_get_arr_n(self.ptr, i)
        item = enums.GgufType(lib.gguf_get_arr_type(self.ptr, i))
        if item == enums.GgufType.STRING:
            return [text(lib.gguf_get_arr_str(self.ptr, i, j)) for j in range(n)]
        dtype = np.dtype(_SCALARS[item][1])
        if n == 0:
            return np.empty(0, dtype)
        raw = ffi.buffer(lib.gguf_get_arr_data(self.ptr, i), n * dtype.itemsize)
        return np.frombuffer(raw, dtype).copy()

    def mmap(self) -> np.memmap[Any, np.dtype[np.uint8]]:
        """The whole file as bytes, read-only; pages are read as they are first touched."""
        return np.memmap(self.path, np.uint8, "r")


def write_gguf(
    path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Iterable[TensorEntry]
) -> None:
    """Writes a GGUF file, tensor by tensor; it appears under its name only when it is whole.

    Metadata: bool, int (u32 where it fits), float (f32), str, numpy scalars (their own type), lists
    and numpy arrays of one type. Tensors: (name, data, type, ne). Raises `GgufError` for what GGUF
    cannot hold and OSError (disk full) with nothing left behind. C: gguf_get_meta_data
    """
    path = Path(path)
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    entries = list(tensors)
    try:
        with _Header(metadata, entries) as header, part.open("wb") as out:
            out.write(header.data)
            for (name, data, type_, ne), nbytes in zip(entries, header.sizes, strict=True):
                out.write(_bytes_of(name, data, type_, ne, nbytes))
                out.write(bytes(-nbytes % header.alignment))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _bytes_of(
    name: str, data: TensorData, type_: TypeLike, ne: tuple[int, ...], nbytes: int
) -> memoryview:
    values = np.asarray(data() if callable(data) else data)
    if values.dtype == np.uint8 and values.size == nbytes:
        return np.ascontiguousarray(values).data.cast("B")
    try:
        encoded = encode(values, type_of(type_), ne[0])
    except ArgumentError as error:
        raise GgufError(f"tensor '{name}': {error}") from None
    if encoded.nbytes != nbytes:
        raise GgufError(
            f"tensor '{name}': ne {list(ne)} needs {nbytes} bytes, its data of shape "
            f"{values.shape} gives {encoded.nbytes}"
        )
    return encoded.data.cast("B")


class _Header:
    """The bytes before the first tensor."""

    def __init__(self, metadata: Mapping[str, Any], entries: list[TensorEntry]) -> None:
        self._context = Context()
        self._ptr = lib.gguf_init_empty()
        try:
            for key, value in metadata.items():
                self._set(key, value)
            infos = [self._context.new_tensor(t, *ne, name=name) for name, _data, t, ne in entries]
            for info in infos:
                lib.gguf_add_tensor(self._ptr, info.ptr)
        except BaseException:
            self.close()
            raise
        self.sizes = [info.nbytes for info in infos]
        self.alignment = int(lib.gguf_get_alignment(self._ptr))
        self.data = bytearray(lib.gguf_get_meta_size(self._ptr))
        lib.gguf_get_meta_data(self._ptr, ffi.from_buffer(self.data))

    def _set(self, key: str, value: Any) -> None:
        name = key.encode()
        alignment = int(lib.gguf_get_alignment(self._ptr))
        if key == "general.alignment" and value != alignment:
            # The setter stores the key and goes on laying out by its own: readers would be misled.
            raise GgufError(f"{key}={value}: tensors are written aligned to {alignment} bytes")
        if isinstance(value, str):
            lib.gguf_set_val_str(self._ptr, name, value.encode())
        elif isinstance(value, list | tuple) and value and isinstance(value[0], str):
            items = [ffi.new("char[]", str(item).encode()) for item in value]
            lib.gguf_set_arr_str(self._ptr, name, items, len(items))
        elif isinstance(value, list | tuple | np.ndarray):
            array = np.ascontiguousarray(value)
            if isinstance(value, list | tuple):
                array = _compact(array)
            data = ffi.from_buffer(array) if array.size else NULL
            lib.gguf_set_arr_data(self._ptr, name, _kind(key, array.dtype), data, array.size)
        else:
            scalar = value if isinstance(value, np.generic) else _compact(np.asarray(value))[()]
            suffix = _SCALARS[_kind(key, scalar.dtype)][0]
            getattr(lib, f"gguf_set_val_{suffix}")(self._ptr, name, scalar.item())

    def __enter__(self) -> _Header:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        lib.gguf_free(self._ptr)
        self._context.close()


def _kind(key: str, dtype: np.dtype[Any]) -> enums.GgufType:
    if dtype not in _BY_DTYPE:
        raise GgufError(
            f"metadata '{key}': GGUF has no {dtype}; use bool, int, float, str or one list type"
        )
    return _BY_DTYPE[dtype]


def _compact(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Python's wide numbers as GGUF files have them: f32, u32 or i32 where they fit."""
    if values.dtype == np.float64:
        return values.astype(np.float32)
    if values.dtype == np.int64:
        if values.size and values.min() < 0 and values.min() >= -(2**31) and values.max() < 2**31:
            return values.astype(np.int32)
        if values.ndim and (not values.size or values.max() < 2**31):
            return values.astype(np.int32)
        if values.size and values.min() >= 0 and values.max() < 2**32:
            return values.astype(np.uint32)
    return values

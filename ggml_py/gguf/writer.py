"""Writes GGUF files: ggml makes the header, and the tensors are streamed after it."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from .. import enums
from ..boundary.arguments import describe
from ..boundary.ffi import NULL, ffi, lib
from ..errors import ArgumentError, GgufError
from ..files.bounds import HEADER_STRINGS
from ..files.writing import whole_file
from ..graphs.context import Context
from ..tensors.convert import TypeLike, check_part, check_shape, encode, type_of
from ..typed import has_values, typed
from .header import HeaderCheck
from .reader import SCALARS

if TYPE_CHECKING:
    import numpy.typing as npt

# One tensor for `write_gguf`: name, data, type, ne. A piece of data is an array (converted to the
# type) or raw bytes of the type (bytes or uint8), in whole rows. The data is a piece, an iterator
# of pieces, or a function that returns a piece or an iterator when it is the tensor's turn.
Piece: TypeAlias = "npt.ArrayLike | bytes"
TensorData: TypeAlias = "Piece | Iterator[Piece] | Callable[[], Piece | Iterator[Piece]]"
TensorEntry: TypeAlias = "tuple[str, TensorData, TypeLike, Sequence[int]]"

_BY_DTYPE = {np.dtype(dtype): type_ for type_, (_suffix, dtype) in SCALARS.items()}
_ALIGNMENT = "general.alignment"
_ALIGNMENTS = (8, 1 << 24)  # the format requires a multiple of 8; padding is made in memory


@typed("path")
def write_gguf(
    path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Iterable[TensorEntry]
) -> None:
    """Writes a GGUF file, tensor by tensor. The file appears under its name only when it is
    complete. It replaces a file of that name; processes that have the old file open keep it.

    Metadata: bool, int, float, str, numpy scalars, and lists and numpy arrays of one of these
    types. An int becomes the first of u32, i32, i64, u64 that fits; in a list ints become i32 if
    all fit. A float becomes f32 if it fits, else f64. Numpy scalars keep their type.
    "general.alignment", a power of two from 8 on, aligns the tensors. Strings must not contain NUL,
    because readers stop there. Arrays must be flat.

    Tensors: (name, data, type, ne), with data as an array, bytes, an iterator of pieces, or a
    function that returns one of these. Only one piece at a time is in memory.

    Raises `GgufError` for data that GGUF cannot hold, and OSError (disk full), leaving nothing
    behind. C: gguf_get_meta_data
    """
    path = Path(path)
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a dict, got {describe(metadata)}")
    if path.is_dir():
        raise GgufError(f"{path} is a folder, expected a file name")
    if not has_values(tensors):
        raise TypeError(f"tensors: expected (name, data, type, ne), .., got {describe(tensors)}")
    entries = [_entry(entry) for entry in tensors]
    with whole_file(path) as out, _Header(metadata, entries, out) as header:
        out.write(header.data)
        for (name, data, type_, ne), nbytes in zip(entries, header.sizes, strict=True):
            for piece in _pieces(name, data, type_, ne, nbytes):
                out.write(piece)
            out.write(bytes(-nbytes % header.alignment))


def _entry(entry: TensorEntry) -> tuple[str, TensorData, enums.Type, tuple[int, ...]]:
    if not isinstance(entry, tuple | list) or len(entry) != 4:
        raise GgufError(f"tensor {entry!r:.80}: expected (name, data, type, ne)")
    name, data, type_, ne = entry
    if not isinstance(name, str):
        raise GgufError(f"tensor name {name!r}: expected a str")
    try:
        return name, data, type_of(type_), tuple(ne)
    except (ArgumentError, TypeError) as error:
        raise GgufError(f"tensor '{name}': {error}") from None


def _pieces(
    name: str, data: TensorData, type_: enums.Type, ne: tuple[int, ...], nbytes: int
) -> Iterator[memoryview]:
    """The tensor's bytes, piece by piece. Raises `GgufError` unless they are exactly `nbytes`."""
    made = data() if callable(data) else data
    written = 0
    for piece in made if isinstance(made, Iterator) else (made,):
        encoded = _encoded(name, piece, type_, ne, nbytes, None if piece is made else written)
        written += encoded.nbytes
        if written > nbytes:
            break
        yield encoded.data.cast("B")
    if written != nbytes:
        gives = f"gives {'at least ' if written > nbytes else ''}{written}"
        raise GgufError(f"tensor '{name}': ne {list(ne)} needs {nbytes} bytes, its data {gives}")


def _encoded(
    name: str, piece: Any, type_: enums.Type, ne: tuple[int, ...], nbytes: int, at: int | None
) -> npt.NDArray[Any]:
    """The bytes of a piece at byte `at` of the tensor; at=None means the whole tensor."""
    if isinstance(piece, bytes | bytearray | memoryview):
        return np.frombuffer(piece, np.uint8)
    values = np.asarray(piece)
    # ggml has no uint8 type, so these are bytes already: of the whole tensor, or of whole rows.
    row = lib.ggml_row_size(type_, ne[0])
    if values.dtype == np.uint8 and (
        values.size == nbytes or (at is not None and row and values.size % row == 0)
    ):
        return np.ascontiguousarray(values)
    if values.dtype.kind not in "biuf":
        raise GgufError(f"tensor '{name}': data of type {values.dtype}, expected numbers")
    try:
        if at is None:
            check_shape(f"tensor '{name}'", values.shape, ne)
        else:
            offset = at * lib.ggml_blck_size(type_) // lib.ggml_type_size(type_)
            check_part(f"tensor '{name}'", values.shape, ne, offset)
    except ArgumentError as error:
        raise GgufError(str(error)) from None
    try:
        return encode(values, type_, ne[0])
    except ArgumentError as error:
        raise GgufError(f"tensor '{name}': {error}") from None


class _Header:
    """The bytes before the first tensor."""

    def __init__(
        self,
        metadata: Mapping[str, Any],
        entries: Sequence[tuple[str, Any, enums.Type, tuple[int, ...]]],
        scratch: BinaryIO,
    ) -> None:
        _check_names([name for name, *_rest in entries])
        self._context = Context()
        self._ptr = NULL
        try:
            self._ptr = _new_native(metadata.get(_ALIGNMENT, 32), scratch)
            for key, value in metadata.items():
                self._set(key, value)
            infos = [self._info(name, type_, ne) for name, _data, type_, ne in entries]
            for info in infos:
                lib.gguf_add_tensor(self._ptr, info.ptr)
            self.sizes = [info.nbytes for info in infos]
            self.alignment = int(lib.gguf_get_alignment(self._ptr))
            self.data = bytearray(lib.gguf_get_meta_size(self._ptr))
            lib.gguf_get_meta_data(self._ptr, ffi.from_buffer(self.data))
        except BaseException:
            self.close()
            raise

    def _info(self, name: str, type_: enums.Type, ne: tuple[int, ...]) -> Any:
        try:
            return self._context.new_tensor(type_, *ne, name=name)
        except (ArgumentError, TypeError) as error:
            raise GgufError(f"tensor '{name}': {error}") from None

    def _set(self, key: str, value: Any) -> None:
        name = _key(key)
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if isinstance(value, str):
            lib.gguf_set_val_str(self._ptr, name, _string(key, value))
        elif isinstance(value, list | tuple | np.ndarray):
            if _is_text(value):
                _limit(key, len(value), HEADER_STRINGS)
                texts = [ffi.new("char[]", _string(key, str(item))) for item in value]
                lib.gguf_set_arr_str(self._ptr, name, texts, len(texts))
                return
            array = _array(key, value)
            _limit(key, array.size, HeaderCheck.MAX_ITEMS)
            data = ffi.from_buffer(array) if array.size else NULL
            lib.gguf_set_arr_data(self._ptr, name, _kind(key, array.dtype), data, array.size)
        else:
            scalar = _scalar(key, value)
            suffix = SCALARS[_kind(key, scalar.dtype)][0]
            getattr(lib, f"gguf_set_val_{suffix}")(self._ptr, name, scalar.item())

    def __enter__(self) -> _Header:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        lib.gguf_free(self._ptr)
        self._context.close()


def _new_native(alignment: Any, scratch: BinaryIO) -> Any:
    """An empty gguf_context that aligns tensors to `alignment`.

    Setting the key is not enough: upstream stores it and still aligns to 32 (gguf_set_val_u32). Its
    reader applies the key, so an empty file with it is written to `scratch` and read.
    """
    least, most = _ALIGNMENTS
    if (
        isinstance(alignment, bool | np.bool_)
        or not isinstance(alignment, int | np.integer)
        or not least <= alignment <= most
        or alignment & (alignment - 1)
    ):
        raise GgufError(
            f"{_ALIGNMENT}={alignment!r}: expected a power of two from {least} to {most:,}"
        )
    empty = lib.gguf_init_empty()
    if alignment == lib.gguf_get_alignment(empty):
        return empty
    try:
        lib.gguf_set_val_u32(empty, _ALIGNMENT.encode(), int(alignment))
        data = bytearray(lib.gguf_get_meta_size(empty))
        lib.gguf_get_meta_data(empty, ffi.from_buffer(data))
    finally:
        lib.gguf_free(empty)
    scratch.write(data.ljust(-(-len(data) // int(alignment)) * int(alignment), b"\0"))
    scratch.flush()
    params = ffi.new("struct gguf_init_params *")
    params.no_alloc = True
    ptr = lib.gguf_init_from_file(os.fsencode(scratch.name), params[0])
    scratch.seek(0)
    scratch.truncate()
    if ptr == NULL:
        raise GgufError(f"{_ALIGNMENT}={alignment}: this release of ggml rejects it")
    return ptr


def _key(key: object) -> bytes:
    if isinstance(key, str):
        with contextlib.suppress(UnicodeEncodeError):
            name = key.encode()
            if b"\0" not in name and 0 < len(name) <= HeaderCheck.MAX_KEY:
                return name
    raise GgufError(
        f"metadata key {key!r:.80}: expected 1 to {HeaderCheck.MAX_KEY:,} bytes of text without NUL"
    )


def _string(key: str, value: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise GgufError(
            f"metadata '{key}': {value[:64]!r} is not valid Unicode text ({error})"
        ) from None
    if b"\0" in raw:
        raise GgufError(
            f"metadata '{key}': {value[:64]!r} contains a NUL, where ggml's readers stop"
        )
    _limit(key, len(raw), HeaderCheck.MAX_STRING)
    return raw


def _limit(key: str, n: int, most: int) -> None:
    if n > most:
        raise GgufError(f"metadata '{key}' has a length of {n:,}, expected at most {most:,}")


def _is_text(value: Any) -> bool:
    """Whether a list or an array consists of strings."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return value.dtype.kind in "UT" and value.ndim == 1
    return len(value) > 0 and all(isinstance(item, str) for item in value)


def _check_names(names: list[str]) -> None:
    """Raises `GgufError` for names that ggml would cut (too long, or with a NUL), and for
    duplicates: the file would have other tensors."""
    for name in names:
        raw = name.encode(errors="replace")
        if not name or "\0" in name or len(raw) >= lib.GGML_MAX_NAME or raw.decode() != name:
            raise GgufError(
                f"tensor name {name!r}: expected 1 to {lib.GGML_MAX_NAME - 1} bytes without NUL"
            )
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise GgufError(f"tensor name '{twice}' is given twice; names must be unique in a file")


def _kind(key: str, dtype: np.dtype[Any]) -> enums.GgufType:
    if dtype not in _BY_DTYPE:
        raise GgufError(
            f"metadata '{key}': GGUF has no {dtype}; use bool, int, float, str or one list type"
        )
    return _BY_DTYPE[dtype]


def _scalar(key: str, value: Any) -> Any:
    """A numpy scalar with the type that a Python number gets in GGUF."""
    if isinstance(value, np.generic):
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return _dtype_of_ints(key, (value,), (np.uint32, np.int32, np.int64, np.uint64))(value)
    if isinstance(value, float):
        return _dtype_of_floats((value,))(value)
    raise GgufError(
        f"metadata '{key}': a {type(value).__name__}, expected bool, int, float, str, or a list of "
        "one of these"
    )


def _array(key: str, value: Any) -> npt.NDArray[Any]:
    """A flat numpy array of one of GGUF's types, in this machine's byte order."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise GgufError(
                f"metadata '{key}': an array of {value.ndim} dimensions, but no reader accepts "
                "arrays of arrays. Flatten it"
            )
        _kind(key, value.dtype.newbyteorder("="))
        return np.ascontiguousarray(value, value.dtype.newbyteorder("="))
    types = {type(item) for item in value}
    if not types:
        raise GgufError(
            f"metadata '{key}': an empty list has no item type; give an empty numpy array, such as "
            "np.empty(0, np.int32) or np.empty(0, str)"
        )
    if any(issubclass(t, np.generic) for t in types) and len(types) == 1:
        return np.array(value)
    if types == {bool}:
        return np.array(value, np.bool_)
    if all(issubclass(t, int) and t is not bool for t in types):
        return np.array(value, _dtype_of_ints(key, value, (np.int32, np.int64, np.uint64)))
    if all(issubclass(t, int | float) and t is not bool for t in types):
        return np.array(value, _dtype_of_floats([float(item) for item in value]))
    names = ", ".join(sorted(t.__name__ for t in types))
    raise GgufError(
        f"metadata '{key}': a list of {names}; expected items of one type: bool, int, float or str"
        " (no reader accepts arrays of arrays)"
    )


def _dtype_of_ints(key: str, values: Sequence[int], dtypes: Sequence[Any]) -> Any:
    """The first of `dtypes` that holds all values."""
    low, high = min(values), max(values)
    for dtype in dtypes:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return dtype
    raise GgufError(f"metadata '{key}': {low if low < 0 else high} is beyond 64 bits")


def _dtype_of_floats(values: Sequence[float]) -> Any:
    """f32, unless a finite number would become infinite."""
    wide = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    return np.float32 if np.array_equal(np.isinf(narrow), np.isinf(wide)) else np.float64

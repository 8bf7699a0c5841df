"""GGUF files: metadata and tensors of a model, read with ggml's own parser and by mmap; written."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import _log, enums
from ._ffi import NULL, ffi, lib, text
from ._gguf_header import ADVICE, HeaderCheck
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
    def open(cls, path: str | os.PathLike[str], *, part: bool = False) -> Gguf:
        """Reads the header; data stays on disk. `part` allows one part of a split model by itself.

        Raises `GgufError` for what is no GGUF file, or is damaged or shorter than its tensors, and
        for a part of a split model: the message names the parts that are missing.
        C: gguf_init_from_file
        """
        path = Path(path)
        if not path.is_file():
            raise GgufError(f"{path}: no such file")
        with path.open("rb", buffering=0) as file:
            HeaderCheck(path, file).run()
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
            raise GgufError(f"{path} cannot be read as GGUF: {why}. {ADVICE}")
        gguf = cls(ptr, path, infos[0])
        try:
            gguf._check_size()
            if not part:
                gguf._check_split()
        except GgufError:
            gguf.close()
            raise
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
                raise GgufError(
                    f"{self.path} is truncated: tensor '{tensor.name}' ends at byte "
                    f"{tensor.offset + tensor.nbytes:,}, the file has {size:,}. Get it again"
                )

    def _check_split(self) -> None:
        key = lib.gguf_find_key(self.ptr, b"split.count")
        n = self._value(key) if key >= 0 else 0
        if not isinstance(n, int) or n < 2:
            return
        name = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", self.path.name)
        if name is None or int(name[3]) != n:
            raise GgufError(
                f"{self.path} is one of {n:,} parts of a split model (split.count), but its name "
                f"is not NAME-00001-of-{n:05}.gguf, so the others cannot be found. Name it so again"
            )
        parts = [f"{name[1]}-{i:05}-of-{n:05}.gguf" for i in range(1, n + 1)]
        missing = [part for part in parts if not (self.path.parent / part).is_file()]
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" * (len(missing) > 3))
            what = f"{shown} is not beside it: get that too, and join them"
        else:
            what = "all are there: join them"
        raise GgufError(
            f"{self.path} is part {int(name[2])} of {n} of a split model; {what} with "
            f"`llama-gguf-split --merge {parts[0]} {name[1]}.gguf`"
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
            _check_names([name for name, *_rest in entries])
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
        if not name or b"\0" in name:
            raise GgufError(f"metadata key {key!r}: expected some text, without NUL")
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


def _check_names(names: list[str]) -> None:
    """ggml would cut a long name short and end at a NUL, and the file would have another tensor."""
    for name in names:
        if not name or "\0" in name or len(name.encode()) >= lib.GGML_MAX_NAME:
            raise GgufError(
                f"tensor name {name!r}: expected 1 to {lib.GGML_MAX_NAME - 1} bytes without NUL"
            )
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise GgufError(f"tensor name '{twice}' is given twice; names are unique in a file")


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

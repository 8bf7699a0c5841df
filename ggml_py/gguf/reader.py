"""Reads GGUF files: metadata with ggml's own parser, tensors by mmap."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import enums
from .. import log as _log
from ..boundary.arguments import integer
from ..boundary.ffi import BUILD, NULL, ffi, lib, sole_pointer, text
from ..boundary.handle import Handle
from ..boundary.mapped import Stamp, map_file
from ..errors import AbortError, GgufError
from ..files.reading import open_file
from ..files.similar import meant_file
from ..typed import typed
from . import split_files as _gguf_split
from .header import ADVICE, HeaderCheck

if TYPE_CHECKING:
    import numpy.typing as npt

SCALARS: dict[enums.GgufType, tuple[str, Any]] = {
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


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a file: `ne` in ggml's order, `offset` in bytes from the start of the file. In
    a split model that is the file of its `part` (from 0)."""

    name: str
    type: enums.Type
    ne: tuple[int, int, int, int]
    offset: int
    nbytes: int
    part: int = 0


class Gguf(Handle):
    """An open GGUF file, made by `Gguf.open`: its metadata, and the places of its `tensors` by name
    (in file order). For a split model, `paths` are all parts and the metadata is the first part's.
    C: gguf_context"""

    __slots__ = ("__dict__", "_opened", "path", "paths", "tensors")

    def __init__(self, ptr: Any, path: Path, infos: Any) -> None:
        """`infos` is the ggml context with the tensors' metadata. It is read and freed here."""
        super().__init__(sole_pointer(self, ptr), lib.gguf_free)
        self.path = path
        self.paths: tuple[Path, ...] = (path,)
        self._opened: tuple[Stamp, ...] = ()
        try:
            self.tensors: dict[str, GgufTensor] = {t.name: t for t in self._read_tensors(infos)}
        finally:
            lib.ggml_free(infos)

    @classmethod
    @typed
    def open(
        cls, path: str | os.PathLike[str], *, part: bool = False, header_only: bool = False
    ) -> Gguf:
        """Reads the header; the data stays on disk. The first part of a split model
        ("x-00001-of-00003.gguf") opens all parts as one file; part=True opens one part by itself.
        With `header_only` files may end after their headers: their data is not needed.

        Raises `GgufError` if it is not a GGUF file, or is damaged or shorter than its tensors, and
        if parts are missing (the message names them) or do not belong together.
        C: gguf_init_from_file
        """
        path = Path(path)
        gguf = cls._open_file(path)
        try:
            if not header_only:
                gguf._check_size()
            if not part:
                gguf._join(header_only)
        except BaseException:
            gguf.close()
            raise
        return gguf

    @classmethod
    def _open_file(cls, path: Path) -> Gguf:
        if not path.is_file():
            raise GgufError(_no_file(path))
        try:
            with open_file(path) as file:
                opened = Stamp.of(file)
                HeaderCheck(path, file).run()
        except ValueError as error:
            raise error if isinstance(error, GgufError) else GgufError(str(error)) from None
        params = ffi.new("struct gguf_init_params *")
        infos = ffi.new("struct ggml_context **")
        params.no_alloc, params.ctx = True, infos
        mark = _log.mark()
        try:
            ptr = lib.gguf_init_from_file(os.fsencode(path), params[0])
        except AbortError as error:  # older parsers assert something that HeaderCheck leaves out
            raise GgufError(
                f"{path} cannot be read as GGUF: the parser of ggml {BUILD['label']} fails on it: "
                f"{error.condition}. {ADVICE}"
            ) from error
        if ptr == NULL:
            # Each line begins with upstream's function name. A summary follows the reason.
            said = [line.partition(": ")[2] or line for line in _log.since(mark)]
            reasons = [line for line in said if not line.startswith("failed to read")]
            why = "; ".join(reasons or said) or "not a GGUF file"
            raise GgufError(f"{path} cannot be read as GGUF: {why}. {ADVICE}")
        gguf = cls(ptr, path, infos[0])
        gguf._opened = (opened,)
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
        size = self._opened[0].size
        if self.tensors and size <= self.data_offset:
            raise GgufError(
                f"{self.path} is truncated: it has only its header and no weights, which is enough "
                "for plans but not to run it. Get it again"
            )
        for tensor in self.tensors.values():
            if tensor.offset + tensor.nbytes > size:
                raise GgufError(
                    f"{self.path} is truncated: tensor '{tensor.name}' ends at byte "
                    f"{tensor.offset + tensor.nbytes:,}, the file has {size:,}. Get it again"
                )

    def _join(self, header_only: bool) -> None:
        """Adds the tensors of the other parts if this is the first part of a split model."""
        no, count, total = self._split()
        paths = _gguf_split.paths_of(self.path, no, count)
        for i, path in enumerate(paths[1:], 1):
            with Gguf.open(path, part=True, header_only=header_only) as other:
                _gguf_split.check_place(path, *other._split()[:2], i, len(paths))
                for name, tensor in other.tensors.items():
                    if name in self.tensors:
                        raise GgufError(
                            f"tensor '{name}' is in {paths[self.tensors[name].part]} and in {path}:"
                            " the parts do not belong together. Get all parts again"
                        )
                    self.tensors[name] = replace(tensor, part=i)
                self._opened += other._opened
        if len(paths) > 1:
            _gguf_split.check_total(self.path, total, len(self.tensors), len(paths))
        self.paths = paths

    def _split(self) -> tuple[Any, Any, Any]:
        """The split.* metadata of a part of a split model; None for absent keys."""
        names = (b"split.no", b"split.count", b"split.tensors.count")
        keys = [lib.gguf_find_key(self.ptr, name) for name in names]
        no, count, total = [self._value(key) if key >= 0 else None for key in keys]
        return no, count, total

    @property
    def version(self) -> int:
        """C: gguf_get_version"""
        return int(lib.gguf_get_version(self.ptr))

    @property
    def alignment(self) -> int:
        """The alignment of tensors in bytes. C: gguf_get_alignment"""
        return int(lib.gguf_get_alignment(self.ptr))

    @property
    def data_offset(self) -> int:
        """The offset of the first tensor in bytes. C: gguf_get_data_offset"""
        return int(lib.gguf_get_data_offset(self.ptr))

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """All key-value pairs: int, float, bool, str; arrays as numpy arrays or lists of str.

        A string ends at its first NUL, as it does in llama.cpp. C: gguf_get_val_str
        """
        ptr = self.ptr  # held: keys and values are in its memory
        n = lib.gguf_get_n_kv(ptr)
        return {text(lib.gguf_get_key(ptr, i)): self._value(i) for i in range(n)}

    def _value(self, i: int) -> Any:
        type_ = enums.GgufType(lib.gguf_get_kv_type(self.ptr, i))
        if type_ == enums.GgufType.STRING:
            ptr = self.ptr
            return text(lib.gguf_get_val_str(ptr, i))
        if type_ != enums.GgufType.ARRAY:
            return getattr(lib, f"gguf_get_val_{SCALARS[type_][0]}")(self.ptr, i)
        n = lib.gguf_get_arr_n(self.ptr, i)
        item = enums.GgufType(lib.gguf_get_arr_type(self.ptr, i))
        if item == enums.GgufType.STRING:
            # Does what `text` does, without a call: a vocabulary has hundreds of thousands.
            ptr, get, string = self.ptr, lib.gguf_get_arr_str, ffi.string
            return [string(get(ptr, i, j)).decode("utf-8", "replace") for j in range(n)]
        dtype = np.dtype(SCALARS[item][1])
        if n == 0:
            return np.empty(0, dtype)
        ptr = self.ptr
        raw = ffi.buffer(lib.gguf_get_arr_data(ptr, i), n * dtype.itemsize)
        return np.frombuffer(raw, dtype).copy()

    @property
    def _stamps(self) -> tuple[Stamp, ...]:
        """What identifies its files: equal for two readers if nothing was written in between."""
        return tuple(self._opened)

    def check_unchanged(self) -> None:
        """Raises `DamagedFileError` if a file was written to since it was opened. A file that was
        deleted or replaced is fine: existing mappings keep the old one."""
        for path, opened in zip(self.paths, self._opened, strict=True):
            with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
                if Stamp.of(file).inode == opened.inode:
                    opened.check(file, path)

    def mmap(self, part: int = 0) -> np.memmap[Any, np.dtype[np.uint8]]:
        """Maps the whole file (one part of a split model) as read-only bytes. Pages are read when
        they are first touched.

        Raises `AllocError` if the process cannot get that much address space, `DamagedFileError`
        if the file has changed since it was opened. Later reads of bytes that the file has lost
        raise it too. A deleted file stays readable."""
        part = integer("part", part, 0, len(self.paths) - 1)
        return map_file(self.paths[part], self._opened[part])

    @typed
    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, mapped read-only; `numpy.frombuffer` turns them into numbers.

        Raises KeyError for an unknown name, otherwise the errors of `mmap`.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise KeyError(f"no tensor named '{name}' in {self.path}")
        self.ptr  # noqa: B018  raises when closed
        if tensor.nbytes == 0:
            return np.empty(0, np.uint8)
        path, opened = self.paths[tensor.part], self._opened[tensor.part]
        return map_file(path, opened, tensor.offset, tensor.nbytes)


def _no_file(path: Path) -> str:
    """Why `path` is not a file."""
    if path.is_dir():
        models = sorted(file.name for file in path.glob("*.gguf"))
        there = f" that has {', '.join(models[:3])}" if models else ""
        return f"{path} is a folder{there}: give the path of a GGUF file"
    if path.exists():
        return f"{path} is not a regular file, so it cannot be mapped: copy it to one"
    return f"{path}: no such file: expected a GGUF file{meant_file(path)}"

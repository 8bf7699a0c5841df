"""Tensors: borrowed from their context, read and written with numpy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import enums
from ._arguments import c_text, given, ptr_of, whole
from ._ffi import NULL, ffi, lib, text
from .errors import AbortError, AllocError, ArgumentError, NoDataError
from .loan import lender_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from .buffer import Buffer, BufferView

TypeLike: TypeAlias = "enums.Type | int | str | npt.DTypeLike"

_DTYPES: dict[enums.Type, np.dtype[Any]] = {
    enums.Type.F32: np.dtype(np.float32),
    enums.Type.F16: np.dtype(np.float16),
    enums.Type.F64: np.dtype(np.float64),
    enums.Type.I8: np.dtype(np.int8),
    enums.Type.I16: np.dtype(np.int16),
    enums.Type.I32: np.dtype(np.int32),
    enums.Type.I64: np.dtype(np.int64),
}
_TYPES = {dtype: type_ for type_, dtype in _DTYPES.items()}
_NAMES: dict[str, enums.Type] = {}
_BY_NUMBER = {int(t): t for t in enums.Type if t.name != "COUNT"}


def _type_names() -> dict[str, enums.Type]:
    if not _NAMES:
        for type_ in enums.Type:
            if type_.name != "COUNT":
                _NAMES[type_.name.lower()] = type_
                _NAMES[text(lib.ggml_type_name(type_)).lower()] = type_
        _NAMES.pop("", None)
    return _NAMES


def type_of(value: TypeLike) -> enums.Type:
    """ggml's type for a name ("q4_0"), an `enums.Type`, its number, or a numpy dtype."""
    if isinstance(value, enums.Type) and value != enums.Type.COUNT:
        return value
    if isinstance(value, str) and value.lower() in _type_names():
        return _type_names()[value.lower()]
    try:
        if isinstance(value, int) or value is None:  # numpy takes None for float64
            return _BY_NUMBER[value]
        return _TYPES[np.dtype(value)]
    except (TypeError, KeyError):
        names = ", ".join(sorted(t.name.lower() for t in enums.Type if t.name != "COUNT"))
        raise ArgumentError(f"type {value!r}: expected one of {names}, or its dtype") from None


def enum_of(enum: Any, value: Any) -> int:
    """A member of a ggml enum by itself, its number or its name in any case."""
    if isinstance(value, str):
        if value.upper() not in enum.__members__:
            names = ", ".join(m.lower() for m in enum.__members__)
            raise ArgumentError(f"{enum.__name__} {value!r}: expected one of {names}")
        return int(enum[value.upper()])
    try:
        return int(enum(whole(enum.__name__, value)))
    except ValueError:
        numbers = ", ".join(f"{m.name.lower()} ({m.value})" for m in enum)
        raise ArgumentError(f"{enum.__name__} {value}: expected one of {numbers}") from None


class Tensor:
    """One tensor of a context: a leaf with data, or the result of an op.

    Shapes are ggml's: `ne` has always four numbers, ne0 is the contiguous one; numpy's shape is the
    reverse. Two Tensors are equal when they are the same native tensor.
    """

    __slots__ = ("_context", "_ptr")
    _context: Any  # a Context; ops.py, which sets it, knows only its base

    def __init__(self, ptr: Any, context: Any) -> None:
        self._ptr = ptr
        self._context = context

    @property
    def ptr(self) -> Any:
        """The native `struct ggml_tensor *`. Raises `ClosedError` after its context was closed."""
        self._context.ptr  # noqa: B018
        return self._ptr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and bool(self._ptr == other._ptr)

    def __hash__(self) -> int:
        return hash(self._ptr)

    def __repr__(self) -> str:
        if self._context.closed:
            return "<Tensor of a closed Context>"
        ne = ", ".join(map(str, self.ne))
        op = "" if self.op == enums.Op.NONE else f" = {text(lib.ggml_op_desc(self.ptr))}"
        return f"<Tensor {self.name!r} {self.type.name.lower()} [{ne}]{op}>"

    @property
    def name(self) -> str:
        """At most 63 bytes of UTF-8. C: ggml_set_name"""
        return text(self.ptr.name)

    @name.setter
    def name(self, name: str) -> None:
        lib.ggml_set_name(self.ptr, c_text("name", name))

    @property
    def type(self) -> enums.Type:
        """Element type."""
        return enums.Type(self.ptr.type)

    @property
    def ne(self) -> tuple[int, int, int, int]:
        """Number of elements per dimension."""
        ne = self.ptr.ne
        return (ne[0], ne[1], ne[2], ne[3])

    @property
    def nb(self) -> tuple[int, int, int, int]:
        """Stride in bytes per dimension."""
        nb = self.ptr.nb
        return (nb[0], nb[1], nb[2], nb[3])

    @property
    def op(self) -> enums.Op:
        """The op that computes it; NONE for a leaf."""
        return enums.Op(self.ptr.op)

    @property
    def flags(self) -> enums.TensorFlag:
        """INPUT, OUTPUT, PARAM, LOSS, COMPUTE."""
        return enums.TensorFlag(self.ptr.flags)

    @property
    def src(self) -> tuple[Tensor, ...]:
        """Its sources, in upstream's order, absent ones left out."""
        mine = self._context
        return tuple(Tensor(s, lender_of(s, mine)) for s in self.ptr.src if s != NULL)

    @property
    def view_src(self) -> Tensor | None:
        """The tensor whose memory it is a view of."""
        return None if self.ptr.view_src == NULL else Tensor(self.ptr.view_src, self._context)

    @property
    def view_offs(self) -> int:
        """Bytes from the start of `view_src`."""
        return int(self.ptr.view_offs)

    @property
    def buffer(self) -> BufferView | None:
        """The buffer that it lives in; None while it is not allocated."""
        from .buffer import BufferView

        return None if self._buffer() == NULL else BufferView(self)

    def _buffer(self) -> Any:
        ptr = self.ptr
        return ptr.view_src.buffer if ptr.view_src != NULL else ptr.buffer

    def _data_buffer(self) -> Any:
        self._data()
        return self._buffer()

    @property
    def nbytes(self) -> int:
        """Bytes from its first to its last element. C: ggml_nbytes"""
        return int(lib.ggml_nbytes(self.ptr))

    @property
    def n_elements(self) -> int:
        """C: ggml_nelements"""
        return int(lib.ggml_nelements(self.ptr))

    @property
    def is_contiguous(self) -> bool:
        """C: ggml_is_contiguous"""
        return bool(lib.ggml_is_contiguous(self.ptr))

    def set_input(self) -> None:
        """Marks it as an input of the graph: the scheduler puts it on the last backend and
        allocates it first. Set it before every compute: later nodes may reuse its memory.

        C: ggml_set_input
        """
        lib.ggml_set_input(self.ptr)

    def set_output(self) -> None:
        """Marks it as an output: its memory is not reused before the graph ends.

        C: ggml_set_output
        """
        lib.ggml_set_output(self.ptr)

    def set_param(self) -> None:
        """Marks it as a parameter: `Graph.build_backward_expand` and `OptContext` train it.

        Raises `ArgumentError` for the result of an op. C: ggml_set_param
        """
        if self.op != enums.Op.NONE:
            raise ArgumentError(f"{self!r} is computed: expected a tensor that is no op's result")
        lib.ggml_set_param(self.ptr)

    def set_loss(self) -> None:
        """Marks it as a loss: what gradients are of. Raises `ArgumentError` for one that is no
        scalar of f32. C: ggml_set_loss
        """
        if self.n_elements != 1 or self.type != enums.Type.F32:
            raise ArgumentError(f"{self!r}: expected a scalar of f32, such as the result of sum()")
        lib.ggml_set_loss(self.ptr)

    def alloc(self, buffer: Buffer, offset: int = 0) -> None:
        """Puts the tensor at `offset` (bytes) of a buffer; nobody looks whether others are there.

        Data of `from_numpy` is copied in. The context keeps the buffer, and does not close it.
        Raises `ArgumentError` for a tensor that has memory or is a view, an offset that is not
        aligned to `buffer.type.alignment`, and a place that is outside of the buffer; `AllocError`
        when the backend refuses.
        C: ggml_backend_tensor_alloc
        """
        from .buffer import Buffer

        self._check_without_memory()
        ptr, place, offset = self.ptr, ptr_of(Buffer, buffer), whole("offset", offset)
        base = ffi.cast("char *", lib.ggml_backend_buffer_get_base(place))
        alignment = buffer.type.alignment
        if base == NULL or offset % alignment:
            raise ArgumentError(f"offset {offset}: expected a multiple of {alignment} in {buffer}")
        need = buffer.alloc_size(self)
        if offset + need > buffer.size:
            raise ArgumentError(
                f"tensor '{self.name}' takes {need:,} bytes: from {offset:,} on they are not all "
                f"in {buffer}"
            )
        self._placed(buffer, lib.ggml_backend_tensor_alloc(place, ptr, base + offset))

    def _check_without_memory(self) -> None:
        ptr = self.ptr
        if ptr.data != NULL or ptr.buffer != NULL or ptr.view_src != NULL:
            has = "is a view" if ptr.view_src != NULL else "has memory already"
            raise ArgumentError(f"tensor '{self.name}' {has}: expected one without")

    def _placed(self, buffer: Buffer, status: int) -> None:
        """After it was put into `buffer`, with the status that upstream returned."""
        if status != enums.Status.SUCCESS:
            self._ptr.buffer = self._ptr.data = NULL
            reason = text(lib.ggml_status_to_string(status))
            raise AllocError(f"tensor '{self.name}' cannot be in {buffer}: {reason}")
        self._context._place(self, buffer)

    # --- data

    def _data(self) -> Any:
        ptr = self.ptr
        if self._buffer() == NULL or ptr.data == NULL:
            raise NoDataError(
                f"tensor '{self.name}' has no memory: allocate its context (Context.alloc) or its "
                "graph (Scheduler.alloc_graph) first; a scheduler's reset() takes memory back"
            )
        return ptr

    def _shape(self) -> tuple[int, ...]:
        n_dims = lib.ggml_n_dims(self.ptr)
        return tuple(reversed(self.ne[:n_dims]))

    def set(self, array: npt.ArrayLike, offset: int = 0) -> None:
        """Copies `array` into the tensor, converting (and quantising) to its type.

        The array's shape is the reverse of `ne`, or any shape with as many elements. With `offset`
        (in elements) only part of the tensor is written. Raises `ArgumentError` for a wrong number
        of elements, `NoDataError` before allocation.
        C: ggml_backend_tensor_set
        """
        ptr, offset = self._data(), whole("offset", offset)
        if not self.is_contiguous:
            raise ArgumentError(f"tensor '{self.name}' is not contiguous: set its source instead")
        values, block = numbers(array), lib.ggml_blck_size(ptr.type)
        if offset == 0 and values.size != self.n_elements:
            raise ArgumentError(
                f"tensor '{self.name}' has ne {list(self.ne)} = {self.n_elements} elements, "
                f"the array has shape {values.shape} = {values.size}"
            )
        if offset + values.size > self.n_elements:
            raise ArgumentError(
                f"tensor '{self.name}' has {self.n_elements} elements: {values.size} from {offset} "
                "do not fit"
            )
        if offset % block:
            raise ArgumentError(
                f"offset {offset}: expected a multiple of {block}, the elements in a block of "
                f"{self.type.name.lower()}"
            )
        data = encode(values, self.type, self.ne[0])
        start = lib.ggml_row_size(ptr.type, offset) if offset else 0
        lib.ggml_backend_tensor_set(ptr, ffi.from_buffer(data), start, data.nbytes)

    def set_2d(self, array: npt.ArrayLike, offset: int = 0, stride: int | None = None) -> None:
        """Writes the rows of a 2-D array, converted, to places `stride` elements apart.

        The first goes to element `offset`; stride is ne0 by default. All in elements, of quantised
        types whole blocks. Raises `ArgumentError` for what does not fit, `NoDataError` before
        allocation. C: ggml_backend_tensor_set_2d
        """
        values = numbers(array)
        if values.ndim != 2:
            raise ArgumentError(f"array of shape {values.shape}: expected two dimensions")
        n, n_per_row = values.shape
        start, size, step = self._rows(n, n_per_row, offset, stride)
        if values.size:
            data = encode(values, self.type, n_per_row)
            source = ffi.from_buffer(data)
            lib.ggml_backend_tensor_set_2d(self.ptr, source, start, size, n, step, size)

    def get_2d(
        self, n: int, size: int, offset: int = 0, stride: int | None = None
    ) -> npt.NDArray[Any]:
        """A copy of `n` rows of `size` elements, `stride` apart from `offset` on: shape [n, size].

        As `set_2d`; types that numpy lacks come as float32. C: ggml_backend_tensor_get_2d
        """
        start, n_bytes, step = self._rows(n, size, offset, stride)
        raw: npt.NDArray[Any] = np.empty(n * n_bytes, np.uint8)
        if raw.size:
            target = ffi.from_buffer(raw)
            lib.ggml_backend_tensor_get_2d(self.ptr, target, start, n_bytes, n, step, n_bytes)
        dtype = _DTYPES.get(self.type)
        values = decode(raw, self.type, n * size) if dtype is None else raw.view(dtype)
        return values.reshape(n, size)

    def _rows(self, n: int, size: int, offset: int, stride: int | None) -> tuple[int, int, int]:
        """Bytes of offset, one row and stride, if `n` rows are in the tensor."""
        type_ = self._data().type
        if not self.is_contiguous:
            raise ArgumentError(f"tensor '{self.name}' is not contiguous: use its source instead")
        n, size, offset = whole("n", n), whole("size", size), whole("offset", offset)
        step = whole("stride", self.ne[0] if stride is None else stride)
        block = lib.ggml_blck_size(type_)
        end = offset + max(n - 1, 0) * step + size
        if end > self.n_elements:
            raise ArgumentError(
                f"tensor '{self.name}' has {self.n_elements} elements: {n} rows of {size}, {step} "
                f"apart from {offset} on, do not fit"
            )
        if size % block or offset % block or step % block:
            raise ArgumentError(
                f"rows of {size}, {step} apart from {offset} on: expected multiples of {block}, "
                f"the elements in a block of {self.type.name.lower()}"
            )
        start, row, apart = (lib.ggml_row_size(type_, count) for count in (offset, size, step))
        return start, row, apart

    def copy_to(self, other: Tensor) -> None:
        """Copies the data to a tensor of the same type, ne and nb, on whatever device.

        Raises `ArgumentError` for another layout and for a view with gaps (upstream would copy
        what lies in them), `NoDataError` before allocation. C: ggml_backend_tensor_copy
        """
        with self._copying_to(other):
            lib.ggml_backend_tensor_copy(self.ptr, other.ptr)

    @contextlib.contextmanager
    def _copying_to(self, other: Tensor) -> Iterator[None]:
        self._data()
        ptr_of(Tensor, other)
        other._data()
        mine = (self.type, self.ne, self.nb)
        theirs = (other.type, other.ne, other.nb)
        if mine != theirs:
            first, second = (f"{t.name.lower()} ne {ne} nb {nb}" for t, ne, nb in (mine, theirs))
            raise ArgumentError(
                f"'{self.name}' ({first}) and '{other.name}' ({second}) have different layouts: "
                "expected the same type, ne and nb; an op (ctx.cpy) converts"
            )
        if self.n_elements and not lib.ggml_is_contiguously_allocated(self.ptr):
            raise ArgumentError(
                f"'{self.name}' has gaps (ne {list(self.ne)}, nb {list(self.nb)}), and so has "
                f"'{other.name}': copy what they are views of, or use an op (ctx.cpy)"
            )
        # Views made after the allocation have data and no buffer; upstream's copy reads it.
        lent = [t.ptr for t in (self, other) if t.ptr.buffer == NULL]
        for ptr in lent:
            ptr.buffer = ptr.view_src.buffer
        try:
            yield
        finally:
            for ptr in lent:
                ptr.buffer = NULL

    def get(self, dequantize: bool = True) -> npt.NDArray[Any]:
        """A copy of the data, shape = reversed(ne) without ggml's trailing ones.

        Types that numpy lacks (quantised, bf16) come as float32, or with `dequantize=False` as
        their raw bytes, shape [.., bytes of a row]. C: ggml_backend_tensor_get
        """
        ptr = self._data()
        raw: npt.NDArray[Any] = np.empty(self.nbytes, np.uint8)
        lib.ggml_backend_tensor_get(ptr, ffi.from_buffer(raw), 0, raw.nbytes)
        dtype = _DTYPES.get(self.type)
        if dtype is not None:
            copy: npt.NDArray[Any] = self._strided(raw, dtype).copy()
            return copy
        if not self.is_contiguous:
            raise ArgumentError(
                f"tensor '{self.name}' ({self.type.name.lower()}) is not contiguous: get its source"
            )
        shape = self._shape()
        if not dequantize:
            return raw.reshape(*shape[:-1], -1)
        return decode(raw, self.type, self.n_elements).reshape(shape)

    def numpy(self) -> npt.NDArray[Any]:
        """The data itself, without a copy: host buffers and numpy's types only.

        The array must not be used after the tensor's buffer is closed or its scheduler reset.
        Raises `ArgumentError` for device memory and for types that numpy lacks (use `get`).
        C: ggml_tensor.data
        """
        ptr = self._data()
        if not lib.ggml_backend_buffer_is_host(self._buffer()):
            raise ArgumentError(
                f"tensor '{self.name}' is in a {self.buffer}, which the CPU cannot read: use get()"
            )
        dtype = _DTYPES.get(self.type)
        if dtype is None:
            raise ArgumentError(f"numpy has no {self.type.name.lower()}: use get()")
        raw = np.frombuffer(ffi.buffer(ptr.data, self.nbytes), np.uint8)
        return self._strided(raw, dtype)

    def _strided(self, raw: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        shape = self._shape()
        strides: Sequence[int] = tuple(reversed(self.nb[: len(shape)]))
        if raw.size == 0:
            return np.empty(shape, dtype)
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, raw, 0, strides)
        return array


def not_tensors(*operands: object) -> TypeError:
    """The error for an op that was given something else where it takes a Tensor."""
    wrong = next(o for o in operands if not isinstance(o, Tensor))
    return TypeError(f"expected a Tensor, got {given(wrong)}")


def numbers(array: npt.ArrayLike) -> npt.NDArray[Any]:
    """`array` as numpy has it. Raises TypeError for a Tensor, `ArgumentError` for text, objects,
    complex numbers and times."""
    if isinstance(array, Tensor):
        raise TypeError("expected an array, got a Tensor: use source.copy_to(target), or its get()")
    values = np.asarray(array)
    if values.dtype.kind in "OSUcmM":
        raise ArgumentError(f"an array of {values.dtype}: expected numbers that are not complex")
    return values


def encode(values: npt.NDArray[Any], type_: enums.Type, n_per_row: int) -> npt.NDArray[Any]:
    """`values` as contiguous elements of a ggml type. C: ggml_quantize_chunk"""
    dtype = _DTYPES.get(type_)
    if dtype is not None:
        return np.ascontiguousarray(values, dtype)
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if n_per_row <= 0 or flat.size % n_per_row or n_per_row % lib.ggml_blck_size(type_):
        raise ArgumentError(
            f"{flat.size} elements in rows of {n_per_row} are no whole blocks of "
            f"{type_.name.lower()} ({lib.ggml_blck_size(type_)} elements a block)"
        )
    if lib.ggml_quantize_requires_imatrix(type_):
        raise ArgumentError(f"{type_.name.lower()} needs an importance matrix to be quantised")
    out = np.empty(lib.ggml_row_size(type_, n_per_row) * (flat.size // n_per_row), np.uint8)
    source = ffi.cast("float *", ffi.from_buffer(flat))
    try:
        lib.ggml_quantize_chunk(
            type_, source, ffi.from_buffer(out), 0, flat.size // n_per_row, n_per_row, NULL
        )
    except AbortError:
        raise ArgumentError(f"{type_.name.lower()} cannot be quantised to: q8_0 can") from None
    return out


def decode(raw: npt.NDArray[np.uint8], type_: enums.Type, n: int) -> npt.NDArray[np.float32]:
    """`n` elements of a ggml type as float32. C: ggml_get_type_traits()->to_float"""
    out = np.empty(n, np.float32)
    to_float = lib.ggml_get_type_traits(type_).to_float
    if to_float == NULL:
        raise ArgumentError(f"{type_.name.lower()} cannot be converted to float32")
    to_float(ffi.from_buffer(raw), ffi.cast("float *", ffi.from_buffer(out)), n)
    return out

"""Element types and conversion between them: numpy's types, bf16 and the quantised types.

Data is converted in chunks of rows, which keeps the extra memory small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import enums
from ..boundary.arguments import integer
from ..boundary.ffi import NULL, ffi, lib, text
from ..errors import AbortError, ArgumentError
from ..typed import typed
from .info import TensorInfo

if TYPE_CHECKING:
    import numpy.typing as npt

TypeLike: TypeAlias = "enums.Type | int | str | npt.DTypeLike"

DTYPES: dict[enums.Type, np.dtype[Any]] = {
    enums.Type.F32: np.dtype(np.float32),
    enums.Type.F16: np.dtype(np.float16),
    enums.Type.F64: np.dtype(np.float64),
    enums.Type.I8: np.dtype(np.int8),
    enums.Type.I16: np.dtype(np.int16),
    enums.Type.I32: np.dtype(np.int32),
    enums.Type.I64: np.dtype(np.int64),
}
CHUNK = 4 << 20  # elements converted at once
_ROWS_AT_ONCE = 1 << 18  # elements quantised per call; signals are handled between calls
_TYPES = {dtype: type_ for type_, dtype in DTYPES.items()}
_BY_NUMBER = {int(t): t for t in enums.Type if t.name != "COUNT"}
_NAMES: dict[str, enums.Type] = {}


def _type_names() -> dict[str, enums.Type]:
    if not _NAMES:
        for type_ in enums.Type:
            if type_.name != "COUNT":
                _NAMES[type_.name.lower()] = type_
                _NAMES[text(lib.ggml_type_name(type_)).lower()] = type_
        _NAMES.pop("", None)
    return _NAMES


def type_of(value: TypeLike) -> enums.Type:
    """The ggml type for a name ("q4_0"), an `enums.Type`, its number or a numpy dtype."""
    if isinstance(value, enums.Type) and value != enums.Type.COUNT:
        return value
    if isinstance(value, str) and value.lower() in _type_names():
        return _type_names()[value.lower()]
    try:
        if isinstance(value, int) or value is None:  # numpy would read None as float64
            return _BY_NUMBER[value]
        return _TYPES[np.dtype(value)]
    except (TypeError, KeyError, UnicodeError):
        names = ", ".join(sorted(t.name.lower() for t in enums.Type if t.name != "COUNT"))
        raise ArgumentError(f"type {value!r}: expected one of {names}, or its dtype") from None


def numbers(array: npt.ArrayLike) -> npt.NDArray[Any]:
    """`array` as a numpy array. Raises TypeError for a Tensor, `ArgumentError` for text, objects,
    complex numbers, times and masked elements."""
    if isinstance(array, TensorInfo):
        raise TypeError("expected an array, got a Tensor: use source.copy_to(target), or its get()")
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ArgumentError(
            "an array with masked elements: a tensor has no mask, fill them (array.filled(0))"
        )
    values = np.asarray(array)
    if values.dtype.kind in "OSUcmM":
        raise ArgumentError(f"an array of {values.dtype}: expected numbers that are not complex")
    return values


def check_shape(what: str, shape: tuple[int, ...], ne: Sequence[int]) -> None:
    """Raises `ArgumentError` unless an array of that shape fits a tensor of `ne`. The shape must be
    `ne` reversed; leading ones do not count, because ggml pads every `ne` to four with ones.
    """
    if shape == tuple(reversed(ne)) or _without_ones(shape) == _without_ones(reversed(ne)):
        return
    expected = _without_ones(reversed(ne)) or (1,)
    size, n = math.prod(shape), math.prod(ne)
    hint = ""
    if size == n:
        hint = f"; array.reshape{expected} keeps the order of its elements"
        if shape == expected[::-1]:
            hint = f"; use array.T if the shape was meant as ne, {hint[2:]}"
    raise ArgumentError(
        f"{what} has ne {list(ne)} = {n} elements, the array has shape {shape} = {size}: expected "
        f"shape {expected}, ne reversed{hint}"
    )


def check_part(what: str, shape: tuple[int, ...], ne: Sequence[int], offset: int) -> None:
    """Like `check_shape`, for a part of a tensor that starts at `offset`: a 1-D run of elements, or
    whole rows, matrices, …, which must start where one of the tensor's starts."""
    inner = shape[1:]
    while inner != tuple(reversed(ne[: len(inner)])) and shape[0] == 1:
        shape, inner = inner, inner[1:]
    if inner == tuple(reversed(ne[: len(inner)])):
        step = math.prod(inner)
        if step and offset % step:
            unit = "a row" if len(inner) == 1 else f"a part of shape {list(inner)}"
            raise ArgumentError(
                f"{what} has ne {list(ne)}, the part of shape {shape} at offset {offset} does not "
                f"start where {unit} starts: expected a multiple of {step}; array.reshape(-1) can "
                "start anywhere"
            )
    else:
        raise ArgumentError(
            f"{what} has ne {list(ne)}, the part has shape {shape}: expected one dimension, or "
            f"whole rows, shape (n, {ne[0]}); array.reshape(-1) keeps the order of its elements"
        )


def _without_ones(shape: Iterable[int]) -> tuple[int, ...]:
    """A shape without its leading ones."""
    return tuple(itertools.dropwhile(lambda n: n == 1, shape))


def name_of(type_: enums.Type) -> str:
    """The name of the type, as users write it."""
    return type_.name.lower()


def chunks(
    values: npt.NDArray[Any], type_: enums.Type, n_per_row: int, imatrix: Any = None
) -> Iterator[npt.NDArray[Any]]:
    """`values` in a ggml type, in pieces; a single one without a copy if nothing changes."""
    dtype = DTYPES.get(type_)
    if dtype is not None:
        if imatrix is not None:
            _weights_of(imatrix, type_, n_per_row, values.size)
        for part in _parts(values, 1) if values.dtype != dtype else (values,):
            yield _converted(part, dtype, type_)
        return
    block = lib.ggml_blck_size(type_)
    if n_per_row <= 0 or values.size % n_per_row or n_per_row % block:
        raise ArgumentError(
            f"{values.size} elements in rows of {n_per_row} are not whole blocks of "
            f"{name_of(type_)} ({block} elements per block)"
        )
    weights = _weights_of(imatrix, type_, n_per_row, values.size)
    start = 0
    for part in _parts(values, n_per_row if weights is None else weights.rows * n_per_row):
        if type_ == enums.Type.BF16:
            flat = _converted(part, np.dtype(np.float32), type_).reshape(-1)
        else:
            with np.errstate(over="ignore"):  # checked below
                flat = np.ascontiguousarray(part, np.float32).reshape(-1)
            _check_finite(flat, part, type_, start)
        of_part = None if weights is None else weights.at(start, flat.size)
        yield _quantized(flat, type_, n_per_row, of_part)
        start += flat.size


def _converted(part: npt.NDArray[Any], dtype: np.dtype[Any], type_: enums.Type) -> npt.NDArray[Any]:
    """`part` in numpy's `dtype`. Raises `ArgumentError` if the conversion changes a number."""
    if np.can_cast(part.dtype, dtype, "safe"):
        return np.ascontiguousarray(part, dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        converted = np.ascontiguousarray(part, dtype)
    if dtype.kind == "f":
        wrong = np.isinf(converted)
        if wrong.any():
            wrong &= np.isfinite(part)
    else:  # integers: for 2^63 the way back is not enough, so compare the signs too
        wrong = (converted.astype(part.dtype) != part) | ((converted < 0) != (part < 0))
    if wrong.any():
        number = part[wrong].flat[0]
        raise ArgumentError(f"{number} is not a number that {name_of(type_)} can hold")
    return converted


def encode(
    values: npt.NDArray[Any], type_: enums.Type, n_per_row: int, imatrix: Any = None
) -> npt.NDArray[Any]:
    """`values` as contiguous elements of a ggml type."""
    parts = list(chunks(values, type_, n_per_row, imatrix))
    if len(parts) == 1:
        return parts[0]
    empty: npt.NDArray[Any] = np.empty(0, DTYPES.get(type_, np.uint8))
    return np.concatenate([part.reshape(-1) for part in parts]) if parts else empty


def _parts(values: npt.NDArray[Any], multiple: int) -> Iterator[npt.NDArray[Any]]:
    """Consecutive pieces of about CHUNK elements; the sizes are multiples of `multiple`."""
    if values.size <= CHUNK:
        if values.size:
            yield values
        return
    if values.flags.c_contiguous:
        values = values.reshape(-1)
    while len(values) == 1:
        values = values[0]
    inner = values.size // len(values)
    step = multiple // math.gcd(multiple, inner)  # indices that make whole multiples
    step *= max(1, CHUNK // (step * inner))
    for start in range(0, len(values), step):
        yield values[start : start + step]


def _check_finite(
    flat: npt.NDArray[np.float32], part: npt.NDArray[Any], type_: enums.Type, start: int
) -> None:
    finite = np.isfinite(flat)
    if not finite.all():
        at = int(np.argmin(finite))
        raise ArgumentError(
            f"element {start + at} is {part.reshape(-1)[at]}: {name_of(type_)} can hold only "
            "numbers that are finite as float32"
        )


class _Weights:
    """An importance matrix: one weight per column, for all rows or for each matrix of a stack."""

    def __init__(self, values: npt.NDArray[np.float32], rows: int) -> None:
        self.values = values
        self.rows = rows  # of one matrix; with several, a chunk has whole matrices
        self.several = len(values) > 1

    def at(self, start: int, size: int) -> npt.NDArray[np.float32]:
        """The weights for `size` elements from `start` on."""
        if not self.several:
            return self.values
        matrix = self.rows * self.values.shape[1]
        return self.values[start // matrix : (start + size) // matrix]


def _weights_of(imatrix: Any, type_: enums.Type, n_per_row: int, n: int) -> _Weights | None:
    """The weights for `n` elements. Raises `ArgumentError` for the wrong number of weights, and for
    none if the type needs them."""
    if imatrix is None:
        if lib.ggml_quantize_requires_imatrix(type_):
            raise ArgumentError(
                f"{name_of(type_)} needs an importance matrix to be quantised: pass imatrix=, "
                "one weight per column"
            )
        return None
    if not lib.ggml_is_quantized(type_):
        raise ArgumentError(f"imatrix for {name_of(type_)}: only quantised types use one")
    values = np.ascontiguousarray(imatrix, np.float32).reshape(-1)
    n_rows = n // max(n_per_row, 1)
    n_matrices = values.size // max(n_per_row, 1)
    if n_matrices == 0 or values.size % n_per_row or n_rows % max(n_matrices, 1):
        raise ArgumentError(
            f"imatrix of {values.size} weights: expected {n_per_row}, one per column, or that many "
            f"for each matrix of a stack; the data has {n_rows} rows of {n_per_row}"
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise ArgumentError("imatrix: expected finite weights, none of them negative")
    rows = n_rows // n_matrices if n_matrices > 1 else 1
    return _Weights(values.reshape(n_matrices, n_per_row), rows)


def _quantized(
    flat: npt.NDArray[np.float32],
    type_: enums.Type,
    n_per_row: int,
    weights: npt.NDArray[np.float32] | None,
) -> npt.NDArray[np.uint8]:
    n_rows = flat.size // n_per_row
    row = lib.ggml_row_size(type_, n_per_row)
    out = np.empty(row * n_rows, np.uint8)
    source, target = ffi.cast("float *", ffi.from_buffer(flat)), ffi.from_buffer(out)
    n_matrices = 1 if weights is None else len(weights)
    n = n_rows // n_matrices
    step = max(1, _ROWS_AT_ONCE // n_per_row)
    for first in [i * n + j for i in range(n_matrices) for j in range(0, n, step)]:
        rows = min(step, n - first % n)
        matrix = NULL
        if weights is not None:
            matrix = ffi.cast("float *", ffi.from_buffer(weights[first // n]))
        try:
            lib.ggml_quantize_chunk(
                type_, source, target, first * n_per_row, rows, n_per_row, matrix
            )
        except AbortError as error:
            why = "" if weights is None else f" with this imatrix ({error.condition}, all zero?)"
            raise ArgumentError(
                f"ggml cannot quantise to {name_of(type_)}{why}: use another type, such as q8_0"
            ) from error
    if type_ != enums.Type.BF16 and not lib.ggml_validate_row_data(type_, target, out.nbytes):
        largest = float(np.abs(flat).max())
        raise ArgumentError(
            f"values up to {largest:g} are too large for {name_of(type_)}, whose scales are half "
            "precision"
        )
    return out


@typed
def quantize(
    array: npt.ArrayLike, type: TypeLike, imatrix: npt.ArrayLike | None = None
) -> npt.NDArray[np.uint8]:
    """The rows of the array (its last dimension) in a ggml type, as raw bytes: shape
    [.., bytes of a row].

    `imatrix` has one weight per column, or one per column of each matrix of a stack; some types
    need one. Raises `ArgumentError` for rows that are not whole blocks, values that are not finite
    or too large for the type, and an imatrix of the wrong length. C: ggml_quantize_chunk
    """
    values, type_ = numbers(array), type_of(type)
    if values.ndim == 0:
        values = values.reshape(1)
    n_per_row = int(values.shape[-1])
    row = row_size(type_, n_per_row)
    out = np.empty((*values.shape[:-1], row), np.uint8)
    flat, start = out.reshape(-1), 0
    for part in chunks(values, type_, n_per_row, imatrix):
        flat[start : start + part.nbytes] = part.reshape(-1).view(np.uint8)
        start += part.nbytes
    return out


@typed
def dequantize(
    raw: npt.NDArray[np.uint8], type: TypeLike, ne: Sequence[int] | None = None
) -> npt.NDArray[np.float32]:
    """Raw bytes of a ggml type as float32: the reverse of `quantize`.

    The shape is `ne` reversed; by default it is that of `raw`, with each row's bytes replaced by
    its elements. Raises `ArgumentError` if `ne` takes another number of bytes, and for types that
    cannot be converted to floats. C: ggml_get_type_traits()->to_float
    """
    type_ = type_of(type)
    data = np.ascontiguousarray(raw)
    if data.dtype != np.uint8 or data.ndim == 0:
        raise ArgumentError(
            f"raw is {data.dtype} of shape {data.shape}: expected an array of uint8"
        )
    size, block = lib.ggml_type_size(type_), lib.ggml_blck_size(type_)
    if ne is None:
        n_bytes = data.shape[-1]
        if size == 0 or n_bytes % size:
            raise ArgumentError(
                f"rows of {n_bytes} bytes: {name_of(type_)} has blocks of {size} bytes"
            )
        shape = (*data.shape[:-1], n_bytes // size * block)
    else:
        shape = tuple(integer("ne", n) for n in reversed(ne)) or (1,)
        need = row_size(type_, shape[-1]) * math.prod(shape[:-1])
        if need != data.nbytes:
            raise ArgumentError(
                f"raw has {data.nbytes:,} bytes: ne {list(ne)} of {name_of(type_)} takes {need:,}"
            )
    return decode(data.reshape(-1), type_, math.prod(shape)).reshape(shape)


def row_size(type_: enums.Type, n: int) -> int:
    """Bytes of `n` elements. Raises `ArgumentError` if blocks are split. C: ggml_row_size"""
    block = lib.ggml_blck_size(type_)
    if block == 0 or n % block:
        raise ArgumentError(f"rows of {n}: {name_of(type_)} has blocks of {block} elements")
    return int(lib.ggml_row_size(type_, n))


def decode(raw: npt.NDArray[np.uint8], type_: enums.Type, n: int) -> npt.NDArray[np.float32]:
    """`n` elements of a ggml type as float32."""
    dtype = DTYPES.get(type_)
    if dtype is not None:
        return raw.view(dtype).astype(np.float32)
    out = np.empty(n, np.float32)
    decode_into(out, raw, type_)
    return out


def decode_into(
    out: npt.NDArray[np.float32], raw: npt.NDArray[np.uint8], type_: enums.Type
) -> None:
    """Like `decode`, into contiguous memory."""
    to_float = lib.ggml_get_type_traits(type_).to_float
    if to_float == NULL:
        raise ArgumentError(f"{name_of(type_)} cannot be converted to float32")
    if out.size:
        to_float(ffi.from_buffer(raw), ffi.cast("float *", ffi.from_buffer(out)), out.size)

"""DLPack: sharing tensors with other libraries, in both directions, without a copy.

It reads and writes both forms of the capsule, with and without a version. The structs are those of
dlpack.h, in ctypes, because capsules can only be made through Python's C API.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any, NamedTuple

from .. import enums
from ..boundary.arguments import describe
from ..errors import ArgumentError
from .convert import DTYPES

CPU, CUDA_HOST = 1, 3  # DLDeviceType: memory that the CPU can read
_READ_ONLY = 1
_INT, _FLOAT, _BFLOAT = 0, 2, 4
_KINDS = {"i": _INT, "f": _FLOAT}
_MAX_NDIM = 64  # numpy's limit; a larger number is not believed
MAX_BYTES = 1 << 57  # the address space of processors


class Layout(NamedTuple):
    """Where the elements are: dimensions in numpy's order, strides in bytes."""

    address: int
    type: enums.Type
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    readonly: bool


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_FORMS: dict[bytes, Any] = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _api(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)

_exported: dict[int, tuple[Any, ...]] = {}  # address of a struct -> the objects it needs


def _delete(address: int, exported: dict[int, Any] = _exported) -> None:
    exported.pop(address, None)


def _unconsumed(
    capsule: int,
    exported: dict[int, Any] = _exported,
    names: tuple[bytes, ...] = tuple(_FORMS),
    is_valid: Any = _is_valid,
    pointer: Any = _pointer,
) -> None:
    for name in names:  # a consumer would have renamed it
        if is_valid(capsule, name):
            exported.pop(pointer(capsule, name), None)


_deleter, _destructor = _Deleter(_delete), _Destructor(_unconsumed)
for _callback in (_deleter, _destructor):  # other libraries may call them after this module's end
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def capsule_of(layout: Layout, owner: Any, versioned: bool) -> Any:
    """A capsule over memory that `owner` keeps alive."""
    dtype = DTYPES.get(layout.type)
    size = 2 if dtype is None else dtype.itemsize
    n = len(layout.shape)
    shape = (ctypes.c_int64 * n)(*layout.shape)
    strides = (ctypes.c_int64 * n)(*(s // size for s in layout.strides))
    made = (_Versioned if versioned else _Managed)()
    if isinstance(made, _Versioned):
        made.major, made.minor, made.flags = 1, 0, _READ_ONLY if layout.readonly else 0
    made.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    made.tensor = _DLTensor(
        layout.address,
        _Device(CPU, 0),
        n,
        _DataType(_BFLOAT if dtype is None else _KINDS[dtype.kind], size * 8, 1),
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
        0,
    )
    address = ctypes.addressof(made)
    _exported[address] = (made, shape, strides, owner)
    name = b"dltensor_versioned" if versioned else b"dltensor"
    return _new(address, _name(name), ctypes.cast(_destructor, ctypes.c_void_p))


_NAMES = {name: ctypes.create_string_buffer(name) for name in _FORMS}
_USED = {name: ctypes.create_string_buffer(b"used_" + name) for name in _FORMS}


def _name(name: bytes) -> Any:
    return ctypes.cast(_NAMES[name], ctypes.c_char_p)  # capsules keep the pointer


def takes_versioned(max_version: Any) -> bool:
    """Whether a consumer with this `max_version` takes the versioned form. Raises TypeError."""
    if max_version is None:
        return False
    try:
        major, minor = map(operator.index, max_version)
    except (TypeError, ValueError):
        raise TypeError(
            f"max_version: expected None or two whole numbers (major, minor), got "
            f"{_shown(max_version)}"
        ) from None
    return (major, minor) >= (1, 0)


def _shown(value: Any) -> str:
    return f"tuple {value!r:.60}" if isinstance(value, tuple) else describe(value)


class Foreign:
    """A producer's memory, held as long as this object lives."""

    def __init__(self, layout: Layout, address: int, deleter: int | None) -> None:
        self.layout = layout
        self._finish = (_Deleter(deleter), address) if deleter else None

    def __del__(self) -> None:
        finish, self._finish = getattr(self, "_finish", None), None
        if finish is not None:
            finish[0](finish[1])


def take(producer: Any) -> Foreign:
    """The memory of an object with `__dlpack__`.

    Raises TypeError for other objects, `ArgumentError` for memory that the CPU cannot read, element
    types that ggml lacks, and impossible values.
    """
    if not hasattr(producer, "__dlpack__") or not hasattr(producer, "__dlpack_device__"):
        raise TypeError(f"expected an object with __dlpack__, got {type(producer).__name__}")
    kind = _device_type(producer)
    if kind not in (CPU, CUDA_HOST):
        raise ArgumentError(
            f"the data is on a device (DLPack kind {kind}): expected memory that the CPU can read; "
            "copy it there first"
        )
    try:
        capsule = producer.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer without versions
        capsule = producer.__dlpack__()
    name = next((name for name in _FORMS if _is_valid(id(capsule), name)), None)
    if name is None:
        raise ArgumentError(f"{type(producer).__name__}.__dlpack__ returned no unused capsule")
    address = _pointer(id(capsule), name)
    managed = _FORMS[name].from_address(address)
    if isinstance(managed, _Versioned) and managed.major > 1:
        raise ArgumentError(f"DLPack {managed.major}.{managed.minor}: expected version 1")
    layout = _layout(managed)  # first: if it raises, the capsule's own destructor cleans up
    _rename(id(capsule), ctypes.cast(_USED[name], ctypes.c_char_p))
    return Foreign(layout, address, managed.deleter)


def _device_type(producer: Any) -> int:
    device = producer.__dlpack_device__()
    try:
        kind, _id = map(int, () if isinstance(device, str | bytes) else device)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{type(producer).__name__}.__dlpack_device__ returned {_shown(device)}: expected two "
            "whole numbers (device type, device id)"
        ) from None
    return kind


def _layout(managed: Any) -> Layout:
    tensor = managed.tensor
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    known = {(_KINDS[d.kind], d.itemsize * 8): t for t, d in DTYPES.items()}
    known[_BFLOAT, 16] = enums.Type.BF16
    if lanes != 1 or (code, bits) not in known:
        names = ", ".join(t.name.lower() for t in known.values())
        raise ArgumentError(
            f"elements of {bits} bits, DLPack kind {code}, lanes={lanes}: expected {names}"
        )
    if not 0 <= tensor.ndim <= _MAX_NDIM or (tensor.ndim and not tensor.shape):
        what = "" if tensor.shape else " and a NULL shape"
        raise ArgumentError(
            f"the producer says ndim={tensor.ndim}{what}: expected one to four dimensions"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    size = bits // 8
    if tensor.strides:
        strides = tuple(tensor.strides[i] * size for i in range(tensor.ndim))
    else:
        steps = [size]
        for n in reversed(shape[1:]):
            steps.append(steps[-1] * n)
        strides = tuple(reversed(steps[: len(shape)]))
    readonly = isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY)
    if 0 not in shape and not tensor.data:
        raise ArgumentError(f"the producer's data is NULL for shape {shape}: expected memory")
    if tensor.byte_offset > MAX_BYTES:
        raise ArgumentError(
            f"the producer says byte_offset={tensor.byte_offset:,}: no machine addresses that many "
            "bytes; expected the offset of the elements in its memory"
        )
    start = (tensor.data or 0) + tensor.byte_offset
    return Layout(start, known[code, bits], shape, strides, readonly)

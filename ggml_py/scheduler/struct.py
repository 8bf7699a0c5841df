"""Structs of the running program, read as C or a debugger would: fields, arrays, pointers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, NoReturn, overload

from ..backends.backend import Backend
from ..backends.buffer import BufferType
from ..boundary.ffi import BUILD, NULL, ffi, lib, text
from ..errors import ClosedError
from ..tensors.tensor import Tensor

_MOST_SHOWN = 200  # elements of an array, like gdb's `set print elements`
_REPEATS = 10  # from this number on equal elements are counted, like gdb's `set print repeats`
_SCALARS = {
    (lib.GP_FIELD_BOOL, 1): "bool", (lib.GP_FIELD_INT, 4): "int32_t",
    (lib.GP_FIELD_UINT, 4): "uint32_t", (lib.GP_FIELD_INT, 8): "int64_t",
    (lib.GP_FIELD_UINT, 8): "uint64_t",
}  # fmt: skip


NOT_HELD = (
    "the scheduler holds no graph now, so the tensor may be gone: read it between alloc_graph and "
    "reset"
)


class Field(NamedTuple):
    """A field as the compiler laid it out. `type` is "" where this release has no such field."""

    name: str
    type: str
    offset: int  # bytes from the struct's start
    size: int  # bytes
    element_size: int  # size of an array's elements; otherwise `size`
    kind: int  # enum gp_field_kind; of an array, its elements' kind
    dims: tuple[int, ...]  # of an array


@cache
def fields_of(which: int) -> dict[str, Field]:
    """The struct's fields by name, in C's order. C: gp_struct_fields"""
    size = ffi.new("uint64_t *")
    n = lib.gp_struct_fields(which, NULL, 0, size)
    records = ffi.new("struct gp_field_record[]", n)
    lib.gp_struct_fields(which, records, n, size)
    return {
        text(r.name): Field(
            text(r.name), text(r.type), r.offset, r.size, r.element_size, r.kind,
            tuple(d for d in r.dims if d),
        )
        for r in records
    }  # fmt: skip


@cache
def size_of(which: int) -> int:
    """Bytes of the struct. C: gp_struct_fields"""
    size = ffi.new("uint64_t *")
    lib.gp_struct_fields(which, NULL, 0, size)
    return int(size[0])


class Pointer:
    """An address that is not followed because it leads to nothing that Python knows, or no longer.

    `type` is the C type, and `why` says why it is not followed.
    """

    __slots__ = ("address", "type", "why")

    def __init__(self, type_: str, address: int, why: str) -> None:
        self.type, self.address, self.why = type_, address, why

    def __int__(self) -> int:
        return self.address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pointer) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"({self.type}) {self.address:#x}"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"cannot read '{name}' of {self!r}: {self.why}")

    def __bool__(self) -> bool:
        return self.address != 0

    def __getitem__(self, index: object) -> NoReturn:
        self._refuse(f"[{index!r}]")

    def __iter__(self) -> NoReturn:
        self._refuse("an element")

    def __len__(self) -> NoReturn:
        self._refuse("the length")

    def _refuse(self, what: str) -> NoReturn:
        kind = ClosedError if self.why is NOT_HELD else TypeError
        raise kind(f"cannot read {what} of {self!r}: {self.why}")


class Array(Sequence[Any]):
    """An array in a struct. Its elements are read on access.

    It equals any sequence with equal elements.
    """

    __slots__ = ("_at", "_dims", "_load", "_shown")

    def __init__(
        self,
        dims: Callable[[], tuple[int, ...]],
        load: Callable[[int, int], list[Any]],
        shown: Callable[[], Iterable[int]] | None = None,
        at: tuple[int, ...] = (),
    ) -> None:
        """`load(start, n)` reads n elements, with `start` counted through all dimensions. `shown`
        returns the indices to print. `at` are the indices that lead to this part of the array."""
        self._dims, self._load, self._shown, self._at = dims, load, shown, at

    def __len__(self) -> int:
        dims = self._dims()
        for i, n in zip(self._at, dims, strict=False):
            if i >= n:
                raise IndexError(f"index {i} of an array that has length {n} now")
        return dims[len(self._at)]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        n = len(self)
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(n)))
        i = index.__index__()
        if not -n <= i < n:
            raise IndexError(f"index {i} of an array of length {n}")
        return self._element(i % n)

    def __iter__(self) -> Iterator[Any]:
        n = len(self)
        if n and len(self._at) + 1 == len(self._dims()):
            return iter(self._load(self._flat(0), n))
        return (self._element(i) for i in range(n))

    def _element(self, i: int) -> Any:
        if len(self._at) + 1 == len(self._dims()):
            return self._load(self._flat(i), 1)[0]
        return Array(self._dims, self._load, None, (*self._at, i))

    def _flat(self, i: int) -> int:
        start = 0
        for index, n in zip((*self._at, i), self._dims(), strict=True):
            start = start * n + index
        return start

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self._shown is not None:
            return _braces(f"[{i}] = {shown(self[i])}" for i in self._shown())
        return _braces(_counted(shown(value) for value in self))


class Struct:
    """A struct whose fields are read on each access: `state.n_splits` is its value at that moment.

    Fields have their C names. Other attributes end with an underscore and so never clash with a
    field: `type_`, `address_`, `fields_`.
    """

    __slots__ = ("_address",)
    _which: ClassVar[int]
    _type: ClassVar[str]

    def __init__(self, address: Callable[[], int]) -> None:
        """`address()` returns the struct's address, and raises if the struct is gone."""
        object.__setattr__(self, "_address", address)

    @property
    def type_(self) -> str:
        """The C name of its type."""
        return f"struct {self._type}"

    @property
    def address_(self) -> int:
        """The struct's address."""
        return int(self._address())

    @property
    def fields_(self) -> tuple[Field, ...]:
        """Its fields in this release of ggml, as the compiler laid them out."""
        return tuple(f for f in fields_of(self._which).values() if f.kind != lib.GP_FIELD_ABSENT)

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *(f.name for f in self.fields_)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = fields_of(self._which).get(name)
        if found is None:
            names = ", ".join(f.name for f in self.fields_)
            raise AttributeError(f"{self.type_} has no '{name}': its fields are {names}")
        if found.kind == lib.GP_FIELD_ABSENT:
            raise AttributeError(
                f"{self.type_} of ggml {BUILD['ggml_version']} has no '{name}': other releases do"
            )
        return self._read(found)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"'{name}' of {self.type_} is read-only: it belongs to the scheduler")

    def _read(self, field: Field) -> Any:
        """The value of a field: a number, a Struct, an Array, an object of ours, a Pointer, or None
        for NULL. Here only the field's type counts; subclasses know what fields mean."""
        return self._plain(field)

    def _plain(self, field: Field) -> Any:
        at = self._address() + field.offset
        if field.kind == lib.GP_FIELD_POINTER:
            address = word(at)
            return (
                Pointer(field.type, address, "ggml_py does not know what is there")
                if address
                else None
            )
        if field.dims or field.kind == lib.GP_FIELD_STRUCT:
            return Pointer(field.type, at, "this ggml_py does not know this field")
        return ffi.cast(f"{_SCALARS[field.kind, field.size]} *", at)[0]

    def _number(self, name: str) -> int:
        """The value of a field that is a number."""
        return int(self._plain(fields_of(self._which)[name]))

    def __repr__(self) -> str:
        return "{" + ", ".join(self._lines()) + "}"

    def _raw(self, field: Field) -> str:
        """A pointer field as a number."""
        return f"{field.name} = {word(self._address() + field.offset):#x}"

    def _lines(self) -> list[str]:
        return [f"{f.name} = {shown(self._read(f))}" for f in self.fields_]


def word(address: int) -> int:
    """Reads the pointer at an address."""
    return int(ffi.cast("uintptr_t *", address)[0])


def words(address: int, n: int) -> list[int]:
    """Reads n pointers."""
    return list(ffi.unpack(ffi.cast("uintptr_t *", address), n)) if n else []


def numbers(address: int, n: int) -> list[int]:
    """Reads n ints."""
    return list(ffi.unpack(ffi.cast("int *", address), n)) if n else []


# --- printed like gdb


def shown(value: Any) -> str:
    """A value as gdb prints it; objects that have a name, with the name."""
    if value is None:
        return "0x0"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Tensor | Backend | BufferType):
        return f'{int(ffi.cast("uintptr_t", value.ptr)):#x} "{value.name}"'
    return f"{value.address:#x}" if isinstance(value, Pointer) else repr(value)


def _counted(texts: Iterable[str]) -> Iterator[str]:
    """With "<repeats N times>" for a long run of equal texts."""
    run: list[str] = []
    for value in texts:
        if run and run[0] != value:
            yield from _run(run)
            run = []
        run.append(value)
    yield from _run(run)


def _run(run: list[str]) -> list[str]:
    return run if len(run) < _REPEATS else [f"{run[0]} <repeats {len(run)} times>"]


def _braces(texts: Iterable[str]) -> str:
    out: list[str] = []
    for value in texts:
        if len(out) == _MOST_SHOWN:
            return "{" + ", ".join(out) + "...}"
        out.append(value)
    return "{" + ", ".join(out) + "}"

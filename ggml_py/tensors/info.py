"""The properties of a tensor without its data: name, type, shape, strides and what follows."""

from __future__ import annotations

from typing import Any

from .. import enums
from ..backends.above import AnyTensor
from ..boundary.arguments import c_text, ptr_of
from ..boundary.ffi import NULL, ffi, lib, own_pointer, text
from ..errors import ArgumentError

# Looked up once: half of a graph's tensors get names, and every op reads types.
_TYPES = {int(member): member for member in enums.Type}
_MAX_NAME = lib.GGML_MAX_NAME
_set_name = lib.ggml_set_name
_n_dims = lib.ggml_n_dims


_POINTER = ffi.typeof("struct ggml_tensor *")


class TensorInfo(AnyTensor):
    """The part of `Tensor` that needs no memory."""

    __slots__ = ("_context", "_ptr")
    _context: Any  # a Context; ops.py sets it, and knows only the base class

    def __init__(self, ptr: Any, context: Any) -> None:
        if not isinstance(ptr, ffi.CData) or ffi.typeof(ptr) is not _POINTER or not ptr:
            own_pointer(type(self), ptr)  # usually raises
            raise TypeError(f"expected a pointer to a tensor, got one of {ffi.typeof(ptr).cname}")
        self._ptr = ptr
        self._context = context

    @property
    def ptr(self) -> Any:
        """The native `struct ggml_tensor *`. Raises `ClosedError` after its context was closed."""
        self._context.ptr  # noqa: B018
        return self._ptr

    @property
    def name(self) -> str:
        """Name, at most 63 bytes of UTF-8; setting a longer one raises `ArgumentError`. ggml
        truncates names that it makes itself ("x (view)"). C: ggml_set_name
        """
        return text(self.ptr.name)

    @name.setter
    def name(self, name: str) -> None:
        encoded = c_text("name", name)
        if len(encoded) >= _MAX_NAME:
            raise ArgumentError(
                f"name {name!r} has {len(encoded)} bytes: expected at most {_MAX_NAME - 1}"
            )
        _set_name(self.ptr, encoded)

    @property
    def type(self) -> enums.Type:
        """Element type."""
        number = self.ptr.type
        return _TYPES[number] if number in _TYPES else enums.Type(number)

    @property
    def ne(self) -> tuple[int, int, int, int]:
        """Number of elements in each dimension."""
        ne = self.ptr.ne
        return (ne[0], ne[1], ne[2], ne[3])

    @property
    def shape(self) -> tuple[int, ...]:
        """numpy's shape: `ne` reversed, without ggml's trailing ones.

        `get` and `numpy` return arrays of this shape. C: ggml_n_dims
        """
        ptr = self.ptr
        ne = ptr.ne
        return tuple([ne[i] for i in range(_n_dims(ptr) - 1, -1, -1)])

    @property
    def nb(self) -> tuple[int, int, int, int]:
        """Stride of each dimension, in bytes."""
        nb = self.ptr.nb
        return (nb[0], nb[1], nb[2], nb[3])

    @property
    def nbytes(self) -> int:
        """Bytes from its first to its last element. C: ggml_nbytes"""
        return int(lib.ggml_nbytes(self.ptr))

    @property
    def n_elements(self) -> int:
        """Number of elements. C: ggml_nelements"""
        return int(lib.ggml_nelements(self.ptr))

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are contiguous, in order. C: ggml_is_contiguous"""
        return bool(lib.ggml_is_contiguous(self.ptr))

    @property
    def n_rows(self) -> int:
        """ne1 * ne2 * ne3. C: ggml_nrows"""
        return int(lib.ggml_nrows(self.ptr))

    @property
    def n_dims(self) -> int:
        """Number of dimensions without ggml's trailing ones, at least 1. C: ggml_n_dims"""
        return int(lib.ggml_n_dims(self.ptr))

    @property
    def nbytes_pad(self) -> int:
        """`nbytes`, rounded up to the alignment of tensors in a context. C: ggml_nbytes_pad"""
        return int(lib.ggml_nbytes_pad(self.ptr))

    @property
    def element_size(self) -> int:
        """Bytes per element, or per block for quantised types. C: ggml_element_size"""
        return int(lib.ggml_element_size(self.ptr))

    @property
    def row_size(self) -> int:
        """Bytes of ne0 elements. C: ggml_row_size"""
        return int(lib.ggml_row_size(self.ptr.type, self.ptr.ne[0]))

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements. C: ggml_is_empty"""
        return bool(lib.ggml_is_empty(self.ptr))

    @property
    def is_view(self) -> bool:
        """Whether it uses the memory of another tensor. C: ggml_is_view"""
        return bool(self.ptr.view_src != NULL)  # upstream has the function since 0.9.7

    @property
    def is_scalar(self) -> bool:
        """Whether it has one element. C: ggml_is_scalar"""
        return bool(lib.ggml_is_scalar(self.ptr))

    @property
    def is_vector(self) -> bool:
        """Whether ne1, ne2 and ne3 are 1. C: ggml_is_vector"""
        return bool(lib.ggml_is_vector(self.ptr))

    @property
    def is_matrix(self) -> bool:
        """Whether ne2 and ne3 are 1. C: ggml_is_matrix"""
        return bool(lib.ggml_is_matrix(self.ptr))

    @property
    def is_3d(self) -> bool:
        """Whether ne3 is 1. C: ggml_is_3d"""
        return bool(lib.ggml_is_3d(self.ptr))

    @property
    def is_transposed(self) -> bool:
        """Whether nb0 is larger than nb1. C: ggml_is_transposed"""
        return bool(lib.ggml_is_transposed(self.ptr))

    @property
    def is_permuted(self) -> bool:
        """Whether its strides are not in ascending order. C: ggml_is_permuted"""
        return bool(lib.ggml_is_permuted(self.ptr))

    @property
    def is_quantized(self) -> bool:
        """Whether its type has blocks of several elements. C: ggml_is_quantized"""
        return bool(lib.ggml_is_quantized(self.ptr.type))

    @property
    def is_contiguous_rows(self) -> bool:
        """Whether the elements of each row are contiguous. C: ggml_is_contiguous_rows"""
        return bool(lib.ggml_is_contiguous_rows(self.ptr))

    @property
    def is_contiguous_channels(self) -> bool:
        """Whether dimension 2 is innermost: stored as CWHN. C: ggml_is_contiguous_channels"""
        return bool(lib.ggml_is_contiguous_channels(self.ptr))

    @property
    def is_contiguously_allocated(self) -> bool:
        """Whether there are no gaps between elements, in any order.

        C: ggml_is_contiguously_allocated
        """
        return bool(lib.ggml_is_contiguously_allocated(self.ptr))

    @property
    def is_contiguous_1(self) -> bool:
        """Whether it is contiguous from dimension 1 on. C: ggml_is_contiguous_1"""
        return bool(lib.ggml_is_contiguous_1(self.ptr))

    @property
    def is_contiguous_2(self) -> bool:
        """Whether it is contiguous from dimension 2 on. C: ggml_is_contiguous_2"""
        return bool(lib.ggml_is_contiguous_2(self.ptr))

    @property
    def is_contiguous_to_1(self) -> bool:
        """Whether it is contiguous below dimension 1. C: ggml_is_contiguous_to_1"""
        return bool(lib.ggml_is_contiguous_to_1(self.ptr))

    @property
    def is_contiguous_to_2(self) -> bool:
        """Whether it is contiguous below dimension 2. C: ggml_is_contiguous_to_2"""
        return bool(lib.ggml_is_contiguous_to_2(self.ptr))

    @property
    def is_contiguous_to_3(self) -> bool:
        """Whether it is contiguous below dimension 3. C: ggml_is_contiguous_to_3"""
        return bool(lib.ggml_is_contiguous_to_3(self.ptr))

    def same_shape(self, other: TensorInfo) -> bool:
        """Whether `other` has the same ne. C: ggml_are_same_shape"""
        return bool(lib.ggml_are_same_shape(self.ptr, ptr_of(TensorInfo, other)))

    def same_stride(self, other: TensorInfo) -> bool:
        """Whether `other` has the same nb. C: ggml_are_same_stride"""
        return bool(lib.ggml_are_same_stride(self.ptr, ptr_of(TensorInfo, other)))

    def can_repeat(self, other: TensorInfo) -> bool:
        """Whether each ne divides that of `other`, so that repeating it gives `other`'s shape.

        C: ggml_can_repeat
        """
        return bool(lib.ggml_can_repeat(self.ptr, ptr_of(TensorInfo, other)))

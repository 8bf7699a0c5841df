"""A context: the metadata of tensors. The ops are its methods (ops.py)."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.above import AnyContext
from ..backends.backend import Backend
from ..backends.buffer import Buffer, BufferType, usage_of
from ..backends.device import device
from ..backends.sharing import allocating
from ..boundary import arena as _arena
from ..boundary.arguments import c_text, describe, integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import LIVE, Handle
from ..boundary.uses import reading
from ..errors import AbortError, AllocError, ArgumentError
from ..tensors.arrays import Arrays
from ..tensors.convert import encode, numbers
from ..tensors.tensor import Tensor, TypeLike, type_of
from ..typed import typed
from .custom import CustomOp, CustomOps

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..tensors.dlpack import Foreign
    from .graph import Graph


def new_native(size: int, what: str) -> Any:
    """A ggml_context of `size` bytes. Raises `AllocError` with `what` the bytes are for."""
    params = ffi.new("struct ggml_init_params *")
    params.mem_size, params.mem_buffer, params.no_alloc = size, NULL, True
    try:
        return lib.ggml_init(params[0])
    except AbortError:
        raise AllocError(
            f"{what} takes {size:,} bytes of address space, more than this process may have: "
            "expected less (the machine's memory and `ulimit -v` set the limit)"
        ) from None


# The sizes of 2048 tensors must sum without wrapping 64 bits (native/op_checks.h).
MOST_BYTES = 1 << 53


class Context(AnyContext, CustomOps):
    """Holds tensors and the ops between them. It needs no size in advance; data is in buffers.

    Every op of ggml is a method of the same name: `y = ctx.mul_mat(w, x)`. Closing the context
    closes its graphs and the buffers that `alloc` made for it. C: ggml_init, no_alloc
    """

    __slots__ = ("_arrays", "_buffers", "_custom_ops")

    def __init__(self, reserve: int = _arena.SIZE) -> None:
        """`reserve` is the address space for metadata, in bytes. Memory is used only as tensors are
        made.

        A tensor takes 368 bytes, so by default 1.4 million of them fit. Raises `AllocError` if the
        process may not have that much address space.
        """
        reserve = integer("reserve", reserve, 1)
        block = _arena.take(reserve)
        params = ffi.new("struct ggml_init_params *")
        params.mem_size, params.mem_buffer = reserve, _arena.address(block)
        params.no_alloc = True
        ptr = lib.ggml_init(params[0])

        def free(raw: Any) -> None:
            used = lib.ggml_used_mem(raw)
            lib.ggml_free(raw)
            _arena.give(block, used)

        self._arrays = Arrays()
        self._buffers: list[Buffer] = []
        self._custom_ops: list[CustomOp] = []
        super().__init__(ptr, free)

    _needs_parents = False

    def _free(self) -> None:
        """The metadata stays until nobody holds this object: Tensors read it without calls."""
        LIVE.remove(self._token)

    def __repr__(self) -> str:
        return "<Context closed>" if self.closed else f"<Context {sum(1 for _ in self)} tensors>"

    def __iter__(self) -> Iterator[Tensor]:
        """All tensors, in the order in which they were made. C: ggml_get_first_tensor"""
        ptr = lib.ggml_get_first_tensor(self.ptr)
        while ptr != NULL:
            yield Tensor(ptr, self)
            ptr = lib.ggml_get_next_tensor(self.ptr, ptr)

    def __getitem__(self, name: str) -> Tensor:
        """The first tensor of that name. Raises KeyError. C: ggml_get_tensor"""
        ptr = lib.ggml_get_tensor(self.ptr, c_text("name", name))
        if ptr == NULL:
            raise KeyError(f"no tensor named '{name}' in this context")
        return Tensor(ptr, self)

    def new_tensor(self, type: TypeLike, *ne: int, name: str | None = None) -> Tensor:
        """A new tensor of up to four dimensions, ne0 (contiguous) first.

        Raises `ArgumentError` for impossible dimensions. C: ggml_new_tensor
        """
        ggml_type = type_of(type)
        if not 1 <= len(ne) <= 4:
            raise ArgumentError(f"ne {list(ne)}: expected one to four numbers")
        ne = tuple([integer(f"ne{i}", n) for i, n in enumerate(ne)])
        block = lib.ggml_blck_size(ggml_type)
        if block == 0 or ne[0] % block:
            raise ArgumentError(
                f"ne0 {ne[0]}: {ggml_type.name.lower()} has blocks of {block} elements"
            )
        if math.prod(ne) // block * lib.ggml_type_size(ggml_type) > MOST_BYTES:
            raise ArgumentError(f"ne {list(ne)}: no machine addresses that many bytes")
        tensor = Tensor(lib.ggml_new_tensor(self.ptr, ggml_type, len(ne), list(ne)), self)
        if name is not None:
            tensor.name = name
        return tensor

    def from_numpy(
        self,
        array: npt.ArrayLike,
        name: str | None = None,
        type: TypeLike | None = None,
        imatrix: npt.ArrayLike | None = None,
    ) -> Tensor:
        """A tensor with the data of the array: ne = reversed(array.shape). It has the data as soon
        as it has memory, from any source.

        In memory of a scheduler or a `GraphAllocator` the array is written each time the graph is
        allocated. The tensor is then marked as an output (`set_output`), so that no later node
        overwrites it. What `set` or an op writes to the tensor stays until the next allocation.

        `type` converts or quantises; `imatrix` is as in `quantize`. Integers keep their type. So
        does float64 (the default of numpy and of lists), with a warning: ggml copies f64 but does
        not compute with it. Pass `type="f32"` for ops, or `type="f64"` to keep f64 without the
        warning. Raises `ArgumentError` for data other than numbers, for numbers beyond the type's
        range, and for a missing or wrong imatrix.
        """
        values = numbers(array)
        shape = values.shape or (1,)
        if type is None and values.dtype == np.float64:
            warnings.warn(
                f"from_numpy: tensor {name or ''!r} is f64, like the array, but ggml's ops compute"
                " with f32: pass type='f32', or type='f64' to keep it without this warning",
                stacklevel=2,
            )
        kind = type_of(values.dtype if type is None else type)
        data = encode(values, kind, shape[-1], imatrix)
        tensor = self.new_tensor(kind, *reversed(shape), name=name)
        self._arrays.add(tensor._ptr, data.copy() if np.may_share_memory(data, values) else data)
        return tensor

    def from_dlpack(self, producer: Any, name: str | None = None) -> Tensor:
        """A tensor over the memory of a numpy array, a torch tensor or any object with
        `__dlpack__`.

        Nothing is copied: writes on one side are visible on the other. The tensor has its memory at
        once, and keeps the producer's memory alive. Strides are kept, so ne and nb may be those of
        a permuted tensor. Raises TypeError for objects without `__dlpack__`. Raises `ArgumentError`
        for memory that the CPU cannot read or may not write, and for element types that ggml lacks.
        Impossible layouts raise it, too: more than four dimensions, no elements, strides that are
        negative or overlap. C: ggml_backend_cpu_buffer_from_ptr
        """
        from ..tensors import dlpack

        foreign = dlpack.take(producer)
        _address, type_, shape, strides, readonly = foreign.layout
        if readonly:
            raise ArgumentError(
                "the memory may only be read, but ops write to it: expected a writable array, or "
                "copy it with from_numpy()"
            )
        shape, strides = (shape, strides) if shape else ((1,), (1,))
        ne, nb = tuple(reversed(shape)), list(reversed(strides))
        if len(ne) > 4 or 0 in ne:
            raise ArgumentError(f"shape {shape}: expected one to four dimensions, none empty")
        span = size = lib.ggml_type_size(type_)
        for i in sorted(range(len(ne)), key=lambda i: nb[i]):
            if ne[i] == 1:
                continue
            if nb[i] < span or nb[i] % size:
                raise ArgumentError(
                    f"strides of {strides} bytes for shape {shape} are negative or overlap: "
                    "copy the array first (numpy.ascontiguousarray)"
                )
            span = nb[i] * (ne[i] - 1) + span
        if span > dlpack.MAX_BYTES:
            raise ArgumentError(
                f"strides of {strides} bytes for shape {shape}: no machine addresses that many "
                "bytes; expected the strides of an array"
            )
        with reading(self):  # keeps `alloc` from giving the tensor other memory
            return self._over(foreign, ne, nb, name)

    def _over(
        self, foreign: Foreign, ne: Sequence[int], nb: Sequence[int], name: str | None
    ) -> Tensor:
        """A tensor over the memory of `foreign`."""
        address, type_, *_rest = foreign.layout
        size = lib.ggml_type_size(type_)
        tensor = self.new_tensor(type_, *ne, name=name)
        for i in range(4):
            if i >= len(ne) or ne[i] == 1:
                tensor._ptr.nb[i] = (
                    size if i == 0 else tensor._ptr.nb[i - 1] * tensor._ptr.ne[i - 1]
                )
            else:
                tensor._ptr.nb[i] = nb[i]
        before = address % device("CPU").buffer_type.alignment  # upstream needs aligned buffers
        base = ffi.cast("char *", address - before)
        ptr = lib.ggml_backend_cpu_buffer_from_ptr(base, before + lib.ggml_nbytes(tensor._ptr))
        buffer = Buffer(ptr, foreign)
        buffer._held[0].padded = True
        lib.ggml_backend_tensor_alloc(ptr, tensor._ptr, base + before)
        self.keep_buffer(buffer)
        return tensor

    @property
    def used_mem(self) -> int:
        """Bytes of metadata in use, out of `mem_size`. C: ggml_used_mem"""
        return int(lib.ggml_used_mem(self.ptr))

    @property
    def mem_size(self) -> int:
        """Bytes available for metadata: `reserve`. C: ggml_get_mem_size"""
        return int(lib.ggml_get_mem_size(self.ptr))

    @property
    def max_tensor_size(self) -> int:
        """Bytes of its largest tensor. C: ggml_get_max_tensor_size"""
        return int(lib.ggml_get_max_tensor_size(self.ptr))

    def dup_tensor(self, src: Tensor) -> Tensor:
        """A new tensor with the type and ne of src, without its data. C: ggml_dup_tensor"""
        ptr_of(Tensor, src)
        self._adopt(src)
        return Tensor(lib.ggml_dup_tensor(self.ptr, src.ptr), self)

    def view_tensor(self, src: Tensor) -> Tensor:
        """A view of all of src. C: ggml_view_tensor"""
        ptr_of(Tensor, src)
        self._adopt(src)
        return Tensor(lib.ggml_view_tensor(self.ptr, src.ptr), self)

    @typed
    def new_graph(self, size: int = 2048, grads: bool = False) -> Graph:
        """An empty graph for up to `size` nodes and as many leafs. C: ggml_new_graph_custom"""
        from .graph import Graph

        return Graph(self, size, grads)

    def alloc(self, where: Backend | BufferType | str, usage: str = "any") -> Buffer:
        """Allocates one new buffer for all tensors of the context that have no memory yet.

        `where` is a backend, a buffer type or the name of a device. `usage="weights"` makes the
        scheduler prefer to run ops where these tensors are. Copies in the data of `from_numpy`.
        The context holds the buffer; with nothing to allocate the buffer is empty. A view of a
        tensor without memory in another context gets memory when that tensor does.
        Raises `AllocError`. C: ggml_backend_alloc_ctx_tensors_from_buft
        """
        number = usage_of(usage)
        if isinstance(where, str):
            buft = device(where).buffer_type
        elif isinstance(where, Backend | BufferType):
            buft = where.buffer_type if isinstance(where, Backend) else where
        else:
            raise TypeError(
                f"expected a Backend, a BufferType or a device's name, got {describe(where)}"
            )
        with allocating(self), self._held(), reading(*self._graphs()):
            ptr = lib.gp_alloc_tensors(self.ptr, buft.ptr)
            if ptr == NULL:
                # ggml_backend_alloc_ctx_tensors_from_buft_size is not in every release.
                size = lib.ggml_backend_buft_get_alloc_size
                homeless = [t for t in self if t._ptr.data == t._ptr.view_src == NULL]
                sizes = [int(size(buft.ptr, t._ptr)) for t in homeless]
                if sum(sizes):
                    named = dict(zip((t.name for t in homeless), sizes, strict=True))
                    raise buft._no_memory(sum(sizes), named)
                buffer = buft.alloc(0)
            else:
                buffer = Buffer(ptr)
            lib.ggml_backend_buffer_set_usage(buffer.ptr, number)
            self.keep_buffer(buffer)
            buffer._adopt_parts(self)
            self._arrays.upload_all()
        return buffer

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Around a C call that walks over its tensors without the GIL: other threads that make
        tensors in it get `BusyError`."""
        if not lib.gp_trace_present():
            yield
            return
        ptr = self.ptr
        lib.gp_context_hold(ptr)
        try:
            yield
        finally:
            lib.gp_context_let_go(ptr)

    def _graphs(self) -> list[Handle]:
        """The open graphs that its tensors may be in."""
        from .graph import Graph

        found: dict[int, Handle] = {}
        self._reach(found)
        return [handle for handle in found.values() if isinstance(handle, Graph)]

    def _adopt(self, *operands: Tensor | None) -> None:
        """Makes the operands' contexts outlive this one. Raises `ClosedError` for a closed one."""
        parents = self._parents  # none of them is closed while this one is open
        for tensor in operands:
            if tensor is not None:
                context = tensor._context
                if context is not self and context not in parents:
                    context.ptr  # noqa: B018  raises when closed
                    if not isinstance(context, Handle):
                        raise ArgumentError(
                            f"'{tensor.name}' is a copy made by a scheduler: use the tensor that "
                            "it copies"
                        )
                    self._depend(context)

    def keep_buffer(self, buffer: Buffer) -> None:
        """Holds a buffer into which a call of `lib` (ggml_backend_tensor_alloc) put tensors of this
        context. Closing the context closes it; if it is closed earlier, they lose their memory.
        `alloc` and `Tensor.alloc` need no such call."""
        ptr_of(Buffer, buffer)
        self._buffers.append(buffer)
        buffer._contexts.add(self)

    def _place(self, tensor: Tensor, buffer: Buffer) -> None:
        """Holds the buffer of `tensor`, which somebody else owns, and learns when it is closed."""
        if buffer not in self._parents:
            self._parents.append(buffer)  # not as its child: closing it only takes the memory
            buffer._contexts.add(self)
        self._arrays.upload(tensor._ptr)

    def _forget_buffer(self, buffer: Buffer) -> None:
        found: dict[int, Handle] = {}
        Handle._reach(self, found)  # views of these tensors; contexts may need each other
        for context in found.values():
            if isinstance(context, Context) and not context.closed:
                for tensor in context:
                    if buffer._is(tensor._ptr.buffer):
                        lib.gp_take_memory([tensor._ptr], 1)
                if buffer in context._buffers:
                    context._buffers.remove(buffer)

    def _reach(self, found: dict[int, Handle]) -> None:
        if id(self) not in found:
            super()._reach(found)
            for buffer in list(self._buffers):
                buffer._reach(found)

    def _before_free(self) -> None:
        for buffer in list(self._buffers):
            buffer.close()
        for parent in self._parents:
            if isinstance(parent, Buffer):
                parent._contexts.discard(self)
        self._custom_ops.clear()  # everything that could compute them is closed

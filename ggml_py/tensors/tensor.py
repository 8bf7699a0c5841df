"""Tensors, which their context owns. data.py handles their data."""

from __future__ import annotations

import reprlib
from typing import Any

from .. import enums
from ..backends.buffer import Buffer, BufferView
from ..backends.sharing import placing
from ..boundary.arguments import describe, integer, ptr_of
from ..boundary.arguments import enum_of as enum_of
from ..boundary.ffi import NULL, ffi, lib, text
from ..boundary.handle import Handle
from ..errors import AbortError, AllocError, ArgumentError, BusyError, GgmlError
from ..files.foreign import html
from .convert import TypeLike as TypeLike
from .convert import type_of as type_of
from .data import TensorData
from .lent import lender_of
from .op_settings import OpSettings


class Tensor(TensorData, OpSettings):
    """One tensor of a context: a leaf with data (`Context.new_tensor`, `from_numpy`), or the result
    of an op (`Context.add`).

    Shapes are in ggml's order: `ne` always has four numbers, and ne0 is the contiguous dimension.
    numpy's shape is the reverse. Two Tensors are equal if they are the same native tensor.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and bool(self._ptr == other._ptr)

    def __hash__(self) -> int:
        return hash(self._ptr)

    def _repr_html_(self) -> str:
        return f"<code>{html(repr(self))}</code>"

    def __repr__(self) -> str:
        if self._context.closed:
            return "<Tensor of a closed Context>"
        ne = ", ".join(map(str, self.ne))
        op = "" if self.op == enums.Op.NONE else f" = {text(lib.ggml_op_desc(self.ptr))}"
        return f"<Tensor {self.name!r} {self.type.name.lower()} [{ne}]{op}>"

    @property
    def op(self) -> enums.Op:
        """The op that computes it; NONE for a leaf."""
        return enums.Op(self.ptr.op)

    @property
    def flags(self) -> enums.TensorFlag:
        """Its flags: INPUT, OUTPUT, PARAM, LOSS, COMPUTE."""
        return enums.TensorFlag(self.ptr.flags)

    @property
    def src(self) -> tuple[Tensor, ...]:
        """Its sources in upstream's order, without absent ones."""
        mine = self._context
        return tuple(Tensor(s, lender_of(s, mine)) for s in self.ptr.src if s != NULL)

    @property
    def view_src(self) -> Tensor | None:
        """The tensor whose memory it views; None if it is not a view."""
        return None if self.ptr.view_src == NULL else Tensor(self.ptr.view_src, self._context)

    @property
    def view_offs(self) -> int:
        """Bytes from the start of `view_src`."""
        return int(self.ptr.view_offs)

    @property
    def buffer(self) -> BufferView | None:
        """The buffer that it is in; None before allocation."""
        return None if self._buffer() == NULL else BufferView(self)

    def set_input(self) -> None:
        """Marks it as an input of the graph: the scheduler puts it on the last backend and
        allocates it first. Write its data before every compute: later nodes may reuse its memory.
        If they do, results of a compute without new data cannot be read (`NoDataError`).

        C: ggml_set_input
        """
        lib.ggml_set_input(self.ptr)

    def set_output(self) -> None:
        """Marks it as an output: its memory is not reused by later nodes of the graph.

        C: ggml_set_output
        """
        lib.ggml_set_output(self.ptr)

    def set_param(self) -> None:
        """Marks it as a parameter: `Graph.build_backward_expand` and `OptContext` train it.

        Raises `ArgumentError` for the result of an op. C: ggml_set_param
        """
        if self.op != enums.Op.NONE:
            raise ArgumentError(f"{self!r} is computed: expected a tensor that no op computes")
        lib.ggml_set_param(self.ptr)

    def set_loss(self) -> None:
        """Marks it as a loss, the tensor that gradients are taken of. Raises `ArgumentError` unless
        it is a scalar of f32. C: ggml_set_loss
        """
        if self.n_elements != 1 or self.type != enums.Type.F32:
            raise ArgumentError(f"{self!r}: expected a scalar of f32, such as the result of sum()")
        lib.ggml_set_loss(self.ptr)

    def alloc(self, buffer: Buffer, offset: int = 0) -> None:
        """Puts the tensor at `offset` (bytes) in a buffer. Does not check for overlap with other
        tensors.

        Copies in the data of `from_numpy`. The context keeps the buffer alive but does not close
        it. Raises `ArgumentError` for a tensor that has memory or is a view, an offset that is not
        aligned to `buffer.type.alignment`, and a place outside the buffer; `AllocError` if the
        backend refuses.
        C: ggml_backend_tensor_alloc
        """
        ptr_of(Buffer, buffer)
        # Closing the buffer waits and then finds this tensor; no graph with it is planned now, and
        # nothing else gives memory to tensors of its context.
        context = [self._context] if isinstance(self._context, Handle) else []
        with placing(buffer, *context, *self._graphs()):
            self._alloc(buffer, offset)

    def _graphs(self) -> list[Handle]:
        """The open graphs that it may be in."""
        graphs = getattr(self._context, "_graphs", None)  # only a Context has them
        return graphs() if graphs is not None else []

    def _alloc(self, buffer: Buffer, offset: int) -> None:
        self._check_without_memory()
        ptr, place, offset = self.ptr, buffer.ptr, integer("offset", offset)
        base = ffi.cast("char *", lib.ggml_backend_buffer_get_base(place))
        alignment = buffer.type.alignment
        if base == NULL or offset % alignment:
            raise ArgumentError(f"offset {offset}: expected a multiple of {alignment} in {buffer}")
        need = buffer.alloc_size(self)
        if offset + need > buffer.size:
            raise ArgumentError(
                f"tensor '{self.name}' takes {need:,} bytes: at offset {offset:,} they do not fit "
                f"in {buffer}"
            )
        try:
            status = lib.ggml_backend_tensor_alloc(place, ptr, base + offset)
        except AbortError as error:
            self._check_without_memory()  # raises if another thread has just placed it
            if "tensor->buffer == NULL" in error.condition:  # placed and taken away again
                raise BusyError(
                    f"tensor '{self.name}' was given other memory on another thread: wait until "
                    "that returns"
                ) from error
            raise
        self._placed(buffer, status)

    def _check_without_memory(self) -> None:
        ptr = self.ptr
        if ptr.data != NULL or ptr.buffer != NULL or ptr.view_src != NULL:
            has = "is a view" if ptr.view_src != NULL else "already has memory"
            raise ArgumentError(f"tensor '{self.name}' {has}: expected one without")

    def _placed(self, buffer: Buffer, status: int) -> None:
        """Finishes putting it into `buffer`, given the status that upstream returned."""
        if status != enums.Status.SUCCESS:
            lib.gp_take_memory([self._ptr], 1)
            reason = text(lib.ggml_status_to_string(status))
            raise AllocError(f"tensor '{self.name}' cannot be in {buffer}: {reason}")
        buffer._mark_blank(self._ptr)
        self._context._place(self, buffer)


# The exceptions of Python and cffi for arguments that they cannot pass on.
MISTAKES = (AttributeError, TypeError, OverflowError)


def not_tensors(*operands: object) -> TypeError:
    """The error for an op that was given something other than a Tensor."""
    wrong = next(o for o in operands if not isinstance(o, Tensor))
    todo = ": Context.from_numpy makes one" if hasattr(wrong, "__array__") else ""
    return TypeError(f"expected a Tensor, got {describe(wrong)}{todo}")


def mistake(error: Exception, operands: list[Any], describe: dict[str, Any]) -> Exception:
    """The exception to raise for one of `MISTAKES` in an op with the locals `describe`."""
    if isinstance(error, GgmlError):
        return error
    if isinstance(error, AttributeError):
        return not_tensors(*sorted(operands, key=lambda o: o is None))  # some may be None
    hidden = ("self", "error", "result")
    numbers = {n: v for n, v in describe.items() if n not in hidden and not isinstance(v, Tensor)}
    shown = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in numbers.items())
    kind = ArgumentError if isinstance(error, OverflowError) else TypeError
    return kind(f"{error} (given {shown})")

"""The weights of a model: tensors in the mapped file, copied into a device's memory, or copied into
the CPU's memory in a layout for its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, overload

from ...backends.buffer import Buffer, BufferType, usage_of
from ...backends.device import device
from ...boundary.ffi import NULL, ffi, lib
from ...errors import AllocError, ModelError
from ...gguf.header import ADVICE
from ...gguf.reader import Gguf, GgufTensor
from ...graphs.context import Context
from ...llama.options import Progress
from ...tensors.tensor import Tensor
from . import copying, free_memory
from .hparams import UnsupportedError
from .parts import Has, Linear
from .placement import LayerPlacement

if TYPE_CHECKING:
    import numpy as np

    from .copying import Unread

    Bytes = np.memmap[Any, np.dtype[np.uint8]]


class Weights:
    """Declares tensors one by one, checks each against the file, then gives all of them data.

    There is one context per buffer type. A tensor that is needed in two of them (a tied output on
    another device than the input) is in both contexts.
    """

    def __init__(self, gguf: Gguf, placement: LayerPlacement) -> None:
        self._gguf = gguf
        self._placement = placement
        self._contexts: dict[BufferType, Context] = {}
        self._made: dict[tuple[BufferType, str], Tensor] = {}
        self._buffers: list[Buffer] = []
        self._unread: Unread = []
        self.only_header = ""  # why they cannot be read
        self.before_reading: Callable[[], None] | None = None  # called once

    # --- declaring

    def has(self, name: str) -> bool:
        """Whether the file has the tensor `name`."""
        return name in self._gguf.tensors

    @overload
    def tensor(self, il: int, name: str, *ne: int) -> Tensor: ...
    @overload
    def tensor(self, il: int, name: str, *ne: int, required: bool) -> Tensor | None: ...
    def tensor(self, il: int, name: str, *ne: int, required: bool = True) -> Tensor | None:
        """The tensor `name`, in the buffer type for layer `il`; None if it is absent and not
        required.

        Raises `ModelError` if a required tensor is missing, or if `ne` differs from the file's.
        """
        info = self._gguf.tensors.get(name)
        if info is None:
            if required:
                raise ModelError(
                    f"{self._gguf.path}: tensor '{name}' {list(ne)} is not among the file's "
                    f"{len(self._gguf.tensors)} tensors: the file is incomplete or mislabelled. "
                    f"{ADVICE}"
                )
            return None
        expected = (*ne, 1, 1, 1)[:4]
        if info.ne != expected:
            raise ModelError(
                f"{self._gguf.path}: tensor '{name}' has ne {list(info.ne)}, "
                f"expected {list(expected)} from the metadata. {ADVICE}"
            )
        buft = self._placement.weight_buffer_type(il, name, info.type, ne)
        if (buft, name) not in self._made:
            if buft not in self._contexts:
                self._contexts[buft] = Context()
            self._made[buft, name] = self._contexts[buft].new_tensor(info.type, *ne, name=name)
        return self._made[buft, name]

    def linear(
        self, il: int, name: str, n_in: int, n_out: int, bias: Has = "maybe", scale: bool = True
    ) -> Linear:
        """`name.weight` [n_in, n_out], `name.bias` as `bias` says, `name.scale` if the file has it.

        Without `scale` a scale in the file is not used, as in some of llama.cpp's graphs.
        """
        weight = self.tensor(il, f"{name}.weight", n_in, n_out)
        offset, factor = self.bias(il, name, n_out, bias), self.scale(il, name, 1)
        return Linear(weight, offset, factor if scale else None)

    def scale(self, il: int, name: str, n: int) -> Tensor | None:
        """`name.scale` [n] if the file has it. Like llama.cpp it also loads `name.input_scale`, for
        backends that quantise activations, which no graph reads."""
        self.tensor(il, f"{name}.input_scale", n, required=False)
        return self.tensor(il, f"{name}.scale", n, required=False)

    def bias(self, il: int, name: str, n: int, bias: Has) -> Tensor | None:
        """`name.bias` [n], as `bias` says."""
        if bias == "no":
            return None
        return self.tensor(il, f"{name}.bias", n, required=bias == "yes")

    def unread(self, il: int, name: str) -> None:
        """Loads a tensor that no graph here reads, if the file has it, as llama.cpp does."""
        if self.has(name):
            self.tensor(il, name, *self._gguf.tensors[name].ne)

    # --- loading

    def alloc(self) -> None:
        """Gives every declared tensor its memory: in the mapped file if its buffer type is the
        CPU's plain memory, otherwise in a buffer that `read` fills.

        Raises `ModelError` if the file has tensors that were not declared, and `AllocError`.
        """
        self._check_unused()
        parts = [self._gguf.mmap(part) for part in range(len(self._gguf.paths))]
        for buft, context in self._contexts.items():
            pairs = [(t, self._gguf.tensors[t.name]) for t in context]
            aligned = all(info.offset % buft.alignment == 0 for _tensor, info in pairs)
            mapped = self._placement.mmap and buft == device("CPU").buffer_type
            if aligned and mapped:
                for part, data in enumerate(parts):
                    self._map(context, [pair for pair in pairs if pair[1].part == part], data)
            else:
                self._buffers.append(free_memory.alloc(context, buft, usage="weights"))
                # The list is read from its end. So the output comes first: it is the largest, and
                # read last it would keep one thread busy alone. Then the layers follow in order.
                for tensor, info in reversed(pairs):
                    raw = parts[info.part][info.offset : info.offset + info.nbytes]
                    self._unread.append((tensor, buft, raw))

    def read(self, progress: Progress | None = None) -> None:
        """Copies the tensors that are not mapped, once. This also creates the layout of an extra
        buffer type. Planning does not need it. `progress` is called as `models.load` describes."""
        if self.only_header:
            raise ModelError(self.only_header)
        if self.before_reading is not None:
            self.before_reading()
            self.before_reading = None
        some = bool(self._unread)
        if some or progress is not None:
            n_threads = self._placement.backends[-1].n_threads or 1
            copying.read(self._unread, str(self._gguf.path), progress, n_threads)
        if some:
            self._gguf.check_unchanged()

    def _check_unused(self) -> None:
        used = {name for _buft, name in self._made}
        # llama.cpp keeps *.input_scale for backends that quantise activations. No graph reads it.
        unused = [
            name
            for name in self._gguf.tensors
            if name not in used and not name.endswith(".input_scale")
        ]
        if unused:
            shown = ", ".join(unused[:5]) + (", …" if len(unused) > 5 else "")
            raise UnsupportedError(
                f"{self._gguf.path} has {len(unused)} tensor{'s' * (len(unused) != 1)} that the "
                f"graph of this architecture does not use: {shown}. Running without "
                f"{'them' if len(unused) != 1 else 'it'} would give wrong results"
            )

    def _map(self, context: Context, pairs: list[tuple[Tensor, GgufTensor]], data: Bytes) -> None:
        """Puts tensors where the file is mapped. Pages are read from disk when they are used. As in
        llama.cpp the buffer begins at the first tensor and ends with the last."""
        if not pairs:
            return  # this part of a split model has none of them
        base = ffi.cast("char *", ffi.from_buffer(data))
        largest = max(info.nbytes for _tensor, info in pairs)
        first = min(info.offset for _tensor, info in pairs)
        nbytes = max(info.offset + info.nbytes for _tensor, info in pairs) - first
        ptr = lib.ggml_backend_dev_buffer_from_host_ptr(
            device("CPU").ptr, base + first, nbytes, largest
        )
        if ptr == NULL:
            raise AllocError(f"the CPU device cannot use {nbytes:,} mapped bytes")
        buffer = Buffer(ptr, data)
        self._buffers.append(buffer)
        lib.ggml_backend_buffer_set_usage(buffer.ptr, usage_of("weights"))
        for tensor, info in pairs:
            lib.ggml_backend_tensor_alloc(buffer.ptr, tensor.ptr, base + info.offset)
        context.keep_buffer(buffer)

    @property
    def placed(self) -> Collection[tuple[BufferType, str]]:
        """Each tensor's buffer type and name; a tied output may be in two."""
        return self._made.keys()

    def nbytes_by_buffer_type(self) -> dict[BufferType, int]:
        """Bytes of the buffers of each type, with alignment, and with the gaps between the tensors
        that stay in the mapped file."""
        return free_memory.sizes(self._buffers)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; those in two buffer types count twice."""
        return sum(tensor.nbytes for tensor in self._made.values())

    @property
    def n_params(self) -> int:
        """The number of elements of all tensors in the file."""
        return sum(math.prod(info.ne) for info in self._gguf.tensors.values())

    def close(self) -> None:
        """Closes the contexts, and the buffers with them."""
        for context in self._contexts.values():
            context.close()

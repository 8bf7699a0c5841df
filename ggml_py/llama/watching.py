"""Callbacks that see the nodes of an evaluation: named activations, as arrays, and all nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.callback import Callback
from ..boundary.ffi import ffi, lib, text
from ..enums import Type
from ..tensors.convert import DTYPES, decode
from ..tensors.lent import Lent
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt


class Watching(Callback):
    """Copies the nodes whose names match one of `patterns`, as they are computed.

    `found` has an array per name, the first axis of ggml last; a name that is computed in several
    graphs (ubatches) or several times has the last one's.
    """

    __slots__ = ("found", "patterns")

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__()
        self.patterns = tuple(patterns)
        self.found: dict[str, npt.NDArray[Any]] = {}

    def _run(self, node: Any, ask: bool) -> bool:
        name = text(node.name)
        wanted = any(fnmatchcase(name, pattern) for pattern in self.patterns)
        if wanted and not ask:
            self.found[name] = array_of(node)
        return wanted or not ask  # False as the answer to a computed node would stop


class Looking(Callback):
    """Shows every node to a function of the node and of whether it asks, as an eval callback."""

    __slots__ = ("look",)

    def __init__(self, look: Callable[[Tensor, bool], bool]) -> None:
        super().__init__()
        self.look = look

    def _run(self, node: Any, ask: bool) -> bool:
        lent = Lent("an eval callback")
        try:
            return bool(self.look(Tensor(node, lent), ask))
        finally:
            lent.closed = True


def array_of(tensor: Any) -> npt.NDArray[Any]:
    """A copy of a native tensor's data; quantised types as float32."""
    ne, nb = list(tensor.ne), list(tensor.nb)
    raw = np.empty(lib.ggml_nbytes(tensor), np.uint8)
    if raw.size:
        lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(raw), 0, raw.nbytes)
    shape = ne[::-1]
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    dtype = DTYPES.get(Type(tensor.type))
    if dtype is None:
        floats: npt.NDArray[Any] = decode(raw, Type(tensor.type), int(np.prod(ne)))
        return floats.reshape(shape)
    strides = nb[::-1][4 - len(shape) :]
    view: npt.NDArray[Any] = np.lib.stride_tricks.as_strided(raw.view(dtype), shape, strides)
    return np.array(view)

"""Inputs of a graph: tensors that are written for each ubatch, directly in the graph's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...enums import Type
from ...graphs.context import Context
from ...tensors.convert import DTYPES
from ...tensors.tensor import Tensor
from ..cache.ubatch import Ubatch

if TYPE_CHECKING:
    import numpy.typing as npt


class Input(Protocol):
    """One tensor, or several that are written together."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that `set` writes."""

    def share(self) -> None:
        """Makes numpy arrays over the tensors. The graph must have its memory."""

    def set(self, ubatch: Ubatch) -> None:
        """Writes the tensors for a ubatch. Nodes may have reused their memory since the last one,
        so constants are written every time, too."""


class Written:
    """A tensor that is set to `of(ubatch)`."""

    def __init__(self, tensor: Tensor, of: Callable[[Ubatch], Any]) -> None:
        self._tensor = tensor
        self.tensors = (tensor,)
        self._of = of

    def share(self) -> None:
        """See `Input`."""
        self.array = array_of(self._tensor)

    def set(self, ubatch: Ubatch) -> None:
        """See `Input`."""
        self.array[:] = self._of(ubatch)


class Constant:
    """A tensor that always has the same content: `value`, anything that numpy can assign."""

    def __init__(self, tensor: Tensor, value: Any) -> None:
        self.value: npt.NDArray[Any] = np.empty(tensor.ne[::-1], DTYPES[tensor.type])
        self.value[:] = value
        self._tensor = tensor
        self.tensors = (tensor,)

    def share(self) -> None:
        """See `Input`."""
        self.array = array_of(self._tensor).reshape(self.value.shape)

    def set(self, _ubatch: Ubatch) -> None:
        """See `Input`."""
        self.array[:] = self.value


def new_input(ctx: Context, type_: Type, *ne: int, name: str) -> Tensor:
    """A new tensor, marked as an input of the graph."""
    tensor = ctx.new_tensor(type_, *ne, name=name)
    tensor.set_input()
    return tensor


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """A numpy array over an input, valid while the graph has its memory."""
    return tensor.numpy()

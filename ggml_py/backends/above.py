"""What backends know of the objects above them: a tensor, a context, a graph to compute.

Their classes stand on higher floors (tensors/, graphs/), and these are the bases of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..boundary.handle import Handle

if TYPE_CHECKING:
    from ..boundary.callback import Callback

PlanT = TypeVar("PlanT", covariant=True)


class AnyTensor:
    """A `Tensor`."""

    __slots__ = ()
    _shown_as = "Tensor"

    @property
    def ptr(self) -> Any:
        """The native `struct ggml_tensor *`."""
        raise NotImplementedError

    def _data_buffer(self) -> Any:
        """The native buffer, which stays as long as somebody has this pointer."""
        raise NotImplementedError

    def _check_copy(self, target: Any) -> None:
        """Raises for two tensors that no copy is possible between."""
        raise NotImplementedError


class AnyContext(Handle):
    """A `Context`, some of whose tensors live in a buffer."""

    __slots__ = ()
    _shown_as = "Context"

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def _forget_buffer(self, buffer: Any) -> None:
        """Its tensors in a `Buffer` have no memory any more."""
        raise NotImplementedError


class AnyGraph(Handle):
    """A `Graph`, as it is around a compute (computing.py, sharing.py)."""

    __slots__ = ("_whole_at",)
    _shown_as = "Graph"
    _whole_at: int  # `gp_changes` when all tensors had memory; see sharing

    def _check_data(self) -> None:
        """Raises `NoDataError` for a tensor without memory."""
        raise NotImplementedError

    def _check_buffers(self, computes: Any) -> None:
        """Raises `ArgumentError` for a tensor in memory that a `Backend` or `Device` cannot
        read."""
        raise NotImplementedError

    def _check_custom(self, backends: Sequence[Any], backend_of: Callable[[Any], Any]) -> None:
        """Raises `ArgumentError` for a custom op on a `Backend` that cannot call Python."""
        raise NotImplementedError

    def _failed_ops(self) -> Sequence[Callback]:
        """Its custom ops that have raised something which nobody has taken yet."""
        raise NotImplementedError


class Plannable(Protocol[PlanT]):
    """A `Graph`, which makes the plan that a backend is asked for."""

    def _plan_on(self, backend: Any) -> PlanT: ...

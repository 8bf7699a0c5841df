"""What backends know about the objects above them: tensors, contexts and graphs to compute.

These are the base classes; the classes themselves are in higher layers (tensors/, graphs/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from ..boundary.handle import Handle
from ..errors import ArgumentError

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
        """The native buffer, which lives as long as somebody holds this pointer."""
        raise NotImplementedError

    def _check_copy(self, target: Any) -> None:
        """Raises if this tensor cannot be copied to `target`."""
        raise NotImplementedError


class AnyContext(Handle):
    """A `Context` with tensors in a buffer."""

    __slots__ = ()
    _shown_as = "Context"

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def _forget_buffer(self, buffer: Any) -> None:
        """Takes the memory from its tensors in a `Buffer`."""
        raise NotImplementedError


class AnyGraph(Handle):
    """A `Graph`, as computing.py and sharing.py see it."""

    __slots__ = ("_only_read", "_reused", "_turn", "_whole_at")
    _shown_as = "Graph"
    _only_read: str  # why it can neither be changed nor get memory; "" if it can
    _whole_at: int  # `gp_changes` when all tensors last had memory
    # The leafs whose memory its nodes use again, as arguments of `gp_blank_lose`; () if there are
    # none, None until the first compute after it got memory.
    _reused: tuple[Any, ...] | None
    _turn: int  # of its last compute, counted over all graphs; -1 before the first

    def _check_own(self) -> None:
        """Raises `ArgumentError` for a graph that can only be read."""
        if self._only_read:
            raise ArgumentError(self._only_read)

    def _check_data(self) -> None:
        """Raises `NoDataError` for a tensor without memory."""
        raise NotImplementedError

    def _runs(self) -> Any:
        """The native graph that is computed: this one, or a scheduler's copy of it."""
        raise NotImplementedError

    def _find_reused(self, runs: Any) -> None:
        """Finds `_reused` in the graph that is computed."""
        raise NotImplementedError

    def _never_set(self, leaf: Any) -> NoReturn:
        """Raises `NoDataError` for a native leaf that was never set."""
        raise NotImplementedError

    def _check_buffers(self, computes: Any) -> None:
        """Raises `ArgumentError` for a tensor in memory that `computes`, a `Backend` or `Device`,
        cannot read."""
        raise NotImplementedError

    def _check_custom(self, backends: Sequence[Any], backend_of: Callable[[Any], Any]) -> None:
        """Raises `ArgumentError` for a custom op on a `Backend` that cannot call Python."""
        raise NotImplementedError

    def _failed_ops(self) -> Sequence[Callback]:
        """Its custom ops with an exception that was not raised in Python yet."""
        raise NotImplementedError


class Plannable(Protocol[PlanT]):
    """A `Graph`, which makes the graph plan of a backend."""

    def _plan_on(self, backend: Any) -> PlanT: ...

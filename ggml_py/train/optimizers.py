"""Parameters of optimizers, and the checks on a model that is to be trained."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import enums
from ..boundary.arguments import ptr_of
from ..errors import ArgumentError, GgmlError
from ..graphs.context import Context
from ..tensors.tensor import Tensor
from ..typed import typed

if TYPE_CHECKING:
    import weakref

    from ..graphs.graph import Graph
    from ..scheduler.scheduler import Scheduler
    from .opt_context import OptContext


@typed
@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay.

    `alpha` is the learning rate, `wd` the weight decay. Raises `ArgumentError` for values that ggml
    does not take: an alpha that is not positive, a beta or wd outside 0 to 1, a negative eps.
    """

    alpha: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    wd: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(self, "beta1", "beta2", "wd")
        if not self.eps >= 0:
            raise ArgumentError(f"AdamW: eps={self.eps}: expected 0 or more")


@typed
@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent. `alpha` is the learning rate, `wd` the weight decay.

    Raises `ArgumentError` like `AdamW`.
    """

    alpha: float = 0.001
    wd: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(self, "wd")


def _check_rates(optimizer: AdamW | SGD, *shares: str) -> None:
    name = type(optimizer).__name__
    if not optimizer.alpha > 0:
        raise ArgumentError(f"{name}: alpha={optimizer.alpha}: expected a positive learning rate")
    for share in shares:
        if not 0 <= getattr(optimizer, share) <= 1:
            raise ArgumentError(f"{name}: {share}={getattr(optimizer, share)}: expected 0 to 1")


def check_model(opt: OptContext, model: Graph, inputs: Tensor, outputs: Tensor) -> None:
    """Raises for a model that ggml_opt_build would abort on or train wrongly."""
    if inputs not in model or outputs not in model:
        missing = outputs if inputs in model else inputs
        raise ArgumentError(f"{missing!r} is not in the graph that computes the outputs")
    if inputs.op != enums.Op.NONE:
        raise ArgumentError(f"inputs: {inputs!r} is computed: expected a tensor that can be set")
    if outputs.type != enums.Type.F32 or outputs.n_elements == 0:
        raise ArgumentError(f"outputs: {outputs!r}: expected f32, and not empty")
    is_matrix = outputs.ne[2:] == (1, 1) and outputs.is_contiguous
    if opt.loss_type == enums.OptLossType.CROSS_ENTROPY and not is_matrix:
        raise ArgumentError(
            f"outputs: {outputs!r}: cross entropy takes a contiguous matrix [classes, datapoints]"
        )
    first = opt._scheduler.backends[0]
    params = []
    for node in model.nodes:
        if node.flags & enums.TensorFlag.LOSS:
            raise ArgumentError(
                f"{node!r} is a loss: expected a model without one, because ggml-opt adds its own"
            )
        if node.flags & enums.TensorFlag.PARAM:
            params.append(node)
    if not params and opt.build_type != enums.OptBuildType.FORWARD:
        raise ArgumentError(
            "the outputs depend on no parameter: call set_param() on the tensors to train, or "
            "use build_type='forward'"
        )
    for param in params:
        if param.type != enums.Type.F32:
            raise ArgumentError(f"parameter {param!r}: ggml trains f32 only")
        param._data()
        buffer = param.buffer
        if buffer is not None and not first.supports_buft(buffer.type):
            raise ArgumentError(
                f"parameter {param!r} is in {buffer}, which {first.name} cannot read: allocate it "
                "on the scheduler's first backend, where ggml-opt keeps gradients and momenta"
            )


def context_of(tensor: Tensor) -> Context:
    """The Context of the outputs of a static model."""
    ptr_of(Tensor, tensor)
    if not isinstance(tensor._context, Context):
        raise ArgumentError(f"outputs: {tensor!r} is not a tensor of a Context")
    return tensor._context


def let_go(scheduler: weakref.ref[Scheduler], borrowed: weakref.WeakSet[Graph]) -> None:
    """Takes the graph of an OptContext that is gone from the scheduler."""
    on = scheduler()
    if on is not None and on._graph in borrowed:
        with contextlib.suppress(GgmlError):
            on.reset()
    for graph in list(borrowed):
        with contextlib.suppress(GgmlError):
            graph.close()


def close_all(handles: list[Any]) -> None:
    """Closes and forgets the handles, the last one first."""
    while handles:
        handles.pop().close()

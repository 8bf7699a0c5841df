"""Loops over datasets: epochs and whole trainings.

They are written in Python on top of OptContext, so Ctrl-C and exceptions can end them at a batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from .. import enums
from ..boundary.arguments import check_function, integer, ptr_of
from ..errors import ArgumentError
from ..trace.names import counted
from .datasets import Dataset, OptResult
from .opt_context import OptContext
from .optimizers import SGD, AdamW

if TYPE_CHECKING:
    from ..scheduler.scheduler import Scheduler
    from ..tensors.tensor import Tensor


@dataclass(frozen=True)
class Progress:
    """The progress of one part of an epoch, for callbacks."""

    train: bool  # otherwise this part only evaluates
    result: OptResult  # of this part
    ibatch: int  # batches done
    ibatch_max: int  # batches in this part
    seconds: float  # since the part began

    @property
    def seconds_left(self) -> float:
        """Estimated from the batches that are done."""
        return self.seconds / self.ibatch * (self.ibatch_max - self.ibatch)


EpochCallback: TypeAlias = "Callable[[Progress], object]"


def progress_bar(progress: Progress) -> None:
    """Keeps one line on standard error up to date. C: ggml_opt_epoch_callback_progress_bar"""
    done = 20 * progress.ibatch // progress.ibatch_max
    result, bar = progress.result, "#" * done + "." * (20 - done)
    end = progress.ibatch == progress.ibatch_max
    print(
        f"\r{'train' if progress.train else 'val  '} [{bar}] data={result.ndata:07d} "
        f"loss={result.loss:.5f}±{result.loss_unc:.5f} "
        f"acc={100 * result.accuracy:.2f}±{100 * result.accuracy_unc:.2f}% "
        f"t={progress.seconds:.1f}s ETA={progress.seconds_left:.1f}s ",
        end="\n" if end else "",
        file=sys.stderr,
        flush=True,
    )


def epoch(
    opt: OptContext,
    dataset: Dataset,
    result_train: OptResult | None = None,
    result_eval: OptResult | None = None,
    idata_split: int | None = None,
    callback: Callable[[Progress], object] | None = None,
) -> None:
    """Trains on the datapoints before `idata_split` (default: all) and evaluates the others.

    `callback(progress)` is called after each batch; an exception in it ends the epoch. The epoch
    adds to the given results. Needs static graphs. Raises `ArgumentError` if the dataset does not
    fit the model: another ne or type, missing labels, or labels that the loss does not take. Raises
    it, too, if the datapoints do not make whole batches, or in a part that trains a multiple of
    `opt_period` batches. C: ggml_opt_epoch
    """
    ptr_of(OptContext, opt), ptr_of(Dataset, dataset)
    check_function(callback, "(progress)", "callback")
    n_batches, ibatch_split, inputs = _batches(opt, dataset, idata_split)
    parts = (
        (True, 0, ibatch_split, result_train),
        (False, ibatch_split, n_batches, result_eval),
    )
    for train, first, last, wanted in parts:
        start = time.perf_counter()
        result = OptResult() if wanted is None and callback is not None else wanted
        try:
            for ibatch in range(first, last):
                opt.alloc(train)
                dataset.get_batch(inputs, opt.labels, ibatch)
                opt.eval(result)
                if callback is not None and result is not None:
                    seconds = time.perf_counter() - start
                    callback(Progress(train, result, ibatch + 1 - first, last - first, seconds))
        finally:
            if wanted is None and result is not None:
                result.close()


def _batches(opt: OptContext, dataset: Dataset, idata_split: int | None) -> tuple[int, int, Tensor]:
    """The number of batches, how many of them train, and the inputs. Raises if they do not fit."""
    inputs, data, labels = opt.inputs, dataset.data, dataset.labels
    if not opt.static_graphs or inputs is None:
        raise ArgumentError("epochs need static graphs: give OptContext inputs and outputs")
    wanted = opt.labels
    for what, given_, tensor in (("data", data, inputs), ("labels", labels, wanted)):
        if given_ is None or tensor is None:
            if given_ is not tensor:
                has = "has no labels" if given_ is None else "has labels"
                raise ArgumentError(
                    f"the dataset {has}, loss type '{opt.loss_type.name.lower()}' "
                    + ("needs some" if given_ is None else "takes none")
                )
        elif given_.ne[0] != tensor.ne[0] or given_.type != tensor.type:
            raise ArgumentError(
                f"{what} of the dataset: {given_!r}, the model takes {tensor!r}: expected the same "
                "ne[0] and type"
            )
    n, n_batch = dataset.ndata, inputs.ne[1]
    split = n if idata_split is None else integer("idata_split", idata_split, 0, n)
    if n % n_batch or split % n_batch or n_batch % dataset.ndata_shard:
        raise ArgumentError(
            f"{counted(n, 'datapoint')}, split at {split}, in shards of {dataset.ndata_shard}: "
            f"expected whole batches of {n_batch}, which is ne[1] of the inputs"
        )
    for part in (split // n_batch, (n - split) // n_batch):
        if opt.build_type == enums.OptBuildType.OPT and part % opt.opt_period:
            raise ArgumentError(
                f"{counted(part, 'batch', 'batches')} with opt_period={opt.opt_period}: expected a "
                "multiple, or one step would have too few batches"
            )
    if split and opt.build_type == enums.OptBuildType.FORWARD:
        raise ArgumentError("build_type='forward' cannot train: expected idata_split=0")
    return n // n_batch, split // n_batch, inputs


@dataclass(frozen=True)
class Epoch:
    """The results of one epoch of `fit`; NaN where there is no value."""

    loss: float
    loss_unc: float
    accuracy: float
    val_loss: float
    val_loss_unc: float
    val_accuracy: float


def fit(
    scheduler: Scheduler,
    inputs: Tensor,
    outputs: Tensor,
    dataset: Dataset,
    loss_type: enums.OptLossType | str | int,
    optimizer: AdamW | SGD | Callable[[int], AdamW | SGD] | None = None,
    *,
    nepoch: int,
    nbatch_logical: int,
    val_split: float = 0.0,
    callback: Callable[[Progress], object] | None = None,
) -> list[Epoch]:
    """Trains the model that computes `outputs` from `inputs`; returns the results of each epoch.

    `optimizer` may be a function of the epoch's number, from 1. A step follows every
    `nbatch_logical` datapoints, a multiple of ne[1] of `inputs`. The last `val_split` (0 to 1) of
    the shuffled dataset is only for validation. `callback=progress_bar` shows the progress.
    Raises what `OptContext` and `epoch` raise. C: ggml_opt_fit
    """
    ptr_of(Dataset, dataset)
    n, n_batch = dataset.ndata, inputs.ne[1]
    nepoch, nbatch_logical = integer("nepoch", nepoch), integer("nbatch_logical", nbatch_logical, 1)
    if n % nbatch_logical or nbatch_logical % n_batch:
        raise ArgumentError(
            f"nbatch_logical={nbatch_logical}: expected a divisor of the dataset's size, {n}, that "
            f"is a multiple of {n_batch}, which is ne[1] of the inputs"
        )
    if not 0 <= val_split < 1:
        raise ArgumentError(f"val_split={val_split}: expected at least 0 and less than 1")
    n_logical = n // nbatch_logical
    split = int((1 - val_split) * n_logical + 1e-6) * nbatch_logical
    if split == 0:
        raise ArgumentError(
            f"val_split={val_split} of {counted(n_logical, 'step')} leaves none to train: expected "
            "a smaller val_split or nbatch_logical"
        )
    number = 1

    def of_epoch(_step: int) -> AdamW | SGD:
        return optimizer(number) if callable(optimizer) else optimizer or AdamW()

    history = []
    with (
        OptContext(
            scheduler, loss_type, of_epoch, inputs=inputs, outputs=outputs,
            opt_period=nbatch_logical // n_batch,
        ) as opt,
        OptResult() as train,
        OptResult() as val,
    ):  # fmt: skip
        if nbatch_logical < n:
            dataset.shuffle(opt)
        for number in range(1, nepoch + 1):  # noqa: B007  of_epoch reads it
            if nbatch_logical < split:
                dataset.shuffle(opt, split)
            train.reset()
            val.reset()
            epoch(opt, dataset, train, val, split, callback)
            history.append(_summary(train, val))
    return history


def _summary(train: OptResult, val: OptResult) -> Epoch:
    nan = float("nan")
    has = val.ndata > 0
    return Epoch(
        train.loss,
        train.loss_unc,
        train.accuracy,
        val.loss if has else nan,
        val.loss_unc,
        val.accuracy,
    )

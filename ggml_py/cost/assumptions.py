"""What a prediction takes for granted, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..trace.planned import Planned
from ..trace.record import LEAF, OTHER
from .datasheets import SheetEstimator
from .estimate import Estimator
from .machine import Machine

_CELLS = "attention is predicted as if all cells that the graph reads had tokens"


def assumed(
    plan: Planned,
    machine: Machine,
    estimators: Sequence[Estimator | SheetEstimator | None],
    gpus: Sequence[str],
    all_cells: bool,
) -> Iterator[str]:
    """For a plan on a machine, whose backends have these estimators. `gpus` are the names of the
    real GPUs that were measured; `all_cells` says whether some attention was predicted without
    knowing how many cells have tokens."""
    for name in gpus:
        yield (
            f"{name}: predictions for GPUs were compared on one machine only, where prompts took "
            "up to 2.4 times as long"
        )
    for one in estimators:
        if isinstance(one, SheetEstimator) and one.is_host:
            yield (
                f"{one.device.name} was not measured: its times are those of a usual host, whose "
                "memory reads 34 to 230 GB/s; `ggml-py calibrate` measures this one"
            )
        elif isinstance(one, SheetEstimator):
            yield (
                f"{one.device.name} was not measured: its times are from the data sheet of the "
                f"{one.card}"
            )
        elif one is not None and (card := machine.cards.get(one.device.name)):
            yield (
                f"{one.device.name}: its times were measured on {one.device.description}; the data "
                f"sheet of the {card} is not used"
            )
    memory, needed = machine.described.memory, _in_host_memory(plan)
    if 0 < memory < needed:
        yield (
            f"the model needs {needed / 2**30:.1f} GiB of the host's memory, and the machine had "
            f"{memory / 2**30:.1f}: reading weights from the disk again and again is not predicted"
        )
    if all_cells:
        yield _CELLS


def _in_host_memory(plan: Planned) -> int:
    """Bytes of the weights and caches that are in memory which the CPU reads, mapped files too."""
    capture = plan.capture
    return sum(
        t.nbytes for t in capture.tensors
        if t.kind in (LEAF, OTHER) and "input" not in t.flags and not t.is_view_op
        and (buft := capture.buft_of(t)) >= 0 and capture.bufts[buft].is_host
    )  # fmt: skip

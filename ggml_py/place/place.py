"""`place`: the flags with which a model runs quickest on a machine, or that they need no change."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..boundary.ffi import BUILD
from ..calibrate.describe import processor
from ..cost.machine import Machine
from ..errors import AllocError, ModelError
from ..llama import Fit
from .evaluate import Evaluator, Way
from .flags import Flags, server_line
from .measure import Measured, noise
from .moves import Choices
from .search import search
from .verdict import Verdict, judge, reason
from .workload import Workload

RESERVE = 1 << 30  # bytes that stay free on each device, as with llama.cpp's --fit-target
PLANS = 400
_SHOWN = 8  # of the quickest ways
_CPU = ("CPU", "BLAS")


@dataclass(frozen=True)
class Placed:
    """What `place` found."""

    model: str
    devices: tuple[str, ...]
    n_ctx: int
    n_parallel: int
    n_layer: int
    reserve: int
    verdict: Verdict
    given: Way
    fit: Way | None  # upstream's --fit; None if there is nothing that it could choose
    ways: tuple[Way, ...]  # the quickest
    n_tried: int
    n_plans: int
    ended: str  # why the search ended early; "" if nothing was left to try
    doubts: tuple[str, ...]  # what may be wrong with the predictions
    measured: tuple[Measured, ...] = ()  # with `decided`: the given way and the quickest few

    @property
    def chosen(self) -> Way:
        """The way to take: the given one where that should be kept."""
        return self.verdict.chosen

    @property
    def runner_up(self) -> Way | None:
        """The quickest way beside the chosen one, of those with other plans: the same plans have
        the same time."""
        others = (way for way in self.ways if way.seconds != self.chosen.seconds)
        return next(others, None)

    def decided(self, measured: Sequence[Measured]) -> Placed:
        """The same, decided by what was measured of the given way and others."""
        given = next(one for one in measured if one.way.flags == self.given.flags)
        best = min(measured, key=lambda one: one.usual)
        least = noise(measured)
        gain = 1 - best.usual / given.usual
        said = f"{gain:.1%} less time was measured; rounds tell gains from {least:.1%} on"
        if gain > least:
            verdict = Verdict(
                False, best.way, self.given, said, reason(self.given, best.way), least
            )
        else:
            text = f"keep what you have: {said}" if best is not given else (
                "keep what you have: nothing that was measured is quicker")  # fmt: skip
            verdict = Verdict(True, self.given, self.given, text, "", least)
        return replace(self, verdict=verdict, measured=tuple(measured))

    def candidates(self, n: int) -> list[Way]:
        """The ways to measure: the given one, and the `n` that are predicted to be the quickest."""
        others = [way for way in self.ways if way.flags != self.given.flags]
        return [*([self.given] if self.given.usable else []), *others[:n]]

    def server_line(self, way: Way | None = None) -> str:
        """The command line of llama-server."""
        flags = (way or self.chosen).flags
        return server_line(
            self.model, flags, self.n_ctx, self.n_parallel, self.devices, self.n_layer
        )


def place(
    model: str | os.PathLike[str],
    machines: Sequence[Machine],
    devices: Sequence[str],
    workloads: Sequence[Workload] = (Workload(),),
    *,
    given: Mapping[str, Any] | None = None,
    n_ctx: int | None = None,
    cache_types: Sequence[str] = (),
    reserve: int = RESERVE,
    plans: int = PLANS,
    seconds: float | None = None,
    build: bool = True,
    progress: Callable[[float], object] = lambda _share: None,
) -> Placed:
    """Searches for the quickest flags for `workloads`, beside the `given` ones (options of
    `llama.open`), over libllama's own plans. Only the header of `model` is read.

    `machines` are calibrations of the devices, each with another number of threads. `n_ctx` is the
    size of the cache (default: what the workloads need), `cache_types` those that may be chosen.
    `reserve` bytes stay free on each device. At most `plans` graphs are planned, and no more is
    tried after `seconds`.

    Raises ValueError without machines, and what `llama.open` raises for the given options.
    """
    measured = _by_threads(machines)
    if plans < 1:
        raise ValueError(f"plans={plans}: expected at least 1")
    needed = max(work.n_ctx for work in workloads)
    if n_ctx is not None and n_ctx < needed:
        raise ValueError(f"n_ctx={n_ctx}: the workloads need {needed} cells of the cache")
    mine = Flags.of(dict(given or {}))
    evaluator = Evaluator(model, devices, measured, workloads, n_ctx or needed, reserve, build)
    mine = mine.but(n_threads=evaluator.threads(mine))
    if mine.n_threads not in measured:
        have = ", ".join(map(str, sorted(measured)))
        raise ValueError(
            f"-t {mine.n_threads}: no machine's file has {mine.n_threads} threads (there are "
            f"files of {have}): run `ggml-py calibrate -t {mine.n_threads}`"
        )
    with evaluator.opened(mine) as opened:  # raises for what the user gave
        choices = _choices(opened, measured, cache_types)
    fitted = _fit(evaluator, mine, reserve) if choices.gpus else None
    starts = [mine, *([fitted] if fitted else [])]
    if choices.gpus:
        starts += [mine.but(n_gpu_layers=n) for n in (-1, 0)]
    found = search(evaluator, choices, starts, plans, seconds, progress)
    before = evaluator.way(mine)
    quickest = [way for way in found.ways if way.usable][:_SHOWN]
    best = [found.best] if found.best else []
    ways = tuple({way.flags: way for way in (*best, *quickest)}.values())
    beside = evaluator.way(fitted) if fitted else None
    verdict = judge(before, found.best, _spread(measured))
    return Placed(
        os.fspath(model), tuple(devices), evaluator.n_ctx, evaluator.n_parallel, choices.n_layer,
        reserve, verdict, before, beside, ways, len(found.ways), evaluator.n_plans,
        found.ended, _doubts(measured),
    )  # fmt: skip


def _by_threads(machines: Sequence[Machine]) -> dict[int, Machine]:
    if not machines:
        raise ValueError("machines: expected at least one, which Machine.load reads")
    found = {machine.n_threads: machine for machine in machines}
    if len(found) < len(machines):
        raise ValueError("machines: two were measured with the same number of threads")
    return found


def _choices(model: Any, machines: Mapping[int, Machine], cache_types: Sequence[str]) -> Choices:
    gpus = tuple(d.name for d in model.devices if d.name not in _CPU and d.type.name != "ACCEL")
    return Choices(model.n_layer, model.n_expert, gpus, tuple(sorted(machines)), tuple(cache_types))


def _fit(evaluator: Evaluator, given: Flags, reserve: int) -> Flags | None:
    """What llama.cpp's --fit chooses where nothing is given; None if it finds nothing."""
    free = given.but(n_gpu_layers=-1, n_cpu_moe=0, groups=(), overrides=(), tensor_split=())
    try:
        with evaluator.opened(free, fit=Fit((reserve,))) as model:
            if not model.fits:
                return None
            chosen = model.fitted
    except (ModelError, AllocError):
        return None
    overrides = tuple(map(tuple, chosen.get("tensor_overrides", ())))
    split = tuple(chosen.get("tensor_split", ()))
    return free.but(
        n_gpu_layers=chosen["n_gpu_layers"], overrides=overrides,
        tensor_split=split if any(split) else (),
    )  # fmt: skip


def _spread(machines: Mapping[int, Machine]) -> float:
    """How far repetitions are apart, of the usual sample."""
    samples = [s.spread for m in machines.values() for d in m.devices for s in d.samples]
    return statistics.median(samples) if samples else 0.0


def _doubts(machines: Mapping[int, Machine]) -> tuple[str, ...]:
    """What may be wrong with the calibrations, or with using them here."""
    here = {"ggml": BUILD["ggml_version"], "build": BUILD["key"], "processor": processor()}
    return tuple(
        f"{n} thread{'s' * (n != 1)}: {doubt}"
        for n, machine in machines.items()
        for doubt in (*machine.stale(**here), *machine.doubts)
    )

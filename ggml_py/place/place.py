"""`place`: the flags with which a model runs quickest on a machine, or that they need no change."""

from __future__ import annotations

import os
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..backends.device import Device
from ..calibrate.describe import here
from ..cost.machine import Machine
from ..errors import AllocError, ModelError
from ..llama import Fit, LlamaModel
from ..llama.overrides import resolve_overrides
from .evaluate import Evaluator, Way
from .measure import NAME, Measured, bench_line, noise, refusal, tests_of
from .moves import Choices
from .placing_flags import Flags, server_line
from .search import search
from .verdict import Verdict, judge, reason
from .workload import Workload

# Of llama-server: kv_cache_types in its common/arg.cpp.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
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
    chose_threads: bool = True  # whether -t was given, or several numbers were measured
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
        """The same, decided by measurements of the given way and others."""
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
        given = [] if self.given.refused or self.given.lacks else [self.given]
        # Ways with the same seconds have the same plans: one of them is enough.
        found = {way.seconds: way for way in reversed((*given, *self.ways))}
        others = sorted(found.values(), key=lambda way: way.seconds)
        return [*given, *(way for way in others if way not in given)][: n + len(given)]

    def server_line(self, way: Way | None = None) -> str:
        """The command line of llama-server; "" for a way that does not run."""
        way = way or self.chosen
        if way.refused or way.lacks:
            return ""
        # Nobody chose the only number of threads that was measured.
        flags = way.flags if self.chose_threads else way.flags.but(n_threads=None)
        return server_line(
            self.model, flags, self.n_ctx, self.n_parallel, self.devices, self.n_layer
        )

    def bench_lines(self, way: Way | None = None) -> list[str]:
        """The command lines of llama-bench that verify the predictions, one for each test; none if
        it cannot."""
        way = way or self.chosen
        works = [part.workload for part in way.parts]
        if not works or refusal(works, self.devices, self.model, way.flags):
            return []
        return [
            shlex.join(bench_line(NAME, self.model, way, test, self.devices, self.n_layer))
            for work in works for test in tests_of(work)
        ]  # fmt: skip


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
    size of the cache (default: as the workloads need; 0: as in training). `cache_types` are the
    types that the search may choose. Without n_gpu_layers among the given options llama-server fits
    the model to memory: the comparison is then with the choice of --fit. `reserve` bytes stay free
    on each device. At most `plans` graphs are planned, and no more is tried after `seconds`.

    Raises ValueError without machines, and what `llama.open` raises for the given options.
    """
    measured = _by_threads(machines)
    if plans < 1:
        raise ValueError(f"plans={plans}: expected at least 1")
    # Each sequence has an equal part of the cache.
    needed = max(w.n_tokens for w in workloads) * max(w.n_parallel for w in workloads)
    if n_ctx and n_ctx < needed:
        raise ValueError(f"n_ctx={n_ctx}: the workloads need {needed} cells of the cache")
    mine = Flags.of(dict(given or {}))
    _check_types((mine.type_k, mine.type_v, *cache_types))
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
        names = {"CPU", *map(_backend_name, opened.devices)}
        if n_ctx == 0:
            evaluator.n_ctx = max(_trained(opened), needed)
        mine = mine.but(overrides=tuple(
            (one.pattern.pattern, one.buffer_type.name)
            for one in resolve_overrides(mine.overrides, opened.devices)
        ))  # fmt: skip
    free = mine.but(
        n_gpu_layers=-1, n_cpu_moe=0, cpu_moe=False, n_cpu_ffn=0, overrides=(), tensor_split=()
    )
    fitted = _fit(evaluator, free, reserve) if choices.gpus else None
    if fitted is not None and free == mine and "n_gpu_layers" not in (given or {}):
        mine = fitted  # what llama-server does with these flags
    starts = [mine, *([fitted] if fitted else [])]
    if choices.gpus:
        starts += [free.but(n_gpu_layers=n) for n in (-1, 0)]
    evaluator.given = mine
    found = search(evaluator, choices, starts, plans, seconds, progress)
    before = evaluator.way(mine)
    quickest = [way for way in found.ways if way.usable][:_SHOWN]
    best = [found.best] if found.best else []
    ways = tuple({way.flags: way for way in (*best, *quickest)}.values())
    beside = evaluator.way(fitted) if fitted else None
    why = refusal(workloads, devices, os.fspath(model), mine)
    verdict = judge(before, found.best, _spread(measured), why, quickest[0] if quickest else None)
    return Placed(
        os.fspath(model), tuple(devices), evaluator.n_ctx, evaluator.n_parallel, choices.n_layer,
        reserve, verdict, before, beside, ways, len(found.ways), evaluator.n_plans,
        found.ended, (*_said(given or {}, mine, n_ctx, evaluator.n_ctx), *_doubts(measured, names)),
        len(measured) > 1 or (given or {}).get("n_threads") is not None,
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


def _backend_name(device: Device) -> str:
    """Of a server with its address, as its backend is called."""
    is_server = device.name.startswith("RPC")
    return f"{device.name}[{device.description}]" if is_server else device.name


def _check_types(names: Sequence[str]) -> None:
    """Raises ValueError for a type that llama-server does not take for its cache."""
    for name in names:
        if name not in CACHE_TYPES:
            raise ValueError(
                f"cache type {name!r}: llama-server takes {', '.join(CACHE_TYPES)}"
            )  # fmt: skip


def _trained(model: LlamaModel) -> int:
    """The context that the model was trained with."""
    return int(model.metadata.get(f"{model.arch}.context_length", 0))


def _said(given: Mapping[str, Any], mine: Flags, asked: int | None, n_ctx: int) -> Iterator[str]:
    """The assumptions of the answer, in sentences."""
    if asked is None:
        yield (
            f"no -c was given: -c {n_ctx} is taken, which the workloads need. llama-server without "
            "-c takes the context that the model was trained with"
        )
    if given.get("n_threads") is None:
        yield f"no -t was given: -t {mine.n_threads} is taken for what you have"
    if any("," in pattern for pattern, _where in mine.overrides):
        yield "llama-server separates overrides by commas: no command line can give your -ot"


def _fit(evaluator: Evaluator, free: Flags, reserve: int) -> Flags | None:
    """What llama.cpp's --fit chooses where nothing is given; None if it finds nothing."""
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


def _doubts(machines: Mapping[int, Machine], devices: Iterable[str]) -> tuple[str, ...]:
    """Doubts about the calibrations of these devices, and about their use on this machine."""
    was = here()
    return tuple(
        f"{n} thread{'s' * (n != 1)}: {doubt}"
        for n, machine in machines.items()
        for doubt in (*machine.stale(**was), *machine.doubts_about(devices))
    )

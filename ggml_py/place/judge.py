"""The one judge of changes of a model's options. A good change is planned as llama.cpp would load
it, fits into the devices' memory, and is better by its claim."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cost.cost import Cost, cost_of, estimator_of
from ..cost.machine import Machine
from ..cost.time_difference import deviation, n_unknown
from ..errors import AbortError, AllocError, ModelError, UnknownDeviceError
from ..llama.options import BY_NAME
from ..memory.shortfalls import (
    DeviceRoom,
    Shortfall,
    not_known,
    shortfalls,
    used,
)
from ..plan import MemoryRow, Plan
from ..trace.answers.passing import Passing, passing
from ..trace.answers.remedy import Remedy
from ..trace.facts import Facts
from ..trace.names import counted
from ..trace.planned import format_bytes
from ..trace.units import format_factor, format_time
from .evaluate import SURE

if TYPE_CHECKING:
    from ..models import Model

RESERVE = 1 << 30  # bytes that stay free on each device: llama.cpp's default of --fit-target
Changes = dict[str, Any]
Opened = Callable[[Changes], AbstractContextManager["Model"]]
LEAST = 0.05  # part of the time, or of the bytes, that a change must save
_SLOWER = 10  # times that a byte takes in host memory, where speeds are not known
_EACH = 0.93  # of what is left to try stays after a trial: how many there will be is not known
_WORSE = 1.05  # from which on another graph's time is called longer
_REFUSALS = (AbortError, AllocError, ModelError, UnknownDeviceError, ValueError)


class GraphShape(NamedTuple):
    """A graph that ways are compared by."""

    n_tokens: int  # of each sequence
    n_past: int
    n_seqs: int = 1

    def __str__(self) -> str:
        if self.n_tokens == 1:
            each = "a token" if self.n_seqs == 1 else f"a token of each of {self.n_seqs} sequences"
        else:
            each = f"a prompt of {self.n_tokens} tokens"
        return f"{each} after {self.n_past}" if self.n_past else each


def shapes_of(
    n_tokens: int, n_past: int, n_seqs: int, n_ctx: int, n_ubatch: int
) -> tuple[GraphShape, ...]:
    """The graphs that decide about a model's options: the asked one, and one of the other phase. A
    first token says nothing about the cache: the token in the middle of it decides in its place."""
    asked = GraphShape(n_tokens, n_past, n_seqs)
    if n_tokens > 1:
        return GraphShape(1, min(n_past + n_tokens, n_ctx - 1)), asked
    prompt = GraphShape(min(n_ubatch, n_ctx), 0)
    return (prompt, asked) if n_past or n_seqs > 1 else (prompt, GraphShape(1, n_ctx // 2))


class Measure(NamedTuple):
    """One graph of a way."""

    plan: Plan
    bytes: Passing
    cost: Cost | None  # None: nothing is known about some of its nodes or copies


@dataclass(frozen=True)
class Trial:
    """What became of the model with some options changed."""

    changes: Mapping[str, Any]
    refused: str = ""  # why llama.cpp does not load or plan it
    memory: tuple[MemoryRow, ...] = ()
    lacks: tuple[Shortfall, ...] = ()
    unknown: tuple[str, ...] = ()  # devices whose memory is not known
    measures: tuple[Measure, ...] = ()  # of the judge's shapes
    left: Mapping[str, int] = field(default_factory=dict)  # bytes that stay free, by device

    @property
    def fits(self) -> bool:
        """Whether it loads and no device lacks memory, as far as that is known."""
        return not self.refused and not self.lacks


class Judge:
    """Tries options of one model, beside the given ones. Each is tried once."""

    def __init__(
        self,
        opened: Opened,
        shapes: Callable[[Model], tuple[GraphShape, ...]],
        machine: Machine | None,
        reserve: int = RESERVE,
        seconds: float = float("inf"),
    ) -> None:
        """`opened` opens the model with changes. `shapes` are the graphs to compare, the one that
        decides last. `reserve` bytes stay free on each device, unless the given options leave
        less. After `seconds` of processor time nothing more is tried."""
        self._opened, self._shapes, self._machine = opened, shapes, machine
        self.reserve = reserve
        self._tried: dict[str, Trial] = {}
        self._kept: dict[str, int] | None = None
        self.lacks: tuple[Shortfall, ...] = ()  # what devices lack with the given options
        self.shapes: tuple[GraphShape, ...] = ()
        self.is_late = False  # whether something was not tried for lack of time
        self._seconds = 0.0  # of processor time that a look at the model takes
        self.show: Callable[[float], object] = lambda _share: None  # how far the trials are
        self.until = float("inf")  # by `process_time`: other programs' work changes no answer
        began = process_time()
        self.given = self.trial({}, measured=True)
        self._seconds = process_time() - began
        self.until = process_time() + seconds

    @property
    def n_tried(self) -> int:
        """The number of ways that were opened."""
        return len(self._tried)

    def has_time(self, n_trials: int = 1) -> bool:
        """Whether there is time for work that takes as long as `n_trials` looks at the model."""
        if process_time() + n_trials * self._seconds <= self.until:
            return True
        self.is_late = True
        return False

    def fits(self, changes: Changes) -> bool:
        """Whether the model loads and fits with changes."""
        return self.trial(changes).fits

    REFUSED = 1 << 62  # bytes: more than any device has

    def missing(self, changes: Changes) -> int:
        """Bytes that devices lack with changes; below 0: the fewest that a device has more than it
        needs. `REFUSED` if llama.cpp does not load the model."""
        trial = self.trial(changes)
        if trial.refused:
            return self.REFUSED
        if trial.lacks:
            return max(1, sum(one.missing for one in trial.lacks))
        kept = self._kept or {}
        sizes = used(trial.memory)
        spare = [left - kept.get(name, 0) for name, left in trial.left.items()
                 if sizes.get(name) and name != "CPU"]  # fmt: skip
        return -max(min(spare, default=0), 0)

    def trial(self, changes: Changes, measured: bool = False) -> Trial:
        """What becomes of the model with changes; if it fits and `measured`, with its graphs."""
        key = repr(sorted(changes.items()))
        known = self._tried.get(key)
        if known is None or (measured and known.fits and not known.measures):
            if not self.has_time():
                return Trial(changes, "not tried for lack of time")
            self._tried[key] = self._try(changes, measured)
            self.show(1 - _EACH ** len(self._tried))
        return self._tried[key]

    def _try(self, changes: Changes, measured: bool) -> Trial:
        try:
            with self._opened(changes) as model:
                memory = model.memory
                found, uncut = model.rooms, model.uncut_buffers
                if self._kept is None:
                    self._kept = _kept(memory, found, self.reserve)
                    self.lacks = shortfalls(memory, uncut, found)
                    self.shapes = self._shapes(model)
                lacks, sizes = shortfalls(memory, uncut, found, self._kept), used(memory)
                free = {room.device: room.free for room in found if room.free is not None}
                left = {device: n - sizes.get(device, 0) for device, n in free.items()}
                shapes = self.shapes if measured and not (lacks and changes) else ()
                measures = tuple(self._measure(model, shape) for shape in shapes)
                unknown = not_known(memory, found)
                return Trial(changes, "", memory, lacks, unknown, measures, left)
        except _REFUSALS as error:
            return Trial(changes, str(error) or type(error).__name__)

    def _measure(self, model: Model, shape: GraphShape) -> Measure:
        plan = model.plan(*shape)
        moved = passing(plan)
        assert moved is not None  # the plan is a scheduler's
        cost = None if self._machine is None else cost_of(plan, self._machine, shape.n_past)
        known = cost is not None and not n_unknown(cost)
        return Measure(plan, moved, cost if known else None)

    @property
    def waits_for_host(self) -> float:
        """The part of the given options' time, or of their bytes, that passes on backends without
        memory of their own and in copies: other places of weights save no more than that."""
        if not self.given.measures:
            return 0.0
        return max(_host_part(one) for one in self.given.measures)

    def differ(self, devices: Iterable[str]) -> bool:
        """Whether it is known that some devices are slower than others."""
        cost = self.given.measures[-1].cost if self.given.measures else None
        if cost is None:
            return False
        known = [estimator_of(cost.machine, name, name) for name in devices]
        return len({one.bandwidth for one in known if one is not None}) > 1

    def gain(self, changes: Changes) -> float:
        """How often the graph that decides is as quick with changes, whatever becomes of others. It
        is 1 where the model does not fit or its time is not known."""
        after = self.trial(changes, measured=True)
        if not after.measures or not self.given.measures:
            return 1.0
        costs = self.given.measures[-1].cost, after.measures[-1].cost
        if costs[0] is None or costs[1] is None or not costs[1].seconds:
            return 1.0
        return costs[0].seconds / costs[1].seconds

    def remedy(self, flags: str, changes: Changes) -> Remedy | None:
        """The change as a remedy; None if llama.cpp refuses it, it does not fit, or it is not
        better than the given options."""
        before, after = self.given, self.trial(changes, measured=True)
        if not after.fits or not before.measures:
            return None
        claim = _claim(before, after, self.shapes)
        if claim is None:
            return None
        return Remedy(
            flags, after.measures[-1].plan, claim.text, self._room(after), claim.known_by,
            claim.gain, claim.seconds, dict(changes),
            _given_flags(changes, before.measures[-1].plan.provenance.flags or ()),
        )  # fmt: skip

    def fitting(self, flags: str, changes: Changes) -> Remedy | None:
        """The change as a remedy for a model that does not fit; None if it does not fit either."""
        after = self.trial(changes, measured=True)
        if not after.fits or not after.measures:
            return None
        now = after.measures[-1]
        given = self.given.measures[-1].cost if self.given.measures else None
        seconds = (given.seconds, now.cost.seconds) if given and now.cost else None
        return Remedy(
            flags, now.plan, "the model fits", self._room(after),
            "data sheets" if seconds else "bytes", 1.0, seconds,
            dict(changes),
        )  # fmt: skip

    def _room(self, trial: Trial) -> str:
        """A sentence on the memory of a way that fits: free bytes, and devices not checked."""
        devices = [name for name in trial.left if used(trial.memory).get(name)]
        gpus = [name for name in devices if name not in ("CPU", "BLAS")] or devices
        left = ", ".join(f"{format_bytes(trial.left[name])} on {name}" for name in gpus)
        said = f"fits, {left} stay free" if left else ""
        if trial.unknown:
            who = " and ".join(trial.unknown)
            said += f"{'; ' if said else ''}not checked: the memory of {who}"
        return said


def _host_part(measure: Measure) -> float:
    if measure.cost is None:  # a byte there takes much longer, and so does a split
        moved = measure.bytes
        return (
            1.0 if measure.plan.n_splits > 2 else _SLOWER * (moved.host + moved.link) / sum(moved)
        )
    plan, cost = measure.plan, measure.cost
    devices = {plan.backends[b].name for b in Facts(plan, 0).devices}
    elsewhere = sum(split.seconds for split in cost.splits if split.backend not in devices)
    copied = sum(
        copy.seconds or 0.0 for copy in cost.copies if plan.splits[copy.split].backend in devices
    )
    return (elsewhere + copied) / cost.seconds if cost.seconds else 0.0


def _kept(
    memory: tuple[MemoryRow, ...], rooms: Sequence[DeviceRoom], reserve: int
) -> dict[str, int]:
    """Bytes to keep free by device: the reserve, or what the given options leave. Where they do not
    fit, the reserve."""
    sizes = used(memory)
    found = {}
    for room in rooms:
        left = reserve if room.free is None else room.free - sizes.get(room.device, 0)
        found[room.device] = min(reserve, left) if left >= 0 else reserve
    return found


def _given_flags(changes: Changes, flags: Sequence[str]) -> str:
    """The words of a command line that give the changed options."""
    found: list[str] = []
    for name in changes:
        option = BY_NAME["tensor_overrides" if name == "overrides" else name]
        for i, word in enumerate(flags):
            if word in (*option.flags, *option.off):
                found += flags[i : i + 1 + (option.kind != "bool")]
    return shlex.join(found)


class Claim(NamedTuple):
    """The gain of a change."""

    text: str
    known_by: str  # "machine", "data sheets" or "bytes"
    gain: float  # how often it is as quick; of bytes, as few
    seconds: tuple[float, float] | None  # of the graph that decides, before and after


def _claim(before: Trial, after: Trial, shapes: tuple[GraphShape, ...]) -> Claim | None:
    """None if the graph that decides is not better, or another one becomes worse by more."""
    pairs = list(zip(before.measures, after.measures, strict=True))
    if all(a.cost is not None and b.cost is not None for a, b in pairs):
        return _claim_of_time(pairs, shapes)
    return _claim_of_bytes(*pairs[-1], shapes[-1])


def _claim_of_time(
    pairs: list[tuple[Measure, Measure]], shapes: tuple[GraphShape, ...]
) -> Claim | None:
    ratios = []
    for a, b in pairs:
        assert a.cost is not None and b.cost is not None
        ratios.append(a.cost.seconds / b.cost.seconds if b.cost.seconds else 1.0)
    first, second = pairs[-1][0].cost, pairs[-1][1].cost
    assert first is not None and second is not None
    ratio = ratios[-1]
    if ratio < 1 / (1 - LEAST) or any(ratio * other < 1 for other in ratios[:-1]):
        return None
    seconds = first.seconds, second.seconds
    error = SURE * deviation(first.errors, second.errors, seconds)
    error += max(second.unknown_seconds - first.unknown_seconds, 0.0)
    sure = seconds[0] - seconds[1] > error
    measured = first.machine.is_measured
    if measured and not sure:
        return None
    known_by = "machine" if measured and not first.machine.cards else "data sheets"
    change = " → ".join(map(format_time, seconds))
    text = f"{format_factor(ratio)} times as quick: {shapes[-1]} {change}"
    text += " by the machine file" if known_by == "machine" else " by data sheets"
    text += "" if sure else ", which may be wrong by more than the gain"
    text += _splits(*pairs[-1])
    return Claim(text + "".join(_others(ratios, shapes)), known_by, ratio, seconds)


def _others(ratios: list[float], shapes: tuple[GraphShape, ...]) -> Iterator[str]:
    """What becomes of the other graphs, where they become slower."""
    for ratio, shape in zip(ratios[:-1], shapes[:-1], strict=True):
        if ratio * _WORSE < 1:
            yield f"; but {shape} takes {format_factor(1 / ratio)} times as long"


def _claim_of_bytes(a: Measure, b: Measure, shape: GraphShape) -> Claim | None:
    """Fewer bytes in the host's memory or over the link, and not more of the other; or the same
    bytes in fewer splits."""
    was, now = a.bytes, b.bytes
    slow_before, slow_after = was.host + was.link, now.host + now.link
    splits = a.plan.n_splits, b.plan.n_splits
    if slow_after > slow_before * (1 - LEAST):
        alike = slow_after <= slow_before and splits[1] < splits[0] and now.device <= was.device
        if not alike:
            return None
    if now.host > was.host or now.link > was.link + (was.host - now.host) / 100:
        return None
    parts = [
        f"{format_bytes(x)} → {format_bytes(y)} {where}"
        for x, y, where in (
            (was.host, now.host, "read and written in host memory"), (was.link, now.link, "copied"),
        ) if format_bytes(x) != format_bytes(y)
    ]  # fmt: skip
    gain = slow_before / max(slow_after, 1)
    text = f"{shape}: {', '.join(parts)}{_splits(a, b)}; times are not known"
    return Claim(text, "bytes", gain, None)


def _splits(a: Measure, b: Measure) -> str:
    before, after = a.plan.n_splits, b.plan.n_splits
    return "" if before == after else f", {before} → {counted(after, 'split')}"

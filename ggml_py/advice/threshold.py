"""From how many tokens on it pays to copy weights to a device for each graph (op offload), on a
machine, beside what a plan does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..cost.cost import Cost, estimator_of, memory_of
from ..cost.datasheets import SheetEstimator
from ..cost.estimate import Estimate, Estimator
from ..cost.sample import COPY_FROM, COPY_TO
from ..cost.work import PRODUCT, NodeWork, work_of
from ..trace import causes
from ..trace.answers.what_if import batch_size
from ..trace.facts import Facts, verb
from ..trace.record import TensorRecord
from ..trace.units import format_time
from .finding import Observation

_MOST = 1 << 14  # tokens
_SURE = 1.645  # deviations: nineteen of twenty are below
_FLOAT = 4  # bytes
_Known = Estimator | SheetEstimator


class Crossover(NamedTuple):
    """Products with weights in host memory. From `n_tokens` on the device computes them sooner than
    the CPU, although it gets their weights first."""

    nodes: tuple[TensorRecord, ...]
    device: str
    is_offloaded: bool  # in this plan
    batch: int  # tokens of this plan
    n_tokens: int | None  # None: never, up to some thousands
    lowest: int | None  # the same at the ends of the interval
    highest: int | None
    lost: float  # seconds of a graph that the plan's choice costs
    error: float  # its standard deviation


def crossover(cost: Cost) -> Crossover | None:
    """The number of tokens from which op offload of this plan's products is quicker, beside the
    plan's own choice. None without op offload, without such products, or if a time is not known.
    """
    plan, facts = cost.plan, Facts(cost.plan, 0)
    if not plan.capture.settings.op_offload or not facts.devices:
        return None
    b = facts.devices[0]
    names = (plan.backends[b], plan.backends[-1])
    device, cpu = (estimator_of(cost.machine, one.name, one.device) for one in names)
    if device is None or cpu is None:
        return None
    nodes = tuple(t for t in facts.computed if _may_be_offloaded(facts, t, b))
    offloaded = tuple(t for t in nodes if facts.where[t.id] == b)
    chosen = offloaded or tuple(t for t in nodes if facts.where[t.id] == facts.last)
    if not chosen:
        return None
    pair = _Pair(cost, chosen, b, device, cpu)
    batch = batch_size(chosen[0])
    now = pair.at(batch)
    if now is None:
        return None
    there, here, error = now
    lost = there - here if offloaded else here - there
    return Crossover(
        chosen, names[0].name, bool(offloaded), batch, pair.first(0.0), pair.first(-_SURE),
        pair.first(_SURE), lost, error,
    )  # fmt: skip


def threshold(cost: Cost) -> Iterator[Observation]:
    """If a plan's choice is slower than the other, beyond the error of the prediction."""
    found = crossover(cost)
    if found is None or found.lost <= _SURE * found.error:
        return
    facts = Facts(cost.plan, 0)
    nodes, device = found.nodes, found.device
    weights = {w.id: w for t in nodes if (w := facts.followed_weight(t)) is not None}
    does = "copies" if found.is_offloaded else "could copy"
    pays = f"pays from {_tokens(found.n_tokens)} on"
    if found.lowest != found.highest:
        between = f"{_tokens(found.lowest)} and {_tokens(found.highest)}"
        pays += f" (between {between} in nine of ten cases)"
    text = (
        f"For {facts.of(nodes, 'product')} {device} {does} "
        f"{verb(nodes, 'its weight', 'their weights')} from host memory in each graph. On this "
        f"machine that {pays}, and this graph has "
        f"{_tokens(found.batch)}: {format_time(found.lost)} of it are lost."
    )
    remedy = (
        f"GGML_OP_OFFLOAD_MIN_BATCH={found.n_tokens or _MOST} moves the threshold of CUDA, Vulkan, "
        "SYCL and CANN"
    )
    if found.is_offloaded:
        remedy += "; --no-op-offload ends it for all batches"
    size = sum(w.nbytes for w in weights.values())
    yield Observation(text, f"{remedy}. Compare prompt times.", nodes, size, seconds=found.lost)


def _may_be_offloaded(facts: Facts, t: TensorRecord, b: int) -> bool:
    """Whether it is a product with a weight in host memory, which the device can compute."""
    if t.op != PRODUCT or not t.supports >> b & 1:
        return False
    if facts.cause(t) == causes.OFFLOADED.code:
        return facts.where[t.id] == b
    weight = facts.followed_weight(t)
    if weight is None or t.offload >> b & 1:  # it wants it, and something else is in the way
        return False
    return facts.capture.bufts[facts.capture.buffers[weight.buffer].buft].is_host


class _Pair:
    """The same products on the device, with the copies that they need, and on the CPU."""

    def __init__(
        self, cost: Cost, nodes: Iterable[TensorRecord], b: int, device: _Known, cpu: _Known
    ) -> None:
        plan = cost.plan
        self.device, self.cpu = device, cpu
        self.coldness = cost.coldness.get(plan.backends[-1].name, 1.0)
        last = len(plan.backends) - 1
        threads = cost.machine.n_threads
        self.works: list[tuple[NodeWork, NodeWork, TensorRecord, int, str]] = []
        for t in nodes:
            weight = plan.capture.tensors[t.src[0]]
            there = work_of(plan, t, b, 1, {})
            here = work_of(plan, t, last, threads, {})
            memory = memory_of(plan, plan.capture.buft_of(weight))
            self.works.append((there, here, t, weight.nbytes, memory))

    def at(self, n: int) -> tuple[float, float, float] | None:
        """Seconds on the device and on the CPU with `n` tokens, and the deviation of their
        difference; None if they are not known."""
        there = here = errors_there = errors_here = 0.0
        for on_device, on_cpu, t, nbytes, memory in self.works:
            given, made = int(_FLOAT * n * on_cpu.at[1] / t.ne[0]), _FLOAT * n * t.ne[0]
            moved = nbytes + given + made
            parts = [
                self.device.estimate(_wide(on_device, n, moved), 1.0),
                self._copy(COPY_FROM, nbytes, memory),
                self._copy(COPY_FROM, given),
                self._copy(COPY_TO, made),
            ]
            mine = self.cpu.estimate(_wide(on_cpu, n, moved), self.coldness)
            if mine is None:
                return None
            for part in parts:
                if part is None:
                    return None
                there += part.seconds
                errors_there += part.seconds * part.error
            here += mine.seconds
            errors_here += mine.seconds * mine.error
        return there, here, math.hypot(errors_there, errors_here)

    def _copy(self, key: str, nbytes: int, memory: str = "") -> Estimate | None:
        host, back = self.cpu.device.name, COPY_FROM if key == COPY_TO else COPY_TO
        return (
            (self.device.copy(key + host + memory, nbytes) if memory else None)
            or self.device.copy(key + host, nbytes)
            or self.cpu.copy(back + self.device.device.name, nbytes)
        )

    def first(self, deviations: float) -> int | None:
        """The fewest tokens with which the device is quicker, if its time is off by this number of
        deviations."""

        def pays(n: int) -> bool:
            found = self.at(n)
            return found is not None and found[0] + deviations * found[2] < found[1]

        return _first(pays)


def _first(pays: Callable[[int], bool]) -> int | None:
    high = 1
    while not pays(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def _wide(work: NodeWork, n: int, nbytes: int) -> NodeWork:
    """The same product with `n` columns. It reads and writes `nbytes`."""
    flops = int(work.flops * n / work.at[0])
    return work._replace(at=(float(n), *work.at[1:]), bytes=nbytes, flops=flops)


def _tokens(n: int | None) -> str:
    if n is None:
        return f"more than {_MOST} tokens"
    return f"{n} token" + "s" * (n != 1)

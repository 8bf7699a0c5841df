"""Measures devices one after the other, within a time for each."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

from ..backends.device import Device, default_n_threads, device
from ..boundary.ffi import BUILD
from ..builds.processor import host as processor
from ..cost.machine import Described, Machine, MeasuredDevice
from ..cost.sample import DRIFTS
from ..errors import GgmlError, ServerLostError
from ..sim.given import named_devices
from .attention_times import measure_attention
from .describe import Busy, cores, largest_cache, load_average, memory, shares_cache
from .drift import drift_of, look_at
from .elementwise import OPS, measure_op
from .node_times import Bench, Steps, is_remote
from .overheads import measure_cold_node, measure_compute, measure_split
from .products import (
    measure_again,
    measure_experts,
    measure_heads,
    measure_type,
    measure_working_set,
)
from .turns import measure_turns

LIMIT = 90.0  # seconds for each device
# The most usual first: a slow machine has no time for the last ones.
TYPES = ("f32", "q4_K", "q6_K", "q8_0", "q4_0", "f16", "mxfp4", "q5_K", "bf16", "iq4_nl")
EXPERT_TYPES = ("q4_0", "q8_0", "f16", "q4_K", "q6_K", "mxfp4")
_TWICE, _AGAIN = 6, " again"  # of the types are measured a second time, later
_FIRST = 3  # of the types; then comes what every model needs, and then the other types
_FIRST_OPS = (
    "rms_norm", "rms_norm and mul", "mul", "add", "rope", "rope neox", "swiglu_split",
    "set_rows f16", "get_rows f32", "get_rows q4_K", "soft_max with mask", "cont",
    "concat", "ssm_conv", "ssm_scan", "cpy f32", "argsort", "sum_rows", "div", "silu",
)  # fmt: skip
_BUSY = 0.15  # cores used by others: more make a doubt
_DISTURBED = 0.25  # disturbed seconds per undisturbed second: more make a doubt
_DRIFT = 0.05  # standard deviation of a device's pace: more makes a doubt
_WIDE = 0.12  # spread of a sample from which on it counts as uncertain
Progress = Callable[[str, float], object]


def calibrate(
    devices: Sequence[str | Device] = ("CPU",),
    n_threads: int | None = None,
    *,
    seconds: float = LIMIT,
    types: Sequence[str] = TYPES,
    progress: Progress = lambda _what, _share: None,
) -> Machine:
    """Measures what the devices take for the work of models, in at most `seconds` for each.

    `progress(what, share)` is called between measurements. Raises what a device that is lost raises
    (`ServerLostError`), with `measured` on it: the machine as far as it was measured.
    """
    n = default_n_threads() if n_threads is None else n_threads
    began, clock, load = time.time(), time.monotonic(), load_average()
    busy = Busy()
    found: list[MeasuredDevice] = []

    def machine() -> Machine:
        others = busy.others()
        date = datetime.datetime.fromtimestamp(began, datetime.timezone.utc)
        described = Described(
            processor(), cores(), largest_cache(), memory(), platform.platform(),
            BUILD["ggml_version"], BUILD["key"], n, date.isoformat(timespec="seconds"),
            round(time.monotonic() - clock, 1), (round(load, 2), round(others, 2)),
        )  # fmt: skip
        return Machine(described, tuple(found), tuple(_doubts(found, 0.0 if served else others)))

    opened = [one for given in devices for one in named_devices(given)]
    # A server on this machine is one of the others, and computes for the measurement.
    served = any(is_remote(one) and shares_cache(one) for one in opened)
    for index, measured in enumerate(opened):
        share = 1 / len(opened)

        def show(what: str, done: float, first: float = index * share, of: float = share) -> None:
            progress(what, first + done * of)

        try:
            beside = {one.name: one for one in (device("CPU"), *opened) if one != measured}
            found.append(_measure(measured, n, seconds, types, tuple(beside.values()), show))
        except GgmlError as error:
            error.measured = machine()  # type: ignore[attr-defined]
            raise
    return machine()


def _measure(
    measured: Device,
    n_threads: int,
    limit: float,
    types: Sequence[str],
    others: Sequence[Device],
    show: Progress,
) -> MeasuredDevice:
    end = time.monotonic() + limit
    caps, shares = measured.props.caps, shares_cache(measured)
    with Bench(measured, n_threads) as bench, ExitStack() as stack:
        drift = stack.enter_context(drift_of(bench, cold_bytes(bench)))
        jobs = list(_jobs(bench, types, others))
        left_out: list[str] = []
        failed: list[str] = []
        for i, (what, job) in enumerate(jobs):
            show(f"{measured.name}: {what}", i / len(jobs))
            if time.monotonic() > end:
                left_out += [what] * (not what.endswith(_AGAIN))
                continue
            look_at(drift)
            try:
                with closing(job):  # ends it before the device is closed
                    for _ in job:
                        show(f"{measured.name}: {what}", i / len(jobs))
                        if time.monotonic() > end:
                            left_out += [f"{what} (in part)"] * (not what.endswith(_AGAIN))
                            break
            except ServerLostError:
                raise
            except GgmlError as error:  # what else the device computes can still be measured
                failed.append(f"{what} failed ({str(error).splitlines()[0]})")
                bench.scheduler.reset()
        stack.close()  # keeps what the looks found
        said = [*failed, *[f"no time was left for {_some(left_out)}"] * bool(left_out)]
        if bench.disturbed > _DISTURBED * bench.alone:
            share = bench.disturbed / (bench.disturbed + bench.alone)
            said.append(f"others took its cores in {share:.0%} of the time")
        return MeasuredDevice(
            measured.name, measured.description, measured.type.name, caps.async_,
            tuple(bench.samples), "; ".join(said), shares,
        )  # fmt: skip


def _some(left_out: Sequence[str], shown: int = 3) -> str:
    """The first few, and how many others there are."""
    kinds = list(dict.fromkeys(left_out))
    more = f" and {len(kinds) - shown} more kinds of work" if len(kinds) > shown else ""
    return ", ".join(kinds[:shown]) + more


def _cache() -> int:
    return largest_cache() or 16 << 20


def cold_bytes(bench: Bench) -> int:
    """Bytes that no cache has when they are read again in turns, half a gigabyte at most. A cache
    that is a third as large still has some of them."""
    least = 256 << 20 if bench.is_quick else 64 << 20  # the caches of GPUs have up to 100 MiB
    return min(max(4 * _cache(), least), 512 << 20)


def _jobs(
    bench: Bench, types: Sequence[str], others: Sequence[Device]
) -> Iterator[tuple[str, Steps]]:
    """All measurements, the most needed first."""
    cold, hot = cold_bytes(bench), _cache() // 8
    if bench.is_cpu:
        yield "a split", measure_compute(bench)
    else:
        yield "splits and copies", measure_split(bench, others, cold)
        if bench.is_remote and bench.n_threads > 1 and shares_cache(bench.device):
            yield "turns", measure_turns(bench)
    yield "caches", measure_working_set(bench, cold + cold // 3)
    yield "a node", measure_cold_node(bench, cold)
    asked = (f"get_rows {type_}" for type_ in types[:_FIRST])
    first = dict.fromkeys((*_FIRST_OPS, *(name for name in asked if name in OPS)))
    # A server, which takes longer, has no time left after all types.
    last = min(_TWICE if bench.is_remote else len(types), len(types)) - 1
    for i, type_ in enumerate(types or ("f32",)):
        yield f"products, {type_}", measure_type(bench, type_, cold, hot)
        if type_ in EXPERT_TYPES:
            yield f"experts, {type_}", measure_experts(bench, type_, cold)
        if i == min(_FIRST, len(types or ("f32",))) - 1:
            for name in first:
                yield name, measure_op(bench, name)
            for d in (64, 128):
                yield "attention, f16", measure_attention(bench, "f16", d, cold, hot)
        for again in types[:_TWICE] if i == last else ():
            yield f"products, {again}{_AGAIN}", measure_again(bench, again, cold, hot)
    for name in OPS:
        if name not in first:
            yield name, measure_op(bench, name)
    yield "attention in several ops", measure_heads(bench)
    for d in (64, 128):
        yield "attention, q8_0", measure_attention(bench, "q8_0", d, cold, hot)


def _doubts(found: Sequence[MeasuredDevice], others: float) -> Iterator[str]:
    """What may be wrong with the measurement."""
    if others > _BUSY:
        yield (
            f"the machine was under load: others used {others:.1f} of its cores meanwhile. Measure "
            "again when it is quiet"
        )
    for one in found:
        wide = [s for s in one.samples if s.spread > _WIDE]
        if len(wide) > len(one.samples) / 10:
            yield (
                f"{one.name}: the repetitions of {len(wide)} of {len(one.samples)} samples are "
                f"more than {_WIDE:.0%} apart, as on a machine under load"
            )
        drift = max((s.deviation for s in one.samples if s.key in DRIFTS), default=0.0)
        if drift > _DRIFT:
            yield (
                f"{one.name}: its speed changed by {drift:.0%} (one standard deviation) while it "
                "was measured, as where other virtual machines share it; intervals are wider for it"
            )
        if one.is_simulated:
            yield f"{one.name}: it is simulated, so these are times of this machine's CPU"
        if one.incomplete:
            yield f"{one.name}: {one.incomplete}"

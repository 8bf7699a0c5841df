"""Memory and time of a way to run a model. libllama plans it, its memory is compared with the
devices' memory, and its time is predicted."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .. import llama
from ..cost.bench_rows import BenchRow, added, gen_row, prompt_row
from ..cost.machine import Machine
from ..cost.time_difference import deviation
from ..errors import AbortError, AllocError, ModelError, UnknownDeviceError
from ..llama import LlamaModel
from ..llama.room import lacking, used
from ..plan import MemoryRow, Plan
from .placing_flags import Flags
from .workload import Workload

SURE = 1.645  # deviations of a normal distribution: nineteen of twenty are below
GRAPHS = 2  # of one size that are planned at most: time is nearly a line between their depths


@dataclass(frozen=True)
class WorkloadTime:
    """One workload, predicted. Its rows are for one sequence."""

    workload: Workload
    prompt: BenchRow | None
    gen: BenchRow | None

    @property
    def seconds(self) -> float:
        """Seconds of one request for each sequence."""
        prompt = self.prompt.seconds * self.workload.n_parallel if self.prompt else 0.0
        return prompt + (self.gen.seconds if self.gen else 0.0)

    @property
    def late_seconds(self) -> float:
        """Seconds that it may take longer, for an unknown reason."""
        prompt = self.prompt.unknown_seconds * self.workload.n_parallel if self.prompt else 0.0
        return prompt + (self.gen.unknown_seconds if self.gen else 0.0)

    def tokens_per_second(self) -> dict[str, tuple[float, float, float]]:
        """Tokens of all sequences per second, low and high, of "prompt" and "gen"."""
        found = {}
        for name, row in (("prompt", self.prompt), ("gen", self.gen)):
            if row is not None:
                n = self.workload.n_parallel if name == "gen" else 1
                low, high = row.tokens_per_second_interval
                found[name] = row.tokens_per_second * n, low * n, high * n
        return found


@dataclass(frozen=True)
class Way:
    """One way to run the model, with its time and memory."""

    flags: Flags
    parts: tuple[WorkloadTime, ...]
    memory: tuple[MemoryRow, ...]
    lacks: Mapping[str, int]  # bytes by device, that it has too little of
    refused: str = ""  # why llama.cpp does not run the model like this
    # Bytes by device that it leaves less than the reserve: only of the flags given, which run.
    below_reserve: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The weighted seconds of a request of each workload; infinite if it is refused."""
        if self.refused or not self.parts:
            return math.inf
        weights = sum(part.workload.weight for part in self.parts)
        return sum(part.workload.weight * part.seconds for part in self.parts) / weights

    @property
    def most_seconds(self) -> float:
        """The upper end of the interval of `seconds`, with work that was not measured."""
        if self.refused or not self.parts:
            return math.inf
        weights = sum(part.workload.weight for part in self.parts)
        most = 0.0
        for part in self.parts:
            for row, n in ((part.prompt, part.workload.n_parallel), (part.gen, 1)):
                if row is not None:
                    most += part.workload.weight * n * row.interval[1]
        return most / weights

    @property
    def late_seconds(self) -> float:
        """What a request may take more, for a reason that is not known, weighted as `seconds`."""
        weights = sum(part.workload.weight for part in self.parts)
        return sum(p.workload.weight * p.late_seconds for p in self.parts) / weights

    @property
    def errors(self) -> dict[tuple[str, str], float]:
        """As in `Cost.errors`, for `seconds`."""
        weights = sum(part.workload.weight for part in self.parts)
        rows = []
        for part in self.parts:
            weight = part.workload.weight / weights
            if part.prompt:
                rows.append((part.prompt.errors, weight * part.workload.n_parallel))
            if part.gen:
                rows.append((part.gen.errors, weight))
        # Another number of threads was calibrated by itself: its errors are others.
        return {(f"{backend}, {self.flags.n_threads} threads", kind): error
                for (backend, kind), error in added(rows).items()}  # fmt: skip

    @property
    def n_unknown(self) -> int:
        """Nodes and copies of a graph of which nothing was measured, at most: with any the time is
        not known."""
        rows = [row for part in self.parts for row in (part.prompt, part.gen) if row]
        return max((row.n_unknown for row in rows), default=0)

    @property
    def usable(self) -> bool:
        """Whether it runs, fits, and its time is known."""
        return not self.refused and not self.lacks and not self.n_unknown

    @property
    def why_not(self) -> str:
        """Why it is not usable; "" if it is."""
        if self.refused:
            return f"llama.cpp refuses it: {self.refused}"
        if self.lacks:
            lacks = ", ".join(f"{n / 2**20:.0f} MiB on {name}" for name, n in self.lacks.items())
            return f"it lacks {lacks}"
        if self.n_unknown:
            return f"of {self.n_unknown} nodes and copies of a graph nothing was measured"
        return ""

    @property
    def used(self) -> dict[str, int]:
        """Bytes by device."""
        return used(self.memory)


def more_late(way: Way, than: Way) -> float:
    """Seconds that a way may lose against another for reasons that are not known."""
    return max(way.late_seconds - than.late_seconds, 0.0)


def doubt(a: Way, b: Way) -> float:
    """The standard deviation, in seconds, of the difference between two predictions: what is wrong
    with the time of a kind of work is wrong in both."""
    return deviation(a.errors, b.errors, (a.seconds, b.seconds))


class Evaluator:
    """Finds out about ways to run one model. Counts the graphs that it plans."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        devices: Sequence[str],
        machines: Mapping[int, Machine],
        workloads: Sequence[Workload],
        n_ctx: int,
        reserve: int,
        build: bool = True,
    ) -> None:
        """`machines` by their number of threads; `reserve` bytes stay free on each device."""
        self.path, self.devices, self.machines = path, tuple(devices), machines
        self.workloads, self.reserve, self.build = tuple(workloads), reserve, build
        self.n_ctx = n_ctx
        self.n_parallel = max(w.n_parallel for w in workloads)
        self.n_plans = 0
        self.free: dict[str, int] = {}  # by device, without the reserve
        self.given: Flags | None = None  # they may use the reserve: that is what the user has
        self._all_free: dict[str, int] = {}
        self._known: dict[Flags, Way] = {}

    @contextmanager
    def opened(self, flags: Flags, **more: Any) -> Iterator[LlamaModel]:
        """The model's header, opened as llama-server would with those flags."""
        options = flags.options | {"n_threads": self.threads(flags)}
        options["n_seq_max"] = self.n_parallel
        given = {name: value for name, value in options.items() if value is not None} | more
        with llama.open(
            self.path, devices=self.devices, program="server", n_ctx=self.n_ctx,
            build=self.build, header_only=True, **given,
        ) as model:  # fmt: skip
            yield model

    def threads(self, flags: Flags) -> int:
        """The threads of a way: as given, or the most of any machine's file."""
        return flags.n_threads or max(self.machines)

    @property
    def most_plans(self) -> int:
        """Most graphs that are planned for one way. A prompt has graphs of n_ubatch tokens, of the
        rest of a batch and of the rest of the last batch; generated tokens have graphs, too."""
        return (3 * GRAPHS + 1) * len(self.workloads)

    def way(self, flags: Flags) -> Way:
        """The way with these flags, evaluated once."""
        if flags not in self._known:
            self._known[flags] = self._way(flags)
        return self._known[flags]

    def _way(self, flags: Flags) -> Way:
        machine = self.machines.get(self.threads(flags))
        if machine is None:
            return Way(flags, (), (), {}, f"no machine's file has {flags.n_threads} threads")
        try:
            with self.opened(flags) as model:
                self._look_at_devices(model)
                memory = model.memory
                lacks, below = lacking(memory, self.free), {}
                if flags == self.given and lacks and not lacking(memory, self._all_free):
                    reserved = {d: n - self.reserve for d, n in self._all_free.items()}
                    below, lacks = lacking(memory, reserved), {}
                    for device in below:  # others may have what these flags have
                        self.free[device] = used(memory)[device]
                if lacks:  # its time does not matter
                    return Way(flags, (), memory, lacks)
                large = [one for one in model.shortfalls() if one.kind != "memory" and one.sure]
                if large:
                    return Way(flags, (), memory, {}, large[0].text)
                parts = [self._part(model, machine, work) for work in self.workloads]
                return Way(flags, tuple(parts), memory, {}, below_reserve=below)
        except (AbortError, AllocError, ModelError, UnknownDeviceError) as error:
            return Way(flags, (), (), {}, str(error))

    def _look_at_devices(self, model: LlamaModel) -> None:
        if not self.free:
            known = {device.name: device.memory for device in model.devices}
            self._all_free = {name: free for name, (free, total) in known.items() if total}
            self.free = {name: max(n - self.reserve, 0) for name, n in self._all_free.items()}

    def _part(self, model: LlamaModel, machine: Machine, work: Workload) -> WorkloadTime:
        def plan(n_tokens: int, n_past: int) -> Plan:
            self.n_plans += 1
            return model.plan(n_tokens, n_past)

        def together(n_tokens: int, n_past: int) -> Plan:
            self.n_plans += 1
            return model.plan(n_tokens, n_past, work.n_parallel)

        prompt = gen = None
        if work.n_prompt:
            prompt = prompt_row(
                plan, machine, work.n_prompt, work.n_depth, model.n_batch, model.n_ubatch, GRAPHS
            )  # fmt: skip
        if work.n_gen:
            depth = work.n_depth + work.n_prompt
            gen = gen_row(together, machine, work.n_gen, depth, GRAPHS)
        return WorkloadTime(work, prompt, gen)

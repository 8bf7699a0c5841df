"""Measures ways to run a model with llama-bench, in turns: changes of the machine's speed then meet
all of them."""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..boundary.ffi import BUILD
from ..builds.script import folder_of
from ..errors import NotBuiltError
from .evaluate import Way
from .placing_flags import Flags, device_words
from .workload import Workload

NAME = "llama-bench"
ROUNDS = 5
_SECONDS = 3600  # of one run of the program, at most
_BY_CHANCE = 0.05  # how often a gain that is none may be told
BENCH_TYPES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")  # of the cache
_LEAST = 0.01  # part of the time that two medians of a few rounds differ by at least


@dataclass(frozen=True)
class Measured:
    """Seconds of the workloads, as llama-bench measured them, in each round."""

    way: Way
    seconds: tuple[float, ...]
    # Tokens per second of each of llama-bench's rows, the median of all rounds: "pp512", "tg128".
    rows: dict[str, float]

    @property
    def usual(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.seconds)


def find_program(given: str | None = None) -> Path:
    """llama-bench: the one that is given, or upstream's own of the release of this library, which
    `ggml-py build --reference` builds. Raises `NotBuiltError`, and FileNotFoundError for a given
    one that is not there."""
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise FileNotFoundError(f"{given}: there is no such program")
        return Path(found).resolve()
    folder = folder_of("--reference", "--no-build", quiet=True)
    if folder is None or not (folder / "bin" / NAME).is_file():
        raise NotBuiltError(
            f"{NAME} of ggml {BUILD['ggml_version']} is not built: `ggml-py build --reference` "
            "does that in three minutes, or give another one with --llama-bench"
        )
    return folder / "bin" / NAME


def bench_line(
    program: Path | str, model: str, way: Way, work: Workload, devices: Sequence[str], n_layer: int
) -> list[str]:
    """The command that measures one of a workload's tests."""
    words = [str(program), "-m", model, *device_words(devices, "bench")]
    words += way.flags.words("bench", n_layer)
    return [*words, "-p", str(work.n_prompt), "-n", str(work.n_gen), "-d", str(work.n_depth)]


def refusal(
    workloads: Sequence[Workload],
    devices: Sequence[str],
    model: str = "",
    given: Flags | None = None,
) -> str:
    """Why llama-bench cannot measure this; "" if it can."""
    if "," in model:
        return "llama-bench separates models by commas, and this one's name has one"
    if given is not None and dict(given.others).get("swa_full"):
        return "llama-bench has no --swa-full"
    if given is not None and not {given.type_k, given.type_v} <= set(BENCH_TYPES):
        return f"llama-bench knows only these types of the cache: {', '.join(BENCH_TYPES)}"
    if any(name.startswith("sim:") for name in devices):
        return "a simulated device is not there, so llama-bench cannot measure with it"
    if any(work.n_parallel > 1 for work in workloads):
        return "llama-bench evaluates one sequence only, and a workload has several (parallel)"
    return ""


def measure(
    program: Path,
    model: str,
    ways: Sequence[Way],
    workloads: Sequence[Workload],
    devices: Sequence[str],
    n_layer: int,
    rounds: int = ROUNDS,
    progress: Callable[[float], object] = lambda _share: None,
    dropped: Callable[[Way, str], object] = lambda _way, _why: None,
) -> list[Measured]:
    """Runs llama-bench for each way in each round. Generation is measured at the depth of the
    prompt's end. A way is dropped if llama-bench fails with it, and the others go on. The others
    are compared with the first way: if that fails, this raises its ChildProcessError, which has
    llama-bench's output."""
    failed: set[int] = set()
    taken: list[list[float]] = [[] for _ in ways]
    rates: list[dict[str, list[float]]] = [{} for _ in ways]
    weights = sum(work.weight for work in workloads)
    for round_ in range(rounds):
        for i, way in enumerate(ways):
            if i in failed:
                continue
            progress((round_ * len(ways) + i) / (rounds * len(ways)))
            seconds = 0.0
            try:
                for work in workloads:
                    for one in tests_of(work):
                        line = bench_line(program, model, way, one, devices, n_layer)
                        name, rate, took = _run([*line, "-r", "1", "-o", "jsonl"])
                        seconds += work.weight / weights * took
                        rates[i].setdefault(name, []).append(rate)
            except ChildProcessError as error:
                if not i:
                    raise
                failed.add(i)
                dropped(way, str(error))
                continue
            taken[i].append(seconds)
    return [
        Measured(
            way, tuple(seconds), {name: statistics.median(found) for name, found in rate.items()},
        )
        for i, (way, seconds, rate) in enumerate(zip(ways, taken, rates, strict=True))
        if i not in failed
    ]  # fmt: skip


def tests_of(work: Workload) -> list[Workload]:
    """llama-bench's tests for a workload: generation begins where the prompt ends."""
    found = []
    if work.n_prompt:
        found.append(Workload(work.n_prompt, 0, work.n_depth))
    if work.n_gen:
        found.append(Workload(0, work.n_gen, work.n_depth + work.n_prompt))
    return found


def _run(line: Sequence[str]) -> tuple[str, float, float]:
    """The test's name, its tokens per second and its seconds."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS, check=False)
        rows = [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]
    except subprocess.TimeoutExpired:
        raise ChildProcessError(
            f"{shlex.join(line)} was ended after {_SECONDS / 60:.0f} minutes"
        ) from None
    except ValueError:
        rows = []
    if done.returncode or len(rows) != 1:
        said = done.stderr.strip().splitlines()[-5:]
        raise ChildProcessError(
            f"{shlex.join(line)} failed ({done.returncode}):\n" + "\n".join(said)
        )
    row = rows[0]
    name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    name += f" @ d{row['n_depth']}" if row["n_depth"] else ""
    return name, float(row["avg_ts"]), 1e-9 * float(row["avg_ns"])


def noise(measured: Sequence[Measured]) -> float:
    """The gain, as a part of the time, from which on two medians differ for certain: by how far the
    rounds of one way are apart."""
    spreads = []
    for one in measured:
        middle = one.usual
        spreads.append(statistics.median(abs(s - middle) for s in one.seconds) / middle)
    deviation = 1.4826 * max(spreads, default=0.0)  # of a normal distribution, from that median
    n = max(len(measured[0].seconds), 1) if measured else 1
    # The quickest of several is compared: one of them is quick by chance more often.
    sure = statistics.NormalDist().inv_cdf(1 - _BY_CHANCE / max(len(measured) - 1, 1))
    return max(float(sure * deviation * (2 / n) ** 0.5), _LEAST)

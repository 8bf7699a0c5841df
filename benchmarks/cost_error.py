"""Predicted tokens per second against llama-bench of the same release, on this machine.

    python benchmarks/cost_error.py [--devices CPU,BLAS,…] [--models 60M-q4_0,…] [--threads 1,2]
                                    [--depths 0,512] [--folder DIR] [--spin] [--again] [--write]

Models of random weights in real shapes are made in DIR and kept there. For each number of threads
and set of devices the machine is calibrated first (DIR/machine-….json), and then llama-bench
measures prompt and generation of the models. Machines that others share change within minutes: it
is calibrated again where the CPU's pace is another one. What was measured is kept in
DIR/measured.json with the calibration before it, so a run that was stopped goes on.
`--again` predicts again and measures nothing.

1. A measurement counts only if others used less than a tenth of a core meanwhile, or if one thread
   had its core alone; otherwise it is repeated, and after some tries it is left out, with its
   reason. Before and after it the CPU's pace is looked at: the times of a product that waits for
   memory, and of one that computes. Where one is more than 7 % from the calibration's, the case is
   measured again, up to three times; if it is still so, the case has figures of its own. What is
   looked at is the machine, never a prediction. Before a measurement it is waited for that pace,
   and where that was in vain for some cases in a row, the machine is calibrated anew. It is
   calibrated twice where its pace changed meanwhile, and the steadier of the two counts.
2. A model's file is read anew before it is measured: the pages of a file that was just written do
   not lie together in memory, and products with them are up to a fifth slower.
3. A third of the cases, chosen by a hash of their names, is for looking at while the model of time
   is changed. The other two thirds are only counted.

4. Threads of an OpenMP build sleep at barriers after a while, and those of ours spin. With `--spin`
   llama-bench's spin, too (OMP_WAIT_POLICY=active): a program is then compared with its own kind.

Upstream's llama-bench of the oracle has the CPU and RPC: half of the layers are on a server, a
process on loopback with as many threads as rpc-server has by default, half of the cores. BLAS and
simulated devices are measured with `ggml-py bench`, which is llama-bench on our libraries. For GPU
(all layers there) and GPU-half, the calibration and the measurements come from a run of the kit
(docs/GPU.md). Plans are made here, on a card with that GPU's properties.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import search
from cost_models import LARGE, MODELS, model_file
from rich.console import Console
from rich.table import Table
from rpc_server import rpc_server

import ggml_py as ggml
from ggml_py import llama
from ggml_py.calibrate import calibrate
from ggml_py.calibrate.calibrate import cold_bytes
from ggml_py.calibrate.describe import Busy, cores
from ggml_py.calibrate.drift import Drift
from ggml_py.calibrate.node_times import Bench
from ggml_py.cost import Machine
from ggml_py.cost.bench_rows import gen_row, prompt_row
from ggml_py.cost.sample import DRIFTS, Sample

N_PROMPT, N_GEN, DEPTHS = 512, 64, (0, 512, 4096)
REPETITIONS = 3
EVERY = 12  # models are measured after one calibration at most
SAME = 0.07  # that the CPU's pace may differ from the calibration's
STEADY = 0.05  # standard deviation of a device's pace while it is calibrated, that may be
CHANGES = 3  # waits in a row for the pace that were in vain, until the machine is calibrated anew
ALONE = 0.97  # of its core's time that one thread must have had
TRIES, WAIT_S = 2, 60.0
PACE_TRIES, PACE_WAIT_S = 3, 15.0
PATTERNS = (
    "ggml_py/cost/*.py", "ggml_py/calibrate/*.py", "benchmarks/cost_error.py",
    "benchmarks/cost_models.py",
)  # fmt: skip
PORT = 50352  # of the RPC server, whose name has it, so a calibration holds for this one only
SERVED_THREADS = max(cores() // 2, 1)  # upstream's default of rpc-server
DEVICES: dict[str, tuple[str, ...]] = {
    "CPU": ("CPU",),
    "BLAS": ("BLAS", "CPU"),
    "RPC": (f"rpc:127.0.0.1:{PORT}", "CPU"),
    "sim": ("sim:gpu0", "CPU"),
    "GPU": ("CUDA0", "CPU"),
    "GPU-half": ("CUDA0", "CPU"),
}
HALF = ("RPC", "GPU-half")  # that have half of the layers
FROM_KIT = {"GPU": "all", "GPU-half": "half"}  # as benchmarks/gpu/part_cost.py calls them
KIT_RESULT = Path(__file__).resolve().parent / "results" / "gpu" / "cost.json.gz"


class Case(NamedTuple):
    """One row of llama-bench."""

    devices: str
    model: str
    threads: int
    depth: int
    test: str  # "pp512" or "tg64"

    @property
    def name(self) -> str:
        return "/".join(map(str, self))

    @property
    def looked_at(self) -> bool:
        """Whether it belongs to the third that the model of time may be changed by."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 3 == 0


def read_anew(path: Path) -> None:
    """Puts a file's pages into memory as reading does."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 20):
            pass


def wait_until_quiet(quiet: float) -> bool:
    """Waits until others leave the machine alone for two seconds; False if they never do."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        busy = Busy()
        time.sleep(2.0)
        if busy.others() < quiet:
            return True
    return False


def llama_bench() -> Path:
    """The newest llama-bench of the oracle."""
    found = sorted(
        (Path.home() / ".cache" / "ggml_py").glob("[or]*e*/*/bin/llama-bench"),
        key=lambda path: path.stat().st_mtime,
    )
    if not found:
        sys.exit("no llama-bench: `pytest --all` or `make oracle` builds it")
    return found[-1]


def command(case: Case, path: Path) -> list[str]:
    """The command that measures a model at one depth, for prompt and generation."""
    words = ["-m", str(path), "-p", str(N_PROMPT), "-n", str(N_GEN), "-d", str(case.depth),
             "-t", str(case.threads), "-r", str(REPETITIONS), "-o", "jsonl"]  # fmt: skip
    if case.devices == "CPU":
        return [str(llama_bench()), *words]
    if case.devices == "RPC":
        there = str(layers_of(case))
        return [str(llama_bench()), *words, "--rpc", f"127.0.0.1:{PORT}", "-ngl", there]
    devices = [word for name in DEVICES[case.devices] for word in ("-d", name)]
    return [sys.executable, "-m", "ggml_py", "bench", *words, *devices]


def layers_of(case: Case) -> int:
    """The layers that go to a device: half of them, or all."""
    return MODELS[case.model].n_layer // 2 if case.devices in HALF else -1


def pace_now(threads: int) -> dict[str, float]:
    """The seconds of the CPU's products that a calibration looks at now and then, by their kind."""
    with Bench(ggml.device("CPU"), threads) as bench, ExitStack() as stack:
        drift = Drift(bench, stack, cold_bytes(bench))
        for _ in range(3):
            drift.look(now=True)
        return {kind: statistics.median(seconds) for kind, seconds in drift.seconds.items()}


def pace_of(machine: Machine) -> dict[str, Sample]:
    """The same while the machine was calibrated."""
    cpu = machine.device("CPU")
    assert cpu is not None
    return {sample.key: sample for sample in cpu.samples if sample.key in DRIFTS}


def measure(case: Case, path: Path, quiet: float) -> dict[str, Any]:
    """The samples of both tests, in tokens per second."""
    why = ""
    for _ in range(TRIES):
        if case.threads > 1 and not wait_until_quiet(quiet):
            why = "the machine was never quiet"
            continue
        read_anew(path)
        # The work of the CPU begins in `ggml-py bench` where it does in upstream's programs.
        as_upstream = {**os.environ, "GGML_PY_WORK_OFFSET": "16"}
        busy, before = Busy(), os.times()
        done = subprocess.run(
            command(case, path), capture_output=True, text=True, check=False, env=as_upstream
        )
        others, after = busy.others(), os.times()
        used = sum(after[2:4]) - sum(before[2:4])
        if case.threads == 1 and used > ALONE * (after.elapsed - before.elapsed):
            others = 0.0  # they had another core
        if case.devices == "RPC":
            others = 0.0  # the server is one of them
        if done.returncode:
            return {"failed": done.stderr[-500:]}
        if others > quiet:
            why = f"others used {others:.2f} cores"
            continue
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {
            f"pp{N_PROMPT}" if row["n_prompt"] else f"tg{N_GEN}": row["samples_ts"] for row in rows
        } | {"others": round(others, 3)}
    return {"left_out": why}


class Calibrations:
    """The calibrations of some devices with some threads, each for `EVERY` models."""

    def __init__(self, devices: str, threads: int, folder: Path, quiet: float) -> None:
        self._devices, self._threads, self._quiet = devices, threads, quiet
        self._folder, self._left = folder, 0
        self.name = ""
        self._n_changed = 0  # waits in a row that were in vain

    def look(self) -> float:
        """What the CPU's pace differs by from that of the calibration, at the kind of product where
        it differs most."""
        was, now = pace_of(loaded(self._folder / self.name)), pace_now(self._threads)
        return max((now[kind] / pace.usual - 1 for kind, pace in was.items()), key=abs)

    def wait_for_pace(self) -> float:
        """Looks until the pace is that of the calibration, which may take until another one: some
        changes last for seconds, and a calibration takes minutes."""
        end = time.monotonic() + PACE_WAIT_S
        while abs(found := self.look()) > SAME:
            if time.monotonic() > end:
                self._n_changed += 1
                if self._n_changed < CHANGES:
                    return found
                self.renew()
                return self.look()
            time.sleep(1.0)
        self._n_changed = 0
        return found

    def next_model(self) -> None:
        """Makes the one that the next model is measured after, if it is time."""
        if not self._left:
            self.renew()
        self._left -= 1

    def renew(self) -> None:
        """Makes another one."""
        start = f"machine-{self._devices}-{self._threads}-"
        made = [int(path.stem.removeprefix(start)) for path in self._folder.glob(f"{start}*.json")]
        first, drifts = max(made, default=0) + 1, dict[str, float]()
        for number in range(first, first + TRIES):
            if self._threads > 1:
                wait_until_quiet(self._quiet)
            machine = calibrate(DEVICES[self._devices], self._threads)
            name = f"{start}{number}.json"
            machine.save(self._folder / name)
            print(name, *machine.doubts, sep="\n  ", file=sys.stderr, flush=True)
            alone = self._threads == 1 or self._devices == "RPC"
            if alone or machine.described.load[1] < self._quiet or not drifts:
                drifts[name] = drift_of(machine)
            if drifts.get(name, 1.0) <= STEADY:
                break
        self.name = min(drifts, key=drifts.__getitem__)
        self._left, self._n_changed = EVERY, 0


def drift_of(machine: Machine) -> float:
    """The most that a device's pace changed by while it was calibrated."""
    return max(
        (s.deviation for d in machine.devices for s in d.samples if s.key in DRIFTS), default=0.0
    )


def is_steady(found: dict[str, Any]) -> bool:
    """Whether the pace was the calibration's before and after a measurement."""
    return all(abs(differs) <= SAME for differs in found.get("paces", ()))


def steadily(case: Case, path: Path, quiet: float, calibrations: Calibrations) -> dict[str, Any]:
    """What `measure` gives, with the calibration before it and what the CPU's pace had changed by
    since then, before and after. If that is much, it is measured anew; the last try that has times
    is kept."""
    found: dict[str, Any] = {}
    for _ in range(PACE_TRIES):
        first = calibrations.wait_for_pace()
        name, now = calibrations.name, measure(case, path, quiet)
        last = calibrations.look()
        if found and f"tg{N_GEN}" not in now:
            break
        found = now | {"machine": name, "paces": [round(first, 3), round(last, 3)]}
        if is_steady(found):
            break
    return found


@contextmanager
def from_kit(devices: str, measured: dict[str, Any], folder: Path) -> Iterator[int]:
    """Adds what a run of the kit measured, and its calibration to the folder. Meanwhile a card with
    the properties of its GPU has the GPU's name. Gives the number of threads."""
    kept = json.loads(gzip.decompress(KIT_RESULT.read_bytes()))["result"]
    threads = int(kept["machine"]["machine"]["n_threads"])
    (folder / f"machine-{devices}-{threads}.json").write_text(json.dumps(kept["machine"]))
    for name, rows in kept["measured"].items():
        where, model, _threads = name.split("/")
        if where == FROM_KIT[devices]:
            for row in rows:
                key = f"{devices}/{model}/{threads}/{row['depth']}"
                measured.setdefault(key, {})[row["test"]] = row["samples"]
    card, properties = kept["card"]
    profile = ggml.load_profile(card, **properties)
    with ggml.sim_device(DEVICES[devices][0], profile=profile):
        yield threads


@functools.cache
def loaded(path: Path) -> Machine:
    return Machine.load(path)


@contextmanager
def planning(case: Case, path: Path, n_ctx: int) -> Iterator[Any]:
    with llama.open(
        path, devices=DEVICES[case.devices], n_gpu_layers=layers_of(case), n_ctx=n_ctx,
        program="bench", n_threads=case.threads,
    ) as model:  # fmt: skip
        yield model


def predict(case: Case, path: Path, machine: Machine) -> dict[str, Any]:
    """The predicted row."""
    if case.test.startswith("pp"):
        with planning(case, path, case.depth + N_PROMPT) as model:
            row = prompt_row(
                model.plan, machine, N_PROMPT, case.depth, model.n_batch, model.n_ubatch
            )  # fmt: skip
    else:
        with planning(case, path, case.depth + N_GEN) as model:
            row = gen_row(model.plan, machine, N_GEN, case.depth)
    low, high = row.tokens_per_second_interval
    return {
        "predicted": row.tokens_per_second, "low": low, "high": high, "bound": row.bound,
        "unknown": len(row.graphs[-1][2].unknown),
    }  # fmt: skip


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The errors of some cases."""
    errors = sorted(abs(math.log(row["predicted"] / row["measured"])) for row in rows)
    inside = [row["low"] <= row["measured"] <= row["high"] for row in rows]
    if not errors:
        return {"cases": 0}
    return {
        "cases": len(rows),
        "median": round(math.expm1(statistics.median(errors)), 4),
        "ninth_of_ten": round(math.expm1(errors[math.ceil(0.9 * len(errors)) - 1]), 4),
        "within_15": round(sum(e <= math.log(1.15) for e in errors) / len(errors), 4),
        "in_interval": round(sum(inside) / len(inside), 4),
    }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("case", "measured", "spread", "predicted", "error", "90%", "bound", "third")
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        mark = "" if row["low"] <= row["measured"] <= row["high"] else " !"
        table.add_row(
            row["case"], f"{row['measured']:.1f}", f"{row['spread']:.1%}",
            f"{row['predicted']:.1f}", f"{error:+.1%}",
            f"{row['low']:.0f}-{row['high']:.0f}{mark}", row["bound"],
            "looked at" if row["looked_at"] else "" if row["steady"] else "changed",
        )  # fmt: skip
    Console(width=140).print(table)


def main() -> int:
    """Runs the command. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--devices", default="CPU", help="of " + ", ".join(DEVICES))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--depths", default=",".join(map(str, DEPTHS)))
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache/ggml_py/cost_error")
    parser.add_argument("--quiet", type=float, default=0.1,
                        help="cores that others may use while something is measured")  # fmt: skip
    parser.add_argument("--spin", action="store_true",
                        help="let llama-bench's OpenMP threads spin, as ours do")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the record")
    asked = parser.parse_args()
    if asked.spin:
        os.environ["OMP_WAIT_POLICY"] = "active"  # llama-bench inherits it
        asked.folder = asked.folder / "spin"
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = asked.folder / "measured.json"
    measured: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for devices, threads in product(asked.devices.split(","), map(int, asked.threads.split(","))):
        kept_here = devices in FROM_KIT
        if kept_here and threads != int(asked.threads.split(",")[0]):
            continue  # the kit has one number of threads
        with ExitStack() as stack:
            if kept_here:
                threads = stack.enter_context(from_kit(devices, measured, asked.folder))
            if devices == "RPC":
                stack.enter_context(rpc_server(PORT, SERVED_THREADS))
            calibrations = Calibrations(devices, threads, asked.folder, asked.quiet)
            for model in asked.models.split(","):
                path = model_file(model, asked.folder)
                depths = [*map(int, asked.depths.split(","))]
                depths = depths[:1] if MODELS[model].n_params > LARGE else depths
                keys = [f"{devices}/{model}/{threads}/{depth}" for depth in depths]
                measures = not (asked.again or kept_here)
                if measures and any(key not in measured for key in keys):
                    calibrations.next_model()
                for depth, key in zip(depths, keys, strict=True):
                    if key not in measured and measures:
                        case = Case(devices, model, threads, depth, "")
                        found = steadily(case, path, asked.quiet, calibrations)
                        print(key, found, file=sys.stderr, flush=True)
                        if "left_out" in found:
                            left_out[key] = found["left_out"]
                        else:
                            measured[key] = found
                            search.write(kept, measured)
                    for test in (f"pp{N_PROMPT}", f"tg{N_GEN}"):
                        case = Case(devices, model, threads, depth, test)
                        if test not in measured.get(key, {}):
                            left_out.setdefault(key, str(measured.get(key, "not measured")))
                            continue
                        samples = measured[key][test]
                        middle = statistics.median(samples)
                        rows.append({
                            "case": case.name, "looked_at": case.looked_at, "measured": middle,
                            "spread": (max(samples) - min(samples)) / middle,
                            "steady": is_steady(measured[key]),
                            **predict(case, path, loaded(asked.folder / measured[key].get(
                                "machine", f"machine-{devices}-{threads}.json"))),
                        })  # fmt: skip
    show(rows)
    unseen = [row for row in rows if not row["looked_at"]]
    counted = [row for row in unseen if row["steady"]]
    result = {
        "all": figures(rows), "looked_at": figures([r for r in rows if r["looked_at"]]),
        "not looked at, where the machine had changed": figures(
            [row for row in unseen if not row["steady"]]),
        "counted": figures(counted),
        **{name: figures([r for r in counted if r["case"].startswith(name + "/")])
           for name in asked.devices.split(",")},
    }  # fmt: skip
    for name, found in result.items():
        print(name, found)
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    bars = result["counted"]
    met = bool(counted) and bars["median"] <= 0.08 and bars["within_15"] >= 0.9 and (
        0.85 <= bars["in_interval"] <= 0.95)  # fmt: skip
    if asked.write:
        search.keep(
            "cost_error", "python benchmarks/cost_error.py --write", PATTERNS, equal=met,
            figures=result, left_out=left_out, rows=rows,
        )  # fmt: skip
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())

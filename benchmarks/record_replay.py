"""Recorded plans, planned again on the devices they were recorded on: for every architecture.

    python benchmarks/record_replay.py [--only REGEX] [--models DIR] [--write]

Takes two minutes.

An unmodified llama-bench runs each model that upstream's `test-llama-archs -o` writes, recorded, on
the CPU and on a simulated GPU that has a part of the layers. Each plan of the record becomes a real
graph again and is planned by this build's scheduler (`ggml_py.scheduler.replay`). It has to be the
recorded one: the graph, the backends' answers, the assignment, causes, splits and copies. `--write`
puts the table into benchmarks/results/record_replay.json. Exit status 1: something differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import search
from models import reference

from ggml_py import Record
from ggml_py.boundary.ffi import BUILD
from ggml_py.record.programs import launch
from ggml_py.record.programs.devices import sims_text
from ggml_py.record.programs.identify import recorder_for, simulator_for
from ggml_py.scheduler.replay import replay
from ggml_py.sim.given import named_devices

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "ggml_py/record/*.py", "ggml_py/scheduler/replay.py", "ggml_py/native/record/*",
    "ggml_py/native/record_*", "ggml_py/native/sched_*", "vendor/recorder.py",
    "benchmarks/record_replay.py",
)  # fmt: skip
SETTINGS = {"CPU": (("CPU",), ()), "GPU": (("sim:gpu0,profile=cuda", "CPU"), ("-ngl", "1"))}
_ASKED = ("-p", "24", "-n", "2", "-r", "1", "-t", "2", "-ub", "16", "--no-warmup")


def main() -> int:
    """Prints a line for each model, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    bench = reference("llama-bench")
    recorder = recorder_for(next(bench.resolve().parents[1].glob("lib/libggml-base.so")))
    module = simulator_for(recorder)
    start = time.monotonic()
    table: dict[str, dict[str, list[object]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = args.models or Path(folder) / "models"
        if args.models is None:
            models.mkdir()
            archs = bench.with_name("test-llama-archs")
            subprocess.run([archs, "-s", "42", "-o", models], check=True, capture_output=True)
        for path in sorted(models.glob("*.gguf")):
            if re.search(args.only, path.stem):
                table[path.stem] = {
                    setting: compared(bench, path, Path(folder), recorder, module, setting)
                    for setting in SETTINGS
                }
                print(f"{path.stem}: {table[path.stem]}", file=sys.stderr)
    held = show(table)
    if args.write:
        write(table, held, time.monotonic() - start)
    return 0 if held else 1


def compared(bench, path, folder, recorder, module, setting) -> list[object]:
    """[plans, equal ones, what is different or why there is none]."""
    names, words = SETTINGS[setting]
    file = folder / "one.ggrec"
    file.unlink(missing_ok=True)
    sims = sims_text(names)
    options = launch.RecordOptions(quiet=True)
    given = (module, sims) if sims else None
    done = subprocess.run(
        [bench, "-m", path, *_ASKED, *words], capture_output=True, text=True, check=False,
        env={**os.environ,
             **launch.environment(recorder, str(file), options, os.environ, given)},
    )  # fmt: skip
    if not file.exists():
        lines = (done.stderr or done.stdout).strip().splitlines()
        return [0, 0, f"llama-bench: {lines[-1] if lines else done.returncode}"]
    devices = [device for name in names for device in named_devices(name)]
    try:
        plans = [one.plan for one in Record.read(file)]
        wrong = ""
        n_equal = 0
        for i, plan in enumerate(plans):
            again = replay(plan, devices).plan
            if (again.capture, again.outcome) == (_as_of(plan, again), plan.outcome):
                n_equal += 1
            else:
                wrong = wrong or f"plan {i}: {str(plan.diff(again)).splitlines()[0]}"
        ended = "" if done.returncode == 0 else f"llama-bench ended with {done.returncode}"
        return [len(plans), n_equal, wrong or ended]
    finally:
        for device in devices:
            if hasattr(device, "close"):
                device.close()


def _as_of(plan, again):
    """The recorded capture with this build's name, and with empty buffers."""
    buffers = tuple(
        old._replace(size=new.size)
        for old, new in zip(plan.capture.buffers, again.capture.buffers, strict=False)
    )
    settings = plan.capture.settings._replace(build=again.capture.settings.build)
    return dataclasses.replace(plan.capture, settings=settings, buffers=buffers)


def show(table: dict[str, dict[str, list[object]]]) -> bool:
    """Prints the sums; whether all plans are equal."""
    held = True
    print("| devices | models | recorded | plans | equal | different |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for setting in SETTINGS:
        rows = {name: row[setting] for name, row in table.items()}
        n_plans, n_equal = (sum(int(r[i]) for r in rows.values()) for i in (0, 1))
        wrong = [name for name, r in rows.items() if r[0] != r[1]]
        held = held and not wrong
        n_recorded = sum(bool(r[0]) for r in rows.values())
        print(f"| {setting} | {len(rows)} | {n_recorded} | {n_plans} | {n_equal} | "
              f"{', '.join(wrong)} |")  # fmt: skip
    return held


def write(table: dict[str, dict[str, list[object]]], held: bool, seconds: float) -> None:
    """Writes the record."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.strip()
    record = {
        "command": "python benchmarks/record_replay.py --write",
        "date": str(datetime.date.today()), "commit": commit, "build": BUILD["key"],
        "seconds": round(seconds), "equal": held, "patterns": list(PATTERNS),
        "about": search.hashes(PATTERNS), "table": table,
    }  # fmt: skip
    target = REPO / "benchmarks" / "results" / "record_replay.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

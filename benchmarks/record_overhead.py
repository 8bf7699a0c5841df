"""What it costs a program to be recorded: an unmodified llama-bench, pristine and recorded in turn.

    python benchmarks/record_overhead.py [--rounds 20] [--json]     about five minutes

Each round runs llama-bench three times in a random order: alone, recorded, recorded with --run. A
result is the mean of the logarithms of the ratios of tokens per second within rounds, with its 95 %
confidence interval. A bar is met only if the whole interval is below it, missed only if it is above
it; otherwise it is undecided.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

import models

from ggml_py.record.programs import launch
from ggml_py.record.programs.identify import recorder_for

MODEL = "110M-q4_0"
TESTS = {"prompt 512": "pp512", "decode 64": "tg64"}
BARS = {"recorded": 1.02, "recorded, --run": 1.04}
ALONE = "alone"


def environments(recorder, folder: Path) -> dict[str, dict[str, str]]:
    """The variables of each way to run."""
    def recorded(run: bool) -> dict[str, str]:
        options = launch.RecordOptions(run=run, quiet=True)
        return launch.environment(recorder, f"{folder}/", options, os.environ)

    return {ALONE: {}, "recorded": recorded(False), "recorded, --run": recorded(True)}


def speeds(program: Path, model: Path, threads: int, more: dict[str, str]) -> dict[str, float]:
    """Tokens per second by test."""
    done = subprocess.run(
        [program, "-m", model, "-p", "512", "-n", "64", "-t", str(threads), "-r", "3",
         "-o", "json"],
        env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    rows = json.loads(done.stdout)
    return {
        f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}": r["avg_ts"] for r in rows
    }


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean ratio and its 95 % interval, of logarithms."""
    mean, half = statistics.mean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def verdict(low: float, high: float, bar: float) -> str:
    return "met" if high <= bar else "missed" if low > bar else "undecided"


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    program = models.reference("llama-bench")
    order = random.Random(1)
    ratios: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        library = next(program.resolve().parents[1].glob("lib/libggml-base.so"))
        ways = environments(recorder_for(library), Path(folder))
        model = models.file_of(MODEL, Path(folder))
        speeds(program, model, asked.threads, {})  # warms the file's pages
        for _ in range(asked.rounds):
            names = list(ways)
            order.shuffle(names)
            found = {name: speeds(program, model, asked.threads, ways[name]) for name in names}
            for name in BARS:
                for test, key in TESTS.items():
                    ratio = math.log(found[ALONE][key] / found[name][key])
                    ratios.setdefault((name, test), []).append(ratio)
    rows = []
    for (name, test), values in ratios.items():
        mean, low, high = interval(values)
        rows.append({"what": name, "test": test, "ratio": round(mean, 4), "low": round(low, 4),
                     "high": round(high, 4), "bar": BARS[name],
                     "verdict": verdict(low, high, BARS[name])})  # fmt: skip
    if asked.json:
        told = {"rounds": asked.rounds, "threads": asked.threads, "rows": rows}
        print(json.dumps(told, indent=1))
        return
    print(f"llama-bench, {MODEL}, {asked.threads} threads, {asked.rounds} rounds: time per token, "
          "relative to the program alone")
    for r in rows:
        print(f"{r['what']:16} {r['test']:11} {r['ratio']:.4f} [{r['low']:.4f}, {r['high']:.4f}]"
              f"  bar {r['bar']}: {r['verdict']}")  # fmt: skip


if __name__ == "__main__":
    main()

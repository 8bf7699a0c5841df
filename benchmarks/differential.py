"""Compares ggml's own scheduler with the reference on many random graphs.

    python benchmarks/differential.py --cases 100000
    GGML_PY_UPSTREAM=0.18.0 python benchmarks/differential.py --cases 100000 --first 100000

A case is a number. Failing cases are printed; `--first N --cases 1` repeats one. Each case plans
1 to 4 graphs, with and without pins, allocates them, and compares every assignment, cause, split,
input and copy, and the slots of the hash set.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "scheduler"))

import test_differential
from rich.progress import Progress

from ggml_py.boundary.ffi import BUILD

MAX_NODES = (6, 12, 24, 48)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start, plans, failed = time.perf_counter(), 0, []
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("comparing", total=options.cases)
        for seed in range(options.first, options.first + options.cases):
            try:
                plans += test_differential.check(seed, MAX_NODES[seed % len(MAX_NODES)])
            except AssertionError as error:
                failed.append(seed)
                print(f"case {seed}: {error}", file=sys.stderr)
            progress.advance(task)
    result = {
        "release": BUILD["key"], "cases": options.cases, "first": options.first, "plans": plans,
        "disagreements": failed, "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{BUILD['key']}: {options.cases:,} cases, {plans:,} plans compared, "
            f"{len(failed)} disagreements, {result['seconds']} s"
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

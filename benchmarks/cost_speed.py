"""How long `Plan.cost` takes for a plan of a thousand nodes.

    python benchmarks/cost_speed.py [--rounds 20] [--write]

The plan is that of a llama's graph, as libllama builds it; the machine is this one, calibrated for
a few seconds. The first call also sorts the machine's samples, and is shown apart. `--write` puts
the figures into benchmarks/results/cost_speed.json. Exit status 1 means more than 10 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import search

from ggml_py import llama
from ggml_py.calibrate import calibrate
from ggml_py.models.synthetic import LlamaSpec, write_llama

PATTERNS = ("ggml_py/cost/*.py", "benchmarks/cost_speed.py")
MOST_MS = 10.0
LAYERS = 33  # of 31 nodes each


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    machine = calibrate(["CPU"], 1, seconds=15.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        write_llama(path, LlamaSpec(n_layer=LAYERS, n_vocab=512))
        with llama.open(path, n_threads=1) as model:
            plan = model.plan(1, 100)
    plan.cost(machine).headline()
    taken = []
    for _ in range(asked.rounds + 1):
        start = time.perf_counter()
        plan.cost(machine)
        taken.append((time.perf_counter() - start) * 1e3)
        machine._derived.clear() if not taken[1:] else None
    first, *rest = taken
    n = len(plan.nodes)
    per_1000 = min(rest) * 1000 / n
    print(f"{n} nodes: {min(rest):.2f} ms at best, {sorted(rest)[len(rest) // 2]:.2f} ms usually, "
          f"{first:.2f} ms the first time; {per_1000:.2f} ms for 1,000 nodes")  # fmt: skip
    if asked.write:
        search.keep(
            "cost_speed", "python benchmarks/cost_speed.py --write", PATTERNS,
            equal=per_1000 < MOST_MS, nodes=n, best_ms=round(min(rest), 3),
            median_ms=round(sorted(rest)[len(rest) // 2], 3), first_ms=round(first, 3),
        )  # fmt: skip
    return int(per_1000 >= MOST_MS)


if __name__ == "__main__":
    sys.exit(main())

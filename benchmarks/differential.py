"""Compares ggml's own scheduler with the reference on many random graphs.

    python benchmarks/differential.py --cases 100000
    GGML_PY_UPSTREAM=0.18.0 python benchmarks/differential.py --cases 100000 --out 0.18.0.json

Each case plans 1 to 4 graphs, with and without pins, allocates them, and compares every assignment,
cause, split, input and copy, and the slots of the hash set.
"""

from __future__ import annotations

import sys

import search

sys.path.append(str(search.REPO))
from tests.support import scheduler_checks

MAX_NODES = (6, 12, 24, 48)


def case(seed: int) -> str:
    """The number of plans that were compared. Raises AssertionError for one that differs."""
    return f"{scheduler_checks.check(seed, MAX_NODES[seed % len(MAX_NODES)])} plans"


SEARCH = search.Search(
    "differential",
    (
        "ggml_py/trace/*.py", "ggml_py/scheduler/*.py", "vendor/instrument.py",
        "tests/scheduler/scheduler_checks.py", "tests/support/random_graphs.py",
    ),
    case,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

"""Compares ggml's own scheduler with the reference on many random graphs.

    python benchmarks/differential.py --cases 100000
    GGML_PY_UPSTREAM=0.18.0 python benchmarks/differential.py --cases 100000 --out 0.18.0.json

Each case plans 1 to 4 graphs, with and without pins, allocates them, and compares every assignment,
cause, split, input and copy, and the slots of the hash set.
"""

from __future__ import annotations

import sys

import search

sys.path[:0] = [str(search.REPO / "tests" / folder) for folder in ("support", "scheduler")]
import test_differential  # noqa: E402

MAX_NODES = (6, 12, 24, 48)


def case(seed: int) -> str:
    """The number of plans that were compared. Raises AssertionError for one that differs."""
    return f"{test_differential.check(seed, MAX_NODES[seed % len(MAX_NODES)])} plans"


SEARCH = search.Search(
    "differential",
    (
        "ggml_py/trace/*.py", "ggml_py/scheduler/*.py", "vendor/instrument.py",
        "tests/scheduler/test_differential.py", "tests/support/random_graphs.py",
    ),
    case,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

"""Checks on random graphs that plans and computes agree about memory out of a backend's reach.

    python benchmarks/reach.py --cases 20000

tests/support/reach_cases.py says what a case is, and what a finding.
"""

from __future__ import annotations

import sys

import search

sys.path.append(str(search.REPO))
from tests.support.reach_cases import case

SEARCH = search.Search(
    "reach",
    ("ggml_py/native/reach.*", "ggml_py/native/sim_*", "ggml_py/trace/answers/reach.py",
     "vendor/reach_edits.py", "tests/support/reach_cases.py", "tests/support/random_graphs.py"),
    case, limit_s=20,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

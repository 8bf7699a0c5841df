"""Runs random ops on operands in other layouts: they must give the same numbers or be refused, and
write nothing else.

    python benchmarks/metamorphic.py --cases 100000 --jobs 2

tests/support/op_metamorphosis.py says what a case is, and what a finding; op_cases.py has cases.
"""

from __future__ import annotations

import sys

import search

sys.path.append(str(search.REPO))
from tests.support import (
    op_cases,
    op_more_cases,  # noqa: F401  (registers its cases)
)
from tests.support.op_metamorphosis import check


def case(seed: int) -> str:
    """The outcome of the case with this number."""
    return check(op_cases.draw(seed), seed)


SEARCH = search.Search(
    "metamorphic",
    ("ggml_py/native/kernel_*.h", "ggml_py/native/op_checks.h", "ggml_py/native/overlap.h",
     "vendor/op_edits.py", "vendor/place_edits.py", "tests/support/op_*.py"),
    case, limit_s=20, per_process=5000,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

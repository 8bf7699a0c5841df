"""Random ops on operands in other layouts: the same numbers or a refusal, nothing else written.

    python benchmarks/metamorphic.py --cases 100000 --jobs 2

What a case is, and what a finding: op_metamorphosis.py of tests/support. The cases: op_cases.py.
"""

from __future__ import annotations

import sys

import search

sys.path.insert(0, str(search.REPO / "tests" / "support"))
import op_cases
import op_more_cases  # noqa: F401  (its cases)
from op_metamorphosis import check


def case(seed: int) -> str:
    """How the case of this number ended."""
    return check(op_cases.draw(seed), seed)


SEARCH = search.Search(
    "metamorphic",
    ("ggml_py/native/kernel_*.h", "ggml_py/native/op_checks.h", "ggml_py/native/overlap.h",
     "vendor/op_edits.py", "vendor/place_edits.py", "tests/support/op_*.py"),
    case, limit_s=20, per_process=5000,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

"""Plans of random set-ups beside upstream's own print of them, with its own causes.

    python benchmarks/causes.py --cases 1000

tests/support/cause_cases.py says what a case is. The reference programs are built on first use.
"""

from __future__ import annotations

import sys

import search

sys.path.append(str(search.REPO))
from tests.support.cause_cases import check

SEARCH = search.Search(
    "causes",
    ("ggml_py/native/sched_*", "ggml_py/native/record*", "ggml_py/record/*.py",
     "ggml_py/trace/planning.py", "ggml_py/trace/decode.py", "ggml_py/export/to_text.py",
     "tests/support/cause_*.py", "tests/support/oracle_gpus.cpp"),
    check, limit_s=120,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

"""Options of llama.cpp that `ggml-py why-not` names, followed for real through libllama.

    python benchmarks/followed.py --cases 1000

tests/support/followed_cases.py says what a case is. The reference programs are built on first use.
"""

from __future__ import annotations

import sys

import search

sys.path.append(str(search.REPO))
from tests.support.followed_cases import check

SEARCH = search.Search(
    "followed",
    ("ggml_py/trace/answers/why_not.py", "ggml_py/trace/answers/reasons.py",
     "ggml_py/llama/*.py", "tests/support/followed_cases.py", "tests/support/placements.py"),
    check, limit_s=120,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

"""Runs random programs on an RPC server that fails at a random message. They must give the right
result, or in time an error with the server's name. The process must never die or hang.

    python benchmarks/rpc_faults.py --cases 20000 --jobs 2

tests/support/rpc_programs.py says what a case is, and what a finding. rpc_net.py has the faults.
"""

from __future__ import annotations

import sys

import search

sys.path.append(str(search.REPO))
from tests.support import rpc_programs

SEARCH = search.Search(
    "rpc_faults",
    ("ggml_py/native/rpc_*", "vendor/rpc_edits.py", "ggml_py/backends/rpc.py",
     "tests/support/rpc_*.py"),
    rpc_programs.check, limit_s=60, per_process=250,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

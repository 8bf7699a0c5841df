"""Random programs on an RPC server that fails at a random message: the right result, or an error
with the server's name in time; never the end of the process, never a hang.

    python benchmarks/rpc_faults.py --cases 20000 --jobs 2

What a case is, and what a finding: rpc_programs.py of tests/support. The faults: rpc_net.py.
"""

from __future__ import annotations

import sys

import search

sys.path.insert(0, str(search.REPO / "tests" / "support"))
import rpc_programs

SEARCH = search.Search(
    "rpc_faults",
    ("ggml_py/native/rpc_*", "vendor/rpc_edits.py", "ggml_py/backends/rpc.py",
     "tests/support/rpc_*.py"),
    rpc_programs.check, limit_s=60, per_process=250,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(search.main(SEARCH))

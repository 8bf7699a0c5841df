"""Seconds to start Python and import the package, compared with numpy.

    python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from rounds import Row, compare, parser, seconds, show

CODES = {
    "python + import ggml_py": "import ggml_py",
    "… + library, devices, Scheduler": "import ggml_py; ggml_py.devices(); ggml_py.Scheduler",
}


def start(code: str) -> Callable[[], float]:
    """Runs `code` in a new Python process."""
    return lambda: seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))


def rows(rounds: int, _peer: str) -> list[Row]:
    """One row for the package alone, one with everything loaded."""
    found = []
    for what, code in CODES.items():
        peers = {"python + import numpy": start("import numpy")}
        bars = dict.fromkeys(peers, 1.6)
        found += compare(what, start(code), peers, rounds=rounds, bars=bars)
    return found


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

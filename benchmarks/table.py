"""All benchmarks in one table.

    python benchmarks/table.py [--peer PYTHON] [--only startup,ops,…] [--json | --markdown]

About five minutes on a quiet machine, once the pristine library and llama-bench are built.
"""

from __future__ import annotations

import computes
import copies
import memory
import models
import ops
import plans
import recording
import sampling
import startup
from rounds import parser, show

PARTS = {
    "startup": startup.rows,
    "ops": ops.rows,
    "copies": copies.rows,
    "plans": plans.rows,
    "computes": computes.rows,
    "memory": memory.rows,
    "recording": recording.rows,
    "sampling": sampling.rows,
    "llama": models.rows,
}


def main() -> None:
    """Runs the parts one after the other."""
    options = parser(__doc__)
    options.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated")
    args = options.parse_args()
    wanted = args.only.split(",")
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        options.error(f"unknown part {', '.join(unknown)}: known are {', '.join(PARTS)}")
    show([row for part in wanted for row in PARTS[part](args.rounds, args.peer)], args.form)


if __name__ == "__main__":
    main()

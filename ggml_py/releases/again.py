"""Plans saved plans' graphs again, in a process that has loaded the release of GGML_PY_UPSTREAM.

python -m ggml_py.releases.again JOB.json

The job has a list of items. An item names the file of a saved plan, the files of its scheduler's
earlier plans, and the file to write. It also says whether the plan is this release's own, and so
only observed; whether it is only timed, or only planned; and how it is observed (`Work`). Each item
ends with a line on standard output. A process that dies leaves its finished items.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import GgmlError
from ..files.writing import write_whole
from ..plan import Plan
from ..scheduler.as_recorded import AsRecorded
from ..scheduler.observed import Observed

STOPPED = 3  # exit status: the other items would fail, too
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NOT_OBSERVED = Observed({}, {}, (), None, (), "only planned")
_OTHERWISE = "the devices that stand in for those of the plan lead to another plan"


def main() -> int:
    """Does the items of the job in their order."""
    job, parent = json.loads(Path(sys.argv[1]).read_text()), os.getppid()
    with contextlib.ExitStack() as stack:
        current: AsRecorded | None = None  # the scheduler of the item before, if this one goes on
        for item in job["items"]:
            out = Path(item["out"])
            try:
                plan = Plan.from_json(item["saved"])
                if current is None:
                    stack.close()
                    n_threads = 1 if item.get("in_depth") else None  # these graphs are small
                    current = _scheduler(stack, plan, item["earlier"], job["size"], n_threads)
                _one(current, plan, item, out)
                if not item["goes_on"]:
                    current = None
            except (GgmlError, ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno in _NO_ROOM:
                    print(f"error: {error}: no room for plans", file=sys.stderr)
                    return STOPPED
                write_whole(f"{out}.error", str(error).encode())
                current = None
            if os.getppid() != parent:  # nobody waits for the rest
                return STOPPED
            print(flush=True)
    return 0


def _scheduler(
    stack: contextlib.ExitStack, plan: Plan, earlier: list[str], size: int, n_threads: int | None
) -> AsRecorded:
    made = stack.enter_context(AsRecorded(plan, size, n_threads))
    for one in earlier:
        made.plan(Plan.from_json(one))
    return made


def _one(scheduler: AsRecorded, plan: Plan, item: dict[str, Any], out: Path) -> None:
    if item.get("timed"):
        write_whole(f"{out}.observed", json.dumps(scheduler.median_seconds(plan)).encode())
        return
    again = scheduler.plan(plan)
    if item["own"] and again.diff(plan):
        seen = Observed({}, {}, (), None, (), _OTHERWISE)
    else:
        if not item["own"]:
            again.to_json(out)
        seen = NOT_OBSERVED
        if item["observe"]:
            first = Plan.from_json(item["reserve"]) if item["reserve"] else None
            seen = scheduler.observe(plan, first, item["in_depth"])
    write_whole(f"{out}.observed", json.dumps(seen).encode())


if __name__ == "__main__":
    sys.exit(main())

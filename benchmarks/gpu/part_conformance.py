"""`test-backend-ops test` for the device, on the installed build's library of it: each result is
compared with the CPU's. Runs in slices of ops, so that an interrupted part goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpu_part import Doing, environment, main
from part_supports import cases

SMALL = 24  # ops with few cases are tested together: each process sets up the device
LARGE = 1200  # cases of an op that is tested by itself, in slices by type
SLICE_S = 5.0  # seconds left below which no other slice is begun
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What differs is printed on the same line: before the case, or before FAIL.
_CASE = re.compile(r"(?:^|\s)([A-Z0-9_]+)\((.*?)\): (?:.* )?(OK|FAIL|not supported.*)$")
_OF_DRY_RUN = ("SILU", "RMS_NORM", "CONT")


def slices(ops: dict[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """(name, options of the program): small ops together, then each large one by its types."""
    small = [op for op, params in ops.items() if len(params) < LARGE]
    small.sort(key=lambda op: len(ops[op]))
    for first in range(0, len(small), SMALL):
        names = small[first : first + SMALL]
        yield ",".join(names), ["-o", ",".join(names)]
    for op in sorted(set(ops) - set(small), key=lambda op: len(ops[op])):
        # The first parameter tells types (or head sizes) apart.
        firsts = Counter(re.match(r"[^,\]]*\]?", one)[0] for one in ops[op])  # type: ignore[index]
        for first, _n in firsts.most_common():
            yield f"{op} {first}", ["-o", op, "-p", f"^{re.escape(first)}(,|$)"]


def tested(printed: str) -> tuple[Counter[str], list[str]]:
    """How many cases passed, failed, are not supported; and the lines of those that failed."""
    counts: Counter[str] = Counter()
    failed = []
    for line in _ANSI.sub("", printed).splitlines():
        match = _CASE.search(line.rstrip())
        if match is None:
            continue
        said = match[3]
        how = "not supported" if "not supported" in said else "ok" if said == "OK" \
            else "failed"  # fmt: skip
        counts[how] += 1
        if how == "failed":
            failed.append(line.strip()[:400])
    return counts, failed


def work(doing: Doing) -> str:
    """Tests slice after slice until the time is over."""
    name, found = doing.device.name, doing.found
    ops: dict[str, list[str]] = {}
    for op, params, supported in cases(doing, name):
        if supported and (not doing.dry_run or op in _OF_DRY_RUN):
            ops.setdefault(op, []).append(params)
    # How many `support` lists; `test` has some cases more, of fused ops.
    found["cases"] = sum(map(len, ops.values()))
    plan = list(slices(ops))
    workers = max(min(os.cpu_count() or 1, 16) // 4, 1)
    for title, options in plan:
        if title in found["slices"]:
            continue
        if doing.left < SLICE_S:
            break
        row = _one(doing, name, options, workers)
        if row["status"] is None:
            break
        found["slices"][title] = row
        _count(doing)
        doing.save()
    _count(doing)
    left = len(plan) - len(found["slices"])
    if left:
        doing.unfinished = f"{left} of {len(plan)} slices"
    counts = found["counts"]
    return (
        f"{counts.get('ok', 0):,} passed, {counts.get('failed', 0):,} failed, "
        f"{counts.get('not supported', 0):,} not supported; {left} of {len(plan)} slices left"
    )


def _one(doing: Doing, name: str, options: list[str], workers: int) -> dict[str, Any]:
    command = [str(doing.programs / "test-backend-ops"), "test", "-b", name, *options]
    start = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "-j", str(workers)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False, timeout=max(doing.left - 1, 1), env=environment() | doing.pristine,
        )  # fmt: skip
        printed, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        printed, status = late.stdout or b"", None
    text = printed.decode(errors="replace")
    counts, failed = tested(text)
    row: dict[str, Any] = {"counts": dict(counts), "seconds": round(time.monotonic() - start, 1)}
    row |= {"failed": failed[:40], "status": status}  # None: cut off
    if status not in (0, None) and not failed:
        row["tail"] = text[-1500:]  # it died
    return row


def _count(doing: Doing) -> None:
    total: Counter[str] = Counter()
    doing.failures.clear()
    for title, row in doing.found["slices"].items():
        total.update(row["counts"])
        if row["failed"] or row["status"] != 0:
            n = row["counts"].get("failed", 0)
            doing.failures.append(f"{title[:80]}: {n} failed, status {row['status']}")
    doing.found["counts"] = dict(total)


if __name__ == "__main__":
    sys.exit(main(work, {"slices": {}}))

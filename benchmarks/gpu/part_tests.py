"""The suite's tests marked `gpu`, against the installed package, and the demo."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from gpu_part import Doing, main

TREE = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"mark\.gpu\b|^def test_\w+\([^)]*\bgpu\b", re.M)


def files() -> list[Path]:
    """The test files that have such tests. Collecting all files takes a minute."""
    own = re.compile(r"^def gpu\(|^    def gpu\(|\"gpu\"", re.M)  # a fixture or case of its own
    found = sorted((TREE / "tests").rglob("test_*.py"))
    return [
        path
        for path in found
        if MARKED.search(text := path.read_text(encoding="utf-8")) and not own.search(text)
    ]


def outcomes(report: Path) -> list[dict[str, Any]]:
    """The tests in a JUnit report: name, outcome, seconds, and what a failure said."""
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        bad = next((one for one in case if one.tag in ("failure", "error", "skipped")), None)
        rows.append({
            "test": f"{case.get('classname')}::{case.get('name')}",
            "outcome": "passed" if bad is None else bad.tag.replace("failure", "failed"),
            "seconds": float(case.get("time") or 0),
            "text": "" if bad is None else f"{bad.get('message')}\n{bad.text or ''}"[-2000:],
        })  # fmt: skip
    return rows


def work(doing: Doing) -> str:
    """Runs the tests, then the demo."""
    report = doing.work / "tests.xml"
    report.unlink(missing_ok=True)
    chosen = [] if doing.dry_run else ["-m", "gpu"]  # without a GPU also those on a server
    command = [sys.executable, "-m", "pytest", *chosen, "-q", "-p", "no:cacheprovider",
               f"--junitxml={report}", *files()]  # fmt: skip
    # The current folder has no ggml_py, so the installed one is tested.
    try:
        print(doing.run(*command))
    except RuntimeError as error:
        print(error)
    rows = doing.found["tests"] = outcomes(report) if report.exists() else []
    doing.save()
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
        wanted = ("passed", "skipped") if doing.dry_run else ("passed",)
        if row["outcome"] not in wanted:
            doing.fail(f"{row['test']}: {row['outcome']}")
    if not rows:
        doing.fail("no test ran")
    demo = json.loads(doing.run(sys.executable, "-m", "ggml_py", "demo", "--json"))
    doing.found |= {"counts": counts, "demo": demo}
    there = demo["nodes_per_backend"].get(doing.device.name, 0)
    if not there or len(demo["tokens"]) != 16:
        doing.fail(f"the demo has {there} nodes on {doing.device.name}")
    said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
    speed = f"{demo['tokens_per_s']:.0f} tokens/s"
    return f"{said}; demo: {there} nodes on {doing.device.name}, {speed}"


if __name__ == "__main__":
    sys.exit(main(work))

"""Runs the tests that no tier runs, because each builds an edited ggml: do tools find the edit?

    python benchmarks/by_hand.py [--write]

They are marked `by_hand`. `--write` puts the result into benchmarks/results/by_hand.json, and
tests/house/test_searches.py says when it is older than what it is about. About ten minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import search

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "vendor/*.py", "ggml_py/releases/*.py", "ggml_py/conformance/*.py",
    "ggml_py/scheduler/uninstrumented.py", "ggml_py/scheduler/observed.py",
    "ggml_py/trace/planning.py", "tests/vendor/test_anchors.py",
    "tests/conformance/test_diverge.py", "tests/releases/test_action.py", "action.yml",
)  # fmt: skip


def main() -> int:
    """Exit status 0 if all of them pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "junit.xml"
        words = ["-m", "pytest", "-n0", "--by-hand", f"--junitxml={report}", "tests"]
        done = subprocess.run([sys.executable, *words], cwd=REPO, check=False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    tests = {
        f"{case.get('classname')}::{case.get('name')}": {
            "passed": not len(case), "seconds": round(float(case.get("time", 0))),
        }
        for case in cases
    }  # fmt: skip
    held = not done.returncode and bool(tests) and all(one["passed"] for one in tests.values())
    if args.write:
        command = "python benchmarks/by_hand.py --write"
        search.keep("by_hand", command, PATTERNS, equal=held, tests=tests)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs this source tree's test suite under a build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from ggml_py.releases.planned_cases import Progress
from vendor.identity import ROOT

_PERCENT = re.compile(r"\[ *(\d+)%\]\s*$")


class SuiteRun(NamedTuple):
    """What the tests that hold under every release say of one."""

    command: str
    seconds: float
    n: int  # tests that ran
    failed: tuple[str, ...]
    broken: str = ""  # how pytest itself ended, if not as it does after its last test

    @property
    def passed(self) -> bool:
        """Whether it ran and nothing failed."""
        return bool(self.n) and not self.failed and not self.broken


def run_suite(key: str, progress: Progress | None = None) -> SuiteRun:
    """Runs `pytest --any-release` under a build."""
    tell = progress or (lambda _share: None)
    command = f"GGML_PY_UPSTREAM={key} pytest --any-release"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "junit.xml"
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--any-release",
             f"--junitxml={report}", "tests"],
            cwd=ROOT, env={**os.environ, "GGML_PY_UPSTREAM": key}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            last = ""
            for line in process.stdout or ():
                last = line.strip() or last
                if found := _PERCENT.search(line):
                    tell(int(found[1]) / 100)
        taken = time.monotonic() - start
        broken = "" if process.returncode in (0, 1) else f"exit status {process.returncode}: {last}"
        if not report.is_file():
            return SuiteRun(command, taken, 0, (), broken=broken or f"no report: {last}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        ran, failed = 0, list[str]()
        for case in cases:
            kinds = {one.tag for one in case}
            ran += "skipped" not in kinds
            if kinds & {"failure", "error"}:
                failed.append(f"{case.get('classname')}::{case.get('name')}")
    return SuiteRun(command, taken, ran, tuple(failed), broken=broken)

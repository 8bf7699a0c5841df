"""Upstream's own cause column: its `#if 0 ... SET_CAUSE` block, switched on and otherwise pristine.

The file that has it is compiled alone and put in front of an unmodified program's ggml. The devices
are oracle_gpus.cpp's, or any others that the program has; nothing of ours takes part.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ggml_py.plan import Plan

from .oracle_sched import COMPILER, source

GPUS = Path(__file__).with_name("oracle_gpus.cpp")
_SWITCH = "#if 0\n#define GGML_SCHED_MAX_SPLITS_DEBUG"
_LINE = re.compile(r"(?m)^(?:## SPLIT #.*|node #.*)$")


def lines_of(text: str) -> tuple[str, ...]:
    """A plan's text without empty lines and without spaces at the ends of lines."""
    return tuple(line.rstrip() for line in text.splitlines() if line)


def prints(log: str) -> list[tuple[str, ...]]:
    """All plans that a log has, as `lines_of`."""
    found: list[list[str]] = []
    for line in _LINE.findall(log):
        if line.startswith("## SPLIT #0:"):
            found.append([])
        found[-1].append(line.rstrip())
    return [tuple(lines) for lines in found]


@dataclass(frozen=True)
class CauseOracle:
    """The library to preload, and the one for GGML_BACKEND_PATH."""

    causes: Path
    gpus: Path

    @classmethod
    def make(cls, folder: Path) -> CauseOracle:
        """Compiles both into `folder`."""
        ggml = source()
        assert ggml is not None and COMPILER is not None
        text = (ggml / "src" / "ggml-backend.cpp").read_text(encoding="utf-8")
        assert text.count(_SWITCH) == 1
        on = folder / "causes.cpp"
        on.write_text(text.replace(_SWITCH, _SWITCH.replace("#if 0", "#if 1")), encoding="utf-8")
        made = cls(folder / "causes.so", folder / "gpus.so")
        for file, target in ((on, made.causes), (GPUS, made.gpus)):
            subprocess.run(
                [COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-DGGML_SHARED",
                 "-DGGML_BACKEND_SHARED", "-DGGML_SCHED_MAX_COPIES=4", "-I", ggml / "include",
                 "-I", ggml / "src", file, "-Wl,--unresolved-symbols=ignore-all", "-o", target],
                check=True,
            )  # fmt: skip
        return made

    def devices(self, gpus: Sequence[str]) -> dict[str, str]:
        """The variables that give a program these devices (oracle_gpus.cpp has the settings)."""
        return {"GGML_BACKEND_PATH": str(self.gpus), "ORACLE_GPUS": ";".join(gpus)}

    def log(self, command: Sequence[object], devices: dict[str, str]) -> str:
        """The program's standard error, with every plan and its causes."""
        env = {**os.environ, **devices, "GGML_SCHED_DEBUG": "2", "LD_PRELOAD": str(self.causes)}
        done = subprocess.run(
            [*map(str, command)], env=env, capture_output=True, text=True, errors="replace",
            check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr


def compared(plans: Sequence[Plan], printed: Sequence[tuple[str, ...]]) -> list[str]:
    """Differences between plans and upstream's prints: plans without a print, prints without a
    plan, and plans that the reference makes otherwise."""
    ours = {lines_of(plan.text()): plan for plan in plans}
    theirs = set(printed)
    said = [
        f"plan of cur_copy {plan.settings.cur_copy} is not printed: {_first(lines, theirs)}"
        for lines, plan in ours.items()
        if lines not in theirs
    ]
    said += [f"print is no plan: {_first(lines, ours)}" for lines in theirs - ours.keys()]
    return said + [
        f"the reference differs: {lines[0]}" for lines, p in ours.items() if p.reference != p
    ]


def _first(lines: tuple[str, ...], others: object) -> str:
    """The first line that differs from the nearest of the others."""
    same = [o for o in others if len(o) == len(lines)]  # type: ignore[attr-defined]
    pairs = (next(p for p in zip(lines, o, strict=True) if p[0] != p[1]) for o in same)
    found = max(pairs, key=lambda pair: lines.index(pair[0]), default=(lines[0], "nothing as long"))
    return f"{found[0]!r}, the other has {found[1]!r}"

"""Checks that this machine's processor can run a build, which was compiled for one processor.

Without this check, the first instruction that the processor lacks ends the process with SIGILL.
`vendor/processor.py` writes the features that a build needs into its ``build.json``. On systems
other than Linux on x86-64 nothing is written and nothing is compared.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

from ..errors import LoadError

CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def _described(path: Path) -> tuple[str, frozenset[str]]:
    """Name and features of the first processor; ("", nothing) if the system does not tell."""
    name = ""
    try:
        # The kernel makes the file while it is read, so the other processors are not made at all.
        with path.open(encoding="utf-8", errors="replace", buffering=4096) as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    name = value.strip()
                elif key.strip() == "flags":
                    return name, frozenset(value.split())
    except OSError:
        pass
    return name, frozenset()


def name() -> str:
    """The processor's name; "" if the system does not tell."""
    return _described(CPUINFO)[0]


def features(path: Path = CPUINFO) -> frozenset[str]:
    """The processor's features, by the kernel's names; empty if the system does not tell."""
    return _described(path)[1]


def host() -> str:
    """The processor's name; that of the architecture if the system does not tell."""
    return name() or platform.processor() or platform.machine()


def lacking(build: dict[str, Any]) -> list[str]:
    """The features that the build was compiled to use and this processor lacks."""
    _name, features = _described(CPUINFO)
    return [need for need in build.get("processor", ()) if features and need not in features]


def check(build: dict[str, Any]) -> None:
    """Raises `LoadError` if the processor lacks instructions that the build uses."""
    if missing := lacking(build):
        name = _described(CPUINFO)[0] or "this machine's"
        raise LoadError(
            f"build {build['key']} of ggml was compiled for another processor: {name} lacks "
            f"{', '.join(missing)}. Build it on this machine (`ggml-py build`, or `pip install .` "
            "in the source tree), or make the wheel with `--config-settings portable=true`, which "
            "runs on every x86-64 processor"
        )

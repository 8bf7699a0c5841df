"""`make wheels`: wheels for other machines, that build and fetch nothing once installed.

They have the variants of the CPU backend that its loader chooses among, OpenBLAS, libllama, and
what `ggml-py record` puts in front of programs with the default release. On Linux they are compiled
for an older glibc (zig.py), also for a machine that is not this one; auditwheel gives the name.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vendor import cache as caches
from vendor import fetch, zig
from vendor.identity import ROOT
from vendor.report import BuildError, say, step

MACHINES = ("x86_64", "aarch64")
# Found beside our own library, or loaded before what needs them (libllama is in a folder below).
_OURS = ("libggml*", "libllama*", "libscipy_openblas*")


def wheel(machine: str, out: Path, cache: Path, jobs: int = 0) -> Path:
    """The wheel for `machine`, in `out`. Raises BuildError."""
    # What is compiled for an older glibc has builds, recorders, … of its own, and one download.
    own = cache / f"wheels-{machine}"
    environment = dict(os.environ)
    if sys.platform == "linux":
        environment |= zig.compilers(machine, own).environment
        environment["_PYTHON_HOST_PLATFORM"] = f"linux-{machine}"
    if (cache / "downloads").is_dir():
        environment.setdefault(fetch.SOURCES, str(cache / "downloads"))
    recorder = sys.platform == "linux"
    settings = {
        "portable": 1, "llama": 1, "recorder": int(recorder), "jobs": jobs, "cache": own,
    }  # fmt: skip
    words = [word for name, value in settings.items()
             for word in ("--config-settings", f"{name}={value}")]  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, step(f"making the wheel for {machine}"):
        _run([sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", made, *words,
              str(ROOT)], environment)  # fmt: skip
        (path,) = Path(made).iterdir()
        if sys.platform != "linux":
            return path.rename(out / path.name)
        before = set(out.iterdir())
        left_alone = [word for name in _OURS for word in ("--exclude", name)]
        _run([sys.executable, "-m", "auditwheel", "repair", "--only-plat", "-w", str(out),
              *left_alone, str(path)], environment)  # fmt: skip
    (final,) = set(out.iterdir()) - before or {max(out.iterdir(), key=os.path.getmtime)}
    return final


def _run(command: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command[:4])} failed (exit {done.returncode}): see above")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m vendor.wheels", description=__doc__)
    parser.add_argument("--machine", choices=MACHINES, default=None, help="default: this one")
    parser.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR")
    parser.add_argument("--cache", type=Path, default=caches.default_folder(), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="compilers at once")
    given = parser.parse_args(argv)
    try:
        made = wheel(given.machine or platform.machine(), given.out.resolve(),
                     given.cache.expanduser().resolve(), given.jobs)  # fmt: skip
    except BuildError as error:
        say(f"error: {error}")
        return 1
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

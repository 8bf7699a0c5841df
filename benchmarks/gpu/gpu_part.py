"""What all parts share: their arguments, their results so far, the device, programs and models."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]
import record  # noqa: E402
from parts import UNFINISHED  # noqa: E402
from recipes import RECIPES, write_recipe  # noqa: E402

import ggml_py as ggml  # noqa: E402
from ggml_py.boundary.ffi import BUILD  # noqa: E402
from ggml_py.models.synthetic import LlamaSpec  # noqa: E402

OF_DRY_RUN = "7M-q4_0"  # stands for every model where there is no GPU


class Doing:
    """A part that is running. `found` is its result so far, which `save` writes; the runner adds
    the rest. What an interrupted part had found is there again."""

    def __init__(self, out: Path, work: Path, seconds: float, dry_run: bool) -> None:
        self.out = out
        self.work = work
        self.dry_run = dry_run
        self.end = time.monotonic() + seconds
        self.found: dict[str, Any] = {}
        self.failures: list[str] = []
        self.unfinished = ""  # what there was no time for; the part is then run again

    @property
    def left(self) -> float:
        """Seconds until the runner ends this part."""
        return self.end - time.monotonic()

    @property
    def programs(self) -> Path:
        """The folder of llama-bench and test-backend-ops."""
        return self.work / "programs"

    @property
    def pristine(self) -> dict[str, str]:
        """For test-backend-ops: upstream's own libraries in place of the instrumented ones, which
        refuse some of its tensors. The GPU's library is the wheel's in any case."""
        path = environment()["LD_LIBRARY_PATH"]
        return {"LD_LIBRARY_PATH": os.pathsep.join([str(self.programs / "pristine"), path])}

    @property
    def device(self) -> ggml.Device:
        """The first GPU; the CPU in a dry run."""
        return gpus()[0] if not self.dry_run else ggml.device("CPU")

    def recipe(self, name: str) -> LlamaSpec:
        """A recipe; in a dry run always the small one."""
        return RECIPES[OF_DRY_RUN if self.dry_run else name]

    def model(self, name: str) -> Path:
        """A recipe's file, made on first use."""
        name = OF_DRY_RUN if self.dry_run else name
        path = self.work / "models" / f"{name}.gguf"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_recipe(path, RECIPES[name])
        return path

    def save(self) -> None:
        """Writes what was found until now."""
        record.write(self.out, {**self.found, "failures": self.failures})

    def fail(self, text: str) -> None:
        """A finding: the part goes on, and will not pass."""
        print(f"FAILED: {text}")
        self.failures.append(text)

    def run(self, *command: object, timeout: float | None = None, **env: str) -> str:
        """The standard output of a program that uses the installed build's libraries.

        Raises `RuntimeError` with what it printed if it fails.
        """
        words = [str(word) for word in command]
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False,
            timeout=timeout or max(self.left, 1), env=environment() | env,
        )  # fmt: skip
        if done.returncode:
            said = f"{done.stdout[-1500:]}{done.stderr[-1500:]}"
            raise RuntimeError(f"{' '.join(words)} exited with {done.returncode}: {said}")
        return done.stdout


def gpus() -> list[ggml.Device]:
    """This machine's own GPUs that the build can use."""
    return [
        device
        for device in ggml.devices()
        if device.type.name in ("GPU", "IGPU") and device.registry not in ("SIM", "RPC")
    ]


def environment() -> dict[str, str]:
    """With the installed build's libraries in front: upstream's programs run on them, too."""
    old = os.environ.get("LD_LIBRARY_PATH")
    folders = [str(BUILD["folder"]), *([old] if old else [])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}


def main(work: Callable[[Doing], str], keep: Mapping[str, Any] | None = None) -> int:
    """Runs a part: `work` returns what it found, in a few words. `keep` are fields that an
    interrupted part goes on with, and their first values."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    doing = Doing(options.out, options.work, options.seconds, options.dry_run)
    doing.found = dict(keep or {})
    if keep and options.out.exists():
        before = json.loads(options.out.read_text(encoding="utf-8"))
        doing.found |= {name: before[name] for name in keep if name in before}
        doing.failures = before.get("failures", [])
    doing.save()
    doing.found["said"] = work(doing)
    doing.found["complete"] = not doing.unfinished
    doing.save()
    print(doing.found["said"])
    if doing.unfinished:
        print(f"no time for {doing.unfinished}")
        return UNFINISHED
    return 1 if doing.failures else 0

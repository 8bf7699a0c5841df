"""Makes a kit's work folder: a fresh environment from its wheels, without a network, its sources
and upstream's programs. A stamp is written last, so that a setup which was killed begins again."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import Machine
from record import write

STAMP = "ready.json"
_HAS_GPU = """
import ggml_py as ggml
names = {device.name: device.registry for device in ggml.devices()}
raise SystemExit(None if "CUDA" in names.values() else f"the build finds no GPU, only {names}")
"""


class SetupError(RuntimeError):
    """The environment cannot be made. The text says at which command, and what that printed."""


@dataclass(frozen=True)
class Work:
    """A kit's work folder."""

    folder: Path

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def tree(self) -> Path:
        """The sources that the kit was made from, with the tests."""
        return self.folder / "tree"

    @property
    def programs(self) -> Path:
        """The folder of llama-bench and test-backend-ops."""
        return self.folder / "programs"

    @property
    def results(self) -> Path:
        """Results that are kept from one call to the next."""
        return self.folder / "results"

    @property
    def models(self) -> Path:
        """Models that parts made."""
        return self.folder / "models"


def prepare(kit: Path, about: Mapping[str, Any], machine: Machine, folder: Path) -> Work:
    """The work folder, made if it is not there. Raises `SetupError`."""
    work = Work(folder)
    if (folder / STAMP).is_file():
        return work
    for part in ("venv", "tree", "programs"):
        shutil.rmtree(folder / part, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for archive, target in (("source.tar.xz", work.tree), ("programs.tar.xz", work.programs)):
        target.mkdir()
        with tarfile.open(kit / archive) as tar:
            tar.extractall(target, **_safely())
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir()
    with tarfile.open(kit / "wheels.tar.xz") as tar:
        tar.extractall(wheels, **_safely())
    # A Python without ensurepip can make an environment, too; pip runs from its own wheel.
    _run(machine.python, "-m", "venv", "--without-pip", folder / "venv")
    (pip,) = wheels.glob("pip-*.whl")
    _run(work.python, pip / "pip", "install", "-q", "--no-index", "--no-compile",
         "--no-cache-dir", "--find-links", wheels, *about["install"])  # fmt: skip
    if about["cuda"]:
        # The first use says which of the library's own libraries is missing.
        _run(work.python, "-c", _HAS_GPU, env=machine.environment)
    shutil.rmtree(wheels)
    write(folder / STAMP, {"kit": about["id"], "seconds": round(time.monotonic() - start, 1)})
    return work


def _safely() -> dict[str, Any]:
    return {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def _run(*command: object, env: Mapping[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        check=False, env=env,
    )  # fmt: skip
    if done.returncode:
        said = done.stdout[-3000:]
        raise SetupError(f"{' '.join(words)}\nexited with {done.returncode}:\n{said}")

"""Where the build script is, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..errors import NotBuiltError

# Set in processes that must not build: their parent does, where people see it.
NO_BUILD = "GGML_PY_NO_BUILD"
LIBLLAMA_MISSING = "libllama of build {} is not there yet"  # in the error of such a process
PACKAGE = Path(__file__).resolve().parent.parent


def find_script() -> Path:
    """build_ggml.py: beside the package in a source tree, inside an installed one. Raises
    `NotBuiltError`."""
    for folder in (PACKAGE.parent, PACKAGE / "_build"):
        if (folder / "build_ggml.py").is_file():
            return folder / "build_ggml.py"
    from . import why_none

    where = f"build_ggml.py is neither in {PACKAGE.parent} nor in {PACKAGE / '_build'}"
    raise NotBuiltError(why_none() or where)


def folder_of(*arguments: str, quiet: bool = False) -> Path | None:
    """The folder that the build script makes or finds; None if it fails, which it has explained on
    standard error unless `quiet`."""
    command = [sys.executable, str(find_script()), *arguments, "--json"]
    stderr = subprocess.DEVNULL if quiet else None
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    if done.returncode:
        return None
    return Path(json.loads(done.stdout.splitlines()[-1])["folder"])


def answer_of(module: str, *arguments: str) -> Any:
    """What `python -m MODULE` prints last, as JSON; MODULE is one of `vendor/`, beside the build
    script. Progress goes to standard error. Raises ValueError with the module's own error."""
    folder = str(find_script().parent)
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    said = done.stdout.splitlines()
    answer = json.loads(said[-1]) if said else {}
    if done.returncode:
        error = answer.get("error") if isinstance(answer, dict) else None
        raise ValueError(error or f"{module} failed with exit status {done.returncode}: see above")
    return answer

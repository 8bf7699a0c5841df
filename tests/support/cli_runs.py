"""Runs the command line as a user does: in a separate process, by its installed name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = shutil.which("ggml-py", path=str(Path(sys.executable).parent))
COMMAND = [PROGRAM] if PROGRAM else [sys.executable, "-m", "ggml_py"]
# Runs it without the native library.
BLOCKED = [
    sys.executable, "-c",
    "import sys; sys.modules['ggml_py._ggml'] = None\nfrom ggml_py.cli import main; main()",
]  # fmt: skip


def run(*arguments, env=None, stdin="", command=COMMAND):
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **(env or {})}, input=stdin,
    )  # fmt: skip


def ok(*arguments, **settings):
    done = run(*arguments, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(*arguments, code=1, **settings):
    done = run(*arguments, **settings)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr

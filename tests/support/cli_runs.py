"""Runs the command line as a user does: in a separate process, by its installed name. Where nothing
depends on how the process begins, it is a child of one that has imported ggml_py."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

PROGRAM = shutil.which("ggml-py", path=str(Path(sys.executable).parent))
COMMAND = [PROGRAM] if PROGRAM else [sys.executable, "-m", "ggml_py"]
# Runs it without the native library, where only Python is.
BLOCKED = [sys.executable, str(Path(__file__).with_name("elsewhere.py")), "ggml_py"]


SERVER = Path(__file__).with_name("cli_server.py")
_AT_START = ("GGML", "LLAMA", "PYTHON", "LD_", "LC_", "LANG", "OMP_", "OPENBLAS", "XDG_", "HOME")
_one_at_a_time = threading.Lock()


class Server:
    """A process that runs command lines in children (`cli_server.py`)."""

    def __init__(self):
        self.environment = _at_start(os.environ)
        self.process = subprocess.Popen(
            [sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        atexit.register(self.process.communicate)

    def run(self, words, stdin):
        """As `subprocess.run`."""
        with tempfile.TemporaryDirectory() as folder, _one_at_a_time:
            files = [Path(folder) / name for name in ("in", "out", "err")]
            for file, text in zip(files, (stdin, "", ""), strict=True):
                file.write_text(text)
            asked = {"words": words, "env": dict(os.environ), "folder": str(Path.cwd()),
                     "files": [str(file) for file in files]}  # fmt: skip
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            out, err = (file.read_bytes().decode() for file in files[1:])
        return subprocess.CompletedProcess(["ggml-py", *words], status, out, err)


def _at_start(environment):
    """The variables that only count when a process begins."""
    return {k: v for k, v in environment.items() if k.startswith(_AT_START)}


_servers: list[Server] = []


def _server():
    """The server of this process; another one if somebody ended it."""
    if not _servers or _servers[-1].process.poll() is not None:
        _servers.append(Server())
    return _servers[-1]


def run(*arguments, env=None, stdin="", command=COMMAND):
    words = [*map(str, arguments)]
    if env is None and command is COMMAND and _at_start(os.environ) == _server().environment:
        return _server().run(words, stdin)
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

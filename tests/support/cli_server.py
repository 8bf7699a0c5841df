"""Runs command lines in children of a process that has imported ggml_py: a third of a second each
is saved. `cli_runs.run` starts one for each process of the tests.

A request is a line of JSON on standard input: the words, the environment, the folder, and the files
for standard input, output and error. The answer is the exit status. The child is as a new process
would be, but for what was imported.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import sys

sys.path.pop(0)  # this folder: the package is the installed one
import ggml_py.cli


def import_all():
    """Imports all modules of the package; some only run with what is not built yet."""
    for module in pkgutil.walk_packages(ggml_py.__path__, "ggml_py.", onerror=lambda _name: None):
        if not module.name.endswith("__main__") and ".native" not in module.name:
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)


def request():
    """Answers requests. Returns in a child, with its request; None when there are no more."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            return asked
        _pid, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(asked):
    """The child as a new process would begin."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    for fd, path in enumerate(asked["files"]):
        file = os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(file, fd)
        os.close(file)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    out, err = (io.BufferedWriter(io.FileIO(fd, "w", closefd=False)) for fd in (1, 2))
    sys.stdout = io.TextIOWrapper(out, "utf-8", "strict")
    sys.stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["ggml-py", *asked["words"]]


if __name__ == "__main__":
    import_all()
    gc.freeze()  # the children need not look at what is shared
    asked = request()
    if asked is not None:
        become(asked)
        ggml_py.cli.main()

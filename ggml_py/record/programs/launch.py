"""Runs a program with a recorder in front of its ggml, and passes its exit through."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ArgumentError
from .identify import Recorder

# What a terminal or a supervisor sends: to the program, which decides. Ctrl-C and Ctrl-\ reach it
# without us, as it is in our process group.
_PASSED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT", "SIGQUIT", "SIGINT")
_FROM_KEYS = ("SIGINT", "SIGQUIT")


@dataclass(frozen=True)
class RecordOptions:
    """What is recorded. `max_size` is in bytes and of each process; `every` and `first` count
    plans, see `ggml-py record --help`."""

    run: bool = False
    quiet: bool = False
    max_size: int = 1 << 30
    every: int = 1
    first: int = 0

    def words(self) -> str:
        """As native code reads them (native/record/recorder.cpp)."""
        switches = [name for name in ("run", "quiet") if getattr(self, name)]
        numbers = [f"{name}={getattr(self, name)}" for name in ("max_size", "every", "first")]
        return " ".join(switches + numbers)


def environment(
    recorder: Recorder,
    target: str,
    options: RecordOptions,
    inherited: Mapping[str, str],
    sims: tuple[Path, str] | None = None,
    made: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The variables that make a program record itself into `target`: a file, or a folder with "/"
    at its end. `sims` are the module with simulated devices, and their text; `made` are facts about
    the program (`record.program_facts`)."""
    about = {
        "release": recorder.release, "doubt": recorder.doubt, "library": str(recorder.of),
        "sha256": recorder.sha256, "made": made,
    }  # fmt: skip
    preloaded = [str(recorder.library), inherited.get("LD_PRELOAD", "")]
    devices = {} if sims is None else {"GGML_BACKEND_PATH": str(sims[0]), "GGML_PY_SIMS": sims[1]}
    return {
        **devices,
        "GGML_PY_RECORD": target,
        "GGML_PY_RECORD_WITH": options.words(),
        "GGML_PY_RECORD_ABOUT": json.dumps(about),
        "LD_PRELOAD": ":".join(filter(None, preloaded)),
    }


def new_file(path: Path, force: bool) -> None:
    """Makes the empty file of a record. Raises `ArgumentError` if it exists, unless `force`."""
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder: give the file of the record, or --env -o FOLDER")
    if force:
        # Another program may be writing to the old file: it goes on in the file that has no name.
        path.unlink(missing_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        raise ArgumentError(
            f"{path} exists, and another program may be writing to it: choose another name, or "
            "replace it with --force"
        ) from None


def run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Runs the command until it ends. Returns its exit status, negative for a signal. Signals that
    this process gets are passed to it."""
    with _passing() as started:
        process = subprocess.Popen(command, env={**os.environ, **variables})
        started(process)
        return process.wait()


@contextlib.contextmanager
def _passing() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    process: list[subprocess.Popen[bytes]] = []

    def passed(number: int, _frame: object) -> None:
        if process:
            with contextlib.suppress(ProcessLookupError):
                process[0].send_signal(number)

    def reached(_number: int, _frame: object) -> None:
        """The terminal has sent it to the program, too. A handler, because a program inherits what
        is ignored."""

    old: dict[str, Any] = {}
    for name in _PASSED:
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it: for the program, too
            from_keys = name in _FROM_KEYS and os.isatty(0)
            old[name] = signal.signal(number, reached if from_keys else passed)
    try:
        yield process.append
    finally:
        for name, before in old.items():
            signal.signal(getattr(signal, name), before)


def end_as(status: int) -> None:
    """Ends this process as the program ended: with its status, or by its signal."""
    if status < 0:
        # The program has left its core dump, if any.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    raise SystemExit(status)

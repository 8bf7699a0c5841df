"""``python -m ggml_py`` and ``ggml-py``: the command line.

Its imports take a moment. Ctrl-C during them ends the process at once, because an exception in the
middle of an import cannot be handled reliably: some modules turn it into another one. Ctrl-C after
the verb ends it at once, too: nothing catches an exception at the interpreter's end.
"""

from __future__ import annotations

import os
import signal
import sys

_RECORDER = "libggml_py_record"


def _stop(*_signal: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)


def _without_recorder() -> None:
    """In a shell that records its programs (`ggml-py record --env`): starts again without that, as
    our own ggml records itself."""
    if _RECORDER in os.environ.get("LD_PRELOAD", ""):
        kept = [p for p in os.environ["LD_PRELOAD"].split(":") if _RECORDER not in p]
        left = {k: v for k, v in os.environ.items() if not k.startswith("GGML_PY_RECORD")}
        os.execve(sys.executable, sys.orig_argv, {**left, "LD_PRELOAD": ":".join(kept)})


def main() -> None:
    """Runs a verb. Errors go to stderr. Exit status: 1 = failed, 2 = wrong usage, 130 = Ctrl-C."""
    try:
        _without_recorder()
        usual = signal.getsignal(signal.SIGINT)
        at_once = _stop if usual is signal.default_int_handler else usual  # else it is ignored
        signal.signal(signal.SIGINT, at_once)
        from .cli import main as run

        try:
            signal.signal(signal.SIGINT, usual)
            run()
        finally:
            signal.signal(signal.SIGINT, at_once)
    except KeyboardInterrupt:  # before _stop is installed, or while the verb ends
        _stop()


if __name__ == "__main__":
    main()

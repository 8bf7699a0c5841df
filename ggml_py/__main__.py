"""``python -m ggml_py`` and ``ggml-py``: the command line.

Its imports take a moment. Ctrl-C during them ends the process at once, because an exception in the
middle of an import cannot be handled reliably: some modules turn it into another one.
"""

from __future__ import annotations

import os
import signal


def _stop(*_signal: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)


def main() -> None:
    """Runs a verb. Errors go to stderr. Exit status: 1 = failed, 2 = wrong usage, 130 = Ctrl-C."""
    try:
        usual = signal.getsignal(signal.SIGINT)
        if usual is signal.default_int_handler:  # else it is ignored, or handled by someone else
            signal.signal(signal.SIGINT, _stop)
        from .cli import main as run

        signal.signal(signal.SIGINT, usual)
        run()
    except KeyboardInterrupt:  # before _stop is installed, or after it is removed
        _stop()


if __name__ == "__main__":
    main()

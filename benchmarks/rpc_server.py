"""An RPC server of its own process on loopback, for measurements."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

HOST, PATIENCE_S, LIFE_S = "127.0.0.1", 20.0, 4 * 3600
SERVER = """
    import signal, sys
    import ggml_py as ggml

    signal.alarm(int(sys.argv[3]))  # ends the server if nothing else does
    devices = ggml.ffi.new("ggml_backend_dev_t[]", [ggml.device("CPU").ptr])
    ggml.lib.ggml_backend_rpc_start_server(
        sys.argv[1].encode(), ggml.ffi.NULL, int(sys.argv[2]), 1, devices
    )
"""


@contextmanager
def rpc_server(
    port: int, threads: int, host: str = HOST, inside: Sequence[str] = ()
) -> Iterator[None]:
    """A server with one device, the CPU with so many threads. `inside` is a command that starts it
    elsewhere ("ip netns exec NAME")."""
    command = [*inside, sys.executable, "-c", textwrap.dedent(SERVER), f"{host}:{port}",
               str(threads), str(LIFE_S)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(host, port)
            yield
        finally:
            process.kill()


def _wait_for(host: str, port: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with suppress(OSError):
            socket.create_connection((host, port), 1.0).close()
            return
        time.sleep(0.02)
    raise TimeoutError(f"{host}:{port}: nobody listens")

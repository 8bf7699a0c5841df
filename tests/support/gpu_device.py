"""A GPU for tests: the machine's own if there is one, and this CPU behind ggml's RPC backend on
loopback. The scheduler treats the latter as a GPU, because the CPU cannot read its memory.

Programs that use it run in separate processes, because a server's device cannot be removed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

import ggml_py as ggml

OPEN = """
import json, sys
import numpy as np
import ggml_py as ggml

NAME = sys.argv[1]
if NAME.startswith("rpc:"):
    GPU = ggml.rpc_devices(NAME.removeprefix("rpc:"))[0]
else:
    GPU = ggml.device(NAME)
"""


def gpu_or_skip() -> str:
    """The name of this machine's first GPU that the build can use."""
    for device in ggml.devices():
        if device.type.name in ("GPU", "IGPU") and device.registry != "SIM":
            return device.name
    names = ", ".join(device.name for device in ggml.devices())
    pytest.skip(f"no GPU that this build can use; its devices: {names}")


def run(program: str, gpu: str, *arguments: str, timeout: float = 120) -> object:
    """The last line that the program, with `GPU` and `NAME` defined, prints, parsed as JSON."""
    command = [sys.executable, "-c", OPEN + textwrap.dedent(program), gpu, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])

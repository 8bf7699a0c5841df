"""Clients of RPC servers, as processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from ggml_py.boundary.ffi import BUILD

needs_rpc = pytest.mark.skipif("rpc" not in BUILD["backends"], reason="built without RPC")


def client(program, *args):
    """What the program prints, in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])

"""Builds of older releases, and programs that run under them."""

import json
import os
import subprocess
import sys

RELEASES = [("0.2.4", "0.9.4"), ("b10566", "0.21.0")]
OLDEST = RELEASES[0][0]


def run(upstream: str, program: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": upstream},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def build(selector: str) -> str:
    """The key of a build of the release, made on first use; only the oldest has all cards."""
    cards = () if selector == OLDEST else ("--cards=cuda",)
    command = [sys.executable, "-m", "ggml_py", "build", "--upstream", selector, "--json", *cards]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["key"]

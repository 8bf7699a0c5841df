"""Runs chat templates, which may come with anybody's model: in a process with a limit of time and
memory. There a template can loop, call itself without an end and fill the memory (llama_chat.cpp).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..boundary.ffi import BUILD
from ..errors import ModelError
from ..files.bounds import TEMPLATE_BYTES, TEMPLATE_SECONDS

_PATH = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
_TOO_LONG = f"it has not ended after {TEMPLATE_SECONDS} s of computing"
_WHY = {
    "SIGXCPU": _TOO_LONG,
    "SIGKILL": _TOO_LONG,
    "SIGSEGV": "it calls itself too often, or is nested too deeply",
}


def rendered(folder: Path, flags: Sequence[bool], texts: Sequence[bytes]) -> str:
    """The text that a template makes. `flags`: add_generation_prompt, and whether the vocabulary
    adds BOS and EOS. `texts`: the template, BOS, EOS, and of each message the role and the content.
    Raises `ModelError`. Ctrl-C ends it. C++: common_chat_templates_apply"""
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    variables[_PATH] = os.pathsep.join(filter(None, (str(BUILD["folder"]), os.environ.get(_PATH))))
    numbers = (TEMPLATE_SECONDS, TEMPLATE_BYTES, *map(int, flags))
    done = subprocess.run(
        [folder / "llama-chat", *map(str, numbers)],
        input=b"".join(b"%d\n%s" % (len(text), text) for text in texts),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables, check=False,
    )  # fmt: skip
    said = done.stdout.decode("utf-8", "replace")
    if done.returncode == 0:
        return said
    if done.returncode < 0:
        with suppress(ValueError):
            said = signal.Signals(-done.returncode).name
        said = _WHY.get(said, f"llama-chat ended by signal {-done.returncode}")
    raise ModelError(f"the chat template fails: {said.strip()}")

"""Finds or builds libllama of the release that is loaded, and loads it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from ..boundary import ffi as core
from ..errors import NotBuiltError

_PACKAGE = Path(__file__).resolve().parent.parent
_INSTALLED = "llama"  # folder of a build that has libllama with it
_lock = threading.Lock()
_loaded: list[Library] = []


class Library(NamedTuple):
    """The loaded library."""

    ffi: Any
    lib: Any
    folder: Path


def library(build: bool = True) -> Library:
    """libllama of the same release and build as the ggml that is loaded.

    The first call builds it unless that was done before, in about two minutes, and says on
    standard error what it builds and where it keeps it. Without `build` it raises `NotBuiltError`
    instead; so it does if the build fails, for example without a compiler. C: libllama
    """
    with _lock:
        if not _loaded:
            _loaded.append(_load(find(build)))
        return _loaded[0]


def find(build: bool = True) -> Path:
    """The folder with libllama for the loaded build of ggml; builds it if it is missing. Raises
    `NotBuiltError`."""
    folder = Path(core.BUILD["folder"])
    if (folder / _INSTALLED / "llama.json").is_file():
        return folder / _INSTALLED
    script = _script()
    command = [sys.executable, str(script), "--llama", "--on", str(folder), "--json"]
    if found := _asked([*command, "--no-build"], subprocess.DEVNULL):
        return found
    if build and (found := _asked(command, None)):
        return found
    how = f"`ggml-py build --llama --on {folder}` builds it, in about two minutes"
    if not build:
        raise NotBuiltError(f"libllama of build {core.BUILD['key']} is not there yet: {how}")
    raise NotBuiltError(
        f"libllama could not be built (the reason is above). {how}; a ggml_py that was installed "
        "with `pip install . --config-settings llama=1` has it"
    )


def _asked(command: list[str], stderr: int | None) -> Path | None:
    """The folder that the build script names; None if there is none."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    if done.returncode:
        return None
    return Path(json.loads(done.stdout.splitlines()[-1])["folder"])


def _script() -> Path:
    """build_ggml.py: beside the package in a source tree, inside an installed one."""
    for folder in (_PACKAGE.parent, _PACKAGE / "_build"):
        if (folder / "build_ggml.py").is_file():
            return folder / "build_ggml.py"
    raise NotBuiltError(
        f"build_ggml.py is neither in {_PACKAGE.parent} nor in {_PACKAGE / '_build'}"
    )


def _load(folder: Path) -> Library:
    path = folder / "_llama.abi3.so"
    try:
        module = core.load("ggml_py._llama", path)
    except ImportError as error:
        raise NotBuiltError(
            f"{path} does not load: {error}. Delete {folder} to build it again"
        ) from error
    ffi, lib = module.ffi, module.lib
    lib.gp_share(core.lib.gp_shared())
    # Sets ggml's log, too: both go to `logging` (log.py).
    address = core.ffi.cast("uintptr_t", core.lib.gp_on_log)
    lib.llama_log_set(ffi.cast("ggml_log_callback", int(address)), core.NULL)
    lib.llama_backend_init()
    return Library(ffi, lib, folder)

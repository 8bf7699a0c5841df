"""Finds or builds libllama of the release that is loaded, and loads it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from ..boundary import ffi as core
from ..builds.script import LIBLLAMA_MISSING, NO_BUILD, folder_of
from ..errors import NotBuiltError

_PACKAGE = Path(__file__).resolve().parent.parent
_INSTALLED = "llama"  # folder of a build that has libllama with it
_BUILDS = (
    "this needs libllama, which is built once, in about two minutes on two cores; after Ctrl-C the "
    "next build goes on from there"
)
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
    arguments = ("--llama", "--on", str(folder))
    if found := folder_of(*arguments, "--no-build", quiet=True):
        return found
    build = build and not os.environ.get(NO_BUILD)
    if build:  # before it waits for other builds
        print(_BUILDS, file=sys.stderr, flush=True)
    if build and (found := folder_of(*arguments)):
        return found
    how = f"`ggml-py build --llama --on {folder}` builds it, in about two minutes"
    if not build:
        raise NotBuiltError(f"{LIBLLAMA_MISSING.format(core.BUILD['key'])}: {how}")
    raise NotBuiltError(
        f"libllama could not be built (the reason is above). {how}; a ggml_py that was installed "
        "with `pip install . --config-settings llama=1` has it"
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

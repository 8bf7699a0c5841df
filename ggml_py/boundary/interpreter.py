"""Checks that this Python can load the native module, before anything is loaded: elsewhere,
loading it would crash the process sooner or later.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ..errors import LoadError


def check() -> None:
    """Raises `LoadError` on a free-threaded Python and in a sub-interpreter."""
    if "t" in getattr(sys, "abiflags", ""):
        raise LoadError(
            f"ggml_py does not run on a free-threaded Python ({sys.executable}): its native module "
            "is built for the stable ABI, which free-threaded Python does not have, and its "
            "objects rely on the GIL. Use the standard build of the same Python version"
        )
    if _sub_interpreter():
        raise LoadError(
            "ggml_py cannot be used in a sub-interpreter: ggml's state, log and callbacks belong "
            "to the process, and cffi and numpy to the main interpreter. Use it in the main "
            "interpreter, in threads or in processes (under mod_wsgi: WSGIApplicationGroup "
            "%{GLOBAL})"
        )


def _sub_interpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # since 3.13; before it
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        current, main = interpreters.get_current(), interpreters.get_main()
        return bool(_id(current) != _id(main))
    return False  # built without them


def _id(interpreter: Any) -> int:
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)  # since 3.13

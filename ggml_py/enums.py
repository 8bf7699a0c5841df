"""ggml's enums, with the numbers of the build that this process uses.

Releases number them differently: of the ops of 0.9.4 three in four have another number today. The
truth is therefore the `enums.py` that was generated with a build. The first import of this module
decides on the build (builds/). No class is replaced later, and `boundary/ffi.py` loads no build
with other numbers. `builds/default_enums.py`, which is committed, is the file of the default
release: type checkers read it, and it is used where nothing is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .builds import DEFAULT, enums_file

FILE = enums_file()

if TYPE_CHECKING or FILE == DEFAULT:
    from .builds.default_enums import *  # noqa: F403
else:
    exec(compile(FILE.read_text(encoding="utf-8"), str(FILE), "exec"))

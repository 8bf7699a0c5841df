"""Which native builds are beside this package, and which of them is meant.

A build is a folder ``native/lib/<key>/`` with ``build.json`` (written last, so a folder without it
is not whole). By default the newest instrumented build of the release that `enums.py` was generated
from is taken; ``GGML_PY_UPSTREAM`` names another: a ggml version, ``b<llama.cpp build>``, the
version of the package it came from, a label (``0.26.0-pristine``) or a key.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..enums import UPSTREAM
from ..errors import NotBuiltError

LIB_DIR = Path(__file__).parent.parent / "native" / "lib"


def builds() -> list[dict[str, Any]]:
    """The whole builds beside this package, newest first; each has its `folder`."""
    found = []
    for manifest in LIB_DIR.glob("*/build.json"):
        build = json.loads(manifest.read_text())
        build["folder"] = manifest.parent
        found.append(build)
    return sorted(found, key=lambda b: str(b.get("built_at", "")), reverse=True)


def _names(build: dict[str, Any]) -> set[str]:
    names = {str(build[k]) for k in ("key", "label", "ggml_version", "version")}
    return names | {f"b{build['llama_build']}"} if build["llama_build"] else names


def _special(build: dict[str, Any]) -> bool:
    return bool(build["pristine"] or build["debug"] or build.get("sanitize"))


def select(wanted: str | None) -> dict[str, Any]:
    """The build that `wanted` names, or the default one. Raises `NotBuiltError`."""
    present = builds()
    if not present:
        raise NotBuiltError(
            f"ggml_py has no native library yet (nothing whole under {LIB_DIR}). Build it: "
            "`python build_ggml.py` in the source tree, or `pip install .`. (An installed ggml_py "
            "is hidden by the source tree while Python runs in that folder: run it elsewhere)"
        )
    if wanted:
        exact = [b for b in present if wanted in (b["key"], b["label"])]
        matching = exact or [b for b in present if wanted in _names(b)]
        if not matching:
            have = ", ".join(sorted({b["label"] for b in present}))
            raise NotBuiltError(
                f"GGML_PY_UPSTREAM={wanted}: no such build here. Present: {have}. "
                f"Make it with `ggml-py build --upstream {wanted}`"
            )
        return min(matching, key=_special)
    return min(present, key=lambda b: (_special(b), b["ggml_version"] != UPSTREAM))


def current() -> dict[str, Any]:
    """The build that is loaded, or would be. Loads nothing. Raises `NotBuiltError`."""
    loaded = getattr(sys.modules.get("ggml_py.boundary.ffi"), "BUILD", None)
    build: dict[str, Any] = loaded or select(os.environ.get("GGML_PY_UPSTREAM"))
    return build

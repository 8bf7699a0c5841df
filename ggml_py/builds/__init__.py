"""Finds the native builds beside this package and selects one of them.

A build is a folder ``native/lib/<key>/`` with ``build.json`` (written last, so a folder without it
is incomplete). The default is the newest instrumented build of the default release, which
`default_enums.py` names. ``GGML_PY_UPSTREAM`` selects another: a ggml version,
``b<llama.cpp build>``, the version of the package that made it, a label (``0.26.0-pristine``) or a
key.

A source tree without a build uses those of an installed ggml_py, if they were made from the same
files: ``made_of`` in ``build.json`` has the hash of each.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import NotBuiltError
from .default_enums import UPSTREAM
from .processor import lacking

PACKAGE = Path(__file__).resolve().parent.parent
LIB_DIR = PACKAGE / "native" / "lib"
DEFAULT = Path(__file__).with_name("default_enums.py")
_PURE = PACKAGE / "native" / "lacking.txt"  # of the wheel for any system: what it says instead


def builds() -> list[dict[str, Any]]:
    """The complete builds beside this package, newest first; each has its `folder`. For a source
    tree without builds: the installed ones that fit it."""
    if mine := _builds_in(LIB_DIR):
        return mine
    fitting = [build for build in _installed() if not _changed(build)]
    # The tree's enums and ops can only be compared with those of the default release.
    return fitting if any(build["ggml_version"] == UPSTREAM for build in fitting) else []


def _builds_in(folder: Path) -> list[dict[str, Any]]:
    found = []
    for manifest in folder.glob("*/build.json"):
        build = json.loads(manifest.read_text("utf-8"))
        build["folder"] = manifest.parent
        found.append(build)
    return sorted(found, key=lambda b: str(b.get("built_at", "")), reverse=True)


def _installed() -> list[dict[str, Any]]:
    """If this package is a source tree: the builds of other ggml_py packages on Python's path."""
    if not (PACKAGE.parent / "build_ggml.py").is_file():
        return []
    packages = (Path(entry or ".") / "ggml_py" for entry in sys.path)
    others = (package for package in packages if package.resolve() != PACKAGE)
    return [build for package in others for build in _builds_in(package / "native" / "lib")]


def _changed(build: dict[str, Any]) -> list[str]:
    """The files of this source tree that differ from those the build was made from."""
    tree = PACKAGE.parent
    if "made_of" not in build:
        return ["those of a version before 0.2.0"]
    changed = [name for name, made in build["made_of"].items() if _hash(tree / name) != made]
    if build["ggml_version"] == UPSTREAM:
        generated = {
            "ggml_py/builds/default_enums.py": "enums.py",
            "ggml_py/graphs/ops.py": "ops.py",
        }
        changed += [
            name
            for name, made in generated.items()
            if _hash(tree / name) != _hash(build["folder"] / made)
        ]
    return changed


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def is_pure() -> bool:
    """Whether this package is the wheel for any system, which can neither have nor make a build."""
    return _PURE.exists()


def why_none() -> str:
    """Why there is no build to load, and what to do about it; "" if there is one."""
    if builds():
        return ""
    if is_pure():
        return _PURE.read_text("utf-8").strip()
    do = "`python build_ggml.py` in the source tree builds it"
    others = [build for build in _installed() if build["ggml_version"] == UPSTREAM]
    if not others:
        return f"ggml_py has no native library yet (no complete build under {LIB_DIR}): {do}"
    return (
        f"this source tree cannot use the native library installed in {others[0]['folder']}: it "
        f"was made from other sources ({_some(_changed(others[0]))}); {do}"
    )


def _stale(build: dict[str, Any]) -> list[str]:
    """The files of this source tree, if it is one, that a build was made from and that changed."""
    return _changed(build) if (PACKAGE.parent / "build_ggml.py").is_file() else []


def _some(files: list[str]) -> str:
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def _names(build: dict[str, Any]) -> set[str]:
    names = {str(build[k]) for k in ("key", "label", "ggml_version", "version")}
    if build.get("edits_missing"):  # there is no instrumented build that could have the label
        names.add(build["label"].replace("-pristine", ""))
    return names | {f"b{build['llama_build']}"} if build["llama_build"] else names


def _special(build: dict[str, Any]) -> bool:
    return bool(build["pristine"] or build["debug"] or build.get("sanitize"))


def select(wanted: str | None) -> dict[str, Any]:
    """The build that `wanted` names, or the default one. Raises `NotBuiltError`."""
    present = builds()
    if not present:
        raise NotBuiltError(why_none() + ("" if is_pure() else ", and so does `pip install .`"))
    if wanted:
        exact = [b for b in present if wanted in (b["key"], b["label"])]
        matching = exact or [b for b in present if wanted in _names(b)]
        if not matching:
            have = ", ".join(sorted({b["label"] for b in present}))
            raise NotBuiltError(
                f"GGML_PY_UPSTREAM={wanted}: no such build here. Present: {have}. "
                f"Make it with `ggml-py build --upstream {wanted}`"
            )
        found = min(matching, key=lambda b: (bool(lacking(b)), bool(_stale(b)), _special(b)))
        if wanted != found["key"] and (changed := _stale(found)):
            options = "".join(f" --{kind}" for kind in ("pristine", "debug") if found[kind])
            raise NotBuiltError(
                f"GGML_PY_UPSTREAM={wanted}: its build {found['key']} was made from other sources "
                f"({_some(changed)}). Build it again: python build_ggml.py --upstream "
                f"{found['ggml_version']}{options}"
            )
        return found
    # A checkout that was built for a comparison must not become what everything else runs on.
    return min(
        present,
        key=lambda b: (
            bool(lacking(b)), _special(b), b["ggml_version"] != UPSTREAM, not b.get("package", "?")
        ),
    )  # fmt: skip


def current() -> dict[str, Any]:
    """The build that is loaded or would be loaded. Loads nothing. Raises `NotBuiltError`."""
    loaded = getattr(sys.modules.get("ggml_py.boundary.ffi"), "BUILD", None)
    build: dict[str, Any] = loaded or select(os.environ.get("GGML_PY_UPSTREAM"))
    return build


def generated(build: dict[str, Any], name: str, committed: Path) -> Path:
    """The file `name` that was generated with a build; `committed` if they are the same."""
    own: Path = build["folder"] / name
    return committed if own.read_bytes() == committed.read_bytes() else own


def enums_file() -> Path:
    """The file with the enum numbers of the current build; `DEFAULT` without a build."""
    try:
        return generated(current(), "enums.py", DEFAULT)
    except NotBuiltError:
        return DEFAULT

"""Enters a release into `upstream.toml` and into the table of ggml_py/trace/rules.py."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vendor import index, releases
from vendor.identity import PACKAGE, ROOT
from vendor.releases import Release
from vendor.report import BuildError, writing

RULES = PACKAGE / "trace" / "rules.py"
_ROW = re.compile(r"^    Known\(.*\),\n", re.M)


def row_of(release: Release) -> str:
    """The release's part of upstream.toml."""
    number = f"build = {release.build}\n" if release.build is not None else ""
    return (
        f'[[release]]\nlabel = "{release.label}"\nggml = "{release.ggml}"\n{number}'
        f'package = "{release.package}"\nversion = "{release.version}"\n'
        f'file = "{release.file}"\nsha256 = "{release.sha256}"\n'
        f'subfolder = "{release.subfolder}"\n')


def place_of(release: Release) -> int:
    """Where a release goes in the table, which has the newest first: before all older ones. ggml's
    version decides, then the build, then the package's version."""
    def age(one: Release) -> tuple[object, ...]:
        return (tuple(map(int, one.ggml.split("."))), one.build or 0, index.order(one.version))

    known = releases.releases()
    return sum(age(one) > age(release) for one in known)


def add(release: Release) -> list[Path]:
    """Enter the release into both tables of this source tree. Returns the changed files.

    Each file is replaced at once, upstream.toml last: whoever reads it finds either no such release
    or all of it. Raises BuildError outside of a source tree, or if the release is listed.
    """
    if ROOT.name == "_build" or not (ROOT / "build_ggml.py").is_file():
        raise BuildError(
            f"{releases.TABLE} belongs to an installed package: run this in a source tree of "
            "ggml_py, whose upstream.toml can be committed")
    for known in releases.releases():
        if known.label == release.label or known.sha256 == release.sha256:
            raise BuildError(f"{release.package} {release.version} is listed as {known.label}")
    at = place_of(release)
    older = next((one for one in releases.releases()[at:] if one.ggml == release.ggml), None)
    if older is not None and older.label == release.ggml:
        raise BuildError(
            f"{older.package} {older.version} is older and has the label {older.label}, which is "
            f"for the newest package of a ggml version: rename it to {older.label}.p{older.version}"
            " in upstream.toml and ggml_py/trace/rules.py, if the two plan differently, and try "
            "again")
    toml = releases.TABLE.read_text(encoding="utf-8")
    starts = [m.start() for m in re.finditer(r"^\[\[release\]\]\n", toml, re.M)]
    # Behind the last release comes a comment about what follows.
    end = toml.index("\n\n", starts[-1]) + 2
    here = [*starts, end][at]
    toml = f"{toml[:here]}{row_of(release)}\n{toml[here:]}"
    python = RULES.read_text(encoding="utf-8")
    lines = list(_ROW.finditer(python))
    if len(lines) != len(releases.releases()):
        raise BuildError(f"{RULES} has {len(lines)} rows, upstream.toml {len(starts)}: make them "
                         "agree first")
    number = f"b{release.build}" if release.build is not None else ""
    row = f'    Known("{release.label}", "{release.ggml}", "{release.version}", "{number}"),\n'
    here = [*(line.start() for line in lines), lines[-1].end()][at]
    python = f"{python[:here]}{row}{python[here:]}"
    _replace(RULES, python)
    _replace(releases.TABLE, toml)
    return [RULES, releases.TABLE]


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(f"entering the release into {path.name}", path.parent, "make it writable"):
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

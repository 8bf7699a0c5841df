"""The table of upstream releases (`upstream.toml`) and the lookup of a release in it."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vendor.report import BuildError

TABLE = Path(__file__).with_name("upstream.toml")
# Suffixes that a build's label may have, in this order.
SUFFIXES = ("pristine", "debug", "sanitize", "portable")


@dataclass(frozen=True)
class Release:
    """One upstream release, as found in a package on the index."""

    label: str              # unique name: the ggml version, unless two packages share it
    ggml: str
    build: int | None       # llama.cpp's bNNNN, None if the package does not say
    package: str
    version: str
    file: str
    sha256: str
    subfolder: str          # llama.cpp's folder in the unpacked package


@dataclass(frozen=True)
class Wheel:
    """The pinned OpenBLAS for one platform."""

    package: str
    version: str
    file: str
    sha256: str
    subfolder: str          # has include/ and lib/


def read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise BuildError(
                f"Python 3.10 needs tomli to read vendor/{path.name}: python -m pip install tomli"
            ) from None
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return table


@functools.cache
def _table() -> dict[str, Any]:
    return read_toml(TABLE)


@functools.cache
def releases() -> tuple[Release, ...]:
    """Every known release, newest first."""
    return tuple(Release(**{"build": None, **row}) for row in _table()["release"])


def read_row(path: Path) -> Release:
    """The one `[[release]]` of a file beside the table: a release that is not listed (yet)."""
    try:
        (row,) = read_toml(path)["release"]
        return Release(**{"build": None, **row})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f"{path} has no release: expected one [[release]] as in vendor/upstream.toml "
            f"({error})") from error


def default() -> Release:
    """The pinned release that a plain build uses."""
    label = _table()["default"]
    return next(release for release in releases() if release.label == label)


def find(selector: str | None) -> Release:
    """The release with a ggml version, `b<build>`, package version, label or build key; of a file
    (.toml), the release in it.

    None selects the default pin. If two packages share a ggml version, the newer one is selected.
    Raises BuildError with the list of releases if none matches.
    """
    if not selector:
        return default()
    if selector.endswith(".toml"):
        return read_row(Path(selector))
    bare = re.sub(r"-[0-9a-f]{8}$", "", selector)
    for suffix in reversed(SUFFIXES):
        bare = bare.removesuffix(f"-{suffix}")
    for release in releases():      # newest first, so a shared ggml version selects the newer one
        names = {release.label, release.ggml, release.version}
        if release.build is not None:
            names.add(f"b{release.build}")
        if names & {bare, bare.removeprefix("v")}:
            return release
    known = ", ".join(
        f"{release.label} (b{release.build})" if release.build else release.label
        for release in releases()
    )
    raise BuildError(f"unknown upstream release {selector!r}; known: {known}")


def openblas() -> Wheel:
    """The pinned OpenBLAS wheel for this platform. Raises BuildError if none is pinned."""
    table = _table()["openblas"]
    # The variable names the machine that a wheel is for, as for sysconfig.get_platform().
    given = os.environ.get("_PYTHON_HOST_PLATFORM", "").rpartition("-")[2] or platform.machine()
    machine = {"amd64": "x86_64"}.get(given.lower(), given.lower())
    key = f"{sys.platform}-{machine}"
    row = table["wheel"].get(key)
    if row is None or (platform.libc_ver()[0] != "glibc" and sys.platform == "linux"):
        raise BuildError(
            f"no OpenBLAS is pinned for {key} ({platform.libc_ver()[0] or 'no glibc'}): remove "
            "blas from --backend, or use the system's with "
            "-D GGML_BLAS_VENDOR=OpenBLAS -D GGML_PY_OPENBLAS="
        )
    return Wheel(table["package"], table["version"], row["file"], row["sha256"],
                 table["subfolder"])

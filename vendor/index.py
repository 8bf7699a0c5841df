"""What the package index that pip is configured for has beyond `upstream.toml`.

Nothing that the index says is trusted: a release is what its file's sha256 says, once it is listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vendor import fetch, releases
from vendor.report import BuildError

# The packages whose source distributions contain llama.cpp's tree.
PACKAGES = ("xllamacpp", "llama-cpp-python")


@dataclass(frozen=True)
class Offered:
    """A source distribution on the index. Which ggml it has is not known before it is here."""

    package: str
    version: str
    file: str
    sha256: str         # "" if the index does not say
    size: int | None    # bytes; None if the index does not say
    uploaded: str | None        # ISO 8601; None if the index does not say


def sdists(package: str) -> list[Offered]:
    """The package's source distributions, newest version first, without those that were withdrawn.
    Raises BuildError if the index cannot be reached or does not know the package."""
    with fetch.asking(package, "asking the package index") as (client, timeout):
        page = client.get_project_page(package, timeout=timeout)
    found = [
        Offered(
            package, one.version or "", one.filename, (one.digests or {}).get("sha256", ""),
            one.size, one.upload_time.isoformat() if one.upload_time else None)
        for one in page.packages
        if one.package_type == "sdist" and not one.is_yanked
    ]
    return sorted(found, key=lambda one: order(one.version), reverse=True)


def order(version: str) -> Any:
    """What sorts versions of a package, oldest first."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version)
    except InvalidVersion:
        return Version("0.dev0")        # older than any: no such version is called newer


def newest_listed(package: str) -> str | None:
    """The newest version of the package in `upstream.toml`; None if it has none."""
    listed = [one.version for one in releases.releases() if one.package == package]
    return max(listed, key=order, default=None)


def newer(package: str) -> list[Offered]:
    """The source distributions that are newer than those of the package in `upstream.toml`."""
    last = newest_listed(package)
    found = sdists(package)
    return [one for one in found if last is None or order(one.version) > order(last)]


def offered(package: str, version: str) -> Offered:
    """The source distribution of that version. Raises BuildError if the index has none."""
    found = sdists(package)
    for one in found:
        if one.version == version:
            return one
    near = ", ".join(one.version for one in found[:5]) or "none at all"
    raise BuildError(
        f"the package index has no source distribution of {package} {version}; the newest: {near}")

"""A release that `upstream.toml` does not list yet: what is in it, and its row.
`vendor.new_release` shows it to people.
"""

from __future__ import annotations

import dataclasses
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from vendor import api_difference, fetch, identity, index, instrument, releases, rows
from vendor import cache as caches
from vendor.releases import Release
from vendor.report import BuildError, writing

_HEADER = "ggml/include/ggml.h"     # below the folder of llama.cpp


def inspect(package: str, version: str, cache: Path) -> dict[str, Any]:
    """Fetch a version that is not listed, and say what is in it: its row, where each edit has its
    place, and how its headers differ from the default release's. Compiles nothing.

    `table` names a file with the row, which `build_ggml.py --upstream` takes. Raises BuildError if
    the index lacks it, if it is listed already, or if it has no ggml that could be built.
    """
    for known in releases.releases():
        if (known.package, known.version) == (package, version):
            raise BuildError(f"{package} {version} is listed already, as {known.label}")
    offer = index.offered(package, version)
    archive, digest = fetch.unlisted(offer, cache)
    release = read_release(archive, package, version, digest)
    table = cache / "candidates" / f"{release.label}.toml"
    default = releases.default()
    with caches.Lock(cache), writing("writing the candidate's row", table.parent):
        ggml = identity.unpacked(release, cache, whole=False) / "ggml"
        usual = identity.unpacked(default, cache, whole=False) / "ggml"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text(rows.row_of(release), encoding="utf-8")
    placed = instrument.instrumented(ggml / "src")[1]
    known_absent = instrument.absent(usual / "src")
    return {
        "release": dataclasses.asdict(release),
        "hash_from_index": bool(offer.sha256),
        "size": archive.stat().st_size,
        "uploaded": offer.uploaded,
        "shares_ggml_with": [
            one.label for one in releases.releases() if one.ggml == release.ggml],
        "table": str(table),
        "source": str(ggml),
        "edits": {
            "made": sum(one.made for one in placed),
            "all": len(placed),
            "missing": [one.wrong for one in placed if one.wrong],
            "absent": [one for one in instrument.absent(ggml / "src") if one not in known_absent],
        },
        "default": default.label,
        "api": api_difference.difference(usual, ggml),
    }


def read_release(archive: Path, package: str, version: str, digest: str) -> Release:
    """The row of a source distribution, from what is in it. Its label is ggml's version, with the
    package's behind it if another release has that label."""
    try:
        with tarfile.open(archive) as tar:
            names = tar.getnames()
            trees = [name.removesuffix(f"/{_HEADER}") for name in names
                     if name.endswith(f"/{_HEADER}")]
            if not trees:
                raise BuildError(
                    f"{archive.name} has no llama.cpp with {_HEADER}: a release is a source "
                    "distribution that contains it")
            tree = min(trees, key=len)
            file = tar.extractfile(f"{tree}/ggml/CMakeLists.txt")
            assert file is not None
            text = file.read().decode("utf-8")
    except (tarfile.TarError, EOFError, KeyError, AssertionError) as error:
        raise BuildError(f"{archive} cannot be read as a source distribution: {error}") from error
    numbers = re.findall(r"set\(GGML_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)\)", text)
    if len(numbers) != 3:
        raise BuildError(
            f"the ggml of {package} {version} has no version: rules are known by version, from "
            f"{releases.releases()[-1].ggml} on")
    ggml = ".".join(numbers)
    taken = any(one.label == ggml for one in releases.releases())
    # xllamacpp's versions are YEAR.MONTH.BUILD.
    dated = re.fullmatch(r"20\d\d\.\d+\.(\d{4,})(\.\d+)?", version)
    return Release(
        f"{ggml}.p{version}" if taken else ggml, ggml, int(dated[1]) if dated else None, package,
        version, archive.name, digest, str(PurePosixPath(*PurePosixPath(tree).parts[1:])))

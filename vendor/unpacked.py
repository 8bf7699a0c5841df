"""Where a release's sources of ggml are, if they are on this machine: python -m vendor.unpacked
RELEASE. The last line on standard output is JSON: a folder, or null."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vendor import cache as caches
from vendor import fetch, releases
from vendor.identity import unpacked
from vendor.report import BuildError


def folder(name: str, cache: Path) -> Path | None:
    """The folder `src` of a release that was fetched before. Raises BuildError for another name."""
    release = releases.find(name)
    here = cache / "sources" / f"{release.label}-{release.sha256[:16]}-ggml"
    if not here.is_dir() and not fetch.downloaded(release, cache):
        return None
    with caches.Lock(cache):
        return unpacked(release, cache, whole=False) / "ggml" / "src"


def main() -> int:
    """Returns the exit status."""
    try:
        found = folder(sys.argv[1], caches.default_folder())
    except BuildError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps(None if found is None else str(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

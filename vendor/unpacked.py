"""Where a release's sources of ggml are, if they are on this machine: python -m vendor.unpacked
RELEASE. The last line on standard output is JSON: a folder, or null."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vendor import cache as caches
from vendor import releases
from vendor.report import BuildError


def folder(name: str, cache: Path) -> Path | None:
    """The folder `src` of a release that was unpacked. Raises BuildError for another name."""
    release = releases.find(name)
    names = (f"{release.label}-{release.sha256[:16]}-{kind}" for kind in ("ggml", "whole"))
    found = (cache / "sources" / name / "ggml" / "src" for name in names)
    return next((folder for folder in found if folder.is_dir()), None)


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

"""Upstream's records of the ops that devices support (docs/ops/*.csv), which cards are compared
with. A row is a case of test-backend-ops: `profile_more_cases` builds its tensor."""

from __future__ import annotations

import csv
import functools

from ggml_py import builds
from vendor import cache as caches
from vendor import identity, releases

from .build_support import REPO  # noqa: F401  puts vendor/ on the path


@functools.cache
def answers(backend: str) -> dict[str, list[tuple[str, bool]]]:
    """The rows of a backend in the release in use, by op: parameters, and whether it is supported.
    A case with different answers is not."""
    release = releases.find(builds.current()["label"])
    cache = caches.default_folder()
    with caches.Lock(cache):
        folder = identity.unpacked(release, cache, whole=True) / "docs" / "ops"
    (path,) = (path for path in folder.glob("*.csv") if path.stem.lower() == backend)
    found: dict[str, dict[str, bool]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["supported"] is not None:  # some files have remarks of the program in between
                mine = found.setdefault(row["op_name"], {})
                before = mine.get(row["op_params"], True)
                mine[row["op_params"]] = before and row["supported"] == "1"
    return {op: list(rows.items()) for op, rows in found.items()}

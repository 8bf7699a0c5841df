"""What a plain `pytest` leaves to `pytest --all`, and why.

A test says so itself, `@pytest.mark.thorough("REASON")`, or asks for a fixture of `FIXTURES`. Of a
test with many cases `thorough("cases", quick=8)` leaves eight to the quick tier, spread evenly over
all. The table in CONTRIBUTING has the same reasons; test_tiers.py holds both to this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

REASONS = {
    "programs": "upstream's programs, and ours on libllama, are built and asked",
    "builds": "another build of ggml is made: older, pristine, with sanitizers",
    "browser": "pages are looked at in a browser",
    "sample": "a fixed sample of a search for faults",
    "cases": "more cases of a test that the quick tier runs with a few",
    "long": "it takes seconds: many processes, much to compute, or waiting",
}
FIXTURES = {  # what asks for one of these needs no mark
    "oracle": "programs",
    "pristine": "builds",
    "release": "builds",
    "sanitized": "builds",
    "wheel": "builds",
    "browser": "browser",
}
LEFT_OUT = pytest.StashKey[Counter[str]]()


def reason_of(item: pytest.Item) -> str | None:
    """Why the quick tier leaves this test out; None where it has it (or some of its cases)."""
    mark = item.get_closest_marker("thorough")
    if mark is not None:
        (reason,) = mark.args
        if reason not in REASONS or set(mark.kwargs) - {"quick"}:
            raise pytest.UsageError(f"{item.nodeid}: thorough({reason!r}, {mark.kwargs}), of which"
                                    f" the reason is one of {', '.join(REASONS)}")  # fmt: skip
        return str(reason)
    names = getattr(item, "fixturenames", ())
    return next((why for name, why in FIXTURES.items() if name in names), None)


def spread(n: int, n_kept: int) -> set[int]:
    """`n_kept` of `n` places: the first, the last, and those evenly between."""
    if n_kept >= n:
        return set(range(n))
    return {round(i * (n - 1) / max(n_kept - 1, 1)) for i in range(n_kept)}


def left_out(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, str]]:
    """Those that only `--all` runs, each with its reason."""
    few: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        reason = reason_of(item)
        if reason is None:
            continue
        mark = item.get_closest_marker("thorough")
        if mark is not None and "quick" in mark.kwargs:
            name = item.nodeid.partition("[")[0]
            few.setdefault((name, mark.kwargs["quick"]), []).append(item)
        else:
            yield item, reason
    for (_name, n_kept), cases in few.items():
        kept = spread(len(cases), n_kept)
        for i, item in enumerate(cases):
            if i not in kept:
                yield item, "cases"

"""The tests that a plain `pytest` leaves to `pytest --all`, and why.

A test is marked `@pytest.mark.thorough("REASON")`, or uses a fixture of `FIXTURES`. For a test with
many cases, `thorough("cases", quick=8)` keeps eight of them, evenly spread, in the quick tier; as a
module's `pytestmark` it does the same with the module's tests. The table in CONTRIBUTING has the
same reasons; test_tiers.py compares it with this file.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

REASONS = {
    "programs": "upstream's programs, and ours on libllama, are built and asked",
    "builds": "another build of ggml is made: older, pristine, with sanitizers",
    "browser": "pages are looked at in a browser",
    "sample": "a fixed sample of a search for faults",
    "cases": "more cases of a test that the quick tier runs with a few",
    "long": "it takes seconds: many processes, much to compute, or waiting",
}
FIXTURES = {  # tests that use one of these need no mark
    "oracle": "programs",
    "pristine": "builds",
    "release": "builds",
    "sanitized": "builds",
    "wheel": "builds",
    "browser": "browser",
    "site": "long",  # the documentation, or an installed package
}
# Of the extra test-all.
ALL_NEEDS = ("mkdocs", "mypy", "playwright", "ruff", "yaml")
AGAIN = {"arch_file": "programs"}  # upstream's own files with --all, otherwise similar files
# The files that hold under every release: `pytest --any-release`.
ANY_RELEASE = (
    "abort", "alloc", "allocator", "context", "custom", "devices", "differential", "explain",
    "gguf", "gguf_split", "gguf_writer", "handle", "misuse", "multi_buffer", "nearest", "opt",
    "plan", "profiles", "properties", "reference", "refusal", "scheduler", "sim", "sim_async",
    "sim_memory", "tensor", "tensor_info", "threads", "unload", "why_not",
)  # fmt: skip
LEFT_OUT = pytest.StashKey[Counter[str]]()
MAX_PROCESSES = 4  # each imports and collects everything, which takes it ten seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="also what takes long or has to be built first (tests/support/tiers.py)",
    )
    parser.addoption(
        "--by-hand",
        action="store_true",
        help="only what benchmarks/by_hand.py runs, and keeps the result of",
    )
    parser.addoption(
        "--any-release",
        action="store_true",
        help="only the files that hold under every release of ggml (GGML_PY_UPSTREAM)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Others may not even be importable under an older release."""
    stem = collection_path.stem.removeprefix("test_")
    others = collection_path.suffix == ".py" and stem not in ANY_RELEASE
    return True if others and config.getoption("--any-release") else None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "thorough(reason, quick=n): runs with --all only; of a test's many cases n run without",
    )
    config.addinivalue_line(
        "markers", "by_hand: builds that take minutes; benchmarks/by_hand.py runs it"
    )
    absent = [name for name in ALL_NEEDS if importlib.util.find_spec(name) is None]
    if config.getoption("--all") and absent:
        raise pytest.UsageError(
            f"pytest --all also needs {', '.join(absent)}: pip install '.[test-all]'"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Folders of tests run on all cores, one file at a time on each. With `-n 0` they run here."""
    option = config.option
    if hasattr(config, "workerinput"):  # one of these processes
        return
    if getattr(option, "numprocesses", 0) is not None:  # it was given, or there is no pytest-xdist
        return
    in_sight = option.usepdb or option.capture == "no" or option.collectonly
    if not in_sight and all(Path(arg).is_dir() for arg in config.args):
        n = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
        if n > 1:
            option.numprocesses, option.dist, option.loadscopereorder = n, "loadfile", False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs before `-m`, so that `pytest --all -m thorough` selects what plain pytest leaves out,
    and what it runs with our own files."""
    by_hand = config.getoption("--by-hand")
    others = [item for item in items if bool(item.get_closest_marker("by_hand")) != by_hand]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)
    if by_hand:
        return
    left = dict(left_out(items))
    if config.getoption("--all"):
        again = {
            item: why for item in items for name, why in AGAIN.items()
            if name in getattr(item, "fixturenames", ())
        }  # fmt: skip
        for item, reason in (again | left).items():
            item.add_marker(pytest.mark.thorough(reason))
        return
    config.stash[LEFT_OUT] = Counter(left.values())
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=list(left))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # in a process of pytest-xdist
    if output is not None:
        output["left_out"] = dict(session.config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All processes leave out the same."""
    left = getattr(node, "workeroutput", {}).get("left_out", {})
    node.config.stash[LEFT_OUT] = Counter(left)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if counts := config.stash.get(LEFT_OUT, None):
        said = ", ".join(f"{n} {reason}" for reason, n in counts.most_common())
        terminalreporter.write_line(f"left to pytest --all: {said} (tests/support/tiers.py)")


def only_with_all(request: pytest.FixtureRequest) -> None:
    """For fixtures that build: fails for a test that uses one indirectly and has no mark."""
    if not request.config.getoption("--all"):
        pytest.fail(f"{request.fixturename} is built with --all only: the test needs a mark", False)


def reason_of(item: pytest.Item) -> str | None:
    """Why the quick tier leaves this test out; None if it has the test, or some of its cases."""
    names = getattr(item, "fixturenames", ())
    for name, why in FIXTURES.items():
        if name in names:
            return why
    mark = item.get_closest_marker("thorough")
    if mark is None:
        return None
    (reason,) = mark.args
    if reason not in REASONS or set(mark.kwargs) - {"quick"}:
        raise pytest.UsageError(f"{item.nodeid}: thorough({reason!r}, {mark.kwargs}), of which"
                                f" the reason is one of {', '.join(REASONS)}")  # fmt: skip
    return str(reason)


def spread(n: int, n_kept: int) -> set[int]:
    """`n_kept` of `n` places: the first, the last, and evenly spread ones in between."""
    if n_kept >= n:
        return set(range(n))
    return {round(i * (n - 1) / max(n_kept - 1, 1)) for i in range(n_kept)}


def left_out(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, str]]:
    """The tests that only `--all` runs, each with its reason."""
    few: dict[tuple[str, str, int], list[pytest.Item]] = {}
    for item in items:
        reason = reason_of(item)
        if reason is None:
            continue
        mark = item.get_closest_marker("thorough")
        if mark is None or reason != mark.args[0] or "quick" not in mark.kwargs:
            yield item, reason
        else:  # the mark of a function is about its cases, that of a module about all in it
            own = any(mark is one for one in item.own_markers)
            of = item.nodeid.partition("[" if own else "::")[0]
            few.setdefault((of, reason, mark.kwargs["quick"]), []).append(item)
    for (_of, reason, n_kept), cases in few.items():
        kept = spread(len(cases), n_kept)
        for i, item in enumerate(cases):
            if i not in kept:
                yield item, reason

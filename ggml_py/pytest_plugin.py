"""pytest plugin: `plan_snapshot` compares plans with their saved pages.

Every pytest run loads this if ggml_py is installed, so nothing else of ggml_py is imported before a
test has a plan to compare. docs/PYTEST.md shows how to use it.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .plan import Plan

FOLDER, SUFFIX = "__plans__", ".plan"
_UNSAFE = re.compile(r"[^\w\[\]=,+.-]")
_LONGEST = 100  # bytes of a test's name, and of a plan's: a file name may have 255
_OUTPUT = "ggml_py_plans"  # the key under which a worker of pytest-xdist returns its pages


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("ggml_py").addoption(
        "--plan-update",
        action="store_true",
        help=f"write the pages ({FOLDER}/*/*{SUFFIX}) that are missing or differ in plan_snapshot",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.plan_update and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise pytest.UsageError(
            "--plan-update in CI would accept whatever the plans are now: run it on your own "
            f"machine, review the changes under {FOLDER}/, and commit them"
        )


@pytest.fixture
def plan_snapshot(request: pytest.FixtureRequest) -> PlanSnapshot:
    """`plan_snapshot(plan)` fails if the plan differs from the one saved for this test, a page in
    `__plans__/` beside the test file. `pytest --plan-update` writes the page. A test's second plan
    needs a name: `plan_snapshot(plan, "decode")`."""
    return PlanSnapshot(request.node, _run(request.config))


class PlanSnapshot:
    """The value of the fixture: the pages of one test."""

    def __init__(self, item: pytest.Item, run: SessionRun) -> None:
        self._item = item
        self._run = run
        self._seen: set[Path] = set()

    def path(self, name: str = "") -> Path:
        """The page of the test's plan with that name."""
        item = self._item
        stem = _stem(item.nodeid) + (f".{name}" if name else "")
        return item.path.parent / FOLDER / item.path.stem / f"{stem}{SUFFIX}"

    def __call__(self, plan: Plan, name: str = "") -> None:
        """Compares the plan with its page. Raises AssertionError with what changed and why."""
        __tracebackhide__ = True
        from .export.snapshot import decided
        from .files.foreign import visible
        from .files.reading import read_text
        from .files.writing import whole_file
        from .plan import Plan

        if not isinstance(plan, Plan):
            raise TypeError(f"plan_snapshot: expected a Plan, got {type(plan).__name__}")
        if not isinstance(name, str) or _UNSAFE.search(name) or len(name.encode()) > _LONGEST:
            raise ValueError(f"plan_snapshot: name {name!r}: expected a valid part of a file name")
        page = self.path(name)
        if page in self._seen:
            raise ValueError(
                f"plan_snapshot: this test has already compared with {page.name}: give its second "
                'plan a name, such as plan_snapshot(plan, "decode")'
            )
        self._seen.add(page)
        self._run.used.add(str(page))
        text = plan.snapshot()
        kept = read_text(page) if page.exists() else None
        updating = self._run.config.option.plan_update
        # How the plan was made is not compared: a page may be older than these facts.
        if kept == text or (kept is not None and not updating and decided(kept) == decided(text)):
            return
        if updating:
            page.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(page) as out:
                out.write(text.encode())
            self._run.written.add(str(page))
            return
        raise AssertionError(visible("\n".join(self._told(page, kept, plan, text))))

    def _told(self, page: Path, kept: str | None, plan: Plan, text: str) -> Iterator[str]:
        shown = _relative(page, self._run.config)
        if kept is None:
            yield f"no plan is saved in {shown}; it is now: {plan.headline()}"
        else:
            changes = list(_changes(kept, plan, text))
            yield f"the plan is not the one in {shown}: {changes[0]}"
            yield from changes[1:]
        yield ""
        yield f"If it is right: pytest --plan-update '{self._item.nodeid}', and commit the page."


def _changes(kept: str, plan: Plan, text: str) -> Iterator[str]:
    """The differences in words, or line by line if only the pages differ."""
    from difflib import unified_diff

    from .export.snapshot import decided
    from .plan import Plan
    from .trace.answers.requirements import changes

    try:
        diff = Plan.from_snapshot(kept).diff(plan)
    except ValueError as error:
        yield f"the page cannot be read: {error}"
        return
    if diff:
        yield from changes(diff, plan)
        return
    yield "the same nodes are in the same places, but the page differs"
    before, now = (decided(page).splitlines() for page in (kept, text))
    yield from unified_diff(before, now, "kept", "now", lineterm="", n=1)


def _stem(nodeid: str) -> str:
    """The file name for a test: its own name, or a safe form of it with a checksum."""
    name = nodeid.partition("::")[2].replace("::", ".")
    safe = _UNSAFE.sub("_", name).encode()[:_LONGEST].decode(errors="ignore")
    return safe if safe == name else f"{safe}-{zlib.crc32(name.encode()):08x}"


def _relative(path: Path | str, config: pytest.Config) -> str:
    return os.path.relpath(path, config.invocation_params.dir)


# --- the run: which pages were used, and which belong to no test


class SessionRun:
    """The pages that one process used, and the tests that it collected."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.used: set[str] = set()
        self.written: set[str] = set()
        self.passed: set[str] = set()  # tests that ran to their end
        self.tests: set[tuple[str, str]] = set()  # file, id

    def collected(self, items: Sequence[pytest.Item]) -> None:
        """Adds collected tests, whether they run or not."""
        self.tests.update((str(item.path), item.nodeid) for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            names = ("used", "written", "passed", "tests")
            self.config.workeroutput[_OUTPUT] = {k: sorted(getattr(self, k)) for k in names}

    def merge(self, seen: dict[str, Any]) -> None:
        """Adds the data of a worker."""
        for name in ("used", "written", "passed"):
            getattr(self, name).update(seen[name])
        self.tests.update((file, test) for file, test in seen["tests"])

    def unused(self) -> list[str]:
        """Pages that belong to no test of the collected files, and pages that their test did not
        use although it passed."""
        files: dict[str, dict[str, str]] = {}
        for file, test in self.tests:
            files.setdefault(file, {})[_stem(test)] = test
        found = [page for file, tests in files.items() for page in self._unused_of(file, tests)]
        for folder in {Path(file).parent / FOLDER for file in files}:
            for pages in folder.glob("*"):
                if not (folder.parent / f"{pages.name}.py").exists():
                    found += map(str, pages.glob(f"*{SUFFIX}"))
        return sorted(found)

    def _unused_of(self, file: str, tests: dict[str, str]) -> Iterator[str]:
        path = Path(file)
        for page in (path.parent / FOLDER / path.stem).glob(f"*{SUFFIX}"):
            owners = [stem for stem in tests if f"{page.stem}.".startswith(f"{stem}.")]
            owner = tests[max(owners, key=len)] if owners else ""
            if str(page) not in self.used and (not owner or owner in self.passed):
                yield str(page)


_RUN = pytest.StashKey[SessionRun]()
_DESELECTED = pytest.StashKey[list[pytest.Item]]()


def _run(config: pytest.Config) -> SessionRun:
    if _RUN not in config.stash:
        config.stash[_RUN] = SessionRun(config)
        config.pluginmanager.register(config.stash[_RUN], "ggml_py.plans")
    return config.stash[_RUN]


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash.setdefault(_DESELECTED, []).extend(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [*session.items, *session.config.stash.get(_DESELECTED, [])]
    paths = {id(item.path): item.path for item in items}  # one for all tests of a file
    if any((folder / FOLDER).is_dir() for folder in {path.parent for path in paths.values()}):
        _run(session.config).collected(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """pytest-xdist: a worker has ended."""
    seen = getattr(node, "workeroutput", {}).get(_OUTPUT)
    if seen is not None:
        _run(node.config).merge(seen)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    run = config.stash.get(_RUN, None)
    if run is None:
        return
    chosen = any("::" in arg for arg in config.args) or config.getoption("lf", False)
    unused = [] if chosen else run.unused()
    if not run.written and not unused:
        return
    terminalreporter.section("plans")
    for page in sorted(run.written):
        terminalreporter.line(f"written: {_relative(page, config)}")
    for page in unused:
        terminalreporter.line(f"not used by any test, delete it: {_relative(page, config)}")

"""What plain pytest leaves out: CONTRIBUTING lists it, and no other test builds anything."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from ..support import tiers

REPO = Path(__file__).parents[2]
TABLE = re.compile(r"^\| `(\w+)` \| (.*?) \|$", re.M)
# How tests build: our builds, upstream's programs, a browser.
BUILDS = re.compile(
    r"(?<![\w.])(?:live_cache|build)\([^)]|--(?:reference|pristine|sanitize)\"|Oracle\(|\.chromium\.|"
    r"\"ggml_py\", \"build\""
)
# Of these, uses that build nothing: they are refused first, or replace a compiler.
REFUSED = (
    "test_build.py::test_a_wrong_sanitizer_is_a_usage_error",
    "test_build.py::test_a_sanitized_build_is_compiled_for_reading_reports",
    "test_build_oracles.py",
)


def test_contributing_has_the_reasons():
    text = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert dict(TABLE.findall(text.partition("## Tests")[2])) == tiers.REASONS


def test_the_gate_runs_the_rest_and_says_its_summary_last():
    lines = (REPO / ".ci" / "run").read_text(encoding="utf-8").split("\n")
    assert lines[-2:] == ["pytest --all -m thorough", ""]


def builders(item: pytest.Function) -> list[str]:
    """The functions that build something, among those of a test and of its fixtures."""
    functions = [item.function]
    for name, found in item._fixtureinfo.name2fixturedefs.items():
        if name in item.fixturenames and "tests" in Path(inspect.getfile(found[-1].func)).parts:
            functions.append(found[-1].func)
    return [f.__name__ for f in functions if does_build(f)]


@cache
def does_build(function: Callable[..., object]) -> bool:
    source = inspect.getsource(function)
    if re.search(r"def build\(|\bbuild = |\bas build\b", source):  # its own function, for graphs
        source = re.sub(r"(?<![\w.])build\(", "own(", source)
    return BUILDS.search(source) is not None


def quick(items: list[pytest.Item]) -> list[pytest.Item]:
    left = {item for item, _reason in tiers.left_out(items)}
    return [item for item in items if item not in left]


def test_the_quick_tier_builds_nothing(request):
    """Judged by their source, no test calls a function that builds, itself or in a fixture."""
    found = {
        item.nodeid.partition("[")[0]: names
        for item in quick(request.session.items)
        if isinstance(item, pytest.Function) and not any(name in item.nodeid for name in REFUSED)
        if (names := builders(item)) and item.path != Path(__file__)
    }
    assert found == {}


def reads_an_old_release(build):
    return build("0.2.4")


def test_what_builds_would_be_noticed():
    assert BUILDS.search(inspect.getsource(reads_an_old_release))
    assert not BUILDS.search(inspect.getsource(quick))


def test_every_fixture_that_builds_is_there():
    sources = "".join(path.read_text(encoding="utf-8") for path in REPO.glob("tests/**/*.py"))
    for name in tiers.FIXTURES:
        assert re.search(rf"^@pytest\.fixture.*\n(?:.*\n)?def {name}\(", sources, re.M), name


@pytest.mark.parametrize(
    ("n", "n_kept", "kept"),
    [(10, 3, {0, 4, 9}), (2, 8, {0, 1}), (5, 1, {0}), (100, 2, {0, 99}), (3, 3, {0, 1, 2})],
)
def test_cases_are_spread(n, n_kept, kept):
    assert tiers.spread(n, n_kept) == kept


TESTS = """
import pytest

@pytest.fixture
def oracle():
    pass

def test_quick():
    pass

@pytest.mark.thorough("long")
def test_long():
    pass

@pytest.mark.parametrize("i", range(9))
@pytest.mark.thorough("cases", quick=3)
def test_cases(i):
    pass

def test_asks(oracle):
    pass
"""
MODULE = """
import pytest
pytestmark = pytest.mark.thorough("long", quick=2)
{tests}
"""


def in_pytest(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.tiers", "-q"]
    command += ["-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--collect-only", *arguments], cwd=folder, capture_output=True, text=True,
        check=False, env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": ""},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.thorough("long")
def test_tiers_of_a_run(tmp_path):
    (tmp_path / "test_one.py").write_text(TESTS)
    some = "\n".join(f"def test_{i}(): pass" for i in range(5))
    (tmp_path / "test_two.py").write_text(MODULE.format(tests=some))
    code, said = in_pytest(tmp_path)
    assert code == 0, said
    found = re.findall(r"test_\w+\.py::(\S+)", said)
    assert found == [
        "test_quick", "test_cases[0]", "test_cases[4]", "test_cases[8]", "test_0", "test_4",
    ]  # fmt: skip
    assert "left to pytest --all: 6 cases, 4 long, 1 programs" in said
    _code, said = in_pytest(tmp_path, "--all")
    assert len(re.findall("::", said)) == 1 + 1 + 9 + 1 + 5 and "left to" not in said
    (tmp_path / "test_two.py").write_text(MODULE.format(tests=some).replace("long", "tedious"))
    code, said = in_pytest(tmp_path)
    assert code == 4 and "thorough('tedious'" in said and "one of programs, builds" in said


def test_all_names_what_is_not_installed(monkeypatch):
    config = SimpleNamespace(addinivalue_line=lambda *_: None, getoption=lambda _name: True)
    monkeypatch.setattr(tiers, "ALL_NEEDS", ("pytest", "not_there"))
    with pytest.raises(pytest.UsageError, match=r"also needs not_there: pip install '\.\[test-all"):
        tiers.pytest_configure(config)

"""tests/ is a package: imports are relative, and no test file imports another one."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PATHS = re.compile(r"sys\.path.*\b(tests|support)\b[\"']")


def imported(path):
    """The imports of a file, in functions too: number of dots, module, name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, node.module or "", alias.name) for alias in node.names)


def target(path, level, module, name):
    """The file that a relative import loads."""
    below = path.parents[level - 1].joinpath(*module.split("."))
    modules = [f"{below / name}.py", below / name / "__init__.py", f"{below}.py"]
    return next((Path(one) for one in modules if Path(one).is_file()), below / "__init__.py")


def broken(tests):
    """Sentences about imports of a folder of tests that break the rules."""
    files = sorted(tests.rglob("*.py"))
    # Rows of misuse are called like what is misused: gguf.
    ours = {path.stem for path in files if path.parent.name != "misuses"} | {"tests"}
    for path in files:
        here = path.relative_to(tests).as_posix()
        if not (path.parent / "__init__.py").is_file():
            yield f"{here}: no __init__.py beside it"
        for level, module, name in imported(path):
            if not level:
                if module.partition(".")[0] in ours:
                    yield f"{here}: {module} is not imported relatively"
                continue
            found = target(path, level, module, name)
            if not found.is_file():
                yield f"{here}: {module}.{name} is not there"
            elif found.name.startswith("test_"):
                yield f"{here}: {found.name} is a test file"
            elif found.parent != path.parent and tests / "support" not in found.parents:
                yield f"{here}: {found.name} is another folder's, and not in support/"


def test_the_rules_of_imports():
    assert list(broken(TESTS)) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from ..support import shared", ""),
        ("from ..support.shared import x", ""),
        ("from . import near", ""),
        ("import json, gguf", ""),
        ("import shared", "shared is not imported relatively"),
        ("from shared import x", "shared is not imported relatively"),
        ("from tests.support import shared", "tests.support is not imported relatively"),
        ("def f():\n    from .test_b import x", "test_b.py is a test file"),
        ("from ..other import test_c", "test_c.py is a test file"),
        ("from ..other.far import x", "far.py is another folder's, and not in support/"),
        ("from ..other import x", "__init__.py is another folder's, and not in support/"),
        ("from .nothing import x", "nothing.x is not there"),
    ],
)
def test_a_broken_rule_is_noticed(line, said, tmp_path):
    names = ("support/shared", "support/misuses/gguf", "a/near", "a/test_b", "other/far")
    for name in (*names, "other/test_c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").touch()
        for folder in (tmp_path, *(tmp_path / name).parents[:-1]):
            if folder.is_relative_to(tmp_path):
                (folder / "__init__.py").touch()
    (tmp_path / "a/test_a.py").write_text(f"{line}\n")
    assert list(broken(tmp_path)) == ([f"a/test_a.py: {said}"] if said else [])


def test_nothing_puts_a_folder_of_tests_on_the_path():
    """Otherwise there would be two modules of one file, each with its own classes."""
    files = {*TESTS.rglob("*.py"), *(TESTS.parent / "benchmarks").rglob("*.py")}
    files -= {Path(__file__).resolve()}
    lines = ((path, line) for path in files for line in path.read_text().splitlines())
    found = [f"{path.name}: {line.strip()}" for path, line in lines if PATHS.search(line)]
    assert found == []
    assert PATHS.search('sys.path.insert(0, str(REPO / "tests" / "support"))')

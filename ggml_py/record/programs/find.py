"""Finds the library that has a program's scheduler, before the program runs.

The system's own loader says what a program is linked with (as `ldd` asks it; nothing of the program
runs). Libraries that a program opens later are looked for where such programs keep them: beside a
program, in the packages of a Python, in the `node_modules` of a script.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import ArgumentError
from ...files.reading import open_file
from . import elf

_SHARED = "-DBUILD_SHARED_LIBS=ON"
_LIKELY = re.compile(r"ggml|llama|whisper|diffusion|cpp|bark|clip|addon", re.IGNORECASE)
_OURS = re.compile(r"/ggml_py/native/")
_LISTED = re.compile(r"=> (/.*) \(0x")


_PYTHONS = ("python", "pypy")
_NODES = ("node", "bun", "deno", "electron")


class Found(NamedTuple):
    """A program, and the library in which its scheduler is."""

    program: Path  # the file that runs: the interpreter, for a script
    library: Path
    how: str  # "linked with", "a package of", "beside"


def find(command: Sequence[str], environment: Mapping[str, str]) -> list[Found]:
    """The libraries with a scheduler that the command's program may use. Raises `ArgumentError` if
    there is none, and says why."""
    program = resolve(command[0], environment)
    script = None
    if not elf.is_elf(program):
        script, program = program, _interpreter_of(program, environment)
    elf.check_program(program)
    loader = elf.interpreter(program)
    if loader is None:
        inside = elf.contains(program, elf.INSIDE) or elf.contains(program, elf.MADE.encode())
        raise ArgumentError(_static(program) if inside else (
            f"{program} is a static program without ggml: there is nothing to record"
        ))  # fmt: skip
    if "musl" in loader:
        raise ArgumentError(f"{program} uses another C library ({loader}) than what records it")
    linked = _linked(loader, program, environment)
    if found := [lib for lib in linked if elf.defines(lib)]:
        return [Found(program, lib.resolve(), "linked with") for lib in found]
    if elf.contains(program, elf.MADE.encode()):
        raise ArgumentError(_static(program))
    if program.resolve().name.startswith(_PYTHONS):
        return _in_packages(program, environment, script)
    if program.resolve().name.startswith(_NODES):
        return _in_modules(program, [script, *map(Path, command[1:])])
    return _beside(program, linked)


def opens_libraries(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the command's program is an interpreter, which opens libraries and asks them for
    functions by name. Raises `ArgumentError` for a program that is not there."""
    program = resolve(command[0], environment)
    if not elf.is_elf(program):
        program = _interpreter_of(program, environment)
    return program.resolve().name.startswith(_PYTHONS + _NODES)


def resolve(name: str, environment: Mapping[str, str]) -> Path:
    """The program's file, as a shell would find it. Raises `ArgumentError`."""
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        path = Path(name)
        if path.exists():
            raise ArgumentError(f"{name} cannot be executed")
        raise ArgumentError(f"{name}: no such program: expected one on the PATH, or its path")
    return Path(found).absolute()


def _static(path: Path) -> str:
    return (
        f"{path} has ggml linked in statically, so nothing can be put in front of it: build it "
        f"with shared libraries (llama.cpp, whisper.cpp: cmake -B build {_SHARED}; "
        "stable-diffusion.cpp: -DSD_BUILD_SHARED_LIBS=ON)"
    )


def _interpreter_of(script: Path, environment: Mapping[str, str]) -> Path:
    with open_file(script) as file:
        first = file.readline(4096)
    if not first.startswith(b"#!"):
        raise ArgumentError(f"{script} is neither a program nor a script with a #! line")
    words = first[2:].decode("utf-8", "replace").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words:
        raise ArgumentError(f"{script}: its #! line names no program")
    program = resolve(words[0], environment)
    return program if elf.is_elf(program) else _interpreter_of(program, environment)


def _linked(loader: str, program: Path, environment: Mapping[str, str]) -> list[Path]:
    """The libraries that the loader would load. It does not run the program."""
    done = subprocess.run(
        [loader, "--list", str(program)], capture_output=True, text=True, errors="replace",
        check=False, env={k: v for k, v in environment.items() if k != "LD_PRELOAD"},
    )  # fmt: skip
    if done.returncode:
        why = done.stderr.strip() or done.stdout.strip()
        raise ArgumentError(f"{program} cannot be loaded: {why}")
    return [Path(m[1]) for line in done.stdout.splitlines() if (m := _LISTED.search(line))]


def _in_packages(python: Path, environment: Mapping[str, str], script: Path | None) -> list[Found]:
    """The libraries with a scheduler in the packages of a Python."""
    # The standard library has no ggml, and is large.
    ask = (
        "import sys, sysconfig; own = sysconfig.get_path('stdlib'); print('\\n'.join(p for p in "
        "sys.path if p and p not in (own, own + '/lib-dynload')))"
    )
    done = subprocess.run(
        [str(python), "-c", ask], capture_output=True, text=True, check=False, env=dict(environment)
    )
    packages = [Path(line) for line in done.stdout.splitlines() if Path(line).is_dir()]
    found = _libraries(packages)
    if not found:
        where = ", ".join(map(str, packages))
        if hidden := _hidden(packages):
            raise ArgumentError(
                f"{hidden} has ggml inside, and its functions are not those that the loader finds: "
                "it cannot be recorded. A build of that package with shared libraries can be "
                f"({_SHARED})"
            )
        raise ArgumentError(
            f"no package of {python} has a library with ggml's scheduler (looked in {where}). If "
            "it is elsewhere, name that library with --library"
        )
    return [Found(python, lib, f"a package of {python.name}") for lib in found]


def _in_modules(program: Path, starts: Sequence[Path | None]) -> list[Found]:
    """The same for node: `node_modules` beside the script, or in a folder above it."""
    folders: list[Path] = []
    for start in (*(s for s in starts if s is not None and s.exists()), Path.cwd()):
        place = start.resolve()
        folders += (p / "node_modules" for p in (place, *place.parents))
    present = [f for f in dict.fromkeys(folders) if f.is_dir()]
    found = _libraries(present)
    if not found:
        raise ArgumentError(
            f"no package in the node_modules of this script has a library with ggml's scheduler. "
            f"If {program.name} loads one from elsewhere, name it with --library"
        )
    return [Found(program, lib, "a package of node") for lib in found]


def _beside(program: Path, linked: Sequence[Path]) -> list[Found]:
    """Libraries that a program opens itself, in the places where they are installed."""
    home = program.resolve().parent
    folders = [home, *(home / name for name in ("lib", "libs", "../lib"))]
    folders += (home / "../lib" / program.name, home / "lib" / program.name)
    present = list(dict.fromkeys(f.resolve() for f in folders if f.is_dir()))
    for folder in present:
        names = sorted(folder.glob("*.so*")) if str(folder) not in ("/usr/lib", "/lib") else sorted(
            folder.glob("libggml*.so*"))  # fmt: skip
        found = [p.resolve() for p in names if p.is_file() and _has_scheduler(p)]
        if found:
            return [Found(program, lib, "beside") for lib in dict.fromkeys(found)]
    # Stripped, it has only the text of its assertions left.
    static = [lib for lib in (program, *linked) if elf.contains(lib, elf.INSIDE)]
    if static:
        raise ArgumentError(_static(static[0]))
    raise ArgumentError(
        f"{program} has no ggml: it is linked with no library that has its scheduler, and there is "
        "none beside it. If it opens one from elsewhere, name that library with --library"
    )


def _libraries(folders: Sequence[Path]) -> list[Path]:
    """The libraries with a scheduler below these folders; those with likely names if there are
    any."""
    files = dict.fromkeys(
        path.resolve() for folder in folders for path in _shared_objects(folder)
        if not _OURS.search(str(path))
    )  # fmt: skip
    likely = [path for path in files if _LIKELY.search(str(path))]
    for some in (likely, [path for path in files if path not in set(likely)]):
        if found := [path for path in some if _has_scheduler(path)]:
            return found
    return []


def _hidden(folders: Sequence[Path]) -> Path | None:
    """A library below these folders that has ggml inside, although nothing of it is to be seen."""
    for folder in folders:
        for path in _shared_objects(folder):
            if _LIKELY.search(str(path)) and not _OURS.search(str(path)):
                with contextlib.suppress(OSError):
                    if elf.contains(path, elf.INSIDE):
                        return path
    return None


def _shared_objects(folder: Path) -> Iterator[Path]:
    for where, _folders, names in os.walk(folder, followlinks=True):
        for name in names:
            if ".so" in name or name.endswith(".node"):
                yield Path(where) / name


def _has_scheduler(path: Path) -> bool:
    """Whether calls into the library's scheduler can be answered by ours."""
    try:
        if not elf.contains(path, elf.MADE.encode()) or not elf.is_elf(path):
            return False
        if not elf.is_for_here(path):
            return False
        if not elf.defines(path):
            return False
    except (OSError, ArgumentError):
        return False
    # A library of ggml's own is called from outside; one that has it linked in calls itself.
    return "ggml" in path.name or elf.calls_through_loader(path)

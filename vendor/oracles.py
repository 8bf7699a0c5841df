"""Builds our own programs on the reference's libllama: `tests/oracle/*.cpp` of a checkout.

They are put into `oracles/<key>-<digest>/bin` of the cache, beside links to upstream's programs.
Each version of our sources has its own folder, so checkouts do not replace each other's programs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from vendor import cache as caches
from vendor import cards, toolchain
from vendor.identity import NATIVE, ROOT
from vendor.report import BuildError, step

_KEPT = 7 * 24 * 3600  # seconds that an unused folder is kept


def sources() -> list[Path]:
    """The source of each program; empty if this is not a checkout."""
    return sorted((ROOT / "tests" / "oracle").glob("*.cpp"))


def build(
    reference: Path, programs: Iterable[Path], source: Path, tools: toolchain.Tools
) -> Path:
    """A folder with our programs and upstream's `programs`. `reference` is the build that has
    upstream's, made from llama.cpp's tree `source`. Call it
    with the cache's lock held. Raises BuildError if a program does not compile."""
    compiler = cards.command(tools.cxx, tools.launcher)
    key = cards.key_of_all(source / "ggml", NATIVE, compiler)
    digests = {program: _digest(program, key) for program in sources()}
    whole = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
    final = reference.parent.parent / "oracles" / f"{reference.name}-{whole[:8]}"
    if not final.is_dir():
        caches.sweep(final.parent.parent)
        with caches.staged(final) as stage:
            _link(reference, programs, stage)
            for program, digest in digests.items():
                target = stage / "bin" / program.stem
                made = _made(final.parent, reference.name, program.stem, digest)
                if made is None:
                    parts = _parts(program)
                    if _simulates(program):
                        cache = final.parent.parent
                        cut = cards.cached(source / "ggml", NATIVE, cache, compiler)
                        parts += [one.file for one in cut if one.file]
                    _compile(program, parts, source, reference, target, tools)
                else:
                    shutil.copy2(made, target)
                _stamp(target).write_text(digest)
        _remove_old(final.parent)
    os.utime(final)
    return final


def _digest(program: Path, key: str) -> str:
    """A hash of all our code that is compiled into the program. `key` is the one of the cards."""
    headers = [*program.parent.glob("*.h"), *(NATIVE.glob("*.h") if _simulates(program) else ())]
    parts = [*_parts(program), *sorted(headers)]
    its = key.encode() if _simulates(program) else b""
    return hashlib.sha256(its + b"".join(part.read_bytes() for part in parts)).hexdigest()


def _parts(program: Path) -> list[Path]:
    """The source files of the program, without what is cut out of upstream's."""
    if not _simulates(program):
        return [program]
    ours = [*NATIVE.glob("sim_*.cpp"), *NATIVE.glob(f"{cards.FOLDER}/cards.cpp")]
    return [program, *sorted(ours)]


def _simulates(program: Path) -> bool:
    """Whether it registers our simulated devices as GPUs."""
    return "sim_device.h" in program.read_text(encoding="utf-8")


def _link(reference: Path, programs: Iterable[Path], stage: Path) -> None:
    """Links to upstream's programs, libraries and proof, relative in case the cache is moved."""
    (stage / "bin").mkdir()
    for path in (reference / "lib", reference / "build.json", *programs):
        link = stage / path.relative_to(reference)
        link.symlink_to(os.path.relpath(path, link.parent))


def _stamp(program: Path) -> Path:
    return program.with_name(f".{program.name}.sha256")


def _made(folder: Path, reference: str, name: str, digest: str) -> Path | None:
    """The program compiled earlier from the same sources, if there is one."""
    for stamp in folder.glob(f"{reference}-*/bin/.{name}.sha256"):
        if stamp.read_text() == digest:
            return stamp.with_name(name)
    return None


def _compile(
    program: Path, parts: Sequence[Path], source: Path, reference: Path, target: Path,
    tools: toolchain.Tools,
) -> None:  # fmt: skip
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    folders = [source / name for name in ("include", "src", "common", "ggml/include", "ggml/src")]
    folders += [NATIVE, *{part.parent for part in parts}]
    with step(f"compiling the oracle {program.stem}"):
        done = subprocess.run(
            [tools.cxx, "-std=c++17", "-O2", "-w", "-fsanitize=integer-divide-by-zero",
             "-o", str(target), *map(str, parts), *(f"-I{folder}" for folder in folders),
             f"-L{reference / 'lib'}", "-lllama-common", "-lllama", "-lggml", "-lggml-base",
             "-lpthread", f"-Wl,-rpath,{origin}/../lib"],
            capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
            raise BuildError(f"the oracle {program} does not compile: {lines[0]}")


def _remove_old(folder: Path) -> None:
    """Removes folders not used lately. A running test has used its own folder."""
    for old in folder.iterdir():
        if time.time() - old.stat().st_mtime > _KEPT:
            shutil.rmtree(old, ignore_errors=True)

"""Cuts what decides about ops out of upstream's GPU backends, for devices that are not here.

Each backend has a row in `card_backends`. What is cut is compiled without a toolkit, with the stubs
in `ggml_py/native/cards/`. A backend that a release lacks, or that cannot be cut from it, is left
out with the reason, and has no cards then.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vendor import cache as caches
from vendor import cpp_source, cut
from vendor.card_backends import BACKENDS, ENDS, Backend
from vendor.comments import without_comments
from vendor.report import BuildError, OutsideError, check_outside, step

MAKERS = ("cut.py", "cpp_source.py", "cards.py", "card_backends.py")
FOLDER = "cards"  # in `native/`, and in the cache
# -O1 makes no answer slower that can be measured, and compiles quicker. Upstream's functions divide
# by sizes of operands: a division by zero is an error of the call (native/divide.c).
FLAGS = (
    "-std=c++17", "-DNDEBUG", "-w", "-fno-exceptions", "-O1", "-g0", "-fPIC", "-fvisibility=hidden",
    "-fasynchronous-unwind-tables", "-fsanitize=integer-divide-by-zero",
    "-fno-sanitize-recover=integer-divide-by-zero",
)  # fmt: skip
_ERROR = re.compile(r"\S+:\d+:\d+: (?:fatal )?error: ")
_WHY = "why.json"  # the reason why the backend is left out, or ""; written last
_KEPT = 8 * len(BACKENDS)  # releases and versions of our code
_NOT_READ = (".comp", ".glsl", ".cl", ".metal", ".wgsl", ".py", ".txt", ".md")  # nothing includes


@dataclass(frozen=True)
class Cut:
    """A backend's object file, or why there is none."""

    backend: str
    file: Path | None
    why: str = ""


def command(
    cxx: str, launcher: str | None = None, flags: str | None = None, sanitize: str = ""
) -> list[str]:
    """The command that compiles what is cut. `launcher` is ccache, `flags` are the build's own
    (CMAKE_CXX_FLAGS), `sanitize` the sanitizers of a build that has some."""
    made = [*([launcher] if launcher else []), cxx, *FLAGS]
    made += shlex.split(os.environ.get("CXXFLAGS", "") if flags is None else flags)  # as CMake does
    if sanitize:  # -O0 saves two minutes
        made += ["-O0", "-fno-sanitize=integer-divide-by-zero", f"-fsanitize={sanitize}"]
    return made


def generate(
    ggml: Path, native: Path, target: Path, compiler: Sequence[str],
    names: Iterable[str] = tuple(BACKENDS),
) -> list[Cut]:
    """Write NAME.cpp, NAME.inc and NAME.o into `target` for each backend that can be cut from the
    release.

    `native` is the folder of our native code, `compiler` a `command`.
    """
    target.mkdir(exist_ok=True)
    # Two at a time: the compiler takes most of the time, in processes of its own.
    with step("cutting out what backends support"), ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: _cut(name, ggml, native, target, compiler), names))


def cached(
    ggml: Path, native: Path, cache: Path, compiler: Sequence[str],
    names: Sequence[str] = tuple(BACKENDS),
) -> list[Cut]:  # fmt: skip
    """As `generate`, into the cache folder `cache`, where all builds share the files: a backend is
    cut again if something that it is made of has changed.

    Call it with the cache's lock held.
    """
    common = _common(ggml, native, compiler)
    folders = {name: cache / FOLDER / key_of(name, ggml, common) for name in names}
    missing = [name for name, folder in folders.items() if not (folder / _WHY).is_file()]

    def make(name: str) -> None:
        with caches.staged(folders[name]) as stage:
            made = _cut(name, ggml, native, stage, compiler)
            (stage / _WHY).write_text(json.dumps(made.why))

    if missing:
        what = "what backends support" if len(missing) == len(names) else ", ".join(missing)
        with step(f"cutting out {what}"), ThreadPoolExecutor(2) as pool:
            list(pool.map(make, missing))
        _remove_old(cache / FOLDER)
    found = []
    for name, folder in folders.items():
        os.utime(folder)
        why = json.loads((folder / _WHY).read_text())
        found.append(Cut(name, None if why else folder / f"{name}.o", why))
    return found


def key_of_all(ggml: Path, native: Path, compiler: Sequence[str]) -> str:
    """A name for what is cut of all backends: a hash of all that it depends on."""
    common = _common(ggml, native, compiler)
    keys = [key_of(name, ggml, common) for name in BACKENDS]
    return hashlib.sha256("".join(keys).encode()).hexdigest()[:16]


def key_of(name: str, ggml: Path, common: bytes) -> str:
    """A name for what is cut of a backend. Comments do not count, but where lines are does: answers
    tell them."""
    folder = ggml / "src" / BACKENDS[name].folder
    files = (path for path in sorted(folder.rglob("*")) if path.suffix not in _NOT_READ)
    return hashlib.sha256(b"\0".join([name.encode(), common, *_texts(files, folder)])).hexdigest()[
        :16
    ]


def _common(ggml: Path, native: Path, compiler: Sequence[str]) -> bytes:
    """A hash of what all backends depend on."""
    ours = [*(Path(__file__).with_name(name) for name in MAKERS), *native.glob("*.h")]
    ours += (native / FOLDER).glob("*.*")
    version = subprocess.run(
        [*compiler, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    ).stdout
    parts = [version, *map(os.fsencode, compiler)]
    parts += [path.name.encode() + path.read_bytes() for path in sorted(ours)]
    headers = [*(ggml / "include").glob("*.h"), *(ggml / "src").glob("*.h")]
    return hashlib.sha256(b"\0".join([*parts, *_texts(sorted(headers), ggml)])).digest()


def _texts(paths: Iterable[Path], folder: Path) -> list[bytes]:
    return [
        os.fsencode(path.relative_to(folder)) + b"\0" + without_comments(path)
        for path in paths
        if path.is_file()
    ]


def _remove_old(folder: Path) -> None:
    """Keeps the folders that were used last."""
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in found[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _cut(name: str, ggml: Path, native: Path, target: Path, compiler: Sequence[str]) -> Cut:
    backend = BACKENDS[name]
    files = [f for f in backend.files if (ggml / "src" / backend.folder / f).is_file()]
    if backend.files[0] not in files:
        return Cut(name, None, f"the release has no {backend.folder}/{backend.files[0]}")
    stubs = native / FOLDER / backend.stubs
    try:
        with tempfile.TemporaryDirectory() as empty:
            folders = [Path(empty), ggml / "src" / backend.folder, ggml / "include", ggml / "src"]
            _make_empty(Path(empty), backend, files, compiler, folders)
            stream = cpp_source.preprocessed(compiler, files, folders, backend.defines)
            aliases = _aliases(backend, compiler, folders)
        for pattern, becomes in backend.edits:
            stream = re.sub(pattern, partial(_with_lines, becomes), stream)
        source = cpp_source.read(stream, {backend.folder, *backend.more})
        provided = {aliases.get(name, name) for name in _defined(stubs)}
        defined = {name for d in source.definitions if d.has_body for name in d.names}
        lacking = set(backend.asked) - defined
        roots, answers = (
            [name for name in names if name not in lacking]
            for names in (backend.roots, backend.answers)
        )
        wanted = cut.Wanted(
            (*roots, *backend.slices), provided, (*ENDS, *backend.ends), answers,
            backend.members, backend.slices, backend.generated,
        )  # fmt: skip
        text = cut.cut(source, wanted)
    except OutsideError:
        raise
    except BuildError as error:
        return Cut(name, None, str(error))
    made = target / f"{name}.cpp"
    _write(target / f"{name}.inc", text)
    defines = "".join(f"#define {d.replace('=', ' ', 1)}\n" for d in backend.defines)
    defines += "".join(f"#define {name} {other}\n" for name, other in sorted(aliases.items()))
    defines += "".join(f"#define GP_HAS_{name}\n" for name in backend.asked
                       if re.search(rf"\b{name}\b", text))  # fmt: skip
    _write(
        made,
        f'{defines}#define GP_CARD_NAME "{name}"\n#define GP_CUT "{name}.inc"\n'
        f'#include "{FOLDER}/{backend.stubs}"\n',
    )
    why = _compile(made, [native, ggml / "include", ggml / "src"], compiler)
    return Cut(name, None if why else made.with_suffix(".o"), why)


def _compile(source: Path, folders: Sequence[Path], compiler: Sequence[str]) -> str:
    """Compile `source` beside itself. Returns the first errors in it, "" if there are none."""
    # With paths relative to these folders, ccache finds what was compiled in another cache.
    environment = {"CCACHE_BASEDIR": str(source.parents[2]), **os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        [*compiler, "-I.", *(f"-I{folder}" for folder in folders), "-c", source.name],
        cwd=source.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.returncode:
        return ""
    check_outside("compiling cards", source.parent, done.returncode, done.stderr)
    errors = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
    if not errors:
        raise OutsideError(f"{compiler[0]} failed on {source.name}: {done.stderr.strip()[-300:]}")
    return "; ".join(errors[:3])


def _with_lines(becomes: str, found: re.Match[str]) -> str:
    """What a match becomes, with as many lines as it had, so that those after it keep theirs."""
    made = found.expand(becomes)
    lost = found[0].split("\n")[1 + made.count("\n") :]
    return made + "".join("\n" + (line if line.startswith("# ") else "") for line in lost)


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _defined(stubs: Path) -> frozenset[str]:
    """The names that the stubs define, also in their own header."""
    text = stubs.read_text(encoding="utf-8").partition("#include GP_CUT")[0]
    for header in re.findall(r'(?m)^#include "(\w+_stubs\.h)"', text):
        text += stubs.with_name(header).read_text(encoding="utf-8")
    code = re.sub(r"(?m)//.*|^#(?:[^\n]*\\\n)*.*|^namespace.*", "", text)
    made = cpp_source.read(f'# 1 "{FOLDER}/{stubs.name}"\n{code}', {FOLDER})
    return frozenset(
        name for definition in made.definitions for name in definition.names
        if definition.has_body or not definition.kind
    )  # fmt: skip


def _aliases(backend: Backend, command: Sequence[str], folders: Sequence[Path]) -> dict[str, str]:
    """The macros of a header that only give a name another one."""
    if not backend.aliases:
        return {}
    listed = cpp_source.preprocessed([*command, "-dM"], [backend.aliases], folders, backend.defines)
    return dict(re.findall(r"(?m)^#define ([A-Za-z]\w*) ([A-Za-z]\w*)$", listed))


def _make_empty(
    folder: Path, backend: Backend, files: Sequence[str], command: Sequence[str],
    folders: Sequence[Path],
) -> None:
    """Empty files for the toolkit's headers, and for any other header that is not here."""
    text = "".join(f'#include "{file}"\n' for file in files)
    for header in backend.headers:
        _touch(folder / header)
    done = subprocess.run(
        [*command, "-M", "-MG", "-x", "c++", "-w", *(f"-I{f}" for f in folders),
         *(f"-D{d}" for d in backend.defines), "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for name in done.stdout.replace("\\\n", " ").split()[1:]:
        if not name.startswith("/") and name != "-":
            _touch(folder / name)


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

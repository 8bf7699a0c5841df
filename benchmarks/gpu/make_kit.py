"""Makes a kit for a machine with a GPU: `make gpu-kit [ARCH=90] [PYTHONS=3.12] [BACKEND=cuda]`.

The kit is one folder that git ignores: a wheel with the CUDA build (one architecture, stripped),
wheels of what it and the tests depend on, upstream's llama-bench and test-backend-ops, the sources
of this commit, and the runner. cuBLAS and the CUDA runtime are the other machine's. BACKEND=none
makes a kit without CUDA: its run is a dry run, which goes through everything that needs no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks"), str(Path(__file__).resolve().parent)]
import search  # noqa: E402
from parts import PARTS  # noqa: E402
from record import now  # noqa: E402

import build_ggml  # noqa: E402
from vendor import cache as caches  # noqa: E402
from vendor.report import BuildError, say, step  # noqa: E402

LIMIT = 55 << 20  # bytes; what is lent takes 64 MiB, with the working tree
PROGRAMS = ("llama-bench", "test-backend-ops")
PRISTINE = "pristine"
INSTRUMENTED = ("libggml-base.so.0", "libggml-cpu.so.0", "libggml-rpc.so.0")
RUNNER = ("run_kit.py", "machine.py", "unpack.py", "parts.py", "record.py")  # standard library only
INSTALL = ("ggml_py", "pytest")
# pip matches the number exactly, so all that wheels are made for are named.
PLATFORMS = ("manylinux2014_x86_64", "manylinux1_x86_64",
             *(f"manylinux_2_{n}_x86_64" for n in (5, 12, 17, 24, 26, 27, 28, 31, 34)))  # fmt: skip


class KitError(RuntimeError):
    """The kit cannot be made. The text says what was given or found, and what to do."""


def arguments_of(backend: str, arch: str, cache: Path) -> list[str]:
    """build_ggml.py's arguments: for any x86-64 processor with AVX2; for a dry run the usual build,
    which runs on this machine only."""
    words = ["--cache", str(cache)]
    if backend == "none":
        return words
    return [*words, "--backend", "cpu,rpc,cuda", "--cuda-arch", f"{arch}-real", "-DGGML_NATIVE=OFF"]


def stripped(built: Path, cache: Path) -> Path:
    """A copy of the build in another cache folder, under its name, without symbols."""
    copy = cache / "builds" / built.name
    shutil.copytree(built, copy)
    for path in copy.iterdir():
        if ".so" in path.name:
            _strip(path)
    return copy


def _strip(path: Path) -> None:
    subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def own_wheel(arguments: Sequence[str], cache: Path, folder: Path) -> Path:
    """The wheel of this tree with the build that is in `cache`."""
    settings: dict[str, Any] = {"D": []}
    words = iter(arguments)
    for word in words:
        if word.startswith("-D"):
            settings["D"].append(word[2:])
        else:
            settings[word.removeprefix("--")] = next(words)
    settings = {name: value for name, value in settings.items() if value}
    settings["cache"] = str(cache)
    code = "import json, sys; from vendor import pep517; " \
           "print(pep517.build_wheel(sys.argv[1], json.loads(sys.argv[2])))"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), json.dumps(settings)],
        cwd=REPO, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise KitError("the wheel was not made: what it said is above")
    return folder / done.stdout.splitlines()[-1]


def dependencies(folder: Path, pythons: Sequence[str]) -> None:
    """Downloads wheels of what the package and its tests need, for each Python."""
    text = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    needs = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.M | re.S)
    assert needs is not None
    wanted = [one for one in re.findall(r'"(.+?)"', needs[1]) if ";" not in one]
    for python in pythons:
        command = [
            sys.executable, "-m", "pip", "download", "-q", "-d", str(folder),
            "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
            *(word for name in PLATFORMS for word in ("--platform", name)),
            *wanted, "pytest", "pip",
        ]  # fmt: skip
        if subprocess.run(command, check=False).returncode:
            raise KitError(
                f"pip has no wheels for Python {python} of {', '.join(wanted)}: see above, or give "
                "another PYTHONS"
            )


def stored(wheel: Path) -> None:
    """Rewrites a wheel uncompressed: one archive of all compresses better."""
    new = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as out:
        for entry in old.infolist():
            info = zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0))
            info.external_attr = entry.external_attr
            out.writestr(info, old.read(entry))
    new.replace(wheel)


def needed(path: Path) -> list[str]:
    """The names of the libraries that a program or library is linked with."""
    said = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True)
    return re.findall(r"NEEDED.*\[(.+?)\]", said.stdout)


def upstreams_programs(reference: Path, folder: Path) -> None:
    """llama-bench and test-backend-ops with their libraries, but not the backends; and upstream's
    own of the libraries that we instrument."""
    left = []
    for name in PROGRAMS:
        shutil.copy2(reference / "bin" / name, folder / name)
        left.append(folder / name)
    while left:
        for name in needed(left.pop()):
            library = reference / "lib" / name
            if library.exists() and not name.startswith("libggml") and not (folder / name).exists():
                shutil.copy2(library, folder / name)
                left.append(folder / name)
    (folder / PRISTINE).mkdir()
    for name in INSTRUMENTED:
        shutil.copy2(reference / "lib" / name, folder / PRISTINE / name)
    for path in folder.rglob("*"):
        if path.is_file():
            _strip(path)


def packed(target: Path, folder: Path, names: Sequence[str] | None = None) -> None:
    """An .tar.xz of a folder's files (or of those named), the same for the same files."""
    files = sorted(names or [p.relative_to(folder).as_posix() for p in folder.rglob("*")])
    with tarfile.open(target, "w:xz", preset=6) as tar:
        for name in files:
            if (folder / name).is_file():
                tar.add(folder / name, name, recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def symbols(folder: Path) -> dict[str, str]:
    """The newest versions of the C and C++ libraries' symbols that the files need."""
    newest: dict[str, tuple[int, ...]] = {}
    for path in (p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if data[:4] != b"\x7fELF":
            continue
        for name, version in re.findall(rb"(GLIBC|GLIBCXX)_(\d+(?:\.\d+)+)\0", data):
            numbers = tuple(map(int, version.split(b".")))
            newest[name.decode()] = max(newest.get(name.decode(), ()), numbers)
    return {name: ".".join(map(str, numbers)) for name, numbers in sorted(newest.items())}


def cuda_libraries(build: Path) -> list[str]:
    """The libraries of CUDA that the build is linked with, and what cuBLAS loads."""
    library = next(build.glob("libggml-cuda.so*"), None)
    if library is None:
        return []
    names = [name for name in needed(library) if re.match(r"lib(cu|nv)", name)]
    return names + [one.replace("cublas", "cublasLt") for one in names if "libcublas." in one]


def git(*words: str) -> str:
    """What git prints; "" outside a repository."""
    done = subprocess.run(["git", *words], cwd=REPO, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def described(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of each file."""
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


def check_size(files: dict[str, dict[str, Any]], limit: int = LIMIT) -> int:
    """The bytes of all files. Raises `KitError` if that is too much to carry."""
    total = sum(one["bytes"] for one in files.values())
    if total > limit:
        sizes = ", ".join(f"{name} {one['bytes'] / 2**20:.1f}" for name, one in files.items()
                          if one["bytes"] > 1 << 19)  # fmt: skip
        raise KitError(
            f"the kit has {total / 2**20:.1f} MiB ({sizes}): expected at most {limit >> 20}. Give "
            "one ARCH and one of PYTHONS"
        )
    return total


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A folder that takes the place of `out` in the end, or goes if something fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield new
        if out.exists():
            shutil.rmtree(out)
        new.chmod(0o755)
        new.replace(out)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def make(
    out: Path, backend: str, arch: str, pythons: Sequence[str], cache: Path,
    reference: Path | None = None,
) -> int:  # fmt: skip
    """Makes the kit in `out`. Returns its bytes. Raises `KitError` or `BuildError`."""
    if not re.fullmatch(r"\d{2,3}a?", arch):
        raise KitError(f"ARCH={arch}: expected one compute capability, such as 90 for 9.0")
    arguments = arguments_of(backend, arch, cache)
    built = build_ggml.build(build_ggml.options_of(build_ggml.parser().parse_args(arguments)))
    proof = build_ggml.read_proof(built) or {}
    reference = reference or _reference(backend, cache)
    with replacing(out) as new, tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        wheels, programs = Path(scratch) / "wheels", Path(scratch) / "programs"
        wheels.mkdir()
        programs.mkdir()
        with step("making the kit"):
            copy = stripped(built, Path(scratch) / "cache")
            own_wheel(arguments, Path(scratch) / "cache", wheels)
            dependencies(wheels, pythons)
            for wheel in wheels.iterdir():
                stored(wheel)
            packed(new / "wheels.tar.xz", wheels)
            upstreams_programs(reference, programs)
            packed(new / "programs.tar.xz", programs)
            sources = git("ls-files", "-co", "--exclude-standard").splitlines()
            packed(new / "source.tar.xz", REPO, sources)
            (new / "gpu").mkdir()
            for name in RUNNER:
                shutil.copy2(Path(__file__).parent / name, new / "gpu" / name)
        files = described(new)
        kit = {
            "id": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12],
            "date": now(),
            "commit": git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else ""),
            "build": proof["key"],
            "release": proof["label"],
            "cuda": "cuda" in proof["backends"],
            "dry_run": "cuda" not in proof["backends"],
            "architectures": [arch] if "cuda" in proof["backends"] else [],
            "machine": platform.machine(),
            "processor": proof["processor"],
            "pythons": list(pythons),
            "libraries": cuda_libraries(built),
            "symbols": _newest(symbols(copy), symbols(programs)),
            "install": list(INSTALL),
            "about": {part.name: search.hashes(part.patterns) for part in PARTS},
            "files": files,
        }
        (new / "kit.json").write_text(json.dumps(kit, indent=1) + "\n", encoding="utf-8")
        return check_size(described(new))


def _newest(*found: dict[str, str]) -> dict[str, str]:
    newest: dict[str, str] = {}
    for one in found:
        for name, version in one.items():
            newest[name] = max(newest.get(name, "0"), version,
                               key=lambda text: [int(n) for n in text.split(".")])  # fmt: skip
    return newest


def _reference(backend: str, cache: Path) -> Path:
    """Upstream's programs: for a dry run those that the tests use as oracles."""
    words = [sys.executable, str(REPO / "build_ggml.py"), "--reference", "--cache", str(cache)]
    words += [] if backend == "none" else ["-DGGML_NATIVE=OFF"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise KitError("build_ggml.py --reference failed; what it said is above")
    return Path(done.stdout.splitlines()[-1])


def main() -> int:
    """Makes a kit, and says what it has and how to run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=REPO / "build" / "gpu-kit")
    parser.add_argument("--backend", choices=["cuda", "none"], default="cuda")
    parser.add_argument("--arch", default="90", help="compute capability (default: 90, an H100)")
    parser.add_argument("--pythons", default="3.12", help="versions of the other machine's Python")
    parser.add_argument("--cache", type=Path, default=caches.default_folder())
    parser.add_argument("--reference", type=Path, metavar="DIR",
                        help="upstream's programs (bin/ and lib/), instead of building them")
    options = parser.parse_args()
    pythons = options.pythons.replace(",", " ").split()
    try:
        total = make(options.out, options.backend, options.arch, pythons, options.cache,
                     options.reference)
    except (KitError, BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(f"{options.out}: {total / 2**20:.1f} MiB of at most {LIMIT >> 20}")
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The release of a ggml library, and the recorder that fits it.

The library gives its version; nothing else is taken on trust. Before a recorder is put in front of
the library, each of the two builds the same small graph in its own process. The bytes of its
tensors, the sizes, and the names of all ops and types must be equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...builds.script import find_script, folder_of
from ...errors import ArgumentError, NotBuiltError
from . import elf

LIBRARY, SIMULATOR = "libggml_py_record.so", "libggml_py_sim.so"
_PROBE = Path(__file__).with_name("probe.py")
# Loads a library as ggml loads a backend, behind others.
_LOADS = """
import ctypes, os, sys
for library in sys.argv[2:]:
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
ctypes.CDLL(sys.argv[1], os.RTLD_NOW)
"""
_ROOM = 200  # bytes of a name, as native/record/CMakeLists.txt leaves them
_MADE = {
    "--recorder": "what records programs with", "--simulator": "what simulates devices for",
}  # fmt: skip
_USUAL_NAME = 64  # upstream's GGML_MAX_NAME


class NotAskedError(ArgumentError):
    """A library that cannot be loaded, here or by a program here."""


class Recorder(NamedTuple):
    """The library that is put in front of a program, and its release."""

    library: Path
    release: str  # the label in vendor/upstream.toml
    doubt: str  # what is not certain; "" if nothing
    plain: Path  # the same without the name of the program's library
    of: Path  # the program's own library,
    sha256: str  # and its hash
    defines: tuple[str, ...] = ()  # with which the recorder was built


def recorder_for(
    library: Path, upstream: str | None = None, build: bool = True, defines: Sequence[str] = ()
) -> Recorder:
    """The recorder for a program whose scheduler is in `library`, built if missing. `upstream`
    overrides the release that the library reports. `defines` are settings of the library's build,
    such as "GGML_SCHED_MAX_COPIES=8"; GGML_MAX_NAME is detected. Raises `ArgumentError` for a
    release that is not known or does not fit, `NotBuiltError` if the recorder cannot be made."""
    own = _probed(library, 0, 0)
    version = own["ggml_version"]
    if version is None and upstream is None:
        raise ArgumentError(
            f"{library} does not say which ggml it is, as those before 0.9 do not: --upstream "
            f"RELEASE names one ({_known()})"
        )
    names = None if own["max_name"] == _USUAL_NAME else int(own["max_name"])
    why = ""
    for release in _releases_called(upstream or version, library):
        folder = _folder("--recorder", _release_words(release, names, defines), build)
        ours = folder / LIBRARY
        facts = json.loads((folder / "recorder.json").read_text(encoding="utf-8"))
        wrong = _unlike(library, ours)
        if not wrong:
            digest = hashlib.sha256(library.read_bytes()).hexdigest()
            doubt = _doubt(library, own, facts)
            return Recorder(
                _named(ours, library), facts["label"], doubt, ours, library, digest, tuple(defines)
            )
        why = why or f"that of ggml {facts['label']}: they differ in {wrong}"
    raise ArgumentError(
        f"{library} (ggml {version}) does not fit what would record it, {why}. It is a fork or was "
        "built with other settings; another release may fit: --upstream RELEASE"
    )


def _named(ours: Path, library: Path) -> Path:
    """The recorder under the name of the program's ggml-base. The loader then takes the recorder
    for it, and a program that asks its own library for functions (dlsym, ctypes) gets ours.

    Ours keeps its own name if the library has more than ggml-base in it, or functions that ours
    lacks. Then both are loaded, and ours is found first.
    """
    name = elf.soname(library) or library.name
    if elf.exported(library) - elf.exported(ours) or len(name) > _ROOM:
        return ours
    content = ours.read_bytes()
    room = re.search(rb"ggml_py_record_x+\0", content)
    if room is None:
        return ours
    target = ours.with_name(f"as-{hashlib.sha256(name.encode()).hexdigest()[:12]}") / ours.name
    if not target.is_file():
        target.parent.mkdir(exist_ok=True)
        padded = name.encode().ljust(len(room[0]), b"\0")
        temporary = target.with_name(f".{os.getpid()}")
        temporary.write_bytes(content[: room.start()] + padded + content[room.end() :])
        temporary.replace(target)
    return target


def _unlike(library: Path, ours: Path) -> str:
    """How the program's ggml differs from the recorder; "" if it does not."""
    tables = _probed(ours, 0, 0)["tables"]
    n_ops, n_types = len(tables["ops"]), len(tables["types"])
    theirs, mine = _probed(library, n_ops, n_types), _probed(ours, n_ops, n_types)
    keys = ("tensor_overhead", "graph_overhead", "tensors", "ops", "types")
    return _differences([key for key in keys if theirs[key] != mine[key]], theirs, mine)


def _doubt(library: Path, own: dict[str, Any], facts: dict[str, Any]) -> str:
    """The doubt about the release; "" for a library from that very release's package."""
    version, commit = own["ggml_version"], own["ggml_commit"] or "unknown"
    if version is None or version.removesuffix("-dirty") != facts["ggml_version"]:
        return (
            f"planned by the scheduler of ggml {facts['ggml_version']}; the program's own is "
            f"{version or 'of an unknown release'}"
        )
    package = _package_of(library)
    if package is not None and package == (facts.get("package"), facts.get("version")):
        return ""
    known = commit not in ("unknown", "")
    return (
        f"planned by the scheduler of ggml {version} as {facts.get('package')} "
        f"{facts.get('version')} has it; the program's own "
        f"{f'is of commit {commit}' if known else 'does not say its commit'}"
    )


def _package_of(library: Path) -> tuple[str, str] | None:
    """The Python package that installed the library."""
    for folder in library.parents:
        if folder.name in ("site-packages", "dist-packages"):
            for record in folder.glob("*.dist-info/RECORD"):
                if str(library.relative_to(folder)) in record.read_text("utf-8", "replace"):
                    name, _, version = record.parent.name.removesuffix(".dist-info").partition("-")
                    return name.replace("_", "-").lower(), version
    return None


def _releases_called(wanted: str, library: Path) -> list[str]:
    """The labels of the known releases with that name; packages may share a ggml version. Raises
    `ArgumentError` with the nearest."""
    found = [
        str(row["label"]) for row in _releases()
        if wanted.removesuffix("-dirty") in (
            row["label"], row["ggml"], row["version"], f"b{row['build']}"
        )
    ]  # fmt: skip
    if found:
        return found
    labels = [str(row["label"]) for row in _releases()]
    near = sorted(labels, key=lambda label: _distance(label, wanted))[:2]
    raise ArgumentError(
        f"{library} is ggml {wanted}, which is no release that ggml_py knows. The nearest are "
        f"{' and '.join(near)}: --upstream {near[0]} records with that one's scheduler if its "
        "structs fit, which is checked. vendor/UPDATING.md says how to add a release"
    )


def _distance(label: str, wanted: str) -> tuple[int, ...]:
    def numbers(text: str) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", text)[:3]] + [0, 0, 0]

    return tuple(abs(a - b) for a, b in zip(numbers(label)[:3], numbers(wanted)[:3], strict=True))


def _known() -> str:
    return ", ".join(str(row["label"]) for row in _releases())


def _releases() -> Sequence[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(find_script()), "--list", "--json"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(done.stdout)["releases"]
    return rows


def simulator_for(recorder: Recorder, build: bool = True) -> Path:
    """The module with simulated devices for programs of the same release, made at need. Raises
    `NotBuiltError`, also if the program's ggml could not load it: the program would only say so
    among its lines, and go on without the devices."""
    folder = next(f for f in recorder.library.parents if (f / "recorder.json").is_file())
    facts = json.loads((folder / "recorder.json").read_text(encoding="utf-8"))
    words = _release_words(recorder.release, facts["max_name"], recorder.defines)
    found = _folder("--simulator", words, build) / SIMULATOR
    check_loads(found, (recorder.of, recorder.plain))
    return found


def simulator_here(build: bool = True) -> Path:
    """The same module for programs on the library that is loaded. Raises `NotBuiltError`."""
    from ...boundary.ffi import BUILD

    checkout = BUILD.get("checkout")
    words = ["--source", checkout] if checkout else ["--upstream", f"b{BUILD['llama_build']}"]
    return _folder("--simulator", words, build) / SIMULATOR


def check_loads(module: Path, others: Sequence[Path]) -> None:
    """Raises `NotBuiltError` with the reason if a program that has loaded the other libraries could
    not load this one."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LOADS, str(module), *map(str, others)],
        capture_output=True, text=True, errors="replace", check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        raise NotBuiltError(f"{module} does not load beside {others[0]}: {lines[-1]}")


def _release_words(release: str, names: int | None, defines: Sequence[str]) -> list[str]:
    found = ["--upstream", release, *(word for d in defines for word in ("-D", d))]
    return found if names is None else [*found, "--max-name", str(names)]


def _folder(what: str, words: Sequence[str], build: bool) -> Path:
    found = folder_of(what, *words, "--no-build", quiet=True)
    if found is None and build:
        found = folder_of(what, *words)
    if found is None:
        how = f"`ggml-py build {what} {' '.join(words)}` makes it, in about half a minute"
        raise NotBuiltError(f"{_MADE[what]} ggml {words[1]} is not there: {how}")
    return found


def _probed(library: Path, n_ops: int, n_types: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(_PROBE), str(library), str(n_ops), str(n_types)],
        capture_output=True, text=True, errors="replace", check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"the process ended with {done.returncode}"
        raise NotAskedError(f"{library} cannot be asked about its ggml: {why}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _differences(wrong: Sequence[str], theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    said = []
    for key in wrong:
        if isinstance(theirs[key], int):
            said.append(f"{key} ({theirs[key]} and {mine[key]} bytes)")
        elif key in ("ops", "types"):
            i = next(
                i for i, (a, b) in enumerate(zip(theirs[key], mine[key], strict=True)) if a != b
            )
            said.append(f"{key[:-1]} {i} ({theirs[key][i]} and {mine[key][i]})")
        else:
            said.append(f"the bytes of {key}")
    return ", ".join(said)

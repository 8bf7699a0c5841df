"""Builds upstream's libllama and llama-bench, and our cffi module, on a finished build of ggml.

The result is a folder of its own, `llama/<key>` of the cache, with libllama, upstream's common
library, `llama-bench`, our `llama-chat` and `_llama`, which a process loads after that build of
ggml.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from vendor import cache as caches
from vendor import llama_edits, releases, toolchain
from vendor.compile import Tree
from vendor.identity import (
    COMPILER_VARIABLES,
    NATIVE,
    ROOT,
    Options,
    Upstream,
    unpacked,
    upstream_of,
)
from vendor.report import BuildError, say, step, writing

PROOF = "llama.json"
FOLDER = "llama"  # of the cache, and of a build that has it with it
_MAKERS = ("llama.py", "llama_edits.py", "edit.py", "instrument.py", "headers.py", "bindgen.py")
_SHARED = (
    "guard.h", "shared.h", "shared_client.cpp", "module_client.h", "pins.h", "quant_tables.h",
)  # fmt: skip
_FLAGS = (
    "CMAKE_BUILD_TYPE", "CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS", "CMAKE_C_FLAGS_RELWITHDEBINFO",
    "CMAKE_CXX_FLAGS_RELWITHDEBINFO",
)  # fmt: skip


def made_of() -> list[Path]:
    """Every file of ours that is compiled into the result, or makes what is compiled."""
    ours = sorted((NATIVE / "llama").iterdir())
    return [*ours, *(NATIVE / name for name in _SHARED), *(ROOT / "vendor" / n for n in _MAKERS)]


def key_of(proof: dict[str, Any]) -> str:
    """The name of the folder for the build of ggml that `proof`, its build.json, describes."""
    digest = hashlib.sha256(json.dumps([
        proof["key"], {name: os.environ.get(name, "") for name in COMPILER_VARIABLES},
    ]).encode())  # fmt: skip
    for path in made_of():
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return f"{proof['key']}-{digest.hexdigest()[:8]}"


def build(built: Path, proof: dict[str, Any], options: Options, may_build: bool = True) -> Path:
    """The folder with libllama for the finished build of ggml in `built`, made if it is missing and
    `may_build`. Raises BuildError."""
    if proof["pristine"]:
        raise BuildError(
            "libllama is built on an instrumented ggml, and this build is pristine: give --llama "
            "without --pristine")
    final = options.cache / FOLDER / key_of(proof)
    if (final / PROOF).is_file():
        say(f"found libllama for {built.name} in {final}")
        return final
    if not may_build:
        raise BuildError(f"libllama for {built.name} is not built: it would be in {final}")
    tools = toolchain.find_tools()
    with caches.Lock(options.cache) as lock, writing("building libllama", options.cache):
        if (final / PROOF).is_file():
            return final  # the process that we waited for built this
        caches.sweep(options.cache)
        upstream, source = _source(proof, options)
        say(f"building libllama {proof['label']}: about two minutes on two cores, once; it is "
            f"kept in {final}")
        flags = {name: value for name, value in proof["cmake"].items() if name in _FLAGS}
        digest = hashlib.sha256(json.dumps([proof["configuration"]]).encode()).hexdigest()
        tree = Tree(options.cache / "trees" / f"llama-{proof['label']}-{digest[:12]}",
                    options.cache / "logs" / f"llama-{final.name}.log", tools, lock)  # fmt: skip
        with caches.staged(final) as stage:
            _build(tree, source, built, flags, proof, options.n_jobs, stage)
            now = datetime.datetime.now(datetime.timezone.utc)
            made = {
                "key": final.name, "build": proof["key"], "source_sha256": upstream.sha256,
                "built_at": now.isoformat(timespec="seconds"),
            }  # fmt: skip
            (stage / PROOF).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        tree.finished()
        _remove_old(final)
    return final


def _source(proof: dict[str, Any], options: Options) -> tuple[Upstream, Path]:
    """llama.cpp's tree of the release that ggml was built from."""
    if proof["package"]:
        release = releases.find(proof["version"])
        options = Options(upstream=release.label, cache=options.cache)
        return upstream_of(options), unpacked(release, options.cache, whole=True)
    if options.source is None:
        raise BuildError(
            f"build {proof['key']} was made from a checkout: give that folder again, with --source")
    upstream = upstream_of(options)
    if upstream.sha256 != proof["source_sha256"]:
        raise BuildError(
            f"--source {options.source} has changed since build {proof['key']}: build again")
    assert upstream.folder is not None
    whole = upstream.folder.parent
    if not (whole / "include" / "llama.h").is_file():
        raise BuildError(
            f"--llama needs the whole tree of llama.cpp, but {upstream.folder} has only ggml: give "
            "--source a checkout of llama.cpp")
    return upstream, whole


def _build(
    tree: Tree, source: Path, built: Path, flags: dict[str, str], proof: dict[str, Any], jobs: int,
    stage: Path,
) -> None:
    copies = _instrumented(source, tree)
    tree.configure(NATIVE / "llama", {
        "GGML_PY_LLAMA_DIR": str(source),
        "GGML_PY_BUILD": str(built),
        "GGML_PY_INSTRUMENTED": str(tree.folder / "instrumented"),
        "GGML_PY_COPIES": ";".join(copies),
        "GGML_PY_GENERATED": str(_generated(source, tree)),
        "GGML_PY_PYTHON_INCLUDE": sysconfig.get_path("include"),
        # A checkout changes a file at a time, and may have some that do not compile together.
        "GGML_PY_UNITY": "ON" if proof["package"] else "OFF",
        "GIT_EXE": "",  # as in build_ggml.py, so that a release is not "dirty"
        "LLAMA_BUILD_NUMBER": str(proof["llama_build"] or 0),  # which llama-bench prints,
        "LLAMA_BUILD_COMMIT": proof["key"],
        **flags,
    }, jobs)  # fmt: skip
    tree.compile(("_llama", "llama-bench", "llama-chat"), jobs)
    tree.install(stage)


def _instrumented(source: Path, tree: Tree) -> list[str]:
    """Makes the edited copies. Returns those that are compiled."""
    from vendor.instrument import AnchorError, instrument

    folder = tree.folder / "instrumented"
    (folder / "friend").mkdir(parents=True, exist_ok=True)
    for name, edits in llama_edits.EDITS.items():
        original = source / name
        name = original.name
        try:
            text = instrument(name, original.read_text(encoding="utf-8"), edits)
        except (AnchorError, FileNotFoundError) as error:
            tree.failed()
            raise BuildError(f"cannot instrument {original}: {error}") from error
        # A header beside the edited sources would be theirs, too.
        _write(folder / ("friend" if name.endswith(".h") else "") / name, text)
    return [Path(name).name for name in llama_edits.EDITS if re.fullmatch(r"src/.*\.cpp", name)]


def _generated(source: Path, tree: Tree) -> Path:
    from vendor import bindgen, headers

    headers.NATIVE = NATIVE  # in an installed package native/ is beside `_build`, not below it
    folder = tree.folder / "generated"
    folder.mkdir(exist_ok=True)
    doing = step("generating the bindings of libllama")
    with doing, tempfile.TemporaryDirectory(dir=tree.folder) as new:
        bindgen.generate_llama(source / "ggml", Path(new), cc=tree.tools.cc)
        for path in Path(new).iterdir():
            _write(folder / path.name, path.read_text(encoding="utf-8"))
    return folder


def architectures(source: Path) -> list[str]:
    """The architectures that libllama of this tree of llama.cpp loads."""
    text = (source / "src" / "llama-arch.cpp").read_text(encoding="utf-8")
    table = text.partition("LLM_ARCH_NAMES = {")[2].partition("};")[0]
    known = re.findall(r'\{ *LLM_ARCH_\w+, *"([^"]+)" *\}', table)
    return sorted(set(known) - {"clip", "(unknown)"})  # neither is a model of its own


def _write(path: Path, text: str) -> None:
    """Writes `text` unless the file has it: an untouched file is not compiled again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _remove_old(final: Path, keep: int = 3) -> None:
    """Removes all folders beside `final` but the newest."""
    others = [path for path in final.parent.iterdir() if path != final]
    for old in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
        shutil.rmtree(old, ignore_errors=True)

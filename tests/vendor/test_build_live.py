"""Builds that really compile: killed, in twos, on a full disk; and the wheel that comes out."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

from ..support.build_support import (
    REPO,
    WARM,
    checkout,
    command,
    error_of,
    live_cache,
    seed,
    small_disk,
)

pytestmark = pytest.mark.thorough("builds")

# What is tested here is the building, not the built: as little to compile as ggml allows.
QUICK = (
    "--backend=cpu", "--cards=none", "-DCMAKE_C_FLAGS_RELEASE=-O0", "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
    "-DGGML_NATIVE=OFF", "-DGGML_CPU_REPACK=OFF", "-DGGML_LLAMAFILE=OFF",
)
LOAD = "import _ggml; print(_ggml.ffi.string(_ggml.lib.ggml_version()).decode())"


def loads(folder: Path) -> str:
    """Import the built module in a fresh process; the ggml version that it answers."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def started(tree: Path, *arguments: str, cache: Path) -> subprocess.Popen[str]:
    line = command(*arguments, cache=cache)
    line[1] = str(tree / "build_ggml.py")
    # ccache, if it is there, then finds what an earlier test of this file compiled.
    env = {**os.environ, "CCACHE_BASEDIR": str(tree.parent)}
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def objects(cache: Path) -> list[Path]:
    """The object files so far; os.walk, because CMake's scratch folders vanish under our feet."""
    return [Path(folder, name) for folder, _, names in os.walk(cache / "trees")
            for name in names if name.endswith((".c.o", ".cpp.o"))]


def wait_for_objects(cache: Path, process: subprocess.Popen[str], count: int) -> None:
    """Until the compilers have made that many object files."""
    deadline = time.monotonic() + 60
    while len(objects(cache)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_build_leaves_nothing_that_is_trusted(tmp_path: Path) -> None:
    cache, tree = live_cache(tmp_path / "cache"), checkout(tmp_path / "tree")
    process = started(tree, *QUICK, "--jobs", "1", cache=cache)
    wait_for_objects(cache, process, 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(cache.glob("builds/*"))
    assert not list(tree.glob("ggml_py/native/lib/*"))
    (mark,) = cache.glob("trees/*/BUILDING")
    # A cut object file that looks newer than its source: ninja alone would believe it.
    cut = objects(cache)[0]
    cut.write_bytes(cut.read_bytes()[:100])

    output, errors = started(tree, *QUICK, "--json", cache=cache).communicate()
    proof = json.loads(output.splitlines()[-1])
    assert not mark.exists()
    assert loads(tree / "ggml_py" / "native" / "lib" / proof["key"]) == "0.26.0", errors
    assert {"key", "label", "package", "version", "ggml_version", "llama_build", "source_sha256",
            "instrumentation", "pristine", "debug", "portable", "backends", "cmake",
            "built_at"} <= proof.keys()
    assert (proof["llama_build"], proof["backends"]) == (11549, ["cpu"])
    assert not list(cache.glob("**/.tmp-*"))


def test_ctrl_c_ends_in_one_line(tmp_path: Path) -> None:
    cache, tree = live_cache(tmp_path / "cache"), checkout(tmp_path / "tree")
    process = started(tree, *QUICK, cache=cache)
    wait_for_objects(cache, process, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("interrupted; no partial files are left\n")
    assert "Traceback" not in errors
    assert not list(cache.glob("builds/*"))


def test_two_builds_at_once_wait_for_each_other(tmp_path: Path) -> None:
    cache = live_cache(tmp_path / "cache")
    trees = [checkout(tmp_path / name) for name in ("tree", "two")]
    first = started(trees[0], *QUICK, cache=cache)
    wait_for_objects(cache, first, 1)
    second = started(trees[1], *QUICK, cache=cache)
    answers = [process.communicate() for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], answers
    assert "compiling:" in answers[0][1]
    assert f"waiting for process {first.pid}" in answers[1][1]
    assert "compiling" not in answers[1][1]
    assert len(list(cache.glob("builds/*"))) == 1
    assert [loads(Path(output.strip())) for output, _ in answers] == ["0.26.0", "0.26.0"]


def test_disk_full_while_compiling_then_room_again(tmp_path: Path) -> None:
    tree = checkout(tmp_path / "tree")
    with small_disk(tmp_path / "disk", 3) as disk:
        cache = live_cache(disk / "cache")
        process = started(tree, *QUICK, cache=cache)
        output, errors = process.communicate()
        said = error_of(subprocess.CompletedProcess([], process.returncode, output, errors))
        assert "disk full while" in said
        assert "--cache DIR" in said
        assert not list(cache.glob("builds/*"))
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        output, errors = started(tree, *QUICK, cache=cache).communicate()
        assert loads(Path(output.strip())) == "0.26.0", errors


def test_pristine_and_ours_side_by_side_then_an_older_one_pruned(tmp_path: Path) -> None:
    cache, tree = live_cache(tmp_path / "cache"), checkout(tmp_path / "tree")
    for arguments in ([], ["--pristine"]):
        _, errors = started(tree, *QUICK, *arguments, cache=cache).communicate()
        assert "installing" in errors
    lib = tree / "ggml_py" / "native" / "lib"
    before = {path.parent.name for path in lib.glob("*/build.json")}
    assert len(before) == 2
    with (tree / "ggml_py" / "native" / "sched_trace.h").open("a") as header:
        header.write("\n// another version of ours\n")
    output, _ = started(tree, *QUICK, cache=cache).communicate()
    after = {path.parent.name for path in lib.glob("*/build.json")}
    assert len(after) == 2
    assert len(before & after) == 1
    proof = json.loads((Path(output.strip()) / "build.json").read_text())
    assert not proof["pristine"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip wheel .` of this repository, with the default backends, and with what `record` needs."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder),
         "--config-settings", f"cache={seed(WARM)}", "--config-settings", "recorder=1", str(REPO)],
        check=True)
    (path,) = folder.iterdir()
    return path


def test_the_wheel_holds_one_build_its_licences_and_the_builder(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-cp310-abi3-{platform}.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    proofs = [name for name in names if name.endswith("/build.json")]
    assert len(proofs) == 1
    home = proofs[0].removesuffix("build.json")
    assert home.startswith("ggml_py/native/lib/0.26.0-")
    for name in ("_ggml.abi3.so", "libscipy_openblas.so", "enums.py", "ops.py", "bindings.json",
                 "licenses/ggml-LICENSE", "licenses/ggml-AUTHORS", "licenses/OpenBLAS-LICENSE.txt"):
        assert home + name in names
    for name in ("build_ggml.py", "vendor/upstream.toml", "vendor/ops_math.toml",
                 "vendor/bindgen.py", "vendor/edit.py"):
        assert f"ggml_py/_build/{name}" in names
    assert "ggml_py/native/CMakeLists.txt" in names
    page = [path.name for path in (REPO / "ggml_py" / "export" / "page").glob("*.*")]
    assert len(page) > 10 and {f"ggml_py/export/page/{name}" for name in page} <= set(names)
    assert not any("__pycache__" in name for name in names)


def test_the_wheel_runs_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel],
        check=True)
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(site), "HOME": str(tmp_path)}
    (proof,) = site.glob("ggml_py/native/lib/*/build.json")
    assert loads(proof.parent) == "0.26.0"
    linked = subprocess.run(["ldd", str(proof.parent / "_ggml.abi3.so")], capture_output=True,
                            text=True, check=False).stdout
    assert "not found" not in linked
    assert str(REPO) not in linked
    code = ("import ggml_py; print([d.name for d in ggml_py.devices()], ggml_py.__file__, "
            "ggml_py.load_profile('metal'))")
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "BLAS" in done.stdout
    assert "CPU" in done.stdout
    assert str(site) in done.stdout
    assert "<CardProfile m3max: Apple M3 Max>" in done.stdout
    listed = subprocess.run(
        [sys.executable, str(site / "ggml_py" / "_build" / "build_ggml.py"), "--list"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{proof.parent.name} " in listed.stdout, listed.stderr


# Without a network, where this user may make one that has nothing in it.
ALONE = ("unshare", "-rn")
ALONE = ALONE if subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0 else ()


def test_nothing_is_fetched_once_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """Nor built: in a new home, without a compiler and without a network."""
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel],
        check=True)
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(site), "HOME": str(tmp_path / "home")}

    def ran(*words: str) -> str:
        unshare = [shutil.which(ALONE[0]), *ALONE[1:]] if ALONE else []
        done = subprocess.run([*unshare, sys.executable, *words], env=environment, cwd=tmp_path,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    if ALONE:
        assert ran("-c", "import socket; print(len(socket.if_nameindex()))") == "1\n"
    assert re.search(r"Why is ffn_out-\d+ .*on .*16 tokens: ", ran("-m", "ggml_py", "demo"), re.S)
    builder = str(site / "ggml_py" / "_build" / "build_ggml.py")
    for what, library in (("recorder", "libggml_py_record.so"), ("simulator", "libggml_py_sim.so")):
        for path in (site / "ggml_py" / "native" / "lib").rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)  # as for a user of root's packages
        folder = Path(ran(builder, f"--{what}", "--no-build").strip())
        assert folder.is_relative_to(tmp_path / "home") and (folder / library).is_file()


def test_an_sdist_makes_the_same_build_without_git(wheel: Path, tmp_path: Path) -> None:
    """Its build has the same key as a build of the repository."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text("#!/bin/sh\necho git was asked >&2; exit 1\n")
    (programs / "git").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], cwd=REPO,
        env=environment, check=True)
    (sdist,) = tmp_path.glob("ggml_xray-*.tar.gz")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation",
         "--no-index", "-w", str(tmp_path), "--config-settings", f"cache={WARM}", str(sdist)],
        env=environment, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "found 0.26.0-" in printed and "compiling" not in printed
    assert "git was asked" not in printed


def test_an_installed_builder_finds_the_build_that_pip_made(wheel: Path, tmp_path: Path) -> None:
    """From a wheel or from a checkout, the same sources give the same key."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    builder = str(site / "ggml_py" / "_build" / "build_ggml.py")
    done = subprocess.run([sys.executable, builder, "--cache", str(WARM)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "found 0.26.0-" in done.stderr
    assert len(list((site / "ggml_py" / "native" / "lib").glob("*/build.json"))) == 1


def test_a_second_wheel_is_made_from_the_cache(wheel: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", str(tmp_path),
         "--config-settings", f"cache={WARM}", str(REPO)],
        capture_output=True, text=True, check=True)
    printed = done.stdout + done.stderr
    assert "found 0.26.0-" in printed and "compiling" not in printed


def test_pip_shows_the_error_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path),
         "--config-settings", "backend=tpu", str(REPO)],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 1
    assert "error: unknown backend 'tpu'; known: cpu, blas" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr

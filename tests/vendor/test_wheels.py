"""Wheels for other machines: zig's compilers, and the libraries inside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from vendor import fetch, pep517, recorder, releases, wheels, zig
from vendor.identity import Options
from vendor.report import BuildError

from ..support.build_support import pin_of, small_sdist


@pytest.fixture
def fake_zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ziglang whose zig prints its arguments, and makes the file that `-o` names."""
    home = tmp_path / "ziglang"
    for name in ("libcxx/src/a.cpp", "libcxxabi/src/b.cpp", "libunwind/src/c.cpp",
                 "libcxxabi/src/cxa_noexception.cpp", "libcxx/LICENSE.TXT"):
        path = home / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a licence")
    (home / "__init__.py").touch()
    zig_program = home / "zig"
    zig_program.write_text(
        '#!/bin/sh\necho "$@" | tee -a "$(dirname "$0")/said"\n'
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && touch "$2"; shift; done; exit 0\n')
    zig_program.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    return home


def said_by(program: str, *words: str) -> list[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, check=True,
                          ).stdout.split()


def test_the_compilers_link_one_shared_libcxx(fake_zig: Path, tmp_path: Path) -> None:
    made = zig.compilers("aarch64", tmp_path / "cache")
    cxx = made.environment["CXX"]
    first = ["c++", "-target", f"aarch64-linux-gnu.{zig.GLIBC}", "-fno-sanitize=undefined"]
    assert said_by(cxx, "-c", "a b.cpp") == [*first, "-c", "a", "b.cpp"]
    linked = said_by(cxx, "-shared", "x.o")
    assert linked[:6] == [*first, "-shared", "x.o"]
    unwinder = str(made.folder / "libgcc_s.so.1")
    assert linked[6:] == ["-s", unwinder, "-nostdlib++", str(made.runtime / zig.RUNTIME)]
    static = said_by(cxx, "-shared", "x.o", "-static-libstdc++", "-static-libgcc",
                     "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic-functions")
    assert static == [*first, "-shared", "x.o", "-Wl,-Bsymbolic", "-s", unwinder]
    assert "-nostdlib++" not in said_by(made.environment["CC"], "-shared", "x.o")
    assert sorted(path.name for path in made.runtime.iterdir()) == [
        "libc++-LICENSE.TXT", zig.RUNTIME]
    compiled = (fake_zig / "said").read_text()
    assert "a.cpp" in compiled and "b.cpp" in compiled
    assert "c.cpp" not in compiled and "noexception" not in compiled
    assert "CMAKE_SYSTEM_PROCESSOR aarch64" in Path(
        made.environment["CMAKE_TOOLCHAIN_FILE"]).read_text()
    before = (fake_zig / "said").read_text()
    assert zig.compilers("aarch64", tmp_path / "cache") == made
    assert (fake_zig / "said").read_text() == before


def test_a_libcxx_that_does_not_compile_leaves_nothing(fake_zig: Path, tmp_path: Path) -> None:
    (fake_zig / "zig").write_text("#!/bin/sh\necho no such header >&2; exit 3\n")
    with pytest.raises(BuildError, match="no such header"):
        zig.compilers("x86_64", tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("compilers/*/runtime"))


def test_without_zig_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert wheels.main(["--machine", "x86_64", "--out", str(tmp_path), "--cache",
                        str(tmp_path)]) == 1
    assert "python -m pip install ziglang" in capsys.readouterr().err


def test_other_compilers_bring_no_runtime(tmp_path: Path) -> None:
    assert list(zig.runtime_of("/usr/bin/c++").glob("*")) == []


def test_openblas_is_that_of_the_machine_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-aarch64")
    assert "aarch64" in releases.openblas().file
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-riscv64")
    with pytest.raises(BuildError, match="no OpenBLAS is pinned for linux-riscv64"):
        releases.openblas()


@pytest.mark.parametrize("simulator", [False, True])
def test_what_a_wheel_brings_is_found_before_anything_is_built(
    simulator: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Into the cache it is copied, because the wheel's folder may be read-only."""
    native, options = tmp_path / "native", Options(cache=tmp_path / "cache")
    with pytest.raises(BuildError, match=r"for ggml 0\.26\.0 is not built"):
        recorder.build(options, may_build=False, simulator=simulator)
    monkeypatch.setattr(recorder, "made_of", lambda simulator: [])
    monkeypatch.setattr(recorder, "NATIVE", native)
    monkeypatch.setattr(recorder.toolchain, "find_tools", lambda: pytest.fail("it is built"))
    (kind, other) = ("recorders", "simulators")[:: -1 if simulator else 1]
    digest = recorder.hashlib.sha256(recorder.json.dumps(
        [releases.default().sha256, []]).encode()).hexdigest()[:8]
    brought = native / "lib" / kind / f"0.26.0-{digest}"
    brought.mkdir(parents=True)
    (brought / recorder.PROOF).write_text(json.dumps({"key": "x"}))
    (brought / "lib.so").write_bytes(b"ELF")
    found = recorder.build(options, may_build=False, simulator=simulator)
    assert found == options.cache / kind / brought.name
    assert (found / "lib.so").read_bytes() == b"ELF"
    assert not (options.cache / other).exists()
    assert recorder.build(options, simulator=simulator) == found


def test_settings_say_what_a_wheel_brings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = tmp_path / "builds" / "0.26.0-abc"

    def made(options: Options, simulator: bool) -> Path:
        assert options.defines == () and options.cache == tmp_path
        return tmp_path / ("simulators" if simulator else "recorders") / "0.26.0-r"

    monkeypatch.setattr(recorder, "build", made)
    monkeypatch.setattr("build_ggml.llama_for", lambda folder, options: tmp_path / "l")
    asked = {"cache": str(tmp_path), "llama": "1", "recorder": "1", "D": "A=1"}
    with pep517._with(asked):
        assert pep517.brought(built) == {
            "0.26.0-abc/llama": tmp_path / "l",
            "recorders/0.26.0-r": tmp_path / "recorders" / "0.26.0-r",
            "simulators/0.26.0-r": tmp_path / "simulators" / "0.26.0-r",
        }
    with pep517._with({"cache": str(tmp_path)}):
        assert pep517.brought(built) == {}


def test_sources_of_ones_own_need_no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = small_sdist({"small-1.0/llama.cpp/ggml/a.c": b"int a;"})
    pin, cache, own = pin_of(content), tmp_path / "cache", tmp_path / "own"
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple/")
    monkeypatch.setenv(fetch.SOURCES, str(own))
    with pytest.raises(BuildError, match=r"GGML_PY_SOURCES=.*own is not a folder: give the one"):
        fetch.download(pin, cache)
    own.mkdir()
    assert not fetch.downloaded(pin, cache)
    with pytest.raises(BuildError, match=r"cannot be reached.*GGML_PY_SOURCES"):
        fetch.download(pin, cache)
    (own / pin.file).write_bytes(content)
    assert fetch.downloaded(pin, cache)
    assert fetch.download(pin, cache) == own / pin.file
    (own / pin.file).write_bytes(b"damaged")
    with pytest.raises(BuildError, match=r"hash mismatch: .*own.*put the pinned file there"):
        fetch.download(pin, cache)
    assert (own / pin.file).read_bytes() == b"damaged"  # it is the user's

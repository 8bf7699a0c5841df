"""How a build finds the CUDA toolkit: against toolkits made of a script and empty files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import build_ggml
import ggml_py as ggml
from ggml_py import errors
from ggml_py.boundary import ffi as _ffi
from vendor import cuda, identity, pep517
from vendor.report import BuildError

from ..support.build_support import error_of, run

NAMES = ("CUDACXX", "CUDA_PATH", "CUDA_HOME", "CUDAToolkit_ROOT")


def made(root: Path, release: str = "13.0", cublas: bool = False) -> Path:
    """A toolkit as far as the build can tell; returns its nvcc."""
    nvcc = root / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'release {release}, V{release}.1'\necho '#$ TOP={root}'\n")
    nvcc.chmod(0o755)
    (root / "include").mkdir()
    if cublas:
        (root / "include" / "cublas_v2.h").touch()
    return nvcc


def package(site: Path, folder: str, major: int) -> Path:
    """NVIDIA's cuBLAS package in a site-packages folder."""
    home = site / "nvidia" / folder
    for name in ("include/cublas_v2.h", f"lib/libcublas.so.{major}"):
        (home / name).parent.mkdir(parents=True)
        (home / name).touch()
    return home


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without CUDA, without a driver, with this one site-packages folder."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(cuda, "USUAL", ())
    monkeypatch.setattr(cuda, "driver", lambda: None)
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(cuda, "_site_folders", lambda: [folder])
    return folder


def options(*arguments: str) -> identity.Options:
    return build_ggml.options_of(build_ggml.parser().parse_args(["--backend", "cuda", *arguments]))


def test_without_nvcc_it_says_where_it_looked(site: Path) -> None:
    with pytest.raises(BuildError, match=r"needs nvcc, which was not found .*CUDA_PATH"):
        identity.cmake_flags(options())


def test_a_compiler_that_is_named_and_not_there() -> None:
    text = error_of(run("--backend", "cuda", env={"CUDACXX": "/no/such/nvcc"}))
    assert "CUDACXX=/no/such/nvcc is not a program" in text


def test_a_compiler_that_is_not_nvcc(site: Path) -> None:
    with pytest.raises(BuildError, match="/bin/true does not answer nvcc --version"):
        cuda.find({"CMAKE_CUDA_COMPILER": "/bin/true"})


@pytest.mark.parametrize(("release", "pip"), [("13.0", "nvidia-cublas==13.*"),
                                              ("12.4", "nvidia-cublas-cu12==12.*")])
def test_without_cublas_it_says_what_to_install(site: Path, tmp_path, release, pip) -> None:
    nvcc = made(tmp_path / "cuda", release)
    with pytest.raises(BuildError) as caught:
        cuda.find({"CMAKE_CUDA_COMPILER": str(nvcc)})
    assert f"-m pip install '{pip}'" in str(caught.value)
    assert f"neither in {tmp_path / 'cuda'} nor in {site / 'nvidia'}" in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_toolkit_is_found_by_each_variable(site: Path, tmp_path, monkeypatch, name) -> None:
    nvcc = made(tmp_path / "cuda", cublas=True)
    monkeypatch.setenv(name, str(nvcc if name == "CUDACXX" else tmp_path / "cuda"))
    assert cuda.find({}) == cuda.Toolkit(nvcc, tmp_path / "cuda", "13.0", None)


def test_a_wrapper_on_the_path_is_seen_through(site: Path, tmp_path, monkeypatch) -> None:
    nvcc = made(tmp_path / "cuda", cublas=True)
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {nvcc} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent))
    assert cuda.find({}).nvcc == nvcc


@pytest.mark.parametrize(("release", "folder", "rpath"), [
    ("13.0", "cu13", "nvidia/cu13/lib"),
    ("12.4", "cublas", "nvidia/cublas/lib;$ORIGIN/../../../../nvidia/cuda_runtime/lib"),
])
def test_cublas_from_the_package(site: Path, tmp_path, release, folder, rpath) -> None:
    major = int(release[:2])
    home = package(site, folder, major)
    nvcc = made(tmp_path / "cuda", release)
    flags = identity.cmake_flags(
        options(f"-DCMAKE_CUDA_COMPILER={nvcc}", "-DCMAKE_CUDA_FLAGS=-O1"))
    assert flags["CUDA_cublas_LIBRARY"] == f"{home}/lib/libcublas.so.{major}"
    assert flags["CMAKE_CUDA_FLAGS"] == f"-O1 -isystem {home}/include"
    assert flags["GGML_PY_CUDA_RPATH"] == f"$ORIGIN/../../../../{rpath}"
    assert flags["GGML_CUDA_NO_VMM"] == "ON" and "CUDA_cuda_driver_LIBRARY" not in flags


@pytest.mark.parametrize(("given", "expected"), [((), "ON"), (("-DGGML_CUDA_GRAPHS=OFF",), "OFF")])
def test_cuda_graphs_are_used_as_by_llama_cpp(site: Path, tmp_path, given, expected) -> None:
    """ggml alone has them off by default; its file says "llama.cpp only"."""
    nvcc = made(tmp_path / "cuda", cublas=True)
    flags = identity.cmake_flags(options(f"-DCMAKE_CUDA_COMPILER={nvcc}", *given))
    assert flags["GGML_CUDA_GRAPHS"] == expected


@pytest.mark.parametrize(("asked", "gpus", "expected"), [
    ([], None, cuda.PORTABLE_ARCHITECTURE),
    ([], ("86", "120"), "86-real;120-real"),
    (["--portable"], ("86",), cuda.PORTABLE_ARCHITECTURE),
    (["--cuda-arch", "80,90-virtual"], ("86",), "80;90-virtual"),
    (["--cuda-arch", "native"], ("86",), "86-real"),
    (["-DCMAKE_CUDA_ARCHITECTURES=75"], ("86",), "75"),
])
def test_architectures(site: Path, tmp_path, monkeypatch, asked, gpus, expected) -> None:
    library = tmp_path / "libcuda.so.1"
    monkeypatch.setattr(cuda, "driver", lambda: gpus and (library, gpus))
    nvcc = made(tmp_path / "cuda", cublas=True)
    flags = identity.cmake_flags(options(f"-DCMAKE_CUDA_COMPILER={nvcc}", *asked))
    assert flags["CMAKE_CUDA_ARCHITECTURES"] == expected
    links_driver = bool(gpus) and "--portable" not in asked
    assert flags["GGML_CUDA_NO_VMM"] == ("OFF" if links_driver else "ON")
    assert flags.get("CUDA_cuda_driver_LIBRARY") == (str(library) if links_driver else None)


@pytest.mark.parametrize(("asked", "says"), [("hopper", "is not a CUDA architecture: give numbers"),
                                             ("native", "this machine has no NVIDIA GPU")])
def test_architectures_that_cannot_be(site: Path, asked: str, says: str) -> None:
    with pytest.raises(BuildError, match=says):
        cuda.architectures(asked, portable=False)


def test_the_key_tells_architectures_apart(site: Path, tmp_path) -> None:
    nvcc = made(tmp_path / "cuda", cublas=True)
    keys = {identity.key_of(chosen, identity.upstream_of(chosen))
            for arch in ("80", "90") if (chosen := options(
                f"-DCMAKE_CUDA_COMPILER={nvcc}", "--cuda-arch", arch))}
    assert len(keys) == 2


def test_pip_can_name_the_architecture() -> None:
    assert pep517.argv_of({"cuda-arch": "90"}) == ["--cuda-arch=90"]


@pytest.mark.parametrize(("missing", "says"), [
    ("libcublas.so.13", "pip install 'nvidia-cublas==13.*'"),
    ("libcublasLt.so.13", "pip install 'nvidia-cublas==13.*'"),
    ("libcudart.so.12", "pip install 'nvidia-cuda-runtime-cu12==12.*'"),
    ("libgcc_s.so.1", "damaged; rebuild it"),
])
def test_a_build_whose_cuda_is_gone_says_what_to_install(monkeypatch, missing, says) -> None:
    def load(name: str, path: Path) -> None:
        raise ImportError(f"{missing}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(_ffi, "load", load)
    with pytest.raises(errors.NotBuiltError) as caught:
        _ffi._open(_ffi.BUILD)
    assert f"does not load: {missing}: cannot open" in str(caught.value)
    assert says in str(caught.value)


needs_cuda = pytest.mark.skipif(
    "cuda" not in _ffi.BUILD["backends"], reason="this build has no CUDA: --backend cuda makes one")


@needs_cuda
def test_a_cuda_build_loads_and_says_what_it_found() -> None:
    cuda_ = next(r for r in ggml.registries() if r.name == "CUDA")
    done = subprocess.run([sys.executable, "-m", "ggml_py", "devices"], capture_output=True,
                          text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    if cuda_.devices:
        assert cuda_.devices[0].name in done.stdout
    else:
        assert "CUDA: no device here (ggml_cuda_init: failed to initialize CUDA: " in done.stdout
    assert ggml.devices()[-1].name == "CPU"


@needs_cuda
def test_a_cuda_build_links_the_driver_only_where_there_is_one() -> None:
    library = next(_ffi.BUILD["folder"].glob("libggml-cuda.so*"))
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True,
                             check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert any(name.startswith("libcublas.so.") for name in needed)
    assert any(name.startswith("libcudart.so.") for name in needed)
    links = _ffi.BUILD["cmake"]["GGML_CUDA_NO_VMM"] == "OFF"
    assert ("libcuda.so.1" in needed) == links
    major = next(name for name in needed if name.startswith("libcublas.so.")).rpartition(".")[2]
    path = re.search(r"RUNPATH.*\[(.*)\]", dynamic)[1].split(":")
    assert path[0] == "$ORIGIN"
    if int(major) >= 13:
        assert f"$ORIGIN/../../../../nvidia/cu{major}/lib" in path
    # The wheel carries nothing of CUDA.
    assert not [p.name for p in _ffi.BUILD["folder"].glob("libcu*")]

"""build_ggml.py's command line, keys and errors; each error provoked for real, nothing compiled."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import build_ggml
from vendor import cards, identity, releases, toolchain
from vendor.identity import Options, key_of, upstream_of
from vendor.instrument import EDITS
from vendor.report import BuildError

from ..support.build_support import REPO, WARM, error_of, run, seed, small_disk

pytestmark = pytest.mark.thorough("long", quick=34)

NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple/"}


@pytest.fixture(scope="module")
def ggml() -> Path:
    """The pinned release's ggml folder, unpacked."""
    return identity.unpacked(releases.default(), seed(WARM), whole=False) / "ggml"


@pytest.fixture
def path_with(tmp_path: Path):
    """A PATH that has only the programs named."""
    def make(*names: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).symlink_to(str(shutil.which(name)))
        return {"PATH": str(folder), "CC": "", "CXX": ""}
    return make


def copied(ggml: Path, target: Path) -> Path:
    """A checkout to spoil: the release's ggml folder in `target`."""
    shutil.copytree(ggml, target)
    return target


# ---- the command line


def test_list_names_releases_and_marks_the_pin(tmp_path: Path) -> None:
    done = run("--list", cache=tmp_path)
    assert done.returncode == 0
    assert "* 0.26.0" in done.stdout
    for release in releases.releases():
        assert f"{release.package} {release.version}" in done.stdout


def test_list_as_json(tmp_path: Path) -> None:
    answer = json.loads(run("--list", "--json", cache=tmp_path).stdout)
    assert answer["default"] == "0.26.0"
    assert len(answer["releases"]) == 15
    assert isinstance(answer["builds"], list)


@pytest.mark.parametrize("arguments", [["--nonsense"], ["-D", "novalue"], ["--jobs", "many"]])
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_cpu_is_always_among_the_backends() -> None:
    options = build_ggml.options_of(build_ggml.parser().parse_args(["--backend", "vulkan, RPC"]))
    assert options.backend == ("cpu", "vulkan", "rpc")


# ---- keys


def key(**changes: object) -> str:
    options = dataclasses.replace(Options(backend=("cpu", "blas", "rpc")), **changes)
    return identity.key_of(options, identity.upstream_of(options))


def test_a_key_changes_with_all_that_changes_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        key(), key(upstream="0.21.0"), key(upstream="0.9.4"), key(upstream="0.2.4"),
        key(pristine=True), key(debug=True), key(portable=True), key(backend=("cpu",)),
        key(sanitize="address"), key(sanitize="undefined"),
        key(defines=(("GGML_LTO", "ON"),)),
    }
    monkeypatch.setenv("CFLAGS", "-Og")
    keys.add(key())
    monkeypatch.setattr(toolchain, "cpu_identity", lambda: "another processor")
    keys.add(key())
    assert len(keys) == 13


def test_a_key_does_not_change_with_what_does_not(tmp_path: Path) -> None:
    assert key() == key(jobs=1) == key(cache=tmp_path) == key(upstream="b11549")


def test_a_portable_build_is_the_same_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(portable=True)
    monkeypatch.setattr(toolchain, "cpu_identity", lambda: "another processor")
    assert key(portable=True) == before


def test_labels() -> None:
    assert key(pristine=True, debug=True).startswith("0.26.0-pristine-debug-")
    assert key(sanitize="address,undefined").startswith("0.26.0-sanitize-")
    assert key(upstream="0.2.4").startswith("0.9.4.p0.2.4-")


@pytest.mark.parametrize(("given", "said"), [
    ("adress", "adress: expected address, undefined, thread"),
    ("address,thread", "address and thread exclude each other"),
])
def test_a_wrong_sanitizer_is_a_usage_error(given: str, said: str) -> None:
    done = run("--sanitize", given)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_sanitized_build_is_compiled_for_reading_reports() -> None:
    options = build_ggml.options_of(
        build_ggml.parser().parse_args(["--sanitize", "address, undefined"]))
    flags = identity.cmake_flags(options)["CMAKE_CXX_FLAGS_RELWITHDEBINFO"]
    assert flags == (
        "-O1 -g -fno-omit-frame-pointer -DNDEBUG -fsanitize=address,undefined "
        "-fsanitize-recover=address")


def test_a_free_threaded_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vendor import pep517

    monkeypatch.setattr(sys, "abiflags", "t", raising=False)
    with pytest.raises(BuildError, match=r"free-threaded Python: .* stable ABI"):
        build_ggml.build(Options())
    with pytest.raises(SystemExit):
        pep517.get_requires_for_build_wheel({})


def test_a_checkout_is_known_by_its_content(ggml: Path, tmp_path: Path) -> None:
    checkout = copied(ggml, tmp_path / "llama.cpp" / "ggml")
    by_llama, by_ggml = key(source=checkout.parent), key(source=checkout)
    assert by_llama == by_ggml
    assert by_llama.startswith("0.26.0-source-")
    (checkout / "src" / "ggml.c").write_text("int changed;")
    assert key(source=checkout) != by_ggml


# ---- errors


def test_unknown_backend(tmp_path: Path) -> None:
    text = error_of(run("--backend", "cpu,tpu", cache=tmp_path))
    assert "unknown backend 'tpu'" in text
    for name in ("cpu", "blas", "cuda", "metal", "vulkan", "rpc", "hip", "sycl", "webgpu"):
        assert name in text


def test_unknown_release(tmp_path: Path) -> None:
    text = error_of(run("--upstream", "0.8.15", cache=tmp_path))
    assert "unknown upstream release '0.8.15'" in text
    assert "0.21.0 (b10566)" in text


def test_source_and_upstream_exclude_each_other(tmp_path: Path) -> None:
    assert "exclude each other" in error_of(run("--source", ".", "--upstream", "0.21.0"))


def test_a_source_without_ggml(tmp_path: Path) -> None:
    text = error_of(run("--source", tmp_path, cache=tmp_path / "cache"))
    assert f"--source {tmp_path} has no ggml" in text


def test_no_compiler(path_with, tmp_path: Path) -> None:
    text = error_of(run(cache=tmp_path, env=path_with("cmake", "ninja")))
    assert "no C compiler (none of cc, gcc, clang is on the PATH)" in text
    assert "build-essential" in text


def test_no_cxx_compiler(path_with, tmp_path: Path) -> None:
    text = error_of(run(cache=tmp_path, env=path_with("cmake", "ninja", "cc")))
    assert "no C++ compiler" in text


def test_a_compiler_that_is_asked_for_and_not_there(tmp_path: Path) -> None:
    text = error_of(run(cache=tmp_path, env={"CC": "no-such-cc"}))
    assert "CC=no-such-cc is not a program" in text


def test_no_cmake(path_with, tmp_path: Path) -> None:
    if shutil.which("cmake", path=str(Path(sys.executable).parent)):
        pytest.skip("this Python has a cmake beside it")
    text = error_of(run(cache=tmp_path, env=path_with("cc", "c++", "ninja")))
    assert "no cmake" in text
    assert "pip install cmake ninja" in text


def test_no_python_headers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path / "nowhere"))
    assert build_ggml.main(["--cache", str(tmp_path / "cache")]) == 1
    text = capsys.readouterr().err
    assert f"Python.h is not in {tmp_path / 'nowhere'}" in text
    assert "python3-dev" in text


@pytest.mark.parametrize(("backend", "says"), [
    ("vulkan", "backend vulkan needs glslc"),
    ("hip", "backend hip needs hipconfig"),
    ("cann", "backend cann needs CANN_INSTALL_DIR or ASCEND_TOOLKIT_HOME"),
    ("metal" if sys.platform != "darwin" else "virtgpu", "can only be built on"),
])
def test_a_missing_toolkit_is_said_before_anything_long(
    backend: str, says: str, path_with, tmp_path: Path
) -> None:
    env = path_with("cmake", "ninja", "cc", "c++")
    env |= dict.fromkeys(toolchain.BACKENDS[backend].variables, "")
    text = error_of(run("--backend", f"cpu,{backend}", cache=tmp_path, env=env))
    assert says in text
    assert not (tmp_path / "downloads").exists()


def test_a_toolkit_that_a_variable_names_is_believed(path_with, monkeypatch) -> None:
    monkeypatch.setenv("PATH", path_with()["PATH"])
    toolchain.check_toolkits(("sycl",), {"ONEAPI_ROOT": "/somewhere"})
    with pytest.raises(BuildError, match="needs icpx"):
        toolchain.check_toolkits(("sycl",), {})


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize(("known", "says"), [("VkLayerSettingEXT", ""), ("", "revision 239")])
def test_vulkan_headers_that_are_too_old(
    ggml: Path, tmp_path: Path, known: str, says: str
) -> None:
    header = tmp_path / "vulkan" / "vulkan_core.h"
    header.parent.mkdir()
    header.write_text(f"#define VK_HEADER_VERSION 239\nstruct {known} {{}};\n")
    defines = {"Vulkan_INCLUDE_DIR": str(tmp_path)}
    if not says:
        toolchain.check_vulkan_headers(ggml, defines)
        return
    with pytest.raises(BuildError, match=f"1[.]3[.]272 or newer, but {header} is {says}: install"):
        toolchain.check_vulkan_headers(ggml, defines)


def test_a_backend_that_the_release_does_not_have(ggml: Path, tmp_path: Path) -> None:
    checkout = copied(ggml, tmp_path / "ggml")
    shutil.rmtree(checkout / "src" / "ggml-rpc")
    text = error_of(run("--source", checkout, "--backend", "cpu,rpc", cache=tmp_path / "cache"))
    assert "has no backend rpc; it has: blas, cann, cpu" in text


def test_no_index_and_nothing_cached(tmp_path: Path) -> None:
    text = error_of(run(cache=tmp_path, env=NO_INDEX))
    assert "xllamacpp 2026.10.11549 is not cached" in text
    assert "PIP_INDEX_URL" in text


def test_hash_mismatch_builds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "downloads" / releases.default().file
    file.parent.mkdir()
    file.write_bytes(b"not the release")
    text = error_of(run(cache=tmp_path, env=NO_INDEX))
    assert "hash mismatch" in text
    assert Path(f"{file}.bad").read_bytes() == b"not the release"
    assert not (tmp_path / "sources").exists()
    assert not (tmp_path / "trees").exists()


@pytest.mark.thorough("builds")
@pytest.mark.parametrize("times", [0, 2])
def test_an_anchor_that_is_not_there_once(ggml: Path, tmp_path: Path, times: int) -> None:
    checkout = copied(ggml, tmp_path / "ggml")
    source = checkout / "src" / "ggml-backend.cpp"
    anchor = "    ggml_hash_set_free(&sched->hash_set);\n"
    text = source.read_text()
    assert text.count(anchor) == 1
    source.write_text(text.replace(anchor, anchor * times))
    said = error_of(run("--source", checkout, "--backend", "cpu", cache=tmp_path / "cache"))
    assert f"anchor 'scheduler freed' was found {times} times" in said
    assert "--pristine" in said
    assert not (tmp_path / "cache" / "builds").exists()


@pytest.mark.thorough("builds")
def test_headers_that_bindgen_cannot_read(ggml: Path, tmp_path: Path) -> None:
    checkout = copied(ggml, tmp_path / "ggml")
    (checkout / "include" / "ggml.h").write_text("#include <there-is-no-such-header.h>\n")
    done = run("--source", checkout, "--backend", "cpu", cache=tmp_path / "cache")
    assert "bindgen cannot read the headers" in error_of(done)
    assert "there-is-no-such-header.h" in done.stderr


@pytest.mark.thorough("builds")
def test_a_compiler_error_shows_its_first_lines_and_the_log(ggml: Path, tmp_path: Path) -> None:
    checkout = copied(ggml, tmp_path / "ggml")
    src = checkout / "src"
    for path in src.glob("**/*.c*"):    # all, so that the first one compiled fails
        if str(path.relative_to(src)) not in EDITS:
            path.write_text("int broken( {}\n")
    arguments = ("--source", checkout, "--backend", "cpu", "--jobs", "1")
    done = run(*arguments, cache=tmp_path / "cache")
    assert error_of(done).startswith("error: compiling failed (exit 1); first errors:")
    assert re.search(r"    \S+/ggml/src/\S+:1:\d+: error: ", done.stderr)
    log = Path(done.stderr.split("log: ")[1].strip())
    assert "int broken( {}" in log.read_text()
    assert not list((tmp_path / "cache").glob("builds/*"))


@pytest.mark.thorough("builds")
def test_a_cmake_error_shows_what_cmake_said(ggml: Path, tmp_path: Path) -> None:
    checkout = copied(ggml, tmp_path / "ggml")
    with (checkout / "src" / "CMakeLists.txt").open("a") as file:
        file.write('message(FATAL_ERROR "the reason")\n')
    done = run("--source", checkout, "--backend", "cpu", cache=tmp_path / "cache")
    assert "configuring failed" in error_of(done)
    assert "the reason" in done.stderr


def test_disk_full_while_unpacking_the_release(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 60) as disk:
        shutil.copy2(seed(WARM) / "downloads" / releases.default().file, tmp_path)
        (disk / "downloads").mkdir()
        shutil.copy2(tmp_path / releases.default().file, disk / "downloads")
        text = error_of(run("--backend", "cpu", cache=disk))
        assert "disk full while unpacking ggml 0.26.0" in text
        assert list((disk / "sources").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        text = error_of(run(cache=disk / "cache"))
        assert "not writable while making the cache folder" in text
        assert "--cache DIR" in text


def test_a_package_that_cannot_be_written(tmp_path: Path) -> None:
    built = tmp_path / "0.26.0-00000000"
    built.mkdir()
    (built / "build.json").write_text(json.dumps({"configuration": "x", "built_at": "now"}))
    with small_disk(tmp_path / "disk", 1) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(BuildError, match="not writable while putting the build beside"):
            build_ggml.place(built, disk / "lib")


# ---- placing


def finished(folder: Path, name: str, configuration: str, built_at: str) -> Path:
    (folder / name).mkdir(parents=True)
    proof = {"key": name, "label": "0.26.0", "configuration": configuration, "built_at": built_at}
    (folder / name / "build.json").write_text(json.dumps(proof))
    return folder / name


def test_placing_prunes_only_older_builds_of_the_same_configuration(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    finished(lib, "old", "same", "2026-01-01")
    finished(lib, "other", "different", "2026-01-01")
    (lib / "half").mkdir()          # no build.json: not ours to judge
    built = finished(tmp_path / "cache", "new", "same", "2026-02-01")
    assert build_ggml.place(built, lib) == lib / "new"
    assert {one.name for one in lib.iterdir()} == {"new", "other", "half", "lock"}
    assert [one["key"] for one in build_ggml.builds(lib)] == ["new", "other"]


def test_what_a_killed_copy_left_is_swept(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    (lib / ".tmp-new-123").mkdir(parents=True)
    build_ggml.place(finished(tmp_path / "cache", "new", "same", "2026-02-01"), lib)
    assert sorted(one.name for one in lib.iterdir()) == ["lock", "new"]


PLACING = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
import build_ggml
print("ready", flush=True)
sys.stdin.read()
build_ggml.place(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def test_processes_that_place_at_once_leave_each_others_copies_alone(tmp_path: Path) -> None:
    """Each sweeps away what a killed copy left, and a copy under way is none."""
    lib, built = tmp_path / "lib", []
    for name in ("one", "two"):
        built.append(finished(tmp_path / "cache", name, name, "2026-02-01"))
        for i in range(400):
            (built[-1] / f"part-{i}").write_bytes(bytes(20_000))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PLACING, str(REPO), str(folder), str(lib)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for folder in built * 3
    ]
    for process in started:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.close()
        process.stdin = None        # communicate() would flush it
    for process in started:
        said = process.communicate()[1]
        assert process.returncode == 0, said
    for folder in built:
        assert sorted(p.name for p in (lib / folder.name).iterdir()) == sorted(
            p.name for p in folder.iterdir())


def test_a_build_that_was_wanted_lately_is_not_pruned(tmp_path: Path) -> None:
    cache = tmp_path / "builds"
    for age, name in enumerate(("newest", "new", "old", "oldest", "wanted")):
        proof = finished(cache, name, "same", f"2026-01-0{5 - age}") / "build.json"
        os.utime(proof, (1000 - age, 1000 - age))
    os.utime(cache / "wanted" / "build.json")       # as build() does with one that it found
    build_ggml._prune(finished(cache, "ours", "same", "2026-02-01"), keep=3)
    assert {one.name for one in cache.iterdir()} == {"ours", "wanted", "newest", "new"}


def test_cards_are_chosen() -> None:
    parse = build_ggml.parser().parse_args
    every, none, one = (
        build_ggml.options_of(parse(given)) for given in ([], ["--cards=none"], ["--cards", "CUDA"])
    )
    assert set(every.cards) == set(cards.BACKENDS)
    assert (none.cards, one.cards) == ((), ("cuda",))
    assert len({key_of(options, upstream_of(options)) for options in (every, none, one)}) == 3
    done = run("--cards", "cuda,tpu")
    assert done.returncode == 2
    assert "tpu: expected none, or some of metal, vulkan, cuda, " in done.stderr


def test_config_settings_are_the_options() -> None:
    from vendor import pep517

    argv = pep517.argv_of({
        "backend": "cpu,vulkan", "--upstream": "0.21.0", "pristine": "true", "debug": "0",
        "sanitize": "address,undefined", "D": ["A=1", "B=2"]})
    assert argv == ["--backend=cpu,vulkan", "--upstream=0.21.0", "--pristine",
                    "--sanitize=address,undefined", "-DA=1", "-DB=2"]
    assert pep517.argv_of({"cards": ["cuda", "metal"]}) == ["--cards=cuda,metal"]
    assert pep517.argv_of({"llama": "1"}) == ["--llama"]
    with pytest.raises(BuildError, match=r"unknown config setting 'backends'; known: .*backend"):
        pep517.argv_of({"backends": "cpu"})


def test_nothing_is_required_from_the_index_when_the_build_is_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from vendor import pep517

    monkeypatch.chdir(REPO)
    settings = {"cache": str(tmp_path), "backend": "cpu"}
    needs = " ".join(pep517.get_requires_for_build_wheel(settings))
    assert "pycparser" in needs
    assert "pypi-simple" in needs
    options = Options(backend=("cpu",), cache=tmp_path)
    finished(tmp_path / "builds", identity.key_of(options, identity.upstream_of(options)), "x", "y")
    assert pep517.get_requires_for_build_wheel(settings) == []


def test_no_host_is_named_in_the_builds_files() -> None:
    """The index is pip's business: a company's mirror or an offline folder must do."""
    files = [REPO / "build_ggml.py", *(REPO / "vendor").iterdir()]
    for path in (one for one in files if one.is_file()):
        assert "pypi.org" not in path.read_text(), path

"""The maker of a kit for a machine with a GPU, what its parts share, and the page of results."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.models import load

from ..support import docs_ops

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "benchmarks" / "gpu"))
import beside  # noqa: E402
import make_kit  # noqa: E402
import part_conformance  # noqa: E402
import part_offload  # noqa: E402
import part_supports  # noqa: E402
import part_tests  # noqa: E402
import parts  # noqa: E402
import recipes  # noqa: E402
import record  # noqa: E402
import results_page  # noqa: E402

MIB = 1 << 20

# ---- the maker


def test_a_kit_that_is_too_large_is_an_error_with_the_sizes():
    files = {"wheels.tar.xz": {"bytes": 50 * MIB}, "programs.tar.xz": {"bytes": 5 * MIB}}
    assert make_kit.check_size(files) == 55 * MIB == make_kit.LIMIT
    files["kit.json"] = {"bytes": 1}
    with pytest.raises(make_kit.KitError, match=r"55\.0 MiB \(wheels\.tar\.xz 50\.0, programs"):
        make_kit.check_size(files)


@pytest.mark.parametrize("arch", ["9.0", "sm_90", "90,100", "", "native"])
def test_a_kit_is_for_one_architecture(tmp_path, arch):
    with pytest.raises(make_kit.KitError, match="expected one compute capability, such as 90"):
        make_kit.make(tmp_path / "kit", "cuda", arch, ["3.12"], tmp_path)


def test_a_kit_that_fails_leaves_the_one_before(tmp_path):
    old = tmp_path / "kit" / "kit.json"
    old.parent.mkdir()
    old.write_text("old")
    with pytest.raises(make_kit.KitError), make_kit.replacing(tmp_path / "kit") as new:
        (new / "kit.json").write_text("new")
        raise make_kit.KitError("no room")
    assert old.read_text() == "old" and list(tmp_path.iterdir()) == [tmp_path / "kit"]
    with make_kit.replacing(tmp_path / "kit") as new:
        (new / "kit.json").write_text("new")
    assert old.read_text() == "new" and list(tmp_path.iterdir()) == [tmp_path / "kit"]


def test_a_stored_wheel_has_the_same_files(tmp_path):
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/__init__.py", "x = 1\n" * 1000)
        entry = zipfile.ZipInfo("a/lib.so")
        entry.external_attr = 0o755 << 16
        out.writestr(entry, b"\x7fELF")
    make_kit.stored(wheel)
    with zipfile.ZipFile(wheel) as made:
        assert made.testzip() is None
        assert made.read("a/__init__.py").decode() == "x = 1\n" * 1000
        assert made.getinfo("a/lib.so").external_attr >> 16 == 0o755
        assert {i.compress_type for i in made.infolist()} == {zipfile.ZIP_STORED}


def test_archives_of_the_same_files_are_the_same(tmp_path):
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "one").write_text("1")
    (folder / "two").write_text("2")
    archives = [tmp_path / f"{n}.tar.xz" for n in range(2)]
    for archive in archives:
        make_kit.packed(archive, folder)
        (folder / "two").touch()
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        assert tar.getnames() == ["b/one", "two"]
    make_kit.packed(archives[1], folder, ["two", "gone"])
    with tarfile.open(archives[1]) as tar:
        assert tar.getnames() == ["two"]


def test_what_a_kit_says_of_this_build():
    """The versions that the loaded libraries need are there, so the check finds nothing here."""
    build = BUILD["folder"]
    needed = make_kit.symbols(build)
    assert set(needed) == {"GLIBC", "GLIBCXX"}
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in needed.values())
    assert make_kit._newest({"GLIBC": "2.9"}, {"GLIBC": "2.34"}) == {"GLIBC": "2.34"}
    assert make_kit.cuda_libraries(build) == []
    assert make_kit.arguments_of("none", "90", REPO) == ["--cache", str(REPO)]
    assert "90-real" in make_kit.arguments_of("cuda", "90", REPO)


# ---- the parts


def test_recipes_are_models(tmp_path):
    for name in ("7M-q4_0",):
        spec = recipes.RECIPES[name]
        recipes.write_recipe(tmp_path / "m.gguf", spec)
        with load(tmp_path / "m.gguf", n_threads=1) as model:
            assert model.hparams.n_layer == spec.n_layer
            logits = model.eval([1, 2, 3])
            assert 0.01 < float(abs(logits).max()) < 1e3
    assert recipes.RECIPES["8B-q4_k"].n_params > 7e9


def test_files_with_gpu_tests_are_found():
    found = {path.name for path in part_tests.files()}
    assert found == {"test_gpu.py", "test_models_gpu.py"}


def test_what_test_backend_ops_prints_is_counted():
    printed = (
        "Backend 1/2: CUDA0\n  ADD(type=f32,ne=[1,1]): \x1b[1;32mOK\x1b[0m\n"
        "  MUL(type=f16): not supported [CUDA0] \n"
        "[MUL_MAT] NMSE = 0.1 > 0.0005   MUL_MAT(type_a=q4_0): \x1b[1;31mFAIL\x1b[0m\n"
        "  CPY(type=f32): [CPY] NaN at index 0 FAIL\n  2/3 tests passed\n"
    )
    counts, failed = part_conformance.tested(printed)
    assert counts["ok"] == 1 and counts["not supported"] == 1
    assert counts["failed"] == len(failed) == 2
    assert failed[-1] == "CPY(type=f32): [CPY] NaN at index 0 FAIL"


def test_slices_cover_every_op_once():
    ops = {f"OP{i}": ["type=f32"] * (i + 1) for i in range(60)}
    ops["MUL_MAT"] = [f"type_a=q{i % 7},n=1" for i in range(2000)]
    made = list(part_conformance.slices(ops))
    small = [name for _title, o in made if "-p" not in o for name in o[1].split(",")]
    assert sorted(small) == sorted(set(ops) - {"MUL_MAT"})
    patterns = [o[3] for _title, o in made if "-p" in o]
    for params in ops["MUL_MAT"]:
        assert sum(bool(re.search(one, params)) for one in patterns) == 1


def test_a_ratio_is_decided_by_its_interval():
    assert beside.interval([1.1, 1.2, 1.3]) == (1.1, 1.3)
    row = {"what": "prompt", "model": "m", "ours": 2000.0, "theirs": 1900.0, "ratio": 1.05,
           "interval": [1.01, 1.1], "bar": 1.0, "verdict": "yes"}  # fmt: skip
    assert beside.line_of(row) == (
        "prompt of m: 2,000 tokens/s beside 1,900, ratio 1.050 (1.010-1.100), ≥ 1: yes"
    )


def test_a_card_is_made_of_the_devices_properties():
    gpu = {"name": "NVIDIA H200", "totalGlobalMem": 141 << 30, "major": 9, "minor": 0,
           "multiProcessorCount": 132, "sharedMemPerBlock": 49152, "warpSize": 32,
           "sharedMemPerBlockOptin": 232448, "integrated": 0}  # fmt: skip
    name, own = part_supports.properties(None, gpu)
    assert name == "h200" and ggml.load_profile(name, **own).memory == 141 << 30
    gpu["name"] = "NVIDIA GeForce RTX 4090"
    assert part_supports.properties(None, gpu)[0] == "rtx4090"
    gpu["name"] = "NVIDIA H100 80GB HBM3"
    assert part_supports.properties(None, gpu)[0] == "h100"


@pytest.mark.needs(release="default")
def test_supports_finds_an_answer_that_differs(monkeypatch):
    """The CPU's own record stands for the program's output."""
    answers = [("FLASH_ATTN_EXT", *row) for row in docs_ops.answers("cpu")["FLASH_ATTN_EXT"]]
    answers = [*answers[:600:20], ("NO_SUCH_OP", "a=1", True)]
    monkeypatch.setattr(part_supports, "cases", lambda doing, name: answers)
    card, other = ggml.load_profile("h100"), ggml.load_profile("s4000")
    with ggml.sim_device("kit-card", profile=card) as sim:
        found = part_supports.compared(None, ggml.device("CPU"), sim, card, other)
        here, same = part_supports.described(sim), part_supports.described(sim)
    assert found["program"]["equal"] == found["card"]["equal"] == found["card"]["cases"] == 30
    assert found["not_built"] == {"NO_SUCH_OP: no rule to build it": 1}
    assert found["card"]["different"] == []
    different = found["named card"]["different"]  # MUSA's host code has no flash attention
    assert len(different) == 30 - found["named card"]["equal"] > 0
    assert different[0]["there"] and not different[0]["here"] and "fattn" in different[0]["said"]
    assert here == same and here["alignment"] == 128 and here["offload MUL_MAT 32"]
    assert not here["offload MUL_MAT 31"] and here["alloc_size q4_0 544x3"] > 0
    flipped = [(*answers[0][:2], not answers[0][2])]
    monkeypatch.setattr(part_supports, "cases", lambda doing, name: flipped)
    with ggml.sim_device("kit-card", profile=card) as sim:
        found = part_supports.compared(None, ggml.device("CPU"), sim, card, card)
    assert found["program"]["equal"] == 0 and len(found["program"]["different"]) == 1


@pytest.mark.needs(release="default")
def test_plans_are_compared_without_the_names_of_devices(tmp_path):
    recipes.write_recipe(tmp_path / "m.gguf", recipes.RECIPES["7M-q4_0"])
    found = []
    for name, card in (("one", "h100"), ("two", "h100"), ("three", "m1")):
        with ggml.sim_device(name, profile=card):
            plans = part_offload.planned(tmp_path / "m.gguf", name, {"n_gpu_layers": 2})
            found.append([part_offload.shape(plan) for plan in plans])
    assert found[0] == found[1] != found[2]


# ---- the page


def result(name, **change):
    return {
        "format": record.FORMAT, "part": name, "status": "passed", "date": "2026-11-24T01:02:03",
        "commit": "c0ffee1234567", "kit": "0123", "build": "0.26.0-1", "dry_run": False,
        "device": {"name": "NVIDIA H100", "totalGlobalMem": 80 << 30, "n_gpus": 1, "cores": 16,
                   "driver": "CUDA 13.0"},
        "seconds": 12.3, "result": {"said": "fine"}, "about": {}, **change,
    }  # fmt: skip


def test_the_page_is_that_of_the_results():
    assert results_page.refreshed() == results_page.PAGE.read_text(), "run make gpu-results"


def test_what_was_not_run_says_so_and_a_dry_run_is_no_gpu():
    shown = results_page.tables({}, {})
    assert shown.count("not run yet") == 2 * len(parts.PARTS)
    dry = result("speed", dry_run=True, device={"name": "EPYC", "n_gpus": 0, "cores": 2,
                                                "driver": ""})  # fmt: skip
    shown = results_page.tables({"speed": dry}, {"speed": dry})  # also in the wrong folder
    (line,) = [line for line in shown.splitlines() if line.startswith("| prompt and decode")]
    assert line.endswith("| not run yet | 2026-11-24, 12 s: **passed**. fine |")
    assert "### Speed" not in shown


def test_the_page_shows_figures_differences_and_failures():
    row = {"what": "decode", "model": "8B", "ours": 1234.4, "theirs": 1200.0, "ratio": 1.0287,
           "interval": [1.01, 1.04], "verdict": "yes"}  # fmt: skip
    real = {
        "speed": result("speed", result={"said": "one", "rows": [row]}),
        "supports": result("supports", status="failed", result={
            "named": "h100", "properties": {"major": ["9", "9"], "x": ["1", "2"]},
            "described": {"alignment": [128, 256]}, "failures": ["a|b"],
        }),
    }  # fmt: skip
    shown = results_page.tables(real, {})
    assert "| decode | 8B | 1,234 | 1,200 | 1.029 (1.010 to 1.040) | yes |" in shown
    assert "| x | 1 | 2 |\n| alignment | 128 | 256 |" in shown and "| major |" not in shown
    assert "- supports: a/b" in shown and "**failed**" in shown
    assert "| 1 GPU | NVIDIA H100, 80 GiB | CUDA 13.0 | 16 | c0ffee1234 | 0.26.0-1 |" in shown


def test_results_are_kept_and_not_replaced_by_less(tmp_path):
    came, kept = tmp_path / "came", tmp_path / "kept"
    record.write(came / "speed.json", result("speed"))
    record.write(came / "tests.json", result("tests", dry_run=True))
    record.write(came / "machine.json", {"missing": []})
    assert results_page.take(came, kept) == ["kept/speed", "dry_run/tests"]
    record.write(came / "speed.json", result("speed", status="timed out"))
    assert results_page.take(came, kept) == ["dry_run/tests"]
    assert record.read(kept / "speed.json.gz")["status"] == "passed"
    record.write(came / "speed.json", result("speed", status="failed"))
    assert "kept/speed" in results_page.take(came, kept)


def test_a_page_without_a_place_is_an_error():
    with pytest.raises(ValueError, match="the page has no lines <!-- results"):
        results_page.page_of("# Page\n", "x")


KEPT = sorted(results_page.RESULTS.rglob("*.json.gz"))


def test_kept_results_are_whole_and_the_old_ones_are_named():
    old = []
    for path in KEPT:
        data = record.read(path)
        assert data["dry_run"] == (path.parent.name == "dry_run")
        (part,) = parts.named(data["part"])
        if results_page.changed_since(data, part.patterns):
            old.append(f"{path.parent.name}/{path.name.partition('.')[0]} ({data['date'][:10]})")
    if old:
        named = ", ".join(old)
        warnings.warn(f"of other code: {named}; again: make gpu-kit, make gpu-run", stacklevel=1)


def test_the_verbs_name_the_programs():
    done = subprocess.run(["make", "-n", "gpu-kit", "gpu-run", "gpu-results", "PART=speed",
                           "AGAIN=1", "BACKEND=none"], cwd=REPO, capture_output=True, text=True,
                          check=True)  # fmt: skip
    for text in ("make_kit.py --out build/gpu-kit --arch 90", "--backend none", "--again",
                 '--part "speed"', "results_page.py --take build/gpu-results"):  # fmt: skip
        assert text in done.stdout
    ignored = subprocess.run(["git", "check-ignore", "build/gpu-kit", "build/gpu-run"], cwd=REPO,
                             capture_output=True, text=True, check=False)  # fmt: skip
    assert ignored.returncode == 128 or len(ignored.stdout.split()) == 2  # 128: no repository

"""docs/ops out of the archive, and profiles.zip made of it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
from build_support import seed, small_sdist

import build_ggml
from vendor import cache as caches
from vendor import fetch, profiles, record_ages, releases
from vendor.identity import Options, upstream_of
from vendor.report import BuildError

HEADER = '"backend_name","op_name","op_params","test_mode","supported","error_message"\n'


def table(*rows: tuple[str, str, int]) -> str:
    return HEADER + "".join(f'"X","{op}","{params}","support","{yes}","-"\n'
                            for op, params, yes in rows)


def test_tables_are_read_out_of_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(small_sdist({
        "x-1/vendor/llama.cpp/docs/ops/CUDA.csv": b"one",
        "x-1/vendor/llama.cpp/docs/ops/zDNN.csv": b"two",
        "x-1/vendor/llama.cpp/docs/ops.md": b"no table",
        "x-1/elsewhere/docs/ops/Metal.csv": b"another project's",
    }))
    found = profiles.tables_in_archive(archive, "vendor/llama.cpp")
    assert found == {"cuda": "one", "zdnn": "two"}


def test_one_line_per_case_and_a_letter_per_profile(tmp_path: Path) -> None:
    tables = {
        "b": table(("ADD", "type=f32,ne=[1,2,3,4]", 1), ("ADD", "type=f16", 0)),
        "a": table(("ADD", "type=f16", 1), ("MUL", "type=f32", 1), ("MUL", "type=f32", 0)),
    }
    tables["a"] += "a remark\n"
    for name in ("one.zip", "two.zip"):
        profiles.write(tables, tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert json.loads(archive.read("index.json"))["profiles"] == {
            "a": ["ADD", "MUL"], "b": ["ADD"]}
        lines = archive.read("ADD").decode().splitlines()
        assert sorted(lines) == ["type=f16\tyn", "type=f32,ne=[1,2,3,4]\t-y"]
        assert archive.read("MUL").decode() == "type=f32\tn-\n"       # twice, once without support


def test_a_table_that_upstream_changed_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"docs/ops/a\.csv has no column op_params"):
        profiles.write({"a": '"op_name"\n"ADD"\n'}, tmp_path / "x.zip")


def test_a_checkout_of_llama_cpp_brings_its_own(tmp_path: Path) -> None:
    ggml = tmp_path / "ggml"
    for path in ("include/ggml.h", "src/ggml.c", "CMakeLists.txt"):
        (ggml / path).parent.mkdir(parents=True, exist_ok=True)
        (ggml / path).write_text("")
    options = Options(source=tmp_path)
    before = upstream_of(options)
    assert build_ggml._device_tables(options, before) == {}
    (tmp_path / "docs" / "ops").mkdir(parents=True)
    (tmp_path / "docs" / "ops" / "CUDA.csv").write_text(table(("ADD", "type=f32", 1)))
    after = upstream_of(options)
    assert list(build_ggml._device_tables(options, after)) == ["cuda"]
    assert after.sha256 != before.sha256


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("release", releases.releases(), ids=lambda release: release.label)
def test_every_release_has_profiles_that_can_be_read(
    tmp_path: Path, release: releases.Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tests have other parameters than today's; tidied, their rows lack none."""
    from ggml_py.sim import rows as profile_rows
    from ggml_py.sim.named import load_profile
    from ggml_py.sim.profiles.ops import OPS

    if release != releases.default() and not fetch.downloaded(release, caches.default_folder()):
        pytest.skip(f"{release.file} was not downloaded here")
    seed(caches.default_folder())
    archive = fetch.download(release, caches.default_folder())
    tables = profiles.tables_in_archive(archive, release.subfolder)
    assert {"cpu", "cuda", "metal", "vulkan", "sycl", "cann", "opencl", "blas"} <= tables.keys()
    path = tmp_path / profiles.FILE
    profiles.write(tables, path)
    assert path.stat().st_size < 400_000
    build = {"folder": os.fspath(tmp_path), "label": release.label, "key": release.label}
    monkeypatch.setattr(profile_rows._builds, "current", lambda: build)
    for profile in tables:
        device = load_profile(f"record:{profile}")
        for op in device.ops:
            cases = device._cases_of(op)
            assert cases.groups, op
            if op in OPS:
                wanted = {*cases.spec.same, *cases.spec.size, *cases.spec.soft}
                for case in (case for group in cases.groups.values() for case in group):
                    assert wanted <= case.row.keys(), (profile, op, case.text)


def test_a_record_is_as_old_as_the_first_release_that_has_it(tmp_path: Path) -> None:
    first, ages = profiles.AGES.read_text(), {}
    for line in first.splitlines():
        if " = " in line and not line.startswith("#"):
            key, label, _, name = line.replace('"', "").replace(" = ", " ").split(maxsplit=3)
            ages.setdefault(name, {})[key] = label
    labels = [release.label for release in releases.releases()]
    assert {"cuda", "vulkan", "opencl", "cann"} <= ages.keys()
    assert {label for each in ages.values() for label in each.values()} <= set(labels)
    table_ = table(("ADD", "type=f16", 1))
    profiles.write({"a": table_}, tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert json.loads(archive.read("index.json"))["ages"] == {"a": ""}
    assert profiles.age(table_) == ""
    made = record_ages.text({"1": {"a": table_}, "2": {"a": table_, "b": "x"}})
    assert made.count(profiles.known_by(table_)) == 1 and '"2"   # b' in made


@pytest.mark.thorough("builds")
def test_the_ages_are_those_of_this_release(tmp_path: Path) -> None:
    """Each record of the pinned release is known: run `python -m vendor.record_ages` otherwise."""
    release = releases.default()
    archive = fetch.download(release, caches.default_folder())
    tables = profiles.tables_in_archive(archive, release.subfolder)
    assert len(tables) > 10 and all(profiles.age(one) for one in tables.values())

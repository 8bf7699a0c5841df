"""Edits find their place by their anchors; a release without a place for one works without."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import build_ggml
from ggml_py import builds as _builds
from ggml_py.errors import ArgumentError
from ggml_py.plan import Plan
from ggml_py.releases import rule_cases
from ggml_py.releases.compare import compared
from ggml_py.releases.planned_cases import plans_under
from ggml_py.scheduler.as_recorded import AsRecorded
from vendor import fetch, identity, releases, rows
from vendor.edit import Edit, place
from vendor.identity import Options, Upstream

from ..support.build_support import WARM, error_of, run, seed

# As little to compile as plans need.
CPU = (
    "--backend=cpu", "--cards=none", "--json", "-DCMAKE_C_FLAGS_RELEASE=-O0",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DGGML_NATIVE=OFF", "-DGGML_LLAMAFILE=OFF",
)  # fmt: skip
# Cases whose outcome a build without causes cannot see for another reason than that.
LEFT_OUT = {
    "more than all buffers": "could not allocate",
    "more than there is, reserved less": "could not allocate",
    "the CPU alone, more than there is": "could not allocate",
    "a leaf that views another": "ggml finds no backend for leaf 'plain'",
}
EDIT = Edit("e", "anchor;\n", "new;\n")
ANCHOR = "    ggml_hash_set_free(&sched->hash_set);\n"


@pytest.fixture(scope="module")
def ggml() -> Path:
    return identity.unpacked(releases.default(), seed(WARM), whole=False) / "ggml"


# ---- one edit


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"a": ""}, "found 0 times in a, expected exactly once"),
        ({"a": "anchor;\n" * 2}, "found 2 times in a, expected exactly once"),
        ({}, "found 0 times in a, which is not there, expected exactly once"),
    ],
)
def test_an_anchor_that_is_not_there_once_is_missing(texts: dict[str, str], said: str) -> None:
    before = dict(texts)
    placed = place("a", EDIT, texts)
    assert not placed.made and said in placed.wrong and "'anchor;'" in placed.wrong
    assert texts == before


def test_the_text_goes_before_the_anchor() -> None:
    texts = {"a": "anchor;\n", "b": "anchor;\n"}
    assert place("a", EDIT, texts)[2:] == (True, False, "")
    assert texts == {"a": "new;\nanchor;\n", "b": "anchor;\n"}


def test_an_optional_edit_may_be_nowhere_but_not_twice() -> None:
    edit = Edit("e", "anchor;\n", "new;\n", optional=True)
    assert place("a", edit, {"a": ""})[2:] == (False, True, "")
    assert "found 2 times in a" in place("a", edit, {"a": "anchor;\n" * 2}).wrong


def test_the_end_of_what_is_replaced_must_be_there_once_too() -> None:
    edit = Edit("e", "anchor;\n", "new;\n", until="end;\n")
    texts = {"a": "anchor;\nold;\nend;\n"}
    assert place("a", edit, texts).made and texts["a"] == "new;\n"
    said = place("a", edit, {"a": "anchor;\n"}).wrong
    assert "anchor 'end of e' was found 0 times in a" in said


def built(*arguments: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """`ggml-py build`: a build beside the package that is imported here, installed or not."""
    words = ["-m", "ggml_py", "build", *map(str, arguments), "--cache", str(cache)]
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=600
    )


def plans(key: str) -> list[Plan | str]:
    return [made.plan or made.error for made in plans_under([key], rule_cases())[0]]


# ---- a release without a place for an edit


def without_a_place(ggml: Path, folder: Path, change: tuple[str, str] = ("", "")) -> Path:
    """A package's file in `folder`/downloads whose scheduler lacks an anchor, and its row."""
    text = (ggml / "src" / "ggml-backend.cpp").read_text(encoding="utf-8")
    assert text.count(ANCHOR) == 1 and (not change[0] or text.count(change[0]) == 1)
    text = text.replace(ANCHOR, ANCHOR.replace("(&", "( &")).replace(*change)
    file = folder / "downloads" / "planted-1.tar.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz", compresslevel=1) as tar:
        for path in sorted(path for path in ggml.rglob("*") if path.is_file()):
            name = f"planted-1/llama.cpp/ggml/{path.relative_to(ggml).as_posix()}"
            if path.name == "ggml-backend.cpp":
                entry = tarfile.TarInfo(name)
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
            else:
                tar.add(path, name)
    release = releases.Release(
        "0.27.9", "0.27.9", None, "planted", "1", file.name, fetch.sha256_of(file), "llama.cpp"
    )
    table = folder / "planted.toml"
    table.write_text(rows.row_of(release), encoding="utf-8")
    return table


def test_only_the_default_and_a_checkout_must_have_every_place(
    ggml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = releases.find(str(without_a_place(ggml, tmp_path)))
    options = Options(cache=tmp_path)
    upstream = Upstream("0.27.9", "0.27.9", release.sha256, release, None)
    (wrong,) = build_ggml._missing(options, upstream)
    assert "anchor 'scheduler freed' was found 0 times in ggml-backend.cpp" in wrong
    said = capsys.readouterr().err
    assert "ggml 0.27.9 is built as --pristine, because 1 of " in said and wrong in said
    folder = upstream.ggml_dir(options)
    default = Upstream("0.26.0", "0.26.0", release.sha256, releases.default(), folder)
    checkout = Upstream("0.27.9-source", "0.27.9", release.sha256, None, folder)
    assert build_ggml._missing(options, default) == build_ggml._missing(options, checkout) == []


def test_its_build_goes_by_the_label_of_the_release() -> None:
    build = {
        "key": "0.9.4.p0.2.4-pristine-12345678", "label": "0.9.4.p0.2.4-pristine",
        "ggml_version": "0.9.4", "version": "0.2.4", "llama_build": None,
    }  # fmt: skip
    assert "0.9.4.p0.2.4" not in _builds._names(build)
    assert "0.9.4.p0.2.4" in _builds._names(build | {"edits_missing": ["anchor .."]})


@pytest.mark.thorough("builds")
def test_a_release_without_a_place_plans_by_the_reference(ggml: Path, tmp_path: Path) -> None:
    table = without_a_place(ggml, tmp_path)
    done = built("--upstream", table, *CPU, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout.splitlines()[-1])
    try:
        assert proof["label"] == "0.27.9-pristine" and proof["pristine"]
        assert len(proof["edits_missing"]) == 1 and "is built as --pristine" in done.stderr
        again = built("--upstream", table, *CPU, cache=tmp_path)
        assert json.loads(again.stdout.splitlines()[-1])["key"] == proof["key"]
        assert "compiling" not in again.stderr
        cases = rule_cases()
        found = plans_under([proof["key"]], cases)[0]
        others = {}
        for case, (plan, error, seen) in zip(cases, found, strict=True):
            assert plan is not None and seen is not None, (case.name, error)
            if LEFT_OUT.get(case.name, "is not instrumented") not in seen.left_out:
                others[case.name] = seen.left_out
            assert plan.planner == "reference" and plan.settings.upstream == "0.27.9"
        assert others == {}
        said = compared("0.26.0", "0.27.9", cases, found, found)
        assert said.only_confirmed and "its build has no causes" in str(said)
    finally:
        shutil.rmtree(proof["folder"])


@pytest.mark.parametrize("has_causes", [True, False])
def test_memory_that_a_build_lacks_is_not_taken_for_another_rule(has_causes: bool) -> None:
    """Builds with GGML_CPU_REPACK=OFF have no CPU_REPACK memory."""
    saved = next(case.plan for case in rule_cases() if case.name == "repacked weights")
    assert saved is not None
    bufts = (b._replace(name=b.name.replace("REPACK", "MISSING")) for b in saved.capture.bufts)
    plan = Plan(replace(saved.capture, bufts=tuple(bufts)), saved.outcome)
    with AsRecorded(plan) as recorded:
        recorded._scheduler._tracing = has_causes
        with pytest.raises(ArgumentError) as raised:
            recorded.plan(plan)
    assert "'weight-0' was in CPU_MISSING memory, for which none of this mac" in str(raised.value)


@pytest.mark.by_hand
def test_a_rule_that_the_reference_does_not_know_is_noticed_without_causes(
    ggml: Path, tmp_path: Path
) -> None:
    rule = "    allow = allow && tensor->op != GGML_OP_FLASH_ATTN_EXT;\n"
    table = without_a_place(ggml, tmp_path, (rule, ""))
    done = built("--upstream", table, *CPU, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout.splitlines()[-1])
    try:
        sinks, *others = plans(proof["key"])
        assert isinstance(sinks, str)
        assert "decides otherwise than the reference: fattn on gpu0, not CPU" in sinks
        assert all(isinstance(plan, Plan) for plan in others), others
    finally:
        shutil.rmtree(proof["folder"])


@pytest.mark.thorough("builds")
def test_the_recorder_needs_every_place(ggml: Path, tmp_path: Path) -> None:
    table = without_a_place(ggml, tmp_path)
    said = error_of(run("--upstream", table, "--recorder", cache=tmp_path))
    assert "cannot instrument" in said and "anchor 'scheduler freed'" in said

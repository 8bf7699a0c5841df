"""`ggml-py ci`: kept plans against what this build plans now."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.releases import rule_cases
from ggml_py.releases.kept import kept_in
from ggml_py.trace.rules import RELEASES, release_behind

from ..support import graphs
from ..support.build_support import small_disk
from ..support.cli_runs import fails, ok, run
from ..support.page_driver import data_in

CASES = {case.name: case.plan for case in rule_cases()}
RECIPE = "partly: small.gguf -d sim:gpu0,profile=rtx4090 -d CPU -ngl 1 --n-tokens 64\n"


@pytest.fixture
def folder(tmp_path):
    CASES["experts in host memory"].to_json(tmp_path / "experts.json.gz")
    CASES["a reserve with pins"].to_json(tmp_path / "pins.json.gz")
    return tmp_path


def planned_otherwise(plan):
    """A plan that no release makes of that graph: its first node on the other backend."""
    (first, *rest) = plan.outcome.placements
    outcome = replace(plan.outcome, placements=(first._replace(backend=1 - first.backend), *rest))
    return ggml.Plan(plan.capture, outcome)


def test_kept_plans_that_are_planned_as_before(folder):
    assert ": 0 of 2 cases differ\n" in ok("ci", folder)


def test_our_own_kept_plans():
    repo = Path(__file__).resolve().parents[2]
    line = "ggml-py ci tests/releases/kept"
    assert line in (repo / ".ci" / "run").read_text().splitlines()
    assert ": 0 of 14 cases differ\n" in ok(*line.split()[1:-1], repo / line.split()[-1])


def test_a_plan_that_changed_fails_and_is_reported(folder):
    planned_otherwise(CASES["experts in host memory"]).to_json(folder / "experts.json.gz")
    files = {kind: folder / f"out.{kind}" for kind in ("junit", "markdown", "html")}
    done = run("ci", folder, *(word for kind in files for word in (f"--{kind}", files[kind])))
    assert done.returncode == 1
    assert ": 1 of 2 cases differs\nexperts: 1 of 1 node moved" in done.stdout
    assert "unknown: the plan before is not the one" in done.stdout
    (suite,) = ElementTree.parse(files["junit"]).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["experts"]
    text = files["markdown"].read_text()
    assert "| experts | 1 of 1 node moved" in text and "pins" not in text
    states = {case["name"]: case["state"] for case in data_in(files["html"])["cases"]}
    assert states["pins"] == "same" and states["experts"] in ("worse", "better", "mixed", "differs")
    assert "://" not in files["html"].read_text()  # nothing beside it


def test_what_may_differ_is_named_in_a_file(folder):
    planned_otherwise(CASES["experts in host memory"]).to_json(folder / "experts.json.gz")
    allow = folder / "allow"
    allow.write_text("exp*  # since the new kernel\n")
    data = json.loads(ok("ci", folder, "--allow", allow, "--json"))
    assert (data["n_different"], data["unexpected"]) == (1, [])
    report = folder / "out.md"
    ok("ci", folder, "--allow", allow, "--markdown", report)
    assert "| allowed |" in report.read_text()


@pytest.mark.thorough("long")
def test_recipes_are_kept_by_update(folder, monkeypatch):
    write_llama(folder / "small.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    (folder / "cases.txt").write_text("# ours\n" + RECIPE)
    done = run("ci", folder)
    assert done.returncode == 1 and "not kept yet: --update keeps it → plans it" in done.stdout
    monkeypatch.setenv("CI", "true")
    assert "--update in CI would accept" in fails("ci", folder, "--update", code=2)
    monkeypatch.delenv("CI")
    # Only what differs is written.
    assert ok("ci", folder, "--update") == f"kept {folder / 'partly.json.gz'}\n"
    assert ": 0 of 3 cases differ\n" in ok("ci", folder)
    (folder / "cases.txt").write_text(RECIPE.replace("-ngl 1", "-ngl 9"))
    done = run("ci", folder)
    assert done.returncode == 1 and "partly: " in done.stdout and "memory: " in done.stdout


def test_nothing_is_written_if_something_cannot_be_planned(folder):
    write_llama(folder / "small.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    (folder / "cases.txt").write_text(RECIPE + "wrong: small.gguf -d sim:gpu0,profile=none\n")
    said = fails("ci", folder, "--update")
    assert "wrong: " in said and "nothing was written" in said
    assert not (folder / "partly.json.gz").exists()


def test_plans_of_a_record_come_after_what_their_scheduler_planned(tmp_path):
    case = graphs.mlp()
    with ggml.record(tmp_path / "own.ggrec"):
        for pinned in (False, True):
            if pinned:
                case.scheduler.set_tensor_backend(case.graph.nodes[0], case.scheduler.backends[0])
            case.scheduler.alloc_graph(case.graph)
            case.scheduler.reset()
    case.close()
    first, second = kept_in(tmp_path)
    assert first.work.earlier == ()
    assert second.work.earlier == (first.plan,)
    assert ": 0 of 2 cases differ\n" in ok("ci", tmp_path)


def test_the_line_on_the_page(tmp_path):
    (tmp_path / "small.gguf").touch()
    page = (Path(__file__).resolve().parents[2] / "docs" / "KEPT_PLANS.md").read_text()
    (block,) = re.findall(r"(?s)```\n(# NAME: .*?)```", page)
    (tmp_path / "cases.txt").write_text(block)
    (kept,) = kept_in(tmp_path)
    assert f"{kept.work.name}: small.gguf {' '.join(kept.work.words[1:])}\n" == RECIPE


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        "a b c",
        "name:",
        ": small.gguf",
        "a/b: small.gguf",
        'n: "small.gguf',
        "n: no.gguf",
    ],
)
def test_lines_that_mean_nothing(tmp_path, line):
    (tmp_path / "small.gguf").touch()
    (tmp_path / "cases.txt").write_text(f"ok: small.gguf\n{line}\n")
    assert "cases.txt:2: " in fails("ci", tmp_path)


def test_other_mistakes(tmp_path):
    assert "keeps no plans: expected files *.json.gz" in fails("ci", tmp_path)
    (tmp_path / "cut.json.gz").write_bytes(b"\x1f\x8b")
    assert "cut.json.gz" in fails("ci", tmp_path)
    both = ("--upstream", "0.26.0", "--source", tmp_path)
    assert "exclude each other" in fails("ci", tmp_path, *both, code=2)
    assert "takes no options" in fails(
        "compare", "--upstream", "0.17.0", "--upstream", "0.26.0", tmp_path, "-ngl", "3", code=2
    )


def test_files_outside_the_folder_are_neither_read_nor_written(folder, tmp_path_factory):
    """A folder may come from somebody else."""
    outside = tmp_path_factory.mktemp("outside")
    write_llama(outside / "small.gguf", LlamaSpec(n_layer=1, n_vocab=300))
    for model in (outside / "small.gguf", f"../{outside.name}/small.gguf"):
        (folder / "cases.txt").write_text(f"a: {model} -d CPU\n")
        assert "outside the folder: expected a file that is in" in fails("ci", folder)
    (folder / "cases.txt").unlink()
    there = outside / "theirs.json.gz"
    planned_otherwise(CASES["experts in host memory"]).to_json(there)
    before = there.read_bytes()
    (folder / "experts.json.gz").unlink()
    (folder / "experts.json.gz").symlink_to(there)
    assert "outside the folder" in fails("ci", folder, "--update")
    assert there.read_bytes() == before


def test_what_was_never_planned_fails(folder):
    """Neither a kept plan nor one now: there is nothing that could pass."""
    write_llama(folder / "small.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    (folder / "cases.txt").write_text("wrong: small.gguf --no-such-option\n")
    done = run("ci", folder, "--junit", folder / "out.xml")
    assert done.returncode == 1 and "No such option" in done.stdout
    (suite,) = ElementTree.parse(folder / "out.xml").getroot()
    assert suite.get("failures") == "1"


def test_a_plan_of_a_what_if_is_no_releases(folder):
    write_llama(folder / "small.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    (folder / "cases.txt").write_text(RECIPE.rstrip() + " --what-if upstream=0.17.0\n")
    assert "a plan of --what-if" in fails("ci", folder, "--update")
    # A kept one is planned natively, and nothing is said about builds.
    kept = CASES["experts in host memory"].what_if(op_offload=False)
    kept.to_json(folder / "experts.json.gz")
    (folder / "cases.txt").unlink()
    said = ok("ci", folder)
    assert ": 0 of 2 cases differ\n" in said and "causes" not in said


def test_update_writes_whatever_makes_ci_fail(folder):
    write_llama(folder / "small.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    (folder / "cases.txt").write_text("a: small.gguf -d CPU --n-tokens 64\n")
    ok("ci", folder, "--update")
    (folder / "cases.txt").write_text("a: small.gguf -d CPU --n-tokens 65\n")
    done = run("ci", folder)
    assert done.returncode == 1 and re.search(r"\[\d+, 65, 1, 1\]\), before .*64", done.stdout)
    assert "a.json.gz" in ok("ci", folder, "--update")
    assert ": 0 of 3 cases differ\n" in ok("ci", folder)


def test_a_full_disk_is_an_error_of_every_case(folder, tmp_path_factory, monkeypatch):
    disk = tmp_path_factory.mktemp("disk")
    for size in (12, 20, 28, 36, 60, 200):
        with small_disk(disk / str(size), size / 1024) as full:
            monkeypatch.setenv("TMPDIR", str(full))
            done = run("ci", folder)
            monkeypatch.delenv("TMPDIR")
        if done.returncode == 0:  # there was room enough
            assert done.stdout.endswith(": 0 of 2 cases differ\n")
            continue
        assert done.returncode == 1 and size < 200, done.stdout
        assert "No space left" in done.stdout + done.stderr
        assert not re.search(r"(→|^\w+:) plans it$", done.stdout, re.M)
        assert "Expecting value" not in done.stderr


def test_names_with_any_bytes(folder):
    plan = planned_otherwise(CASES["experts in host memory"])
    (first, *rest) = plan.capture.tensors
    first = first._replace(name="fa\x01\x1b[31m\n```\n# <b>")
    odd = ggml.Plan(replace(plan.capture, tensors=(first, *rest)), plan.outcome)
    odd.to_json(folder / "experts.json.gz")
    (folder / "experts.json.gz").rename(folder / "#7 <b>|`\x01.json.gz")
    files = {kind: folder / f"out.{kind}" for kind in ("junit", "markdown", "html")}
    done = run("ci", folder, *(word for kind in files for word in (f"--{kind}", files[kind])))
    assert done.returncode == 1
    ElementTree.parse(files["junit"])
    text = files["markdown"].read_text()
    (fence,) = re.findall(r"(?m)^(`+)text$", text)
    assert len(fence) > 3 and text.count(f"\n{fence}\n") == 1
    assert "&lt;b&gt;\\|" in text and "\x1b" not in text
    assert "<b>|" not in files["html"].read_text()


def test_what_cannot_be_written_is_said_before_the_work(folder):
    done = run("ci", folder, "--html", "/nonexistent/x.html")
    assert done.returncode and "planning" not in done.stderr and not done.stdout
    (folder / "allow").write_bytes(b"\xff")
    assert "allow is not UTF-8" in fails("ci", folder, "--allow", folder / "allow", code=2)


def test_plans_of_a_record_are_in_their_order(folder):
    for n in (10, 9, 2):
        CASES["experts in host memory"].to_json(folder / f"r {n}.json.gz")
    names = [kept.work.name for kept in kept_in(folder)]
    assert names == ["experts", "pins", "r 2", "r 9", "r 10"]


def test_a_checkout_is_based_on_the_release_behind_it():
    for known in RELEASES[:-1]:
        assert release_behind(known.ggml) == known
    assert release_behind("0.25.9").label == "0.25.3" and release_behind("1.0.0") == RELEASES[0]
    for version in ("0.9.3", "unversioned"):
        with pytest.raises(ValueError, match=version):
            release_behind(version)


def test_a_fork_and_its_release_are_named(tmp_path):
    """Without a folder of kept plans."""
    assert "expected FOLDER, which has the kept plans, or --source DIR" in fails("ci", code=2)
    update = ("ci", "--source", tmp_path, "--update")
    assert "expected FOLDER" in fails(*update, code=2)
    assert "is not a known" in fails("ci", "--source", tmp_path, "--upstream", "9.9.9")
    assert "has no ggml" in fails("ci", "--source", tmp_path)

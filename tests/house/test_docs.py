"""The examples in docs/ give the output that is shown."""

import ast
import re
import shutil
import subprocess

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support import doc_pages
from ..support.cli_runs import ok
from ..support.default_release import PIN, REPO

PROSE = [REPO / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PROSE += [REPO / "vendor" / "UPDATING.md", REPO / "benchmarks" / "SANITIZERS.md"]
PROSE += sorted(doc_pages.DOCS.rglob("*.md"))
BUILDS = doc_pages.DOCS / "BUILD.md"  # minutes each
# Commands without output: between the examples of a page, on a page with pictures, and in the last
# column of a table.
COMMANDS = [
    line.partition("#")[0].strip()
    for page in PROSE if page.is_relative_to(doc_pages.DOCS) and page != BUILDS
    for block in doc_pages.others(page)
    for line in block.text.splitlines() if line.strip().startswith("ggml-py ")
]  # fmt: skip
COMMANDS += [
    command for page in PROSE
    for command in re.findall(r"^\|.* \| `(ggml-py [^`]+)` \|$", page.read_text(), re.M)
]  # fmt: skip

# All other blocks, by page and first words, and the test that runs or compares them. The last ones
# are not run: they set up a machine, take minutes, or need a future release.
TWO_COMMANDS = "test_readme.test_the_two_commands_are_there_and_ci_runs_the_second"
TESTED = {
    ("docs/FLOPS.md", "37 splits,"): "test_docs.test_the_headline_is_that_of_the_demo",
    ("docs/PROFILES.md", "ggml-py plan model.gguf"):
        "test_profiles.test_a_plan_says_what_is_not_on_record",
    ("docs/PROFILES.md", "vulkaninfo"): "test_vulkan_cards.test_a_file_of_vulkaninfo_is_a_card",
    ("docs/PYTEST.md", "import pytest"): "test_docs_pytest.test_the_recipe",
    ("docs/PYTEST.md", "pytest --plan-update"): "test_docs_pytest.test_the_recipe",
    ("docs/PYTEST.md", "ggml_py plan snapshot 2"): "test_docs_pytest.test_the_recipe",
    ("docs/PYTEST.md", "AssertionError: the plan is not"): "test_docs_pytest.test_the_recipe",
    ("docs/PYTEST.md", "import os, subprocess"): "test_docs_pytest.test_the_recipe_for_a_fork",
    ("docs/PYTEST.md", "FORK="): "test_docs_pytest.test_the_recipe_for_a_fork",
    ("docs/RELEASES.md", "$ ggml-py compare"):
        "test_compare.test_the_page_shows_what_compare_prints",
    ("docs/RELEASES.md", "$ ggml-py bisect"):
        "test_compare.test_bisect_asks_and_says_what_the_page_shows",
    ("docs/KEPT_PLANS.md", "$ ggml-py corpus"): "test_corpus.test_the_session_on_the_page",
    ("docs/KEPT_PLANS.md", "# NAME: MODEL"): "test_ci.test_the_line_on_the_page",
    ("docs/KEPT_PLANS.md", "# .github/workflows"): "test_action.test_actionlint_has_nothing_to_say",
    ("docs/KEPT_PLANS.md", "on: pull_request"): "test_action.test_actionlint_has_nothing_to_say",
    ("docs/KEPT_PLANS.md", "### Plans: 0.26.0"): "test_action.test_a_fork",
    ("docs/KEPT_PLANS.md", "python3 -m venv /tmp/plans"):
        "test_corpus.test_the_page_names_commands_and_options_that_exist",
    ("docs/PLACE.md", "$ ggml-py calibrate"): "test_measure.test_the_commands_of_the_page",
    ("docs/CONFORMANCE.md", "$ ggml-py ops"): "test_ops.test_the_page_shows_what_ops_prints",
    ("docs/CONFORMANCE.md", "$ ggml-py diverge"): "test_diverge.test_the_page_shows_what_happens",
    ("docs/CONFORMANCE.md", "$ test-backend-ops"):
        "test_diverge.test_upstreams_program_reads_the_case",
    ("README.md", "$ ggml-py record"): "test_programs.test_the_readme_shows_what_happens",
    ("README.md", "pip install . && ggml-py demo"): TWO_COMMANDS,
    ("README.md", "$ ggml-py check"): "test_readme.test_the_answer_on_screen_is_what_check_prints",
    ("README.md", "import numpy"): "test_readme.test_the_python_example_prints_what_is_shown",
    ("README.md", "## SPLIT #0"): "test_readme.test_the_python_example_prints_what_is_shown",
    ("docs/BUILD.md", "pip install . --config"): "test_readme.test_the_build_options_shown_exist",
    ("docs/BUILD.md", "pip install --group wheels"):
        "test_build_live.test_nothing_is_fetched_once_it_is_installed",
    ("docs/index.md", "pip install . && ggml-py demo"): TWO_COMMANDS,
    ("CONTRIBUTING.md", "python -m venv .venv"): None,
    ("CONTRIBUTING.md", "errors enums"): "test_structure.test_contributing_shows_the_floors",
    ("vendor/UPDATING.md", "python -m vendor.new_release"):
        "test_new_release.test_nothing_newer_is_exit_status_0",
    ("benchmarks/SANITIZERS.md", "make sanitize"): None,
}


@pytest.mark.thorough("cases", quick=4)
@pytest.mark.skipif(BUILD["ggml_version"] != PIN, reason=f"the pages show what {PIN} gives")
@pytest.mark.parametrize("page", doc_pages.PAGES, ids=lambda p: p.stem)
def test_examples_print_what_is_shown(page):
    examples = doc_pages.examples(page)
    assert examples
    for (_code, shown), printed in zip(
        examples, doc_pages.run([code for code, _ in examples]), strict=True
    ):
        assert [line.rstrip() for line in printed.splitlines()] == (shown or "").splitlines()


def test_a_wrong_example_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    silent, wrong = "```python\nx = 2\n```\n", "```python\nprint(x + 2)\n```\n\n```text\n5\n```\n"
    page.write_text(f"Text.\n\n{silent}\n{wrong}More.\n")
    (first, nothing), (second, five) = doc_pages.examples(page)
    assert (first, nothing) == (("python", "x = 2\n"), None)
    assert (second, five) == (("python", "print(x + 2)\n"), "5\n")
    assert doc_pages.run([code for code, _ in doc_pages.examples(page)]) == ["", "4\n"]
    doc_pages.refresh(page)
    assert page.read_text().endswith("```text\n4\n```\nMore.\n")


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    """A folder with the files that docs/VIEW.md mentions."""
    folder = tmp_path_factory.mktemp("view")
    write_llama(folder / "model.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    for name, ngl in (("before", "0"), ("after", "9")):
        on = ("-d", "sim:gpu0", "-d", "CPU", "-ngl", ngl)
        ok("plan", folder / "model.gguf", *on, "-o", folder / f"{name}.json.gz")
    for name in ("plan", "ngl20", "ngl28", "ngl36"):
        shutil.copy(folder / "after.json.gz", folder / f"{name}.json.gz")
    (folder / "log.txt").write_text(ok("plan", folder / "before.json.gz", "--text"))
    ok("trace", folder / "model.gguf", "-n", 1, "-t", 1, "-o", folder / "run.json.gz")
    return folder


@pytest.mark.thorough("cases", quick=4)
@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_commands(looked_at, command):
    command += " --force" * (" -o " in command)
    env = {**doc_pages.ENV, "BROWSER": "true %s"}  # any browser that starts
    done = subprocess.run(
        ["bash", "-c", command], cwd=looked_at, env=env, capture_output=True, text=True, check=False
    )
    wrong = command.startswith("ggml-py check")  # exit status 1: something is wrong there
    assert done.returncode in (0, int(wrong)), done.stderr
    written = re.search(r"-o (\S+)", command)
    assert written is None or (looked_at / written[1]).stat().st_size > 1000


@pytest.mark.thorough("long")
def test_the_headline_is_that_of_the_demo():
    shown = next(b.text for b in doc_pages.others(doc_pages.DOCS / "FLOPS.md") if not b.kind)
    line, _, rest = shown.strip().partition(", nodes: ")
    lines = ok("demo").splitlines()
    assert line in lines
    for name in ("BLAS", "CPU"):  # the table has the shares
        (row,) = (one for one in lines if one.startswith(f"{name} "))
        said = [re.search(rf"{name} (?:\d+ \()?(\d+)%", part)[1] for part in rest.split(";")]
        assert re.findall(r"(\d+)%", row) == said


def untested(page):
    """(line, first line of code) of the page's blocks that no test runs or compares."""
    name = page.relative_to(REPO).as_posix() if page.is_relative_to(REPO) else page.name
    starts = tuple(start for of, start in TESTED if of == name)
    found = [
        (b.line, b.text.strip().partition("\n")[0]) for b in doc_pages.others(page)
        if not {line.partition("#")[0].strip() for line in b.text.splitlines()} <= {"", *COMMANDS}
    ]  # fmt: skip
    return [f"{name}:{line}: {code}" for line, code in found if not code.startswith(starts)]


def test_all_blocks_are_run():
    assert not [block for page in PROSE for block in untested(page)]


def test_what_is_said_to_run_them_is_there():
    for (name, start), test in TESTED.items():
        others = [block.text.strip() for block in doc_pages.others(REPO / name)]
        assert sum(text.startswith(start) for text in others) == 1, (name, start)
        if test:
            module, _, function = test.partition(".")
            (path,) = (REPO / "tests").rglob(f"{module}.py")
            tree = ast.parse(path.read_text())
            assert function in [getattr(node, "name", "") for node in tree.body], test


def test_links_of_what_the_site_does_not_have():
    """mkdocs checks links inside docs/. Pages are linked there, not named by their file."""
    for page in PROSE:
        text = page.read_text()
        if page.is_relative_to(doc_pages.DOCS):
            assert not re.search(r"(?<!\()\bdocs/[\w/]+\.md", text), page
            continue
        links = re.findall(r"\]\((?!http)([^)#]+)", text)
        links += re.findall(r"(?:docs|examples|benchmarks)/[\w/]+\.(?:md|py)", text)
        missing = [to for to in links if not ((page.parent / to).exists() or (REPO / to).exists())]
        assert not missing, (page, missing)


def test_pages_are_short():
    """The reference of the command line is looked up, not read."""
    lines = {page.name: page.read_text().count("\n") for page in doc_pages.DOCS.rglob("*.md")}
    assert {name for name, n in lines.items() if n > 200} == {"CLI.md"}


@pytest.mark.parametrize(
    "block",
    ["```bash\nls\n```\n", "```python title='x'\nx\n```\n", "```\nls\n```\n", "    ls\n    rm\n",
     "1. So:\n\n    ```sh\n    ls\n    ```\n", "```text\nls\n```\n", "~~~\nls\n~~~\n"],
)  # fmt: skip
def test_a_block_that_nobody_runs_is_noticed(tmp_path, monkeypatch, block):
    page = tmp_path / "page.md"
    run = "```python\nprint(1)\n```\n\n```text\n1\n```\n"
    page.write_text(f"# Page\n\n{run}\nMore:\n\n{block}")
    monkeypatch.setattr(doc_pages, "PAGES", [page])
    (found,) = untested(page)
    assert found.startswith("page.md:1")
    page.write_text(f"# Page\n\n{run}\nMore.\n")
    assert untested(page) == []


def test_the_rules_of_handles_name_tests_that_exist():
    named = set(re.findall(r"`(test_\w+)`", (doc_pages.DOCS / "HANDLES.md").read_text()))
    tests = "".join(path.read_text() for path in (REPO / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_every_function_of_the_scheduler_has_a_counterpart():
    """The table of docs/PORTING.md: ggml's functions on the left, and what exists on the right."""
    text = (doc_pages.DOCS / "PORTING.md").read_text()
    table = text.partition("| `ggml_backend_sched_…` | here |\n|---|---|\n")[2].partition("\n\n")[0]
    prefix, there, here = "ggml_backend_sched_", set(), set()
    for row in table.splitlines():
        _, left, right, _ = row.split("|")
        there |= set(re.findall(r"`(\w+)`", left))
        here |= set(re.findall(r"`(\w+)(?:\(.*?\))?`", right)) - {"with"}
    functions = {name.removeprefix(prefix) for name in dir(ggml.lib) if name.startswith(prefix)}
    assert there == {name for name in functions if "callback" not in name or "set" in name}
    assert not [name for name in here if not hasattr(ggml.Scheduler, name) and name != "Scheduler"
                and name not in ggml.Scheduler.__slots__]  # fmt: skip

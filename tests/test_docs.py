"""What docs/ shows is what happens."""

import re
import subprocess
from pathlib import Path

import doc_pages
import pytest
from cli_runs import ok

from ggml_py._ffi import BUILD
from ggml_py.models.synthetic import LlamaSpec, write_llama

VIEW = (doc_pages.DOCS / "VIEW.md").read_text()

RELEASES = (Path(__file__).parent.parent / "vendor" / "upstream.toml").read_text()
PIN = re.search(r'^default = "(.+?)"', RELEASES, re.M)[1]


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
    """A folder with the files that docs/VIEW.md speaks of."""
    folder = tmp_path_factory.mktemp("view")
    write_llama(folder / "model.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    for name, ngl in (("before", "0"), ("after", "9")):
        on = ("-d", "sim:gpu0", "-d", "CPU", "-ngl", ngl)
        ok("plan", folder / "model.gguf", *on, "-o", folder / f"{name}.json.gz")
    (folder / "log.txt").write_text(ok("plan", folder / "before.json.gz", "--text"))
    ok("trace", folder / "model.gguf", "-n", 1, "-t", 1, "-o", folder / "run.json.gz")
    return folder


@pytest.mark.parametrize("line", re.findall(r"^ggml-py (?:plan|view) .*", VIEW, re.M))
def test_commands_of_the_viewer(looked_at, line):
    command = line.partition("#")[0].strip()
    env = {**doc_pages.ENV, "BROWSER": "true %s"}  # any browser that starts
    done = subprocess.run(
        ["bash", "-c", command], cwd=looked_at, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = re.search(r"-o (\S+)", command)
    assert written is None or (looked_at / written[1]).stat().st_size > 1000


def test_all_blocks_are_run():
    """By this file, by test_docs_pytest.py, or by the test above."""
    block = re.compile("^```(python|sh)$", re.M)
    pages = {page for page in doc_pages.DOCS.rglob("*.md") if block.search(page.read_text())}
    assert pages - set(doc_pages.PAGES) == {doc_pages.DOCS / "VIEW.md"}

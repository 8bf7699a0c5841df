"""What docs/ shows is what happens."""

import re
from pathlib import Path

import doc_pages
import pytest

from ggml_py._ffi import BUILD

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

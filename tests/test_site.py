"""The documentation site: it builds without a warning, and every code has its page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.trace import cause

REPO = Path(__file__).parent.parent
CAUSES = REPO / "docs" / "causes"
TABLE = (CAUSES / "README.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site's folder. Warnings are errors: `strict` in mkdocs.yml."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


def test_it_is_built_without_a_warning(site):
    assert (site / "index.html").exists()
    assert "Q4_0" in (site / "api" / "enums.html").read_text()
    assert "mul_mat" in (site / "api" / "tensors.html").read_text()


def test_it_needs_no_network(site):
    """Scripts, styles and fonts are the site's own."""
    for page in ("index.html", "api/scheduler.html"):
        text = (site / page).read_text()
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', text)
        assert loaded and not [url for url in loaded if url.startswith(("http:", "https:", "//"))]


def test_every_public_name_is_in_the_api(site):
    import ggml_py

    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    named = set(re.findall(r'id="ggml_py(?:\.errors|\.trace\.\w+)?\.(\w+)"', text))
    there = set(ggml_py._PUBLIC) - {"ffi", "lib", "enums"}
    assert there <= named, sorted(there - named)


def test_every_cause_has_a_page():
    codes = {*cause._TEXTS, "1.wgt", "1.off", "2.sup"} - {"1.vsrc"}
    assert {p.stem for p in CAUSES.glob("*.md")} == {*codes, "README"}
    assert set(re.findall(r"\(([\w.]+)\.md\)", TABLE)) == codes


@pytest.mark.parametrize("page", sorted(CAUSES.glob("[0-9u]*.md")), ids=lambda p: p.stem)
def test_a_causes_page_shows_it(page):
    """Its example has the cause that the page is about."""
    shown = "".join(re.findall(r"^```text\n(.*?)^```", page.read_text(), re.M | re.S))
    assert page.stem.removesuffix(".wgt") + (".wgt0" if page.stem == "1.wgt" else "") in shown
    assert "**If it is not what you want.**" in page.read_text()

"""Pages in a real browser, and upstream's own debug prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support.page_driver import settle
from ..support.upstream_prints import LLAMAS, PRINT, TREE

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture
def open_file(browser):
    """Opens a page's file; nothing may go wrong in it, and nothing may be asked for."""
    wrong, contexts = [], []

    def opened(path, width=1440, height=900, **settings):
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda r: r.url == path.as_uri() or wrong.append(r.url))
        page.goto(path.as_uri())
        settle(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def axe():
    """A function that lists the violations axe finds in a page, a line for each element."""
    if not AXE.is_file():
        pytest.skip("axe-core: `make pyodide` first")
    source = AXE.read_text(encoding="utf-8")

    def violations(page):
        found = page.evaluate(f"{source}; axe.run().then(result => result.violations)")
        return [f"{rule['id']}: {node['html'][:160]} {node['failureSummary']}"
                for rule in found for node in rule["nodes"]]  # fmt: skip

    return violations


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("llama") / "llama.gguf"
    write_llama(path, LlamaSpec(n_layer=3, n_vocab=512))
    return str(path)


@pytest.fixture(scope="session")
def upstream_prints(pristine, model) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT.format(tree=TREE, llamas=LLAMAS, model=model)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "GGML_PY_UPSTREAM": pristine, "GGML_SCHED_DEBUG": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

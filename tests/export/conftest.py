"""Pages in a real browser."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def browser():
    """Chromium; skips what needs it where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: .[test-all]")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if path is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


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
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []

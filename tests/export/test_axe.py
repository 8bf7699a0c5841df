"""Axe, the checker of accessibility, has nothing against any view of the pages."""

from __future__ import annotations

import pytest

from ggml_py.export.page.to_html import render, render_plans, render_recording

from ..support.drawn_plans import llama, ran, spread
from ..support.drawn_records import recording
from ..support.measured import knows_all
from ..support.page_driver import settle

FALLBACK = llama(8, refused=("SOFT_MAX",))
PAGES = {
    "eight": lambda: render(spread(8)),
    "predicted": lambda: render(FALLBACK, None, knows_all([FALLBACK]).with_cards(CARDS)),
    "two": lambda: render(FALLBACK, FALLBACK.what_if(supports={("gpu0", "SOFT_MAX"): True})),
    "plans": lambda: render_plans([(f"{n}.json", llama(n)) for n in (8, 4, 2)]),
    "run": lambda: render(ran(FALLBACK)),
    "record": lambda: render_recording(recording(None)),
    "record with times": lambda: render_recording(recording()),
}
CARDS = {"gpu0": "rtx4090"}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_view(name, theme, axe, open_file, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    page = open_file(path, color_scheme=theme)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    found = {}
    for tab in page.locator("#tabs button").all():
        tab.click()
        settle(page)
        found[tab.inner_text()] = axe(page)
    page.evaluate("page.pick(0, 3)")
    page.fill("#search", "op:(")
    found["a node"] = axe(page)
    page.click("#tab-table")
    page.fill("#search", "")
    settle(page)
    found["a node in the table"] = axe(page)
    page.evaluate("page.pickArrow({p: 0, arrows: page.lanes.arrows[0]})")
    page.click("#help-button")
    found["help"] = axe(page)
    assert not any(found.values()), found

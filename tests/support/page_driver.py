"""What tests do with the page of a plan in a browser, and read from it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

# The position of a node's middle on the screen.
PLACE = """([p, t]) => {
    const lanes = page.lanes, box = document.getElementById('lanes').getBoundingClientRect();
    lanes.draw();
    const backend = page.plans[p].at(t, page.stage);
    const row = lanes.laid.rows.find(r => r.p === p && r.backend === backend);
    const x = (lanes.x(page.axis.start(p, t)) + lanes.x(page.axis.end(p, t))) / 2;
    return [box.left + x, box.top + row.y + row.h / 2];
}"""
# Returns the ids of all tensors.
EVERY = "[...Array(page.plans[0].total).keys()]"


def data_in(path):
    """The data of a page's file."""
    page = Path(path).read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def settle(page):
    """Waits until the page has drawn what was asked for."""
    frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.evaluate(f"{frame}.then(() => {frame})")


def until(page, expression):
    """Waits for a condition here, because the page's own policy forbids waiting in the page."""
    deadline = time.monotonic() + 10
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < deadline, expression
        time.sleep(0.02)


def shown(page):
    """The ids of the nodes in the table."""
    return page.eval_on_selector_all("tr[data-node]", "rows => rows.map(r => +r.dataset.node)")


def click(page, t, p=0):
    page.mouse.click(*page.evaluate(PLACE, [p, t]))


def details(page):
    return page.inner_text("#details")


def matches(page, p=0):
    return page.evaluate(f"[...page.match[{p}].keys()].filter(t => page.match[{p}][t])")


def picked(page):
    return page.evaluate("page.picked && page.picked.t")

"""The page of a comparison of releases in a real browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ggml_py as ggml
from ggml_py.releases import rule_cases

from ..support.cli_runs import run
from ..support.page_driver import data_in

CASES = {case.name: case.plan for case in rule_cases()}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def report(tmp_path):
    """A page of three cases, of which one is planned otherwise."""
    kept = tmp_path / "kept"
    kept.mkdir()
    plan = CASES["experts in host memory"]
    (first, *rest) = plan.outcome.placements
    outcome = replace(plan.outcome, placements=(first._replace(backend=1 - first.backend), *rest))
    ggml.Plan(plan.capture, outcome).to_json(kept / f"{HOSTILE.replace('/', '')}.json.gz")
    for name in ("a reserve with pins", "experts in host memory"):
        CASES[name].to_json(kept / f"{name}.json.gz")
    done = run("ci", kept, "--html", tmp_path / "out.html")
    assert done.returncode == 1, done.stderr
    return tmp_path / "out.html"


def shown(page):
    return page.eval_on_selector_all(".case .tag", "all => all.map(tag => tag.innerText)")


def test_it_begins_with_what_differs(report, open_file):
    page = open_file(report)
    (state,) = shown(page)
    assert state not in ("same", "no plan", "allowed")
    assert HOSTILE in page.inner_text("#cases") and page.locator("img").count() == 0
    assert page.locator(".case .bar").count() == 2
    page.click("#states button:has-text('2 same')")
    assert sorted(shown(page)) == sorted([state, "same", "same"])
    page.fill("#search", "PINS nowhere")
    assert shown(page) == []
    page.fill("#search", "pins")
    assert shown(page) == ["same"] and page.inner_text("#found") == "1 of 3"


def test_strips_have_every_split(report, open_file):
    open_file(report)
    for case in data_in(report)["cases"]:
        for side in case["sides"]:
            assert sum(n for _backend, n, _copied in side["splits"]) > 0


def test_a_phone(report, open_file):
    page = open_file(report, width=360, height=740, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_has_nothing_against_it(report, open_file, axe, theme):
    page = open_file(report, color_scheme=theme)
    page.click("#states button:has-text('2 same')")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert axe(page) == []

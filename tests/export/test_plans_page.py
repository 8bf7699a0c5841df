"""The page of three plans or more, in a real browser."""

from __future__ import annotations

import pytest

from ggml_py.export.page import of_record
from ggml_py.export.page.of_plans import of_plans
from ggml_py.export.page.to_html import render_plans

from ..support.cli_runs import fails, ok
from ..support.drawn_plans import HOSTILE, llama
from ..support.measured import knows_all
from ..support.page_driver import details, settle, until

PLANS = {
    "all.json": llama(8), "few.json": llama(8, refused=("SOFT_MAX",)), "small.json": llama(4),
    HOSTILE: llama(2, suffix=HOSTILE),
}  # fmt: skip


@pytest.fixture(scope="module")
def machine():
    return knows_all([*PLANS.values()]).with_cards({"gpu0": "rtx4090"})


@pytest.fixture
def opened(open_file, tmp_path):
    def opened(**given):
        path = tmp_path / "page.html"
        path.write_text(render_plans([*PLANS.items()], **given), encoding="utf-8")
        return open_file(path)

    return opened


def rows(page):
    return page.eval_on_selector_all("#rail .plan", "all => all.map(one => one.innerText)")


def test_each_has_its_time_memory_and_splits_beside_the_others(opened, machine):
    page = opened(machine=machine)
    told = rows(page)
    for i, (name, plan) in enumerate(PLANS.items()):
        assert f"{i} {name}"[:20] in told[i]
        assert f"{plan.n_splits} splits, {plan.n_inputs} copies" in told[i]
        device = next(iter(of_plans([(name, plan)]).programs[0].plans[0].beside.memory))
        assert f"{device[0]}: " in told[i]
    listed = of_plans([*PLANS.items()], machine).programs[0].plans
    took = [one.beside.ns for one in listed]
    widths = page.eval_on_selector_all("#rail .meter", "all => all.map(one => one.offsetWidth)")
    assert min(took) > 0 and len(widths) == len(took)
    assert sorted(range(4), key=took.__getitem__) == sorted(range(4), key=widths.__getitem__)
    assert listed[1].difference.startswith("It takes ")
    assert listed[1].difference not in "".join(told)  # only of the plan that is shown


def test_one_is_chosen(opened, machine):
    page = opened(machine=machine)
    assert page.evaluate("page.number") == 0 and page.evaluate("page.shown") == "lanes"
    page.click("#rail .plan >> nth=1")
    settle(page)
    assert page.evaluate("page.number") == 1
    assert page.inner_text("#headline").startswith("Plan 1, few.json: 26 splits")
    assert "It takes " in rows(page)[1] and "It takes " not in rows(page)[2]
    n = page.evaluate("page.plans[0].splits.length")
    assert n == PLANS["few.json"].n_splits
    page.evaluate("location.hash = 'plan=2'")
    until(page, "page.number === 2")


def test_without_times(opened):
    page = opened()
    assert page.query_selector("#rail .meter") is None
    assert "26 splits" in rows(page)[1]


def test_what_has_no_room_is_listed_with_its_time(opened, machine, monkeypatch):
    monkeypatch.setattr(of_record, "MOST_NODES", len(PLANS["all.json"].nodes) + 1)
    page = opened(machine=machine)
    assert "3 of 4 plans are only listed: there is room for" in page.inner_text("#rail")
    page.click("#rail .plan >> nth=1")
    assert "only listed here" in details(page) and "(data sheets)" in details(page)
    assert page.evaluate("page.number") == 0


def test_from_the_command_line(tmp_path):
    files = [tmp_path / name for name in list(PLANS)[:3]]
    for file in files:
        PLANS[file.name].to_json(file)
    ok("view", *files, "-o", tmp_path / "plans.html")
    page = (tmp_path / "plans.html").read_text("utf-8")
    assert all(file.name in page for file in files) and str(tmp_path) not in page
    said = fails("view", *files, code=2)
    assert "3 plans are a page: give -o OUT.html or --open" in said
    assert "3 plans are a page" in fails("view", *files, "-o", tmp_path / "p.md", code=2)
    (tmp_path / "more").mkdir()
    PLANS["small.json"].to_json(tmp_path / "more/all.json")
    ok("view", *files, tmp_path / "more/all.json", "-o", tmp_path / "four.html")
    assert str(tmp_path) in (tmp_path / "four.html").read_text("utf-8")  # names would be the same

"""Predicted times on the page of a plan."""

from __future__ import annotations

import re

import pytest

from ggml_py.export import formats
from ggml_py.export.predicted_times import PREDICTED, predicted_times

from ..support.cli_runs import fails, ok
from ..support.drawn_plans import llama
from ..support.measured import knows_all, machine
from ..support.page_driver import details


@pytest.fixture(scope="module")
def plan():
    return llama(4, refused=("SOFT_MAX",))


@pytest.fixture(scope="module")
def known(plan):
    """A machine that knows all work of the plan: the card from its data sheet."""
    return knows_all([plan]).with_cards({"gpu0": "rtx4090"})


def test_times_are_those_of_the_cost(plan, known):
    cost = plan.cost(known)
    times = predicted_times(cost)
    assert times.total == round(1e9 * cost.seconds)
    for node in cost.nodes:
        assert times.nodes[node.id] == round(1e9 * node.seconds)
    assert [split.ns for split in times.splits] == [round(1e9 * s.seconds) for s in cost.splits]
    assert {split.known for split in times.splits} == {PREDICTED}
    assert len(times.copies) == plan.n_inputs


def test_what_is_not_known_has_no_time(plan):
    times = predicted_times(plan.cost(machine()))
    assert all(ns == -1 for node, ns in zip(plan.nodes, times.nodes, strict=True)
               if node.is_computed)  # fmt: skip
    assert "nodes and copies of which nothing was measured" in times.compute


def test_the_page_shows_them(plan, known, open_file, tmp_path):
    cost = plan.cost(known)
    plan.export(tmp_path / "plan.html", machine=known)
    page = open_file(tmp_path / "plan.html")
    assert page.input_value("#axis") == "time"
    text = " ".join(page.inner_text("#glance").split())
    assert "data sheets (" in text and f"bound by {cost.bound}" in text
    longest = max(cost.nodes, key=lambda node: node.seconds)
    page.evaluate(f"page.pick(0, {longest.id}, true)")
    shown = " ".join(details(page).split())
    assert re.search(r"takes predicted [\d.]+ (µs|ms|ns)", shown)
    page.evaluate("document.activeElement.blur(); page.view('table')")
    assert page.is_visible("th:has-text('time')")


def test_a_node_that_is_not_known_says_so(plan, open_file, tmp_path):
    plan.export(tmp_path / "plan.html", machine=machine())
    page = open_file(tmp_path / "plan.html")
    page.evaluate(f"page.pick(0, {next(n.id for n in plan.nodes if n.is_computed)}, true)")
    assert "an unknown time: nothing like it was measured" in " ".join(details(page).split())


def test_two_plans_have_both(plan, known, open_file, tmp_path):
    other = plan.what_if(supports={("gpu0", "SOFT_MAX"): True})
    plan.export(tmp_path / "two.html", other=other, machine=known)
    page = open_file(tmp_path / "two.html")
    assert page.evaluate("page.plans.every(p => p.predicted)")


def test_other_formats_have_none(plan, known):
    for exporter in formats.EXPORTERS:
        if not exporter.predicts:
            assert formats.render(plan, exporter, None, known) == formats.render(plan, exporter)


def test_from_the_command_line(plan, known, tmp_path):
    plan.to_json(tmp_path / "plan.json")
    known.save(tmp_path / "machine.json")
    ok("view", tmp_path / "plan.json", "-o", tmp_path / "v.html", "--machine",
       tmp_path / "machine.json")  # fmt: skip
    assert '"predicted"' in (tmp_path / "v.html").read_text("utf-8")
    ok("plan", tmp_path / "plan.json", "-o", tmp_path / "p.html", "--machine",
       tmp_path / "machine.json")  # fmt: skip
    assert '"predicted"' in (tmp_path / "p.html").read_text("utf-8")
    ok("view", tmp_path / "plan.json", "-o", tmp_path / "n.html")
    assert '"predicted"' not in (tmp_path / "n.html").read_text("utf-8")
    said = fails("view", tmp_path / "plan.json", "--machine", tmp_path / "machine.json", code=2)
    assert "--machine adds predicted times to a page" in said

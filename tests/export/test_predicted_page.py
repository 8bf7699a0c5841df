"""Predicted times on the page of a plan."""

from __future__ import annotations

import re

import pytest

from ggml_py.export import formats
from ggml_py.export.predicted_times import PREDICTED, predicted_times

from ..support.cli_runs import fails, ok
from ..support.drawn_plans import llama
from ..support.measured import knows_all, machine
from ..support.page_driver import details, settle


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


COPIED = """page.plans[0].splits.map(split => [page.axis.copiesStart(0, split),
    page.axis.start(0, split.start)])"""


def test_copies_are_as_wide_as_their_time(plan, known, open_file, tmp_path):
    cost = plan.cost(known)
    plan.export(tmp_path / "plan.html", machine=known)
    page = open_file(tmp_path / "plan.html")
    per_second = page.evaluate("page.axis.scale") * 1e9
    taken = [0.0] * plan.n_splits
    for copy in cost.copies:
        taken[copy.split] += copy.seconds
    assert any(taken)
    spans = page.evaluate(COPIED)
    for (begin, end), seconds in zip(spans, taken, strict=True):
        assert end - begin == pytest.approx(seconds * per_second, abs=per_second * 1e-9)
    for split, (begin, _end) in zip(plan.splits, spans, strict=True):  # after the nodes before it
        before = page.evaluate(f"page.axis.end(0, {split.nodes[0].id - 1})") if split.index else 0
        assert begin >= before - 1e-9
    tracks = page.evaluate("page.lanes.laid.tracks.map(t => page.plans[0].backendName(t.backend))")
    assert tracks == ["gpu0", "CPU"]


def test_a_click_on_a_copy_shows_it(plan, known, open_file, tmp_path):
    plan.export(tmp_path / "plan.html", machine=known)
    page = open_file(tmp_path / "plan.html")
    split = next(s for s in plan.splits if s.backend == "CPU")
    page.mouse.click(*page.evaluate(f"""(() => {{
        const {{lanes, axis, plans}} = page, split = plans[0].splits[{split.index}];
        const track = lanes.trackOf(lanes.laid, 0, split.backend);
        const box = lanes.canvas.getBoundingClientRect();
        const x = (lanes.x(axis.copiesStart(0, split)) + lanes.x(axis.start(0, split.start))) / 2;
        return [box.left + x, box.top + track.y + track.h / 2];
    }})()"""))
    assert f"copies into split #{split.index}" in details(page).lower()
    page.select_option("#axis", "order")  # where a width is no time, only bytes are known of them
    settle(page)
    assert page.evaluate("page.lanes.laid.tracks") == []
    assert all(begin == end for begin, end in page.evaluate(COPIED))


def test_without_times_copies_have_no_lane(plan, open_file, tmp_path):
    plan.export(tmp_path / "plan.html")
    page = open_file(tmp_path / "plan.html")
    assert page.evaluate("page.axis.name") == "order"
    assert page.evaluate("page.lanes.laid.tracks") == []


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
    assert "--machine adds predicted times to a page or a profile" in said

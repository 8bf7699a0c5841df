"""The page of a plan in a real browser: what it shows, and what clicks and keys do to it."""

from __future__ import annotations

from itertools import pairwise

import pytest

import ggml_py as ggml
from ggml_py.advice.two_plans import verdict_of_change
from ggml_py.export import rows
from ggml_py.export.page.first_screen import ModelAnswers
from ggml_py.export.page.to_html import render
from ggml_py.export.palette import COLORS, contrast
from ggml_py.trace.answers.remedy import Remedy

from ..support.drawn_plans import HOSTILE, llama, ran, smallest, waited_late
from ..support.page_driver import EVERY, click, details, matches, picked, shown, until


@pytest.fixture(scope="module")
def made(plans):
    fallback = llama(8, refused=("SOFT_MAX",))
    return {
        "fallback": (fallback,),
        "golden": (plans["mlp"],),
        "views": (plans["views"],),
        "empty": (smallest(),),
        "log": (ggml.Plan.from_debug_log(plans["mlp"].text()),),
        "hostile": (llama(4, suffix=HOSTILE, refused=("SOFT_MAX",)),),
        "large": (llama(1000, refused=("SOFT_MAX",)),),
        "run": (ran(fallback),),
        "splits": (waited_late(fallback),),
        "many": (llama(40, refused=("SOFT_MAX",)),),
        "two": (fallback, fallback.what_if(supports={("gpu0", "SOFT_MAX"): True})),
    }


@pytest.fixture(scope="module")
def files(made, tmp_path_factory):
    """The page of each, written when it is asked for."""
    folder = tmp_path_factory.mktemp("pages")

    def path(name):
        page = folder / f"{name}.html"
        if not page.exists():
            plan, *other = made[name]
            settings = {"other": other[0]} if other else {}
            plan.export(page, **settings)
        return page

    return path


@pytest.fixture
def open_page(files, open_file):
    """Opens the page of a plan."""
    return lambda name, **settings: open_file(files(name), **settings)


def test_the_first_glance_tells_what_is_wrong(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    glance = page.inner_text("#glance").lower()
    n = sum(node.backend == "CPU" for node in plan.nodes)
    assert "not on gpu0, and why" in glance and f"{n} nodes" in glance
    assert "16× soft_max on cpu op" in " ".join(glance.split())
    assert "gpu0 does not support soft_max" in glance
    for finding in plan.advice():
        assert finding.id.lower() in glance
        assert (finding.headline or finding.title).lower() in glance
    assert page.inner_text("#headline") == plan.headline()


def test_a_finding_leads_to_its_nodes(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    finding = next(f for f in plan.advice() if f.id == "GP101")
    page.click(f"summary:has-text('{finding.id}')")
    page.click(f"details.finding:has-text('{finding.id}') button:has-text('Show')")
    assert matches(page) == [t.id for t in finding.tensors]
    assert picked(page) == finding.tensors[0].id
    assert finding.id in page.inner_text("#chosen")
    page.click("#unchoose")
    assert len(matches(page)) == len(plan.nodes)


def test_a_click_on_a_node_explains_it(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    node = next(n for n in plan.nodes if n.op == "SOFT_MAX")
    click(page, node.id)
    text = " ".join(details(page).split())
    assert node.name in text and "Why on CPU" in text and "Why not on gpu0" in text
    why = plan.why_not(node, "gpu0")
    assert why.reasons[0].text in text and why.reasons[0].changes[0].text in text
    for link in plan.explain(node).links:
        assert link.text in text
    page.click("#details .why-not button")
    assert matches(page) == [n.id for n in plan.nodes if n.op == "SOFT_MAX"]
    page.focus("#details a.ref >> nth=0")  # a name in the explanation leads on
    page.keyboard.press("Enter")
    assert picked(page) not in (None, node.id)


@pytest.mark.parametrize("name", ["golden", "views", "fallback", "hostile", "log", "empty"])
def test_explanations_are_those_of_python(made, open_page, name):
    (plan,) = made[name]
    page = open_page(name)
    told = page.evaluate(f"{EVERY}.map(t => page.plans[0].explain(t))")
    for t in (*plan.nodes, *plan.leafs):
        lines = str(plan.explain(t)).splitlines()
        assert told[t.id].splitlines() == [x for x in lines if not x.startswith("  ? ")]


def test_reasons_are_those_of_python(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    told = page.evaluate(
        "page.plans[0].data.not.map(rows => rows.map(row => page.plans[0].text(row[2])))"
    )
    for node in plan.nodes:
        expected = [plan.why_not(node, "gpu0").reasons[0].text] if node.backend == "CPU" else []
        assert told[node.id] == expected


def test_a_click_on_an_arrow_lists_what_is_copied(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    page.evaluate("page.pick(0, 8); page.unpick(); page.lanes.draw()")
    x, y, split = page.evaluate("""() => {
        const box = document.getElementById('lanes').getBoundingClientRect();
        const hit = page.lanes.arrowHits.find(h => h.x > 300 && h.x < box.width - 50);
        return [box.left + hit.x, box.top + (hit.y1 + hit.y2) / 2, hit.arrow.split];
    }""")
    page.mouse.click(x, y)
    text = details(page)
    assert f"Copies into split #{split}" in text
    for given in plan.splits[split].inputs:
        assert given.tensor.name in text
    page.click("#details .chain a.ref >> nth=0")
    assert "A COPY" in details(page).upper() and "read by" in details(page)
    page.evaluate(f"page.pick(0, {plan.splits[split].start})")  # and without a pointer
    page.focus("#details button:has-text('copied from')")
    page.keyboard.press("Enter")
    assert details(page) == text


def test_searching(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    page.fill("#search", "rope_2-3")
    assert matches(page) == [n.id for n in plan.nodes if n.name == "rope_2-3"]
    assert page.inner_text("#found") == f"1 of {len(plan.nodes)}"
    page.press("#search", "Enter")
    assert picked(page) == matches(page)[0]
    page.fill("#search", "soft_max")
    found = matches(page)
    assert found == [n.id for n in plan.nodes if n.op == "SOFT_MAX"]
    page.evaluate("page.unpick()")
    page.press("#search", "Enter")
    page.press("#search", "Enter")
    assert picked(page) == found[1]
    page.click("#previous")
    assert picked(page) == found[0]
    page.fill("#search", "#17")
    assert matches(page) == [17]
    page.fill("#search", "nothing has this name")
    assert matches(page) == []
    page.click("#clear")
    assert len(matches(page)) == len(plan.nodes) and page.input_value("#search") == ""


def test_filters_work_together(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    page.select_option("#f-backend", "CPU")
    page.select_option("#f-op", "ROPE")
    rope = [n for n in plan.nodes if n.backend == "CPU" and n.op == "ROPE"]
    assert matches(page) == [n.id for n in rope]
    code = rope[0].cause.code
    page.select_option("#f-cause", code)
    assert matches(page) == [n.id for n in rope if n.cause.code == code]
    page.click("#tab-table")
    assert shown(page) == matches(page)


def test_layers_fold_and_unfold(open_page):
    page = open_page("fallback")
    width = "page.axis.runs.map(r => page.axis.pos[r.end] - page.axis.pos[r.start])"
    wide = page.evaluate(width)
    page.check("#fold")
    folded = page.evaluate(width)
    assert len(folded) == 8 and all(a < b for a, b in zip(folded, wide, strict=True))
    x, y = page.evaluate("""() => {
        page.lanes.draw();
        const box = document.getElementById('lanes').getBoundingClientRect();
        const hit = page.lanes.rulerHits.find(h => h.layer === 3);
        return [box.left + hit.x + hit.w / 2, box.top + 8];
    }""")
    page.mouse.click(x, y)  # a layer alone
    assert [a == b for a, b in zip(page.evaluate(width), wide, strict=True)] == [
        layer == 3 for layer in range(8)
    ]
    assert not page.is_checked("#fold")
    page.keyboard.press("f")
    page.keyboard.press("f")
    assert page.evaluate(width) == wide
    page.evaluate("page.pick(0, 25)")
    page.keyboard.press("l")  # the layer of the node
    assert page.evaluate("[...page.folded]") == [2]
    page.keyboard.press("l")
    assert page.evaluate(width) == wide


def test_the_slider_shows_each_pass(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    page.focus("#stage")
    for stage in reversed(range(7)):
        page.keyboard.press("ArrowLeft")
        at = page.evaluate(f"{EVERY}.map(t => page.plans[0].at(t, page.stage))")[: len(plan.nodes)]
        assert at == [n.placement.passes[stage] for n in plan.nodes]
        for leaf in plan.leafs[:3]:
            at = page.evaluate(f"page.plans[0].at({leaf.id}, {stage})")
            assert at == leaf.placement.passes[stage]
    told = page.inner_text("#stage-name")
    placed = sum(n.placement.passes[0] >= 0 for n in plan.nodes)
    assert told.startswith(f"1: +{placed}")
    lanes = page.evaluate("page.lanes.draw(); page.lanes.laid.rows.map(r => r.backend)")
    assert lanes == [0, 1, -1]  # the last is of those that have no backend yet
    low = page.evaluate("Math.max(...page.lanes.laid.rows.map(r => r.y + r.h)) - page.lanes.height")
    assert low < 0  # it is in view
    assert "on no backend yet" in page.inner_text("#legend")
    click(page, 2)  # a node that pass 1 did not place, in the lane of those
    assert picked(page) == 2
    page.keyboard.press("]")
    assert page.evaluate("page.stage") == 1


def test_keys(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback")
    seen = set()
    for _ in range(30):  # everything is reached
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"tab-lanes", "theme", "search", "f-op", "fold", "stage", "lanes", "SUMMARY"} <= seen
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert picked(page) == 1 and plan.nodes[1].name in page.inner_text("#said")
    page.keyboard.press("ArrowLeft")
    assert picked(page) == 0
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("rope")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert len(matches(page)) == len(plan.nodes)
    page.keyboard.press("0")
    scale = page.evaluate("page.lanes.scale")
    page.keyboard.press("+")
    assert page.evaluate("page.lanes.scale") > scale
    page.keyboard.press("0")
    assert page.evaluate("page.lanes.scale") == scale
    page.keyboard.press("t")
    assert page.is_visible("#table-view") and not page.is_visible("#lanes-view")
    page.focus("#table-scroll")
    for key in ("End", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    assert picked(page) == len(plan.nodes) - 3
    assert page.get_attribute(f"tr[data-node='{picked(page)}']", "aria-selected") == "true"
    page.keyboard.press("t")
    page.keyboard.press("?")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    assert not page.is_visible("#help")


def test_the_wheel_zooms_and_a_drag_moves(open_page):
    page = open_page("fallback")
    box = page.locator("#lanes").bounding_box()
    x, y = box["x"] + 500, box["y"] + 100
    page.mouse.move(x, y)
    before = page.evaluate("[page.lanes.scale, page.lanes.x0 + (500 - 92) / page.lanes.scale]")
    page.mouse.wheel(0, -800)
    until(page, f"page.lanes.scale > {before[0] * 2}")
    after = page.evaluate("[page.lanes.x0, page.lanes.x0 + (500 - 92) / page.lanes.scale]")
    assert after[1] == pytest.approx(before[1], abs=0.1)  # what is under the pointer stays there
    page.mouse.down()
    page.mouse.move(x - 120, y, steps=4)
    page.mouse.up()
    assert page.evaluate("page.lanes.x0") > after[0] and picked(page) is None


def test_the_minimap_shows_all_and_leads_there(open_page):
    page = open_page("fallback")
    lines = page.evaluate("""() => {  // through the row of gpu0, and of the CPU
        const {width, height} = page.minimap.image, g = page.minimap.image.getContext('2d');
        const all = g.getImageData(0, 0, width, height).data;
        return [0.25, 0.75].map(row => 4 * width * Math.floor(row * height))
            .map(start => [...all.slice(start, start + 4 * width)]);
    }""")
    for line, names in zip(lines, (("b0",), ("off-op", "off-weight")), strict=True):
        drawn = {"#" + bytes(line[i : i + 3]).hex() for i in range(0, len(line), 4)}
        assert {COLORS[name].light for name in names} <= drawn
    page.evaluate("page.lanes.view(0, page.lanes.fitScale() * 6)")
    box = page.locator("#minimap").bounding_box()
    at = "page.lanes.x0 + (page.lanes.width - 92) / page.lanes.scale / 2"
    spot = page.evaluate("92 + 16 + page.axis.length * 0.6 * page.minimap.scale")
    page.mouse.move(box["x"] + spot, box["y"] + 20)
    page.mouse.down()
    length = page.evaluate("page.axis.length")
    assert page.evaluate(at) == pytest.approx(0.6 * length, rel=0.02)
    page.mouse.move(box["x"] + spot / 2, box["y"] + 20, steps=3)  # and a drag goes on
    assert page.evaluate(at) < 0.4 * length
    page.mouse.up()


def test_the_table_sorts(made, open_page):
    (plan,) = made["golden"]
    page = open_page("golden")
    page.click("#tab-table")
    page.click("th:has-text('bytes') button")
    order = shown(page)
    cost = {n.node: n.bytes for n in rows.node_rows(plan)}
    assert order == sorted(cost, key=lambda i: (-cost[i], i))
    assert page.get_attribute("th:has-text('bytes')", "aria-sort") == "descending"
    page.click(f"tr[data-node='{order[1]}']")
    assert picked(page) == order[1]


def test_two_plans_beside_each_other(made, open_page):
    before, after = made["two"]
    diff = before.diff(after)
    page = open_page("two")
    assert page.inner_text("#verdict") == verdict_of_change(before, after, diff)
    assert page.inner_text("#headline") == ""
    glance = page.inner_text("#glance")
    for title, found in diff.sections():
        assert f"{title} ({len(found)})" in glance
    page.click("button:has-text('changed node')")
    changed = [c.before.index for c in diff.changed if c.before.index is not None]
    assert matches(page, 0) == matches(page, 1) == changed
    node = next(n for n in before.nodes if n.op == "SOFT_MAX")
    page.keyboard.press("Escape")
    page.evaluate("page.lanes.view(0, 30)")
    click(page, node.id, 1)
    assert page.evaluate("page.picked") == {"p": 1, "t": node.id}
    sides = page.eval_on_selector_all(".sides tbody tr", "rows => rows.map(r => r.innerText)")
    assert [row.split("\t") for row in sides] == [
        ["moved", "CPU", "gpu0"], ["cause", node.cause.code, after.nodes[node.id].cause.code],
        ["takes", "–", "–"],
    ]  # fmt: skip
    page.keyboard.press("t")
    row = page.inner_text(f"tr[data-node='{node.id}'][data-plan='0']").split("\t")
    assert [cell.strip() for cell in row][3:8] == [
        "CPU", node.cause.code, str(node.id), "gpu0", after.nodes[node.id].cause.code
    ]


def test_a_run_in_measured_time(made, open_page):
    (run,) = made["run"]
    (plan,) = run.plans
    page = open_page("run")
    assert page.input_value("#axis") == "time"
    width = "t => page.axis.end(0, t) - page.axis.start(0, t) - 0.1"
    split = next(s for s in plan.splits if s.end - s.start > 3)
    one, two = (page.evaluate(f"({width})({split.start + i})") for i in (0, 1))
    assert two == pytest.approx(2 * one)  # it took twice as long
    text = page.inner_text("#glance")
    assert "compute 2 of 3, the median of the 3 with this plan" in text
    page.evaluate(f"page.pick(0, {split.start + 1}, true)")
    assert "4.0 µs" in details(page)
    page.select_option("#axis", "order")
    one, two = (page.evaluate(f"({width})({split.start + i})") for i in (0, 1))
    assert one == two
    page.keyboard.press("t")
    page.evaluate("document.activeElement.blur(); page.view('table')")
    assert page.is_visible("th:has-text('time')")


def test_light_and_dark(open_page):
    page = open_page("golden", color_scheme="dark")
    theme = "document.documentElement.dataset.theme"
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(theme) == "dark"
    dark = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate(theme) == "light" and page.evaluate(ground) != dark
    assert open_page("golden", color_scheme="light").evaluate(theme) == "light"


def test_the_legend_is_of_what_there_is(open_page):
    page = open_page("golden")
    assert page.inner_text("#legend").split() == ["BLAS", "CPU"]  # nothing is copied
    page = open_page("fallback")
    colors = page.evaluate("[...new Set(page.colors.flat())].sort()")
    assert colors == ["b0", "off-op", "off-other", "off-weight"]
    for color in colors:  # what is written in a block is read
        told = f"[page.lanes.colors['{color}'], page.lanes.colors['on-{color}']]"
        assert contrast(*page.evaluate(told)) >= 4.5
    assert page.inner_text("#legend").count("on the host:") == 3


def test_printing(made, open_page):
    (plan,) = made["fallback"]
    page = open_page("fallback", color_scheme="dark")
    assert len(page.pdf()) > 10_000  # a browser prints it
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.is_visible("#printed img") and not page.is_visible("main")
    assert page.text_content("#printed .legend") == page.text_content("#legend") != ""
    assert page.eval_on_selector_all(  # no number of a split is broken in two
        "#printed td:first-child", "cells => cells.every(c => c.offsetHeight < 40)"
    )
    assert not page.is_visible("button:has-text('Show')")
    text = page.inner_text("body")
    assert plan.headline() in text and plan.advice()[0].suggestion in text
    assert page.locator("#printed tbody tr").count() == plan.n_splits
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.is_visible("#lanes") and not page.is_visible("#printed")


def test_hostile_names_are_text(made, open_page):
    (plan,) = made["hostile"]
    page = open_page("hostile")
    node = next(n for n in plan.nodes if n.op == "SOFT_MAX")
    page.evaluate(f"page.pick(0, {node.id}, true)")
    for action in ("page.view('table')", "page.view('lanes')", "page.print()", "page.printed()"):
        page.evaluate(action)
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert page.evaluate("document.querySelector('#details h2').textContent") == node.name


def test_small_plans_and_logs(made, open_page):
    page = open_page("empty")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("t")
    assert page.locator("tr[data-node]").count() == 1
    page = open_page("log")
    assert "log" in page.inner_text("#glance") and not page.is_visible("#stage")
    click(page, 0)
    assert made["log"][0].nodes[0].name in details(page)


def test_ten_thousand_nodes(made, open_page):
    (plan,) = made["large"]
    page = open_page("large")
    page.keyboard.press("t")
    page.evaluate("page.get('table-scroll').scrollTop = 1e9")
    until(page, f"document.querySelector('tr[data-node=\"{len(plan.nodes) - 1}\"]')")
    assert page.locator("tr[data-node]").count() < 120
    page.keyboard.press("t")
    page.fill("#search", "soft_max_3-777")
    page.press("#search", "Enter")
    node = plan.node("soft_max_3-777")
    assert picked(page) == node.id
    click(page, node.id)
    assert picked(page) == node.id and "does not support" in details(page)


def test_a_narrow_window_and_a_link_to_a_node(open_page):
    page = open_page("golden", width=390, height=800)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 400
    page.goto(page.url.partition("#")[0] + "#h")
    page.reload()
    assert page.evaluate("page.plans[0].label(page.picked.t)") == "h"


def state(page):
    return page.evaluate(
        "[page.picked && [page.picked.p, page.picked.t], page.filters, page.axisName, page.stage,"
        " page.get('table-view').hidden, page.get('f-op').value, page.get('search').value]"
    )


def test_the_address_has_what_is_shown(open_page):
    page = open_page("fallback")
    whole = state(page)
    click(page, 7)
    page.wait_for_timeout(600)  # quicker steps are one step back
    page.keyboard.press("ArrowRight")
    page.select_option("#f-op", "SOFT_MAX")
    page.fill("#search", "3")
    page.select_option("#axis", "bytes")
    page.evaluate("page.setStage(2)")
    page.click("#tab-table")
    shown = state(page)
    address = page.url
    assert "#node=" in address and "op=SOFT_MAX" in address and "pass=2" in address
    page.go_back()
    until(page, "page.picked.t === 7")
    assert state(page)[1:] == whole[1:]
    page.go_forward()
    until(page, "page.picked.t !== 7")
    assert state(page) == shown
    other = page.context.new_page()
    other.goto(address)
    assert state(other) == shown


@pytest.mark.parametrize(
    "typed",
    ["node=99999999", "node=x&op=NONE&width=no&pass=99&view=no", "%E0%A4%A", "node=after:7"],
)
def test_an_address_that_somebody_typed(typed, open_page):
    page = open_page("fallback")
    page.evaluate(f"location.hash = {typed!r}")
    page.wait_for_timeout(50)
    assert picked(page) in (None, 7) and page.evaluate("page.stage <= page.lastStage")
    assert not page.evaluate("page.filtered")


def test_arrow_keys_change_tabs(open_page):
    page = open_page("fallback")
    page.focus("#tab-lanes")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-table" and picked(page) is None
    assert page.get_attribute("#tab-table", "aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.id") == "tab-lanes"


def test_the_tip_is_inside_of_a_narrow_window(open_page):
    page = open_page("fallback", width=390, height=800)
    box = page.evaluate("page.lanes.canvas.getBoundingClientRect().toJSON()")
    for x in range(int(box["x"]) + 110, int(box["x"] + box["width"]), 25):
        page.mouse.move(x, box["y"] + box["height"] / 3)
        tip = page.evaluate("page.get('tip').getBoundingClientRect().toJSON()")  # 0 if it is hidden
        assert tip["left"] >= 0 and tip["right"] <= 390
    wide = page.evaluate("""[200, 385].map(clientX => {
        page.tipAt(page.get('tip'), {clientX, clientY: 9}, 'some words '.repeat(20));
        return page.get('tip').offsetWidth;
    })""")
    assert wide[0] == wide[1] > 300  # not squeezed at the edge


def test_a_link_to_a_node_after(open_page):
    page = open_page("two")
    page.evaluate("location.hash = 'node=after:5'")
    until(page, "page.picked && page.picked.p === 1 && page.picked.t === 5")


def test_a_run_of_which_only_splits_were_measured(open_page):
    """Found wrong: nodes had equal parts of their split's time, bounds looked as if measured."""
    page = open_page("splits")
    split = (known := page.evaluate("page.plans[0].time.splits.map(s => s[1])")).index("at most")
    assert "measured" in known and page.evaluate("page.axis.together(0, 0)")
    page.evaluate(f"page.pick(0, page.plans[0].splits[{split}].start, true)")
    assert f"not measured alone; its split #{split} took at most" in details(page)


def test_back_from_the_plan_beside(made, open_file, tmp_path):
    (plan,) = made["fallback"]
    after = plan.what_if(supports={("gpu0", "SOFT_MAX"): True})
    best = Remedy("-ngl 99", after, "fewer bytes", "not checked", "bytes")
    (tmp_path / "page.html").write_text(
        render(plan, None, None, ModelAnswers((), best)), encoding="utf-8"
    )
    page = open_file(tmp_path / "page.html")
    steps = [
        (lambda: page.click("button:has-text('See that plan')"), True),
        (page.go_back, False),
        (page.go_forward, True),
        (lambda: page.click("button:has-text('Show this plan alone')"), False),
    ]
    for step, beside in steps:
        with page.expect_event("load"):
            step()
        assert page.evaluate("Boolean(page.diff)") == beside == ("#beside" in page.url)


def test_labels_and_small_text_have_their_room(open_page):
    page = open_page("many")
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        page.click("#tab-layers")
        ends = page.eval_on_selector_all(
            ".heat thead th", """all => all.map(th => {
                const range = document.createRange();
                range.selectNodeContents(th);
                return [range.getBoundingClientRect().left, range.getBoundingClientRect().right];
            })"""
        )  # fmt: skip
        assert len(ends) > 5 and all(a[1] < b[0] for a, b in pairwise(ends))
    sizes = page.eval_on_selector_all(
        ".big:has(small)",
        "all => all.map(one => [one.offsetHeight, one.lastChild.getClientRects().length])",
    )
    assert max(n for _, n in sizes) > 1  # lines
    assert all(high < 28 + 17 * (n - 1) for high, n in sizes)
    padding = page.evaluate("""(() => {
        document.body.insertAdjacentHTML('beforeend', '<span class="severity note"></span>');
        return getComputedStyle(document.body.lastChild).padding;
    })()""")
    assert padding == "0px 6px"

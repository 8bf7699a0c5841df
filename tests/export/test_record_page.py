"""The page of a record or a run: the list of its plans and the timeline, in a real browser."""

from __future__ import annotations

import json
from statistics import median

import pytest

from ggml_py.export.page import of_record
from ggml_py.export.page.of_record import PageProcess, PageRecord
from ggml_py.export.page.to_html import render, render_recording
from ggml_py.trace.recorded import AT_MOST, MEASURED, NODES, NOT_KNOWN

from ..support.drawn_plans import HOSTILE, llama, ran, waited_late
from ..support.drawn_records import (
    FALLBACK,
    OTHER,
    RUN,
    UNUSED,
    listed,
    recording,
    unwaited,
)  # fmt: skip
from ..support.measured import knows_all
from ..support.page_driver import EVERY, details, matches, picked, until


@pytest.fixture(scope="module")
def machine():
    return knows_all([FALLBACK, OTHER, UNUSED]).with_cards({"gpu0": "rtx4090"})


@pytest.fixture
def opened(open_file, tmp_path):
    """Opens the page of a recording, or of the one above."""

    def opened(given=None, machine=None, hash="", **settings):
        path = tmp_path / "page.html"
        path.write_text(render_recording(given or recording(), machine), encoding="utf-8")
        page = open_file(path, **{"width": 1366, "height": 768, **settings})
        if hash:
            page.evaluate(f"location.hash = {json.dumps(hash)}")
            until(page, "page.visited")
        return page

    return opened


def rail(page):
    return [
        " ".join(text.split()) for text in page.eval_on_selector_all(
            "#rail .plan", "all => all.map(one => one.innerText)"
        )
    ]  # fmt: skip


def slices(page):
    return page.evaluate("page.timeline.slices")


# --- what is known


def test_how_well_a_compute_is_known():
    first, late, unknown = (RUN.by_plan[i][0] for i in range(3))
    assert (first.known, late.known, unknown.known) == (MEASURED, AT_MOST, NOT_KNOWN)
    for compute in RUN.computes:
        assert compute.end == max(compute.event.end, *(split.end for split in compute.splits))
        assert compute.ns == compute.end - compute.event.start


def test_times_that_may_be_longer_are_no_median():
    short, long = ran(OTHER, per_op=False, n=1), waited_late(OTHER)
    assert of_record.median_of((*long.computes, *unwaited(OTHER).computes)) is long.computes[0]
    only = unwaited(OTHER).computes
    assert of_record.median_of(only) is only[0] and short.computes[0].known == MEASURED


def test_the_statistics_are_those_of_the_computes():
    told = of_record.data(recording())["programs"][0]["run"]["stats"]
    took = [c.ns for c in RUN.by_plan[0]]
    starts = [c.event.start for c in RUN.by_plan[0]]
    assert told[1]["median"] == median(took) and (told[1]["low"], told[1]["high"]) == (
        min(took), max(took),
    )  # fmt: skip
    assert told[1]["period"] == round(median([starts[1] - starts[0], starts[2] - starts[1]]))
    assert not told[1]["bound"] and told[2]["bound"] and told[3]["unknown"] == 1


def test_a_page_says_what_it_leaves_out(monkeypatch, opened):
    monkeypatch.setattr(of_record, "MOST_NODES", len(FALLBACK.nodes) + len(OTHER.nodes))
    monkeypatch.setattr(of_record, "MOST_SLICES", 1)
    told = of_record.data(recording())
    assert list(told["drawn"]) == [1, 2]  # by their time
    assert "2 of 4 plans are only listed" in told["notes"][0]
    assert len(told["programs"][0]["run"]["slices"]) == 1
    page = opened()
    assert "2 of 4 plans are only listed" in page.inner_text("#rail")
    page.click("#rail .plan >> nth=3")
    assert "ggml-py view 'it'\"'\"'s.ggrec' --plan 3 --open" in details(page)
    assert page.evaluate("page.number") == 1  # the page stays at its plan
    page.click("button[title='Next compute']")
    assert slices(page) == [] and "only the whole time" in page.inner_text(".notes-line")
    page.evaluate("page.timeline.go(4)")  # of a plan that is only listed
    assert "only listed: another plan is shown" in details(page)
    assert "plan 3" in page.inner_text(".told") and page.evaluate("page.number") == 1


def test_of_many_computes_the_slowest_stay(monkeypatch, opened):
    run = ran(OTHER, per_op=False, n=100)
    monkeypatch.setattr(of_record, "MOST_COMPUTES", 20)
    monkeypatch.setattr(of_record, "_SLOWEST", 5)
    given = of_record.of_run(run)
    told = of_record.data(given)["programs"][0]["run"]
    assert told["n"] == 100 and len(told["took"]) <= 30
    assert {95, 96, 97, 98, 99, 50, 0} <= set(told["number"])  # each is slower than the last
    page = opened(given)
    assert f"{len(told['took'])} of 100 computes are in this page" in page.inner_text(".notes-line")
    assert "Compute 51 of 100" in page.inner_text(".told")  # the median


def test_a_damaged_plan_does_not_hide_the_others(opened):
    def broken():
        raise ValueError("plan 1 of the record is damaged: it is")

    program = recording(None).programs[0]
    plans = tuple(
        one._replace(plan=broken) if one.number == 1 else one for one in program.plans
    )
    page = opened(PageRecord("Record", (program._replace(plans=plans),)))
    page.click("#rail .plan >> nth=1")
    assert "plan 1 of the record is damaged: it is" in details(page)
    with pytest.raises(ValueError, match="there is no plan to draw: plan 1 of the record"):
        of_record.data(PageRecord("Record", (program._replace(plans=plans[1:2]),)))


# --- the list


def test_the_list_has_every_plan(opened):
    page = opened()
    first, second, third, fourth = rail(page)
    assert "0 reserved of 8" in first and first.startswith("0×") and "tokens/s" not in first
    compute = RUN.by_plan[0][1]
    took = compute.ns / 1000
    assert "1 decode of 1" in second and second.startswith("3×")
    assert f"median {took:.1f} µs" in second
    assert f"{round(1e9 / compute.ns):,} tokens/s" in second
    assert "first after 1.0 ms" in second and "unlike 0: 'x' is [1]" in second
    assert f"{FALLBACK.n_splits} splits, {FALLBACK.n_inputs} copies (7 B)" in second
    assert third.startswith("1+×") and "median at most " in third and "at least " in third
    assert "at least " in fourth and "at most " in fourth.partition("·")[2]  # the rate is


def test_another_plan_takes_the_place_of_the_first(opened):
    page = opened()
    n = sum(node.backend == "CPU" for node in FALLBACK.nodes)
    for number, plan in ((2, OTHER), (1, FALLBACK), (0, UNUSED)):
        page.click(f"#rail .plan >> nth={number}")
        assert page.inner_text("#headline").endswith(f": {plan.headline()}")
        assert page.get_attribute("#rail .plan[aria-current='true']", "data-plan") == str(number)
        assert len(matches(page)) == len(plan.nodes)
        told = page.evaluate(f"{EVERY}.map(t => page.plans[0].explain(t))")
        assert told[3].splitlines()[0] == str(plan.explain(plan.nodes[3])).splitlines()[0]
        page.click("#tab-table")
        count = int(page.get_attribute("#table-scroll table", "aria-rowcount"))
        assert count == len(plan.nodes) + 1
        assert page.locator("#table-scroll table").count() == 1
        assert f"SOFT_MAX ({len(plan.nodes) // 5})" in page.inner_text("#f-op")
        assert (f"{n} nodes" in page.inner_text("#glance")) == (plan is FALLBACK)


def test_the_address_has_the_plan_and_the_compute(opened):
    page = opened()
    page.click("#rail .plan >> nth=2")
    page.wait_for_timeout(600)
    page.click("#rail .plan >> nth=1")
    page.click("button[title^='The slowest']")
    assert page.evaluate("location.hash") == "#compute=2"  # the plan is the usual one
    page.click("#tab-lanes")
    page.go_back()
    until(page, "page.number === 2")
    assert page.evaluate("location.hash") == "#plan=2"
    page.evaluate("location.hash = 'plan=1&compute=0'")
    until(page, "page.number === 1 && page.compute === 0")
    for wrong in ("plan=99", "plan=1&compute=3", "compute=77", "plan=0&compute=1"):
        page.evaluate(f"location.hash = {json.dumps(wrong)}")
        until(page, "page.timeline.i < 0 || page.timeline.number === page.number")


# --- the timeline


def test_slices_are_where_the_run_has_them(opened):
    page = opened()
    compute = RUN.by_plan[0][1]
    begin = compute.event.start
    expected = sorted(
        (e.kind, e.start - begin, e.ns) for _i, e in compute.events if e.kind in ("copy", NODES)
    )
    assert expected == sorted(
        (s["what"], s["start"], s["ns"]) for s in slices(page) if s["what"] != "compute"
    )
    x = page.evaluate("[page.timeline.x(0), page.timeline.x(1000), page.timeline.scale]")
    assert x[0] == 128 and x[1] - x[0] == pytest.approx(1000 * x[2])
    places = page.evaluate("page.timeline.hits.map(h => [h.slice.start, h.x, h.slice.ns, h.w])")
    for start, left, ns, width in places:
        assert left == pytest.approx(128 + start * x[2])
        assert width == pytest.approx(max(ns * x[2], 1))


def test_each_device_has_its_tracks_and_the_ruler_is_in_ms(opened):
    page = opened()
    page.evaluate("""() => {
        window.texts = [];
        const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
            window.texts.push(text);
            draw.call(this, text, ...at);
        };
        page.timeline.draw();
    }""")
    texts = page.evaluate("window.texts")
    assert {"scheduler", "gpu0 copies", "gpu0: nodes", "CPU copies", "CPU: nodes"} <= set(texts)
    took = RUN.by_plan[0][1].ns / 1e6
    ticks = [float(t.removesuffix(" ms")) for t in texts if t.endswith(" ms") and "split" not in t]
    assert ticks and 0.5 * took < max(ticks) <= 1.1 * took


# The colours of a block's pixels, as "r,g,b".
PIXELS = """i => {
    const { canvas, hits, slices } = page.timeline, hit = hits.find(h => h.slice === slices[i]);
    const at = [hit.x + hit.w * 0.75, hit.y + 4, hit.w * 0.2, hit.h - 8];
    const { width, height } = canvas, copy = document.createElement('canvas');
    const g = Object.assign(copy, { width, height }).getContext('2d');
    g.drawImage(canvas, 0, 0);
    const { data } = g.getImageData(...at.map(n => Math.round(n * devicePixelRatio))), found = {};
    for (let p = 0; p < data.length; p += 4) {
        const key = `${data[p]},${data[p + 1]},${data[p + 2]}`;
        found[key] = (found[key] || 0) + 1;
    }
    return found;
}"""


def test_bounds_are_drawn_as_such(opened):
    page = opened()
    colors = {}
    for number in (1, 2, 3):
        page.click(f"#rail .plan >> nth={number}")
        every = page.evaluate("page.timeline.tracks")
        tracks = {track["i"] for track in every if track["name"] == "gpu0: nodes"}
        own = [(s["ns"], s["known"], i) for i, s in enumerate(slices(page)) if s["track"] in tracks]
        _ns, known, i = max(own)
        colors[known] = page.evaluate(PIXELS, i)
    paper, blue = "255,255,255", "30,106,189"
    assert set(colors) == {0, 1, 2}
    assert set(colors[0]) == {blue}  # measured: solid
    assert colors[1].get(paper, 0) > 20 and colors[1].get(blue, 0) > 20  # hatched
    assert blue not in colors[2] and len(colors[2]) <= 2  # pale


def test_a_slice_says_what_it_is_known_by(opened):
    page = opened()
    page.click("#rail .plan >> nth=2")
    (compute,) = RUN.by_plan[1]
    splits = [s for s in compute.splits if s.backend == "gpu0" and s.known[0] == AT_MOST]
    split = splits[0]
    i = next(i for i, s in enumerate(slices(page))
             if s["what"] == "nodes" and s["split"] == split.index)  # fmt: skip
    page.evaluate(f"page.timeline.pick(page.timeline.slices[{i}])")
    text = " ".join(details(page).split())
    bound = split.done[0] - split.nodes[0].start  # not that of the slice, which the next one cuts
    assert f"at most {bound / 1000:.1f} µs" in text and "known to be done by then" in text
    assert "only their time together is known" in text
    page.click("text=Show these nodes in the lanes")
    assert matches(page) == list(range(split.nodes[0].first, split.nodes[0].last))
    assert page.is_visible("#lanes-view")
    page.click("#tab-timeline")
    page.click("#rail .plan >> nth=3")
    assert "at least " in page.inner_text(".told") and "nothing waited" in details(page)


def test_nodes_have_times_where_they_were_measured(opened):
    page = opened(of_record.of_run(ran(FALLBACK)))
    own = [s for s in slices(page) if s["what"] == "nodes"]
    plan = FALLBACK
    assert [s["name"] for s in own] == [n.name for n in plan.nodes]
    node = plan.nodes[13]
    place = 2000 * (node.id - plan.splits[node.split].start + 1)
    assert own[13]["ns"] == place
    page.evaluate("page.timeline.pick(page.timeline.slices.find(s => s.first === 13))")
    assert f"{place / 1000:.1f} µs" in details(page)
    page.click("text=Why is it there?")
    assert picked(page) == 13
    assert "tokens/s" not in page.inner_text("#rail") + page.inner_text("#timeline-view")


def test_a_compute_is_picked_from_the_strip(opened):
    page = opened()
    box = page.locator("canvas.strip").bounding_box()
    each = page.evaluate("page.timeline.each")
    page.mouse.click(box["x"] + 128 + 3.5 * each, box["y"] + 30)
    assert page.inner_text(".told").startswith("Compute 4 of 5 · plan 2, prompt of 64")
    assert page.evaluate("page.number") == 2  # its plan comes with it
    page.locator("canvas.strip").focus()
    page.keyboard.press("ArrowLeft")
    assert page.inner_text(".told").startswith("Compute 3 of 5 · plan 1")
    page.keyboard.press("End")
    assert page.inner_text(".told").startswith("Compute 5 of 5")
    page.click("#rail .plan >> nth=0")  # nothing of it was timed
    assert "no compute of it was timed" in page.inner_text(".told")
    assert page.evaluate("page.timeline.i") == -1 and slices(page) == []


def test_keys_go_from_slice_to_slice_and_zoom(opened):
    page = opened()
    page.locator("canvas.tracks").focus()
    page.keyboard.press("ArrowRight")
    first = page.evaluate("page.timeline.slices.indexOf(page.timeline.picked)")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("page.timeline.slices.indexOf(page.timeline.picked)") == first + 1
    scale = page.evaluate("page.timeline.scale")
    page.keyboard.press("Enter")
    assert page.evaluate("page.timeline.scale") > scale
    page.keyboard.press("0")
    assert page.evaluate("page.timeline.scale") == pytest.approx(scale)
    page.keyboard.press("Escape")
    assert "Compute 2 of 5" in details(page)


def test_filters_leave_the_slices_with_their_nodes(opened):
    page = opened()
    page.fill("#search", "#13")
    told = page.evaluate("page.timeline.slices.map(s => page.timeline.dimmed(s))")
    shown = [s for s, dim in zip(slices(page), told, strict=True) if not dim]
    nodes = [s for s in shown if s["what"] == "nodes"]
    assert [s["first"] <= 13 <= s["last"] for s in nodes] == [True]


def test_what_was_predicted_is_beside_it(opened, machine):
    page = opened(machine=machine)
    cost = FALLBACK.cost(machine)
    blocks = page.evaluate("page.timeline.foreseen.blocks.map(b => [b.start, b.end])")
    assert blocks == [[round(1e9 * s.start), round(1e9 * s.end)] for s in cost.splits]
    assert "predicted " in rail(page)[1] and "median " in rail(page)[1]
    assert page.evaluate("page.plans[0].predicted") is False  # its lanes are of what was measured
    page.click("#rail .plan >> nth=0")
    assert page.evaluate("page.plans[0].predicted")


def test_without_times_there_is_no_timeline(opened):
    page = opened(recording(None))
    assert page.locator("#tab-timeline").count() == 0 and page.is_visible("#lanes-view")
    assert len(rail(page)) == 4 and "median" not in " ".join(rail(page))
    page.click("#rail .plan >> nth=2")
    assert page.inner_text("#headline").endswith(OTHER.headline())


def test_several_processes_have_their_own_computes(opened):
    one, other = recording(), recording(ran(UNUSED, per_op=False), "second[8]")
    (program,) = other.programs
    plans = tuple(p._replace(number=p.number + 4) for p in program.plans)
    program = program._replace(plans=plans, numbers=(4,))
    page = opened(PageRecord("Record", (*one.programs, program), ("a part is damaged",)))
    assert all(text in page.inner_text("#rail") for text in ("second[8]", "a part is damaged"))
    page.click("#rail .plan >> nth=4")
    assert page.inner_text(".told").startswith("Compute 2 of 3 · plan 4, reserved of 8")
    page.click("#rail .plan >> nth=1")
    assert page.inner_text(".told").startswith("Compute 2 of 5 · plan 1")


# --- as a whole


def test_a_run_says_run(open_file, tmp_path):
    (tmp_path / "run.html").write_text(render(ran(FALLBACK)), encoding="utf-8")
    page = open_file(tmp_path / "run.html")
    assert page.title().startswith("Run of ") and "Plan of" not in page.inner_text("header")
    assert page.get_attribute("#tab-timeline", "aria-selected") == "true"


def test_hostile_names_are_text(opened):
    plan = llama(4, suffix=HOSTILE, refused=("SOFT_MAX",))
    plans = (listed(0, plan, HOSTILE, difference=HOSTILE),)
    program = PageProcess(HOSTILE, (HOSTILE,), plans, ran(plan, per_op=False), (0,))
    page = opened(PageRecord("Record", (program,), (HOSTILE,), HOSTILE))
    assert "alert(1)" in page.inner_text("#rail") and page.locator("img").count() == 0
    page.evaluate("page.timeline.pick(page.timeline.slices.find(s => s.what === 'copy'))")
    assert "alert(1)" in details(page) and page.locator("#details script").count() == 0


def test_it_prints_the_list_and_the_timeline(opened):
    page = opened()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    rows = page.eval_on_selector_all("#printed tr", "all => all.map(r => r.innerText)")
    assert all(any(one.label in r for r in rows) for one in recording().programs[0].plans)
    assert page.evaluate("document.querySelector('#printed img[alt^=Compute]').naturalHeight") > 60


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (390, 844)])
def test_it_fits(opened, width, height):
    page = opened(width=width, height=height)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    strip, tracks = (page.locator(f"canvas.{name}").bounding_box() for name in ("strip", "tracks"))
    assert strip["width"] > 0.3 * width and tracks["height"] > 100
    assert strip["x"] + strip["width"] <= width

"""Moving about on the page of a plan: sizes of windows, fingers, keys, boxes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ggml_py.export.palette import contrast

from ..support.drawn_plans import llama, spread
from ..support.page_driver import click, details, picked, settle, until

PLANS = {
    "eight": lambda: spread(8),
    "fallback": lambda: llama(8, refused=("SOFT_MAX",)),
    "dense": lambda: llama(80, refused=("SOFT_MAX",)),
}


@pytest.fixture(scope="module")
def made():
    return {name: make() for name, make in PLANS.items()}


@pytest.fixture(scope="module")
def files(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")

    def path(name):
        made[name].export(folder / f"{name}.html", force=True)
        return folder / f"{name}.html"

    return path


@pytest.fixture
def open_page(files, open_file):
    return lambda name, **settings: open_file(files(name), **settings)


def middle(page):
    """The position in the middle of the lanes."""
    return page.evaluate("page.lanes.x0 + (page.lanes.width - 92) / 2 / page.lanes.scale")


@pytest.mark.parametrize(
    ("width", "height"), [(1440, 900), (1366, 768), (683, 384), (390, 844), (320, 256)]
)
def test_every_lane_has_its_height(width, height, open_page):
    """Found wrong: eight cards were cut off at 1366x768, and 30 px were left at 200 %."""
    page = open_page("eight", width=width, height=height)
    until(page, "page.lanes.height >= page.lanes.laid.least")
    rows, high = page.evaluate("[page.lanes.laid.rows, page.lanes.height]")
    assert len(rows) == 9 and all(row["h"] >= 28 for row in rows[:8])
    ends = [(row["y"] - 16, row["y"] + row["h"]) for row in rows]
    assert all(a[1] + 16 <= b[0] for a, b in pairwise(ends))  # room for arrows
    assert ends[-1][1] <= high
    box = page.locator("#lanes").bounding_box()
    size = "[document.documentElement.scrollHeight, document.body.scrollWidth]"
    whole, wide = page.evaluate(size)
    assert box["height"] == high and box["y"] + high < whole and wide <= width
    page.evaluate("page.pick(0, 319)")  # in the last lane, to which the page scrolls
    y, h = page.evaluate("""(() => {
        const box = page.lanes.canvas.getBoundingClientRect(), row = page.lanes.laid.rows[7];
        return [box.y + row.y, row.h];
    })()""")
    assert y >= 0 and y + h <= height


def test_nine_lanes_have_a_colour_each(open_page):
    page = open_page("eight", color_scheme="dark")
    for _theme in ("dark", "light"):
        fills, inks = page.evaluate("""(() => {
            const names = page.plans[0].backends.map(b => b.color);
            return ['', 'on-'].map(on => names.map(name => page.lanes.colors[on + name]));
        })()""")
        assert len(set(fills)) == 9
        assert all(contrast(a, b) >= 4.5 for a, b in zip(fills, inks, strict=True))
        page.keyboard.press("m")


def test_a_page_that_fits_does_not_scroll(open_page):
    page = open_page("fallback", width=1440, height=900)
    assert page.evaluate("document.documentElement.scrollHeight") == 900
    box = page.locator("main").bounding_box()
    assert 880 < box["y"] + box["height"] < 900


def test_the_wheel_beside_the_lanes_scrolls_the_page(open_page):
    page = open_page("eight", width=1366, height=400)
    box = page.locator("#lanes").bounding_box()
    for x in (40, 500):  # names of lanes; the whole plan cannot get smaller
        page.evaluate(f"scrollTo(0, {box['y']} - 100); page.lanes.fit()")
        page.mouse.move(box["x"] + x, 200)
        page.mouse.wheel(0, 200)
        until(page, f"scrollY > {box['y']}")
    layers = page.evaluate("page.lanes.draw(); page.lanes.top")  # whose names come along
    assert layers == pytest.approx(page.evaluate("scrollY") - box["y"], abs=1)
    page.mouse.wheel(0, -200)
    until(page, "page.lanes.scale > page.lanes.fitScale() * 1.2")
    assert page.evaluate("scrollY") > box["y"]


def touching(page):
    """A function that puts fingers on the page, moves and lifts them."""
    session = page.context.new_cdp_session(page)

    def touch(kind, *points):
        points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    return touch


def test_fingers(open_page):
    page = open_page("eight", width=390, height=844, has_touch=True, is_mobile=True)
    page.select_option("#axis", "order")
    page.evaluate("scrollTo(0, page.lanes.canvas.getBoundingClientRect().top + scrollY - 200)")
    page.evaluate("page.lanes.view(100, page.lanes.fitScale() * 4)")
    y, before, touch = 400, middle(page), touching(page)
    touch("touchStart", (300, y))
    for x in range(300, 180, -20):  # one moves the lanes
        touch("touchMove", (x, y))
    touch("touchEnd")
    moved, scale = middle(page), page.evaluate("page.lanes.scale")
    assert moved > before + 20 / scale and picked(page) is None
    touch("touchStart", (200, y), (280, y))
    for by in range(0, 60, 6):  # two zoom where they are
        touch("touchMove", (200 - by, y), (280 + by, y))
    touch("touchEnd")
    assert page.evaluate("page.lanes.scale") == pytest.approx(scale * 188 / 80, rel=0.05)
    assert middle(page) == pytest.approx(moved, abs=8) and picked(page) is None
    scrolled = page.evaluate("scrollY")
    touch("touchStart", (240, 600))
    for up in range(600, 400, -20):  # and upwards one scrolls the page
        touch("touchMove", (240, up))
    touch("touchEnd")
    until(page, f"scrollY > {scrolled + 50}")
    page.evaluate("page.lanes.show(0, 200)")
    click(page, 200)  # fingers that were lifted are forgotten
    assert picked(page) == 200


def scale(page):
    return page.evaluate("page.lanes.scale")


def test_keys_and_buttons_zoom_and_move(open_page):
    page = open_page("fallback")
    whole = scale(page)
    for larger, smaller in (("w", "s"), ("+", "-")):
        page.keyboard.press(larger)
        assert scale(page) > whole
        at = middle(page)
        page.keyboard.press("d")
        right = middle(page)
        page.keyboard.press("a")
        assert right > at + 1 and middle(page) == pytest.approx(at)
        page.keyboard.press(smaller)
        assert scale(page) == pytest.approx(whole)
    dark = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("m")
    assert page.evaluate("document.documentElement.dataset.theme") != dark
    page.fill("#search", "wasd")  # written, not done
    page.press("#search", "d")
    assert scale(page) == pytest.approx(whole)
    page.click("#zoom-in")
    assert scale(page) > whole
    page.click("#zoom-all")
    assert scale(page) == whole
    page.click("#zoom-in")
    page.click("#zoom-out")
    assert scale(page) == pytest.approx(whole)
    page.mouse.move(page.locator("#lanes").bounding_box()["x"] + 300, 500)
    under = "page.lanes.position(300)"
    at = page.evaluate(under)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("w")  # around the pointer
    assert scale(page) > whole and page.evaluate(under) == pytest.approx(at)


def shown_positions(page):
    return page.evaluate("[page.lanes.position(92), page.lanes.position(page.lanes.width)]")


def test_a_box_is_zoomed_to(open_page):
    page = open_page("fallback")
    box = page.locator("#lanes").bounding_box()
    y = box["y"] + 100
    expected = page.evaluate("[page.lanes.position(300), page.lanes.position(500)]")
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 500, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, y + 30, steps=5)  # from right to left, too
    assert page.evaluate("page.lanes.box") == [500, 300]
    page.mouse.up()
    page.keyboard.up("Shift")
    assert shown_positions(page) == pytest.approx(expected, abs=0.01)
    assert picked(page) is None and page.evaluate("page.lanes.box") is None


def test_zoom_to_what_is_picked_or_found(open_page):
    page = open_page("fallback")
    page.fill("#search", "layer:2-3")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("z")
    assert shown_positions(page) == pytest.approx([19, 41], abs=0.1)  # nodes 20 to 39, and a little
    click(page, 30)
    page.keyboard.press("z")
    assert shown_positions(page) == pytest.approx([27, 34], abs=0.1)
    page.keyboard.press("Escape")
    page.keyboard.press("z")  # nothing is picked or found
    assert shown_positions(page) == pytest.approx([27, 34], abs=0.1)
    page.evaluate("page.pick(0, page.plans[0].n + 7, true)")  # a weight is where it is read
    page.keyboard.press("z")
    at = page.evaluate("page.plans[0].readers(page.plans[0].n + 7)[0]")
    assert shown_positions(page) == pytest.approx([at - 3, at + 4], abs=0.1)


HITS = """page.lanes.draw(), page.lanes.arrowHits.map(h => ({
    x: h.x, middle: (h.y1 + h.y2) / 2, label: h.label, bytes: h.arrow.bytes, from: h.arrow.from,
    to: h.arrow.to, splits: h.arrow.arrows.map(a => a.split),
}))"""


@pytest.mark.parametrize("name", ["eight", "fallback", "dense"])
@pytest.mark.parametrize("width", [1440, 390])
def test_arrows_that_would_overlap_are_one(name, width, open_page, made):
    plan = made[name]
    page = open_page(name, width=width)
    copied = sorted({(s.index, i.src_backend, s.backend) for s in plan.splits for i in s.inputs})
    n_bundled = set()
    for _ in range(4):  # smaller and smaller parts, whose bundles are those of the whole
        kept = page.evaluate(
            "page.lanes.bundles(0).map(b => [b.from, b.to, b.arrows.map(a => a.split)])"
        )
        names = [b.name for b in plan.backends]
        assert sorted((s, names[a], names[b]) for a, b, splits in kept for s in splits) == copied
        n_bundled.add(len(kept))
        hits = page.evaluate(HITS)
        for pair in {(h["from"], h["to"]) for h in hits}:
            xs = [h["x"] for h in hits if (h["from"], h["to"]) == pair]
            assert all(b - a > 26 for a, b in pairwise(xs))
        labels = [h["label"] for h in hits if h["label"]]
        for i, a in enumerate(labels):
            for b in labels[:i]:
                beside = a["left"] > b["right"] or b["left"] > a["right"]
                assert beside or abs(a["y"] - b["y"]) >= 15, (a, b)
        page.evaluate("page.lanes.zoom(3, 92 + 40)")
    assert name != "dense" or len(n_bundled) > 2


def test_a_click_on_a_bundle_shows_its_copies(made, open_page):
    plan = made["dense"]
    page = open_page("dense")
    hits = page.evaluate(HITS)
    most = max(hits, key=lambda h: (h["bytes"], -h["x"]))
    assert len(most["splits"]) > 10 and most["label"]  # the largest has a label
    box = page.locator("#lanes").bounding_box()
    label = most["label"]
    page.mouse.click(box["x"] + (label["left"] + label["right"]) / 2, box["y"] + label["y"])
    text = details(page)
    inputs = [i for s in most["splits"] for i in plan.splits[s].inputs
              if plan.backends[most["from"]].name == i.src_backend]  # fmt: skip
    assert f"Copies into {len(most['splits'])} splits" in text
    assert f"{len(inputs)} copies, {most['bytes'] / 1024:.1f} KiB" in text
    assert sum(i.nbytes for i in inputs) == most["bytes"]  # one of them an input
    for given in inputs:
        assert given.tensor.name in text
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("z")  # its splits, between which there is room now
    assert len(page.evaluate(HITS)) > len(hits)
    page.mouse.move(box["x"] + 120, box["y"] + 20)
    page.keyboard.press("0")
    settle(page)
    x, y = box["x"] + most["x"], box["y"] + most["middle"]
    page.mouse.move(x, y)  # the arrow itself, and its tip
    assert f"for {len(most['splits'])} splits" in page.inner_text("#tip")

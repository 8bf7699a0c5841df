"""Files that the page of a plan saves: lanes as SVG and PNG, the table as CSV."""

from __future__ import annotations

import csv
import re
from base64 import b64encode
from xml.etree import ElementTree

import pytest

from ggml_py.export.rows import node_rows

from ..support.drawn_plans import HOSTILE, llama, ran
from ..support.page_driver import settle

PLANS = {
    "fallback": lambda: llama(8, refused=("SOFT_MAX",)),
    "hostile": lambda: llama(4, suffix=HOSTILE, refused=("SOFT_MAX",)),
    "formulas": lambda: llama(2, suffix=","),
    "run": lambda: ran(llama(8, refused=("SOFT_MAX",))),
}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def saved(open_file, tmp_path):
    """A page, and a function that presses one of its buttons and returns the file's path."""

    def opened(name, **settings):
        PLANS[name]().export(tmp_path / "page.html", force=True)
        page = open_file(tmp_path / "page.html", **settings)

        def press(kind):
            with page.expect_download() as download:
                page.click(f"#save-{kind}")
            path = tmp_path / download.value.suggested_filename
            download.value.save_as(path)
            return path

        return page, press

    return opened


def test_the_svg_has_what_the_lanes_have(saved, open_file, browser):
    page, press = saved("fallback")
    page.evaluate("page.pick(0, 8)")
    settle(page)
    path = press("svg")
    assert path.name == "lanes.svg"
    picture = ElementTree.parse(path).getroot()
    told = "".join(picture.itertext())
    for words in ("gpu0", "CPU", "49 nodes", "layer 0", "SOF"):
        assert words in told, words
    # A browser draws it as the page drew it.
    box = page.locator("#lanes").bounding_box()
    before = page.locator("#lanes").screenshot()
    size = {"width": int(box["width"]), "height": int(box["height"])}
    other = browser.new_page(viewport=size)
    other.goto(path.as_uri())
    page.evaluate("""async ([a, b]) => {
        const pixels = async text => {
            const image = new Image();
            image.src = `data:image/png;base64,${text}`;
            await image.decode();
            const canvas = document.createElement('canvas');
            [canvas.width, canvas.height] = [image.width, image.height];
            const g = canvas.getContext('2d');
            g.drawImage(image, 0, 0);
            return g.getImageData(0, 0, image.width, image.height);
        };
        const [one, two] = [await pixels(a), await pixels(b)];
        let unlike = 0;
        for (let i = 0; i < one.data.length; i += 4) {
            unlike += Math.abs(one.data[i] - two.data[i]) > 60;
        }
        window.unlike = unlike / (one.data.length / 4);
    }""", [b64encode(each).decode() for each in (before, other.screenshot())])
    other.close()
    assert page.evaluate("window.unlike") < 0.04


def test_names_in_an_svg_are_text(saved):
    _page, press = saved("hostile")
    _page.evaluate("page.lanes.zoomTo(0, 8)")
    picture = ElementTree.parse(press("svg")).getroot()
    assert {each.tag.removeprefix(SVG) for each in picture.iter()} <= {
        "svg", "rect", "path", "text", "g", "clipPath"
    }  # fmt: skip
    assert "<" in "".join(picture.itertext())


def test_the_png_is_the_canvas(saved):
    page, press = saved("fallback", device_scale_factor=2)
    data = press("png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert list(size) == page.evaluate("[page.lanes.canvas.width, page.lanes.canvas.height]")


@pytest.mark.parametrize("name", ["fallback", "hostile", "formulas"])
def test_the_csv_has_the_rows_of_the_table(saved, name):
    page, press = saved(name)
    page.fill("#search", "op:mul_mat")
    page.click("#tab-table")
    page.click("th button:has-text('#')")  # the last first
    with press("csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    nodes = [row for row in node_rows(PLANS[name]()) if row.op == "MUL_MAT"][::-1]
    labels = page.evaluate("page.table.rows.map(({p, t}) => page.plans[p].label(t))")
    assert [row["name"] for row in rows] == labels
    for row, node in zip(rows, nodes, strict=True):
        assert (int(row["#"]), row["op"], row["backend"]) == (node.node, node.op, node.backend)
        assert (int(row["bytes"]), int(row["FLOPs"])) == (node.bytes, node.flops)


def test_a_cell_is_no_formula(saved):
    page, press = saved("formulas")
    page.click("#tab-table")
    for name in ("=1+1", "+1", "-1", "@x", "\t=1", "\uff1d1", "fine", 'a"b', "a,b\nc"):
        page.evaluate(f"page.plans[0].data.strings[page.plans[0].names[0]] = {name!r}")
        with press("csv").open(encoding="utf-8", newline="") as file:
            told = next(csv.DictReader(file))["name"]
        assert told == (name if re.match("[fa]", name) else f"'{name}")


def test_times_are_in_ns(saved):
    page, press = saved("run")
    page.click("#tab-table")
    with press("csv").open(encoding="utf-8", newline="") as file:
        told = [row["time_ns"] for row in csv.DictReader(file)]
    assert told == page.evaluate("page.plans[0].time.nodes.map(ns => ns < 0 ? '' : `${ns}`)")

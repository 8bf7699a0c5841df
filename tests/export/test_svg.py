"""The picture of a plan's lanes: what is in it, and that names are only text."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import pytest

import ggml_py as ggml
from ggml_py.export import to_svg
from ggml_py.export.palette import COLORS
from ggml_py.export.rows import copy_rows

from ..support.cli_runs import ok
from ..support.drawn_plans import HOSTILE, llama, smallest, spread

PLANS = {
    "fallback": lambda: llama(8, refused=("SOFT_MAX",)),
    "eight": lambda: spread(8),
    "hostile": lambda: llama(4, suffix=HOSTILE, refused=("SOFT_MAX",)),
    "many": lambda: llama(100, refused=("SOFT_MAX",)),
    "empty": smallest,
    "log": lambda: ggml.Plan.from_debug_log(llama(4).text()),
}
SVG = "{http://www.w3.org/2000/svg}"


def picture(plan):
    return ElementTree.fromstring(to_svg.render(plan))


def titled(root, tag):
    """The elements of a kind with a title, and the title."""
    return [(each, each[0].text) for each in root.iter(SVG + tag) if len(each)]


@pytest.mark.parametrize("name", PLANS)
def test_it_is_a_picture_of_known_elements(name):
    root = picture(PLANS[name]())
    kinds = {each.tag.removeprefix(SVG) for each in root.iter()}
    assert kinds <= {"svg", "title", "rect", "path", "text"}
    assert not any(key.startswith("on") or key == "href" for e in root.iter() for key in e.attrib)
    x = [float(e.get("x")) + float(e.get("width")) for e in root.iter(SVG + "rect") if e.get("x")]
    assert max(x) <= float(root.get("width"))


def test_every_node_has_its_colour_as_on_the_page(open_file, tmp_path):
    plan = PLANS["fallback"]()
    plan.export(tmp_path / "page.html")
    names = open_file(tmp_path / "page.html").evaluate("page.colors[0]")
    blocks = titled(picture(plan), "rect")
    assert [each.get("fill") for each, _ in blocks] == [COLORS[name].light for name in names]
    for (_, told), node in zip(blocks, plan.nodes, strict=True):
        assert told.startswith(f"{node.name} · {node.op} · {node.backend}")


@pytest.mark.parametrize("name", ["fallback", "eight", "many"])
def test_every_copy_is_in_an_arrow(name):
    plan = PLANS[name]()
    told = [text.split(": ")[1] for _, text in titled(picture(plan), "path")]
    assert sum(int(text.split()[0]) for text in told) == len(copy_rows(plan))
    assert name != "many" or len(told) > 50  # arrows near each other are one


@pytest.mark.parametrize("name", ["fallback", "eight", "many"])
def test_no_text_covers_another(name):
    texts = [(float(e.get("x")), float(e.get("y")), e.text)
             for e in picture(PLANS[name]()).iter(SVG + "text")]  # fmt: skip
    for (xa, ya, a), (xb, yb, b) in combinations(texts, 2):
        if abs(ya - yb) < 9:
            assert xa + 5 * len(a) <= xb or xb + 5 * len(b) <= xa, (a, b)


def test_many_nodes_are_drawn_together():
    root = picture(PLANS["many"]())
    assert len(titled(root, "rect")) < 1000
    assert any(told.startswith("nodes 0 to ") for _, told in titled(root, "rect"))


def test_from_the_command_line(tmp_path):
    plan = PLANS["fallback"]()
    plan.to_json(tmp_path / "plan.json")
    ok("view", tmp_path / "plan.json", "-o", tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text("utf-8") == to_svg.render(plan)

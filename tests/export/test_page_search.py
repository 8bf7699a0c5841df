"""The search field of a plan's page: each query means what it means here, in Python."""

from __future__ import annotations

import random
import re

import pytest

from ggml_py.export.layers import layers
from ggml_py.trace.names import label

from ..support.drawn_plans import HOSTILE, llama, smallest, spread
from ..support.page_driver import matches

PLANS = {
    "spread": lambda: spread(11, 22, 5),  # gpu1 and gpu10
    "refused": lambda: llama(4, refused=("ROPE", "SOFT_MAX")),
    "hostile": lambda: llama(2, suffix=HOSTILE),
    "views": smallest,
}
PARTS = ("mul_mat", "MUL", "blk", "blk.3", "weight", "ro", "-1", "inp", "gpu", "gpu1", "CPU", "4.",
         "1.wgt", "x", "é 名", "two words", "it's", "rope_2-3", ":", "op", "/")  # fmt: skip
EXPRESSIONS = (r"^blk\.\d\.w", r"rope|add", r"_\d-[13]$", r"a b", r"\bw\b", r".", r"^$", r"[/]w",
               r"gpu[02]$", r"\.wgt", r"a\/b", r"mul_mat$")  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return {name: make() for name, make in PLANS.items()}


@pytest.fixture
def open_page(made, open_file, tmp_path):
    def opened(name):
        made[name].export(tmp_path / "page.html")
        return open_file(tmp_path / "page.html")

    return opened


def term(rng):
    """(not, field, how, value) and its text."""
    field = rng.choice(("", "", "", "name", "op", "on", "cause", "layer", "#"))
    negated = rng.random() < 0.3
    if field == "layer":
        value = sorted(rng.choices(range(14), k=2))
        text = f"layer:{value[0]}" + (f"-{value[1]}" if value[0] != value[1] else "")
        how = "range"
    elif field == "#":
        how, value = "number", rng.randrange(140)
        text = f"#{value}"
    elif rng.random() < 0.3:
        how, value = "expression", rng.choice(EXPRESSIONS)
        text = (field and f"{field}:") + f"/{value}/"
    else:
        how, value = "text", rng.choice(PARTS)
        plain = " " not in value and value[0] not in "-/\"#" and rng.random() < 0.7
        text = (field and f"{field}:") + (value if plain else f'"{value}"')
        if rng.random() < 0.3:
            text = text.upper()
    return (negated, field, how, value), "-" * negated + text


VALUE = {
    "op": lambda n: n.op,
    "on": lambda n: n.backend or "no backend",
    "cause": lambda n: n.cause.code if n.cause else "",
}


def fits(plan, known, node, term):
    negated, field, how, value = term
    own = {field: of(node) for field, of in VALUE.items()}
    if how == "range":
        layer = known["layer"][node.id]
        found = layer is not None and value[0] <= layer <= value[1]
    elif how == "number":
        is_node = value < len(plan.nodes)
        found = node.id == value or (not is_node and value in node.record.src)
    else:
        leafs = [label(s) for s in node.srcs if s.record.kind != "node"]
        texts = [own[field]] if field in own else [label(node), *leafs]
        texts += [node.op] if not field else []
        if how == "expression":
            found = any(re.search(value, text, re.IGNORECASE) for text in texts)
        else:
            every, wanted = known.get(field, ()), value.lower()
            found = any(
                text.lower() == wanted if wanted in every else wanted in text.lower()
                for text in texts
            )
    return found != negated


@pytest.mark.parametrize("name", PLANS)
def test_queries_mean_what_they_mean_here(name, made, open_page):
    plan, rng = made[name], random.Random(name)
    page = open_page(name)
    queries = [[term(rng) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(150)]
    texts = [rng.choice((" ", "  ")).join(text for _t, text in q) for q in queries]
    found = page.evaluate(
        """texts => texts.map(text => {
            page.filters.text = text;
            page.filter();
            const nodes = [...page.match[0].keys()].filter(t => page.match[0][t]);
            return [page.get('found').textContent, nodes];
        })""",
        texts,
    )
    known = {field: {of(n).lower() for n in plan.nodes} for field, of in VALUE.items()}
    known["layer"], several = layers(plan), 0
    for query, text, (said, nodes) in zip(queries, texts, found, strict=True):
        expected = [
            n.id for n in plan.nodes if all(fits(plan, known, n, t) for t, _text in query)
        ]
        assert nodes == expected, text
        assert said == f"{len(expected)} of {len(plan.nodes)}"
        several += 0 < len(expected) < len(plan.nodes)
    assert several > 20 or len(plan.nodes) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/a(/", "/a(/: Unterminated group"),
        ("rope -name:/[b-a]/", "-name:/[b-a]/: Range out of order in character class"),
        ("layer:x", "layer:x: expected a number, or a range like 3-7"),
        ("layer:7-3", "layer:7-3: expected a number, or a range like 3-7"),
        ("layer:/3/", "layer:/3/: expected a number, or a range like 3-7"),
    ],
)
def test_what_is_wrong_is_said(text, said, open_page):
    page = open_page("spread")
    page.fill("#search", text)
    assert page.inner_text("#found") == said and matches(page) == []
    assert page.get_attribute("#search", "aria-invalid") == "true"
    page.fill("#search", "")
    assert page.get_attribute("#search", "aria-invalid") == "false" and matches(page)


def test_any_text_is_taken(made, open_page):
    """A half-typed field filters nothing yet, and raises nothing."""
    page = open_page("spread")
    every = list(range(len(made["spread"].nodes)))
    for text in ("", " ", "-", "op:", "-op:", '"', '""', "/", "//", "layer:", "- -"):
        page.fill("#search", text)
        assert matches(page) == every, text
    rng = random.Random(47)
    letters = "ab-/\\\"'():[]{}*+?.#|^$ \t<>&0123456789é名\u2028:oplayernm"
    texts = ["".join(rng.choices(letters, k=rng.randrange(12))) for _ in range(600)]
    thrown = page.evaluate(
        """texts => texts.filter(text => {
            try {
                page.filters.text = text;
                page.filter();
                return false;
            } catch { return true; }
        })""",
        texts,
    )
    assert thrown == []


def test_weights_lead_to_their_readers(made, open_page):
    plan = made["spread"]
    page = open_page("spread")
    page.fill("#search", "blk.7.w.weight")
    readers = [n.id for n in plan.nodes if "blk.7.w.weight" in [s.name for s in n.srcs]]
    assert matches(page) == readers != []
    page.fill("#search", "blk on:gpu1 -layer:0-2")
    assert all(plan.nodes[i].op == "MUL_MAT" for i in matches(page)) and matches(page)


def test_a_whole_value_goes_before_a_part(made, open_page):
    page = open_page("spread")
    for text, backends in (("gpu1", ["gpu1"]), ("gpu10", ["gpu10"]), ("pu1", ["gpu1", "gpu10"])):
        page.fill("#search", f"on:{text}")
        assert matches(page) == [n.id for n in made["spread"].nodes if n.backend in backends]


def test_control_k_goes_to_the_search(open_page):
    page = open_page("spread")
    page.fill("#search", "rope")
    page.focus("#lanes")
    page.keyboard.press("Control+k")
    page.keyboard.type("add")  # it replaces what was there
    assert page.input_value("#search") == "add"

"""The smaller formats: what is in them can be read back, by what they are for where it is there."""

import csv
import io
import itertools
import json
import re
import shutil
import subprocess

import pytest

from ggml_py import Plan
from ggml_py.export import to_csv, to_dot, to_markdown, to_model_explorer
from ggml_py.export.rows import NodeRow, node_rows
from ggml_py.files.foreign import cell

from ..support.drawn_plans import HOSTILE, llama, smallest

ISSUE = 65_536  # characters that GitHub takes


@pytest.fixture(scope="module")
def world():
    return {
        "empty": smallest(),
        "small": llama(4),
        "fallback": llama(12, refused=("ROPE",)),
        "hostile": llama(3, suffix=HOSTILE, refused=("ROPE",)),
        "10,000 nodes": llama(1000),
    }


LARGE = pytest.param("10,000 nodes", marks=pytest.mark.thorough("long"))
NAMES = ("empty", "small", "fallback", "hostile", LARGE)


@pytest.mark.parametrize("name", NAMES)
def test_csv_has_every_node(world, name):
    rows = list(csv.DictReader(io.StringIO(to_csv.render(world[name]), newline="")))
    expected = node_rows(world[name])
    assert len(rows) == len(expected)
    for row, node in zip(rows, expected, strict=True):
        assert tuple(row) == NodeRow._fields
        assert row["name"] == cell(node.name) and row["backend"] == (node.backend or "")
        assert row["ne"] == "x".join(map(str, node.ne)) and row["layer"] == str(
            "" if node.layer is None else node.layer
        )


@pytest.mark.parametrize("name", NAMES)
def test_markdown_fits_into_an_issue(world, name):
    text = to_markdown.render(world[name])
    assert len(text) < ISSUE and world[name].headline() in text
    assert text.count("<details>") == text.count("</details>") >= 1
    assert ("cut: attach" in text) == (name == "10,000 nodes")


def test_markdown_is_enough_to_analyse(world):
    """From what is pasted a plan is made again, with the same assignments and copies."""
    plan = world["fallback"]
    again = Plan.from_debug_log(to_markdown.render(plan))
    assert [n.backend for n in again.nodes] == [n.backend for n in plan.nodes]
    assert [n.name for n in again.nodes] == [n.name for n in plan.nodes]
    assert again.n_splits == plan.n_splits and again.n_inputs == plan.n_inputs
    text = to_markdown.render(plan)
    for finding in plan.advice():
        assert finding.id in text and finding.title in text
    suggested = plan.advice()[0].suggestion.replace("_", "\\_").replace("|", "\\|")
    assert "GP101" in text and suggested.split("'")[0] in text
    assert "| 24 | ROPE | CPU | op |" in text


def test_markdown_of_a_log():
    plan = Plan.from_debug_log(llama(2).text())
    again = Plan.from_debug_log(to_markdown.render(plan))
    assert [n.backend for n in again.nodes] == [n.backend for n in plan.nodes]


def test_names_are_no_markup(world):
    text = to_markdown.render(world["hostile"])
    tables = text.split("```")[0]
    assert "<img" not in tables and "</script" not in tables
    for line in tables.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (5, 6, 7)


def test_a_fence_that_nobody_can_close():
    plan = llama(2, suffix=" ```` ")
    text = to_markdown.render(plan)
    (fence,) = set(re.findall(r"^`{3,}$", text, re.M))
    assert len(fence) == 5


def _dot(text):
    if shutil.which("dot") is None:
        pytest.skip("needs Graphviz (apt install graphviz)")
    done = subprocess.run(
        ["dot", "-Tjson0"], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_graphviz_reads_it(world, name, fold):
    plan = world[name]
    graph = _dot(to_dot.render(plan, fold))
    boxes = [o for o in graph["objects"] if o["name"][0] in "nl" and "fillcolor" in o]
    runs = [(layer, len(list(run))) for layer, run in
            itertools.groupby(node_rows(plan), key=lambda r: r.layer)]  # fmt: skip
    folded = sum(1 if layer is not None else n for layer, n in runs)
    assert len(boxes) == (folded if fold else len(plan.nodes))
    copied = [e for e in graph.get("edges", ()) if e.get("style") == "dashed"]
    from_nodes = {(s.index, i.tensor.id) for s in plan.splits for i in s.inputs
                  if i.tensor.index is not None}  # fmt: skip
    inside = [o for o in boxes if "copied inside" in o["label"]]
    assert bool(copied or inside) == bool(from_nodes) and (fold or not inside)


def test_large_plans_are_folded(world):
    text = to_dot.render(world["10,000 nodes"])
    assert text.count("fillcolor=") == 1000 + 2
    assert "layer 999\\nCPU: 10" in text and "layer 0\\ngpu0: 10" in text
    assert to_dot.render(world["small"]).count("fillcolor=") == 40 + 2


# Of the package's graph_builder: the fields that there are, and what they hold.
GRAPH = {"id": str, "nodes": list, "groupNodeAttributes": dict, "tasksData": dict}
NODE = {
    "id": str, "label": str, "namespace": str, "attrs": list, "incomingEdges": list,
    "outputsMetadata": list, "style": dict,
}  # fmt: skip
EDGE = {"sourceNodeId": str, "sourceNodeOutputId": str, "targetNodeInputId": str}


@pytest.mark.parametrize("name", NAMES)
def test_model_explorers_rules(world, name):
    plan = world[name]
    data = json.loads(json.dumps(to_model_explorer.render(plan)))
    assert isinstance(data["label"], str)
    (graph,) = data["graphs"]
    _has(graph, GRAPH)
    ids = [node["id"] for node in graph["nodes"]]
    assert len(ids) == len(set(ids)) == len(plan.nodes)
    for node, planned in zip(graph["nodes"], plan.nodes, strict=True):
        _has(node, NODE)
        attrs = {a["key"]: a["value"] for a in node["attrs"]}
        assert all(isinstance(v, str) for v in attrs.values())
        assert attrs["backend"] == (planned.backend or "none")
        assert attrs["cause"] == str(planned.cause)
        for edge in node["incomingEdges"]:
            _has(edge, EDGE)
            assert edge["sourceNodeId"] in ids
    spaces = {node["namespace"] for node in graph["nodes"]}
    for name, attributes in graph["groupNodeAttributes"].items():  # of layers that are there
        assert name in {"", *spaces} and all(isinstance(v, str) for v in attributes.values())
    (tasks,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    for edge in tasks["overlays"][0]["edges"]:
        assert edge["sourceNodeId"] in ids and edge["targetNodeId"] in ids and edge["label"]


def test_a_closed_layer_tells_what_is_in_it(world):
    (graph,) = to_model_explorer.render(world["fallback"])["graphs"]
    rows = [n for n in node_rows(world["fallback"]) if n.layer == 3 and n.is_computed]
    told = graph["groupNodeAttributes"]["layer 3"]
    on = {b: sum(n.backend == b for n in rows) for b in ("gpu0", "CPU")}
    assert told["backend"] == f"{on['gpu0']}x gpu0, {on['CPU']}x CPU"
    assert told["bytes"] == f"{sum(n.bytes for n in rows):,}" != "0"
    for cause in {n.cause for n in rows}:
        assert f"{sum(n.cause == cause for n in rows)}x {cause}" in told["cause"]


def _has(data, fields):
    assert set(data) == set(fields)
    assert all(isinstance(data[name], kind) for name, kind in fields.items())


def test_colors_are_the_backends(world):
    plan = world["fallback"]
    nodes = to_model_explorer.render(plan)["graphs"][0]["nodes"]
    seen = {(n.backend, d["style"]["backgroundColor"]) for n, d in
            zip(plan.nodes, nodes, strict=True)}  # fmt: skip
    assert len(seen) == len({color for _b, color in seen}) == 2

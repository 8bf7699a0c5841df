"""Files of plans: rows, formats, what is refused; each on plans that are hard to draw."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from html import unescape
from html.parser import HTMLParser

import pytest

import ggml_py as ggml
from ggml_py.cost.machine import Machine
from ggml_py.export import formats, rows, run_times
from ggml_py.export.page import interning, to_html
from ggml_py.export.page import side_by_side as page_diff
from ggml_py.files.foreign import visible
from ggml_py.trace import reference
from ggml_py.trace.names import layer_in
from ggml_py.trace.record import Capture

from ..support.cli_runs import BLOCKED, fails, ok, run
from ..support.drawn_plans import HOSTILE, llama, ran, smallest


@pytest.fixture(scope="module")
def world(plans):
    """Plans by what they are like."""
    return {
        "empty": smallest(),
        "one split": plans["cpu_only"],
        "golden": plans["mlp"],
        "fallback": llama(8, refused=("SOFT_MAX",)),
        "hostile": llama(4, suffix=HOSTILE, refused=("SOFT_MAX",)),
        "log": ggml.Plan.from_debug_log(plans["mlp"].text()),
        "10,000 nodes": llama(1000, refused=("SOFT_MAX",)),
    }


@pytest.fixture(scope="module")
def large(world):
    """The page of 10,000 nodes, which takes seconds."""
    return to_html.render(world["10,000 nodes"])


LARGE = pytest.param("10,000 nodes", marks=pytest.mark.thorough("long"))
NAMES = ("empty", "one split", "golden", "fallback", "hostile", "log", LARGE)
FORMATS = [exporter.name for exporter in formats.EXPORTERS]


# --- rows


def test_rows_of_nodes_and_splits_add_up(world):
    for plan in world.values():
        nodes, splits = rows.node_rows(plan), rows.split_rows(plan)
        assert [n.node for n in nodes] == list(range(len(plan.nodes)))
        assert [n.split for n in nodes] == [n.split for n in plan.nodes]
        assert sum(s.n_computed for s in splits) == sum(plan.nodes_per_backend().values())
        assert sum(s.copy_bytes for s in splits) == plan.copy_bytes
        assert sum(c.nbytes for c in rows.copy_rows(plan)) == plan.copy_bytes
        if (shares := plan.shares()) is not None:
            for name in ("flops", "bytes"):
                total = sum(getattr(s, name) for s in shares)
                assert sum(getattr(n, name) for n in nodes) == total
                assert sum(getattr(s, name) for s in splits) == total


def test_what_is_off_the_device_is_told_with_its_reason(world):
    plan = world["fallback"]
    nodes = rows.node_rows(plan)
    found = rows.off_rows(plan, nodes, rows.off_reasons(plan, nodes))
    by_reason = {(r.reason, r.op): r for r in found}
    missing = by_reason["op", "SOFT_MAX"]
    assert missing.device == "gpu0" and missing.backend == "CPU"
    assert missing.nodes == tuple(n.node for n in nodes if n.op == "SOFT_MAX")
    assert missing.text.startswith("gpu0 does not support SOFT_MAX(f32 [64, 8])")
    weights = by_reason["offload.batch", "MUL_MAT"]
    assert {nodes[i].layer for i in weights.nodes} == {6, 7}  # whose weights the CPU has
    off = sorted(i for r in found for i in r.nodes)
    assert off == [n.node for n in nodes if n.backend == "CPU"]


def test_without_a_device_nothing_is_off(world):
    plan = world["golden"]  # BLAS and CPU
    nodes = rows.node_rows(plan)
    assert rows.off_reasons(plan, nodes) == {} and rows.off_rows(plan, nodes, {}) == []


def test_what_a_copy_is(world):
    copies = rows.copy_rows(world["fallback"])
    assert {c.what for c in copies} == {"input", "result"}
    first = copies[0]
    assert (first.what, first.tensor, first.node) == ("input", "inp", None)
    result = next(c for c in copies if c.what == "result")
    assert world["fallback"].nodes[result.node].name == result.tensor
    assert (result.src_backend, result.dst_backend) == ("gpu0", "CPU")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("ffn_out-3", 3), ("Kcur-12 (view)", 12), ("blk.7.ffn_up.weight", 7), ("cache_k_l5", 5),
        ("cache_v_l5 (view)", 5), ("v.blk.2.attn_q.weight", 2), ("node_24", None), ("inp", None),
        ("decoder.layers.4.fc.weight", 4), ("x-٣", None), ("a-3b", None), ("-1", 1), ("", None),
    ],
)  # fmt: skip
def test_the_layer_in_a_name(name, layer):
    assert layer_in(name) == layer


def test_nodes_without_a_name_are_of_the_layer_around_them():
    plan = llama(3)
    told = [t._replace(name="" if t.id % 10 in (0, 5) else t.name) for t in plan.capture.tensors]
    capture = Capture(**{
        **{f: getattr(plan.capture, f) for f in plan.capture.__slots__}, "tensors": tuple(told)
    })
    layers = [n.layer for n in rows.node_rows(reference.plan(capture))]
    assert layers[1:10] == [0] * 9 and layers[11:20] == [1] * 9
    assert layers[0] is None and layers[10] is None  # between two layers: of neither


# --- formats


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_of_every_plan_is_the_same_twice(world, large, tmp_path, format, name):
    plan, exporter = world[name], formats.exporter_for("", format)
    plan.export(tmp_path / "a", format)
    content = (tmp_path / "a").read_bytes()
    if format != "pprof":
        content = content.decode()  # names of any kind leave it UTF-8
    is_large = (format, name) == ("html", "10,000 nodes")
    again = large if is_large else formats.render(plan, exporter)
    assert content == again and content


EVERY_FORMAT = """
import hashlib, sys
sys.modules["ggml_py._ggml"] = None
from ggml_py.export import formats
from ggml_py.plan import Plan
for path in sys.argv[1:]:
    plan = Plan.from_json(path)
    for exporter in formats.EXPORTERS:
        content = formats.render(plan, exporter)
        content = content if isinstance(content, bytes) else content.encode()
        print(exporter.name, hashlib.sha256(content).hexdigest())
    print("diff", hashlib.sha256(plan.diff(plan.reference)._repr_html_().encode()).hexdigest())
"""


def test_every_format_without_the_native_library_and_whatever_the_hashes(world, tmp_path):
    names = [name for name in NAMES if name not in ("log", LARGE)]
    for i, name in enumerate(names):
        world[name].to_json(tmp_path / f"{i}.json")
    paths = [tmp_path / f"{i}.json" for i in range(len(names))]
    command = [sys.executable, "-c", EVERY_FORMAT]
    told = [ok(*paths, command=command, env={"PYTHONHASHSEED": seed}) for seed in "12"]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == len(names) * (len(FORMATS) + 1)
    here = formats.render(world["hostile"], formats.exporter_for("", "dot")).encode()
    assert hashlib.sha256(here).hexdigest() in told[0]


def test_the_name_tells_the_format(world, tmp_path):
    plan = world["fallback"]
    plan.export(tmp_path / "p.json.gz")
    assert ggml.Plan.from_json(tmp_path / "p.json.gz") == plan
    plan.export(tmp_path / "P.HTML")
    assert (tmp_path / "P.HTML").read_text().startswith("<!doctype html>")
    plan.export(tmp_path / "p.txt")
    assert (tmp_path / "p.txt").read_text() == plan.text()
    plan.export(tmp_path / "p.txt.gz")
    assert gzip.decompress((tmp_path / "p.txt.gz").read_bytes()).decode() == plan.text()
    plan.export(tmp_path / "odd.name", "json")
    assert json.loads((tmp_path / "odd.name").read_text()) == json.loads(json.dumps(plan.to_json()))


def test_suffixes_belong_to_one_format():
    suffixes = [s for e in formats.EXPORTERS for s in e.suffixes]
    assert len(suffixes) == len(set(suffixes))
    for exporter in formats.EXPORTERS:
        for suffix in exporter.suffixes:
            assert formats.exporter_for(f"a/b.c{suffix}") is exporter
            assert formats.exporter_for(f"B{suffix.upper()}.gz") is exporter


@pytest.mark.parametrize("path", ["plan", "plan.pdf", "plan.gz", "json"])
def test_an_unknown_suffix_lists_the_known_ones(world, tmp_path, path):
    with pytest.raises(ValueError, match=re.escape(path)) as caught:
        world["golden"].export(tmp_path / path)
    for exporter in formats.EXPORTERS:
        assert all(s in str(caught.value) for s in (*exporter.suffixes, exporter.name))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_lists_the_known_ones(world, tmp_path):
    with pytest.raises(ValueError, match=r"format 'pdf' is not known; known are .*\(html\)"):
        world["golden"].export(tmp_path / "p.json", "pdf")


def test_a_file_that_is_there_stays(world, tmp_path):
    path = tmp_path / "p.html"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"p\.html already exists: force=True"):
        world["golden"].export(path)
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]
    world["golden"].export(path, force=True)
    assert path.read_text().startswith("<!doctype html>")


def test_a_file_that_came_meanwhile_stays_too(world, tmp_path, monkeypatch):
    path = tmp_path / "p.txt"
    render = formats.render

    def slow(*arguments):
        path.write_text("theirs")
        return render(*arguments)

    monkeypatch.setattr(formats, "render", slow)
    with pytest.raises(FileExistsError, match="already exists"):
        world["golden"].export(path)
    assert path.read_text() == "theirs" and list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_where_writing_fails(world, tmp_path):
    with pytest.raises(OSError):
        world["golden"].export(tmp_path / "none" / "p.html")
    with pytest.raises(ValueError, match="json shows only one plan; two can be compared in "):
        world["golden"].export(tmp_path / "p.json", other=world["golden"])
    assert list(tmp_path.iterdir()) == []


# --- the page


class Page(HTMLParser):
    """The elements of a page, and what is in its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def data_of(text):
    return json.loads(Page(text).scripts[0])


def test_hostile_names_are_data_only(world):
    text = to_html.render(world["hostile"])
    page, plain = Page(text), Page(to_html.render(world["fallback"]))
    assert page.tags[:3] == plain.tags[:3] and len(page.scripts) == len(plain.scripts) == 2
    assert [tag for tag, _a in page.tags] == [tag for tag, _a in plain.tags]
    assert not set("<>&") & set(page.scripts[0])  # whatever a browser takes for an end
    (told,) = data_of(text)["plans"]
    names = [told["strings"][i] for i in _summed(told["name"])]
    assert names == [t.name for t in world["hostile"].tensors]
    assert text.isascii() or "名" not in text


def _summed(steps):
    at = 0
    return [at := at + step for step in steps]


def test_a_backend_may_have_any_name(world):
    capture = world["fallback"].capture
    named = tuple(b._replace(name=f"{HOSTILE}@SCRIPT@{b.name}") for b in capture.backends)
    fields = {f: getattr(capture, f) for f in capture.__slots__}
    plan = reference.plan(Capture(**{**fields, "backends": named}))
    page = Page(to_html.render(plan))
    assert len(page.scripts) == 2 and "img" not in [tag for tag, _a in page.tags]


def test_the_page_loads_nothing(world):
    text = to_html.render(world["golden"])
    head = text.split("<body>")[0]
    assert "default-src 'none'" in head and "unsafe" not in head
    attributes = [a for _tag, a in Page(text).tags]
    assert not [a for a in attributes if a.keys() & {"src", "href", "style", "onclick", "onload"}]
    text = text.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, which nothing loads
    assert not re.search(r"https?://|@import|url\((?!#)", text)


def test_explanations_do_not_blow_the_page_up(world, large):
    plan, text = world["10,000 nodes"], large
    (told,) = data_of(text)["plans"]
    assert len(told["why"]) == len(plan.tensors) and len(told["forms"]) < 60
    assert len(text) < 2_500_000 < len(json.dumps(plan.to_json()))
    # chains are stored once
    assert len(told["links"]["tensor"]) < 1.5 * len(told["why"])
    assert sum(len(note) for note in told["notes"]) < 5 * len(told["why"])


@pytest.mark.parametrize("name", NAMES[:-1])
def test_stored_sentences_are_what_was_said(world, name):
    plan = world[name]
    texts = interning.Texts(interning.Table())
    said = [note for t in plan.nodes for note in plan.explain(t).notes]
    said += [link.text for t in plan.nodes for link in plan.explain(t).links]
    said += ["", "'", "''", "# #1#2 '#3'", "it's 'a'b' c"]
    numbers = [texts.number(text) for text in said]
    assert [texts.text(n) for n in numbers] == said


@pytest.mark.parametrize(
    ("pairs", "n", "m", "expected"),
    [
        ({}, 0, 0, [[], []]),
        ({0: 0, 1: 1}, 2, 2, [[0, 1], [0, 1]]),
        ({0: 0, 2: 1}, 3, 2, [[0, 1, 2], [0, 2]]),  # the second has one less
        ({0: 0, 1: 2}, 2, 4, [[0, 2], [0, 1, 2, 3]]),
        ({0: 2, 1: 0, 2: 1}, 3, 3, [[0, 1, 2], [1, 2, 3]]),  # one moved: the others stay together
    ],
)
def test_nodes_of_both_plans_share_a_slot(pairs, n, m, expected):
    assert page_diff.slots(pairs, n, m) == expected


def test_a_page_of_two_plans(world):
    before = world["fallback"]
    after = before.what_if(supports={("gpu0", "SOFT_MAX"): True})
    told = data_of(to_html.render(before, after))
    moved = [c.before.index for c in before.diff(after).changed if c.before.index is not None]
    assert told["diff"]["changed"] == [moved, moved] and moved
    assert told["diff"]["pairs"] == list(range(len(before.nodes)))
    made = [list(row) for row in before.diff(after).made_with()]
    assert len(told["plans"]) == 2 and told["diff"]["made"] == made


# --- runs


@pytest.mark.parametrize("per_op", [True, False])
def test_what_nodes_took_is_of_the_median_compute(world, per_op):
    plan = world["fallback"]
    told = run_times.times(ran(plan, per_op))
    assert told.compute == "compute 2 of 3, the median of the 3 with this plan"
    assert told.plan is plan and told.per_op is per_op
    assert told.copies == (500,) * plan.n_inputs
    places = [n.id - plan.splits[n.split].start + 1 for n in plan.nodes]
    if per_op:
        assert told.nodes == tuple(2000 * place for place in places)
    else:  # what a split took is known, what its nodes took is not
        split = plan.splits[plan.nodes[15].split]
        assert split.end - split.start == 4 and told.nodes[15] == -1
    assert told.total == sum(split.ns for split in told.splits) + sum(told.copies)


def test_a_run_in_each_format(world, tmp_path):
    plan = world["fallback"]
    run = ran(plan)
    for name in ("run.json.gz", "run.html", "run.trace.json"):
        run.export(tmp_path / name)
        with pytest.raises(FileExistsError, match="already exists"):
            run.export(tmp_path / name)
    assert type(run).from_json(tmp_path / "run.json.gz") == run
    told = data_of((tmp_path / "run.html").read_text())["recording"]["drawn"]["0"]
    assert told["times"]["nodes"] == list(run_times.times(run).nodes)
    assert json.loads((tmp_path / "run.trace.json").read_text())["traceEvents"]
    with pytest.raises(ValueError, match="a run can only be shown alone, and only in json, html"):
        run.export(tmp_path / "run.md")
    with pytest.raises(ValueError, match="has no plan of what it computed"):
        type(run)((), (), ()).export(tmp_path / "none.html")


def test_view_of_a_run(world, tmp_path):
    path = tmp_path / "run.json"
    ran(world["fallback"]).to_json(path)
    assert "3 computes" in ok("view", path, command=BLOCKED)
    ok("view", path, "-o", tmp_path / "r.html", command=BLOCKED)
    assert '"times":{' in (tmp_path / "r.html").read_text()
    world["fallback"].to_json(tmp_path / "p.json")
    both = ("view", path, tmp_path / "p.json")
    assert "run.json is a run, which cannot be compared" in fails(*both, code=2)


# --- notebooks


@pytest.mark.parametrize("name", NAMES)
def test_what_a_notebook_shows_is_small_and_escaped(world, name):
    plan = world[name]
    text = plan._repr_html_()
    assert len(text) < 12_000 and "<script" not in text and "<img" not in text
    assert plan.headline().split(",")[0] in text
    diff = plan.diff(world["fallback"])._repr_html_()
    assert "<img" not in diff and len(diff) < 60_000
    run = ran(plan)._repr_html_()
    assert "3 computes" in run and "<img" not in run and len(run) < 30_000


@pytest.mark.parametrize("name", NAMES)
def test_answers_in_a_notebook(world, name):
    """The same text as `str`, escaped."""
    plan = world[name]
    answers = [*plan.advice()]
    for node in plan.nodes[:3]:
        answers.append(plan.explain(node.id))
        for backend in plan.backends if plan.capture.source == "scheduler" else ():
            if backend.name != node.backend:
                answers.append(plan.why_not(node.id, backend.name))
    for answer in answers:
        shown = re.sub(r"<[^>]*>", "", answer._repr_html_())
        assert unescape(shown) == visible(str(answer)).replace("\n", "", 1)
    shown = [plan.advice(), plan.memory]
    if plan.capture.source == "scheduler":
        shown.append(plan.cost(Machine.of_sheets({})))
    for text in (each._repr_html_() for each in shown):
        assert "<img" not in text and "<script" not in text and len(text) < 60_000


# --- the command line


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    path = tmp_path_factory.mktemp("export")
    world["fallback"].to_json(path / "p.json.gz")
    world["fallback"].what_if(pins={"rope_2-1": "CPU"}).to_json(path / "q.json")
    (path / "log.txt").write_text(world["golden"].text())
    return path


def test_view_without_the_native_library(folder, tmp_path):
    done = run("view", folder / "p.json.gz", "-o", tmp_path / "p.html", command=BLOCKED)
    assert done.returncode == 0 and "26 splits" in done.stderr, done.stderr
    plan = ggml.Plan.from_json(folder / "p.json.gz")
    assert (tmp_path / "p.html").read_text() == to_html.render(plan)
    ok("view", folder / "p.json.gz", folder / "q.json", "--html", tmp_path / "two", command=BLOCKED)
    assert "nodes moved" in (tmp_path / "two").read_text()


def test_view_of_a_log_and_on_the_terminal(folder, tmp_path):
    ok("view", folder / "log.txt", "-o", tmp_path / "log.json")
    assert ggml.Plan.from_json(tmp_path / "log.json").capture.source == "debug log"
    assert "splits" in ok("view", folder / "p.json.gz")
    assert "moved" in ok("view", folder / "p.json.gz", folder / "q.json")


def test_view_opens_a_browser(folder, tmp_path):
    env = {"BROWSER": f"cp %s {tmp_path}/opened", "TMPDIR": str(tmp_path)}
    ok("view", folder / "p.json.gz", "--open", env=env)
    (page,) = tmp_path.glob("ggml-py-*/plan.html")
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.thorough("long")
def test_what_view_refuses(folder, tmp_path):
    plan, out = folder / "p.json.gz", tmp_path / "p.html"
    out.write_text("mine")
    assert "already exists: --force replaces it" in fails("view", plan, "-o", out)
    assert out.read_text() == "mine"
    assert "already exists: --force" in fails("plan", plan, "-o", out)
    ok("view", plan, "-o", out, "--force")
    assert out.read_text() != "mine"
    known = fails("view", plan, "-o", tmp_path / "p.pdf", code=2)
    assert ".html" in known and ".json" in known and ".txt" in known
    assert ".html" in fails("plan", plan, "-o", tmp_path / "p", code=2)
    assert "--html OUT already means" in fails("view", plan, "--html", out, "-o", out, code=2)
    assert "--format needs -o" in fails("view", plan, "--format", "json", code=2)
    two = ("view", plan, plan, "-o", tmp_path / "p.json")
    assert "json shows only one plan" in fails(*two)
    assert "there is no folder" in fails("view", plan, "-o", tmp_path / "no/p.html")
    assert "--dump applies to logs only" in fails("view", plan, "--dump", "3", code=2)
    refused = fails("trace", tmp_path / "no.gguf", "-o", tmp_path / "run.md", code=2)
    assert "not known for a run; known are .json (json), .html or .htm" in refused


@pytest.mark.thorough("long")
def test_view_of_what_is_no_plan(folder, tmp_path):
    for name, content, message in (
        ("cut.json", gzip.decompress((folder / "p.json.gz").read_bytes())[:-9], "not a plan: not"),
        ("cut.json.gz", (folder / "p.json.gz").read_bytes()[:-9], "is damaged"),
        ("other.json", b'{"a": 1}', "it was not written by its to_json"),
        ("new.json", b'{"kind": "ggml_py plan", "schema": 9}', "a newer ggml_py wrote it"),
        ("old.json", b'{"kind": "ggml_py plan", "schema": 1}', "has schema 1; this ggml_py reads"),
        ("m.gguf", b"GGUF....", "is a model: `ggml-py plan"),
    ):
        (tmp_path / name).write_bytes(content)
        said = run("view", tmp_path / name, "-o", tmp_path / "x.html", command=BLOCKED)
        assert said.returncode in (1, 2) and "Traceback" not in said.stderr
        assert message in said.stderr, (name, said.stderr)
        assert not (tmp_path / "x.html").exists()
    assert "no such file" in fails("view", tmp_path / "none.json")

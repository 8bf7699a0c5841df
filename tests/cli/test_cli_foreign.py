"""Text that somebody else chose, in every field of a plan, and what verbs print of it."""

import json
import os
import re
import subprocess
import sys

import pytest

import ggml_py as ggml
from ggml_py.export.json import plan_file as to_json

from ..support.drawn_plans import llama

# Markup and emoji of rich, a window's title, concealed text, C1's CSI, a formula, HTML, a turn.
HOSTILE = "=[/red][bold]:smile: \x1b]0;owned\x07\x1b[8mgone\x9b8m <b>x</b> \u202e"
# Colours and weights that rich writes.
OURS = re.compile(r"\x1b\[([0-3]|1;3|3[1-6])m")
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _places(value, path=()):
    """The strings in JSON data, as (container, key, path without numbers)."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        where = path if isinstance(key, int) else (*path, key)
        if isinstance(inner, str):
            yield value, key, where
        elif isinstance(inner, dict | list):
            yield from _places(inner, where)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two plans whose texts are hostile wherever a reader lets them be, and a record's folder."""
    folder = tmp_path_factory.mktemp("hostile")
    data = json.loads(json.dumps(llama(2, refused=("SOFT_MAX",)).to_json()))
    groups = {}
    for container, key, path in _places(data):
        groups.setdefault(path, []).append((container, key, container[key]))
    taken = set()
    for path, places in groups.items():
        for container, key, was in places:
            container[key] = f"{HOSTILE}{was}"
        try:
            ggml.Plan.of(to_json.parse(json.dumps(data).encode(), "p")).headline()
            taken.add(path[-1])
        except (ValueError, KeyError):
            for container, key, was in places:
                container[key] = was
    assert {"name", "device", "op_desc"} <= taken, taken
    (folder / "a.json").write_text(json.dumps(data))
    plan = ggml.Plan.from_json(folder / "a.json")
    plan.what_if(op_offload=False, drop=[]).to_json(folder / "b.json")
    return folder, plan


VERBS = {
    "plan": ["plan", "a.json"],
    "plan -v": ["plan", "a.json", "-v"],
    "passes": ["plan", "a.json", "--passes"],
    "text": ["plan", "a.json", "--text"],
    "explain": ["explain", "a.json", "NODE"],
    "why-not": ["why-not", "a.json", "NODE", "BACKEND"],
    "diff": ["diff", "a.json", "b.json"],
    "compare": ["compare", "a.json", "b.json"],
    "view": ["view", "a.json", "-o", "x.md", "--force"],
    "no such node": ["explain", "a.json", HOSTILE],
    "no such file": ["plan", HOSTILE],
}


@pytest.mark.thorough("cases", quick=3)
@pytest.mark.parametrize("verb", VERBS)
def test_no_text_of_a_plan_controls_the_terminal(verb, files):
    folder, plan = files
    node = plan.nodes[5]
    named = {"NODE": str(node.index), "BACKEND": plan.backends[0].name}
    done = subprocess.run(
        [sys.executable, "-m", "ggml_py", *(named.get(a, a) for a in VERBS[verb])],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed and "MarkupError" not in printed
    assert printed and not CONTROLS.search(OURS.sub("", printed)), repr(printed[:2000])
    if verb == "plan -v":
        assert "[/red][bold]:smile: ␛]0;owned␇␛[8mgone" in OURS.sub("", printed)


@pytest.mark.parametrize("name", ["x.md", "x.csv", "x.dot"])
def test_no_text_of_a_plan_acts_in_a_file(name, files):
    folder, plan = files
    plan.export(folder / name, force=True)
    text = (folder / name).read_text("utf-8")
    assert name == "x.csv" or not CONTROLS.search(text)
    if name == "x.csv":
        assert not re.search(r'(^|,)"?[=+@]', text, re.M)
    if name == "x.md":
        assert "<b>" not in text.split("```")[0]

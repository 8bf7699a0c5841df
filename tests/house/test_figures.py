"""The figures of the house: the command, and a ratchet for those of structure."""

import json
import subprocess
import sys

import pytest

from ..support import imports
from . import figures, visits

# The worst that a figure of structure may be. Lower a number when the house gets better.
RATCHET = {
    "largest circle of imports": 6,
    "file names that occur more than once in ggml_py/": 19,
    "imports against the walls": 3,
    "largest file by hand": 800,
}


@pytest.mark.thorough("long")
def test_the_command_shows_every_figure_and_none_of_structure_got_worse():
    command = [sys.executable, "-m", "tests.house.figures", "--json"]
    printed = subprocess.run(command, cwd=imports.REPO, capture_output=True, check=True).stdout
    rows = {row["what"]: row for row in json.loads(printed)}
    assert len(rows) == 14
    for what, row in rows.items():
        assert row["aim"], what
        assert row["values"] or row["note"].startswith(("not counted: ", "not here: ")), what
    found = {what: next(iter(rows[what]["values"].values())) for what in RATCHET}
    assert {what: n for what, n in found.items() if n > RATCHET[what]} == {}
    assert len(rows["largest circle of imports"]["members"]) == found["largest circle of imports"]
    shown = figures.table(figures.Figure(*[*row.values()][:-1]) for row in rows.values())
    assert [line.split(" | ")[0].strip("| ") for line in shown.splitlines()[2:]] == [*rows]


def test_a_checkout_is_counted(tmp_path):
    """Without git, as an archive of an earlier state is."""
    for name, text in {
        "ggml_py/__init__.py": "",
        "ggml_py/errors.py": "class GgmlError(Exception):\n    pass\n",
        "ggml_py/graphs/ops.py": "x = 1\n" * 900,
        "ggml_py/graphs/data.py": "x = 1\n" * 7,
        "ggml_py/tensors/data.py": "from ..graphs.data import x\n",
        "ggml_py/native/lib/key/ggml.h": "int x;\n" * 100,
        "ggml_py/native/guard.h": "int x;\n",
        "ggml_py/cli/plan.py": "def command(model):\n    return model\n",
        "tests/test_x.py": "x = 1\n" * 3,
        "benchmarks/x.py": "x = 1\n" * 2,
        "benchmarks/results/x.json": "{\n}\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {row.what: row for row in figures.figures(tmp_path)}
    assert [row.text for row in found.values()][:5] == [
        "12 lines", "1 lines", "3 lines", "2 lines", "2 lines",
    ]  # fmt: skip
    assert found["file names that occur more than once in ggml_py/"].members == [
        "data.py: ggml_py/graphs, ggml_py/tensors"
    ]
    assert found["imports against the walls"].members == [
        "tensors.data -> graphs.data (load): up"
    ]
    assert found["largest file by hand"].text == "7 lines"


JOURNEY = {
    "cli/plan": (
        "from ..files import reading\nfrom ..models.model import Model\nfrom .source import plans\n"
        "def command(model, other):\n    before = plans((model,), n=other)\n"
        "    for one in before:\n        unseen(one)\n    with Model(path=str(model)) as held:\n"
        "        return held\n"
        "def unseen(plan): ...\n"
    ),
    "cli/source": (
        "from pathlib import Path\n"
        "def plans(sources, n):\n    return [one(Path(source)) for source in sources if n]\n"
        "def one(path):\n    from ..files.reading import local\n    found, size = local(path)\n"
        "    sized(size)\n    return opened(found)\n"
        "def sized(size): ...\n"
        "def opened(name):\n    return name.suffix or None\n"
    ),
    "files/reading": "def local(path):\n    if path:\n        return path, 1\n    return path, 2\n",
    "models/model": (
        "class Base:\n    def __init__(self, path):\n        self.path = path\n"
        "class Model(Base):\n    def read(self): return check(self.path)\n"
        "    def other(self): ...\n"
        "def check(given): ...\n"
    ),
}


def test_the_argument_is_followed_to_every_function_that_it_is_handed_to(tmp_path):
    for name, text in JOURNEY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    assert [(place.file, place.name, place.returns) for place in visits.places(tmp_path)] == [
        ("cli/plan.py", "command", 1),
        ("cli/source.py", "one", 1),
        ("cli/source.py", "opened", 1),
        ("cli/source.py", "plans", 1),
        ("files/reading.py", "local", 2),
        ("models/model.py", "Base.__init__", 0),
    ]


def test_an_argument_that_holds_the_path_is_followed_from_its_constructor_on(tmp_path):
    for name, text in {
        "cli/plan": "from .source import Source\ndef command(model: Source): return model.plan()\n",
        "cli/source": (
            "class Source:\n    def __init__(self, given):\n        self.given = given\n"
            "    @property\n    def path(self):\n        return self.given\n"
            "    def plan(self): return load(self.path)\n"
            "    def other(self): return load(0)\n"
            "def load(name): ...\n"
        ),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    assert [place.name for place in visits.places(tmp_path)] == [
        "command", "Source.__init__", "Source.path", "Source.plan", "load",
    ]  # fmt: skip


def test_what_the_command_hands_on_is_found():
    """Of the tree itself: a reader of files, the loader of models, and libllama's."""
    found = {(place.module, place.name) for place in visits.places(imports.PACKAGE)}
    assert ("files.reading", "open_file") in found
    assert ("models.loading", "load") in found
    assert ("llama.opening", "open") in found

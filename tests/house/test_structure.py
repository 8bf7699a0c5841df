"""The structure of the package: imports, sizes, names, lazy loading."""

import ast
import functools
import inspect
import re
import subprocess
import sys

import pytest

import ggml_py as ggml

from ..support import imports
from . import figures, privates

REPO = imports.REPO
PACKAGE = imports.PACKAGE


@functools.cache
def edges():
    return list(imports.edges())


# Imports that break the rule, and why they still exist. This list only gets shorter.
WAIVED: dict[tuple[str, str], str] = {
    ("builds", "boundary.ffi"): "asks which build is loaded, if one is",
    ("trace", "trace.capture"): "a public name",
    ("trace", "trace.reference"): "a public name",
}  # fmt: skip


def test_modules_import_their_own_folder_and_lower_floors():
    broken = {
        (e.source, e.target): f"{e.kind}: {why}"
        for e in edges()
        if (why := imports.wrong(e))
    }
    assert {pair: why for pair, why in broken.items() if pair not in WAIVED} == {}
    assert sorted(set(WAIVED) - set(broken)) == []  # fixed: remove it from the list


def test_few_modules_know_each_other_in_a_circle():
    """By import statements. `RATCHET` in test_figures.py has the limit for all imports."""
    statements = (edge for edge in edges() if edge.kind != imports.NAMED)
    assert max(map(len, imports.circles(statements))) <= 6


def test_the_name_of_a_class_means_one_thing():
    """Except for the names of the layers of each architecture."""
    homes = {}
    for name, path in imports.modules().items():
        if name not in ("graphs.ops",) and not name.startswith("models.archs."):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                    homes.setdefault(node.name, []).append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


UPWARD = {
    imports.LOAD: "from ..scheduler.scheduler import Scheduler\n",
    imports.FUNCTION: "def f():\n    from ..scheduler import scheduler\n    return scheduler\n",
    imports.ANNOTATION: (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from ggml_py.scheduler.scheduler import Scheduler\n"
    ),
}
LAZY = "import importlib\n\ndef __getattr__(name):\n    return importlib.import_module({})\n"
BY_NAME = {
    "whole": "import importlib\nimportlib.import_module('ggml_py.scheduler.scheduler')\n",
    "relative": "from importlib import import_module as load\n"
    "module = __import__('importlib').import_module('..scheduler.scheduler', __package__)\n",
    "built-in": "scheduler = __import__('ggml_py.scheduler.scheduler')\n",
    "loaded": "import sys\nsys.modules.get('ggml_py.scheduler.scheduler')\n",
    "process": "WORKER = ['-m', 'ggml_py.scheduler.scheduler']\n",
    "table": "NAMES = ('scheduler.scheduler',)\n" + LAZY.format("f'ggml_py.{NAMES[0]}'"),
    "suffix": "NAMES = ('scheduler',)\n" + LAZY.format("f'..{NAMES[0]}.scheduler', __package__"),
    "sum": "NAMES = ('scheduler.scheduler',)\n" + LAZY.format("'ggml_py.' + NAMES[0]"),
    "whole table": "NAMES = {'S': 'ggml_py.scheduler.scheduler'}\n" + LAZY.format("NAMES[name]"),
    "public": "import ggml_py\ndef f():\n    return ggml_py.Scheduler\n",
    "public, again": "from ggml_py import Scheduler\n",
    "public, loaded": "import importlib\nS = importlib.import_module('ggml_py').Scheduler\n",
}
# The package's __init__, which loads public names when they are used.
PUBLIC = "_PUBLIC = {'Scheduler': 'scheduler.scheduler'}\n" + LAZY.format(
    "f'ggml_py.{_PUBLIC[name]}'"
)


def planted(tmp_path, **files):
    """A package with a scheduler and these files, and its imports that break a rule."""
    files = {"__init__": PUBLIC, "scheduler/scheduler": "class Scheduler: ...\n", **files}
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return [(*e[:2], imports.wrong(e)) for e in imports.edges(tmp_path) if imports.wrong(e)]


@pytest.mark.parametrize("way", BY_NAME)
def test_an_upward_import_by_name_is_noticed(way, tmp_path):
    found = planted(tmp_path, **{"tensors/planted": BY_NAME[way]})
    assert found == [("tensors.planted", "scheduler.scheduler", "up")]


@pytest.mark.parametrize(
    "fill",
    [
        "TABLE['S'] = lambda: __getattr__('Scheduler')",
        "TABLE.update(S=lambda: __getattr__('Scheduler'))",
        "TABLE.update(S=lambda: importlib.import_module('ggml_py.scheduler.scheduler'))",
        "from .scheduler.scheduler import Scheduler\nTABLE.setdefault('S', Scheduler)",
    ],
)
def test_a_table_that_the_package_fills_is_an_import_of_its_module(fill, tmp_path):
    public = f"{PUBLIC}from .tensors.planted import TABLE\n{fill}\n"
    found = planted(tmp_path, **{"__init__": public, "tensors/planted": "TABLE = {}\n"})
    assert found == [("tensors.planted", "scheduler.scheduler", "up")]


def test_a_public_name_of_a_folder_is_an_import_of_its_module(tmp_path):
    public = "_PUBLIC = {'S': 'below'}\n" + LAZY.format("f'.{_PUBLIC[name]}', __name__")
    found = planted(tmp_path, **{
        "scheduler/__init__": public, "scheduler/below": "",
        "graphs/planted": "from .. import scheduler\n\ndef f():\n    return scheduler.S\n",
    })  # fmt: skip
    assert ("graphs.planted", "scheduler.below", "up") in found


@pytest.mark.parametrize("name", ["name", "f'ggml_py.{name}'", "f'.{name}', __package__"])
def test_an_import_by_a_name_from_elsewhere_is_refused(name, tmp_path):
    """Nobody could say where it goes."""
    text = f"import importlib\ndef load(name):\n    return importlib.import_module({name})\n"
    ((source, target, why),) = planted(tmp_path, **{"tensors/planted": text})
    assert (source, target) == ("tensors.planted", "?") and "no string" in why


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\njson = importlib.import_module('json')\n",
        "import importlib\nfor n in ('_a', '_b'):\n    importlib.import_module(n)\n",
        '"""ggml_py.scheduler.scheduler"""\n',
        "def f():\n    'ggml_py.scheduler.scheduler'\n",
        "NAME = 'ggml_py.scheduler.scheduler of a sentence'\n",
        "import importlib\nimportlib.import_module(f'ggml_py.{\"errors\"}')\n",
    ],
)
def test_other_names_are_no_imports_against_the_rule(text, tmp_path):
    assert planted(tmp_path, **{"tensors/planted": text, "errors": ""}) == []


@pytest.mark.parametrize("kind", UPWARD)
@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("tensors", "up"),
        ("trace", "up"),
        ("graphs", "up"),
    ],
)
def test_an_upward_import_is_noticed(kind, folder, why, tmp_path):
    for name in (f"{folder}/planted.py", "scheduler/scheduler.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / folder / "planted.py").write_text(UPWARD[kind])
    assert [(*e, imports.wrong(e)) for e in imports.edges(tmp_path)] == [
        (f"{folder}.planted", "scheduler.scheduler", kind, why)
    ]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("trace.cause", "boundary.ffi"), ("export.rows", "tensors.tensor"),
        ("tensors.tensor", "trace.record"), ("gguf.reader", "sim.sim_device"),
        ("models.own_model", "trace.cause"), ("boundary.handle", "export.rows"),
        ("scheduler.scheduler", "models.own_model"), ("new.room", "errors"),
    ],
)  # fmt: skip
def test_the_walls_are_there(source, target):
    assert imports.wrong(imports.Edge(source, target, imports.LOAD))


# Privates of other folders' classes that models use, and why. This list only gets shorter.
PRIVATES_OF_OTHERS: dict[str, str] = {}


@pytest.mark.thorough("long")
def test_models_use_no_privates_of_other_folders():
    used = {use.what: use.place for use in privates.uses() if use.folder == "models"}
    assert {what: at for what, at in used.items() if what not in PRIVATES_OF_OTHERS} == {}
    assert sorted(set(PRIVATES_OF_OTHERS) - set(used)) == []


def test_the_use_of_a_private_is_noticed(tmp_path):
    for name, text in {
        "scheduler/scheduler.py": (
            "class Scheduler:\n    __slots__ = ('_held',)\n    _known: int\n"
            "    def __init__(self):\n        self._n = 1\n    def _alloc(self): ...\n"
            "def f(sched): return sched._held\n"
        ),
        "models/graphs.py": (
            "class Graphs:\n    def f(self, sched):\n"
            "        self._mine = sched._held\n        sched._alloc(self._mine)\n"
            "        return sched._n, sched._known, sched._other, sched.__class__\n"
        ),
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert [(use.folder, use.place, use.what, use.of) for use in privates.uses(tmp_path)] == [
        ("models", f"models/graphs.py:{line}", f"sched.{name}", ("scheduler",))
        for line, name in ((3, "_held"), (4, "_alloc"), (5, "_known"), (5, "_n"))
    ]


def test_models_are_no_circle():
    in_models = (e for e in edges() if e.source.startswith("models"))
    assert imports.circles(in_models) == []


def test_contributing_shows_the_floors():
    text = (REPO / "CONTRIBUTING.md").read_text()
    shown = [
        line.partition("   ")[0].replace("/", ".").split()
        for line in text.split("```")[1].strip().splitlines()
    ]
    rooms = [[room.rstrip(".") for room in line] for line in shown]
    assert rooms == [
        [room for room in floor if room != "__main__"] for floor in imports.FLOORS
    ]


def test_no_hand_written_file_is_over_800_lines():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=False
    ).stdout.split()
    files = [REPO / f for f in tracked] or list(PACKAGE.rglob("*.py"))
    sizes = {
        f.relative_to(REPO).as_posix(): len(f.read_text().splitlines())
        for f in files
        if f.suffix in (".py", ".cpp", ".h", ".js", ".css", ".html") and f.exists()
    }
    assert {name: n for name, n in sizes.items() if n > 800 and name not in figures.GENERATED} == {}


def test_folders_are_at_most_two_deep():
    deep = [p for p in imports.modules().values() if len(p.relative_to(PACKAGE).parts) > 3]
    assert deep == []
    assert not list(REPO.glob("**/utils.py"))


CALLS_GGML = re.compile(r"(?<!context)lib\.")


def public_objects():
    for name in ggml.__all__:
        value = getattr(ggml, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value
        if inspect.isclass(value) and value.__module__.startswith("ggml_py"):
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (
                    inspect.isfunction(member) or isinstance(member, property | classmethod)
                ):
                    yield f"{name}.{attribute}", member


@pytest.mark.parametrize("name", sorted(n for n, _v in public_objects()))
def test_public_names_have_docstrings(name):
    value = dict(public_objects())[name]
    function = value.fget if isinstance(value, property) else value
    doc = inspect.getdoc(function)
    assert doc, name
    if inspect.isfunction(function) and CALLS_GGML.search(inspect.getsource(function)):
        assert "C: " in doc, f"{name} calls ggml: its docstring ends with the C function"


def run(program, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, **kwargs
    )


def test_importing_the_package_loads_nothing_native():
    done = run("import sys, ggml_py; print('ggml_py._ggml' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_tree_that_was_not_built_says_how_to_build_it(tmp_path):
    for path in imports.modules().values():
        target = tmp_path / "ggml_py" / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    done = run("import ggml_py; ggml_py.devices()", cwd=tmp_path)
    assert done.returncode == 1
    assert "python build_ggml.py" in done.stderr.split("Traceback")[0]  # at import: a warning
    assert "NotBuiltError" in done.stderr.splitlines()[-1]


@pytest.mark.thorough("long")  # `make lint`
def test_types_and_style_are_clean():
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "ggml_py"], ["mypy"]):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=REPO, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr}"


@pytest.mark.parametrize("folder", ("native", "native/record"))
def test_both_builds_have_every_file_of_simulated_devices(folder):
    """A library that lacks one is built all the same, and then no program can load it."""
    listed = (REPO / "ggml_py" / folder / "CMakeLists.txt").read_text()
    files = [path.name for path in (REPO / "ggml_py" / "native").glob("sim_*.cpp")]
    assert len(files) > 5
    assert [name for name in files if name not in listed] == []

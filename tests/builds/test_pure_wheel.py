"""The wheel for any system reads what other machines made, and says which wheel has the rest.

Its process has no numpy, cffi or native part, none of the modules and functions that only Unix has,
and a text encoding of ASCII (tests/support/elsewhere.py)."""

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ggml_py as ggml
from ggml_py.cli import GROUPS
from vendor import pep517

from ..support import elsewhere, graphs
from ..support.measured import knows_all
from ..support.own_records import computed

pytestmark = pytest.mark.thorough("long")

REPO = Path(pep517.__file__).parents[1]
ANSWER = REPO / "docs" / "open" / "answer.py"
MANY_VERBS = REPO / "tests" / "support" / "many_verbs.py"
ELSEWHERE = [
    sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning",
    elsewhere.__file__,
]  # fmt: skip
NEEDS = r"this needs ggml's native library\. .*Linux.*macOS.*pip install .*ggml-xray"


@pytest.fixture(scope="module")
def wheel_path(tmp_path_factory):
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(REPO)
    folder = tmp_path_factory.mktemp("dist")
    yield folder / pep517.build_wheel(str(folder), {"pure": "true"})
    monkeypatch.undo()


@pytest.fixture(scope="module")
def installed(wheel_path):
    """The folder with what the wheel contains, as pip unpacks it."""
    folder = wheel_path.with_name("unpacked")
    zipfile.ZipFile(wheel_path).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files that a machine with ggml made."""
    folder = tmp_path_factory.mktemp("made")
    with ggml.record(folder / "r.ggrec", run=True):
        case = graphs.mlp()
        computed(case, times=2)
    plan = case.scheduler.plan(case.graph)
    plan.to_json(folder / "p.json.gz")
    (folder / "log.txt").write_text(plan.text())
    knows_all([plan]).save(folder / "m.json")
    with case.scheduler.record() as recording:
        case.scheduler.compute(case.graph)
    recording.run.to_json(folder / "run.json")
    case.close()
    (folder / "models").mkdir()
    (folder / "empty.gguf").write_bytes(b"GGUF\3" + bytes(19))
    return folder


def elsewhere_run(installed, folder, *words, text=""):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    env |= {"PYTHONPATH": str(installed), "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0",
            "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8", "COLUMNS": "99"}  # fmt: skip
    done = subprocess.run([*ELSEWHERE, *words], cwd=folder, env=env, input=text, check=False,
                          capture_output=True, encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def verbs(installed, folder, commands):
    for script in (MANY_VERBS, ANSWER):
        (installed / script.name).write_bytes(script.read_bytes())
    return json.loads(
        elsewhere_run(installed, folder, "many_verbs", text=json.dumps(commands))
    )


def test_the_wheel_is_for_any_system_and_installs_in_a_moment(wheel_path):
    assert wheel_path.name.endswith("-py3-none-any.whl")
    assert wheel_path.stat().st_size < 1.5e6
    with zipfile.ZipFile(wheel_path) as wheel:
        names = wheel.namelist()
        metadata = Parser().parsestr(wheel.read(next(n for n in names if "METADATA" in n)).decode())
    assert [n for n in names if "/native/" in n] == ["ggml_py/native/lacking.txt"]
    assert {Path(n).suffix for n in names} >= {".py", ".js", ".css", ".html"}
    needs = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    for system in ("win32", "emscripten"):
        asked = {"sys_platform": system, "python_version": "3.10", "extra": ""}
        assert {n.name for n in needs if not n.marker or n.marker.evaluate(asked)} == {
            "click", "rich"
        }  # fmt: skip


READING = [
    "view p.json.gz", "view r.ggrec", "view r.ggrec --json", "view r.ggrec --run", "view run.json",
    "view log.txt", "view r.ggrec --plan 0", "view p.json.gz log.txt", "check p.json.gz",
    "check r.ggrec", "check log.txt", "check run.json --markdown", "check p.json.gz r.ggrec",
    "plan p.json.gz -v", "plan r.ggrec --plan 0 --advice", "plan p.json.gz --steps",
    "plan p.json.gz --what-if drop=BLAS", "plan log.txt", "explain p.json.gz h",
    "explain r.ggrec out --json", "why-not p.json.gz h CPU", "why-not p.json.gz h CPU --json",
    "diff p.json.gz log.txt", "diff r.ggrec p.json.gz --json", "memory p.json.gz --at-peak",
    "memory r.ggrec", "cost p.json.gz --machine m.json", "view nothing.json", "view empty.gguf",
    "explain p.json.gz nothing", "check models", "--help", "view --help-all", "sweep p.json.gz",
]  # fmt: skip
OUTPUTS = ("html", "md", "trace.json", "dot", "explorer.json", "csv", "txt", "json", "json.gz")


def test_it_prints_what_a_machine_with_ggml_prints(installed, made):
    """All that reads: each command line prints the same words, errors included."""
    commands = [line.split() for line in READING]
    here = subprocess.run(
        [sys.executable, MANY_VERBS], input=json.dumps(commands), cwd=made, text=True,
        capture_output=True, check=True,
        env={**os.environ, "COLUMNS": "99", "PYTHONPATH": str(ANSWER.parent)},
    )  # fmt: skip
    found = verbs(installed, made, commands)
    for line, there, expected in zip(READING, found, json.loads(here.stdout), strict=True):
        assert there == expected, line
    assert sum(status == 0 for status, _out, _err in found) > len(READING) - 7


def test_it_writes_what_a_machine_with_ggml_writes(installed, made):
    plan = ggml.Plan.from_json(made / "p.json.gz")
    verbs(installed, made, [["view", "p.json.gz", "-o", f"there.{suffix}"] for suffix in OUTPUTS])
    for suffix in OUTPUTS:
        plan.export(made / f"here.{suffix}")
        content = (made / f"there.{suffix}").read_bytes()
        assert content and content == (made / f"here.{suffix}").read_bytes(), suffix


NATIVE = {
    "check": "check", "plan": "plan empty.gguf", "record": "record -- program",
    "explain": "explain empty.gguf x", "why-not": "why-not p.json.gz h CPU --ask CPU",
    "diff": "diff p.json.gz empty.gguf", "view": None,  # reads files only
    "memory": "memory empty.gguf", "sweep": "sweep empty.gguf", "trace": "trace empty.gguf",
    "calibrate": "calibrate -o c.json", "cost": "cost empty.gguf --machine m.json",
    "place": "place empty.gguf --machine m.json", "demo": "demo",
    "generate": "generate empty.gguf -p x",
    "bench": "bench empty.gguf", "compare": "compare p.json.gz", "ci": "ci .",
    "corpus": "corpus make corpus empty.gguf", "releases": "releases",
    "bisect": "bisect p.json.gz --good 0.9.4 --bad 0.26.0", "ops": "ops CPU",
    "diverge": "diverge empty.gguf --between CPU CPU", "build": "build",
    "devices": "devices",
}  # fmt: skip


def test_what_needs_the_native_part_says_which_wheel_has_it(installed, made):
    assert {verb.command.name for group in GROUPS.values() for verb in group} == {*NATIVE}
    asked = {name: line for name, line in NATIVE.items() if line}
    found = verbs(installed, made, [line.split() for line in asked.values()])
    for name, (status, out, err) in zip(asked, found, strict=True):
        assert status == 1 and not out and re.fullmatch(f"error: {NEEDS}.*\n", err), (name, err)


IMPORTS = f"""
import importlib, pkgutil, warnings
warnings.simplefilter("error")
import ggml_py
from ggml_py import errors
parts = [m.name for m in pkgutil.iter_modules(ggml_py.__path__) if m.name != "__main__"]
loaded = []
for ask in [
    *(lambda name=name: getattr(ggml_py, name) for name in (*ggml_py.__all__, *ggml_py._FOLDERS)),
    *(lambda part=part: importlib.import_module("ggml_py." + part) for part in parts),
]:
    try:
        loaded.append(ask().__name__)
    except errors.NotBuiltError as error:
        import re
        assert re.match({NEEDS!r}, str(error)), error
print(*loaded)
"""


def test_every_public_name_loads_or_says_which_wheel_has_it(installed, made):
    (installed / "all_names.py").write_text(IMPORTS)
    loaded = elsewhere_run(installed, made, "all_names").split()
    assert {"Plan", "Run", "Record", "ggml_py.enums", "ggml_py.checks"} <= {*loaded}
    assert not {"Scheduler", "Model", "ggml_py.models", "ggml_py.calibrate"} & {*loaded}

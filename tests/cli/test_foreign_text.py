"""Hostile text in every field of every kind of source, in everything that verbs print and write."""

import os
import re
import subprocess
import sys

import pytest

import ggml_py as ggml
from ggml_py import pytest_plugin
from ggml_py.advice.checkup import Checkup, DeviceMemory, Phase, Setback
from ggml_py.export.checkup_text import markdown_of
from ggml_py.releases.compare import compared
from ggml_py.releases.reports import REPORTS
from ggml_py.releases.tasks import Made, Work

from ..support import foreign_text as machine

PRINTED = list(dict(machine.command_lines()))


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """The fields of a source, and those in which its reader refuses a text."""
    found = {}

    def of(name, text):
        if (name, text) not in found:
            folder = tmp_path_factory.mktemp("refused")
            found[name, text] = machine.refused(machine.SOURCES[name], machine.TEXTS[text], folder)
        return found[name, text]

    return of


@pytest.fixture(scope="module")
def folders(tmp_path_factory, refused):
    """A folder with plans of hostile texts, and one with the same plans without them."""
    put = machine.without(set(refused("plan", "turn 0")[1]), machine.TEXTS["turn 0"])
    found = []
    for here in (put, machine.harmless(put)):
        found.append(tmp_path_factory.mktemp("plans"))
        machine.SOURCES["plan"].make(found[-1] / "plan.json", here)
    return found


@pytest.fixture
def folder(folders):
    return folders[0]


@pytest.fixture
def beside(folders):
    return folders[1]


def plan_in(folder, name="plan.json"):
    return ggml.Plan.from_json(folder / name)


@pytest.mark.thorough("cases", quick=3)
@pytest.mark.parametrize(("name", "text"), machine.CASES)
def test_no_text_of_a_file_acts_in_an_output(name, text, tmp_path, refused):
    source = machine.SOURCES[name]
    fields, left = refused(name, text)
    assert len(left) < len(fields)
    found = {}
    for words, said, benign in machine.outputs(source, machine.TEXTS[text], set(left), tmp_path):
        if wrong := list(machine.faults(words, said, benign)):
            found[" ".join(words)] = wrong
    assert not found, "\n".join(f"{words}: {wrong[0]}" for words, wrong in found.items())


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("name", ["machine", *(n for n in machine.SOURCES if n != "machine")])
def test_no_text_acts_in_the_error_about_it(name, tmp_path, refused):
    source, put = machine.SOURCES[name], machine.TEXTS["turn 0"]
    fields, left = refused(name, "turn 0")
    for field in {*fields} & {*left}:
        source.make(tmp_path / source.name, machine.only(field, put))
        words = source.verbs[0].split()
        said = machine.run(words, tmp_path)
        assert not list(machine.faults(words, said, said)), field


@pytest.mark.thorough("cases", quick=12)
@pytest.mark.parametrize("line", PRINTED)
def test_no_word_of_the_command_line_acts(line, folder):
    words = dict(machine.command_lines())[line]
    said = machine.run(words, folder)
    assert said.out or said.err
    assert not list(machine.faults(words, said, said))


@pytest.mark.thorough("cases", quick=3)
@pytest.mark.parametrize("answer", machine.ANSWERS)
def test_no_text_of_a_server_acts_and_no_password_is_shown(answer, tmp_path):
    with machine.answering(machine.ANSWERS[answer]) as address:
        words = ["plan", address]
        said = machine.run(words, tmp_path)
        with pytest.raises((ggml.GgmlError, ValueError)) as raised:
            ggml.models.load(address, header_only=True)
    assert said.code == 1 and "m.gguf" in said.err
    assert not list(machine.faults(words, said, said))
    assert machine.SECRET not in str(raised.value)


@pytest.mark.thorough("long")
def test_reports_of_comparisons(folder, beside):
    shapes = []
    for here, name in (
        (folder, lambda i: f"{machine.BEGINNINGS[i]}{machine.CORE}"), (beside, lambda i: f"q{i}"),
    ):  # fmt: skip
        plan, other = Made(plan_in(here)), Made(plan_in(here, "other.json"))
        before = [plan, plan, Made(None, name(5)), Made(None, name(6))]
        after = [other, plan, Made(None, name(7)), plan]
        found = compared(name(8), name(9), [Work(name(i)) for i in range(4)], before, after)
        texts = {kind: report(found, [name(0), name(3)]) for kind, report in REPORTS.items()}
        assert not any(machine.CONTROLS.search(text) for text in texts.values())
        suffixes = {"junit": "xml", "markdown": "md", "html": "html"}
        shapes.append({k: machine.SHAPES[suffixes[k]](text) for k, text in texts.items()})
    assert shapes[0] == shapes[1]


def test_a_checkup_in_markdown():
    """Every text of it, also of a change, which only models have."""
    shapes = []
    for text in (machine.CORE, "q"):
        remedy = type("Change", (), {"__str__": lambda _self, text=text: text, "flags": text})()
        phase = Phase(text, 1, None, (), None, 1.0)
        reason = Setback(text, text, text, 1.0, 0.5, 0, "measured", remedy, text, "GP119")
        memory = DeviceMemory(text, 1, 0, None, None)
        of = (text,)
        found = Checkup(text, True, (phase,), (reason,), (memory,), of, remedy, text, of, of)
        shapes.append(machine.markdown_shape(markdown_of(found)))
    assert shapes[0] == shapes[1]


def test_what_notebooks_show(folder):
    plan, other = plan_in(folder), plan_in(folder, "other.json")
    run = ggml.Run.of(machine.drawn_plans.ran(plan))
    for shown in (plan, plan.diff(other), run):
        html = shown._repr_html_()
        assert machine.MARK in html and not machine.CONTROLS.search(html)
        tags = {one for one in machine.html_shape(html) if one.startswith("<")}
        assert {t.split()[0].strip("<>/") for t in tags} <= {
            "div", "b", "details", "summary", "ul", "li", "table", "thead", "tbody", "tr", "th",
            "td", "pre",
        }, tags  # fmt: skip
        assert "onerror" not in str(tags)


def test_what_the_pytest_plugin_says(folder, request, tmp_path):
    snapshots = pytest_plugin.PlanSnapshot(request.node, pytest_plugin.SessionRun(request.config))
    snapshots.path = lambda name="": tmp_path / "page.plan"
    with pytest.raises(AssertionError) as nothing:
        snapshots(plan_in(folder))
    (tmp_path / "page.plan").write_text(plan_in(folder, "other.json").snapshot())
    snapshots._seen.clear()
    with pytest.raises(AssertionError) as differs:
        snapshots(plan_in(folder))
    for error in (nothing, differs):
        assert machine.MARK in str(error.value) and not machine.CONTROLS.search(str(error.value))


STREAMS = {
    "ascii": ("plan plan.json -v", {"PYTHONIOENCODING": "ascii"}),
    "colour": (
        "plan plan.json -v", {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"},
    ),
    "error": (f"plan {machine.MARK}", {"PYTHONIOENCODING": "ascii"}),
    "release": ("devices", {"GGML_PY_UPSTREAM": machine.WORD}),
    "text": ("view plan.json -o /dev/stdout --format text --force", {}),
}
OF_RICH = re.compile(r"\x1b\[([0-3]|1;3|3[1-6])m")


@pytest.mark.thorough("long")
@pytest.mark.parametrize("streams", STREAMS)
def test_what_a_process_prints(streams, folder):
    """On streams that Python made."""
    line, environ = STREAMS[streams]
    words = [machine.WORD if word == machine.MARK else word for word in line.split()]
    done = subprocess.run(
        [sys.executable, "-m", "ggml_py", *words], cwd=folder, capture_output=True,
        check=False, env={**os.environ, **environ},
    )  # fmt: skip
    printed = (done.stdout + done.stderr).decode()
    printed = OF_RICH.sub("", printed) if streams == "colour" else printed
    assert machine.MARK in printed and not machine.CONTROLS.search(printed)
    assert "Traceback" not in printed and not machine.SHOWN.search(printed), printed[-500:]

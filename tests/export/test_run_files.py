"""Runs in files: read again as they are, with a published schema; damaged ones are refused."""

import copy
import dataclasses
import gzip
import json
import re
from pathlib import Path

import jsonschema
import pytest

from ggml_py import Run
from ggml_py.export.json import run_file as run_json
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support import cli_runs

PROMPT = [5, 6, 7, 8]
SCHEMA = Path(__file__).parents[2] / "docs" / "run.schema.json"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A model's with a simulated GPU, as it runs and node by node."""
    path = tmp_path_factory.mktemp("run") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=3, n_vocab=512))
    found = []
    with load(path, devices=("sim:gpu0", "CPU"), n_threads=1, n_gpu_layers=2) as model:
        model.eval(PROMPT)
        for per_op in (False, True):
            model.reset()
            with model.record(per_op) as recording:
                model.generate(PROMPT, 3)
            found.append(recording.run)
    return found


@pytest.fixture
def run(runs):
    return runs[0]


@pytest.fixture
def per_op(runs):
    return runs[1]


def test_the_published_schema_is_that_of_the_files(run, per_op):
    published = json.loads(SCHEMA.read_text())
    assert published == json.loads(json.dumps(run_json.schema())), "run: make schema"
    jsonschema.Draft202012Validator.check_schema(published)
    valid = jsonschema.Draft202012Validator(published)
    for each in (run, per_op, Run((), (), ())):
        valid.validate(json.loads(json.dumps(each.to_json())))
    data = json.loads(json.dumps(run.to_json()))
    for edit in (
        lambda d: d["summary"].pop("idle_on"),
        lambda d: d["events"]["kind"].__setitem__(0, "sleep"),
        lambda d: d["schedulers"][0].update(more=1),
        lambda d: d["plans"][0]["tensors"][0].pop("supports"),
    ):
        wrong = copy.deepcopy(data)
        edit(wrong)
        assert not valid.is_valid(wrong)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.json", lambda c: c.replace(b'"schema": 2', b'"schema": 7'), "schema 7.*so update"),
        ("r.json", lambda c: c[: len(c) // 2], "not valid JSON"),
        ("r.json.gz", lambda c: gzip.compress(c)[:-100], "damaged: (its c|C)ompress"),
        ("r.json", lambda c: c.replace(b'"wait"', b'"rest"'), "damaged run: event .* is a 'rest'"),
    ],
)  # fmt: skip
def test_damaged_files_on_the_command_line(run, tmp_path, name, content, message):
    whole = json.dumps(run.to_json()).encode()
    (tmp_path / name).write_bytes(content(whole))
    for more in ((), ("-o", tmp_path / "r.html")):
        error = cli_runs.fails("view", tmp_path / name, *more, command=cli_runs.BLOCKED)
        assert re.search(message, error) and str(tmp_path / name) in error
        assert len(error.splitlines()) == 1


def test_a_file_that_another_program_wrote_again(run, tmp_path):
    data = json.dumps(run.to_json(), sort_keys=True, indent=1)
    (tmp_path / "r.json").write_text(data)
    assert run.summary().headline() in cli_runs.ok("view", tmp_path / "r.json")
    assert run.summary().headline() in cli_runs.ok("view", "-", stdin=data)


def test_json_is_the_run(run, tmp_path):
    for name in ("r.json", "r.json.gz"):
        run.to_json(tmp_path / name)
        again = Run.from_json(tmp_path / name)
        assert again == run and again.summary() == run.summary()
    assert (tmp_path / "r.json.gz").stat().st_size < (tmp_path / "r.json").stat().st_size / 4


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(kind="ggml_py plan"), "it was not written by its to_json; it is a"),
        (lambda d: d.update(schema=99), "has schema 99; this ggml_py reads 1"),
        (lambda d: d.pop("events"), "is a damaged run: it has no .events."),
        (lambda d: d["events"]["kind"].__setitem__(0, "sleep"), "event 0 is a 'sleep'"),
        (lambda d: d["events"]["end"].__setitem__(3, -9), "is a damaged run: event 3 is"),
        (lambda d: d["events"]["backend"].__setitem__(1, 7), "event 1 is on backend 7"),
        (lambda d: d["events"]["compute"].__setitem__(1, 70), "event 1 is of compute 70"),
        (lambda d: d["events"]["scheduler"].__setitem__(1, 7), "event 1 is of scheduler 7"),
        (lambda d: d["events"]["split"].__setitem__(1, 7), "event 1 is of split 7 of 2"),
        (lambda d: d["events"]["start"].__setitem__(1, 0.5), "expected whole numbers"),
        (lambda d: d["events"]["last"].__setitem__(1, 7000), "event 1 is of nodes 0 to 7000"),
        (lambda d: d["events"]["split"].__setitem__(1, 1), "of nodes 0 to .*, and its split has"),
        (lambda d: d["events"]["first"].pop(), "is a damaged run"),
        (lambda d: d["schedulers"][0]["plans"].__setitem__(0, 9), "compute 0 has plan 9"),
        (lambda d: d["plans"][0].update(leafs=[-5]), "a plan of .* is a damaged plan"),
    ],
)
def test_damaged_files(run, tmp_path, edit, message):
    data = json.loads(json.dumps(run.to_json()))
    edit(data)
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        Run.from_json(tmp_path / "r.json")


def test_times_that_go_back_are_no_negative_time(run):
    """A record that had computes twice: a backend was done before it began."""
    events = list(run.events)
    for i, event in enumerate(events):
        for start in (0, 10 * max(e.end for e in events)):
            moved = [*events[:i], event._replace(start=start, end=start), *events[i + 1 :]]
            summary = dataclasses.replace(run, events=tuple(moved)).summary()
            assert str(summary) and min(summary.computing.values()) >= 0

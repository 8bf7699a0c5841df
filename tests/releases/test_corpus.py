"""`ggml-py corpus`: folders of plans, and the page's session with them."""

import gzip
import re
import shlex
import shutil
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.releases import rule_cases
from ggml_py.releases.corpus import Corpus, nameless
from ggml_py.releases.kept import kept_in
from ggml_py.trace import reference

from ..support.cli_runs import fails, ok

REPO = Path(__file__).resolve().parents[2]
EXPERTS = next(case.plan for case in rule_cases() if case.name.startswith("experts"))


@pytest.mark.thorough("programs")
def test_the_session_on_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_llama(tmp_path / "small.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    page = (REPO / "docs" / "KEPT_PLANS.md").read_text()
    (session,) = re.findall(r"(?s)```\n(\$ ggml-py corpus.*?)```", page)
    for command, shown in re.findall(r"(?m)^\$ ggml-py (.*)\n((?:[^$].*\n)*)", session):
        assert ok(*shlex.split(command)) == shown
    # The reference makes the same plans of what libllama built.
    for kept in kept_in(Path("plans")):
        assert reference.plan(kept.plan.capture).outcome == kept.plan.outcome
    # A second time nothing is new, what was cut off is completed, and names do not mix.
    next(Path("plans").glob("*.gpu.decode*")).unlink()
    assert ok("corpus", "make", "plans", "small.gguf") == "1 plan written to plans\n"
    write_llama(tmp_path / "sma.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    assert "18 plans written" in ok("corpus", "make", "plans", "sma.gguf")
    shutil.copy("sma.gguf", "small.gguf")
    assert "is there with another plan" in fails("corpus", "make", "plans", "small.gguf")
    error = fails("corpus", "add", "plans", "small.gguf", code=2)
    assert "is a model: `ggml-py corpus make`" in error


def test_the_page_names_commands_and_options_that_exist():
    page = (REPO / "docs" / "KEPT_PLANS.md").read_text()
    commands = set(re.findall(r"ggml-py (ci plans --.*)", page))
    assert len(commands) == 1
    for words in map(shlex.split, commands):
        assert "Usage" in ok(words[0], "--help")
        for option in (word for word in words if word.startswith("--")):
            assert option in ok(words[0], "--help")


def test_a_plan_that_is_there_is_left_out(tmp_path):
    EXPERTS.to_json(tmp_path / "a.json.gz")
    shutil.copy(tmp_path / "a.json.gz", tmp_path / "b.json.gz")
    folder = tmp_path / "corpus"
    said = ok("corpus", "add", folder, tmp_path / "a.json.gz", tmp_path / "b.json.gz")
    assert "a.json.gz: 1 plan added" in said and "b.json.gz: 0 plans added" in said
    assert "a.json.gz: 0 plans added" in ok("corpus", "add", folder, tmp_path / "a.json.gz")
    assert [path.name for path in folder.iterdir()] == ["a.plan.json.gz"]


def test_a_file_with_another_plan_is_not_replaced(tmp_path):
    corpus = Corpus(tmp_path)
    assert corpus.add("x", [("plan", EXPERTS)]) == 1
    other = rule_cases()[0].plan
    with pytest.raises(ValueError, match=r"x\.plan\.json\.gz is there with another plan"):
        corpus.add("x", [("plan", other)])
    assert ggml.Plan.from_json(tmp_path / "x.plan.json.gz").outcome == EXPERTS.outcome


def test_without_names_the_plan_stays_what_it_was(tmp_path):
    EXPERTS.to_json(tmp_path / "mine.json.gz")
    folder = tmp_path / "corpus"
    ok("corpus", "add", folder, tmp_path / "mine.json.gz", "--no-names", "--name", "user-1")
    (kept,) = kept_in(folder)
    assert kept.work.name == "user-1.plan"
    assert not {t.name for t in kept.plan.capture.tensors} & {
        t.name for t in EXPERTS.capture.tensors
    }
    text = gzip.decompress(kept.path.read_bytes()).decode()
    assert "gpu0#none-1#0" in text and "ffn" not in text and '"inp"' not in text
    assert reference.plan(nameless(EXPERTS).capture).outcome == nameless(EXPERTS).outcome
    assert ": 0 of 1 case differs\n" in ok("ci", folder)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("make", "plans"), 2, "Missing argument 'MODEL…'"),
        (("make", "plans", "none.gguf"), 1, "none.gguf: no such file"),
        (("add", "plans", "none.ggrec"), 1, "none.ggrec: no such file"),
        (("add", "plans", "a", "--name", "../x"), 2, "expected letters"),
        (("add", "plans", "a", "b", "--name", "x"), 2, "and one source"),
    ],
)
def test_mistakes(words, code, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error in fails("corpus", *words, code=code)

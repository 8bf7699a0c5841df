"""docs/CLI.md names the keys that the verbs print, and the changes that there are."""

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

from ggml_py import llama
from ggml_py.cli.shared.what_if_options import ChangeType
from ggml_py.llama.sampling import Sampling
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

from ..support import verb_pages
from ..support.cli_runs import fails, run

pytestmark = pytest.mark.thorough("long", quick=4)

PAGE = (Path(__file__).parents[2] / "docs" / "CLI.md").read_text()
KEYS, CHANGES = PAGE.split("## Keys")[1].split("## Changes")
KEYS = KEYS.split("## generate")[0]
LIVE = ("sweep", "trace", "generate")  # take no saved plan
ROWS = [(c, k) for c, k in re.findall(r"^\| `(.*?)` \| (.*) \|$", KEYS, re.M) if "schema" not in k]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """What the words of the page stand for."""
    folder = tmp_path_factory.mktemp("docs")
    write_llama(folder / "m.gguf", LlamaSpec(n_layer=1, n_vocab=512))
    plan = folder / "s.json.gz"
    card = ("-d", "sim:card,profile=cuda", "-ngl", 99, "-ctk", "iq4_nl", "-ctv", "iq4_nl",
            "--n-tokens", 64)
    run("plan", folder / "m.gguf", *card, "-o", plan)
    run("plan", folder / "m.gguf", "-d", "CPU", "-o", folder / "o.json.gz")
    return {"OTHER": folder / "o.json.gz", "BACKEND": "card", "MODEL": plan,
            "SWEPT": folder / "m.gguf"}  # fmt: skip


@pytest.mark.parametrize(("command", "keys"), ROWS, ids=[c for c, _ in ROWS])
def test_keys_are_what_the_page_says(words, command, keys):
    verb = command.split()[0]
    given = command.replace("MODEL", "SWEPT") if verb in LIVE else command
    done = run(*(words.get(word, word) for word in given.split()), "--json")
    assert done.returncode == int(verb in ("check", "diff")), done.stderr
    data = json.loads(done.stdout)
    named = re.findall(r"`(\w+)`", keys.split("(")[0])
    if verb != "plan":
        assert list(data) == named
        return
    outer, *inner = named
    assert list(data) == [outer]
    value = data[outer]
    if inner and inner[0] != "1":
        assert list(value[0] if isinstance(value, list) else value) == inner


def test_there_is_a_row_for_each_verb_that_answers():
    verbs = {command.split()[0] for command, _ in ROWS}
    assert verbs == {
        "check", "plan", "explain", "why-not", "diff", "memory", "sweep", "trace", "generate",
        "releases",
    }  # fmt: skip


def test_its_tables_of_options_are_fresh():
    """`make docs` writes them."""
    assert verb_pages.with_tables(PAGE) == PAGE
    stale = PAGE.replace("| `-ngl`", "| `-ngk`")
    assert stale != PAGE and verb_pages.with_tables(stale) == PAGE


def test_every_keyword_is_an_option():
    load_rows, sampling_rows = verb_pages.tables().values()
    named = {re.match(r"\| .*? \| `(\w+)", row)[1] for row in load_rows}
    fit = inspect.signature(llama.open).parameters["fit"]
    keywords = {**inspect.signature(load).parameters, "fit": fit}
    assert named <= set(keywords)
    # What the command line has another way to say, or a number of sequences that it does not take.
    assert set(keywords) - named <= {
        "path", "progress", "n_seq_max", "kv_unified", "program", "n_outputs_max", "header_only",
    }  # fmt: skip
    assert len(sampling_rows) == len(dataclasses.fields(Sampling))


def test_the_changes_on_the_page_are_those_there_are():
    rows = re.findall(r"^\| `(.*?)` \|", CHANGES, re.M)[1:]
    for change in rows:
        assert ChangeType().convert(change, None, None).text == change
    error = fails("plan", "x", "--what-if", "y", code=2)
    known = {re.match(r"\w+", change)[0] for change in error.split("Changes are ")[1].split(", ")}
    assert {re.match(r"\w+", change)[0] for change in rows} == known

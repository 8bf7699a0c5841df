"""What a model cannot take: the error says what was given, what was expected and what to do; the
model, and every other, goes on as if nothing had been asked. From Python, and from a terminal."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from ggml_py import ModelError, models
from ggml_py.boundary.handle import LIVE
from ggml_py.cli import main

from ..support.arch_files import load
from ..support.changed_models import SPEC, changed

PROMPT = [5, 6, 7, 8, 9]


def n_vocab(m):
    return m.n_vocab


INPUTS = {  # what is done to a model, and what the error must say
    "token": (lambda m: m.eval([1, n_vocab(m)]),
              lambda m: f"token {n_vocab(m)} is not in the vocabulary: ids are 0 to 127"),
    "negative token": (lambda m: m.eval([-1]), lambda m: "token -1 is not in the vocabulary"),
    "huge token": (lambda m: m.eval([1, 10**30]),
                   lambda m: f"token {10**30} is not in the vocabulary"),
    "token to generate from": (lambda m: m.generate([n_vocab(m) + 7], 3),
                               lambda m: f"token {n_vocab(m) + 7} is not in the vocabulary"),
    "empty prompt": (lambda m: m.eval([]), lambda m: "no tokens: give at least one token id"),
    "empty array": (lambda m: m.eval(np.empty(0, np.int32)), lambda m: "no tokens"),
    "nothing to generate from": (lambda m: m.generate([], 3), lambda m: "no tokens"),
    "prompt": (lambda m: m.eval([1] * 257),
               lambda m: "2 of 256 tokens (n_ctx) are used, so there is no room for 257 more"),
    "to generate": (lambda m: m.generate([1] * 200, 100),
                    lambda m: "200 tokens and n=100 to come: the context is full: "
                              "2 of 256 tokens (n_ctx) are used, so there is no room for "
                              "299 more"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "graphs"),
    [("llama", "ours"), ("gpt-oss", "ours"), ("llama", "libllama"), ("gemma3", "libllama"),
     ("mamba2", "libllama")],
)  # fmt: skip
def test_inputs(arch_file, name, graphs):
    """After each the sequence is what it was, to the bit."""
    with load(arch_file(name), n_ctx=256, graphs=graphs) as model:
        model.eval(PROMPT[:2])
        expected = model.eval(PROMPT[2:])
        for case, (act, message) in INPUTS.items():
            if name == "mamba2" and case in ("prompt", "to generate"):
                continue  # a state has no length
            model.reset()
            model.eval(PROMPT[:2])
            with pytest.raises(ModelError) as error:
                act(model)
            assert message(model) in str(error.value), case
            assert model.n_past == 2, case
            np.testing.assert_array_equal(model.eval(PROMPT[2:]), expected, case)


FILES = {  # what is wrong with the file, and what the error must say
    "missing": ({"drop": ["blk.1.ffn_down.weight"]},
                ["changed.gguf", "'blk.1.ffn_down.weight' [96, 64]", "is not among", "incomplete",
                 "Get the file again, or convert the model again"]),
    "norm missing": ({"drop": ["output_norm.weight"]}, ["'output_norm.weight' [64]"]),
    "embedding missing": ({"drop": ["token_embd.weight"]}, ["'token_embd.weight' [64, 300]"]),
    "shape": ({"reshape": ("blk.0.attn_k.weight", (64, 64))},
              ["'blk.0.attn_k.weight'", "has ne [64, 64, 1, 1]", "expected [64, 32, 1, 1]",
               "convert the model again"]),
    "dimensions": ({"reshape": ("blk.1.attn_norm.weight", (64, 2))},
                   ["'blk.1.attn_norm.weight'", "has ne [64, 2, 1, 1]", "expected [64, 1, 1, 1]"]),
    "metadata": ({"metadata": {"llama.attention.head_count_kv": 3}},
                 ["changed.gguf: 4 heads cannot share 3 key/value heads evenly"]),
    "architecture": ({"metadata": {"general.architecture": "rwkv9"}},
                     ["architecture 'rwkv9'", f"supported: {', '.join(sorted(models.ARCHS))}"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(SPEC)


@pytest.mark.parametrize("case", FILES)
def test_files(path, tmp_path, case, capsys, monkeypatch):
    """Nothing of them stays; another model goes on."""
    wrong, words = FILES[case]
    bad = changed(tmp_path, **wrong)
    with load(path) as model:
        expected = model.eval(PROMPT)
        model.reset()
        gc.collect()
        before = dict(LIVE)
        with pytest.raises(ModelError) as error:
            load(bad)
        assert not [word for word in words if word not in str(error.value)]
        del error
        gc.collect()
        assert before == dict(LIVE)
        for verb in (("plan",), ("generate", "--tokens", "1,2")):
            assert_says(capsys, monkeypatch, [verb[0], bad, *verb[1:]], words)
        np.testing.assert_array_equal(model.eval(PROMPT), expected)


def assert_says(capsys, monkeypatch, arguments, words, code=1):
    """One line on standard error, and the exit status."""
    monkeypatch.setattr(sys, "argv", ["ggml-py", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    said = capsys.readouterr()
    assert exit_.value.code == code and said.out == ""
    assert not [word for word in words if word not in said.err], said.err
    if code == 1:
        assert said.err.startswith("error: ") and len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--tokens", "1,300"], ["token 300 is not in the vocabulary: ids are 0 to 299"], 1),
        (["--tokens", "1,-3"], ["'1,-3'", "expected token ids", "like 1,2,3"], 2),
        (["--tokens", ""], ["''", "expected token ids", "like 1,2,3"], 2),
        (["--tokens", ",".join("1" * 300), "-c", 256], ["300", "0 of 256 tokens (-c)"], 1),
        (["--tokens", "1", "-ot", "ffn"], ["-ot ffn", "expected REGEX=NAME"], 1),
        (["--tokens", "1", "-ot", "(=CPU"], ["'('", "not a regular expression"], 1),
        (["--tokens", "1", "-ot", "ffn=GPU9"], ["'GPU9'", "buffer types are CPU"], 1),
        (["--tokens", "1", "-ts", "1,x"], ["'1,x'", "numbers separated by commas", "3,1"], 2),
        (["--tokens", "1", "-ngl", "auto"], ["'auto'", "a number of layers, or all; "], 2),
        (["--tokens", "1", "-ngl", "many"], ["'many'", "a number of layers, or all"], 2),
        (["--tokens", "1", "-ngl", "9" * 12], ["-ngl 999999999999", "2,147,483,647"], 1),
        (["--tokens", "1", "-sm", "rows"], ["'rows'", "none", "layer"], 2),
        (["--tokens", "1", "-ncmoe", "-1"], ["-ncmoe -1", "expected at least 0"], 1),
    ],
)  # fmt: skip
def test_the_command_line(path, capsys, monkeypatch, arguments, words, code):
    given = ["generate", path, "-d", "CPU", "-t", 1, *arguments]
    assert_says(capsys, monkeypatch, given, words, code)

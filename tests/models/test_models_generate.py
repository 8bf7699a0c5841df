"""Generating: sampled and shifted as libllama does it, streamed, stopped, interrupted."""

from __future__ import annotations

import itertools
import json
import pickle
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ggml_py import ClosedError, Gguf, ModelError, models
from ggml_py.gguf.writer import write_gguf
from ggml_py.models import Interrupted, Sampler
from ggml_py.models.file.vocab import eog_tokens
from ggml_py.models.synthetic import LlamaSpec, write_llama

load = partial(models.load, n_threads=1, repack=False)  # see test_models.py
SPEC = LlamaSpec(n_layer=2, n_embd=64, n_head=4, n_head_kv=2, n_ff=96, n_vocab=300, type="f32")
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(SPEC)


@pytest.fixture(params=["ours", "libllama"])
def model(path, request):
    with load(path, n_ctx=256, graphs=request.param) as model:
        yield model


@pytest.fixture
def shifting(path):
    """A model whose full context can be shifted."""
    with load(path, n_ctx=256, graphs="libllama") as model:
        yield model


# --- libllama


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_sampled_tokens_are_libllamas(oracle, path, seed):
    expected, _known = oracle.generate(path, PROMPT, 100, ("--seed", seed))
    with load(path, n_ctx=512) as model:
        tokens = model.generate(PROMPT, 100, Sampler(seed=seed))
    assert tokens == expected
    assert len(set(tokens)) > 20, "hardly sampled"


@pytest.mark.parametrize("n_keep", [0, 3, -1])
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_context_shift_is_llama_completions(oracle, path, flash_attn, n_keep):
    """Four shifts of a context of 256 tokens; sampled, so that tokens differ."""
    kept = len(PROMPT) if n_keep < 0 else n_keep
    options = {"n_ctx": 256, "flash_attn": flash_attn}
    ours = {**options, "graphs": "libllama"}
    expected, _known = oracle.generate(path, PROMPT, 700, ("--seed", 3), keep=kept, **options)
    with load(path, **ours) as model:
        tokens = model.generate(PROMPT, 700, Sampler(seed=3), context_shift=True, n_keep=n_keep)
        assert tokens == expected
        assert model.n_past < 256


def test_context_shift_with_windows(oracle, arch_file):
    path = arch_file("gemma3")
    expected, _known = oracle.generate(path, PROMPT, 400, keep=4, n_ctx=256)
    with load(path, n_ctx=256, graphs="libllama") as model:
        assert model.generate(PROMPT, 400, context_shift=True, n_keep=4) == expected


def test_no_shift_where_positions_cannot_be_moved(arch_file):
    with load(arch_file("gemma3"), n_ctx=1024, n_ubatch=64, graphs="libllama") as model:
        with pytest.raises(ModelError, match="positions of this model cannot be moved"):
            model.stream(PROMPT, 3, context_shift=True)
        assert len(model.generate(PROMPT, 3)) == 3


def test_tokens_that_end_a_generation_are_libllamas(oracle, tmp_path):
    """Of the vocabularies that upstream tests with, and of made-up ones."""
    folder = next(Path.home().glob(".cache/ggml_py/sources/0.26.0-*-whole/models"), None)
    names = ("refact", "falcon", "phi-3", "gpt-2", "deepseek-coder", "llama-spm")
    files = [folder / f"ggml-vocab-{name}.gguf" for name in names] if folder else []
    texts = ["<|end|>", "<|call|>", "<|return|>", "<eos>", "[PAD]", "<|file_sep|>", "<reponame>"]
    for i, extra in enumerate(([], texts, texts[:1], [*texts, "<|tool_response>"])):
        for keys in ({}, {"eos": 9, "fim_pad": 4, "eot": 10_000}):
            header = SPEC.header()
            header["tokenizer.ggml.tokens"][20 : 20 + len(extra)] = extra
            for name, value in keys.items():
                header[f"tokenizer.ggml.{name}_token_id"] = value
            files.append(tmp_path / f"{i}-{len(keys)}.gguf")
            write_gguf(files[-1], header, SPEC.tensors())
    found = {}
    for file in files:
        with Gguf.open(file) as gguf:
            found[file.name] = sorted(eog_tokens(gguf.metadata))
        theirs = json.loads(oracle.run("llama_generate", file, "eog").stdout)
        assert found[file.name] == theirs, file.name
    assert len({tuple(ids) for ids in found.values()}) > 6
    with load(files[-1]) as model:
        assert sorted(model.hparams.eog_tokens) == found[files[-1].name]
    assert eog_tokens({"general.architecture": "llama"}) == frozenset()


# --- streams


def test_a_stream_computes_when_it_is_asked(model):
    expected = model.generate(PROMPT, 12)
    model.reset()
    stream = model.stream(PROMPT, 12)
    assert model.n_past == 0  # nothing was computed yet
    for i, token in enumerate(stream):
        assert token == expected[i]
        assert model.n_past == len(PROMPT) + i
    assert i == 11
    model.reset()
    assert list(itertools.islice(model.stream(PROMPT, 12), 5)) == expected[:5]
    assert model.n_past == len(PROMPT) + 4
    # what was left out goes on from there
    assert model.generate(expected[4:5], 7) == expected[5:]


def test_other_sequences(path):
    with load(path, n_ctx=512, n_seq_max=2) as model:
        one, two = model.stream(PROMPT, 9), model.stream(PROMPT[:2], 9, seq=1)
        pairs = list(zip(one, two, strict=True))  # in turns
        assert model.seq_pos_max(1) == 2 + 8 - 1
        model.reset()
        assert model.generate(PROMPT, 9) == [a for a, _b in pairs]
        assert model.generate(PROMPT[:2], 9, seq=1) == [b for _a, b in pairs]


def unusual():
    """A function of logits that takes tokens further down in turn."""
    places = itertools.count()
    return lambda logits: int(np.argsort(logits)[-1 - next(places) % 7])


def test_a_token_of_stop_is_the_last(model):
    expected = model.generate(PROMPT, 40, unusual())
    last = expected[17]
    first = expected.index(last)
    model.reset()
    stop = {last, 299} if 299 not in expected else {last}
    assert model.generate(PROMPT, 40, unusual(), stop=stop) == expected[: first + 1]
    assert model.n_past == len(PROMPT) + first


def test_any_function_of_logits_samples(model):
    seen = []

    def least(logits):
        seen.append(logits.shape)
        return logits.argmin()

    tokens = model.generate(PROMPT, 3, least)
    assert seen == [(300,)] * 3 and all(type(t) is int for t in tokens)
    model.reset()
    assert tokens[0] == int(model.eval(PROMPT).argmin())


@pytest.mark.thorough("programs")
def test_penalties_are_for_the_prompt_too(model):
    """A token that would be the likeliest is penalised once it was in a prompt."""
    options = {"temperature": 0.0, "logit_bias": {PROMPT[0]: 500.0}}
    assert model.generate(PROMPT, 1, Sampler(**options)) == PROMPT[:1]
    model.reset()
    assert PROMPT[0] not in model.generate(PROMPT, 3, Sampler(**options, presence_penalty=1000.0))


def test_no_tokens_are_generated(model):
    assert model.generate(PROMPT, 0) == []
    assert model.n_past == len(PROMPT)


# --- what it refuses


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n": -1}, ModelError, "n=-1: expected the number of tokens"),
        ({"n": 1.5}, TypeError, "n: expected a whole number, got float 1.5"),
        ({"n": 300}, ModelError, "5 tokens|0 of 256 tokens .* no room for 304 more"),
        ({"tokens": []}, ModelError, "no tokens"),
        ({"tokens": [300]}, ModelError, "token 300 is not in the vocabulary"),
        ({"sampler": 0.8}, TypeError, "sampler: expected a Sampler, got float 0.8"),
        ({"stop": ["</s>"]}, TypeError, "stop: token: expected a whole number, got str"),
    ],
)  # fmt: skip
def test_what_it_refuses_before_it_computes(model, options, error, message):
    options = {"tokens": PROMPT, "n": 4, **options}
    with pytest.raises(error, match=message):
        model.stream(**options)
    assert model.n_past == 0
    assert len(model.generate(PROMPT, 4)) == 4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seq": 1}, ModelError, "sequence 1: expected 0 to 0"),
        ({"context_shift": True, "n_keep": 253, "tokens": [1] * 254}, ModelError,
         "n_keep=253: a context of 256 tokens can keep at most 252"),
        ({"context_shift": True, "n_keep": -2}, ValueError, "n_keep=-2: expected at least -1"),
    ],
)  # fmt: skip
def test_what_a_shift_refuses(shifting, options, error, message):
    test_what_it_refuses_before_it_computes(shifting, options, error, message)


def test_our_own_graphs_say_who_has_sequences(path):
    with load(path, graphs="ours") as model:
        assert model.eval([1], seq=0).shape == (300,)
        assert len(model.generate([1], 2, seq=0)) == 2
        for name in ("save_seq", "decode", "seq_rm", "seq_pos_max"):
            with pytest.raises(AttributeError, match=rf'Model.{name}: .* graphs="libllama"'):
                getattr(model, name)
        with pytest.raises(AttributeError, match="no attribute 'save'"):
            model.save  # noqa: B018
        for act in (lambda: model.eval([1], seq=1), lambda: model.stream([1], 2, seq=1)):
            with pytest.raises(ModelError, match="sequence 1: expected 0 to 0"):
                act()
        with pytest.raises(ModelError, match=r'context_shift: .* graphs="libllama"'):
            model.stream([1], 2, context_shift=True)


def test_a_sampler_that_fails(model):
    expected = model.generate(PROMPT, 4)
    model.reset()
    with pytest.raises(ModelError, match="the sampler gave token 300, which is not in the voc"):
        model.generate(PROMPT, 4, lambda logits: 300)
    with pytest.raises(ZeroDivisionError):
        model.generate([1], 4, lambda logits: 1 // 0)
    model.reset()
    assert model.generate(PROMPT, 4) == expected


def test_closed_between_tokens(path):
    model = load(path)
    stream = model.stream(PROMPT, 4)
    next(stream)
    model.close()
    with pytest.raises(ClosedError, match="this Model is closed"):
        next(stream)


def test_logits_that_are_not_finite(tmp_path):
    """A damaged weight: said, and the model goes on where it is not needed."""
    path = tmp_path / "nan.gguf"
    tensors = list(SPEC.tensors())
    for i, (name, data, type_, ne) in enumerate(tensors):
        if name == "token_embd.weight":
            values = data()
            values[7] = np.nan
            tensors[i] = (name, values, type_, ne)
    write_gguf(path, SPEC.header(), tensors)
    with load(path) as model:
        for sampler in (None, Sampler(temperature=0.0)):
            with pytest.raises(ModelError, match=r"logit of token 0 is nan .*weights are damaged"):
                model.generate([7], 3, sampler)
        model.reset()
        assert len(model.generate([1, 2], 1)) == 1


# --- Ctrl-C


def ctrl_c_after(seconds):
    """Will raise SIGINT in this process, once it is started."""
    return threading.Timer(seconds, signal.raise_signal, [signal.SIGINT])


def test_ctrl_c_leaves_what_was_generated(tmp_path):
    """Whenever it comes: the tokens so far are right, the model goes on from them."""
    path = tmp_path / "slower.gguf"
    write_llama(path, LlamaSpec(n_layer=4, n_vocab=512, n_ctx=2048))
    n = 150
    with load(path, n_ctx=1024) as model:
        start = time.perf_counter()
        expected = model.generate(PROMPT, n)
        seconds = time.perf_counter() - start
        everything, interrupted = PROMPT + expected, 0
        for part in np.linspace(0.0, 0.9, 8):
            model.reset()
            timer = ctrl_c_after(seconds * part)
            try:
                timer.start()
                tokens = model.generate(PROMPT, n)
                time.sleep(seconds)  # it comes here, if this run was a quick one
            except Interrupted as error:
                interrupted += 1
                tokens = error.tokens
                assert pickle.loads(pickle.dumps(error)).tokens == tokens
                assert str(error) == f"stopped after {len(tokens)} of {n} tokens"
            except KeyboardInterrupt:
                tokens = expected
            timer.join()
            assert tokens == expected[: len(tokens)]
            n_past = model.n_past
            assert n_past in (0, len(PROMPT) + len(tokens) - 1, len(PROMPT) + len(tokens))
            start = PROMPT[n_past:] or everything[n_past : n_past + 1]
            after = everything[n_past + len(start) :][:8]
            assert model.generate(start, 8)[: len(after)] == after
    assert interrupted >= 4


def test_all_tokens_are_left_by_an_interrupt(model):
    seen = []

    def sample(logits):
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(int(logits.argmax()))
        return seen[-1]

    with pytest.raises(Interrupted, match="stopped after 4 of 10 tokens") as interrupt:
        model.generate(PROMPT, 10, sample)
    assert interrupt.value.tokens == seen
    assert model.n_past == len(PROMPT) + 4  # all of them were evaluated
    seen.clear()
    expected = list(itertools.islice(model.stream([1], 10, sample), 4))
    assert expected == seen

"""`Sampler` against llama.cpp's own samplers, made from its own command line, and its errors."""

from __future__ import annotations

import dataclasses
import gc
import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggml_py import ArgumentError, BusyError, ClosedError, ModelError
from ggml_py.boundary.handle import LIVE
from ggml_py.boundary.uses import in_use
from ggml_py.llama import Tokenizer
from ggml_py.llama import sampler as sampler_module
from ggml_py.llama.likeliest import likeliest
from ggml_py.llama.sampling import Sampling
from ggml_py.models import Sampler, load
from ggml_py.models.synthetic import LlamaSpec

pytestmark = pytest.mark.needs(release="default")
programs = pytest.mark.thorough("programs")
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # draws from the softmax
SEEDS = (0, 42, 2**32 - 2)
PAST = [3, 3, 3, 7, 11, 50, 3, 11]


def logits_of(n_rows, n_vocab, scale=3.0):
    rows = np.random.default_rng(0).standard_normal((n_rows, n_vocab)) * scale
    return rows.astype(np.float32)


@pytest.fixture(scope="module")
def vocab(model_file):
    """The path of a model, given its number of tokens."""
    small = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_head_kv": 2, "n_ff": 32, "type": "f32"}
    return lambda n: model_file(LlamaSpec(n_vocab=n, **small))


@pytest.fixture
def sampler_of(vocab):
    """A function that makes samplers, with tokenizers that the test closes."""
    opened = []

    def make(n_vocab, **options):
        opened.append(Tokenizer.open(vocab(n_vocab)))
        return Sampler(**options, tokenizer=opened[-1])

    yield make
    for tokenizer in opened:
        tokenizer.close()


# --- llama.cpp's


CHAINS = {
    "default": {},
    "draw": OFF,
    "temp": {**OFF, "temperature": 0.7},
    "temp-low": {**OFF, "temperature": 0.01},
    "greedy": {"temperature": 0.0},
    "greedy-of-typical": {"temperature": 0.0, "typical_p": 0.3},
    "dynatemp": {"dynatemp_range": 0.6, "dynatemp_exponent": 1.3},
    "top-k": {**OFF, "top_k": 50},
    "top-k-more-than-128": {**OFF, "top_k": 300},
    "top-k-all": {**OFF, "top_k": 10**6},
    "top-p": {**OFF, "top_p": 0.9},
    "min-p": {**OFF, "min_p": 0.05},
    "typical": {**OFF, "typical_p": 0.4},
    "top-n-sigma": {**OFF, "top_n_sigma": 1.5},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.02},
    "repeat": {**OFF, "repeat_penalty": 1.3},
    "frequency": {**OFF, "frequency_penalty": 0.7},
    "presence": {**OFF, "presence_penalty": 1.5, "repeat_last_n": 5},
    "dry": {"dry_multiplier": 2.5, "dry_base": 1.2, "dry_allowed_length": 1,
            "dry_penalty_last_n": 6, "dry_sequence_breakers": ("w1", ":")},
    "bias": {**OFF, "logit_bias": {3: 4.5, 7: -math.inf, 11: -2.0}},
    "greedy-repeat": {"temperature": 0.0, "repeat_penalty": 1.5},
    "mirostat": {"mirostat": 1, "mirostat_lr": 0.3, "mirostat_ent": 3.0, "repeat_penalty": 9.0},
    "mirostat-2": {"mirostat": 2, "temperature": 1.1, "logit_bias": {9: 3.0}},
    "all": {
        "temperature": 1.3, "top_k": 200, "top_p": 0.97, "min_p": 0.002, "repeat_penalty": 1.1,
        "frequency_penalty": 0.1, "presence_penalty": 0.2, "repeat_last_n": 16, "typical_p": 0.9,
        "logit_bias": {5: 1.0}, "dry_multiplier": 0.5, "xtc_probability": 0.1, "top_n_sigma": 3.0,
    },
}  # fmt: skip


def words(seed, chain):
    """Options of llama.cpp, each by its last name."""
    flags = {row.name: row.metadata["flags"][-1] for row in dataclasses.fields(Sampling)}
    found = ["--seed", seed]
    for name, value in chain.items():
        several = value if isinstance(value, tuple) else (value,)
        several = [f"{k}{v:+}" for k, v in value.items()] if name == "logit_bias" else several
        found += [word for one in several for word in (flags[name], one)]
    return found


CASES = [(chain, False) for chain in CHAINS]
# The greedy choice of equal logits is the first one; llama.cpp's is any.
CASES += [(chain, True) for chain in CHAINS if chain not in ("greedy", "greedy-repeat")]


@pytest.mark.parametrize("n_vocab", [300, 5000])
@pytest.mark.parametrize(("chain", "ties"), CASES)
def test_samples_are_llama_cpps(oracle, tmp_path, vocab, sampler_of, chain, n_vocab, ties):
    """The candidates and their order, their probabilities, and for every seed the tokens."""
    rows, options = logits_of(24, n_vocab), CHAINS[chain]
    rows = np.round(rows * 4) / 4 if ties else rows
    for seed in SEEDS:
        expected = oracle.samples(vocab(n_vocab), rows, tmp_path, PAST, words(seed, options))
        sampler = sampler_of(n_vocab, **options, seed=seed)
        sampler.accept(PAST)
        for row, theirs in zip(rows, expected, strict=True):
            ids, p = sampler.candidates(row)
            token = sampler(row)
            if sampler.temperature == 0:
                assert (ids, p) == ([token], [1.0])
            else:
                np.testing.assert_array_equal(ids, theirs.ids[theirs.p > 0])
                np.testing.assert_allclose(p, theirs.p[theirs.p > 0], rtol=3e-7)
            assert token == theirs.token


def test_many_draws_are_llama_cpps(oracle, tmp_path, vocab):
    """One seed, 3000 tokens in a row, with penalties for earlier ones."""
    rows = logits_of(3000, 300)
    chain = {"temperature": 1.5, "repeat_penalty": 1.2, "repeat_last_n": 20}
    expected = oracle.samples(vocab(300), rows, tmp_path, [], words(0, chain))
    sampler = Sampler(**chain, seed=0)
    assert [sampler(row) for row in rows] == [s.token for s in expected]


GRAMMARS = ("root ::= [a-y]+", 'root ::= "yes" | "no" " "*', 'root ::= ("w1" [0-9]+ " "?)+')


@pytest.mark.parametrize("graphs", ["ours", "libllama"])
@pytest.mark.parametrize("chain", ["default", "repeat", "dry", "mirostat", *GRAMMARS])
def test_models_generate_what_llama_cpp_generates(oracle, vocab, chain, graphs):
    """Text that fits the grammar, until it ends."""
    options = CHAINS.get(chain, {"grammar": chain, "repeat_penalty": 1.1})
    expected, _known = oracle.generate(vocab(300), PAST, 40, tuple(words(7, options)))
    with load(vocab(300), graphs=graphs, n_ctx=512, n_threads=1, repack=False) as model:
        sampler = Sampler(**options, seed=7, tokenizer=model.tokenizer)
        assert model.generate(PAST, 40, sampler) == expected


# --- whatever the logits and the settings


ROWS = hnp.arrays(
    np.float32,
    st.integers(1, 400),
    elements=st.one_of(
        st.floats(-60, 60, width=32),
        st.sampled_from([0.0, 1.0, -math.inf, 1e37, -3.0e38, 1e-40]),
    ),
).filter(lambda row: math.isfinite(row.max()))
ANY = st.fixed_dictionaries({
    "temperature": st.one_of(st.floats(0, 5), st.sampled_from([1e-300, 1e-45, 1e-39, 1e30])),
    "top_k": st.one_of(st.integers(0, 400), st.just(2**31)),
    "top_p": st.floats(0, 1),
    "min_p": st.floats(0, 1),
    "typical_p": st.one_of(st.just(1.0), st.floats(0, 1)),
    "top_n_sigma": st.floats(-1, 3),
    "xtc_probability": st.floats(0, 1),
    "xtc_threshold": st.floats(0, 1),
    "repeat_penalty": st.floats(0.125, 8),
    "repeat_last_n": st.integers(0, 20),
    "frequency_penalty": st.one_of(st.floats(-3, 3), st.sampled_from([-3e38, 3e38])),
    "presence_penalty": st.floats(-3, 3),
    "mirostat": st.sampled_from([0, 0, 2]),
    "logit_bias": st.dictionaries(st.just(0), st.sampled_from([1.0, -math.inf, 3e38])),
    "seed": st.integers(0, 2**32 - 2),
})  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(row=ROWS, options=ANY, past=st.lists(st.integers(0, 90), max_size=30))
@programs
def test_what_always_holds(row, options, past):
    before = row.copy()
    sampler, again = Sampler(**options), Sampler(**options)
    sampler.accept(past)
    again.accept(past)
    try:
        ids, p = sampler.candidates(row)
        token = sampler(row)
    except ModelError as error:
        extreme = abs(options["frequency_penalty"]) > 3 or options["logit_bias"]
        extreme = extreme or (options["temperature"] < 1e-30 and options["xtc_probability"])
        assert extreme or np.abs(row[np.isfinite(row)]).max() > 1e36, error
        return
    assert len(set(ids.tolist())) == len(ids) == len(p)
    assert 1 <= len(ids) <= (len(row) if options["mirostat"] else options["top_k"] or len(row))
    assert p.sum() == pytest.approx(1, abs=1e-4) and (p > 0).all()
    assert token == again(row)  # the same seed, the same past
    sampler.reset()
    sampler.accept(past)
    assert token == sampler(row)
    assert token in ids
    np.testing.assert_array_equal(row, before)


@programs
def test_temperatures():
    row = logits_of(1, 50)[0]
    for cold in (1e-3, 1e-30, 1e-40, 1e-300, 5e-324):
        assert Sampler(temperature=cold, top_k=0, top_p=1.0, min_p=0.0)(row) == row.argmax()
    _ids, p = Sampler(**{**OFF, "temperature": 1e30}).candidates(row)
    np.testing.assert_allclose(p, 1 / 50, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 7, 300, 40_000])
def test_the_first_of_equal_logits(n):
    row = np.full(n, 2.5, np.float32)
    assert Sampler(temperature=0.0)(row) == 0
    assert Sampler(temperature=0.0, logit_bias={0: -1.0})(row) == min(n - 1, 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.0, math.nan], r"token 1 is nan \(1 of 2 are not finite\)"),
        ([math.inf, 0.0, math.nan], r"token 0 is inf \(2 of 3 are not finite\)"),
        ([-math.inf] * 4, "all logits are -inf: no token is left"),
        ([], "expected those of one token"),
        ([[1.0]], r"logits \[1, 1\]: expected those of one token"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.8, marks=programs)])
def test_logits_of_which_none_is_the_largest(row, message, temperature):
    sampler = Sampler(temperature=temperature)
    with pytest.raises(ModelError, match=message):
        sampler(np.array(row, np.float32))
    assert sampler(np.array([1.0, 50.0], np.float32)) == 1


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.8, marks=programs)])
def test_no_token_is_left(temperature):
    bans = {0: -math.inf, 1: -math.inf}
    with pytest.raises(ModelError, match="all logits are -inf: no token is left"):
        Sampler(temperature=temperature, logit_bias=bans)(np.zeros(2, np.float32))
    with pytest.raises(ModelError, match=r"logit of token 0 is inf \(1 of 2"):
        Sampler(temperature=temperature, logit_bias={0: 3e38})(np.full(2, 3e38, np.float32))


# --- the object


@programs
def test_settings_stay_and_seeds_are_known():
    sampler = Sampler()
    assert Sampler().seed != sampler.seed != Sampler(seed=2**32 - 1).seed
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampler.top_k = 3
    row = logits_of(1, 500)[0]
    first = [sampler(row) for _ in range(20)]
    assert Sampler(seed=sampler.seed)(row) == first[0]
    sampler.reset()
    assert [sampler(row) for _ in range(20)] == first
    assert f"seed={sampler.seed})" in repr(sampler)


@programs
def test_past_tokens():
    """A window of the last n tokens, of the prompt and sampled."""
    row = np.array([1.0, 0.9, 0.8, 0.7], np.float32)
    sampler = Sampler(temperature=0.0, presence_penalty=1.0, repeat_last_n=2)
    assert [sampler(row) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    sampler.reset()
    sampler.accept(np.array([0, 1]))
    assert sampler(row) == 2
    sampler.accept([9])  # of another vocabulary: nothing to penalise here
    assert sampler(row) == 0


@programs
def test_one_thread_at_a_time(sampler_of):
    sampler, row, raised = sampler_of(300, grammar="root ::= [a-z]+"), logits_of(1, 300)[0], []

    def use():
        for call in (sampler, sampler.candidates):
            with pytest.raises(BusyError, match="sampling on another thread"):
                call(row)
            raised.append(call)

    with in_use("sampling", sampler._native):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert len(raised) == 2 and sampler(row) in sampler.candidates(row)[0]


@programs
def test_it_ends_with_its_model(vocab):
    row = logits_of(1, 300)[0]
    with load(vocab(300)) as model:
        sampler = Sampler(grammar="root ::= [a-z]+", tokenizer=model.tokenizer)
        sampler(row)
    with pytest.raises(ClosedError, match="closed"):
        sampler(row)
    sampler.reset()
    with pytest.raises(ClosedError, match="closed"):
        sampler(row)
    gc.collect()
    before = LIVE["SamplerHandle"]
    samplers = [Sampler() for _ in range(9)]
    assert [sampler(row) in range(300) for sampler in samplers] == [True] * 9
    assert LIVE["SamplerHandle"] == before + 9
    del samplers  # at once, without the garbage collector
    assert LIVE["SamplerHandle"] == before


@programs
def test_its_model_is_closed_while_it_is_made(sampler_of, monkeypatch):
    """The vocabulary is there until libllama has read it."""
    made = sampler_module._penalties

    def closing(library, settings, vocab):
        settings.tokenizer.close()
        return made(library, settings, vocab)

    monkeypatch.setattr(sampler_module, "_penalties", closing)
    with pytest.raises(ClosedError, match="closed"):
        sampler_of(300, dry_multiplier=1.0)


@programs
def test_what_a_tokenizer_is_for(sampler_of, capfd):
    for wrong, message in (
        ("root ::= [a-z", "failed to parse grammar"),
        ("start ::= [a-z]", "grammar does not contain a 'root' symbol"),
    ):
        with pytest.raises(ArgumentError, match=f"llama.cpp does not take it: {message}"):
            sampler_of(300, grammar=wrong)
    with pytest.raises(ModelError, match="301 logits: <Tokenizer of 300 tokens> has no text"):
        sampler_of(300, grammar="root ::= [a-z]")(np.zeros(301, np.float32))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": -1.0}, ArgumentError, "temperature=-1.0: expected a finite number, 0"),
        ({"temperature": math.nan}, ArgumentError, "temperature=nan: expected a finite number"),
        ({"temperature": "hot"}, TypeError, "temperature: expected a number, got str 'hot'"),
        ({"temperature": True}, TypeError, "temperature: expected a number, got bool"),
        ({"top_k": -1}, ArgumentError, "top_k=-1: expected at least 0"),
        ({"top_k": 1.5}, TypeError, "top_k: expected a whole number, got float 1.5"),
        ({"top_p": 1.01}, ArgumentError, "top_p=1.01: expected 0 to 1"),
        ({"min_p": -0.1}, ArgumentError, "min_p=-0.1: expected 0 to 1"),
        ({"repeat_penalty": 0}, ArgumentError, "repeat_penalty=0: expected a number above 0"),
        ({"repeat_penalty": math.inf}, ArgumentError, "repeat_penalty=inf: expected a finite"),
        ({"repeat_last_n": -1}, ArgumentError, "repeat_last_n=-1: expected 0 to 16,777,216"),
        ({"frequency_penalty": math.nan}, ArgumentError, "frequency_penalty=nan: expected a f"),
        ({"presence_penalty": 1e39}, ArgumentError, "presence_penalty=1e\\+39: expected a fin"),
        ({"mirostat": 3}, ArgumentError, "mirostat=3: expected 0 to 2"),
        ({"seed": -1}, ArgumentError, "seed=-1: expected 0 to 4,294,967,295"),
        ({"seed": 2**32}, ArgumentError, "seed=4294967296: expected 0 to 4,294,967,295"),
        ({"logit_bias": {-1: 0.0}}, ArgumentError, "logit_bias: token=-1: expected 0 to 2,147"),
        ({"logit_bias": {1: math.inf}}, ArgumentError, r"logit_bias\[1\]=inf: expected a finite"),
        ({"grammar": "a\0"}, ArgumentError, "without NUL"),
        ({"grammar": "root ::= [a]"}, ArgumentError, "reads the vocabulary: give a tokenizer"),
        ({"dry_multiplier": 1.0}, ArgumentError, "dry_multiplier=1.0 reads the vocabulary"),
        ({"mirostat": 1}, ArgumentError, "mirostat=1 reads the vocabulary"),
        ({"dry_sequence_breakers": "\n"}, TypeError, "expected a list of texts"),
        ({"tokenizer": "llama"}, TypeError, "tokenizer: expected a Tokenizer, got str 'llama'"),
    ],
)
def test_settings_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        Sampler(**options)


def test_a_bias_outside_of_the_vocabulary():
    with pytest.raises(ModelError, match="token 9: the vocabulary's ids are 0 to 3"):
        Sampler(logit_bias={9: 1.0})(np.zeros(4, np.float32))


@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 511, 512, 513, 1500])
def test_the_likeliest_is_numpys(n):
    """Wherever it is among equal ones, banned tokens and the blocks that C looks at."""
    rng = np.random.default_rng(n)
    for _ in range(50):
        logits = rng.integers(-9, 9, n).astype(np.float32)
        logits[rng.random(n) < 0.2] = -np.inf
        logits[rng.integers(n)] = rng.integers(-9, 9)
        assert likeliest(logits) == logits.argmax()
    for wrong in (np.nan, np.inf):
        logits[rng.integers(n)] = wrong
        with pytest.raises(ModelError, match=f"is {wrong} "):
            likeliest(logits)
        logits[:] = 0.0
    with pytest.raises(ModelError, match="all logits are -inf"):
        likeliest(np.full(n, -np.inf, np.float32))

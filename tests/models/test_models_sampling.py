"""Sampling against libllama's own samplers, against plain numpy, and what holds whatever it is."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggml_py import ArgumentError, ModelError
from ggml_py.models import Sampler
from ggml_py.models.sampling import likeliest

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # draws from the softmax
SEEDS = (0, 42, 2**32 - 2)


def logits_of(n_rows, n_vocab, seed=0, scale=3.0):
    """Rows in which no two are equal: the order of equal ones libllama leaves to std::sort."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((n_rows, n_vocab)) * scale).astype(np.float32)
    for row in rows:
        while len(first := np.unique(row, return_index=True)[1]) < n_vocab:
            again = np.setdiff1d(np.arange(n_vocab), first)
            row[again] = rng.standard_normal(len(again)) * scale
    return rows


# --- libllama


CHAINS = {
    "default": {},
    "draw": OFF,
    "temp": {**OFF, "temperature": 0.7},
    "temp-low": {**OFF, "temperature": 0.01},
    "temp-high": {**OFF, "temperature": 50.0},
    "greedy": {"temperature": 0.0},
    "top-k": {**OFF, "top_k": 50},
    "top-k-1": {**OFF, "top_k": 1},
    "top-k-more-than-128": {**OFF, "top_k": 300},
    "top-k-all": {**OFF, "top_k": 10**6},
    "top-p": {**OFF, "top_p": 0.9},
    "top-p-0": {**OFF, "top_p": 0.0},
    "top-p-nearly-all": {**OFF, "top_p": 0.9999},
    "min-p": {**OFF, "min_p": 0.05},
    "min-p-1": {**OFF, "min_p": 1.0},
    "top-k-top-p": {**OFF, "top_k": 100, "top_p": 0.8},
    "top-k-min-p": {**OFF, "top_k": 100, "min_p": 0.1},
    "top-p-min-p": {**OFF, "top_p": 0.99, "min_p": 0.01},
    "repeat": {**OFF, "repeat_penalty": 1.3},
    "repeat-below-1": {**OFF, "repeat_penalty": 0.8},
    "frequency": {**OFF, "frequency_penalty": 0.7},
    "presence": {**OFF, "presence_penalty": 1.5, "repeat_last_n": 5},
    "bias": {**OFF, "logit_bias": {3: 4.5, 7: -math.inf, 11: -2.0}},
    "greedy-repeat": {"temperature": 0.0, "repeat_penalty": 1.5},
    "all": {
        "temperature": 1.3, "top_k": 200, "top_p": 0.97, "min_p": 0.002, "repeat_penalty": 1.1,
        "frequency_penalty": 0.1, "presence_penalty": 0.2, "repeat_last_n": 16,
        "logit_bias": {5: 1.0},
    },
}  # fmt: skip


def named(settings):
    """The same for the oracle: all samplers, as llama.cpp's command line has them."""
    sampler = Sampler(seed=0, **settings)
    names = {"temperature": "temp"}
    values = {names.get(f.name, f.name): getattr(sampler, f.name)
              for f in dataclasses.fields(Sampler) if f.init}  # fmt: skip
    bias = ",".join(f"{k}={v}" for k, v in values.pop("logit_bias").items())
    del values["seed"]
    return {**values, **({"logit_bias": bias} if bias else {})}


@pytest.mark.parametrize("n_vocab", [100, 5000])
@pytest.mark.parametrize("chain", CHAINS)
def test_samples_are_libllamas(oracle, tmp_path, chain, n_vocab):
    """The candidates and their order, their probabilities, and for every seed the tokens."""
    rows, past = logits_of(24, n_vocab), [3, 3, 3, 7, 11, 50, 3, 11]
    for seed in SEEDS:
        options = {**named(CHAINS[chain]), "seed": seed, "accept": ",".join(map(str, past))}
        expected = oracle.samples(rows, tmp_path, **options)
        sampler = Sampler(**CHAINS[chain], seed=seed)
        sampler.accept(past)
        for row, theirs in zip(rows, expected, strict=True):
            ids, p = sampler.candidates(row)
            theirs_left = theirs.p > 0 if sampler.temperature == 0 else slice(None)
            np.testing.assert_array_equal(ids, theirs.ids[theirs_left])
            np.testing.assert_allclose(p, theirs.p[theirs_left], rtol=3e-7)
            assert sampler(row) == theirs.token


def test_a_large_vocabulary(oracle, tmp_path):
    """Flat and peaked distributions, so that top-p ends early, late, and among all."""
    for scale in (0.5, 3.0, 20.0):
        rows = logits_of(4, 60_000, scale=scale)
        for chain in ("default", "draw", "top-p", "top-k-more-than-128", "min-p"):
            options = {**named(CHAINS[chain]), "seed": 5}
            expected = [s.token for s in oracle.samples(rows, tmp_path, **options)]
            sampler = Sampler(**CHAINS[chain], seed=5)
            assert [sampler(row) for row in rows] == expected, (scale, chain)


def test_many_draws_are_libllamas(oracle, tmp_path):
    """One seed, 3000 tokens in a row, with penalties for what was drawn."""
    rows = logits_of(3000, 64)
    chain = {"temperature": 1.5, "repeat_penalty": 1.2, "repeat_last_n": 20}
    expected = oracle.samples(rows, tmp_path, **named(chain), seed=0)
    sampler = Sampler(**chain, seed=0)
    assert [sampler(row) for row in rows] == [s.token for s in expected]


# --- plain numpy


def reference(logits, past, s):
    """ids and probabilities in double precision, by full sorts: what the names mean."""
    x = logits.astype(np.float64)
    for token, bias in s.logit_bias.items():
        x[token] += bias
    window = past[-s.repeat_last_n :] if s.repeat_last_n else []
    for token in set(window):
        x[token] = x[token] * s.repeat_penalty if x[token] <= 0 else x[token] / s.repeat_penalty
        x[token] -= window.count(token) * s.frequency_penalty + s.presence_penalty
    ids = np.array(sorted(range(len(x)), key=lambda i: (-x[i], i)))
    if s.top_k:
        ids = ids[: s.top_k]
    p = np.exp(x[ids] - x[ids[0]])
    p /= p.sum()
    if s.top_p < 1:
        ids = ids[: max(1, int((np.cumsum(p) < s.top_p).sum()) + 1)]
    ids = [i for i in ids if x[i] - x[ids[0]] >= math.log(s.min_p)] if s.min_p else ids
    ids = np.array(ids[:1] if s.temperature == 0 else ids)
    weights = np.exp((x[ids] - x[ids[0]]) / (s.temperature or 1.0))
    return ids, weights / weights.sum()


# Where the 0.9999 ends depends on how many digits are summed.
@pytest.mark.parametrize("chain", [name for name in CHAINS if name != "top-p-nearly-all"])
def test_candidates_are_those_of_plain_numpy(chain):
    rng = np.random.default_rng(9)
    for n_vocab in (3, 40, 700):
        for row in logits_of(6, max(n_vocab, 12), seed=n_vocab):
            past = rng.integers(0, len(row), 100).tolist()
            sampler = Sampler(**CHAINS[chain], seed=1)
            sampler.accept(past)
            ids, p = sampler.candidates(row)
            expected_ids, expected_p = reference(row, past, sampler)
            order = np.argsort(expected_ids)
            np.testing.assert_array_equal(np.sort(ids), expected_ids[order])
            np.testing.assert_allclose(p[np.argsort(ids)], expected_p[order], rtol=1e-4, atol=1e-37)


@pytest.mark.thorough("long")
def test_draws_have_the_probabilities():
    """10,000 draws: the frequencies are within five standard deviations of the probabilities."""
    row, n = logits_of(1, 30)[0], 10_000
    sampler = Sampler(temperature=1.2, top_k=12, top_p=0.98, seed=3)
    ids, p = sampler.candidates(row)
    counts = np.bincount([sampler(row) for _ in range(n)], minlength=30)
    assert counts.sum() == counts[ids].sum()
    assert (np.abs(counts[ids] - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1).all()


# --- whatever the logits and the settings


ROWS = hnp.arrays(
    np.float32,
    st.integers(1, 80),
    elements=st.one_of(
        st.floats(-60, 60, width=32),
        st.sampled_from([0.0, 1.0, -math.inf, 1e37, -3.0e38, 1e-40]),
    ),
).filter(lambda row: math.isfinite(row.max()))
ANY = st.fixed_dictionaries({
    "temperature": st.one_of(st.floats(0, 5), st.sampled_from([1e-300, 1e-45, 1e-39, 1e30])),
    "top_k": st.one_of(st.integers(0, 90), st.just(2**31)),
    "top_p": st.floats(0, 1),
    "min_p": st.floats(0, 1),
    "repeat_penalty": st.floats(0.125, 8),
    "repeat_last_n": st.integers(0, 20),
    "frequency_penalty": st.floats(-3, 3),
    "presence_penalty": st.floats(-3, 3),
    "seed": st.integers(0, 2**32 - 2),
})  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(row=ROWS, options=ANY, past=st.lists(st.integers(0, 90), max_size=30))
@pytest.mark.thorough("long")
def test_what_always_holds(row, options, past):
    before = row.copy()
    sampler, again = Sampler(**options), Sampler(**options)
    sampler.accept(past)
    again.accept(past)
    try:
        ids, p = sampler.candidates(row)
    except ModelError:
        assert row.max() < -1e37  # and the penalties took it to -inf
        return
    assert len(set(ids.tolist())) == len(ids) == len(p)
    assert 1 <= len(ids) <= (options["top_k"] or len(row))
    assert p.sum() == pytest.approx(1, abs=1e-4) and (p >= 0).all() and not np.isnan(p).any()
    token = sampler(row)
    assert token == again(row)  # the same seed, the same past
    sampler.reset()
    sampler.accept(past)
    assert token == sampler(row)
    assert token in ids and p[ids.tolist().index(token)] > 0
    np.testing.assert_array_equal(row, before)


@settings(max_examples=200, deadline=None)
@given(row=ROWS, k=st.integers(1, 90))
def test_top_k_keeps_the_k_largest(row, k):
    ids, _p = Sampler(**{**OFF, "top_k": k}).candidates(row)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))  # of equal ones, the lower id
    assert ids.tolist() == order[:k]


@settings(max_examples=200, deadline=None)
@given(row=ROWS, p=st.floats(0, 1), q=st.floats(0, 1))
def test_what_top_p_and_min_p_keep_grows(row, p, q):
    p, q = sorted((p, q))
    for name, fewer, more in (("top_p", p, q), ("min_p", q, p)):
        small = Sampler(**{**OFF, name: fewer}).candidates(row)[0]
        large = Sampler(**{**OFF, name: more}).candidates(row)[0]
        assert set(small.tolist()) <= set(large.tolist())
        assert int(row.argmax()) in small


@pytest.mark.parametrize("n", [1, 7, 300, 40_000])
def test_equal_logits(n):
    row = np.full(n, 2.5, np.float32)
    assert Sampler(temperature=0.0)(row) == 0
    assert Sampler(**{**OFF, "top_k": 5}).candidates(row)[0].tolist() == list(range(min(n, 5)))
    assert len(Sampler(**{**OFF, "min_p": 1.0}).candidates(row)[0]) == n
    half = len(Sampler(**{**OFF, "top_p": 0.5}).candidates(row)[0])
    assert half == pytest.approx(n / 2, abs=1 + n * 1e-3)
    drawn = [Sampler(**OFF, seed=i)(row) for i in range(200)]
    assert np.mean(drawn) == pytest.approx((n - 1) / 2, abs=5 * n / math.sqrt(12 * 200))


def test_temperatures():
    row = logits_of(1, 50)[0]
    best = int(row.argmax())
    for cold in (1e-3, 1e-30, 1e-40, 1e-300, 5e-324):
        assert Sampler(temperature=cold, top_k=0, top_p=1.0, min_p=0.0)(row) == best
    _ids, p = Sampler(**{**OFF, "temperature": 1e30}).candidates(row)
    np.testing.assert_allclose(p, 1 / 50, rtol=1e-5)


def test_no_draw_finds_what_is_impossible(monkeypatch):
    monkeypatch.setattr(Sampler, "_uniform", lambda self: 0.0)
    assert Sampler(**OFF)(np.array([-np.inf, -np.inf, 1.0, 2.0], np.float32)) == 2
    monkeypatch.setattr(Sampler, "_uniform", lambda self: 1.0 - 2.0**-53)
    assert Sampler(**OFF)(np.array([1.0, 2.0, -np.inf, -np.inf], np.float32)) == 1


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
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_of_which_none_is_the_largest(row, message, temperature):
    sampler = Sampler(temperature=temperature)
    with pytest.raises(ModelError, match=message):
        sampler(np.array(row, np.float32))
    assert sampler(np.array([1.0, 50.0], np.float32)) == 1


# --- the object


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


def test_past_tokens():
    """A window of the last n; prompts and what was sampled alike."""
    row = np.array([1.0, 0.9, 0.8, 0.7], np.float32)
    sampler = Sampler(temperature=0.0, presence_penalty=1.0, repeat_last_n=2)
    assert [sampler(row) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    sampler.reset()
    sampler.accept(np.array([0, 1]))
    assert sampler(row) == 2
    sampler.accept([9])  # of another vocabulary: nothing to penalise here
    assert sampler(row) == 0


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
        ({"repeat_last_n": -1}, ArgumentError, "repeat_last_n=-1: expected at least 0"),
        ({"frequency_penalty": math.nan}, ArgumentError, "frequency_penalty=nan: expected a f"),
        ({"presence_penalty": 1e39}, ArgumentError, "presence_penalty=1e\\+39: expected a fin"),
        ({"seed": -1}, ArgumentError, "seed=-1: expected 0 to 4,294,967,295"),
        ({"seed": 2**32}, ArgumentError, "seed=4294967296: expected 0 to 4,294,967,295"),
        ({"logit_bias": {-1: 0.0}}, ArgumentError, "logit_bias: token=-1: expected at least 0"),
        ({"logit_bias": {1: math.inf}}, ArgumentError, r"logit_bias\[1\]=inf: expected a finite"),
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

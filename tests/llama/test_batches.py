"""What `Model.decode` and `Model.seq_*` give back, refuse and leave behind."""

from __future__ import annotations

import contextlib
import re
import threading
from functools import partial

import numpy as np
import pytest

from ggml_py import BusyError, ClosedError, ModelError, models
from ggml_py.llama.evaluating import LlamaContext
from ggml_py.models import Batch

from ..support import sequence_cases
from ..support.arch_files import PROMPTS
from ..support.changed_models import SPEC
from ..support.sequence_scripts import execute, span

load = partial(models.load, n_threads=1, repack=False, graphs="libllama")
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def path(model_file):
    return model_file(SPEC)


@pytest.fixture(params=[False, True], ids=["streams", "unified"])
def model(path, request):
    with load(path, n_ctx=1024, n_seq_max=3, kv_unified=request.param) as model:
        yield model


def batch(*tokens):
    """Of (token, seq, …) as `Batch.add` takes them, by name if given a dict."""
    made = Batch()
    for token, seq, *rest in tokens:
        pos, logits = (*rest, None, True)[0], True
        made.add(token, pos, seq, logits)
    return made


def spans(model):
    return [span(model, s) for s in range(model.n_seq_max)]


# --- results


def test_rows_are_in_the_order_of_the_batch(model):
    """Ubatches of streams are not: they go sequence by sequence."""
    alone = []
    for seq in range(3):
        alone.append(model.eval([seq + 1, seq + 4], all_logits=True, seq=seq))
    model.reset()
    rows = model.decode(batch(*((seq + 1, seq) for seq in range(3)), (6, 2), (5, 1), (4, 0)))
    expected = [alone[0][0], alone[1][0], alone[2][0], alone[2][1], alone[1][1], alone[0][1]]
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert len(np.unique(rows, axis=0)) == 6


def test_only_what_was_asked_for(model):
    """Bits are the same where batches have as many rows, which is all that upstream's CPU promises:
    products of one row go another way than those of several (`n < 2` in llamafile/sgemm.cpp), and
    keys that differ in the last bit may round to other f16. One batch of six rows in place of five
    and one differed by 4e-4 on a processor without AVX-512."""
    b = Batch()
    for token in PROMPT:
        b.add(token)
    assert model.decode(b).shape == (0, SPEC.n_vocab)
    assert model.n_past == 5 and spans(model) == [(0, 4), (-1, -1), (-1, -1)]
    b.clear()
    b.add(1, logits=True)
    row = model.decode(b)
    model.reset()
    model.eval(PROMPT)
    np.testing.assert_array_equal(row[0], model.eval([1]))


def test_eval_of_a_sequence(model):
    rows = [model.eval(PROMPT, seq=seq) for seq in (2, 0, 2)]
    assert spans(model) == [(0, 4), (-1, -1), (0, 9)] and model.n_past == 5
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-5)
    model.reset()
    np.testing.assert_allclose(model.eval(PROMPT * 2), rows[2], atol=1e-5)


def test_tokens_of_several_sequences(path):
    with load(path, n_seq_max=3, kv_unified=True) as model:
        both = Batch()
        for token in PROMPT:
            both.add(token, seq=(0, 2))
        model.decode(both)
        rows = model.decode(batch((1, 0), (1, 2)))
        np.testing.assert_array_equal(*rows)


def test_sequences_that_are_alone(model):
    """In streams of their own upstream's function would leave the others."""
    for seq in range(3):
        model.eval(PROMPT, seq=seq)
    model.seq_keep(1)
    assert spans(model) == [(-1, -1), (0, 4), (-1, -1)]


def test_a_copy_is_as_good(model):
    first = model.eval(PROMPT)
    model.seq_cp(0, 1)
    rows = model.decode(batch((1, 1), (1, 0)))
    np.testing.assert_array_equal(*rows)
    model.seq_rm(1, 5)
    assert spans(model) == [(0, 5), (0, 4), (-1, -1)]
    model.seq_rm(0)
    assert model.n_past == 0
    np.testing.assert_array_equal(model.eval(PROMPT), first)


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize("script", ["SCRIPT", "SHIFTS"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_on_a_gpu(sims, arch_file, name, script, kv_unified):
    """A simulated one, whose kernels are the CPU's: streams are copied and keys rotated there."""
    sims("gpu0", host_buffer=True)
    commands = getattr(sequence_cases, script)
    shared = {"n_ctx": 1024, "n_seq_max": 4, "n_ubatch": 8, "swa_full": True, "type_k": "q8_0"}
    rows = []
    for options in ({}, {"devices": ("sim:gpu0", "CPU"), "n_gpu_layers": 99}):
        with load(arch_file(name), kv_unified=kv_unified, **shared, **options) as model:
            answers = [execute(model, command) for command in commands]
            rows.append(np.concatenate([a for a in answers if a is not None]))
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize(
    "ask", [lambda m: m.n_past, lambda m: m.n_reused, lambda m: m.seq_pos_min(0),
            lambda m: m.seq_rm(0), lambda m: m.seq_state(), lambda m: m.n_ctx,
            lambda m: m.eval([1]), lambda m: m.generate([1], 2), lambda m: m.plan()],
)  # fmt: skip
def test_a_closed_model(path, ask):
    model = load(path)
    model.eval(PROMPT)
    model.close()
    with pytest.raises(ClosedError, match="this LlamaModel is closed"):
        ask(model)


def test_positions_are_asked_while_another_thread_closes(path):
    problems = []

    def ask(model):
        try:
            while True:
                model.seq_pos_max(0), model.seq_pos_min(1), model.n_past, model.n_reused
        except (ClosedError, BusyError):
            pass
        except Exception as error:
            problems.append(error)

    for _ in range(10):
        model = load(path, n_seq_max=2)
        model.eval(PROMPT)
        threads = [threading.Thread(target=ask, args=(model,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(1000):
            with contextlib.suppress(BusyError):
                model.close()
                break
        for thread in threads:
            thread.join(10)
    assert not problems


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba2"])
def test_a_model_without_an_encoder(arch_file, name):
    """As the first call libllama's function ended the process."""
    with load(arch_file(name)) as model:
        with pytest.raises(ModelError, match="has no encoder: give eval its tokens"):
            model.encode([1])
        assert model.eval([1]).shape == (model.n_vocab,)


# --- limits


def test_a_context_that_is_shared(path):
    with load(path, n_ctx=600, n_seq_max=3) as model:
        assert (model.n_ctx, model.n_ctx_seq, model.n_seq_max) == (768, 256, 3)
    with load(path, n_ctx=600, n_seq_max=3, kv_unified=True) as model:
        assert (model.n_ctx, model.n_ctx_seq) == (768, 768)


@pytest.mark.parametrize("kv_unified", [False, True])
def test_a_full_context(path, kv_unified):
    """Refused at once, whichever sequence it is; nothing is lost."""
    n_ctx = 256 if kv_unified else 512
    with load(path, n_ctx=n_ctx, n_seq_max=2, kv_unified=kv_unified) as model:
        model.eval(PROMPT)
        model.eval([1] * 250, seq=1)
        message = "no room for 7 more"
        with pytest.raises(ModelError, match=message):
            model.decode(batch(*((1, 1) for _ in range(7))))
        with pytest.raises(ModelError, match=message):
            model.eval([1] * 7, seq=1)
        assert spans(model) == [(0, 4), (0, 249)]
        model.seq_rm(1, 100, 200)
        model.seq_add(1, 200, None, -100)
        model.eval([1] * 50, seq=1)
        assert spans(model) == [(0, 4), (0, 199)]


def test_a_batch_that_is_too_large(path):
    with load(path, n_batch=8, n_ubatch=4) as model:
        with pytest.raises(ModelError, match="a batch of 9 tokens: expected at most 8"):
            model.decode(batch(*((1, 0) for _ in range(9))))
        assert model.n_past == 0
        expected = model.eval(PROMPT * 4)  # in batches
        model.reset()
        for start in range(0, 20, 6):  # never one row: see test_only_what_was_asked_for
            row = model.decode(batch(*((t, 0) for t in (PROMPT * 4)[start : start + 6])))[-1]
        np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "an empty batch: add at least one token"),
        ([(1, 0), (300, 0)], r"token 300 (number 1 of the batch) is not in the vocabulary"),
        ([(1, 3)], "sequence 3 (token 0 of the batch): expected 0 to 2. For more sequences load"),
        ([(1, -1)], "sequence -1 (token 0 of the batch): expected 0 to 2"),
        ([(1, 0, 7)], "position 7 (token 0 of the batch): the last token of sequence 0 is at 4"),
        ([(1, 0, 3)], "position 3 (token 0 of the batch): the last token of sequence 0 is at 4"),
        ([(1, 1, 3), (1, 1, 5)], "position 5 (token 1 of the batch): the last token of sequence 1"),
        ([(1, 1, 3), (1, 1, 2)], "position 2 (token 1 of the batch): the last token of sequence 1"),
        ([(1, (0, 1))], "sequences (0, 1) cannot share a token: sequence 0 has positions "),
    ],
)  # fmt: skip
def test_what_is_refused(model, tokens, message):
    model.eval(PROMPT)
    with pytest.raises(ModelError, match=re.escape(message)):
        model.decode(batch(*tokens))
    assert spans(model) == [(0, 4), (-1, -1), (-1, -1)]


def test_shared_tokens_need_one_cache(path):
    with load(path, n_ctx=512, n_seq_max=2) as model:
        with pytest.raises(ModelError, match=r"several sequences: .* kv_unified=True"):
            model.decode(batch((1, (0, 1))))
        model.eval(PROMPT)
        for p0, p1 in ((1, None), (0, 3)):
            with pytest.raises(ModelError, match=r"seq_cp\(0, 1, .* as a whole .*kv_unified"):
                model.seq_cp(0, 1, p0, p1)
        assert spans(model) == [(0, 4), (-1, -1)]
        model.seq_cp(0, 1)
        assert spans(model) == [(0, 4), (0, 4)]


@pytest.mark.parametrize("n_ctx", [256, 512])
def test_learned_positions_end(arch_file, n_ctx):
    """Where the cache has room for more, too. Upstream's kernel asserts it."""
    with load(arch_file("gpt2"), n_ctx=n_ctx) as model:  # 256 positions
        for act in (
            lambda: model.eval([1] * 257),
            lambda: model.generate([1] * 10, 300),
            lambda: model.decode(batch((1, 0, 300))),
        ):
            with pytest.raises(ModelError, match=r"full: 0 of 256|last one of this model is 255"):
                act()
            assert model.n_past == 0
        model.eval([1] * 254)
        for _ in range(2):
            model.eval([1])
        with pytest.raises(ModelError, match=r"no room|last one of this model is 255"):
            model.eval([1])
        assert model.n_past == 256


def test_the_last_position(path):
    with load(path, n_ctx=256) as model:
        model.eval([1, 2, 3])
        model.seq_add(0, 0, None, 2**31 - 5)
        model.eval([4])  # the one before the last
        for act in (lambda: model.eval([5]), lambda: model.decode(batch((5, 0)))):
            with pytest.raises(ModelError, match="last one of this model is 2,147,483,646"):
                act()
        model.reset()
        assert model.eval([1]).shape == (SPEC.n_vocab,)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_no_part_of_a_state_is_removed_or_copied(arch_file, name):
    """libllama says yes to parts that do not reach the end, and removes nothing."""
    with load(arch_file(name), n_seq_max=3) as model:
        model.eval(PROMPT * 2)
        state = model.seq_state()
        for p0, p1 in ((0, 5), (2, 5), (2, None), (0, 9)):
            with pytest.raises(ModelError, match="cannot remove a part of sequence 0"):
                model.seq_rm(0, p0, p1)
            with pytest.raises(ModelError, match=r"seq_cp\(0, 2, .* as a whole"):
                model.seq_cp(0, 2, p0, p1)
            assert model.seq_state() == state and span(model, 2) == (-1, -1)
        for nothing in ((0, 10, 20), (0, 3, 3), (1, 0, 4)):
            model.seq_rm(*nothing)
        model.seq_cp(0, 2)
        model.seq_rm(0, 0, 10)
        assert (span(model, 0), span(model, 2)[1]) == ((-1, -1), 9)


def test_windows_that_have_forgotten(arch_file):
    with load(arch_file("gemma3"), n_ubatch=64) as model:
        model.eval(PROMPTS[64])
        with pytest.raises(ModelError, match=r"positions of this model cannot be moved"):
            model.seq_add(0, 0, None, 5)
        assert span(model, 0) == (0, 63)


def test_a_plan_for_several(model):
    leafs = {leaf.name: leaf.ne for leaf in model.plan(2, 200, 3).leafs}
    unified = model.n_ctx_seq == model.n_ctx
    assert leafs["attn_inp_kq_mask"] == ((768, 6, 1, 1) if unified else (256, 2, 1, 3))
    for wrong in (0, 4):
        with pytest.raises(ModelError, match=f"n_seqs={wrong}: expected 1 to 3 sequences"):
            model.plan(1, 0, wrong)
    with pytest.raises(ModelError, match="n_tokens=171 in each of 3 sequences: one graph takes"):
        model.plan(171, 0, 3)


# --- what a failure leaves


@pytest.mark.parametrize("n", [0, 1])
def test_a_batch_that_is_stopped(model, monkeypatch, n):
    """Before and after it was computed: as before the call."""
    for seq in (0, 1):
        model.eval(PROMPT, seq=seq)
    before = spans(model)
    tokens = batch(*((t, seq) for t in (1, 2, 3) for seq in (0, 1, 2)), (4, 0))

    def stop(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LlamaContext, ("_check", "_logits")[n], stop)
        model.decode(tokens)
    assert spans(model) == before
    rows = model.decode(tokens)
    model.reset()
    for seq in (0, 1):
        model.eval(PROMPT, seq=seq)
    np.testing.assert_array_equal(model.decode(tokens), rows)


# --- one more token, of one sequence and then of another


def test_tokens_in_turn_are_those_of_each_alone(model):
    """A graph that is there for one stream is not taken for another's token."""
    alone = []
    for seq in (0, 1):
        model.eval(PROMPT, seq=seq)
        alone.append([model.eval([t], seq=seq) for t in (1, 2, 3)])
    model.reset()
    for seq in (0, 1):
        model.eval(PROMPT, seq=seq)
    for i, token in enumerate((1, 2, 3)):
        for seq in (0, 1):
            row = model.eval([token], seq=seq)
            np.testing.assert_allclose(row, alone[seq][i], atol=1e-4)
    assert spans(model)[:2] == [(0, 7), (0, 7)]


def test_the_last_graph_of_a_batch_is_noted(arch_file):
    """Two sequences of unlike lengths, each with its cache: libllama makes two graphs of them."""
    with load(arch_file("llama"), n_seq_max=2, graphs="libllama") as model:
        batch = models.Batch()
        for seq, n in ((0, 3), (1, 5)):
            for i in range(n):
                batch.add(i + 1, seq=seq, logits=i == n - 1)
        with model.record() as recording, model.watch() as seen:
            model.decode(batch)
    ((last,),) = (decode.ubatches for decode in seen)
    assert (last.n_tokens, last.n_outputs, last.built) == (2, 1, True)
    (scheduler,) = recording.run.schedulers
    assert scheduler.plans == (-1, 0) and len(recording.run.plans) == 1

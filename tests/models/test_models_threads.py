"""Several threads with one model: what another one's call is in the middle of is not touched."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial

import numpy as np
import pytest

from ggml_py import BusyError, models
from ggml_py.models.synthetic import LlamaSpec

from ..support.pauses import switching

SPEC = LlamaSpec(n_layer=2, n_embd=64, n_head=4, n_head_kv=2, n_ff=96, n_vocab=300, type="f32")
PROMPTS = ([5, 6, 7, 8], [100, 200, 250])
load = partial(models.load, n_threads=1, n_ctx=256, n_seq_max=2)


@pytest.fixture
def model(model_file):
    with load(model_file(SPEC)) as model:
        yield model


@contextlib.contextmanager
def evaluating(model, *args):
    """Within, another thread is in the middle of `model.eval(*args)`; what that returns."""
    started, done, found = threading.Event(), threading.Event(), []

    def wait(_tensor, _ask):
        started.set()
        return done.wait(10)

    model.scheduler.set_eval_callback(wait)
    thread = threading.Thread(target=lambda: found.append(model.eval(*args)))
    thread.start()
    assert started.wait(10)
    try:
        yield found
    finally:
        done.set()
        thread.join()
        model.scheduler.set_eval_callback(None)


@pytest.mark.parametrize("how", ["often", "at any line"])
def test_two_threads_have_right_logits_or_are_told(model, how):
    right = []
    for seq, prompt in enumerate(PROMPTS):
        right.append([model.eval(prompt, seq=seq), model.eval([9], seq=seq)])
    ended, problems = [0, 0], []

    def run(seq):
        for _ in range(4000):
            if ended[seq] >= 30 or problems:
                return
            try:
                model.seq_rm(seq)
                logits = [model.eval(PROMPTS[seq], seq=seq), model.eval([9], seq=seq)]
            except Exception as error:  # raised on the other thread it would be lost
                if not (isinstance(error, BusyError) and "this Model is " in str(error)):
                    problems.append(error)
                threading.Event().wait(1e-4 * (1 + seq))
                continue
            ended[seq] += 1
            for found, expected in zip(logits, right[seq], strict=True):
                if not np.allclose(found, expected, atol=1e-5):
                    problems.append("wrong")

    threads = [threading.Thread(target=run, args=(seq,)) for seq in (0, 1)]
    with switching(how):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems and sum(ended) > 0


USES = {
    "eval": lambda model, path: model.eval([3], seq=1),
    "decode": lambda model, path: model.decode(batch()),
    "generate": lambda model, path: model.generate([3], 2, seq=1),
    "sampled": lambda model, path: model.generate([3], 2, models.Sampler(), seq=1),
    "reset": lambda model, path: model.reset(),
    "plan": lambda model, path: model.plan(2),
    "seq_rm": lambda model, path: model.seq_rm(1),
    "seq_cp": lambda model, path: model.seq_cp(0, 1),
    "seq_keep": lambda model, path: model.seq_keep(0),
    "seq_add": lambda model, path: model.seq_add(0, 0, None, 1),
    "seq_div": lambda model, path: model.seq_div(0, 0, None, 2),
    "seq_state": lambda model, path: model.seq_state(),
    "set_seq_state": lambda model, path: model.set_seq_state(0, b""),
    "save_seq": lambda model, path: model.save_seq(path / "state"),
    "load_seq": lambda model, path: model.load_seq(path / "state"),
    "record": lambda model, path: model.record(),
    "close": lambda model, path: model.close(),
}


def batch():
    made = models.Batch()
    made.add(3, 0, [1], True)
    return made


def test_what_another_thread_may_not_do_meanwhile(model, tmp_path):
    right = model.eval(PROMPTS[0])
    model.reset()
    with evaluating(model, PROMPTS[0]) as found:
        for use in USES.values():
            with pytest.raises(BusyError, match="this Model is computing on another thread: wait"):
                use(model, tmp_path)
        assert model.n_past == 4 and not model.closed and len(model.graphs) == 1
    assert np.array_equal(found[0], right)
    model.eval([3])


def test_what_a_callback_of_an_evaluation_may_not_do(model, tmp_path):
    right = model.eval(PROMPTS[0])
    model.reset()
    told = []

    def callback(_tensor, _ask):
        for use in USES.values():
            with pytest.raises(BusyError) as error:
                use(model, tmp_path)
            told.append(str(error.value))
        return False

    model.scheduler.set_eval_callback(callback)
    logits = model.eval(PROMPTS[0])
    model.scheduler.set_eval_callback(None)
    assert np.array_equal(logits, right)
    assert len(told) >= len(USES)
    assert all("this Model is computing further up on this thread" in text for text in told)


def test_a_sampler_may_evaluate_on_the_model(model):
    """As classifier-free guidance does; while it looks at logits nobody else writes over them."""
    seen = []

    def sampler(logits):
        before = logits.copy()
        seen.append(model.eval([7], seq=1))
        return int(before.argmax())

    tokens = model.generate(PROMPTS[0], 4, sampler)
    model.reset()
    assert tokens == model.generate(PROMPTS[0], 4)
    assert len(seen) == 4

    def elsewhere(logits):
        with pytest.raises(BusyError, match="this Model is generating on another thread"):
            on_another_thread(model.eval, [3])
        return int(logits.argmax())

    model.reset()
    assert tokens == model.generate(PROMPTS[0], 4, elsewhere)


def on_another_thread(function, *args):
    """What it returns or raises."""
    found = []

    def run():
        try:
            found.append((function(*args), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


def test_between_the_tokens_of_a_stream_others_may_use_the_model(model):
    alone = model.generate(PROMPTS[0], 4)
    model.reset()
    tokens = []
    for token in model.stream(PROMPTS[0], 4):
        tokens.append(token)
        on_another_thread(partial(model.eval, [7], seq=1))
    assert tokens == alone


def test_an_exception_gives_the_model_back(model):
    def fail(_logits):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.generate(PROMPTS[0], 2, fail)
    on_another_thread(model.reset)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_in_the_child_of_a_fork_it_is_not_busy_for_ever(model):
    with evaluating(model, PROMPTS[0]):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                model.close()
                code = 0
            finally:
                os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0

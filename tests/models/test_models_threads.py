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
load = partial(models.load, n_threads=1, n_ctx=256)


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
    """Whatever the other one has added before: a token sees all of them."""
    alone = [model.eval([9])]
    for _ in range(100):
        alone.append(model.eval([9]))
    model.reset()
    ended, problems, found = [0, 0], [], []

    def run(i):
        for _ in range(4000):
            if ended[i] >= 30 or problems:
                return
            try:
                found.append(model.eval([9]))
            except Exception as error:  # raised on the other thread it would be lost
                if not (isinstance(error, BusyError) and "this Model is " in str(error)):
                    problems.append(error)
                threading.Event().wait(1e-4 * (1 + i))
                continue
            ended[i] += 1

    threads = [threading.Thread(target=run, args=(seq,)) for seq in (0, 1)]
    with switching(how):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems and sum(ended) == len(found) == model.n_past > 0
    for logits in found:
        assert any(np.array_equal(logits, other) for other in alone[: len(found)])


USES = {
    "eval": lambda model: model.eval([3]),
    "generate": lambda model: model.generate([3], 2),
    "sampled": lambda model: model.generate([3], 2, models.Sampler()),
    "reset": lambda model: model.reset(),
    "plan": lambda model: model.plan(2),
    "record": lambda model: model.record(),
    "close": lambda model: model.close(),
}


def test_what_another_thread_may_not_do_meanwhile(model):
    right = model.eval(PROMPTS[0])
    model.reset()
    with evaluating(model, PROMPTS[0]) as found:
        for use in USES.values():
            with pytest.raises(BusyError, match="this Model is computing on another thread: wait"):
                use(model)
        assert model.n_past == 4 and not model.closed
    assert np.array_equal(found[0], right)
    model.eval([3])


def test_what_a_callback_of_an_evaluation_may_not_do(model):
    right = model.eval(PROMPTS[0])
    model.reset()
    told = []

    def callback(_tensor, _ask):
        for use in USES.values():
            with pytest.raises(BusyError) as error:
                use(model)
            told.append(str(error.value))
        return False

    model.scheduler.set_eval_callback(callback)
    logits = model.eval(PROMPTS[0])
    model.scheduler.set_eval_callback(None)
    assert np.array_equal(logits, right)
    assert len(told) >= len(USES)
    assert all("this Model is computing further up on this thread" in text for text in told)


def test_a_sampler_may_evaluate_on_the_model(model):
    """While it looks at logits nobody else writes over them."""
    seen = []

    def sampler(logits):
        before = logits.copy()
        seen.append(model.eval([7]))
        return int(before.argmax())

    model.generate(PROMPTS[0], 4, sampler)
    assert len(seen) == 4
    model.reset()
    tokens = model.generate(PROMPTS[0], 4)

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
    tokens = []
    for token in model.stream(PROMPTS[0], 4):
        tokens.append(token)
        on_another_thread(model.eval, [7])
    assert len(tokens) == 4 and model.n_past == 4 + 3 + 4


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

"""Training contexts: closed in any order, collected, and graphs that end with their models."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.uses import in_use

from ..support.opt_model import batch, evaluate
from ..support.training import Model


def test_any_order_of_closing_is_survived():
    rng = np.random.default_rng(0)
    for round_ in range(40):
        model = Model(static=round_ % 2 == 0)
        opt, result = model.opt(), ggml.OptResult()
        evaluate(model, opt, *batch(model, 0), result=result)
        if round_ % 3:
            evaluate(model, opt, *batch(model, 1), backward=False, result=result)
        items = [opt, result, model.scheduler, model.ctx, model.weights, *model.backends]
        items += [model.buffer, *([opt.graph] if opt.graph else [])]
        rng.shuffle(items)
        for item in items:
            item.close()


def test_the_graph_of_a_dynamic_forward_evaluation_ends_with_the_model_that_it_is():
    with Model(static=False) as model, model.opt() as opt:
        evaluate(model, opt, *batch(model, 0), backward=False)
        graph, itself = opt.graph, opt._model
        assert graph.ptr == itself.ptr
        itself.close()
        assert graph.closed and model.scheduler._graph is None
        with pytest.raises(ggml.ClosedError):
            opt.eval()


def test_collected_without_closing():
    for static in (True, False):
        model = Model(static=static)
        opt = model.opt()
        evaluate(model, opt, *batch(model, 0))
        loss, outputs = opt.loss, opt.outputs
        del opt
        gc.collect()
        if static:
            assert loss.get().size == 1  # it holds its OptContext
        del loss
        gc.collect()
        assert model.scheduler._graph is None
        with pytest.raises((ggml.NoDataError, ggml.ClosedError)):
            outputs.get()
        model.close()


def test_a_graph_that_was_given_up_for_another_is_allocated_again(monkeypatch):
    """ggml-opt remembers the graph that it allocated, even if the next one is then refused."""
    with Model() as model, model.opt() as opt:
        x, y = batch(model, 0)
        evaluate(model, opt, x, y, backward=False)
        expected, reset = opt.loss.get(), ggml.Scheduler.reset
        elsewhere = in_use("computing elsewhere", model.scheduler)

        def another_thread_is_first(scheduler):
            reset(scheduler)
            elsewhere.__enter__()

        with monkeypatch.context() as patch:
            patch.setattr(ggml.Scheduler, "reset", another_thread_is_first)
            with pytest.raises(ggml.BusyError):
                opt.alloc(backward=True)
        elsewhere.__exit__()
        evaluate(model, opt, x, y, backward=False)
        assert opt.loss.get() == expected

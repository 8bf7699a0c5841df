"""Training: steps, losses and results against numpy, static and dynamic graphs, lifetimes."""

import math
import threading
import time

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.enums import Op

from ..support.opt_model import batch, evaluate
from ..support.training import N_IN, Model, Numpy, gradients

ARGUMENT = ggml.ArgumentError
LOSSES = ("cross_entropy", "mean_squared_error", "mean", "sum")
OPTIMIZERS = {
    "adamw": ggml.AdamW(alpha=0.01, wd=0.1),
    "sgd": ggml.SGD(alpha=0.05, wd=0.1),
}


def close_to(ours, theirs):
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_numpys(name, loss, static):
    with Model(static=static) as model, model.opt(loss, OPTIMIZERS[name]) as opt:
        reference = Numpy(model.start, OPTIMIZERS[name])
        assert opt.static_graphs == static and (opt.labels is None or static)
        for i in range(5):
            x, y = batch(model, i)
            value, _out, grads = gradients(reference.p, x, y, loss)
            evaluate(model, opt, x, y)
            assert opt.loss.get().item() == pytest.approx(value, rel=1e-4)
            reference.step(grads)
            close_to(model.values(), reference.p)
        assert not np.allclose(model.values()["w1"], model.start["w1"], atol=1e-3)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_add_up_over_a_period(loss, static):
    optimizer = ggml.AdamW(alpha=0.01)
    with Model(static=static) as model, model.opt(loss, optimizer, opt_period=3) as opt:
        reference = Numpy(model.start, optimizer)
        for step in range(2):
            added = dict.fromkeys(model.params, 0)
            for i in range(3):
                x, y = batch(model, step * 3 + i)
                _value, _out, grads = gradients(reference.p, x, y, loss)
                scale = 1 if loss == "sum" else 3
                added = {k: added[k] + grads[k] / scale for k in grads}
                if i:
                    close_to(model.values(), reference.p)  # no step yet
                evaluate(model, opt, x, y)
                if static:
                    accs = {k: opt.grad_acc(p).get() for k, p in model.params.items()}
                    close_to(accs, added)
            reference.step(added)
            close_to(model.values(), reference.p)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_evaluation_without_training_changes_nothing(static):
    with Model(static=static) as model, model.opt(build_type="forward") as opt:
        with ggml.OptResult() as result:
            for i in range(6):
                evaluate(model, opt, *batch(model, i), backward=False, result=result)
            value, out, _grads = gradients(model.start, model.data, model.labels, "cross_entropy")
            assert result.ndata == 24
            assert result.loss == pytest.approx(value, rel=1e-4)
            right = np.argmax(out, 1) == np.argmax(model.labels, 1)
            assert result.accuracy == pytest.approx(right.mean())
            assert result.pred.tolist() == np.argmax(out, 1).tolist()
            unc = math.sqrt(right.mean() * (1 - right.mean()) / 23)
            assert result.accuracy_unc == pytest.approx(unc)
            losses = [
                gradients(model.start, *batch(model, i), "cross_entropy")[0] for i in range(6)
            ]
            assert result.loss_unc == pytest.approx(np.std(losses) / math.sqrt(5), rel=1e-3)
            assert "24 datapoints" in repr(result)
            result.reset()
            assert (result.ndata, result.loss, result.pred.size) == (0, 0, 0)
            assert math.isnan(result.loss_unc) and math.isnan(result.accuracy)
        close_to(model.values(), model.start)
        with pytest.raises(ARGUMENT, match=r"expected alloc\(backward=False\)"):
            opt.alloc()


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_training_goes_on_after_evaluating(static):
    optimizer = ggml.SGD(alpha=0.1)
    with Model(static=static) as model, model.opt(optimizer=optimizer) as opt:
        reference = Numpy(model.start, optimizer)
        for backward in (False, True, True, False, True):
            x, y = batch(model, 2)
            value, _out, grads = gradients(reference.p, x, y, "cross_entropy")
            evaluate(model, opt, x, y, backward)
            assert opt.loss.get().item() == pytest.approx(value, rel=1e-4)
            if backward:
                reference.step(grads)
            close_to(model.values(), reference.p)


def test_a_schedule_gives_each_step_its_rate():
    asked = []

    def schedule(step):
        asked.append(step)
        return ggml.SGD(alpha=0.1 / step)

    with Model() as model, model.opt("sum", schedule) as opt:
        reference = Numpy(model.start, None)
        for step in (1, 2, 3):
            x, y = batch(model, step)
            reference.o = ggml.SGD(alpha=0.1 / step)
            reference.step(gradients(reference.p, x, y, "sum")[2])
            evaluate(model, opt, x, y)
        close_to(model.values(), reference.p)
        assert asked == [1, 1, 2, 3]  # the first to see which optimizer it is
        opt.optimizer = ggml.SGD(alpha=0.5)
        with pytest.raises(ARGUMENT, match="made with SGD and takes no other"):
            opt.optimizer = ggml.AdamW()
        assert opt.optimizer == ggml.SGD(alpha=0.5)
        opt.optimizer = lambda step: 0.1 if step > 4 else ggml.SGD()
        evaluate(model, opt, x, y)
        before = model.values()
        opt.alloc()
        with pytest.raises(TypeError, match=r"got float 0\.1"):
            opt.eval()
        close_to(model.values(), before)
        opt.optimizer = ggml.SGD()
        opt.eval()


def test_reset_forgets_the_momenta():
    optimizer = ggml.AdamW(alpha=0.01)
    with Model() as model, model.opt("sum", optimizer) as opt:
        for _ in range(2):
            for name, param in model.params.items():
                param.set(model.start[name])
            opt.reset(optimizer=True)
            reference = Numpy(model.start, optimizer)
            for i in range(3):
                reference.step(gradients(reference.p, *batch(model, i), "sum")[2])
                evaluate(model, opt, *batch(model, i))
            close_to(model.values(), reference.p)


def test_it_learns_what_torch_learns():
    torch = pytest.importorskip("torch")
    with Model(n=8) as model, model.opt(optimizer=ggml.AdamW(alpha=0.05, wd=0.01)) as opt:
        params = {k: torch.tensor(v, requires_grad=True) for k, v in model.start.items()}
        theirs = torch.optim.AdamW(params.values(), lr=0.05, weight_decay=0.01)
        for i in range(30):
            x, y = batch(model, i % 3, 8)
            evaluate(model, opt, x, y)
            hidden = torch.relu(torch.tensor(x) @ params["w1"].T + params["b1"])
            logits = hidden @ params["w2"].T
            theirs.zero_grad()
            torch.nn.functional.cross_entropy(logits, torch.tensor(y)).backward()
            theirs.step()
        for name, value in model.values().items():
            np.testing.assert_allclose(value, params[name].detach(), rtol=1e-2, atol=1e-3)


def test_the_graph_of_training_can_be_explained():
    backends = [ggml.device("BLAS").init(), ggml.device("CPU").init(n_threads=1)]
    with Model(n=4, backends=backends) as model, model.opt() as opt:
        assert opt.graph is None
        opt.alloc(backward=True)
        plan = model.scheduler.plan(opt.graph)
        steps = [n for n in plan.nodes if n.op == "OPT_STEP_ADAMW"]
        assert len(steps) == 3 and {n.backend for n in steps} == {"CPU"}
        step = opt.graph.nodes[-1]
        assert step.op == Op.OPT_STEP_ADAMW
        opt.eval()
        opt.alloc(backward=False)
        assert model.scheduler.plan(opt.graph).n_splits >= 1
        with pytest.raises(ggml.ClosedError):  # it was of the other graph
            _ = step.ne


def test_a_closed_graph_is_borrowed_again():
    with Model() as model, model.opt("sum") as opt:
        reference = Numpy(model.start, ggml.AdamW())
        for i in range(3):
            opt.alloc()
            opt.graph.close()
            opt.inputs.set(batch(model, i)[0])
            opt.eval()
            reference.step(gradients(reference.p, *batch(model, i), "sum")[2])
        close_to(model.values(), reference.p)


def test_the_scheduler_is_there_for_others_between_evaluations():
    with Model() as model, model.opt("sum", ggml.SGD()) as opt:
        other = model.ctx.new_graph(16)
        other.build_forward_expand(model.ctx.sqr(model.params["b1"]))
        reference = Numpy(model.start, ggml.SGD())
        for i in range(3):
            opt.alloc()
            opt.inputs.set(batch(model, i)[0])
            with pytest.raises(ARGUMENT, match="another graph is allocated"):
                model.scheduler.compute(other)
            model.scheduler.reset()
            model.scheduler.compute(other)
            for refused in (opt.eval, opt.alloc):
                with pytest.raises(ARGUMENT, match=r"another graph .* reset\(\) the sched"):
                    refused()
            model.scheduler.reset()
            opt.eval()
            reference.step(gradients(reference.p, *batch(model, i), "sum")[2])
        close_to(model.values(), reference.p)


def test_a_reset_takes_the_inputs_of_dynamic_graphs():
    with Model(static=False) as model, model.opt("sum", ggml.SGD()) as opt:
        ctx = ggml.Context()
        inputs = ctx.new_tensor("f32", N_IN, 4)
        outputs = model.forward(ctx, inputs)
        graph = ctx.new_graph(64)
        graph.build_forward_expand(outputs)
        with pytest.raises(ARGUMENT, match="prepare_alloc"):
            opt.alloc()
        for _ in range(2):  # the same graph can be used again
            opt.prepare_alloc(graph, inputs, outputs)
            with pytest.raises(ARGUMENT, match="alloc"):
                opt.eval()
            opt.alloc()
            with pytest.raises(ARGUMENT, match="waits for eval"):
                opt.prepare_alloc(graph, inputs, outputs)
            model.scheduler.reset()
            with pytest.raises(ARGUMENT, match="inputs are gone"):
                opt.eval()
            opt.alloc()
            inputs.set(batch(model, 0)[0])
            assert opt.grad_acc(model.params["w1"]).ne[:2] == (N_IN, 8)
            opt.eval()
            with pytest.raises(ARGUMENT, match="prepare_alloc for the next"):
                opt.alloc()
            loss = opt.loss
            assert loss.get().size == 1
        reference = Numpy(model.start, ggml.SGD())
        for _ in range(2):
            reference.step(gradients(reference.p, *batch(model, 0), "sum")[2])
        close_to(model.values(), reference.p)
        opt.prepare_alloc(graph, inputs, outputs)
        with pytest.raises(ggml.ClosedError):
            loss.get()
        assert graph.n_nodes == 7  # four ops, three parameters: as it was
        ctx.close()
        with pytest.raises(ggml.ClosedError):
            opt.alloc()


def test_another_dynamic_model_is_refused():
    """ggml-opt would read past the end of its table of accumulators."""
    with Model(static=False) as model, model.opt("sum", ggml.SGD()) as opt:
        evaluate(model, opt, *batch(model, 0))
        evaluate(model, opt, *batch(model, 0, 8))  # another batch size is fine
        ctx = ggml.Context()
        inputs = ctx.new_tensor("f32", N_IN, 4)
        outputs = ctx.sqr(model.forward(ctx, inputs))
        graph = ctx.new_graph(64)
        graph.build_forward_expand(outputs)
        with pytest.raises(ARGUMENT, match="momenta would be mixed up"):
            opt.prepare_alloc(graph, inputs, outputs)
        ctx.close()
        opt.close()


def test_a_closed_buffer_is_noticed():
    with Model() as model, model.opt("sum") as opt:
        opt.alloc()
        model.buffer.close()
        with pytest.raises(ggml.NoDataError, match="no longer in the memory"):
            opt.eval()
        with pytest.raises(ggml.NoDataError):
            opt.reset()


def test_what_a_custom_op_raises_is_raised():
    def fail(dst, a, ith, nth):
        raise ZeroDivisionError("mine")

    with Model() as model:
        frozen = model.ctx.map_custom1(model.inputs, fail)
        outputs = model.ctx.mul_mat(model.params["w1"], frozen)
        with model.opt("sum", ggml.SGD(), outputs=outputs) as opt:
            for _ in range(2):
                opt.alloc()
                with pytest.raises(ZeroDivisionError, match="mine"):
                    opt.eval()


def test_what_an_eval_callback_raises_is_raised():
    with Model() as model, model.opt("sum", ggml.SGD()) as opt:
        kept = []

        def look(tensor, ask):
            kept.append(tensor)
            if not ask and len(kept) > 4:
                raise ZeroDivisionError("mine")
            return True

        model.scheduler.set_eval_callback(look)
        opt.alloc()
        with pytest.raises(ZeroDivisionError, match="mine"):
            opt.eval()
        model.scheduler.set_eval_callback(None)
        opt.alloc(backward=False)
        with pytest.raises(ggml.ClosedError):
            kept[0].get()
        opt.eval()


def test_ctrl_c_ends_an_evaluation():
    import _thread

    with Model() as model:
        frozen = model.ctx.map_custom1(model.inputs, lambda *_: time.sleep(0.3))
        outputs = model.ctx.mul_mat(model.params["w1"], frozen)
        with model.opt("sum", ggml.SGD(), outputs=outputs) as opt:
            opt.alloc()
            timer = threading.Timer(0.1, _thread.interrupt_main)
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                opt.eval()
            timer.join()
            opt.alloc()
            opt.eval()


def test_models_that_cannot_be_trained():
    with Model() as model:
        c, w, x = model.ctx, model.params["w1"], model.inputs
        free = ggml.Context()
        unplaced = free.new_tensor("f32", N_IN, 4)
        later = c.mul_mat(w, unplaced)
        for said, error, options in (
            ("both inputs and outputs", ARGUMENT, {"inputs": None}),
            ("not in the graph", ARGUMENT, {"outputs": c.sqr(w)}),
            ("depend on no parameter", ARGUMENT, {"outputs": c.sqr(x)}),
            ("is computed", ARGUMENT, {"inputs": c.sqr(x), "outputs": None}),
            ("no memory", ggml.NoDataError, {"inputs": unplaced, "outputs": later}),
            ("expected f32", ARGUMENT, {"outputs": c.cast(c.mul_mat(w, x), "f16")}),
            ("opt_period=0", ARGUMENT, {"opt_period": 0}),
            ("always builds the step", ARGUMENT, {"build_type": "grad"}),
            ("expected one of mean, sum", ARGUMENT, {"loss": "nll"}),
            ("contiguous matrix", ARGUMENT, {"outputs": c.reshape_3d(c.mul_mat(w, x), 4, 2, 4)}),
        ):
            if options.get("outputs", 0) is None:
                squared = options["inputs"]
                options["outputs"] = c.mul_mat(w, squared)
            with pytest.raises(error, match=said):
                model.opt(**options)
        loss = c.sum(c.mul_mat(w, x))
        loss.set_loss()
        with pytest.raises(ARGUMENT, match="is a loss"):
            model.opt("sum", outputs=c.scale(loss, 2))
        with pytest.raises(ggml.AbortError, match="ggml_opt_init"):
            model.opt("sum", outputs=c.gelu(c.mul_mat(w, x)))
        half = model.weights.new_tensor("f16", N_IN, 8)
        half.set_param()
        model.weights.alloc(model.backends[0])
        with pytest.raises(ARGUMENT, match="f32 only"):
            model.opt("sum", outputs=c.mul_mat(half, x))
        y = c.mul_mat(w, x)
        for _ in range(2050):
            y = c.neg(y)
        with pytest.raises(ARGUMENT, match="2048 nodes of a static graph"):
            model.opt("sum", outputs=y)
        with pytest.raises(TypeError, match="Scheduler"):
            ggml.OptContext(model, "sum")
        evaluate(model, model.opt("sum"), *batch(model, 0))  # all is still well


def test_a_scheduler_that_is_too_small():
    with Model() as model:
        with ggml.Scheduler(model.backends, graph_size=16) as small:
            opt = ggml.OptContext(small, "sum", inputs=model.inputs, outputs=model.outputs)
            with pytest.raises(ARGUMENT, match="larger graph_size"):
                opt.alloc()
            with pytest.raises(ggml.SpoiledError):
                opt.alloc()
        evaluate(model, model.opt("sum"), *batch(model, 0))


def test_evaluations_out_of_order():
    with Model() as model, model.opt("sum") as opt, ggml.OptResult() as result:
        with pytest.raises(ARGUMENT, match=r"call alloc\(\) before"):
            opt.eval()
        opt.alloc()
        with pytest.raises(ARGUMENT, match="called already"):
            opt.alloc()
        opt.eval(result)
        assert result.pred.size == 0 and math.isnan(result.accuracy)
        with pytest.raises(ARGUMENT, match="static graphs"):
            opt.prepare_alloc(model.ctx.new_graph(), model.inputs, model.outputs)
        with model.opt("mean_squared_error") as other:
            model.scheduler.reset()
            other.alloc()
            with pytest.raises(ARGUMENT, match=r"sum loss.*mean_squared_error loss"):
                other.eval(result)
            other.eval()
        with pytest.raises(ARGUMENT, match="not in the model"):
            opt.grad_acc(model.ctx.sqr(model.inputs))
        assert opt.grad_acc(model.params["w1"]) is None  # a period of 1 needs none


@pytest.mark.parametrize("forgotten", ["inputs", "labels"])
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_what_was_never_set_is_named(static, forgotten):
    x, y = np.ones((4, N_IN), np.float32), np.eye(4, 3, dtype=np.float32)
    with Model(static=static) as model, model.opt(filled=False) as opt, ggml.Context() as ctx:
        inputs = model.inputs if static else ctx.new_tensor("f32", N_IN, 4, name="inputs")
        if not static:
            outputs, graph = model.forward(ctx, inputs), ctx.new_graph(64)
            inputs.set_input()
            graph.build_forward_expand(outputs)
            opt.prepare_alloc(graph, inputs, outputs)
        opt.alloc()
        both = {"inputs": (inputs, x), "labels": (opt.labels, y)}
        for name, (tensor, values) in both.items():
            if name != forgotten:
                tensor.set(values)
        with pytest.raises(ggml.NoDataError, match=f"'{forgotten}' .* was never set"):
            opt.eval()
        tensor, values = both[forgotten]
        tensor.set(values)
        opt.eval()
        assert np.isfinite(opt.loss.get())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ggml.AdamW(alpha=0), "alpha=0: expected a positive"),
        (lambda: ggml.AdamW(beta1=1.5), "beta1=1.5: expected 0 to 1"),
        (lambda: ggml.AdamW(eps=-1), "eps=-1"),
        (lambda: ggml.AdamW(wd=float("nan")), "wd=nan"),
        (lambda: ggml.SGD(alpha=float("nan")), "alpha=nan"),
        (lambda: ggml.SGD(wd=2), "wd=2: expected 0 to 1"),
    ],
)
def test_optimizer_parameters(make, said):
    with pytest.raises(ARGUMENT, match=said):
        make()


def test_two_backends_train_the_same():
    with Model() as plain, plain.opt(optimizer=ggml.SGD(alpha=0.1)) as opt:
        for i in range(3):
            evaluate(plain, opt, *batch(plain, i))
        expected = plain.values()
    backends = [ggml.device("BLAS").init(), ggml.device("CPU").init(n_threads=1)]
    with Model(backends=backends) as model, model.opt(optimizer=ggml.SGD(alpha=0.1)) as opt:
        for i in range(3):
            evaluate(model, opt, *batch(model, i))
        close_to(model.values(), expected)

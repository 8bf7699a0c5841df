"""Gradients: against finite differences and torch, and what has to be in order before them."""

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.enums import TensorFlag

ARGUMENT = ggml.ArgumentError
RNG = np.random.default_rng(7)


def values(*shape, positive=False):
    array = RNG.standard_normal(shape).astype(np.float32)
    return np.abs(array) + 0.5 if positive else array + 0.05 * np.sign(array)


# name -> how y is computed, and the parameters' values (numpy's shapes)
OPS = {
    "add": (lambda c, a, b: c.add(a, b), [values(3, 4), values(3, 4)]),
    "add, b repeated": (lambda c, a, b: c.add(a, b), [values(3, 4), values(4)]),
    "sub": (lambda c, a, b: c.sub(a, b), [values(3, 4), values(3, 4)]),
    "mul": (lambda c, a, b: c.mul(a, b), [values(3, 4), values(3, 4)]),
    "mul, b repeated": (lambda c, a, b: c.mul(a, b), [values(3, 4), values(4)]),
    "div": (lambda c, a, b: c.div(a, b), [values(3, 4), values(3, 4, positive=True)]),
    "mul_mat": (lambda c, a, b: c.mul_mat(a, b), [values(3, 4), values(5, 4)]),
    "mul_mat, a repeated": (lambda c, a, b: c.mul_mat(a, b), [values(3, 4), values(2, 5, 4)]),
    "sqr": (lambda c, a: c.sqr(a), [values(3, 4)]),
    "sqrt": (lambda c, a: c.sqrt(a), [values(3, 4, positive=True)]),
    "log": (lambda c, a: c.log(a), [values(3, 4, positive=True)]),
    "exp": (lambda c, a: c.exp(a), [values(3, 4)]),
    "sin": (lambda c, a: c.sin(a), [values(3, 4)]),
    "cos": (lambda c, a: c.cos(a), [values(3, 4)]),
    "scale": (lambda c, a: c.scale(a, -2.5), [values(3, 4)]),
    "neg": (lambda c, a: c.neg(a), [values(3, 4)]),
    "abs": (lambda c, a: c.abs(a), [values(3, 4)]),
    "relu": (lambda c, a: c.relu(a), [values(3, 4)]),
    "silu": (lambda c, a: c.silu(a), [values(3, 4)]),
    "soft_max": (lambda c, a: c.soft_max(a), [values(3, 4)]),
    "rms_norm": (lambda c, a: c.rms_norm(a, 1e-5), [values(3, 4)]),
    "sum_rows": (lambda c, a: c.sum_rows(a), [values(3, 4)]),
    "mean": (lambda c, a: c.mean(a), [values(1, 4)]),
    "reshape": (lambda c, a: c.reshape_2d(a, 2, 6), [values(3, 4)]),
    "transpose": (lambda c, a: c.cont(c.transpose(a)), [values(3, 4)]),
    "view": (lambda c, a: c.view_1d(a, 5, 8), [values(12)]),
    "repeat": (lambda c, a: c.repeat_4d(a, 4, 3, 1, 1), [values(3, 1)]),
    "swiglu_split": (lambda c, a, b: c.swiglu_split(a, b), [values(3, 4), values(3, 4)]),
}


class Net:
    """loss = sum(y * k) with k fixed, so that each output has its own weight; all on the CPU."""

    def __init__(self, op, arrays):
        self.cpu = ggml.device("CPU").init(n_threads=1)
        self.weights, self.ctx = ggml.Context(), ggml.Context()
        self.params = [self.weights.from_numpy(a, f"p{i}") for i, a in enumerate(arrays)]
        for tensor, array in zip(self.params, arrays, strict=True):
            assert tensor.ne[: array.ndim] == array.shape[::-1]
            tensor.set_param()
        y = op(self.ctx, *self.params)
        self.k = self.weights.new_tensor("f32", *y.ne, name="k")
        self.loss = self.ctx.sum(self.ctx.mul(y, self.k))
        self.loss.set_loss()
        self.graph = self.ctx.new_graph(256, grads=True)
        self.graph.build_forward_expand(self.loss)
        self.graph.build_backward_expand()
        self.weights.alloc(self.cpu)
        self.ctx.alloc(self.cpu)
        self.factors = RNG.standard_normal(y.n_elements).astype(np.float32)
        self.k.set(self.factors.reshape(self.k.shape))

    def compute(self):
        self.graph.reset()
        self.cpu.compute(self.graph)
        return self.loss.get().item()

    def gradients(self):
        self.compute()
        return [self.graph.grad(p).get().reshape(-1) for p in self.params]

    def slope(self, param, i, step=1e-2):
        start = param.get()
        losses = []
        for sign in (1, -1):
            moved = start.reshape(-1).copy()
            moved[i] += sign * step
            param.set(moved.reshape(start.shape))
            losses.append(self.compute())
        param.set(start)
        return (losses[0] - losses[1]) / (2 * step)

    def close(self):
        for handle in (self.ctx, self.weights, self.cpu):
            handle.close()


@pytest.mark.parametrize("name", OPS)
def test_gradients_are_the_slopes(name):
    net = Net(*OPS[name])
    for param, gradient in zip(net.params, net.gradients(), strict=True):
        slopes = [net.slope(param, i) for i in range(param.n_elements)]
        np.testing.assert_allclose(gradient, slopes, rtol=2e-2, atol=2e-2)
        assert np.abs(gradient).max() > 0.05
    net.close()


def test_gradients_are_torchs():
    torch = pytest.importorskip("torch")
    w1, b1, w2 = values(8, 6), values(8), values(3, 8)
    x = values(5, 6)

    def model(c, w1, b1, w2, x):
        hidden = c.silu(c.add(c.mul_mat(w1, x), b1))
        return c.soft_max(c.mul_mat(w2, hidden))

    net = Net(model, [w1, b1, w2, x])
    tensors = [torch.tensor(a, requires_grad=True) for a in (w1, b1, w2, x)]
    t1, tb, t2, tx = tensors
    y = torch.softmax(torch.nn.functional.silu(tx @ t1.T + tb) @ t2.T, -1)
    (y.reshape(-1) * torch.tensor(net.factors)).sum().backward()
    for ours, tensor in zip(net.gradients(), tensors, strict=True):
        np.testing.assert_allclose(ours, tensor.grad.numpy().reshape(-1), rtol=1e-4, atol=1e-5)
    net.close()


def test_gradients_are_the_same_each_time():
    net = Net(*OPS["mul_mat"])
    first, second = net.gradients(), net.gradients()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    net.close()


@pytest.fixture
def parts():
    """Context of weights (allocated), context of ops, backend, parameter p, constant c."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as weights:
        p = weights.from_numpy(np.array([1, 2, 3], np.float32), "p")
        p.set_param()
        c = weights.from_numpy(np.array([4, 5, 6], np.float32), "c")
        with ggml.Context() as ctx:
            yield weights, ctx, cpu, p, c


def loss_graph(ctx, p, c, **options):
    loss = ctx.sum(ctx.mul(p, c))
    loss.set_loss()
    graph = ctx.new_graph(64, **options)
    graph.build_forward_expand(loss)
    return graph, loss


def test_accumulators_add_up_and_reset_zeroes_them(parts):
    weights, ctx, cpu, p, c = parts
    acc = weights.new_tensor("f32", 3, name="acc")
    graph, loss = loss_graph(ctx, p, c, grads=True)
    graph.build_backward_expand(grad_accs={p: acc})
    assert graph.grad_acc(p) == acc and graph.grad_acc(c) is None
    assert graph.grad_acc(loss) is not None
    weights.alloc(cpu)
    ctx.alloc(cpu)
    graph.reset()
    for n in (1, 2, 3):
        cpu.compute(graph)
        assert acc.get().tolist() == [4 * n, 5 * n, 6 * n]
        assert graph.grad(p).get().tolist() == acc.get().tolist()
    graph.reset()
    assert acc.get().tolist() == [0, 0, 0]


def test_gradients_on_a_scheduler(parts):
    weights, ctx, cpu, p, c = parts
    graph, _loss = loss_graph(ctx, p, c, grads=True)
    graph.build_backward_expand()
    graph.grad(p).set_output()
    weights.alloc(cpu)
    with ggml.Scheduler([ggml.device("BLAS").init(), cpu], graph_size=64) as scheduler:
        with pytest.raises(ggml.NoDataError):
            graph.reset()
        scheduler.alloc_graph(graph)
        graph.reset()
        scheduler.compute(graph)
        assert graph.grad(p).get().tolist() == [4, 5, 6]


def test_gradients_in_a_context_of_their_own(parts):
    weights, ctx, cpu, p, c = parts
    graph, _loss = loss_graph(ctx, p, c, grads=True)
    apart = ggml.Context()
    graph.build_backward_expand(apart)
    gradient = graph.grad(p)
    weights.alloc(cpu)
    ctx.alloc(cpu)
    apart.alloc(cpu)
    graph.reset()
    cpu.compute(graph)
    assert gradient.get().tolist() == [4, 5, 6]
    apart.close()
    assert graph.closed
    with pytest.raises(ggml.ClosedError):
        gradient.get()


def test_a_copy_has_the_gradients(parts):
    _weights, ctx, _cpu, p, c = parts
    graph, loss = loss_graph(ctx, p, c, grads=True)
    graph.build_backward_expand()
    dup = graph.dup()
    assert dup.grad(p) == graph.grad(p) and dup.grad_acc(loss) == graph.grad_acc(loss)
    graph.clear()
    graph.build_forward_expand(loss)
    assert graph.grad(p) is None  # not those of before
    graph.build_backward_expand()
    assert graph.grad(p) != dup.grad(p)


def test_flags(parts):
    _weights, ctx, _cpu, p, c = parts
    assert p.flags & TensorFlag.PARAM and not c.flags & TensorFlag.PARAM
    with pytest.raises(ARGUMENT, match="computed"):
        ctx.sqr(p).set_param()
    with pytest.raises(ARGUMENT, match="scalar of f32"):
        p.set_loss()


def test_what_has_to_be_in_order(parts):
    weights, ctx, cpu, p, c = parts
    graph, loss = loss_graph(ctx, p, c)
    with pytest.raises(ARGUMENT, match="grads=True"):
        graph.build_backward_expand()
    graph, loss = loss_graph(ctx, p, c, grads=True)
    with pytest.raises(ARGUMENT, match="no gradients yet"):
        graph.reset()
    assert graph.grad(p) is None
    for accs, said in (
        ({ctx.sqr(p): c}, "not a node"),
        ({p: weights.new_tensor("f32", 4)}, r"expected f32 with ne \[3, 1, 1, 1\]"),
        ({p: weights.new_tensor("f16", 3)}, "expected f32"),
    ):
        with pytest.raises(ARGUMENT, match=said):
            graph.build_backward_expand(grad_accs=accs)
    with pytest.raises(TypeError, match="Context"):
        graph.build_backward_expand(cpu)
    graph.build_backward_expand()
    with pytest.raises(ARGUMENT, match="already"):
        graph.build_backward_expand()
    stranger = ctx.sqr(p)
    for ask in (graph.grad, graph.grad_acc):
        with pytest.raises(ARGUMENT, match="not in this graph"):
            ask(stranger)
    assert loss in graph and stranger not in graph

    empty = ctx.new_graph(grads=True)
    empty.build_forward_expand(ctx.sqr(c))
    with pytest.raises(ARGUMENT, match="no parameters to train"):
        empty.build_backward_expand()
    empty.build_forward_expand(ctx.sqr(p))
    with pytest.raises(ARGUMENT, match="no loss"):
        empty.build_backward_expand()


def test_an_op_that_cannot_be_differentiated_spoils_the_graph(parts):
    _weights, ctx, _cpu, p, _c = parts
    loss = ctx.sum(ctx.gelu(p))
    loss.set_loss()
    graph = ctx.new_graph(grads=True)
    graph.build_forward_expand(loss)
    with pytest.raises(ggml.AbortError):
        graph.build_backward_expand()
    with pytest.raises(ggml.SpoiledError, match="ggml_build_backward_expand"):
        _ = graph.n_nodes
    graph.close()
    assert ctx.sum(ctx.sqr(p)).ne == (1, 1, 1, 1)  # the context is whole


def test_a_graph_without_room_for_its_gradients(parts):
    _weights, ctx, _cpu, p, c = parts
    loss = ctx.sum(ctx.mul(p, c))
    loss.set_loss()
    graph = ctx.new_graph(3, grads=True)
    graph.build_forward_expand(loss)
    with pytest.raises(ggml.AbortError):
        graph.build_backward_expand()
    assert "spoiled" in repr(graph)

"""A small model that several tests train, and the same model in numpy."""

from __future__ import annotations

import numpy as np

import ggml_py as ggml

N_IN, N_HIDDEN, N_OUT = 6, 8, 3


class Model:
    """outputs = w2 relu(w1 x + b1), for batches of n, on the given backends or the CPU."""

    def __init__(self, n=4, backends=None, seed=0, static=True):
        rng = np.random.default_rng(seed)
        self.backends = backends or [ggml.device("CPU").init(n_threads=1)]
        self.scheduler = ggml.Scheduler(self.backends, graph_size=512)
        self.weights, self.ctx = ggml.Context(), ggml.Context()
        shapes = {"w1": (N_HIDDEN, N_IN), "b1": (N_HIDDEN,), "w2": (N_OUT, N_HIDDEN)}
        self.start = {k: rng.standard_normal(s).astype(np.float32) * 0.5 for k, s in shapes.items()}
        self.params = {k: self.weights.from_numpy(a, k) for k, a in self.start.items()}
        for param in self.params.values():
            param.set_param()
        self.static = static
        if static:
            self.inputs = self.weights.new_tensor("f32", N_IN, n, name="inputs")
            self.outputs = self.forward(self.ctx, self.inputs)
        self.buffer = self.weights.alloc(self.backends[0])
        self.data = rng.standard_normal((24, N_IN)).astype(np.float32)
        classes = np.argmax(self.data[:, :N_OUT] + 0.5 * self.data[:, N_OUT:], axis=1)
        self.labels = np.eye(N_OUT, dtype=np.float32)[classes]

    def forward(self, ctx, x):
        p = self.params
        hidden = ctx.relu(ctx.add(ctx.mul_mat(p["w1"], x), p["b1"]))
        outputs = ctx.mul_mat(p["w2"], hidden)
        outputs.name = "outputs"
        return outputs

    def opt(self, loss="cross_entropy", optimizer=None, filled=True, **options):
        """With `filled`, static inputs and labels are zeros that a test may leave as they are."""
        if self.static:
            options = {"inputs": self.inputs, "outputs": self.outputs, **options}
        made = ggml.OptContext(self.scheduler, loss, optimizer, **options)
        for tensor in (made.inputs, made.labels) if self.static and filled else ():
            if tensor is not None:
                tensor.set(np.zeros(tensor.shape, np.float32))
        return made

    def values(self):
        return {name: param.get() for name, param in self.params.items()}

    def close(self):
        for handle in (self.scheduler, self.ctx, self.weights, *self.backends):
            handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def gradients(p, x, y, loss):
    """Loss, outputs, and the gradients by name, in float64."""
    p = {k: v.astype(np.float64) for k, v in p.items()}
    before = x @ p["w1"].T + p["b1"]
    hidden = np.maximum(before, 0)
    out = hidden @ p["w2"].T
    if loss == "cross_entropy":
        shifted = out - out.max(1, keepdims=True)
        log_soft = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        value, d_out = -(y * log_soft).sum() / len(x), (np.exp(log_soft) - y) / len(x)
    elif loss == "mean_squared_error":
        value, d_out = ((out - y) ** 2).mean(), 2 * (out - y) / out.size
    elif loss == "mean":
        value, d_out = out.mean(), np.ones_like(out) / out.size
    else:
        value, d_out = out.sum(), np.ones_like(out)
    d_before = (d_out @ p["w2"]) * (before > 0)
    return value, out, {"w1": d_before.T @ x, "b1": d_before.sum(0), "w2": d_out.T @ hidden}


class Numpy:
    """The optimizers, step by step."""

    def __init__(self, params, optimizer):
        self.p = {k: v.astype(np.float64) for k, v in params.items()}
        self.o, self.n = optimizer, 0
        self.m = {k: np.zeros(v.shape) for k, v in params.items()}
        self.v = {k: np.zeros(v.shape) for k, v in params.items()}

    def step(self, grads):
        self.n += 1
        o = self.o
        for k, g in grads.items():
            change = g
            if isinstance(o, ggml.AdamW):
                self.m[k] = o.beta1 * self.m[k] + (1 - o.beta1) * g
                self.v[k] = o.beta2 * self.v[k] + (1 - o.beta2) * g * g
                m = self.m[k] / (1 - o.beta1**self.n)
                change = m / (np.sqrt(self.v[k] / (1 - o.beta2**self.n)) + o.eps)
            self.p[k] = self.p[k] * (1 - o.alpha * o.wd) - o.alpha * change

"""Small graphs that several tests plan, in this process and in a process with a pristine build."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import ggml_py as ggml


@dataclass
class Case:
    """A graph on a scheduler, with everything that must stay alive."""

    scheduler: ggml.Scheduler
    graph: ggml.Graph
    weights: ggml.Context
    context: ggml.Context
    backends: list[ggml.Backend]

    def close(self) -> None:
        for item in (self.scheduler, self.context, self.weights, *self.backends):
            item.close()


def _case(build, devices=("BLAS", "CPU"), seed=0, graph_size=2048) -> Case:
    backends = [ggml.device(name).init(n_threads=2) for name in devices]
    weights, context = ggml.Context(), ggml.Context()
    rng = np.random.default_rng(seed)

    def weight(name, *shape):
        return weights.from_numpy(rng.standard_normal(shape, np.float32), name)

    outputs = build(context, weight)
    weights.alloc(backends[-1], usage="weights")
    graph = context.new_graph(graph_size)
    graph.build_forward_expand(*outputs)
    scheduler = ggml.Scheduler(backends, graph_size=graph_size)
    return Case(scheduler, graph, weights, context, backends)


def summed(cpu: ggml.Backend, c: ggml.Context) -> tuple[ggml.Scheduler, ggml.OptContext]:
    """An optimizer for the sum of p·x, allocated on `cpu`, and its scheduler."""
    x, p = c.new_tensor("f32", 4), c.new_tensor("f32", 4)
    p.set_param()
    y = c.mul(p, x)
    c.alloc(cpu).clear()
    scheduler = ggml.Scheduler([cpu])
    return scheduler, ggml.OptContext(
        scheduler, "sum", ggml.SGD(alpha=1), inputs=x, outputs=y
    )  # fmt: skip


def _input(context, *ne, type="f32", name="inp"):
    tensor = context.new_tensor(type, *ne, name=name)
    tensor.set_input()
    return tensor


def mlp(**options) -> Case:
    """Two matrix products with an activation in between: BLAS, CPU, BLAS."""

    def build(c, weight):
        x = _input(c, 64, 48)
        h = c.mul_mat(weight("up", 128, 64), x)
        h.name = "h"
        out = c.mul_mat(weight("down", 64, 128), c.relu(h))
        out.name = "out"
        out.set_output()
        return [out]

    return _case(build, **options)


def views(**options) -> Case:
    """Views, permutes and an in-place op between the products."""

    def build(c, weight):
        x = _input(c, 64, 48)
        q = c.mul_mat(weight("wq", 64, 64), x)
        q.name = "q-ä-long-name-that-upstream-cuts"
        q = c.mul(q, weight("norm", 64))
        q3 = c.reshape_3d(q, 32, 2, 48)
        k3 = c.permute(q3, 0, 2, 1, 3)
        kq = c.mul_mat(c.cont(k3), c.cont(k3))
        kq.name = "kq"
        soft = c.soft_max_inplace(c.scale(kq, 0.25))
        out = c.sum_rows(c.view_2d(soft, 48, 2, soft.nb[1], 0))
        out.name = "out"
        return [out]

    return _case(build, **options)


def small_batch(**options) -> Case:
    """A batch that BLAS refuses because it needs 32 rows, so all is on the CPU."""

    def build(c, weight):
        x = _input(c, 64, 4)
        out = c.rms_norm(c.mul_mat(weight("w", 96, 64), x), 1e-5)
        out.name = "out"
        return [out]

    return _case(build, **options)


def cpu_only(**options) -> Case:
    """One backend, one split."""
    return mlp(devices=("CPU",), **options)


def two_outputs(**options) -> Case:
    """A diamond with two results and a leaf that two nodes use."""

    def build(c, weight):
        x = _input(c, 64, 40)
        w = weight("w", 64, 64)
        a, b = c.mul_mat(w, x), c.add(x, c.sqr(x))
        a.name, b.name = "a", "b"
        return [c.mul(a, b), c.mul_mat(w, b)]

    return _case(build, **options)


def sweeps(**options) -> Case:
    """Products without weights around one with weights: BLAS spreads up and down to them."""

    def build(c, weight):
        x = _input(c, 64, 48)
        above = c.mul_mat(x, x)
        middle = c.mul_mat(weight("w", 32, 48), above)
        below = c.mul_mat(middle, middle)
        above.name, middle.name, below.name = "above", "middle", "below"
        return [below]

    return _case(build, **options)


CASES = {f.__name__: f for f in (mlp, views, small_batch, cpu_only, two_outputs, sweeps)}

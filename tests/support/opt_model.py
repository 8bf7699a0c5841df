"""A small model that is trained."""

import ggml_py as ggml

from .training import N_IN


def batch(model, i, n=4):
    return model.data[i * n : i * n + n], model.labels[i * n : i * n + n]


def evaluate(model, opt, x, y, backward=True, result=None):
    """One evaluation, static or dynamic."""
    if not model.static:
        ctx = ggml.Context()
        inputs = ctx.new_tensor("f32", N_IN, len(x), name="inputs")
        outputs = model.forward(ctx, inputs)
        graph = ctx.new_graph(64)
        graph.build_forward_expand(outputs)
        opt.prepare_alloc(graph, inputs, outputs)
    opt.alloc(backward)
    opt.inputs.set(x)
    if opt.labels is not None:
        opt.labels.set(y)
    opt.eval(result)

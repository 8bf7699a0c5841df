"""Gradients and training."""

import numpy as np

import ggml_py as ggml

from ..misuses import misuse

ARGUMENT = ggml.ArgumentError


def trainable(env):
    """w and x as a model: parameter, inputs in memory, outputs."""
    weights = env.later(ggml.Context())
    w = weights.from_numpy(np.eye(8, dtype=np.float32), "p")
    w.set_param()
    x = weights.new_tensor("f32", 8, 3, name="inputs")
    weights.alloc(env.cpu)
    x.set(np.ones((3, 8)))
    return env.other.mul_mat(w, x), x


def opt(env, loss="sum", optimizer=None, **options):
    outputs, inputs = trainable(env)
    made = ggml.OptContext(
        env.later(ggml.Scheduler([env.cpu], graph_size=256)), loss, optimizer,
        **{"inputs": inputs, "outputs": outputs, **options},
    )  # fmt: skip
    return env.later(made)


def dataset(env, n=6, labels=True):
    data = np.ones((n, 8), np.float32)
    return env.later(ggml.Dataset(data, data if labels else None))


def with_loss(env):
    outputs, _inputs = trainable(env)
    loss = env.other.sum(outputs)
    loss.set_loss()
    graph = env.other.new_graph(64)
    graph.build_forward_expand(loss)
    return graph


def allocated_graph(env):
    env.allocated()
    env.graph.clear()


def other_scheduler(env):
    context = opt(env)
    context.alloc()
    env.scheduler.compute(context.graph)


def never_set(env):
    context = opt(env, "mean_squared_error")
    context.alloc()
    context.eval()


def eval_twice(env):
    context = opt(env)
    context.alloc()
    context.eval()
    context.eval()


def shuffle_part(env):
    data = env.later(ggml.Dataset(np.ones((6, 2)), ndata_shard=3))
    data.shuffle(opt(env), 2)


def negative_batch(env):
    data = dataset(env, labels=False)
    data.get_batch_host(2, -1)


def a_tensor_of_the_graph_before(env):
    context = opt(env)
    context.alloc()
    node = context.graph.nodes[-1]
    context.eval()
    context.alloc(backward=False)
    node.get()


MISUSES = [
    misuse("param-of-op", lambda e: e.y.set_param(), ARGUMENT, "computed", "no op computes"),
    misuse("loss-of-many", lambda e: e.y.set_loss(), ARGUMENT, "[8, 3", "scalar of f32"),
    misuse(
        "no-room-for-grads",
        lambda e: with_loss(e).build_backward_expand(),
        ARGUMENT,
        "no room for gradients",
        "new_graph(grads=True)",
    ),
    misuse(
        "reset-without-grads", lambda e: e.graph.reset(), ARGUMENT, "no gradients yet",
        "build_backward_expand()",
    ),
    misuse(
        "grad-of-stranger", lambda e: e.graph.grad(e.other.neg(e.w)), ARGUMENT,
        "not in this graph", "expected a node or leaf",
    ),
    misuse(
        "clear-allocated", allocated_graph, ARGUMENT, "allocated on <Scheduler CPU>", "reset()"
    ),
    misuse(
        "copy-to-itself", lambda e: e.graph.copy_to(e.graph), ARGUMENT, "itself", "another one"
    ),
    misuse(
        "copy-to-a-tensor", lambda e: e.graph.copy_to(e.y), TypeError, "Tensor", "expected a Graph"
    ),
    misuse(
        "add-without-sources",
        lambda e: e.graph.add_node(e.other.sqr(e.other.neg(e.w))),
        ARGUMENT,
        "not in this graph",
        "build_forward_expand",
    ),
    misuse(
        "compare-unallocated",
        lambda e: ggml.compare_graph_backend(e.cpu, e.cpu, e.graph, lambda *_: True),
        ggml.NoDataError,
        "has no memory",
        "allocate",
    ),
    misuse(
        "compare-without-function",
        lambda e: ggml.compare_graph_backend(e.cpu, e.cpu, e.graph, 3),
        TypeError,
        "int 3",
        "expected a function",
    ),
    misuse("alpha-zero", lambda e: ggml.AdamW(alpha=0), ARGUMENT, "alpha=0", "positive"),
    misuse("beta-two", lambda e: ggml.AdamW(beta2=2), ARGUMENT, "beta2=2", "0 to 1"),
    misuse(
        "loss-type", lambda e: ggml.OptContext(e.scheduler, "nll"), ARGUMENT, "'nll'",
        "cross_entropy",
    ),
    misuse(
        "optimizer-name", lambda e: ggml.OptContext(e.scheduler, "sum", "adamw"), TypeError,
        "str 'adamw'", "expected AdamW, SGD",
    ),
    misuse(
        "period-zero", lambda e: ggml.OptContext(e.scheduler, "sum", opt_period=0), ARGUMENT,
        "opt_period=0", "expected 1",
    ),
    misuse(
        "half-static", lambda e: ggml.OptContext(e.scheduler, "sum", outputs=e.y), ARGUMENT,
        "both inputs", "or neither",
    ),
    misuse(
        "nothing-to-train",
        lambda e: ggml.OptContext(e.scheduler, "sum", inputs=e.w, outputs=e.other.neg(e.w)),
        ARGUMENT,
        "no parameter",
        "set_param()",
    ),
    misuse("eval-first", lambda e: opt(e).eval(), ARGUMENT, "before each eval()", "call alloc()"),
    misuse("eval-never-set", never_set, ggml.NoDataError, "input 'labels'", "was never set"),
    misuse("eval-twice", eval_twice, ARGUMENT, "before each eval()", "call alloc()"),
    misuse(
        "prepare-static",
        lambda e: opt(e).prepare_alloc(e.graph, e.x, e.y),
        ARGUMENT,
        "has static graphs",
        "call alloc()",
    ),
    misuse(
        "compute-its-graph", other_scheduler, ARGUMENT, "is allocated on <Scheduler CPU>", "reset()"
    ),
    misuse(
        "stale-node", a_tensor_of_the_graph_before, ggml.ClosedError, "Graph is closed", "another"
    ),
    misuse(
        "labels-differ", lambda e: ggml.Dataset(np.ones((3, 2)), np.ones(4)), ARGUMENT,
        "(4,)", "same number of each",
    ),
    misuse(
        "shards", lambda e: ggml.Dataset(np.ones((5, 2)), ndata_shard=2), ARGUMENT,
        "in shards of 2", "expected a multiple",
    ),
    misuse("shuffle-part", shuffle_part, ARGUMENT, "idata=2", "multiple of ndata_shard=3"),
    misuse("batch-minus-one", negative_batch, ARGUMENT, "ibatch, of batches of 2,=-1", "0 to 2"),
    misuse(
        "epoch-with-labels", lambda e: ggml.epoch(opt(e), dataset(e)), ARGUMENT,
        "the dataset has labels", "takes none",
    ),
    misuse(
        "epoch-part-of-batch",
        lambda e: ggml.epoch(opt(e), dataset(e, 7, labels=False)),
        ARGUMENT,
        "7 datapoints",
        "whole batches of 3",
    ),
    misuse(
        "fit-all-validation",
        lambda e: ggml.fit(
            e.scheduler, *reversed(trainable(e)), dataset(e), "mean_squared_error", nepoch=1,
            nbatch_logical=3, val_split=0.99,
        ),
        ARGUMENT,
        "val_split=0.99",
        "expected a smaller",
    ),
]  # fmt: skip

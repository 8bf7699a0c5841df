"""Calls of ops with random arguments, and a program that makes many."""

import inspect
import random
import sys

import numpy as np

import ggml_py as ggml
from ggml_py.graphs import ops

NAMES = sorted(n for n, f in vars(ops.Ops).items() if not n.startswith("_") and callable(f))
TYPES = ("f32", "f32", "f16", "i32", "i64", "q4_0", "bf16")
SIZES = (0, 1, 2, 3, 4, 32, 33, 64, 256)
INTS = (0, 1, 2, 3, 4, 8, 32, 64, -1, 2**31 - 1, 2**63 - 1)
LARGE = 1 << 20  # bytes of a graph that is not computed here
REFUSALS = (ggml.GgmlError, TypeError, ValueError, OverflowError)


def tensor(context: ggml.Context, rng: random.Random) -> ggml.Tensor:
    type_ = rng.choice(TYPES)
    ne = [rng.choice(SIZES) for _ in range(rng.randint(1, 4))]
    if type_ == "q4_0":
        ne[0] = rng.choice((32, 64, 256))
    made = context.new_tensor(type_, *ne)
    return context.permute(made, 1, 0, 2, 3) if rng.random() < 0.1 else made


def argument(annotation: str, tensors: list[ggml.Tensor], rng: random.Random) -> object:
    """Something of the right Python type; whether it fits is the op's business."""
    if annotation.startswith("Tensor"):
        if "None" in annotation and rng.random() < 0.3:
            return None
        return rng.choice(tensors[:2] if rng.random() < 0.6 else tensors)
    if annotation == "TypeLike":
        return rng.choice(("f32", "f16", "i32", "q4_0", "q4_K", "iq2_xxs"))
    if annotation.startswith("enums."):
        return rng.choice((0, 1, 2, 3, 100, -1))
    if annotation.startswith("Sequence"):
        return [rng.choice((0, 1, 2, 8)) for _ in range(4)]
    values = {"int": INTS, "float": (0.0, 1.0, -1.0, 1e30, float("nan")), "bool": (True, False)}
    return rng.choice(values[annotation])


def call(name: str, seed: int, backend: ggml.Backend | None = None) -> str:
    """One call of the op, computed if there is a backend; how it went, or the exception's name."""
    rng = random.Random(f"{name} {seed}")
    with ggml.Context(reserve=4 << 20) as context:
        op = getattr(context, name)
        tensors = [tensor(context, rng) for _ in range(4)]
        parameters = inspect.signature(op).parameters.values()
        try:
            out = op(*(argument(str(p.annotation), tensors, rng) for p in parameters))
            if backend is not None and isinstance(out, ggml.Tensor):
                return computed(context, out, backend, rng)
        except REFUSALS as error:
            return type(error).__name__
        return "ok"


def computed(
    context: ggml.Context, out: ggml.Tensor, backend: ggml.Backend, rng: random.Random
) -> str:
    """The op on random data, and the same graph again."""
    tensors = list(context)
    if sum(t.nbytes for t in tensors) > LARGE:
        return "large"
    graph = context.new_graph(32)
    graph.build_forward_expand(out)
    context.alloc(backend)
    numbers = np.random.default_rng(rng.randrange(2**32))
    for t in tensors:
        if t.op == ggml.enums.Op.NONE and t.view_src is None and t.nbytes:
            if t.type in (ggml.enums.Type.I32, ggml.enums.Type.I64):
                t.set(numbers.integers(-1, rng.choice((1, 4, 64, 2**31)), t.ne[::-1]))
            else:
                t.set(numbers.standard_normal(t.ne[::-1]).astype("f4"))
    for _ in range(2):
        backend.compute(graph)
    return "computed"


def main(n: int, n_threads: int = 0) -> None:
    """The child: says where it is before each op, so that the parent knows what it died of."""
    outcomes = {}
    backend = ggml.device("CPU").init(n_threads=n_threads) if n_threads else None
    for name in NAMES:
        for seed in range(n):
            sys.stdout.write(f"{name} {seed}\n")
            sys.stdout.flush()
            outcome = call(name, seed, backend)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print("survived", outcomes)

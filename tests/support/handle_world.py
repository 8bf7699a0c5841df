"""Handles of every kind that share tensors, memory and backends, and actions on them.

For a state machine (test_handle_machine.py) and for threads (benchmarks/handles.py).
"""

from __future__ import annotations

import contextlib
import gc
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ggml_py as ggml

# Exceptions that a user must expect when threads share handles. AbortError is not among them: it
# would mean that a check of ours came too early or too late.
REFUSED = (
    ggml.BusyError, ggml.ClosedError, ggml.NoDataError, ggml.ArgumentError, ggml.AllocError,
    ggml.ComputeError,
)  # fmt: skip
ALONE = tuple(error for error in REFUSED if error is not ggml.BusyError)
# Exceptions if something changed between our check and the call: upstream checks again, and nothing
# is changed then.
LATE = ("ggml_opt_init",)
# `alloc_tensor` makes tensors overlap: a compute that overwrites its operands is refused.
MOST = 5  # of each kind; the oldest are dropped
N = 64  # elements of a tensor


class World:
    """The current objects, by kind. Threads share it without a lock, because lists need none."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.pools: dict[str, list[Any]] = {}
        self.rng = random.Random(seed)
        self.file = folder / "x.gguf"
        if not self.file.exists():
            values = {f"k{i}": "v" * i for i in range(8)} | {"a": np.arange(50)}
            ggml.write_gguf(self.file, values, [("t", np.ones(4), "f32", (4,))])
        for make in (backend, backend, context, context, tensor, tensor, graph, scheduler):
            make(self, self.rng)

    def add(self, kind: str, one: Any) -> Any:
        pool = self.pools.setdefault(kind, [])
        pool.append(one)
        if len(pool) > MOST:
            del pool[0]
        return one

    def one(self, kind: str, rng: random.Random) -> Any:
        """A random object of that kind. If there is none, one is made."""
        pool = self.pools.get(kind) or [MAKERS[kind](self, rng)]
        return rng.choice(pool[:])

    def close(self, rng: random.Random) -> None:
        """Closes everything in random order; then dropped objects go too."""
        handles = [one for kind in HANDLES for one in self.pools.get(kind, ())]
        rng.shuffle(handles)
        for handle in handles[: rng.randrange(len(handles) + 1)]:
            handle.close()
        self.pools.clear()


# --- makers


def backend(w: World, rng: random.Random) -> Any:
    return w.add("backend", ggml.device("CPU").init(n_threads=rng.choice((1, 1, 2))))


def context(w: World, rng: random.Random) -> Any:
    return w.add("context", ggml.Context(reserve=1 << 18))


def tensor(w: World, rng: random.Random) -> Any:
    ctx = w.one("context", rng)
    n = rng.choice((N, N, 1 << 16))
    made = w.add("tensor", ctx.new_tensor("f32", n, name=rng.choice("abc")))
    if rng.random() < 0.3:
        made.set_input()
    return made


def array(w: World, rng: random.Random) -> Any:
    return w.add("tensor", w.one("context", rng).from_numpy(np.ones(N, np.float32)))


def foreign(w: World, rng: random.Random) -> Any:
    return w.add("tensor", w.one("context", rng).from_dlpack(np.ones(N, np.float32)))


def op(w: World, rng: random.Random) -> Any:
    """A random op, whose operands may be of other contexts."""
    ctx, a, b = w.one("context", rng), w.one("tensor", rng), w.one("tensor", rng)
    if rng.random() < 0.3:
        return w.add("tensor", ctx.view_1d(a, N // 2, 0))
    if rng.random() < 0.1:
        return w.add("tensor", ctx.view_tensor(a))  # a leaf, though it views another tensor
    if rng.random() < 0.2:
        return w.add("tensor", ctx.map_custom1(a, keeping(w)))
    return w.add("tensor", ctx.sqr(a) if a.ne != b.ne else ctx.add(a, b))


def keeping(w: World) -> Callable[..., None]:
    def fun(dst: Any, a: Any, ith: int, nth: int) -> None:
        dst[:] = a
        w.add("array", dst)
        w.add("array", a)

    return fun


def graph(w: World, rng: random.Random) -> Any:
    made = w.add("graph", w.one("context", rng).new_graph(64))
    made.build_forward_expand(w.one("context", rng).sqr(w.one("tensor", rng)))
    return made


def own_graph(w: World, rng: random.Random) -> Any:
    """A graph of its own context, or one that continues from another graph's results."""
    ctx = w.add("context", ggml.Context(reserve=1 << 18))
    made = ctx.new_graph(64)
    nodes = w.one("graph", rng).nodes
    if nodes and rng.random() < 0.5:
        result = nodes[-1]
        result = ctx.view_1d(result, N // 2, 0) if rng.random() < 0.3 else result
        made.build_forward_expand(ctx.sqr(result))
        return w.add("graph", made)
    x = ctx.new_tensor("f32", N)
    x.set_input()
    y = ctx.sqr(ctx.map_custom1(x, keeping(w)) if rng.random() < 0.3 else x)
    made.build_forward_expand(y)
    return w.add("graph", made)


def scheduler(w: World, rng: random.Random) -> Any:
    backends = [w.one("backend", rng)]
    return w.add("scheduler", ggml.Scheduler(backends, graph_size=256))


def allocator(w: World, rng: random.Random) -> Any:
    return w.add("allocator", ggml.GraphAllocator(w.one("backend", rng).buffer_type))


def buffer(w: World, rng: random.Random) -> Any:
    return w.add("buffer", w.one("backend", rng).buffer_type.alloc(1 << 16))


def graph_plan(w: World, rng: random.Random) -> Any:
    return w.add("graph_plan", w.one("backend", rng).graph_plan(w.one("graph", rng)))


def cpu_plan(w: World, rng: random.Random) -> Any:
    return w.add("cpu_plan", ggml.CpuPlan(w.one("graph", rng), 1))


def pool(w: World, rng: random.Random) -> Any:
    return w.add("pool", ggml.ThreadPool(2, poll=0))


def gguf(w: World, rng: random.Random) -> Any:
    return w.add("gguf", ggml.Gguf.open(w.file))


def dataset(w: World, rng: random.Random) -> Any:
    return w.add("dataset", ggml.Dataset(np.ones((8, 4)), np.ones((8, 2))))


def opt(w: World, rng: random.Random) -> Any:
    ctx = w.one("context", rng)
    x, p = ctx.new_tensor("f32", 4), ctx.new_tensor("f32", 4)
    p.set_param()
    y = ctx.mul(p, x)
    ctx.alloc(w.one("backend", rng))
    made = ggml.OptContext(w.one("scheduler", rng), "sum", ggml.SGD(alpha=1), inputs=x, outputs=y)
    return w.add("opt", made)


def result(w: World, rng: random.Random) -> Any:
    return w.add("result", ggml.OptResult())


def kept(w: World, rng: random.Random) -> Any:
    return w.add("array", w.one("tensor", rng).numpy())


MAKERS: dict[str, Callable[[World, random.Random], Any]] = {
    "backend": backend, "context": context, "tensor": tensor, "graph": graph,
    "scheduler": scheduler, "allocator": allocator, "buffer": buffer, "graph_plan": graph_plan,
    "cpu_plan": cpu_plan, "pool": pool, "gguf": gguf, "dataset": dataset, "opt": opt,
    "result": result, "array": kept,
}  # fmt: skip
HANDLES = tuple(kind for kind in MAKERS if kind not in ("tensor", "array"))


# --- actions


def close(w: World, rng: random.Random) -> None:
    w.one(rng.choice(HANDLES), rng).close()


def leave(w: World, rng: random.Random) -> None:
    with w.one(rng.choice(HANDLES), rng):
        pass


def drop(w: World, rng: random.Random) -> None:
    pool = w.pools.get(rng.choice(list(MAKERS)))
    with contextlib.suppress(IndexError):
        if pool:
            del pool[rng.randrange(len(pool))]


def collect(w: World, rng: random.Random) -> None:
    gc.collect(rng.randrange(2))


def alloc_context(w: World, rng: random.Random) -> None:
    where = rng.choice((w.one("backend", rng), "CPU"))
    w.add("buffer", w.one("context", rng).alloc(where, usage=rng.choice(("any", "weights"))))


def alloc_tensor(w: World, rng: random.Random) -> None:
    w.one("tensor", rng).alloc(w.one("buffer", rng), 4096 * rng.randrange(4))


def set_(w: World, rng: random.Random) -> None:
    one = w.one("tensor", rng)
    one.set(np.ones(one.ne[::-1], np.float32).reshape(-1))


def copy(w: World, rng: random.Random) -> None:
    w.one("tensor", rng).copy_to(w.one("tensor", rng))


def shared(w: World, rng: random.Random) -> None:
    one = w.one("array", rng)
    if one.flags.writeable:
        one[:] = 2
    one.sum()


def exported(w: World, rng: random.Random) -> None:
    w.add("array", np.from_dlpack(w.one("tensor", rng)))


def look(w: World, rng: random.Random) -> None:
    one = w.one("tensor", rng)
    repr(one)
    assert len(one.ne) == len(one.nb) == 4
    for source in (*one.src, one.view_src):
        _ = source and (source.name, source.type, source.buffer)


def walk(w: World, rng: random.Random) -> None:
    for one in w.one("context", rng):
        _ = one.ne


def name(w: World, rng: random.Random) -> None:
    w.one("tensor", rng).name = rng.choice("xyz")


def build(w: World, rng: random.Random) -> None:
    one = w.one("graph", rng)
    if rng.random() < 0.3:
        one.clear()
    one.build_forward_expand(w.one("tensor", rng))


def read_graph(w: World, rng: random.Random) -> None:
    one = w.one("graph", rng)
    repr((one, one.nodes, one.leafs, w.one("tensor", rng) in one))


def copy_graph(w: World, rng: random.Random) -> None:
    w.one("graph", rng).copy_to(w.one("graph", rng))


def plan(w: World, rng: random.Random) -> None:
    w.one("scheduler", rng).plan(w.one("graph", rng)).text()


def sched_alloc(w: World, rng: random.Random) -> None:
    w.one("scheduler", rng).alloc_graph(w.one("graph", rng))


def reserve(w: World, rng: random.Random) -> None:
    w.one("scheduler", rng).reserve(w.one("graph", rng))


def sched_compute(w: World, rng: random.Random) -> None:
    w.one("scheduler", rng).compute(w.one("graph", rng))


def sched_again(w: World, rng: random.Random) -> None:
    one = w.one("scheduler", rng)
    one.reset()
    one.alloc_graph(w.one("graph", rng))


def inspect(w: World, rng: random.Random) -> None:
    one = w.one("scheduler", rng)
    one.inspect()
    _ = one.reallocations, one.n_splits, one.buffer_size(one.backends[0])


def state(w: World, rng: random.Random) -> None:
    repr(w.one("scheduler", rng).state)


def pin(w: World, rng: random.Random) -> None:
    one = w.one("scheduler", rng)
    one.set_tensor_backend(w.one("tensor", rng), one.backends[0])
    one.tensor_backend(w.one("tensor", rng))


def lend(w: World, rng: random.Random) -> None:
    one = w.one("allocator", rng)
    one.alloc_graph(w.one("graph", rng))
    one.buffer_size()


def compute(w: World, rng: random.Random) -> None:
    w.one("backend", rng).compute(w.one("graph", rng))


def backend_state(w: World, rng: random.Random) -> None:
    one = w.one("backend", rng)
    _ = one.name, one.buffer_type.name, one.supports_op(w.one("tensor", rng))
    one.synchronize()
    one.n_threads = rng.choice((1, 2))


def set_pool(w: World, rng: random.Random) -> None:
    w.one("backend", rng).set_threadpool(rng.choice((w.one("pool", rng), None)))


def abort_callback(w: World, rng: random.Random) -> None:
    w.one("backend", rng).set_abort_callback(rng.choice((lambda: rng.random() < 0.3, None)))


def wake(w: World, rng: random.Random) -> None:
    one = w.one("pool", rng)
    rng.choice((one.pause, one.resume))()


def read_buffer(w: World, rng: random.Random) -> None:
    one = w.one("buffer", rng)
    _ = one.size, one.type.name, one.usage, one.is_host
    one.clear(1)


def read_file(w: World, rng: random.Random) -> None:
    one = w.one("gguf", rng)
    _ = one.version, one.alignment, [one._value(i) for i in range(5)], one.data("t").sum()


def batch(w: World, rng: random.Random) -> None:
    one = w.one("dataset", rng)
    one.get_batch_host(0, 2)
    w.add("tensor", one.data)


def train(w: World, rng: random.Random) -> None:
    one = w.one("opt", rng)
    one.alloc(backward=rng.random() < 0.5)
    one.eval(rng.choice((None, w.one("result", rng))))


def read_opt(w: World, rng: random.Random) -> None:
    one = w.one("opt", rng)
    repr((one, one.loss, one.labels, one.graph))
    one.reset()


ACTIONS: tuple[Callable[[World, random.Random], Any], ...] = (
    *MAKERS.values(), own_graph, own_graph, op, op, op, array, foreign, close, close, close, leave,
    drop, drop, collect, alloc_context, alloc_context, alloc_tensor, set_, set_, copy, shared,
    exported, look, look, walk, name, build, read_graph, copy_graph, plan, sched_alloc, sched_alloc,
    reserve, sched_compute, sched_compute, sched_again, inspect, state, pin, lend, compute, compute,
    backend_state, set_pool, abort_callback, wake, read_buffer, read_file, batch, train, read_opt,
    *[lambda w, rng: w.one("scheduler", rng).synchronize()] * 2,
    lambda w, rng: w.one("scheduler", rng).reset(),
    lambda w, rng: w.one("allocator", rng).reset(),
    lambda w, rng: w.one("graph_plan", rng).compute(),
    lambda w, rng: w.one("cpu_plan", rng).compute(),
    lambda w, rng: w.one("tensor", rng).get(),
    lambda w, rng: w.one("tensor", rng).get(),
)  # fmt: skip


def step(w: World, rng: random.Random) -> str:
    """Runs one action. Returns whether it was refused."""
    try:
        rng.choice(ACTIONS)(w, rng)
    except REFUSED:
        return "refused"
    except ggml.AbortError as error:
        if error.call not in LATE and "(no overlap)" not in error.condition:
            raise
        return "refused"
    return "done"


def folder() -> Path:
    """A folder for the files of a world."""
    return Path(tempfile.mkdtemp(prefix="handles-"))

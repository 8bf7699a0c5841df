"""Graphs on simulated devices, with descriptions in which everything can be changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import ggml_py as ggml
from ggml_py.plan import Plan

N = 32  # all values are [N, n_tokens], all matrices [N, N]
OPS = ("MUL_MAT", "ADD", "RELU", "RMS_NORM", "MUL", "SCALE", "VIEW", "CONT", "STORE", "LOAD")


@dataclass(frozen=True)
class World:
    """A description. `recipe` has rows (op, source, source); sources are numbers of earlier results
    or of weights."""

    recipe: tuple[tuple[str, int, int], ...]
    n_tokens: int = 48
    refused: tuple[frozenset[str], ...] = (frozenset(),)  # ops that gpu0, gpu1, ... do not support
    batches: tuple[int, ...] = (32,)  # offload_min_batch of each
    blas: bool = False
    homes: tuple[int, ...] = ()  # where w0, w1, ... and then the cache are: a GPU's number or -1
    usage: str = "weights"
    pins: Mapping[str, str] = field(default_factory=dict)
    op_offload: bool = True
    parallel: bool = False

    @property
    def names(self) -> list[str]:
        gpus = [f"gpu{i}" for i, refused in enumerate(self.refused) if refused is not None]
        return [*gpus, *["BLAS"] * self.blas, "CPU"]


@contextmanager
def living(world: World) -> Iterator[tuple[ggml.Scheduler, ggml.Graph]]:
    """The world's scheduler, with its pins made, and its graph."""
    with ExitStack() as stack:
        backends = []
        for i, refused in enumerate(world.refused):
            if refused is None:
                continue
            device = ggml.sim_device(
                f"gpu{i}",
                supports=lambda t, refused=refused: ggml.enums.Op(t.op).name not in refused,
                offload_min_batch=world.batches[i],
            )
            stack.callback(device.close)
            backends.append(stack.enter_context(device.init()))
        names = ["BLAS"] * world.blas + ["CPU"]
        backends += [stack.enter_context(ggml.device(n).init(n_threads=1)) for n in names]
        by_name = {b.name: b for b in backends}
        leafs = [_leaf(stack, world, by_name, i) for i in range(len(world.homes))]
        context = stack.enter_context(ggml.Context())
        graph = _build(context, world, leafs)
        scheduler = ggml.Scheduler(backends, parallel=world.parallel, op_offload=world.op_offload)
        stack.enter_context(scheduler)
        for name, backend in world.pins.items():
            node = next(n for n in (*graph.nodes, *graph.leafs) if n.name == name)
            scheduler.set_tensor_backend(node, by_name[backend])
        yield scheduler, graph


def _leaf(stack: ExitStack, world: World, backends: Mapping[str, ggml.Backend], i: int):
    context = stack.enter_context(ggml.Context())
    is_cache = i == len(world.homes) - 1
    name = "cache" if is_cache else f"w{i}"
    tensor = context.new_tensor("f32", N, 64 if is_cache else N, name=name)
    home = world.homes[i]
    context.alloc(
        backends["CPU" if home < 0 else f"gpu{home}"],
        usage="any" if is_cache else world.usage,
    )
    return tensor


def _build(c: ggml.Context, world: World, leafs: list[ggml.Tensor]) -> ggml.Graph:
    *weights, cache = leafs
    n = world.n_tokens
    x = c.new_tensor("f32", N, n, name="inp")
    x.set_input()
    values = [x]
    for i, (op, a, b) in enumerate(world.recipe):
        first, second = values[a % len(values)], values[b % len(values)]
        weight = weights[b % len(weights)]
        if op == "MUL_MAT":
            value = c.mul_mat(weight, first)
        elif op == "ADD":
            value = c.add(first, second)
        elif op == "MUL":
            value = c.mul(first, c.view_1d(weight, N, 0))
        elif op == "RELU":
            value = c.relu(first)
        elif op == "RMS_NORM":
            value = c.rms_norm(first, 1e-5)
        elif op == "SCALE":
            value = c.scale(first, 0.5)
        elif op == "VIEW":
            value = c.view_2d(first, N, n, first.nb[1], 0)
        elif op == "CONT":
            value = c.cont(first)
        elif op == "STORE":
            value = c.cpy(first, c.view_2d(cache, N, n, cache.nb[1], 0))
        else:
            value = c.scale(c.view_2d(cache, N, n, cache.nb[1], 0), 1.0)
        value.name = f"n{i}"
        values.append(value)
    values[-1].set_output()
    graph = c.new_graph()
    graph.build_forward_expand(*values[1:])
    return graph


def plan(world: World) -> Plan:
    """ggml's plan of the world."""
    with living(world) as (scheduler, graph):
        return scheduler.plan(graph)


def attention_with_sinks() -> Plan:
    """llama.cpp #25800: flash attention on a cache that the CPU reads, its sinks in host memory."""
    with ExitStack() as stack:
        device = ggml.sim_device("gpu0")
        stack.callback(device.close)
        backends = [stack.enter_context(d.init()) for d in (device, ggml.device("CPU"))]
        weights, cache, c = (stack.enter_context(ggml.Context()) for _ in range(3))
        sinks = weights.new_tensor("f32", 4, name="blk.0.attn_sinks.weight")
        kv = cache.new_tensor("f16", 64, 256, 4, name="cache_k_l0")
        weights.alloc(backends[-1], usage="weights")
        cache.alloc(backends[-1])
        q = c.new_tensor("f32", 64, 32, 4, name="q")
        q.set_input()
        attention = c.flash_attn_ext(q, kv, kv, None, 1.0, 0.0, 0.0)
        attention.name = "fa"
        attention.add_sinks(sinks)
        graph = c.new_graph()
        graph.build_forward_expand(attention)
        return stack.enter_context(ggml.Scheduler(backends)).plan(graph)

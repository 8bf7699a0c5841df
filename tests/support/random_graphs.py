"""Random graphs on random devices: a mix of everything that the scheduler's rules look at.

`build(rng)` takes a `random.Random`, so a case is a number.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

import ggml_py as ggml
from ggml_py.trace.record import VIEW_OPS

N = 8  # every tensor is N x N, so that any op fits any other
SIMS = 6
_BINARY = ("add", "mul", "sub", "mul_mat")
_UNARY = ("relu", "silu", "sqr", "cont", "soft_max", "transpose", "relu_inplace", "sqr_inplace")


@dataclass
class World:
    """Devices, tensors and graphs of one case. `close` closes all of them."""

    scheduler: ggml.Scheduler
    graphs: list[ggml.Graph]
    pins: list[tuple[ggml.Tensor, ggml.Backend]]
    tensors: list[ggml.Tensor]
    stack: ExitStack
    words: list[str] = field(default_factory=list)

    def pin(self):
        """Makes the pins. A reset drops them."""
        for tensor, backend in self.pins:
            self.scheduler.set_tensor_backend(tensor, backend)

    def close(self):
        self.stack.close()


def build(rng, n_graphs=1, max_nodes=24, pure=False, cpu_only=False, n_threads=None):
    """A world. A `pure` one gives the same results on any devices: no node writes to memory that
    others read, and there is no BLAS. With `cpu_only` everything is on the CPU; the graphs are the
    same. All backends compute on `n_threads` threads, by default on one per core.
    """
    stack = ExitStack()
    try:
        return _build(rng, stack, n_graphs, max_nodes, pure, cpu_only, n_threads)
    except BaseException:
        stack.close()
        raise


def _chance(rng, percent):
    return rng.randint(0, 99) < percent


def _devices(rng, stack, unsupported, n_threads):
    """1 to 6 simulated devices, sometimes BLAS, and last the CPU."""
    for i in reversed(range(SIMS)):  # reset: none shares an earlier one's buffer type
        ggml.sim_device(f"random{i}")
    # Asynchronous devices must not use each other's memory: the scheduler does not wait for one
    # before the other reads.
    sharing = _chance(rng, 40)
    sims, owners = [], []  # owners of a buffer type
    for i in range(rng.randint(1, SIMS)):
        shared = rng.choice(owners) if owners and sharing and _chance(rng, 40) else None
        kind = rng.randint(0, 9)
        settings = {
            "supports": _supports(i, unsupported, rng.randint(0, 2)),
            "offload_min_batch": rng.choice((0, 1, N, 2 * N)),
            "host": kind == 0 and shared is None,
            "host_buffer": kind in (1, 2) and shared is None,
            "buft_of": shared,
            "async_": not sharing,
            "type": "accel" if kind == 0 else "igpu" if kind == 1 else "gpu",
        }
        sims.append(ggml.sim_device(f"random{i}", **settings))
        if shared is None and not settings["host"]:
            owners.append(sims[-1])
    names = [*sims, *([ggml.device("BLAS")] if _chance(rng, 40) else []), ggml.device("CPU")]
    if _chance(rng, 20):
        first = names[:-1]
        rng.shuffle(first)
        names = [*first, names[-1]]
    backends = [stack.enter_context(d.init(n_threads)) for d in names]
    return sims, backends


def _supports(device, unsupported, mode):
    """Supports all ops, all but the pairs drawn for it, or the ops of a table."""
    if mode == 0:
        return None
    if mode == 1:
        return lambda t: (device, t.name) not in unsupported
    return lambda t: t.op.name not in ("ADD", "SOFT_MAX") or (device, t.name) not in unsupported


def _build(rng, stack, n_graphs, max_nodes, pure, cpu_only, n_threads):
    unsupported = set()
    sims, backends = _devices(rng, stack, unsupported, n_threads)
    if pure:
        backends = [b for b in backends if b.name != "BLAS"]
    words = [" ".join(b.name for b in backends)]
    bufts = [b.buffer_type for b in backends]
    bufts += [t for s in sims if (t := s.host_buffer_type) is not None]
    if cpu_only:
        bufts = [bufts[len(backends) - 1]] * len(bufts)
    leafs, small, factors = [], [], []
    types = ("f32", "f32", "f16")

    def leaf(context, name, type="f32", ne=(N, N)):
        return context.new_tensor(type, *ne, name=name)

    for i in range(rng.randint(1, 4)):  # buffers: weights, caches, others
        context = stack.enter_context(ggml.Context())
        for j in range(rng.randint(1, 3)):
            leafs.append(leaf(context, f"w{i}.{j}", "f32" if pure else rng.choice(types)))
        if _chance(rng, 40):  # small ones, which may or must not drag an op along
            small.append(leaf(context, f"sinks{i}", ne=(1,)))
            factors.append(leaf(context, f"factors{i}", ne=(N // 2,)))
        if _chance(rng, 25) and not pure:  # views allocated with it: weights, and nodes
            whole = leafs[-1]
            leafs.append(context.view_2d(whole, N, N, whole.nb[1], 0))
            leafs[-1].name = f"w{i}.view"
        usage = rng.choice(("weights", "weights", "any", "compute"))
        buft = rng.choice(bufts)
        context.alloc(buft, usage=usage)
        words.append(f"w{i}.*: {usage} in {buft.name}")
    repacked = [] if pure else _repacked(rng, stack, backends[-1])
    words += [f"repacked in {w.buffer.type.name}" for w in repacked]
    context = stack.enter_context(ggml.Context())
    position = leaf(context, "position", "i32", (1,))
    position.set_input()
    many = rng.randint(28, 70) if _chance(rng, 3) else 0  # around the limits of a split's inputs
    for i in range(rng.randint(1, 3) + many):
        t = leaf(context, f"x{i}")
        # A leaf that is not an input may be placed elsewhere than a view that was read before it.
        # ggml does not copy that view, and computing says so.
        if pure or not _chance(rng, 15):
            t.set_input()
        leafs.append(t)
    scheduler = stack.enter_context(
        ggml.Scheduler(
            backends[-1:] if cpu_only else backends,
            graph_size=rng.choice((64, 256)),
            parallel=_chance(rng, 30),
            op_offload=not _chance(rng, 20),
        )
    )
    graphs, every = [], list(leafs)
    for g in range(n_graphs):
        made = list(leafs)
        for i in range(rng.randint(1, max_nodes)):
            t = _node(rng, context, made, small, factors, position, repacked)
            if t is not None and pure and not all(_is_pure(made) for made in (t, *t.src)):
                continue
            if t is None or not (backends[-1].supports_op(t) or _chance(rng, 2)):
                continue
            t.name = f"n{g}.{i}"
            if _chance(rng, 5):
                t.set_output()
            made.append(t)
            for device in range(len(sims)):
                if _chance(rng, 25):
                    unsupported.add((device, t.name))
        total = leafs[-1]
        for i in range(many):
            total = context.add(total, leafs[-1 - i])
            total.name = f"n{g}.sum{i}"
            made.append(total)
        nodes = made[len(leafs) :]
        if not nodes:
            nodes = [context.add(leafs[0], leafs[-1])]
        graph = context.new_graph(256)
        outputs = [nodes[-1]] + [t for t in nodes[:-1] if _chance(rng, 15)]
        graph.build_forward_expand(*outputs)
        graphs.append(graph)
        every += nodes
    pins = []
    if _chance(rng, 40):
        for _ in range(rng.randint(1, 3)):
            tensor, backend = rng.choice(every), rng.choice(backends)
            buffer = (tensor.view_src or tensor).buffer
            if buffer is None or backend.supports_buft(buffer.type):  # otherwise the pin is refused
                pins.append((tensor, backend))
    return World(scheduler, graphs, pins, every, stack, words)


def _is_pure(t):
    """Whether the node can be computed without writing into another tensor."""
    if t.op.name in VIEW_OPS:
        return True
    # the CPU claims to support other sources, but its kernels abort
    plain = t.op.name == "CONT" or all(s.is_contiguous and s.nb[0] <= 4 for s in t.src)
    return plain and t.view_src is None


def _repacked(rng, stack, cpu):
    """A weight in memory that only the CPU reads and that is not host memory, if there is one."""
    bufts = [b for b in cpu.device.extra_buffer_types if "REPACK" in b.name]
    if not bufts or not _chance(rng, 20):
        return []
    context = stack.enter_context(ggml.Context())
    weight = context.new_tensor("q4_0", 32, N, name="repacked")
    context.alloc(bufts[0], usage="weights")
    return [weight]


def _node(rng, c, made, small, factors, position, repacked):
    # mostly a recent tensor, so that graphs are deep
    def pick():
        return made[-1 - min(rng.randint(0, 4), rng.randint(0, 10), len(made) - 1)]

    kind = rng.randint(0, 99)
    a, b = pick(), rng.choice(made)
    try:
        if repacked and _chance(rng, 15):
            product = c.mul_mat(repacked[0], c.reshape_2d(a, 32, N * N // 32))
            return c.repeat_4d(product, N, N, 1, 1)
        if kind < 45:
            op = rng.choice(_BINARY)
            if op != "mul_mat" and a.type != ggml.enums.Type.F32:
                a, b = b, a
            return getattr(c, op)(a, b)
        if kind < 70:
            op = rng.choice(_UNARY)
            return getattr(c, op)(a)
        if kind < 76:
            return c.view_2d(a, N, N, a.nb[1], 0)
        if kind < 80:
            return c.reshape_2d(a, N, N)
        if kind < 84:
            return c.permute(a, 1, 0, 2, 3)
        if kind < 88:  # into existing memory, like a KV cache
            return c.cpy(a, b)
        if kind < 92:
            return c.rms_norm(a, 1e-5)
        if kind < 94:
            return c.concat(a, b, 0) if a.ne[0] + b.ne[0] == N else c.scale(a, 0.5)
        if kind < 97:
            kv = c.cast(a, "f16")
            attention = c.flash_attn_ext(a, kv, kv, None, 1.0, 0.0, 0.0)
            if small and _chance(rng, 60):
                attention.add_sinks(rng.choice(small))
            return attention
        if factors:
            return c.rope_ext(
                a, position, rng.choice(factors), N, 0, 64, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0
            )
        return c.add(c.mul(a, made[0]), b)
    except (ggml.AbortError, ggml.ArgumentError):  # the constructor refuses
        return None

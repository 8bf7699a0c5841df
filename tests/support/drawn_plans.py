"""Plans that are hard to draw, quickly made and without real devices."""

from __future__ import annotations

from dataclasses import replace

from ggml_py import Run
from ggml_py.trace import recorded as run
from ggml_py.trace import reference
from ggml_py.trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    ComputeBufferRecord,
    Settings,
)

from . import captures

HOSTILE = (
    "</script x <!--<script </script>"
    "<img src=x onerror=alert(1)>'\"&\\u003c\u2028\x00\t\n@DATA@ é 名 🧨 "
)


def llama(n_layers, per_layer=10, suffix="", refused=()):
    """A chain of layers on a GPU and a CPU. The GPU does not support the ops in `refused`, and the
    last quarter of the layers has its weights in the CPU's memory."""
    where = [int(layer >= n_layers * 3 // 4) for layer in range(n_layers)]
    return _chain(1, where, per_layer, suffix, refused)


def spread(n_devices, n_layers=32, per_layer=10):
    """A chain of layers over several GPUs. The first layers have their weights, which get larger,
    in the CPU's memory, and are computed on the first GPU all the same."""
    where = [layer * n_devices // n_layers for layer in range(n_layers)]
    where[: n_layers // 8] = [n_devices] * (n_layers // 8)
    sizes = [(1 + layer) << 20 for layer in range(n_layers)]
    return _chain(n_devices, where, per_layer, sizes=sizes, offload=1)


def _chain(n_devices, where, per_layer, suffix="", refused=(), sizes=(), offload=0):
    """Layers after each other. `where` is the backend of each layer's weights."""
    names = [*(f"gpu{i}" for i in range(n_devices)), "CPU"]
    host, every = 1 << n_devices, (2 << n_devices) - 1
    bufts = tuple(BuftRecord(name, 1 << i == host, 1 << i) for i, name in enumerate(names))
    buffers = tuple(
        BufferRecord(t, usage, 1 << 30)
        for t in range(len(names))
        for usage in ("weights", "compute")
    )
    backends = tuple(
        BackendRecord(name, name, "CPU" if 1 << i == host else "GPU", i)
        for i, name in enumerate(names)
    )
    n_layers = len(where)
    n = n_layers * per_layer
    nodes, leafs = [], []
    for i in range(n):
        layer, j = divmod(i, per_layer)
        before = (i - 1,) if i else (n + n_layers,)
        op = ("RMS_NORM", "MUL_MAT", "ROPE", "SOFT_MAX", "ADD")[j % 5]
        product = op == "MUL_MAT"
        nodes.append(
            captures.tensor(
                i, NODE, f"{op.lower()}_{j}-{layer}{suffix}", op, flags=("compute",),
                src=(n + layer, *before) if product else before,
                supports=host if op in refused else every, offload=offload * product,
            )
        )  # fmt: skip
    for layer, on in enumerate(where):
        size = {"nbytes": sizes[layer]} if sizes else {}
        name = f"blk.{layer}.w.weight{suffix}"
        leafs.append(captures.tensor(n + layer, LEAF, name, buffer=2 * on, supports=every, **size))
    name = f"inp{suffix}"
    leafs.append(captures.tensor(n + n_layers, LEAF, name, flags=("input",), supports=every))
    settings = Settings("0.26.0", "0.26.0-0", True, 1, 0, 1 << 16, 0)
    ids = tuple(t.id for t in leafs)
    made = tuple(ComputeBufferRecord(b, 32, (1 << 64) - 1) for b in range(len(names)))
    tensors = (*nodes, *leafs)
    capture = Capture(settings, backends, bufts, buffers, tensors, ids, compute_buffers=made)
    return reference.plan(capture)


def smallest():
    """A single view of an input, so nothing is computed."""
    bufts = (BuftRecord("CPU", True, 1),)
    backends = (BackendRecord("CPU", "CPU", "CPU", 0),)
    leaf = captures.tensor(1, LEAF, "inp", flags=("input",), supports=1)
    node = captures.tensor(0, NODE, "", "VIEW", src=(1,), view_src=1, supports=1)
    settings = Settings("0.26.0", "0.26.0-0", True, 1, 0, 100, 0)
    return reference.plan(Capture(settings, backends, bufts, (), (node, leaf), (1,)))


def ran(plan, per_op=True, n=3):
    """A run of `n` computes of a plan, each slower than the last. Nodes take 1, 2, 3 µs and so on
    by their place in a split, copies take 500 ns."""
    events = []

    def event(kind, start, end, split=-1, backend=-1, input=-1, nbytes=0, first=-1, last=-1):
        events.append(run.RunEvent(
            kind, start, end, 0, compute, split, backend, 0, input, nbytes, first, last, -1
        ))

    now = 0
    for compute in range(n):
        begin, at = now, len(events)
        for i, split in enumerate(plan.split_records):
            for j, (source, _copy) in enumerate(split.inputs):
                nbytes = plan.tensors[source].nbytes
                event(run.COPY, now, now + 500, i, split.backend, j, nbytes)
                now += 500
            start = now
            for place, node in enumerate(plan.nodes[split.start : split.end]):
                took = 1000 * (place + 1) * (compute + 1) * (not node.is_view_op)
                if per_op:
                    one = {"first": node.id, "last": node.id + 1}
                    event(run.NODES, now, now + took, i, split.backend, **one)
                now += took
            if not per_op:
                event(run.NODES, start, now, i, split.backend, first=split.start, last=split.end)
        head = run.RunEvent(run.COMPUTE, begin, now, 0, compute, *[-1] * 4, 0, -1, -1, -1)
        events.insert(at, head)
        now += 10_000
    names = tuple(b.name for b in plan.backends)
    scheduler = run.SchedulerRecord(names, (False,) * len(names), (0,) * n)
    return Run((plan,), (scheduler,), tuple(events), per_op, 1e9)


def waited_late(plan):
    """A run whose first backend is asynchronous, with a wait for it at the end."""
    whole = ran(plan, per_op=False, n=1)
    scheduler = whole.schedulers[0]
    asynchronous = (True, *scheduler.asynchronous[1:])
    end = whole.events[0].end
    wait = run.RunEvent(run.WAIT, end, end + 1000, 0, 0, -1, 0, 0, -1, 0, -1, -1, -1, "synchronize")
    schedulers = (scheduler._replace(asynchronous=asynchronous),)
    return replace(whole, schedulers=schedulers, events=(*whole.events, wait))

"""Captures with random graphs, memory and answers, such as no device of this machine gives."""

from __future__ import annotations

from hypothesis import strategies as st

from ggml_py.trace import reference
from ggml_py.trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    Settings,
    TensorRecord,
)

OPS = ("MUL_MAT", "ADD", "ROPE", "FLASH_ATTN_EXT", "SOFT_MAX", "GET_ROWS")
RELEASES = ("0.9.4", "0.17.0", "0.21.0", "0.24.0", "0.26.0")


_PLAIN = {
    "type": "f32", "ne": (64, 8, 1, 1), "nb": (4, 256, 2048, 2048), "nbytes": 2048, "flags": (),
    "op_params": (), "src": (), "view_src": -1, "view_offs": 0, "buffer": -1, "use_count": 0,
    "pin": -1, "supports": 0, "offload": 0,
}  # fmt: skip


def tensor(id, kind, name, op="NONE", **fields) -> TensorRecord:
    """A record with plain values for everything that is not given."""
    plain = _PLAIN | {"op_desc": op, **fields}
    return TensorRecord(id=id, kind=kind, name=name, op=op, **plain)


@st.composite
def captures(draw, max_backends=4, max_nodes=10) -> Capture:
    """Captures that the scheduler can plan. The last backend is a CPU that supports every op and
    reads host memory, as upstream requires."""
    return draw(_captures(max_backends, max_nodes).filter(_can_be_planned))


def _can_be_planned(capture):
    try:
        reference.plan(capture)
    except reference.CannotPlanError:
        return False
    return True


@st.composite
def _captures(draw, max_backends, max_nodes):
    n = draw(st.integers(1, max_backends))
    last, everyone = n - 1, (1 << n) - 1
    masks = st.integers(0, everyone)
    # Buffer types: one per backend, some shared with the CPU (as for BLAS), and a repacked one.
    own = [draw(st.sampled_from([b, last])) for b in range(last)] + [last]
    readers = [sum(1 << b for b in range(n) if own[b] == t) for t in range(n)] + [1 << last]
    if draw(st.integers(0, 4)) == 0:
        readers[draw(st.integers(0, n - 1))] |= draw(masks)
    names = [f"gpu{b}" for b in range(last)] + ["CPU", "CPU_REPACK"]
    bufts = tuple(
        BuftRecord(name, t == last, mask)
        for t, (name, mask) in enumerate(zip(names, readers, strict=True))
    )
    backends = tuple(
        BackendRecord(names[b], names[b], "CPU" if b == last else "GPU", own[b]) for b in range(n)
    )
    buffers = tuple(
        BufferRecord(t, usage, 1 << 20)
        for t in range(n + 1)
        if t == last or readers[t]
        for usage in ("weights", "compute")
    )
    n_nodes, n_leafs = draw(st.integers(1, max_nodes)), draw(st.integers(1, 4))
    leafs = []
    for i in range(n_nodes, n_nodes + n_leafs):
        kind = draw(st.sampled_from(["weight", "weight", "input", "allocated", "plain"]))
        usage = {"weight": "weights", "allocated": "compute"}.get(kind)
        where = [j for j, b in enumerate(buffers) if b.usage == usage]
        where += [j for j in where if buffers[j].buft >= last] * 2
        leafs.append(
            tensor(
                i, LEAF, f"{kind}-{i}",
                supports=draw(st.one_of(st.just(everyone), masks)) | 1 << last,
                buffer=draw(st.sampled_from(where)) if usage else -1,
                flags=("input",) if kind == "input" else (),
            )
        )  # fmt: skip
    nodes = []
    for i in range(n_nodes):
        known = [*range(i), *range(n_nodes, n_nodes + n_leafs)]
        pin = draw(st.integers(0, last)) if draw(st.integers(0, 9)) == 0 else -1
        if draw(st.integers(0, 4)) == 0:
            src = draw(st.sampled_from(known))
            viewed = nodes[src].view_src if src < i and nodes[src].view_src >= 0 else src
            nodes.append(
                tensor(i, NODE, f"view-{i}", "VIEW", src=(src,), view_src=viewed, supports=everyone)
            )
            continue
        op = draw(st.sampled_from(OPS))
        src = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        weights = [t.id for t in leafs if t.name.startswith("weight")]
        if weights and draw(st.booleans()):
            src = (draw(st.sampled_from(weights)), *src)
        flags = ("input",) if draw(st.integers(0, 30)) == 0 else ()
        nodes.append(
            tensor(
                i, NODE, f"{op.lower()}-{i}", op, src=src, pin=pin, flags=flags,
                supports=draw(masks) | draw(masks) | 1 << last,
                offload=draw(masks) & ~(1 << last),
            )
        )  # fmt: skip
    upstream = draw(st.sampled_from(RELEASES))
    settings = Settings(upstream, f"{upstream}-0", draw(st.integers(0, 3)) > 0, 1, 0, 1000, 0)
    leaf_ids = tuple(t.id for t in leafs)
    return Capture(settings, backends, bufts, buffers, (*nodes, *leafs), leaf_ids, refusals=())

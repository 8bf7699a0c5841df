"""A small graph for each rule of the scheduler that releases do not share, and for each change of
what else it does: plain data, which every release plans natively with the answers given here."""

from __future__ import annotations

from ..plan import Plan
from ..trace import reference
from ..trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Capture,
    Settings,
    TensorRecord,
)
from ..trace.rules import RELEASES
from .drawn_at_random import draw, draw_sizes
from .memory_cases import CASES as MEMORY
from .memory_cases import RESERVED
from .placing_cases import CASES as PLACING
from .work import Work

_GPU, _CPU, _BOTH = 1, 2, 3  # sets of backends
SEEDS, SIZES = (2, 212), (3, 8)  # found by benchmarks/rule_mutants.py
_N = 70  # more than twice the 30 inputs that a split once could have


def rule_cases() -> list[Work]:
    """The cases."""
    many = _planned(_many_inputs())
    made = {
        "attention sinks in host memory": _planned(_sinks()),
        "a split with 70 inputs": many,
        "graph inputs of a pipeline": _planned(_pipeline()),
        "a reserve with pins": _planned(_pinned()),
        "experts in host memory": _planned(_experts()),
    }
    wide = _planned(_wide_node())
    again = Work("a split with 70 inputs, after one with 31", plan=many, earlier=(wide,))
    made |= {name: draw().plan() for name, draw in (PLACING | MEMORY).items()}
    made |= {f"drawn at random, {n}": draw(n).plan() for n in SEEDS}
    made |= {f"sizes drawn at random, {n}": draw_sizes(n).plan() for n in SIZES}
    after = [
        Work(name, plan=graph().plan(), reserve=reserved().plan(), in_depth=True)
        for name, (reserved, graph) in RESERVED.items()
    ]
    return [*(Work(name, plan=plan, in_depth=True) for name, plan in made.items()), again, *after]


def _planned(capture: Capture) -> Plan:
    return Plan(capture, reference.plan(capture).outcome)


def _sinks() -> Capture:
    """Flash attention of 64 tokens with 4 heads; everything is in host memory. llama.cpp #25800."""
    heads = (64, 64, 4, 1)
    fa = _tensor(
        0, NODE, "fattn", "FLASH_ATTN_EXT", src=(1, 2, 3, 4, 5), ne=(64, 4, 64, 1), offload=_GPU
    )
    inputs = [_tensor(i, LEAF, name, flags=("input",), ne=heads) for i, name in enumerate("qkv", 1)]
    mask = _tensor(4, LEAF, "mask", flags=("input",), type="f16")
    sinks = _tensor(5, LEAF, "blk.0.attn_sinks.weight", ne=(4, 1, 1, 1), buffer=0)
    return _capture([fa], [*inputs, mask, sinks])


def _many_inputs() -> Capture:
    """A chain on the GPU. Each node reads another input, which is on the CPU."""
    chain = [
        _tensor(i, NODE, f"sum-{i}", "ADD", src=(i - 1 if i else _N, _N + i), pin=0)
        for i in range(_N)
    ]
    return _capture(chain, [_input(_N + i) for i in range(_N)])


def _wide_node() -> Capture:
    """A chain like that, up to 29 inputs, and a node that reads two more: where a split ends at 30
    inputs, this one has 31."""
    n = 30
    chain = [
        _tensor(i, NODE, f"sum-{i}", "ADD", src=(i - 1 if i else n, n + i), pin=0)
        for i in range(n - 1)
    ]
    wide = _tensor(n - 1, NODE, "wide", "ADD_ID", src=(n - 2, 2 * n - 1, 2 * n), pin=0)
    return _capture([*chain, wide], [_input(n + i) for i in range(n + 1)])


def _pipeline() -> Capture:
    """Four copies of everything that is copied. One input is read on the GPU, the other where it
    is."""
    here = _tensor(0, NODE, "on_gpu", "ADD", src=(2, 2), pin=0)
    there = _tensor(1, NODE, "on_cpu", "ADD", src=(0, 3), pin=1)
    return _capture([here, there], [_input(2), _input(3)], n_copies=4)


def _pinned() -> Capture:
    """Two nodes on the GPU, and one between them that is pinned to the CPU."""
    nodes = [
        _tensor(0, NODE, "before", "ADD", src=(3, 3), pin=0),
        _tensor(1, NODE, "pinned", "ADD", src=(0, 0), pin=1),
        _tensor(2, NODE, "behind", "ADD", src=(1, 1), pin=0),
    ]
    return _capture(nodes, [_input(3)])


def _experts() -> Capture:
    """A mixture of 8 experts, two of them used, with weights in host memory: the GPU takes the
    product all the same, so that weights are copied to it."""
    product = _tensor(
        0, NODE, "ffn_moe_up", "MUL_MAT_ID", src=(1, 2, 3), ne=(64, 2, 32, 1), offload=_GPU
    )
    weights = _tensor(1, LEAF, "blk.0.ffn_up_exps.weight", ne=(64, 64, 8, 1), buffer=0)
    tokens = _tensor(2, LEAF, "inp", ne=(64, 1, 32, 1), flags=("input",))
    ids = _tensor(3, LEAF, "ids", ne=(2, 32, 1, 1), flags=("input",), type="i32")
    return _capture([product], [weights, tokens, ids])


def _input(id: int) -> TensorRecord:
    return _tensor(id, LEAF, f"inp-{id}", flags=("input",))


def _tensor(
    id: int,
    kind: str,
    name: str,
    op: str = "NONE",
    *,
    src: tuple[int, ...] = (),
    ne: tuple[int, int, int, int] = (64, 64, 1, 1),
    flags: tuple[str, ...] = (),
    buffer: int = -1,
    pin: int = -1,
    offload: int = 0,
    type: str = "f32",
) -> TensorRecord:
    size = 2 if type == "f16" else 4
    nb = (size, size * ne[0], size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2])
    return TensorRecord(
        id, kind, name, op, op, type, ne, nb, nb[3] * ne[3], flags, (0,) * 16, src, -1, 0,
        buffer, 1, pin, _BOTH, offload,
    )  # fmt: skip


def _capture(nodes: list[TensorRecord], leafs: list[TensorRecord], n_copies: int = 1) -> Capture:
    newest = RELEASES[0]
    settings = Settings(newest.ggml, f"{newest.label}-0", True, n_copies, 0, 1024, 0)
    backends = (BackendRecord("gpu0", "gpu0", "GPU", 0), BackendRecord("CPU", "CPU", "CPU", 1))
    bufts = (BuftRecord("gpu0", False, _GPU), BuftRecord("CPU", True, _CPU))
    return Capture(
        settings, backends, bufts, (BufferRecord(1, "weights", 256),), (*nodes, *leafs),
        tuple(t.id for t in leafs),
    )  # fmt: skip

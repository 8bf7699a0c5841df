"""A small graph for each scheduler rule that differs between releases, and for each other change
of the scheduler's behaviour. Graphs are plain data; every release plans them natively with the
answers given here."""

from __future__ import annotations

from .drawing import Drawing, Drawn
from .drawn_at_random import draw, draw_sizes
from .memory_cases import CASES as MEMORY
from .memory_cases import RESERVED
from .placing_cases import CASES as PLACING
from .tasks import Work

_GPU, _CPU, _SQUARE = "gpu0", "CPU", (64, 64, 1, 1)
SEEDS, SIZES = (2, 212), (3, 8)  # found by benchmarks/rule_mutants.py
_N = 70  # more than twice the 30 inputs that a split once could have


def rule_cases() -> list[Work]:
    """The cases."""
    many = _many_inputs().plan()
    made = {
        "attention sinks in host memory": _sinks().plan(),
        "a split with 70 inputs": many,
        "graph inputs of a pipeline": _pipeline().plan(),
        "a reserve with pins": _pinned().plan(),
        "experts in host memory": _experts().plan(),
    }
    wide = _wide_node().plan()
    again = Work("a split with 70 inputs, after one with 31", plan=many, earlier=(wide,))
    made |= {name: draw().plan() for name, draw in (PLACING | MEMORY).items()}
    made |= {f"drawn at random, {n}": draw(n).plan() for n in SEEDS}
    made |= {f"sizes drawn at random, {n}": draw_sizes(n).plan() for n in SIZES}
    after = [
        Work(name, plan=graph().plan(), reserve=reserved().plan(), in_depth=True)
        for name, (reserved, graph) in RESERVED.items()
    ]
    return [*(Work(name, plan=plan, in_depth=True) for name, plan in made.items()), again, *after]


def _sinks() -> Drawing:
    """Flash attention of 64 tokens with 4 heads; everything is in host memory. llama.cpp #25800."""
    g = Drawing()
    q, k, v = (g.input(name, (64, 64, 4, 1)) for name in "qkv")
    mask = g.input("mask", _SQUARE, "f16")
    sinks = g.weight(_CPU, "blk.0.attn_sinks.weight", (4, 1, 1, 1))
    g.node("FLASH_ATTN_EXT", q, k, v, mask, sinks, name="fattn", ne=(64, 4, 64, 1), offload=(_GPU,))
    return g


def _many_inputs(n: int = _N) -> Drawing:
    """A chain on the GPU. Each node reads another input, which is on the CPU."""
    g = Drawing()
    x: Drawn | None = None
    for i in range(n):
        one = g.input(f"inp-{n + i}", _SQUARE)
        x = g.node("ADD", x or one, one, name=f"sum-{i}", pin=_GPU)
    return g


def _wide_node() -> Drawing:
    """A chain like that, up to 29 inputs, and a node that reads two more: where a split ends at 30
    inputs, this one has 31."""
    g = _many_inputs(29)
    more = [g.input(f"inp-{n}", _SQUARE) for n in (58, 59)]
    g.node("ADD_ID", g.nodes[-1], *more, name="wide", pin=_GPU)
    return g


def _pipeline() -> Drawing:
    """Four copies of everything that is copied. One input is read on the GPU, the other where it
    is."""
    g = Drawing(n_copies=4)
    a, b = g.input("inp-2", _SQUARE), g.input("inp-3", _SQUARE)
    here = g.node("ADD", a, a, name="on_gpu", pin=_GPU)
    g.node("ADD", here, b, name="on_cpu", pin=_CPU)
    return g


def _pinned() -> Drawing:
    """Two nodes on the GPU, and one between them that is pinned to the CPU."""
    g = Drawing()
    x = g.input("inp-3", _SQUARE)
    for name, pin in (("before", _GPU), ("pinned", _CPU), ("behind", _GPU)):
        x = g.node("ADD", x, x, name=name, pin=pin)
    return g


def _experts() -> Drawing:
    """A mixture of 8 experts with weights in host memory. Each token uses two experts. The GPU
    takes the product anyway, so the weights are copied to it."""
    g = Drawing()
    weights = g.weight(_CPU, "blk.0.ffn_up_exps.weight", (64, 64, 8, 1))
    tokens, ids = g.input("inp", (64, 1, 32, 1)), g.input("ids", (2, 32, 1, 1), "i32")
    g.node(
        "MUL_MAT_ID", weights, tokens, ids, name="ffn_moe_up", ne=(64, 2, 32, 1), offload=(_GPU,)
    )
    return g

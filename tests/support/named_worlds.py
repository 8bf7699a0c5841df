"""Plans of random graphs whose tensors have names as models give them."""

from __future__ import annotations

import random

import ggml_py as ggml

from . import random_graphs

NAMES = (
    "blk.10.attn_output_and_more.{}.weight", "blk.1.{}.weight", "{}", "a name of more than 20 {}",
    "cache_k_l{}", "blk.0.attn_sinks.weight.{}",
)  # fmt: skip


def worlds(seed, n=1):
    """Plans of random graphs whose tensors have names as models give them, cut and alike."""
    rng = random.Random(seed)
    world = random_graphs.build(rng, n)
    try:
        style = rng.choice(NAMES)
        for t in world.tensors:
            if rng.random() < 0.6:
                t.name = style.format(t.name)[:63]
        world.pin()
        for graph in world.graphs:
            try:
                yield world.scheduler.plan(graph)
            except ggml.ArgumentError:
                return
    finally:
        world.close()

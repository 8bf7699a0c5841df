"""Checks of ggml's scheduler against the reference, on random graphs."""

import random

import ggml_py as ggml

from . import random_graphs

REFUSALS = (
    "is already in", ") supports '", "read only through views", "has room for",
    "more than 30",
)  # fmt: skip


def differences(plan):
    """What the two planners do not agree about, in words."""
    native, reference = plan.outcome, plan.reference.outcome
    rows = [
        f"{plan.tensor(i)}: native {a}, reference {b}"
        for i, (a, b) in enumerate(zip(native.placements, reference.placements, strict=False))
        if a != b
    ]
    if native.splits != reference.splits:
        rows.append(f"splits: native {native.splits}, reference {reference.splits}")
    if native != reference and not rows:
        rows.append(f"copies or slots: native {native}, reference {reference}")
    return rows


def check(seed, max_nodes):
    """Plans and allocates each graph of a world, with and without its pins; counts the plans."""
    rng = random.Random(seed)
    world = random_graphs.build(rng, rng.choice((1, 1, 2, 4)), max_nodes)
    compared = 0
    try:
        for graph in world.graphs:
            plain = compare(world, world.scheduler.plan, graph)
            world.pin()
            pinned = compare(world, world.scheduler.plan, graph)
            allocated = compare(world, world.scheduler.alloc_graph, graph)
            world.scheduler.reset()
            # what the first allocation did to the graph is undone
            if plain is not None:
                assert world.scheduler.plan(graph) == plain, world.words
            compared += sum(p is not None for p in (plain, pinned, allocated))
    finally:
        world.close()
    return compared


def compare(world, plan, graph):
    """The plan, if ggml makes one: upstream aborts for what it cannot place."""
    try:
        made = plan(graph)
    except ggml.ArgumentError as error:
        assert any(words in str(error) for words in REFUSALS), error
        return None
    assert not differences(made), (world.words, differences(made))
    return made

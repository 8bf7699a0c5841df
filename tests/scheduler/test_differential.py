"""ggml's own scheduler and the reference agree, on random graphs over random devices.

`benchmarks/differential.py` runs many more, on other releases too.
"""

import random

import pytest
import random_graphs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggml_py as ggml

REFUSALS = (
    "is already in", ") supports '", "read only through views", "has room for",
    "more than 30",
)  # fmt: skip
ROUNDS = settings(
    max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


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


@pytest.mark.thorough("long")
@ROUNDS
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_the_reference_plans_as_ggml_does(seed, max_nodes):
    check(seed, max_nodes)


@settings(ROUNDS, max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_the_reference_plans_some_graphs_as_ggml_does(seed, max_nodes):
    check(seed, max_nodes)

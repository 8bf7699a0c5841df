"""Checks that a random graph is either refused, by both plan and compute, or computed without
touching memory that its backend cannot reach. Touching it would end the process, because addresses
of simulated devices fault."""

from __future__ import annotations

import random

import ggml_py as ggml
from ggml_py.trace.answers import reach

from . import random_graphs


def case(n: int) -> str:
    """How it ended."""
    # Ops on these small tensors wait longer for other threads than they compute.
    world = random_graphs.build(random.Random(n), n_threads=2 if n % 10 == 0 else 1)
    try:
        world.pin()
        (graph,), scheduler = world.graphs, world.scheduler
        try:
            found = reach.unreached(scheduler.plan(graph))
            scheduler.alloc_graph(graph)
            for leaf in graph.leafs:
                leaf.buffer.clear()
        except ggml.ArgumentError:  # ggml cannot place it
            return "not placed"
        try:
            scheduler.compute(graph)
        except ggml.AbortError as error:
            refused = "cannot reach" in error.condition or "is lost" in error.condition
            assert refused == bool(found), (n, found, error)
            return "refused" if refused else "another error"
        except ggml.ArgumentError:
            return "another error"
        assert not found, (n, found)
        return "computed"
    finally:
        world.close()

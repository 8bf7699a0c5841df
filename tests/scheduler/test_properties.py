"""What holds for every plan, on random graphs over random devices."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggml_py.enums import TensorFlag
from ggml_py.export.rows import copy_rows

from ..support import random_graphs
from ..support.random_plans import plans
from ..support.scheduler_checks import compare

SOME = settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
seeds = st.integers(0, 2**32)
sizes = st.integers(1, 24)


@SOME
@given(seeds, sizes)
def test_every_nodes_backend_supports_it_unless_the_caller_pinned_it(seed, max_nodes):
    for plan in plans(seed, max_nodes):
        for node in plan.nodes:
            if node.is_computed and node.record.pin < 0:
                assert node.record.supports >> node.placement.backend & 1, node


@SOME
@given(seeds, sizes)
def test_splits_are_the_graph_in_order_each_on_one_backend(seed, max_nodes):
    for plan in plans(seed, max_nodes):
        assert [n.index for s in plan.splits for n in s.nodes] == list(range(len(plan.nodes)))
        for split in plan.splits:
            assert {n.backend for n in split.nodes if not n.is_view_op} <= {split.backend}


@SOME
@given(seeds, sizes)
def test_what_a_backend_cannot_read_has_exactly_one_copy_there(seed, max_nodes):
    for plan in plans(seed, max_nodes):
        copied = Counter((i.tensor.id, i.dst_backend) for s in plan.splits for i in s.inputs)
        wanted = set()
        for node in plan.nodes:
            if node.is_view_op:
                continue
            for src in node.srcs:
                if src.placement.backend == node.placement.backend:
                    continue
                # memory that is there, or what the scheduler allocates where it placed the source
                buft = plan.capture.buft_of(src.record)
                if buft < 0:
                    buft = plan.backends[src.placement.backend].buft
                if not plan.capture.bufts[buft].readers >> node.placement.backend & 1:
                    wanted.add((src.id, node.backend))
        assert set(copied) == wanted
        assert set(copied.values()) <= {1}


@SOME
@given(seeds, sizes)
def test_all_that_counts_copies_counts_the_same(seed, max_nodes):
    for plan in plans(seed, max_nodes):
        records = [pair for record in plan.split_records for pair in record.inputs]
        assert [(i.tensor.id, i.copy.id) for i in plan.copied] == records
        assert plan.n_inputs == len(records)
        assert plan.copy_bytes == sum(split.copy_bytes for split in plan.splits)
        assert plan.copy_bytes == sum(row.nbytes for row in copy_rows(plan))
        assert all(one in one.split.inputs for one in plan.copied)


def values(seed, max_nodes, cpu_only):
    """The results of a world's graphs, each computed twice in turn, by name."""
    world = random_graphs.build(random.Random(seed), 2, max_nodes, pure=True, cpu_only=cpu_only)
    found = {}
    try:
        for round in range(2):
            for graph in world.graphs:
                if compare(world, world.scheduler.alloc_graph, graph) is None:
                    return None
                for leaf in graph.leafs:
                    data = np.random.default_rng([round, len(leaf.name), *leaf.name.encode()])
                    if leaf.type.name == "I32":
                        leaf.set(np.zeros(leaf.ne[0], np.int32))
                    else:
                        leaf.set(data.uniform(-1, 1, leaf.ne[1::-1]).astype(np.float32))
                world.scheduler.compute(graph)
                nodes = graph.nodes
                # the memory of others is used again, of what a view that is an output views, too
                for i, node in enumerate(nodes):
                    kept = node.flags & TensorFlag.OUTPUT and node.view_src is None
                    if kept or i == len(nodes) - 1:
                        found[round, node.name] = node.get().tobytes()
                world.scheduler.reset()
        return found
    finally:
        world.close()


@pytest.mark.thorough("long")
@settings(SOME, max_examples=150)
@given(seeds, sizes)
def test_what_is_computed_is_what_the_cpu_alone_computes(seed, max_nodes):
    computed = values(seed, max_nodes, cpu_only=False)
    if computed is not None:
        alone = values(seed, max_nodes, cpu_only=True)
        assert computed
        assert computed == alone

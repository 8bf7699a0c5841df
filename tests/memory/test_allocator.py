"""The graph allocator's decisions, as ggml notes them, and as our rules make them."""

import random
from contextlib import ExitStack
from itertools import combinations

import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi
from ggml_py.export.json import plan_file as to_json
from ggml_py.memory.allocator import CannotLayOutError, lay_out, layout_unknown
from ggml_py.memory.tensor_bytes import usage
from ggml_py.trace.layout import OWN, REUSE

from ..support import random_graphs

N = 400


def planned(seed):
    """The plan of a random graph and the bytes that upstream measures for it; None if it is
    refused."""
    world = random_graphs.build(random.Random(seed))
    try:
        world.pin()
        plan = world.scheduler.plan(world.graphs[0])
        plan.layout  # noqa: B018  read while the scheduler is there
        measures = plan.layout is not None and hasattr(ggml.lib, "ggml_gallocr_reserve_n_size")
        return plan, world.scheduler.reserve_size(world.graphs[0]) if measures else None
    except (ggml.ArgumentError, ggml.AbortError):
        return None
    finally:
        world.close()


def test_the_rules_decide_as_ggml_does():
    """Event by event, on random graphs: views, pins, pipelines, devices that share buffers."""
    n_same = n_parallel = n_reused = 0
    for seed in range(N):
        if (found := planned(seed)) is None:
            continue
        plan, sizes = found
        if plan.layout is None:
            assert "has no backend" in layout_unknown(plan), seed
            continue
        ours = lay_out(plan)
        assert (ours.order, ours.events) == (plan.layout.order, plan.layout.events), seed
        buffers = {b.name: b.size for b in plan.memory.buffers}
        assert sizes is None or sum(buffers.values()) == sum(sizes.values()), seed
        n_same += 1
        n_parallel += plan.settings.n_copies > 1
        n_reused += any(event.kind == REUSE for event in ours.events)
    assert n_same > 0.8 * N and n_parallel > 20 and n_reused > 20


def test_tensors_that_are_alive_together_have_places_of_their_own():
    for seed in range(0, N, 4):
        if (found := planned(seed)) is None or found[0].layout is None:
            continue
        for record in found[0].capture.compute_buffers:
            blocks = usage(record, found[0].layout).blocks
            for a, b in combinations(blocks, 2):
                together = a.chunk == b.chunk and a.first <= b.last and b.first <= a.last
                if together and a.offset < b.end and b.offset < a.end and a.padded and b.padded:
                    one, other = (a, b) if b.place_of == a.tensor else (b, a)
                    assert other.place_of == one.tensor and one.last == other.first, seed


def test_the_bytes_alive_are_those_of_the_blocks():
    for seed in range(0, N, 8):
        if (found := planned(seed)) is None or found[0].layout is None:
            continue
        for buffer in found[0].memory.buffers:
            for step, n in enumerate(buffer.live):
                assert n == sum(block.padded for block in buffer.alive(step)), (seed, step)
            assert buffer.peak <= buffer.size and buffer.fragmented >= 0


def test_places_are_where_the_tensors_then_are():
    """Offsets against the addresses that the tensors get."""
    with ggml.Context() as ctx, ggml.device("CPU").init() as cpu:
        x = ctx.new_tensor("f32", 64, 16, name="x")
        x.set_input()
        w = ctx.new_tensor("f32", 64, 64, name="w")
        w.set_input()
        h = x
        for _ in range(6):
            h = ctx.add(ctx.relu(ctx.mul_mat(w, h)), h)
        h.set_output()
        graph = ctx.new_graph()
        graph.build_forward_expand(h)
        with ggml.Scheduler([cpu]) as sched:
            sched.alloc_graph(graph)
            plan = sched.plan(graph)
            assert plan.layout.laid_out == OWN and plan.memory.note == ""
            (buffer,) = plan.memory.buffers
            assert buffer.size == sched.buffer_size(cpu)
            of = [*graph.nodes, *graph.leafs]
            at = {b.tensor: b.offset for b in buffer.blocks}
            base = {int(ffi.cast("uintptr_t", of[i].ptr.data)) - n for i, n in at.items()}
            assert len(base) == 1 and len(at) == len(of)


def test_a_pipeline_keeps_its_layout_from_graph_to_graph():
    """Each graph of a pipeline has another of an input's copies for its own, in the same layout."""
    kinds = (("pipe0", "MUL_MAT"), ("pipe1", "RELU"))
    devices = [ggml.sim_device(name, supports={op: True}) for name, op in kinds]
    with ExitStack() as stack:
        opened = [stack.enter_context(d.init()) for d in (*devices, ggml.device("CPU"))]
        ctx = stack.enter_context(ggml.Context())
        x, w = ctx.new_tensor("f32", 64, 16, name="x"), ctx.new_tensor("f32", 64, 64, name="w")
        x.set_input()
        w.set_input()
        h = ctx.relu(ctx.mul_mat(w, ctx.relu(ctx.mul_mat(w, x))))
        h.set_output()
        graph = ctx.new_graph()
        graph.build_forward_expand(h)
        sched = stack.enter_context(ggml.Scheduler(opened, parallel=True))
        of = [*graph.nodes, *graph.leafs]
        seen = set()
        for _ in range(6):
            plan = sched.alloc_graph(graph)
            seen.add(plan.settings.cur_copy)
            to_json.plan_of(plan.to_json(), "the plan")  # raises for events that cannot be
            for buffer in plan.memory.buffers:
                at = {b.tensor: b.offset for b in buffer.blocks if b.tensor < len(of)}
                base = {int(ffi.cast("uintptr_t", of[i].ptr.data)) - n for i, n in at.items()}
                assert len(base) <= 1
            sched.reset()
        assert seen == {0, 1, 2, 3}


def test_a_graph_in_a_larger_ones_layout_says_so():
    def made(ctx, n):
        x = ctx.new_tensor("f32", 64, n)
        x.set_input()
        graph = ctx.new_graph()
        graph.build_forward_expand(ctx.relu(ctx.sqr(x)))
        return graph

    with ggml.Context() as ctx, ggml.device("CPU").init() as cpu, ggml.Scheduler([cpu]) as sched:
        large, small = made(ctx, 32), made(ctx, 8)
        sched.reserve(large)
        sched.alloc_graph(small)
        memory = sched.plan(small).memory
        assert memory.layout.laid_out == "earlier" and "larger graph" in memory.note
        assert {block.size for block in memory.buffers[0].blocks} == {64 * 32 * 4}
        sched.reset()
        assert sched.plan(small).memory.layout.laid_out == OWN


def test_what_is_not_known_is_said(plans):
    log = ggml.Plan.from_debug_log(plans["mlp"].text())
    assert log.memory.buffers == () and "debug log" in log.memory.unknown
    assert log.memory.layout is None and log.memory.to_dict()["unknown"]
    with pytest.raises(CannotLayOutError, match="debug log"):
        lay_out(log)


def test_whose_place_goes_to_whom_byte_by_byte():
    for seed in range(0, N, 8):
        if (found := planned(seed)) is None or found[0].layout is None:
            continue
        for buffer in found[0].memory.buffers:
            owner, after = {}, {block.tensor: set() for block in buffer.blocks}
            for block in buffer.blocks:
                for at in range(block.offset, block.end, buffer.alignment):
                    if (chunk := (block.chunk, at)) in owner:
                        after[owner[chunk]].add(block.tensor)
                    owner[chunk] = block.tensor
            assert {t: set(ids) for t, ids in buffer.next_in_place.items()} == after, seed

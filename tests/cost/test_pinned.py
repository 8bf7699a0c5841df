"""Copies from and to host memory that a device has locked, and from mapped files, have their own
times."""

import mmap

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.calibrate.node_times import Bench
from ggml_py.calibrate.overheads import measure_split

from ..support.measured import device, machine, sample

PLAIN, PINNED, MAPPED = 2e-3, 1e-3, 4e-3


@pytest.fixture(scope="module")
def card():
    with ggml.sim_device("locks", host_buffer=True, offload_min_batch=1) as made:
        yield made


def copies(pinned=True):
    found = []
    for memory, seconds in (("", PLAIN), (" pinned", PINNED), (" mapped", MAPPED)):
        if pinned or not memory:
            found += [sample(f"copy from CPU{memory}", (n,), seconds) for n in (1, 1 << 24)]
    return found


def offloaded(card, memory):
    """The plan of a product on the card, whose weight is in that memory of the host."""
    gpu, cpu = card.init(), ggml.device("CPU").init(n_threads=1)
    weights, context = ggml.Context(), ggml.Context()
    w = weights.new_tensor("f32", 64, 64, name="w")
    if memory == "mapped":
        buffer = ggml.device("CPU").buffer_from(np.frombuffer(mmap.mmap(-1, 1 << 16), np.uint8))
        buffer.usage = "weights"
        w.alloc(buffer, 0)
    else:
        weights.alloc(memory, usage="weights")
    x = context.new_tensor("f32", 64, 8, name="x")
    x.set_input()
    graph = context.new_graph()
    graph.build_forward_expand(context.mul_mat(w, x))
    return ggml.Scheduler([gpu, cpu]).plan(graph)


def seconds_of_the_weight(plan, samples):
    cost = plan.cost(machine(more=(device("locks", *samples),)))
    return next(c.seconds for c in cost.copies if plan.tensor(c.tensor).name == "w")


def test_a_weight_in_locked_memory_has_that_time(card):
    pinned = offloaded(card, card.host_buffer_type)
    plain = offloaded(card, ggml.device("CPU").buffer_type)
    assert seconds_of_the_weight(pinned, copies()) == PINNED
    assert seconds_of_the_weight(plain, copies()) == PLAIN


def test_without_such_samples_it_has_the_usual_time(card):
    pinned = offloaded(card, card.host_buffer_type)
    assert seconds_of_the_weight(pinned, copies(pinned=False)) == PLAIN


def test_a_weight_in_a_mapped_file_has_that_time(card):
    assert seconds_of_the_weight(offloaded(card, "mapped"), copies()) == MAPPED
    assert seconds_of_the_weight(offloaded(card, "mapped"), copies(pinned=False)) == PLAIN


def test_both_are_measured_in_both_directions(card):
    with Bench(card, 1, pace=0.02) as bench:
        for _ in measure_split(bench, (ggml.device("CPU"),)):
            break
    keys = {s.key for s in bench.samples} - {"synchronize"}
    memories = ("", " pinned")
    assert keys == {f"copy {way} CPU{memory}" for way in ("from", "to") for memory in memories}


def test_weights_in_a_mapped_file_are_measured(card):
    with Bench(card, 1, pace=0.02) as bench:
        for _ in measure_split(bench, (ggml.device("CPU"),), 8 << 20):
            pass
    found = [s for s in bench.samples if s.key == "copy from CPU mapped"]
    assert [s.at for s in found] == [(1 << 20,), (1 << 22,), (1 << 25,)]
    assert all(s.usual > 0 for s in found)

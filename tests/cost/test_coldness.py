"""How much of what a graph reads is still in a cache."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

import ggml_py as ggml

from ..support.measured import device, machine, sample

K, M = 256, 512  # of f32: half a mebibyte
SIZES = (1 << 18, 1 << 19, 1 << 20, 1 << 21)
# A product takes twice as long where weights are in no cache, which is so from 2 MiB on.
SECONDS = (1e-5, 1e-5, 1.5e-5, 2e-5)
CURVE = [sample("working set", (n,), t) for n, t in zip(SIZES, SECONDS, strict=True)]


@pytest.fixture(scope="module")
def plan():
    """One product on a simulated device, and one on the CPU."""
    with ggml.sim_device("gpu0"), ExitStack() as stack:
        opened = [stack.enter_context(ggml.device(name).init(n_threads=1))
                  for name in ("gpu0", "CPU")]
        there, here, context = (stack.enter_context(ggml.Context()) for _ in range(3))
        a, b = there.new_tensor("f32", K, M), here.new_tensor("f32", M, K)
        there.alloc(opened[0], usage="weights")
        here.alloc(opened[1], usage="weights")
        x = context.new_tensor("f32", K, 1)
        x.set_input()
        graph = context.new_graph()
        graph.build_forward_expand(context.mul_mat(b, context.mul_mat(a, x)))
        with ggml.Scheduler(opened) as scheduler:
            yield scheduler.plan(graph)


def coldness(plan, shares):
    cpu = replace(device("CPU", *CURVE, type="CPU"), shares_cache=True)
    gpu = replace(device("gpu0", *CURVE), shares_cache=shares)
    return plan.cost(replace(machine(), devices=(gpu, cpu))).coldness


def test_a_device_with_caches_of_its_own_reads_only_its_weights(plan):
    assert coldness(plan, False) == {"gpu0": 0.0, "CPU": 0.0}


def test_devices_that_share_a_cache_take_it_from_each_other(plan):
    assert coldness(plan, True) == pytest.approx({"gpu0": 0.5, "CPU": 0.5})

"""Attention on a device that computes heads at once, and what rests on too little."""

import pytest

import ggml_py as ggml
from ggml_py.cost.cost import MORE_ON_GPU
from ggml_py.cost.estimate import Estimator
from ggml_py.cost.sample import SPLIT
from ggml_py.cost.work import NodeWork

from ..support.measured import device, machine, sample

KEY = "FLASH_ATTN_EXT f16 f16 64"


def attention(n_tokens, heads, cells, seconds):
    """One head's part of what so many take."""
    return sample(KEY, (n_tokens, heads * 128, cells), seconds / heads, bytes=1, flops=1)


ON_A_GPU = [
    attention(1, 4, 256, 4e-6), attention(1, 16, 256, 4.4e-6),
    attention(8, 4, 256, 12e-6),
    attention(512, 4, 256, 16e-6), attention(512, 16, 256, 40e-6),
]  # fmt: skip
ON_A_CPU = [attention(1, 4, 256, 4e-6), attention(1, 16, 256, 16e-6)]


def seconds(samples, n_tokens, cached, heads):
    """Of `heads` heads, of which `cached` have keys and values of their own."""
    work = NodeWork(KEY, (n_tokens, cached * 128, 256), heads, 1, 1, cached / heads)
    return Estimator(device("it", *samples)).estimate(work, 1.0).seconds


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1, 4, 4), 4e-6),
        ((1, 16, 16), 4.4e-6),
        ((1, 4, 32), 12e-6),  # eight heads that share their keys are eight columns
        ((512, 16, 16), 40e-6),
        ((512, 4, 16), 40e-6),  # as many columns as sixteen heads have
    ],
)
def test_heads_at_once(given, expected):
    assert seconds(ON_A_GPU, *given) == pytest.approx(expected)


def test_samples_that_say_nothing_are_passed_over():
    nothing = [attention(1, 4, 256, 0.0), attention(1, 16, 256, 0.0), sample(KEY, (1, 0, 256), 1.0)]
    assert not Estimator(device("it", *nothing)).heads_at_once
    more = (*nothing, *ON_A_GPU[1:], attention(1, 8, 256, 4e-6))
    assert Estimator(device("it", *more)).heads_at_once


def test_heads_one_after_the_other():
    assert seconds(ON_A_CPU, 1, 4, 4) == pytest.approx(4e-6)
    assert seconds(ON_A_CPU, 1, 4, 32) == pytest.approx(32e-6)


def plan_of(tokens=1, output=False):
    with (
        ggml.sim_device("gpu0") as gpu, gpu.init() as first, ggml.device("CPU").init() as cpu,
        ggml.Context() as context, ggml.Scheduler([first, cpu]) as scheduler,
    ):  # fmt: skip
        x = context.new_tensor("f32", 4096, tokens)
        y = context.scale(context.scale(x, 2.0), 2.0)
        scheduler.set_tensor_backend(y, first)
        if output:
            y.set_output()
        graph = context.new_graph()
        graph.build_forward_expand(y)
        return scheduler.plan(graph)


def test_a_gpu_may_take_longer_and_it_is_said():
    plan = plan_of()
    small = sample("SCALE f32", (4096,), 1e-6, bytes=1 << 15, flops=4096)
    usual = machine(small, sample(SPLIT, (), 1e-6), name="gpu0", type="ACCEL", asynchronous=True)
    gpu = machine(
        small, sample(SPLIT, (), 1e-6), *ON_A_GPU, name="gpu0", type="GPU", asynchronous=True
    )
    as_gpu, as_other = plan.cost(gpu), plan.cost(usual)
    on_it = sum(split.seconds for split in as_gpu.splits if split.backend == "gpu0")
    assert on_it > 0
    assert as_gpu.seconds == as_other.seconds and not as_other.assumed
    assert as_gpu.interval[1] >= as_other.interval[1] + MORE_ON_GPU * on_it
    assert "compared on one machine only" in as_gpu.assumed[0]
    # One whose attention had no time to be measured.
    without = machine(small, sample(SPLIT, (), 1e-6), name="gpu0", type="GPU", asynchronous=True)
    assert plan.cost(without).assumed == as_gpu.assumed
    assert plan.cost(without).interval[1] == pytest.approx(as_gpu.interval[1])


def test_what_was_not_measured_may_be_as_slow_as_the_slowest():
    """Attention and states are much slower than a device's best products and copies."""
    quick = [sample("MUL_MAT q4_0", (n, 1e6), 1e-6 * n, bytes=10**6, flops=10**9) for n in (1, 2)]
    slow = [sample("EXP f32", (n,), 1e-3 * n, bytes=10**4, flops=10**4) for n in (1, 2)]
    fast, mixed = machine(*quick), machine(*quick, *slow)
    plan = plan_of()
    assert plan.cost(mixed).unknown_seconds > 100 * plan.cost(fast).unknown_seconds > 0


def test_what_a_program_reads_of_the_results_takes_time():
    back = [sample("copy to CPU", (n,), seconds) for n, seconds in ((0, 1e-3), (1 << 20, 2e-3))]
    known = [sample("SCALE f32", (4096,), 1e-6, bytes=1 << 15, flops=4096), *back]
    here = device("CPU", *known, type="CPU")
    made = machine(*known, name="gpu0", type="GPU", asynchronous=True, more=(here,))
    without, cost = plan_of().cost(made), plan_of(output=True).cost(made)
    assert without.outputs == ()
    (read,) = cost.outputs
    assert (read.source, read.to, read.bytes) == ("gpu0", "CPU", 4096 * 4)
    assert read.seconds == pytest.approx(1e-3 + 1e-3 * 16384 / (1 << 20))
    assert cost.seconds == pytest.approx(without.seconds + read.seconds)
    assert cost.to_dict()["outputs"][0]["seconds"] == read.seconds
    unknown = plan_of(output=True).cost(machine(known[0], name="gpu0", type="GPU"))
    assert unknown.outputs[0] in unknown.missing_copies

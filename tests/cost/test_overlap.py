"""Graphs that follow each other: with several copies of the inputs devices overlap."""

import pytest

import ggml_py as ggml
from ggml_py.cost.bench_rows import gen_row, prompt_row

from ..support.measured import device, machine, sample

N, K = 64, 64
PER_NODE, COPY = 1e-3, 1e-5


def two_stages(parallel, n=N):
    """A product on each of two devices, the second one's after the first one's."""
    names = ("gpu0", "gpu1")
    cards = [ggml.sim_device(name, async_=True).init() for name in names]
    cpu = ggml.device("CPU").init(n_threads=1)
    weights = [ggml.Context() for _ in names]
    context = ggml.Context()
    y = x = context.new_tensor("f32", K, n, name="x")
    x.set_input()
    for made, card in zip(weights, cards, strict=True):
        w = made.new_tensor("f32", K, K)
        made.alloc(card, usage="weights")
        y = context.mul_mat(w, y)
    graph = context.new_graph()
    graph.build_forward_expand(y)
    return ggml.Scheduler([*cards, cpu], parallel=parallel).plan(graph)


def known(seconds=(PER_NODE, PER_NODE)):
    def card(name, t):
        others = ["CPU", "gpu0", "gpu1"]
        copies = [sample(f"copy {way} {o}", (1,), COPY) for way in ("from", "to") for o in others]
        copies += [sample(s.key, (1 << 20,), COPY) for s in copies]
        products = [sample("MUL_MAT f32", (n, K * K), t) for n in (1, N)]
        return device(name, *products, *copies, asynchronous=True)

    return machine(more=(card("gpu0", seconds[0]), card("gpu1", seconds[1])))


def test_one_copy_of_the_inputs_does_not_overlap():
    cost = two_stages(False).cost(known())
    assert cost.plan.settings.n_copies == 1 and not cost.unknown and not cost.missing_copies
    assert cost.following == cost.seconds == pytest.approx(2 * PER_NODE + 2 * COPY, rel=0.01)


def test_with_several_the_busiest_device_is_waited_for():
    cost = two_stages(True).cost(known((PER_NODE, 3 * PER_NODE)))
    assert cost.plan.settings.n_copies > 1
    assert cost.seconds == pytest.approx(4 * PER_NODE, rel=0.05)
    assert cost.following == pytest.approx(3 * PER_NODE, rel=0.05)


def test_a_prompt_of_several_graphs_overlaps_and_tokens_do_not():
    plan, here = two_stages(True), known()
    row = prompt_row(lambda _n, _past: plan, here, 8 * N, 0, 8 * N, N)
    one = plan.cost(here)
    assert row.seconds == pytest.approx(one.seconds + 7 * one.following)
    assert row.seconds < 0.6 * 8 * one.seconds
    token = two_stages(True, 1)
    row = gen_row(lambda _n, _past: token, here, 8, 0)
    assert row.seconds == pytest.approx(8 * token.cost(here).seconds)
    low, high = row.interval
    assert low < row.seconds < high


def test_a_backend_that_the_caller_computes_on_overlaps_with_nothing():
    plan = two_stages(True)
    slow = known()
    waits = machine(more=tuple(
        device(d.name, *d.samples, asynchronous=False) for d in slow.devices[1:]
    ))  # fmt: skip
    cost = plan.cost(waits)
    assert cost.following == pytest.approx(cost.seconds)

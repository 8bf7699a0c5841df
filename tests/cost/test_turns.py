"""What a split takes besides its nodes grows with its work, where threads take the core that a
server needs."""

from contextlib import ExitStack

import pytest

import ggml_py as ggml
from ggml_py.calibrate import overheads, turns
from ggml_py.calibrate.node_times import Bench

from ..support.measured import machine, sample

K, M = 64, 32
PRODUCT, WORK = "MUL_MAT f32", 10e-6
N = 4096


def plan_of(build):
    """The plan of the graph whose last node `build(weights, context)` makes, on the CPU."""
    with ExitStack() as stack:
        cpu = stack.enter_context(ggml.device("CPU").init(n_threads=1))
        weights, context = (stack.enter_context(ggml.Context()) for _ in range(2))
        node = build(weights, context)
        weights.alloc(cpu, usage="weights")
        graph = context.new_graph()
        graph.build_forward_expand(node)
        return stack.enter_context(ggml.Scheduler([cpu])).plan(graph)


def product(weights, context):
    x = context.new_tensor("f32", K, 1)
    x.set_input()
    return context.mul_mat(weights.new_tensor("f32", K, M), x)


@pytest.mark.parametrize("turns, expected", [
    ([((), 1e-6)], 1e-6),
    ([((), 1e-6), ((WORK * 2,), 3e-6)], 2e-6),  # half of the way
    ([((), 1e-6), ((WORK,), 3e-6)], 3e-6),
    ([((), 1e-6), ((WORK / 2,), 3e-6)], 3e-6),  # longer than all: what the longest took
    ([((WORK / 2,), 1e-6), ((WORK * 1.5,), 5e-6)], 3e-6),
    ([((WORK * 2,), 2e-6), ((WORK * 3,), 3e-6)], 2e-6),  # shorter than all
])  # fmt: skip
def test_a_split_waits_as_long_as_one_of_its_length(turns, expected):
    measured = sample(PRODUCT, (1, K * M), WORK)
    cost = plan_of(product).cost(machine(measured, *(sample("split", *one) for one in turns)))
    assert cost.seconds == pytest.approx(WORK + expected)
    (split,) = cost.splits
    assert split.seconds == pytest.approx(cost.seconds)


def test_what_waits_differ_by_is_in_the_interval():
    measured = sample(PRODUCT, (1, K * M), WORK)
    same, differ = (
        plan_of(product).cost(machine(measured, sample("split", (), *seconds)))
        for seconds in ((4e-6,) * 3, (1e-6, 4e-6, 7e-6))
    )
    assert same.seconds == differ.seconds
    assert differ.interval[1] > same.interval[1] and differ.interval[0] < same.interval[0]


@pytest.mark.thorough("long")
def test_turns_with_a_device_are_measured_for_their_length():
    with ggml.sim_device("gpu0") as card, Bench(card, 2, pace=0.02) as bench:
        overheads._copies(bench, ggml.device("CPU"))
        for _ in turns.measure_turns(bench):
            pass
        found = [s for s in bench.samples if s.key == "split"]
    assert len(found) == len(turns._LENGTHS) and all(len(s.seconds) == 4 for s in found)
    assert 0 < found[0].at[0] < found[-1].at[0]


def test_what_a_turn_takes_more_is_neither_work_nor_copies(monkeypatch):
    """Products of 1 us on the CPU and 2 us on the device, copies of 10 us there and 20 us back, and
    a wait of 400 us in each turn."""

    def times(bench, sides, n, count, _seconds):
        work = sum(1e-6 if side[0].buffer.is_host else 2e-6 for side in sides) * n * count
        if len(sides) == 2:
            whole = work + count * 400e-6 + count * 10e-6 + (count - 1) * 20e-6
            return [whole - 1e-4, whole - 1e-4, whole + 2e-4]  # seldom waits count
        return [work + (0.0 if sides[0][0].buffer.is_host else bench.overhead)]

    monkeypatch.setattr(turns, "_times", times)
    with ggml.sim_device("gpu0") as card, Bench(card, 2, pace=0.02) as bench:
        bench.keep("copy from CPU", (256,), [10e-6])
        bench.keep("copy to CPU", (256,), [20e-6])
        for _ in turns.measure_turns(bench):
            pass
        found = [s for s in bench.samples if s.key == "split"]
    for n, sample_ in zip(turns._LENGTHS, found, strict=True):
        assert sample_.at == pytest.approx((n * 2e-6,))
        assert sample_.seconds == pytest.approx((400e-6,) * 4)


def test_turns_whose_copies_are_not_known_are_not_measured():
    with ggml.sim_device("gpu0") as card, Bench(card, 2, pace=0.02) as bench:
        assert list(turns.measure_turns(bench)) == [] == bench.samples


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("matrices", ((1,), (2,), (1, 2)))
def test_rows_that_are_joined_are_one_threads_work(threads, matrices):
    """ggml's CPU backend shares the matrices of a CONCAT among its threads, and none of others."""

    def join(_weights, context):
        return context.concat(*(context.new_tensor("f32", n, 8, *matrices) for n in (3, 1)), 0)

    rows = sample("CONCAT f32", (32,), 1e-6), sample("CONCAT f32", (64,), 2e-6)
    cost = plan_of(join).cost(machine(*rows, n_threads=threads))
    n = matrices[0] * matrices[1] if len(matrices) > 1 else matrices[0]
    assert cost.seconds == pytest.approx(n * 1e-6 / min(threads, matrices[0]))


@pytest.mark.parametrize("sizes, kept, expected", [
    ((1, 1024), True, N * 4 * 1e-9),  # larger than what any cache has
    ((1 << 20, 1 << 27), True, 0.0),  # all that the graph reads has room
    ((1, 1024), False, 0.0),  # a node has just computed it
])  # fmt: skip
def test_a_state_that_no_cache_has_takes_longer(sizes, kept, expected):
    """As long as the bytes of products whose matrices are in no cache: 1 ns each."""

    def add(weights, context):
        given, a = context.new_tensor("f32", N), weights.new_tensor("f32", N)
        given.set_input()
        return context.add(context.scale(given, 2.0), a if kept else given)

    caches = [
        sample("working set", (size,), seconds, bytes=1000)
        for size, seconds in zip(sizes, (1e-6, 2e-6), strict=True)
    ]
    known = sample("ADD f32", (N,), 5e-6), sample("SCALE f32", (N,), 5e-6)
    cost = plan_of(add).cost(machine(*known, *caches))
    assert cost.seconds - 10e-6 == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("cached, expected", ((True, 101e-6), (False, 256e-6)))
def test_only_the_cells_of_a_cache_are_empty(cached, expected):
    """Keys that the graph itself makes, as for an encoder's output, are all there."""

    def attend(weights, context):
        k, v = (weights.new_tensor("f16", K, 256, 1) for _ in range(2))
        q = context.new_tensor("f32", K, 1, 1)
        q.set_input()
        if not cached:
            k = context.dup(k)
        return context.flash_attn_ext(q, k, v, None, 0.125, 0.0, 0.0)

    row = K * 2
    known = sample(f"FLASH_ATTN_EXT f16 f16 {K}", (1, row, 256), 256e-6)
    cost = plan_of(attend).cost(machine(known), n_past=100)
    assert cost.nodes[-1].seconds == pytest.approx(expected)

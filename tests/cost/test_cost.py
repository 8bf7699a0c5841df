"""The cost of a plan is the sum of what was measured, and what was not is said to be unknown."""

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.cost.analysis import analysis_of
from ggml_py.cost.cost import _DEVIATIONS, BETWEEN_RUNS
from ggml_py.cost.estimate import Estimator
from ggml_py.cost.sample import DRIFTS
from ggml_py.cost.work import NodeWork

from ..support.measured import device, machine, sample

N, K, M = 4, 64, 32
ADD = sample("ADD f32", (M * N,), 2e-6)
PRODUCT = sample("MUL_MAT f32", (N, K * M), 10e-6, bytes=K * M * 4, flops=2 * K * M * N)
SPLIT = sample("split", (), 1e-6)


def chain(build, backends=("CPU",)):
    """The plan of a graph over these devices; `build(context, weights)` makes its last node."""
    opened = [ggml.device(name).init(n_threads=1) for name in backends]
    weights, context = ggml.Context(), ggml.Context()
    graph = context.new_graph()
    graph.build_forward_expand(build(context, weights, opened))
    return ggml.Scheduler(opened).plan(graph)


def product(context, weights, opened):
    a = weights.new_tensor("f32", K, M, name="a")
    weights.alloc(opened[-1], usage="weights")
    x = context.new_tensor("f32", K, N, name="x")
    x.set_input()
    y = context.mul_mat(a, x)
    return context.add(context.reshape_2d(y, M, N), y)


@pytest.fixture(scope="module")
def plan():
    return chain(product)


def test_nodes_are_added_up(plan):
    cost = plan.cost(machine(ADD, PRODUCT, SPLIT))
    assert cost.seconds == pytest.approx(13e-6)
    assert [(node.seconds, node.samples) for node in cost.nodes] == [(10e-6, (1,)), (2e-6, (0,))]
    (split,) = cost.splits
    assert split.seconds == pytest.approx(13e-6) and split.end == pytest.approx(13e-6)
    assert cost.unknown == cost.copies == ()


def test_views_cost_nothing(plan):
    assert sum(node.is_view_op for node in plan.nodes) == 1
    assert len(plan.cost(machine(ADD, PRODUCT)).nodes) == 2


def test_a_node_that_was_not_measured_is_unknown_and_widens_the_interval(plan):
    known, lacking = plan.cost(machine(ADD, PRODUCT)), plan.cost(machine(PRODUCT))
    (node,) = lacking.unknown
    assert plan.tensor(node.id).op == "ADD"
    assert node.seconds is None and node.interval is None and node.bound == "unknown"
    assert lacking.seconds == pytest.approx(10e-6)
    width = [cost.interval[1] - cost.seconds for cost in (known, lacking)]
    assert width[1] > width[0]
    assert "not known: 1 of 2 nodes" in lacking.headline()


def test_a_device_that_was_not_measured_is_unknown(plan):
    cost = plan.cost(machine(name="CUDA0"))
    assert len(cost.unknown) == 2 and cost.seconds == 0


def test_errors_of_one_kind_add_up_and_those_of_several_do_not(plan):
    wide = sample("ADD f32", (M * N,), 1e-6, 2e-6, 3e-6)
    cost = plan.cost(machine(wide, PRODUCT))
    deviation = ((2e-6 * wide.spread) ** 2 + (cost.seconds * BETWEEN_RUNS) ** 2) ** 0.5
    assert cost.interval[1] == pytest.approx(cost.seconds + _DEVIATIONS * deviation)


@pytest.mark.parametrize("kind", DRIFTS)
def test_the_interval_is_wider_if_the_machines_speed_changed(plan, kind):
    steady, changing = sample(kind, (), 1.0, 1.0, 1.0), sample(kind, (), 0.8, 1.0, 1.2, 9.0)
    widths = []
    for drift in (steady, changing):
        cost = plan.cost(machine(ADD, PRODUCT, drift))
        widths.append((cost.interval[1] - cost.seconds) / cost.seconds / _DEVIATIONS)
    deviation = changing.spread / 0.6745
    assert 0.2 < deviation < 2
    assert widths == pytest.approx([BETWEEN_RUNS, (BETWEEN_RUNS**2 + deviation**2) ** 0.5])


@pytest.mark.parametrize(
    ("k", "m", "columns", "expected"),
    [
        (2048, 1024, 1, 50e-6),  # the shape that was measured
        (512, 4096, 1, 80e-6),  # the shorter rows that were measured
        (1024, 2048, 1, 60e-6),
        (4096, 512, 1, 45e-6),  # longer rows
        (512, 4096, 2, 70e-6),  # several columns are as they were measured
    ],
)
def test_shorter_rows_take_longer(k, m, columns, expected):
    key, elements = "MUL_MAT f16", 2048 * 1024
    few, many = key + " many rows", key + " many rows"
    them = Estimator(device(
        "it", sample(key, (1, elements), 50e-6), sample(key, (2, elements), 70e-6),
        sample(few, (1024, elements), 51e-6), sample(many, (4096, elements), 81e-6),
    ))  # fmt: skip
    work = NodeWork(key, (columns, k * m), 1.0, 1, 1, rows=m)
    assert them.estimate(work, 1.0).seconds == pytest.approx(expected)


def test_rows_whose_samples_differ_as_much_as_their_repetitions_say_nothing():
    key, elements = "MUL_MAT f16", 2048 * 1024
    few = sample(key + " many rows", (1024, elements), 45e-6, 50e-6, 55e-6)
    work = NodeWork(key, (1, elements), 1.0, 1, 1, rows=4096)
    found = []
    for seconds in (52e-6, 80e-6):
        many = sample(key + " many rows", (4096, elements), seconds)
        them = Estimator(device("it", sample(key, (1, elements), 50e-6), few, many))
        found.append(them.estimate(work, 1.0))
    assert [one.seconds for one in found] == pytest.approx([50e-6, 80e-6])
    assert found[0].error == 0 < found[1].error


def test_what_bounds_a_node(plan):
    slow = sample("ADD f32", (M * N,), 20e-6)  # much slower than its bytes at the product's rate
    product_, add = plan.cost(machine(slow, PRODUCT)).nodes
    assert product_.bound == "bytes" and add.bound == "overhead"


def test_repacked_weights_are_other_samples():
    cpu = ggml.device("CPU")
    if not cpu.extra_buffer_types:
        pytest.skip("this build has no repacked layouts")

    def repacked(context, weights, _opened):
        a = weights.new_tensor("q4_0", 64, 64)
        weights.alloc(cpu.extra_buffer_types[0], usage="weights")
        x = context.new_tensor("f32", 64, 1)
        x.set_input()
        return context.mul_mat(a, x)

    name = cpu.extra_buffer_types[0].name
    plan = chain(repacked)
    plain, other = sample("MUL_MAT q4_0", (1, 4096), 1e-6), sample(
        f"MUL_MAT q4_0 {name}", (1, 4096), 2e-6
    )
    assert plan.cost(machine(plain, other)).seconds == pytest.approx(2e-6)
    assert plan.cost(machine(plain)).unknown  # the plain kernel says nothing about that one


def test_a_norm_and_its_weight_are_computed_in_one_go():
    def norm(context, weights, opened):
        w = weights.new_tensor("f32", 64)
        weights.alloc(opened[-1], usage="weights")
        x = context.new_tensor("f32", 64, 2)
        x.set_input()
        return context.mul(context.rms_norm(x, 1e-5), w)

    plan = chain(norm)
    if not any(node.cpu and node.cpu.fused for node in plan.nodes):
        pytest.skip("this release does not fuse them")
    cost = plan.cost(machine(sample("RMS_NORM+MUL f32", (128,), 3e-6)))
    assert [(node.seconds, node.bound) for node in cost.nodes] == [
        (pytest.approx(3e-6), "overhead"), (0.0, "fused"),
    ]  # fmt: skip


def test_attention_skips_empty_cells():
    def attention(context, weights, opened):
        k, v = (weights.new_tensor("f16", 64, 256, 2) for _ in range(2))
        weights.alloc(opened[-1])
        q = context.new_tensor("f32", 64, 1, 4)
        mask = context.new_tensor("f16", 256, 1)
        q.set_input()
        mask.set_input()
        return context.flash_attn_ext(q, k, v, mask, 0.125, 0.0, 0.0)

    plan = chain(attention)
    key = "FLASH_ATTN_EXT f16 f16 64"
    measured = machine(sample(key, (1, 128, 64), 1e-6), sample(key, (1, 128, 256), 4e-6))
    assert plan.cost(measured).seconds == pytest.approx(4 * 4e-6)
    assert plan.cost(measured, n_past=63).seconds == pytest.approx(4 * 1e-6)


def test_threads_that_share_cells_wait_for_the_one_with_the_full_ones():
    def attention(context, weights, opened):
        k, v = (weights.new_tensor("f16", 64, 1024, 2) for _ in range(2))
        weights.alloc(opened[-1])
        q, mask = context.new_tensor("f32", 64, 1, 4), context.new_tensor("f16", 1024, 1)
        q.set_input()
        mask.set_input()
        return context.flash_attn_ext(q, k, v, mask, 0.125, 0.0, 0.0)

    plan = chain(attention)
    key = "FLASH_ATTN_EXT f16 f16 64"
    rows = sample(key, (1, 128, 512), 1e-6), sample(key, (1, 128, 1024), 2e-6)
    # 600 of 1024 cells are full: one thread sees 600, the first of two has 512 of them.
    alone, both = machine(*rows), machine(*rows, n_threads=2)
    assert plan.cost(alone, n_past=599).seconds == pytest.approx(4 * 600 / 1024 * 2e-6)
    assert plan.cost(both, n_past=599).seconds == pytest.approx(4 * 2e-6)


def test_copies_cost_latency_and_bytes():
    with ggml.sim_device("far") as far:
        def there(context, weights, opened):
            a = weights.new_tensor("f32", K, M)
            weights.alloc(opened[0], usage="weights")
            x = context.new_tensor("f32", K, N)
            x.set_input()
            return context.mul_mat(a, x)

        plan = chain(there, (far.name, "CPU"))
        product_ = sample("MUL_MAT f32", (N, K * M), 10e-6)
        copies = sample("copy from CPU", (256,), 5e-6), sample("copy from CPU", (1 << 20,), 50e-6)
        there_ = device(far.name, product_, *copies, sample("split", (), 2e-6), asynchronous=True)
        cost = plan.cost(machine(SPLIT, more=(there_,)))
        (copy,) = cost.copies
        assert copy.bytes == K * N * 4 and copy.bound == "latency"
        assert copy.seconds == pytest.approx(5e-6, rel=0.05)
        assert cost.seconds == pytest.approx(copy.seconds + 12e-6)
        lacking = plan.cost(machine(SPLIT, more=(device(far.name, product_),)))
        assert lacking.missing_copies and lacking.copies[0].seconds is None


def test_another_number_of_threads_or_release_is_stale(plan):
    cost = plan.cost(machine(ADD, n_threads=8, ggml=plan.settings.upstream))
    assert "it was measured with 8 threads, and 1 compute" in cost.stale
    about = ("with build", "on a processor", "with 8 threads")  # what this plan knows of itself
    assert [any(word in said for word in about) for said in cost.stale] == [True] * 3


def test_it_is_the_same_after_the_plan_was_saved(plan, tmp_path):
    plan.to_json(tmp_path / "p.json")
    read = ggml.Plan.from_json(tmp_path / "p.json")
    one = machine(ADD, PRODUCT, SPLIT)
    assert read.cost(one).to_dict() == plan.cost(one).to_dict()


def test_a_log_has_too_little(plan):
    read = ggml.Plan.from_debug_log(plan.text())
    with pytest.raises(ValueError, match="read from a debug log, which lacks the shapes"):
        read.cost(machine(ADD))


# --- beside what was measured


def recorded(per_op):
    cpu = ggml.device("CPU").init(n_threads=1)
    weights, context = ggml.Context(), ggml.Context()
    a = weights.new_tensor("f32", K, M, name="a")
    weights.alloc(cpu, usage="weights")
    a.set(np.ones((M, K), np.float32))
    x = context.new_tensor("f32", K, N, name="x")
    x.set_input()
    y = context.mul_mat(a, x)
    graph = context.new_graph()
    graph.build_forward_expand(context.add(y, y))
    scheduler = ggml.Scheduler([cpu])
    scheduler.alloc_graph(graph)
    x.set(np.ones((N, K), np.float32))
    with scheduler.record(per_op=per_op) as recording:
        for _ in range(5):
            scheduler.compute(graph)
    return recording.run


def test_predicted_and_measured_stand_side_by_side():
    one = machine(sample("ADD f32", (M * N,), 1.0), PRODUCT)  # a second: the greatest miss
    found = analysis_of(recorded(per_op=True), one)
    assert found.n_computes == 5 and found.seconds is None
    assert [found.cost.plan.tensor(node.id).op for node in found.nodes] == ["ADD", "MUL_MAT"]
    add, _product = found.nodes
    assert add.predicted == pytest.approx(1.0) and 0 < add.measured < 0.1
    assert not add.inside and add.miss == pytest.approx(1.0 - add.measured)
    assert found.measured == pytest.approx(sum(node.measured for node in found.nodes))


@pytest.mark.parametrize(("n_past", "said"), [(None, True), (64, False)])
def test_a_run_does_not_say_how_full_its_cache_was(n_past, said):
    cpu, context = ggml.device("CPU").init(n_threads=1), ggml.Context()
    q, k, v = (context.new_tensor(t, 64, n, 2) for t, n in (("f32", 1), ("f16", 256), ("f16", 256)))
    graph = context.new_graph()
    graph.build_forward_expand(context.flash_attn_ext(q, k, v, None, 0.125, 0.0, 0.0))
    scheduler = ggml.Scheduler([cpu])
    scheduler.alloc_graph(graph)
    for tensor in (q, k, v):
        tensor.set(np.zeros((2, tensor.ne[1], 64), np.float32))
    with scheduler.record(per_op=True) as recording:
        scheduler.compute(graph)
    attention = sample("FLASH_ATTN_EXT f16 f16 64", (1, 128, 256), 1e-5)
    found = analysis_of(recording.run, machine(attention), n_past)
    assert any("all cells that the graph reads" in s for s in found.cost.assumed) == said
    assert found.to_dict()["assumed"] == list(found.cost.assumed)
    assert not analysis_of(recording.run, machine(ADD), n_past).cost.assumed  # not predicted


def test_a_run_whose_nodes_have_no_times_is_compared_as_a_whole():
    found = analysis_of(recorded(per_op=False), machine(ADD, PRODUCT))
    assert found.nodes == () and 0 < found.seconds < 0.1


def test_a_run_without_a_plan_has_nothing_to_compare():
    with pytest.raises(ValueError, match="has no plan of what it computed"):
        analysis_of(ggml.Run((), (), ()), machine(ADD))

"""Rules of the reference that only old releases have, and corners random graphs miss: exact."""

from dataclasses import fields, replace

import pytest

from ggml_py.plan import Plan
from ggml_py.trace import reference
from ggml_py.trace.record import (
    LEAF,
    NODE,
    BackendRecord,
    BufferRecord,
    BuftRecord,
    Settings,
)
from ggml_py.trace.rules import rules_of

from ..support.captures import tensor
from ..support.many_inputs import many_inputs


def inputs(capture):
    return [len(s.inputs) for s in reference.plan(capture).split_records]


@pytest.mark.parametrize(
    ("upstream", "capacities", "expected"),
    [
        ("0.9.4", (), [30, 30, 10]),
        ("0.18.0", (), [30, 30, 10]),
        ("0.18.1", (), [30, 30, 10]),
        ("0.21.0", (4,), [4, 30, 30, 6]),  # what an earlier plan left in the first slot counts
        ("0.21.0", (60, 0), [60, 10]),
        ("0.23.0", (30, 60), [30, 40]),
        ("0.24.0", (4,), [70]),
        ("0.26.0", (), [70]),
    ],
)
def test_a_split_ends_when_its_inputs_are_as_many_as_the_release_lets_it_have(
    upstream, capacities, expected
):
    assert inputs(many_inputs(70, upstream, capacities)) == expected


def test_old_releases_abort_when_one_node_brings_the_30th_input_and_another():
    capture = many_inputs(31, "0.18.0")
    tensors = list(capture.tensors)
    tensors[29] = tensors[29]._replace(src=(28, 31 + 29, 31 + 30))
    two_at_once = replace(capture, tensors=tuple(tensors))
    with pytest.raises(reference.CannotPlanError, match="'n29' has more than 30 inputs"):
        reference.plan(two_at_once)
    later = two_at_once.settings._replace(upstream="0.21.0")
    assert inputs(replace(two_at_once, settings=later)) == [31]


@pytest.mark.parametrize(("n", "fits"), [(30, True), (31, False)])
def test_old_releases_copy_at_most_30_graph_inputs_for_pipeline_parallelism(n, fits):
    capture = many_inputs(n, "0.18.0", n_copies=4)
    if fits:
        assert reference.plan(capture).n_splits == 1
    else:
        with pytest.raises(reference.CannotPlanError, match="more than 30 graph inputs"):
            reference.plan(capture)
    assert reference.plan(many_inputs(n, "0.21.0", n_copies=4)).n_splits >= 1


@pytest.mark.parametrize(
    ("upstream", "ignores_flash", "limit", "graph_inputs"),
    [
        ("0.9.4", False, "fixed", 5), ("0.17.0", False, "fixed", 5), ("0.18.0", True, "fixed", 5),
        ("0.18.1", True, "capacity", 5), ("0.23.0", True, "capacity", 5), ("0.24.0", True, "", 5),
        ("0.25.3", True, "", 6), ("0.26.0", True, "", 6),
    ],
)  # fmt: skip
def test_the_rules_change_with_these_releases(upstream, ignores_flash, limit, graph_inputs):
    rules = rules_of(Settings(upstream, f"{upstream}-0", True, 1, 0, 1000, 0))
    assert ("FLASH_ATTN_EXT" in rules.ignore_weights) is ignores_flash
    assert (rules.input_limit, rules.graph_inputs_pass) == (limit, graph_inputs)
    old = rules_of(Settings("0.9.4", "0.9.4.p0.2.4-12ab", True, 1, 0, 1000, 0))
    assert old.reserve_ignores_pins
    assert not rules.reserve_ignores_pins


def test_a_source_that_nothing_placed_is_an_abort():
    capture = many_inputs(2, "0.26.0")
    x, unseen = tensor(4, LEAF, "unplaced", supports=3), 4
    view = tensor(5, "other", "view of it", "VIEW", src=(4,), view_src=unseen, supports=3)
    first = capture.tensors[0]._replace(src=(5,))
    broken = replace(
        capture, tensors=(first, *capture.tensors[1:], x, view), leaf_ids=(*capture.leaf_ids, 4)
    )
    with pytest.raises(reference.CannotPlanError, match="'view of it', a source of 'n0', has no"):
        reference.plan(broken)


def three(capture):
    """The same with a second GPU between the two backends."""
    gpu1 = BackendRecord("gpu1", "gpu1", "GPU", 2)
    bufts = (*capture.bufts[:1], BuftRecord("CPU", True, 4), BuftRecord("gpu1", False, 2))
    gpu0, cpu = capture.backends
    tensors = tuple(t._replace(supports=7) for t in capture.tensors)
    return replace(
        capture, backends=(gpu0, gpu1, cpu), bufts=bufts, tensors=tensors,
        dropped_pins=((0, 2), (1, 1), (2, 0)),
    )  # fmt: skip


def plan_of(capture):
    return Plan(capture, reference.plan(capture).outcome)


def test_what_if_without_a_backend_renumbers_the_pins_that_a_reset_dropped():
    plan = plan_of(three(many_inputs(3, "0.26.0"))).what_if(drop=["gpu1"])
    assert plan.capture.dropped_pins == ((0, 1), (2, 0))


@pytest.mark.parametrize(("ne1", "where"), [(7, "CPU"), (8, "gpu0"), (9, "gpu0")])
def test_what_if_offloads_from_so_many_rows_on(ne1, where):
    capture = many_inputs(1, "0.26.0")
    weight = tensor(1, LEAF, "w", buffer=0, supports=3)
    node = tensor(
        0, NODE, "product", "MUL_MAT", src=(1,), ne=(64, ne1, 1, 1), supports=3
    )  # fmt: skip
    capture = replace(
        capture, tensors=(node, weight), leaf_ids=(1,), buffers=(BufferRecord(1, "weights", 1),)
    )
    plan = plan_of(capture)
    assert plan.node(0).backend == "CPU"
    assert plan.what_if(offload={("gpu0", "MUL_MAT"): 8}).node(0).backend == where


def test_what_if_by_another_release_forgets_what_earlier_plans_left():
    capture = many_inputs(70, "0.26.0", (4,))
    assert [len(s.inputs) for s in plan_of(capture).what_if(upstream="0.21.0").split_records] == [
        30, 30, 10
    ]  # fmt: skip


def test_what_does_not_count_when_plans_are_compared_is_in_their_files(tmp_path):
    capture = replace(three(many_inputs(3, "0.21.0", (4, 7))), left_backend=2)
    plan_of(capture).to_json(tmp_path / "p.json")
    again = Plan.from_json(tmp_path / "p.json").capture
    for field in fields(capture):
        assert getattr(again, field.name) == getattr(capture, field.name), field.name


def test_a_view_with_a_buffer_moves_with_what_it_views():
    capture = many_inputs(1, "0.26.0")
    weight = tensor(1, LEAF, "w", buffer=0, supports=3)
    view = tensor(2, LEAF, "w.view", "VIEW", src=(1,), view_src=1, buffer=0, supports=3)
    node = tensor(0, NODE, "n", "ADD", src=(2,), supports=3)
    capture = replace(
        capture, tensors=(node, weight, view), leaf_ids=(1, 2),
        buffers=(BufferRecord(1, "weights", 1 << 20),),
    )  # fmt: skip
    moved = plan_of(capture).what_if(move_weights={"w": "gpu0"}).capture
    assert [moved.tensors[i].buffer for i in (1, 2)] == [1, 1]
    assert moved.buffers[1].buft == 0


def test_a_copys_name_has_at_most_63_bytes():
    capture = many_inputs(1, "0.26.0")
    long = capture.tensors[1]._replace(name="x" * 63)
    made = reference.plan(replace(capture, tensors=(capture.tensors[0], long)))
    assert made.copies[0].name == "gpu0#" + "x" * 58


def test_a_cause_of_a_sweep_without_its_passes_has_no_witness():
    plan = plan_of(many_inputs(2, "0.26.0"))
    bare = tuple(
        p._replace(cause="2.sup", stage=21, passes=()) for p in plan.outcome.placements
    )  # fmt: skip
    bare_plan = Plan(plan.capture, replace(plan.outcome, placements=bare))
    assert bare_plan.node(1).cause.witness is None


def test_names_that_repeat_are_told_apart_in_refusals():
    capture = many_inputs(2, "0.26.0")
    nodes = [t._replace(name="h", supports=0, pin=-1) for t in capture.tensors[:2]]
    alike = replace(capture, tensors=(*nodes, *capture.tensors[2:]))
    with pytest.raises(reference.CannotPlanError, match=r"no backend supports 'h \(ADD, node 0\)'"):
        reference.plan(alike)

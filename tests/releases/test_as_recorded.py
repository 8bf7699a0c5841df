"""Recorded graphs on devices that answer as recorded, and what else a release does with them."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.builds import current
from ggml_py.releases import Work, rule_cases
from ggml_py.releases import planned_cases as planning
from ggml_py.releases.planned_cases import plans_under
from ggml_py.scheduler import as_recorded
from ggml_py.scheduler.as_recorded import AsRecorded, replay_as_recorded
from ggml_py.scheduler.observed import Observed
from ggml_py.trace import reference
from ggml_py.variants.rebuild import not_made

CASES = {case.name: case.plan for case in rule_cases()}
EXPERTS = CASES["experts in host memory"]


def changed(plan, **fields):
    """The plan's graph with its first node's answers changed, planned by the reference."""
    first = plan.capture.tensors[0]._replace(**fields)
    capture = replace(plan.capture, tensors=(first, *plan.capture.tensors[1:]))
    return ggml.Plan(capture, reference.plan(capture).outcome)


@pytest.mark.parametrize("case", CASES)
def test_cases_are_planned_natively_as_by_the_reference(case):
    again = replay_as_recorded(CASES[case])
    assert again.outcome == CASES[case].outcome


@pytest.mark.parametrize("case", CASES)
def test_constructors_make_the_cases(case):
    odd = not_made(CASES[case].capture.tensors)
    assert odd is None or (case, odd.name) == ("ops that overwrite", "add_id-5")


def test_devices_answer_what_was_recorded():
    # A simulated device by itself wants this product, and can compute it.
    assert [node.backend for node in replay_as_recorded(EXPERTS).nodes] == ["gpu0"]
    for fields in ({"offload": 0}, {"supports": 2}):
        plan = changed(EXPERTS, **fields)
        assert [node.backend for node in replay_as_recorded(plan).nodes] == ["CPU"]


def test_memory_that_nothing_stands_in_for_is_named():
    capture = EXPERTS.capture
    odd = capture.bufts[1]._replace(name="Odd", readers=3)
    plan = ggml.Plan(
        replace(capture, bufts=(*capture.bufts, odd),
                buffers=(capture.buffers[0]._replace(buft=2),)), EXPERTS.outcome,
    )  # fmt: skip
    with pytest.raises(ggml.ArgumentError, match=r"'blk\.0\.ffn_up_exps.* was in Odd memory"):
        replay_as_recorded(plan)


def test_what_is_observed_of_a_small_graph():
    with AsRecorded(EXPERTS) as recorded:
        seen = recorded.observe(EXPERTS)
    weight = [copy for copy in seen.copies if copy.tensor.startswith("blk.0")]
    assert [(copy.to, copy.nbytes) for copy in weight] == [("gpu0", 8 * 64 * 64 * 4)]
    assert seen.reserved == seen.allocated and seen.reserved["gpu0"] >= weight[0].nbytes
    assert seen.waits and not seen.reallocations and not seen.left_out


def test_pins_count_in_reserve_and_after_it():
    pins = CASES["a reserve with pins"]
    without = changed(pins)  # the middle node is pinned: it alone needs memory on the CPU
    tensors = tuple(t._replace(pin=-1) for t in without.capture.tensors)
    without = ggml.Plan(replace(without.capture, tensors=tensors), without.outcome)
    with AsRecorded(pins) as recorded:
        seen, other = recorded.observe(pins), recorded.observe(without)
    assert seen.reserved == seen.allocated != other.reserved


def test_large_graphs_are_not_computed_and_say_so(monkeypatch):
    monkeypatch.setattr(as_recorded, "MAX_BYTES", 1 << 10)
    with AsRecorded(EXPERTS) as recorded:
        seen = recorded.observe(EXPERTS)
    assert seen.waits is None and seen.copies == ()
    assert seen.left_out.startswith("not computed: 152.") and seen.reserved
    monkeypatch.undo()
    monkeypatch.setattr(as_recorded, "MAX_FLOPS", 1)
    with AsRecorded(EXPERTS) as recorded:
        assert "GFLOP, above" in recorded.observe(EXPERTS).left_out


def test_the_size_of_a_graph_is_that_of_its_shapes():
    """A file may say any number of bytes."""
    tensors = list(EXPERTS.capture.tensors)
    leaf = next(i for i, t in enumerate(tensors) if t.type == "f32" and t.view_src < 0)
    tensors[leaf] = tensors[leaf]._replace(ne=(1 << 34, 1, 1, 1), nb=(4, 4, 4, 4), nbytes=32)
    large = ggml.Plan(replace(EXPERTS.capture, tensors=tuple(tensors)), EXPERTS.outcome)
    assert as_recorded._not_computed(large).startswith("not computed: 64.0 GiB of data")


def test_one_scheduler_plans_one_graph_after_another():
    after = next(case for case in rule_cases() if case.earlier)
    size = len(after.plan.capture.tensors)
    with AsRecorded(after.plan, size) as recorded:
        for plan in (*after.earlier, after.plan, after.plan):
            assert recorded.plan(plan).outcome == plan.outcome


def children():
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _name, rest = status.read_text().replace(") ", "(").split("(")
        except (OSError, ValueError):
            continue
        if rest.split()[1] == str(os.getpid()):
            found.append(int(pid))
    return found


def test_a_process_that_dies_costs_one_case():
    works = [Work(f"{i}", plan=EXPERTS) for i in range(40)]
    before, killed = children(), []

    def kill(_share):
        if not killed:
            killed.extend(pid for pid in children() if pid not in before)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    (made,) = plans_under([current()["key"]], works, progress=kill)
    assert len(killed) == 1
    lost = [one for one in made if one.plan is None or not one.observed.reserved]
    assert len(lost) == 1
    assert "signal 9" in (lost[0].error or lost[0].observed.left_out)
    assert all(one.plan.outcome == EXPERTS.outcome for one in made if one.plan)


def test_an_op_that_the_release_lacks_is_the_cases_error():
    works = [Work("new", plan=changed(EXPERTS, op="FROM_THE_FUTURE")), Work("old", plan=EXPERTS)]
    new, old = plans_under([current()["key"]], works)[0]
    assert new.plan is None and "has no such op" in new.error
    assert old.plan.outcome == EXPERTS.outcome


def test_two_backends_on_one_device_are_refused():
    capture = EXPERTS.capture
    gpu, cpu = capture.backends
    twice = replace(capture, backends=(gpu, gpu, cpu))
    with pytest.raises(ggml.ArgumentError, match="two backends of the plan are on gpu0"):
        replay_as_recorded(ggml.Plan(twice, EXPERTS.outcome))


def test_backends_keep_their_recorded_names():
    backends = [one._replace(name=f"Recorded {one.name}") for one in EXPERTS.capture.backends]
    capture = replace(EXPERTS.capture, backends=tuple(backends))
    plan = ggml.Plan(capture, EXPERTS.outcome)
    assert not plan.diff(replay_as_recorded(plan))


KINDS = {"UNARY": ggml.enums.UnaryOp, "GLU": ggml.enums.GluOp}


@pytest.mark.parametrize("op", KINDS)
def test_kinds_of_an_op_go_by_their_names(op):
    """In package 0.2.4 GELU_ERF is 14, which is EXPM1 in all later ones."""
    for kind in KINDS[op]:
        if kind.name == "COUNT":
            continue
        (first, *rest) = CASES["a reserve with pins"].capture.tensors
        # The number is that of another release.
        first = first._replace(op=op, op_desc=kind.name, op_params=(99, *first.op_params[1:]))
        capture = replace(CASES["a reserve with pins"].capture, tensors=(first, *rest))
        again = replay_as_recorded(ggml.Plan(capture, CASES["a reserve with pins"].outcome))
        assert again.capture.tensors[0].op_desc == kind.name
        assert (again.capture.tensors[0].op_params or (0,))[0] == kind


def test_a_kind_that_the_release_lacks_is_the_cases_error():
    plan = changed(EXPERTS, op="GLU", op_desc="SWIGLU_2030")
    with pytest.raises(ggml.ArgumentError, match=r"is a SWIGLU_2030 .* has no such op"):
        replay_as_recorded(plan)


def test_a_libllama_is_built_once_and_by_the_process_that_people_see(monkeypatch):
    key, asked, ran = current()["key"], [], []

    def run(_self, key, *words, lines=None):
        ran.append(words)
        return f"{planning.LIBLLAMA_MISSING.format(key)}: build it"

    monkeypatch.setattr(planning._Planning, "_run", run)
    monkeypatch.setattr(planning.script, "folder_of", lambda *words: asked.append(words))
    works = [Work("a", ("a.gguf",)), Work("b", ("b.gguf",))]
    (made,) = plans_under([key], works)
    assert asked == [("--llama", "--on", str(current()["folder"]))]
    assert all("could not be built: see above" in one.error for one in made)
    (made,) = plans_under([key], works, build=False)
    assert len(asked) == 1 and all("is not there yet: build it" in one.error for one in made)
    # Built, the verb runs again.
    monkeypatch.setattr(planning.script, "folder_of", lambda *_words: current()["folder"])
    ran.clear()
    plans_under([key], works[:1])
    assert len(ran) == 2 and ran[0] == ran[1]


def test_what_is_only_planned():
    (row,) = plans_under([current()["key"]], [Work("experts", plan=EXPERTS)], observe=False)
    assert row[0].plan.outcome == EXPERTS.outcome
    assert row[0].observed == Observed({}, {}, (), None, (), "only planned")

"""`compare` with a machine that was measured: what plans that differ are predicted to take."""

import json

import pytest

import ggml_py as ggml
from ggml_py.cost.work import fused_heads, work_of
from ggml_py.releases import Made
from ggml_py.releases.compare import compared
from ggml_py.releases.tasks import Work

from ..support.cli_runs import fails, run
from ..support.drawn_plans import llama
from ..support.measured import device, machine, sample

PLAN = llama(4)
OTHER = PLAN.what_if(supports={("gpu0", "SOFT_MAX"): False})


def measured(*plans, seconds=1e-5, but=()):
    """A machine on which each kind of work of these plans takes 10 µs, and each copy 100 µs; what
    is in `but` was not measured."""
    heads, _others = fused_heads(PLAN)
    kinds = {
        b: {work_of(p, t.record, b, 1, heads)[:2] for p in plans for t in p.nodes if t.is_computed}
        for b in range(2)
    }
    samples = {
        b: [sample(key, at, seconds) for key, at in sorted(kinds[b]) if key.split()[0] not in but]
        for b in kinds
    }
    copies = [sample(f"copy {way} CPU", (), 1e-4) for way in ("from", "to")]
    return machine(*samples[1], more=[device("gpu0", *samples[0], *copies)])


def comparison(machine, before=PLAN, after=OTHER):
    made = [[Made(plan)] for plan in (before, after)]
    return compared("old", "new", [Work("case", plan=before)], *made, machine=machine)


def test_plans_that_differ_have_a_predicted_time():
    (row,) = comparison(measured(PLAN, OTHER)).rows
    predicted = row.predicted
    assert predicted.unknown == (0, 0) and predicted.ratio == predicted.after / predicted.before
    # The copies to the CPU and back, which the machine's other plan does without.
    more = OTHER.n_inputs - PLAN.n_inputs
    assert predicted.after - predicted.before == pytest.approx(more * 1e-4, rel=0.01)
    (said,) = [change for change in row.run if change.kind == "predicted"]
    assert said.text == str(predicted) and f"{predicted.ratio:.2f} times as long" in said.text
    assert not said.decides and "by the plan alone" in str(comparison(measured(PLAN, OTHER)))
    assert json.dumps(row.to_dict())  # and in the data
    assert row.to_dict()["predicted"]["before"] == predicted.before


def test_without_a_machine_or_a_difference_nothing_is_said():
    (row,) = comparison(None).rows
    assert row.predicted is None and not any(change.kind == "predicted" for change in row.run)
    (row,) = comparison(measured(PLAN), PLAN, PLAN).rows
    assert not row.differs and row.predicted.ratio == 1.0 and row.run == ()


def test_what_was_not_measured_is_not_predicted():
    (row,) = comparison(measured(PLAN, OTHER, but=("SOFT_MAX",))).rows
    n = sum(node.op == "SOFT_MAX" for node in PLAN.nodes)
    assert row.predicted.unknown == (n, n) and row.predicted.ratio is None
    told = str(row.predicted)
    assert f"not known: of {n} nodes and copies nothing was measured" in told


def test_a_plan_that_a_release_does_not_make_has_no_time():
    made = [Made(PLAN)], [Made(None, "refused")]
    (row,) = compared("old", "new", [Work("case", plan=PLAN)], *made, machine=measured(PLAN)).rows
    assert row.predicted is None


def test_a_file_that_is_no_machine(tmp_path):
    file = tmp_path / "machine.json"
    file.write_text("{}")
    words = ("compare", "--upstream", "0.17.0", "--upstream", "0.18.0", "--machine", file)
    assert "is not a machine's file" in fails(*words, code=1)


@pytest.mark.thorough("builds")
def test_the_command_line(tmp_path):
    """0.18.0 leaves flash attention on the GPU although its sinks are on the CPU."""
    file = tmp_path / "machine.json"
    measured(PLAN).save(file)
    words = ("--upstream", "0.17.0", "--upstream", ggml.enums.UPSTREAM, "--machine", file, "--json")
    done = run("compare", *words, "--plans-only")
    assert done.returncode == 1, done.stderr
    told = [row["predicted"] for row in json.loads(done.stdout)["cases"] if row["diff"]]
    assert told and all(one["before"] >= 0 and len(one["unknown"]) == 2 for one in told)

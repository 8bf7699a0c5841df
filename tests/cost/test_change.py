"""Predicted times of plans that verbs show."""

import json

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.cost import Machine

from ..support import graphs
from ..support.cli_runs import fails, ok, run
from ..support.measured import machine, sample


@pytest.fixture(scope="module")
def files(plans, tmp_path_factory):
    """A plan, the same with everything on the CPU, and machines that know all, and not all, of
    its work."""
    folder = tmp_path_factory.mktemp("machine")
    plan = plans["cpu_only"]
    plan.to_json(folder / "plan.json")
    works = {(n.work.key, n.work.at) for n in plan.cost(machine()).nodes}
    samples = [sample(key, at, 1e-3) for key, at in sorted(works)]
    machine(*samples).save(folder / "machine.json")
    machine(*samples[1:]).save(folder / "partly.json")
    return folder


def test_plan_says_how_long_it_takes(files):
    plan, known = files / "plan.json", files / "machine.json"
    cost = ggml.Plan.from_json(plan).cost(Machine.load(known))
    lines = ok("plan", plan, "--machine", known).splitlines()
    stale = "stale: it was measured with 1 thread, and 2 compute; the interval does not count that"
    assert stale in lines
    assert "(predicted)" in lines[0]  # the verdict
    (line,) = (line for line in lines[1:] if "predicted" in line)
    assert line.startswith(f"a compute is predicted to take {1e3 * cost.seconds:.3g} ms (")
    data = json.loads(ok("plan", plan, "--machine", known, "--json"))["predicted"]
    assert data["seconds"] == pytest.approx(cost.seconds) and data["unknown_nodes"] == 0
    assert "it was measured with 1 thread, and 2 compute" in data["stale"]
    assert "predicted" not in ok("plan", plan)
    text = ok("plan", plan, "--machine", files / "partly.json")
    assert "\nhow long a compute takes is not known: of " in text


def test_a_change_has_both_times(files):
    plan, known = files / "plan.json", files / "machine.json"
    words = ("plan", plan, "--what-if", "op_offload=off", "--machine", known)
    assert "\na compute is predicted to take 1.00 times" in ok(*words)
    data = json.loads(ok(*words, "--json"))
    assert data["predicted"]["ratio"] == pytest.approx(1.0) and "what_if" in data
    done = run("diff", plan, plan, "--machine", known)
    assert done.returncode == 0 and "1.00 times as long" in done.stdout
    assert json.loads(ok("diff", plan, plan, "--machine", known, "--json"))["predicted"]["before"]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record with times, of a graph that is computed three times."""
    path = tmp_path_factory.mktemp("analyze") / "r.ggrec"
    case = graphs.mlp()
    with ggml.record(path, run=True):
        case.scheduler.alloc_graph(case.graph)
        for leaf in case.graph.leafs:
            if ggml.enums.TensorFlag.INPUT in leaf.flags:
                leaf.set(np.ones(leaf.shape, np.float32))
        for _ in range(3):
            case.scheduler.compute(case.graph)
    case.close()
    return path


def test_analyze_shows_predicted_beside_measured(files, record):
    known = files / "machine.json"
    for words in (("plan", record, "--analyze"), ("explain", "--analyze", record)):
        text = ok(*words, "--machine", known)
        assert text.startswith("predicted ") and "measured " in text and "the median of 3" in text
        data = json.loads(ok(*words, "--machine", known, "--json"))
        assert data["n_computes"] == 3 and data["seconds"] > 0
    assert "needs --machine" in fails("plan", record, "--analyze", code=2)
    error = fails("plan", files / "plan.json", "--analyze", "--machine", known)
    assert "has no measured times: expected a run" in error
    assert "goes with --analyze" in fails("explain", files / "plan.json", 0, "--machine", known,
                                          code=2)  # fmt: skip
    assert "Missing argument 'NODE'" in fails("explain", files / "plan.json", code=2)


def test_a_file_that_is_no_machine(files):
    plan = files / "plan.json"
    for words in (("plan", plan), ("diff", plan, plan)):
        assert "is not a machine's file" in fails(*words, "--machine", plan)
        assert "no such file" in fails(*words, "--machine", files / "none").lower()


def test_advice_is_by_time(files):
    known = files / "machine.json"
    for words in (("--advice",), ("--advice", "--passes")):
        assert ok("plan", files / "plan.json", *words, "--machine", known)
    data = json.loads(ok("plan", files / "plan.json", "--advice", "--machine", known, "--json"))
    assert isinstance(data["advice"], list) and data["predicted"]["seconds"] > 0

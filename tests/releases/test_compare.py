"""`ggml-py compare` and `bisect`: two releases plan natively, in processes of their own."""

import json

import pytest
from cli_runs import fails, ok, run

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.scheduler.replay import replay_as_recorded

OLD, NEW = "0.17.0", ggml.enums.UPSTREAM
SETS = {
    "CPU": ("-d", "CPU"),
    "BLAS": ("-d", "BLAS", "-d", "CPU"),
    "partly": ("-d", "sim:gpu0,profile=rtx4090", "-d", "CPU", "-ngl", "1"),
    "two": ("-d", "sim:gpu0,profile=cuda", "-d", "sim:gpu1,profile=cuda", "-d", "CPU", "-ngl", "9"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("releases")
    write_llama(folder / "m.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    return folder


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("devices", SETS)
def test_a_graph_planned_again_with_recorded_answers_is_planned_the_same(folder, devices, n):
    path = folder / f"{devices}-{n}.json.gz"
    ok("plan", folder / "m.gguf", *SETS[devices], "-n", n, "-o", path)
    plan = ggml.Plan.from_json(path)
    again = replay_as_recorded(plan)
    assert not plan.diff(again), plan.diff(again)
    assert [s.inputs for s in again.outcome.splits] == [s.inputs for s in plan.outcome.splits]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("compare", "--upstream", NEW), 2, "1 release given: name two with --upstream"),
        (("compare", "--upstream", NEW, "--upstream", "7"), 1, "'7' is not a known release"),
        (("compare", "--upstream", NEW, "--upstream", NEW), 1, "are the same build"),
        (("compare", "--upstream", NEW, "--upstream", OLD, "none.gguf"), 2, "none.gguf: no such"),
        (("bisect", "--good", NEW, "--bad", NEW), 1, "are one release: name two"),
        (("bisect", "--good", OLD, "--bad", NEW, "--that", "fast"), 1, "'fast' is no condition"),
    ],
)
def test_mistakes(words, code, error):
    assert error in fails(*words, code=code)


def test_a_saved_plan_takes_options_with_devices_only(folder):
    path = folder / "saved.json.gz"
    ok("plan", folder / "m.gguf", "-o", path)
    words = ("compare", "--upstream", OLD, "--upstream", NEW, path, "-ngl", "3")
    assert "is a saved plan, which takes options only with -d" in fails(*words, code=2)


@pytest.mark.thorough("builds")
def test_the_rules_that_changed_are_found_natively(folder):
    ok("build", "--upstream", OLD)
    done = run("compare", "--upstream", OLD, "--upstream", NEW, "--jobs", "2", "--json")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    found = {row["case"]: [c["what"] for c in row["changes"]] for row in data["cases"]}
    assert found == {
        "attention sinks in host memory": ["ignore_weights"],
        "a split with 70 inputs": ["input_limit"],
        "graph inputs of a pipeline": ["graph_inputs_pass"],
    }
    # Upstream's scheduler of either release and the reference by its rules: equal plans.
    assert all(row["reference_agrees"] == [True, True] for row in data["cases"])
    allowed = folder / "allowed"
    allowed.write_text("attention *  # known\na split with 70 inputs\ngraph inputs*\n")
    assert "3 of these are in" in ok(
        "compare", "--upstream", OLD, "--upstream", NEW, "--allow", allowed
    )


@pytest.mark.thorough("builds")
def test_a_model_is_planned_by_each_release(folder):
    ok("build", "--upstream", OLD)
    words = ("compare", "--upstream", OLD, "--upstream", NEW, folder / "m.gguf", *SETS["partly"])
    assert "0 of 1 case differ" in ok(*words)
    error = fails(*words, "--nonsense", "3", code=1)
    assert "neither release has a plan" in error
    assert "No such option '--nonsense'" in error

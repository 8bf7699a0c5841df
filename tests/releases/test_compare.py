"""`ggml-py compare` and `bisect`: two releases plan natively, in processes of their own."""

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ggml_py as ggml
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.releases import Made, bisect, planned_cases, rule_cases
from ggml_py.scheduler.as_recorded import replay_as_recorded
from ggml_py.scheduler.observed import Observed
from ggml_py.trace import reference
from ggml_py.trace.reference import CannotPlanError
from ggml_py.trace.rules import RELEASES, find_release

from ..support import doc_pages
from ..support.cli_runs import fails, ok, run

OLD, NEW = "0.17.0", ggml.enums.UPSTREAM
REPO = Path(__file__).resolve().parents[2]
SETS = {
    "CPU": ("-d", "CPU"),
    "BLAS": ("-d", "BLAS", "-d", "CPU"),
    "partly": ("-d", "sim:gpu0,profile=rtx4090", "-d", "CPU", "-ngl", "1"),
    "two": ("-d", "sim:gpu0,profile=cuda", "-d", "sim:gpu1,profile=cuda", "-d", "CPU", "-ngl", "9"),
}  # fmt: skip


RECORD = json.loads((REPO / "benchmarks" / "results" / "release_rules.json").read_text())
# What a release says to more inputs than it has room for, as the benchmark saw it.
(REFUSED,) = {
    text.removeprefix("no plan: ").removesuffix(" → plans it")
    for _case, _old, _new, kind, text, _first in RECORD["changes"] if kind == "error"
}  # fmt: skip


def blocks():
    """The page's commands and what they print."""
    page = (REPO / "docs" / "RELEASES.md").read_text()
    return re.findall(r"(?s)```\n\$ ggml-py (.*?)\n(.*?)```", page)


def planned_by_rules(labels, cases, *_more, build=True):
    """In place of processes: the reference's plans by the rules of each release."""
    found = []
    for label in labels:
        release = find_release(label)
        found.append([])
        for case in cases:
            try:
                for plan in (*case.earlier, case.plan):
                    settings = plan.settings._replace(upstream=release.ggml, build=f"{label}-0")
                    capture = replace(plan.capture, settings=settings)
                    made = Made(ggml.Plan(capture, reference.plan(capture).outcome))
            except CannotPlanError:
                made = Made(None, REFUSED)
            found[-1].append(made)
    return found


@pytest.fixture
def by_rules(monkeypatch):
    for module in (sys.modules["ggml_py.releases.compare"], sys.modules["ggml_py.releases.bisect"]):
        monkeypatch.setattr(module, "plans_under", planned_by_rules)
        monkeypatch.setattr(module, "prepared", lambda release, _build=True: release)


def test_bisect_asks_and_says_what_the_page_shows(by_rules):
    command, shown = blocks()[1]
    verb, _good, good, _bad, bad, dashes, *that = shlex.split(command)
    assert (verb, dashes) == ("bisect", "--")
    found = bisect(good, bad, rule_cases(), " ".join(that))
    # What the two releases do besides planning was seen by the benchmark, natively.
    (row,) = found.comparison.different  # both refuse the cases that have no plan
    seen = [
        f"  {kind}: {text}\n" for case, old, new, kind, text, _first in RECORD["changes"]
        if (case, old, new) == (row.case, found.last, found.first) and kind in ("memory", "run")
    ]  # fmt: skip
    assert seen
    rule = f"  rule: {row.changes[-1].text}\n"
    assert f"{found}\n".replace(rule, rule + "".join(seen)) == shown


@pytest.mark.parametrize(
    ("good", "bad", "that", "last", "first"),
    [
        ("0.9.4", "0.26.0", "copies < 3", "0.17.0", "0.18.0"),
        ("0.26.0", "0.9.4", "splits > 2", "0.24.0", "0.23.0"),
        ("0.24.0", "0.26.0", "", "0.24.0", "0.25.3"),
        ("0.23.0", "0.24.0", "", "0.23.0", "0.24.0"),
        ("0.26.0", "0.9.4.p0.2.4", "fattn not on CPU", "0.18.0", "0.17.0"),
    ],
)
def test_bisect_finds_the_release_in_either_direction(by_rules, good, bad, that, last, first):
    cases = rule_cases()[: 1 if that.startswith("copies") else 3]
    found = bisect(good, bad, cases, that)
    assert (found.last, found.first) == (last, first)
    assert [release for release, _held in found.tried[:2]] == [good, bad]
    assert found.comparison.different


def test_bisect_times_each_release_by_turns_with_the_first(by_rules, monkeypatch):
    pairs = []

    def timed(labels, cases, *more, build=True, rounds=0):
        pairs.append((labels, rounds))
        rows = planned_by_rules(labels, cases, *more)
        newest_first = [release.label for release in RELEASES]
        slow = [newest_first.index(label) <= newest_first.index("0.18.0") for label in labels]
        taken = [(2e-3 if one else 1e-3) + 1e-6 * labels.index(labels[-1]) for one in slow]
        return [
            [made._replace(observed=Observed({}, {}, (), 1, (), seconds=(s,) * rounds))
             for made in row] for s, row in zip(taken, rows, strict=True)
        ]  # fmt: skip

    monkeypatch.setattr(sys.modules["ggml_py.releases.bisect"], "plans_under", timed)
    found = bisect("0.9.4", "0.26.0", rule_cases()[:1], "time > 1.5")
    assert (found.last, found.first) == ("0.17.0", "0.18.0")
    # What is compared was timed together; the first release alone was only planned.
    together = [labels for labels, rounds in pairs if rounds == 10]
    assert [labels[0] for labels in together[:-1]] == ["0.9.4"] * (len(found.tried) - 1)
    assert together[-1] == ["0.17.0", "0.18.0"]
    assert "a compute takes 2.00 times as long" in str(found)


def test_bisect_refuses_what_does_not_turn(by_rules):
    with pytest.raises(ValueError, match=r"does not hold for 0\.26\.0, so nothing turns"):
        bisect("0.9.4", "0.26.0", rule_cases(), "splits > 400")
    with pytest.raises(ValueError, match=r"already holds for 0\.9\.4"):
        bisect("0.9.4", "0.26.0", rule_cases(), "splits > 0")
    with pytest.raises(ValueError, match="no plan has a node 'ffn'"):
        bisect("0.9.4", "0.26.0", rule_cases(), "ffn on CPU")
    with pytest.raises(ValueError, match="no backend 'gpu7', only gpu0, CPU"):
        bisect("0.9.4", "0.26.0", rule_cases(), "fattn on gpu7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("releases")
    write_llama(folder / "m.gguf", LlamaSpec(n_layer=2, n_vocab=512))
    return folder


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("devices", SETS)
def test_a_graph_planned_again_with_recorded_answers_is_planned_the_same(folder, devices, n):
    path = folder / f"{devices}-{n}.json.gz"
    ok("plan", folder / "m.gguf", *SETS[devices], "--n-tokens", n, "-o", path)
    plan = ggml.Plan.from_json(path)
    again = replay_as_recorded(plan)
    assert not plan.diff(again), plan.diff(again)
    assert [s.inputs for s in again.outcome.splits] == [s.inputs for s in plan.outcome.splits]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("compare", "--upstream", NEW), 2, "1 release given: name two with --upstream"),
        (("compare", "--upstream", NEW, "--upstream", "7"), 1, "--upstream 7 is not a known"),
        (("compare", "--upstream", "9.9.9"), 1, "--upstream 9.9.9 is not a known release"),
        (("bisect", "--good", "9.9.9", "--bad", NEW), 1, "--good 9.9.9 is not a known release"),
        (("compare", "--upstream", NEW, "--upstream", NEW), 1, "are the same build"),
        (("compare", "--upstream", NEW, "--upstream", OLD, "none.gguf"), 1, "none.gguf: no such"),
        (("bisect", "--good", OLD, "--bad", NEW, "--"), 2, "expected a condition behind --"),
        (("compare", "--upstream", NEW, "--upstream", OLD, "-ngl", "3"), 2, "comes before -ngl"),
        (("bisect", "--good", NEW, "--bad", NEW), 1, "are one release: name two"),
        (("bisect", "--good", OLD, "--bad", NEW, "--", "fast"), 1, "'fast' is no condition"),
    ],
)
def test_mistakes(words, code, error):
    assert error in fails(*words, code=code)


@pytest.mark.thorough("builds")
def test_what_cannot_be_built_is_skipped_by_git_bisect(tmp_path):
    """Status 1 would call such a commit bad."""
    (tmp_path / "include").mkdir()
    (tmp_path / "src").mkdir()
    for name in ("include/ggml.h", "src/ggml.c", "CMakeLists.txt"):
        (tmp_path / name).write_text("")
    words = ("compare", "--upstream", NEW, "--source", tmp_path)
    assert f"{tmp_path} could not be built: see above" in fails(*words, code=125)


def test_options_are_those_of_plan(folder):
    words = ("compare", "--upstream", OLD, "--upstream", NEW, folder / "m.gguf")
    assert "No such option '--nonsense'" in fails(*words, "--nonsense", "3", code=2)
    assert "'many' is not a valid int" in fails(*words, "--n-tokens", "many", code=2)


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
    found = {
        row["case"]: [c["what"] for c in row["changes"] if c["kind"] != "pass"]
        for row in data["cases"]
    }
    known = {
        "attention sinks in host memory": ["ignore_weights"],
        "a split with 70 inputs": ["input_limit"],
        "a split with 70 inputs, after one with 31": [],  # the older one has no plan
        "graph inputs of a pipeline": ["graph_inputs_pass"],
        "a reserve with pins": [], "experts in host memory": [],
    }  # fmt: skip
    assert {case: found[case] for case in known} == known
    assert "unknown" not in {c["kind"] for row in data["cases"] for c in row["changes"]}
    # What only a run shows: which experts are copied.
    (experts,) = (row for row in data["cases"] if row["case"].startswith("experts"))
    assert any("'blk.0.ffn_up_exps.weight' to gpu0 16.5 KiB → 128.0 KiB" in change["text"]
               for change in experts["run"])  # fmt: skip
    planned = [row for row in data["cases"] if not any(row["errors"])]
    (refused,) = (row for row in data["cases"] if row["case"].endswith("after one with 31"))
    # Upstream's scheduler of either release and the reference by its rules: equal plans.
    assert all(row["reference_agrees"] == [True, True] for row in planned)
    assert (refused["errors"], refused["reference_agrees"]) == ([REFUSED, ""], [None, True])
    allowed = folder / "allowed"
    names = [row["case"] for row in data["cases"] if row["differs"]]
    allowed.write_text("".join(f"{name}\n" for name in names))
    assert f"{len(names)} of these are in" in ok(
        "compare", "--upstream", OLD, "--upstream", NEW, "--allow", allowed
    )


@pytest.mark.thorough("builds")
def test_computes_are_timed_where_nothing_is_simulated(folder):
    ok("build", "--upstream", OLD)
    path = folder / "saved.json.gz"
    ok("plan", folder / "m.gguf", *SETS["CPU"], "-o", path, "--force")
    partly = folder / "partly.json.gz"
    ok("plan", folder / "m.gguf", *SETS["partly"], "-o", partly, "--force")
    words = ("compare", "--upstream", OLD, "--upstream", NEW, path, partly, "--times", "8")
    real, simulated = json.loads(run(*words, "--json").stdout)["cases"]
    assert [len(side["seconds"]) for side in real["observed"]] == [8, 8]
    assert real["time"]["ratio"] > 0 and 0 < real["time"]["p"] <= 1
    assert 0 <= real["output_error"]["error"] < 1e-4 and real["output_error"]["n"]
    assert [side["untimed"] for side in simulated["observed"]] == [
        "gpu0 is simulated here, on the CPU"
    ] * 2
    assert simulated["time"] is None


@pytest.mark.thorough("builds")
def test_a_model_is_planned_by_each_release(folder):
    ok("build", "--upstream", OLD)
    words = ("compare", "--upstream", OLD, "--upstream", NEW, folder / "m.gguf", *SETS["partly"])
    done = run(*words, "--json")
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["cases"]
    # A later llama.cpp takes embeddings beside tokens: nodes are added, and none moves.
    assert [change["kind"] for change in row["changes"]] == ["graph"]
    assert not [c for c in row["diff"]["changed"] if c["is_computed"]]
    assert row["reference_agrees"] == [True, True]


@pytest.mark.thorough("builds")
def test_the_page_shows_what_compare_prints():
    ok("build", "--upstream", OLD)
    command, shown = blocks()[0]
    assert doc_pages.shows(shown, run(*shlex.split(command)).stdout)


def test_a_release_that_is_not_built_and_the_answer_that_needs_none(monkeypatch):
    def select(_release):
        raise ggml.NotBuiltError("GGML_PY_UPSTREAM=0.9.4: no such build here")

    monkeypatch.setattr(planned_cases, "select", select)
    with pytest.raises(ggml.NotBuiltError) as said:
        planned_cases.prepared("0.9.4", build=False)
    assert "0.9.4 is not built here: leave out --no-build" in str(said.value)
    assert "ggml-py plan MODEL --what-if upstream=0.9.4" in str(said.value)
    assert "GGML_PY_UPSTREAM" not in str(said.value)

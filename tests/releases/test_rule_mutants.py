"""Changes of upstream's scheduler, one rule at a time, and the reasons why some are not noticed."""

import json
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "benchmarks"))

import c_mutants  # noqa: E402
import rule_mutants  # noqa: E402
import same_plans  # noqa: E402

RECORD = json.loads((REPO / "benchmarks" / "results" / "rule_mutants.json").read_text())
UPSTREAM = """\
static int place(int n) {
    int best = 0;
    for (int i = 0; i < n; i++) {
        if (i > best && i != 3) {
            best = i;
        }
    }
    return best;
}
"""
OURS = UPSTREAM.replace("    return", "    seen(best);\n    counted(best + 1);\n    return")
OURS = OURS.replace("best = i;", "best = noted(i);")


def changes(text, **skipped):
    return c_mutants.mutants_of(text, ["place"], **skipped)


def test_each_condition_and_statement_is_changed():
    found = {str(one).partition(": ")[2] for one in changes(UPSTREAM)}
    assert {
        "negated: i > best && i != 3 → !(i > best && i != 3)",
        "without i > best: i > best && i != 3 → i != 3",
        "> is >=: i > best && i != 3 → i >= best && i != 3",
        "dropped: best = i → (nothing)", "one less: i < n → i < n - 1", "0 is 1: 0 → 1",
    } <= found  # fmt: skip
    (one,) = [one for one in changes(UPSTREAM) if one.how == "dropped"]
    assert c_mutants.single(UPSTREAM, one) == UPSTREAM.replace("best = i", "")


def test_lines_that_we_added_or_edited_are_not_changed():
    added = c_mutants.added_lines(OURS, UPSTREAM)
    assert added == {5, 8, 9}
    of = [(one.how, one.text) for one in changes(OURS, skipped=added)]
    assert of == [
        (one.how, one.text) for one in changes(UPSTREAM) if "best = i" not in one.site.text
    ]


def test_a_reason_covers_a_change_by_all_of_its_words(monkeypatch):
    break_, zero = "dropped: best = i", ("0 is 1: 0 → 1", "» int best = 0;")
    reason = same_plans.Reason("same", "why", "place", ((break_, "i != 3"), zero))
    monkeypatch.setattr(same_plans, "REASONS", (reason,))
    monkeypatch.setattr(rule_mutants, "REASONS", (reason,))
    covered = [one for one in changes(UPSTREAM) if same_plans.reasons_of(one)]
    assert sorted((one.how, one.line) for one in covered) == [("0 is 1", 2), ("dropped", 5)]
    reasons = {one.number: same_plans.reasons_of(one) for one in covered}
    assert rule_mutants.misfits([], reasons) == []
    assert "too broad: why" in rule_mutants.misfits(covered[:1], reasons)[0]
    assert rule_mutants.misfits([], {}) == ["covers nothing: why"]


@pytest.mark.parametrize("reason", same_plans.REASONS, ids=lambda one: one.function)
def test_reasons_are_those_of_the_record(reason):
    """Each is about a function that is changed, and has changes that the record's run missed."""
    assert any(reason.function in names for names in rule_mutants.FUNCTIONS.values())
    (row,) = [
        one for one in RECORD["not_noticed"] if (one["kind"], one["why"]) == reason[:2]
    ]  # fmt: skip
    assert any(text.startswith(f"{reason.function}: ") for text in row["changes"])


def test_no_change_is_missed_without_a_reason():
    kinds = RECORD["not_noticed_by_kind"]
    assert RECORD["equal"] and not kinds["unknown"]
    assert RECORD["n_changes"] == RECORD["n_noticed"] + sum(kinds.values())
    known = {one[:2] for one in same_plans.REASONS}
    assert {(one["kind"], one["why"]) for one in RECORD["not_noticed"]} == known

"""Plan files that were tampered with: refused, or answering all that a plan can be asked."""

import sys
from pathlib import Path

import pytest

import ggml_py as ggml

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import fuzz_plan
import search


@pytest.mark.thorough("sample")
def test_mutants_are_refused_or_answer():
    report = search.run(Path(fuzz_plan.__file__), fuzz_plan.SEARCH, 0, 800)
    assert report.findings == []
    assert min(report.outcomes["refused"], report.outcomes["asked"]) > 100


def test_a_mutant_is_a_number():
    assert fuzz_plan.mutant(3) == fuzz_plan.mutant(3)
    assert fuzz_plan.mutant(3) != fuzz_plan.mutant(4)


def test_what_a_plan_should_not_do_is_a_finding(monkeypatch):
    def wrong(_plan):
        raise IndexError("odd")

    asked = next(seed for seed in range(100) if fuzz_plan.case(seed) == "asked")
    monkeypatch.setattr(ggml.Plan, "headline", wrong)
    with pytest.raises(IndexError, match="odd"):
        fuzz_plan.case(asked)

"""Plan files that were tampered with: refused, or answering all that a plan can be asked."""

import importlib.util
import sys
from pathlib import Path

import pytest

import ggml_py as ggml

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_plan.py"


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz_plan", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough("sample")
def test_mutants_are_refused_or_answer(fuzz):
    report = fuzz.fuzz(800)
    assert report.findings == []
    assert min(report.outcomes["refused"], report.outcomes["asked"]) > 100


def test_a_mutant_is_a_number(fuzz):
    assert fuzz.mutant(3) == fuzz.mutant(3)
    assert fuzz.mutant(3) != fuzz.mutant(4)


def wrong(_plan):
    raise IndexError("odd")


def forever(_plan):
    while True:
        pass


@pytest.mark.parametrize(("method", "error"), [(wrong, "IndexError: odd"), (forever, "Late")])
def test_what_a_plan_should_not_do_is_a_finding(fuzz, monkeypatch, method, error):
    monkeypatch.setattr(ggml.Plan, "headline", method)
    asked = next(seed for seed in range(100) if fuzz.outcome_of(seed, 0.2)[0] == "finding")
    outcome, message = fuzz.outcome_of(asked, 0.2)
    assert outcome == "finding"
    assert error in message

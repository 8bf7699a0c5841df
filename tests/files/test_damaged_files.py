"""Damaged files of every kind: refused with a clear error, or answering and computing."""

import sys
from pathlib import Path

import pytest

import ggml_py as ggml

from ..support import gguf_mutator, plan_mutator, record_mutator

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import files
import search

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the search reads /proc")


@pytest.mark.thorough("sample")
def test_a_sample_of_damaged_files():
    report = search.run(Path(files.__file__), files.SEARCH, 0, 1000)
    assert report.findings == []
    for kind in files.KINDS:
        name = kind.__name__
        assert report.outcomes[f"{name} asked"] and report.outcomes[f"{name} refused"], name


@pytest.mark.thorough("long")
@pytest.mark.parametrize("make", [gguf_mutator.mutant, plan_mutator.mutant, record_mutator.mutant])
def test_a_mutant_is_a_number(make):
    assert make(3) == make(3)
    assert make(3) != make(4)


@pytest.mark.thorough("long")
def test_what_a_file_should_not_do_is_a_finding(monkeypatch):
    def wrong(_plan):
        raise IndexError("odd")

    monkeypatch.setattr(ggml.Plan, "headline", wrong)
    with pytest.raises(IndexError, match="odd"):
        files.ask(plan_mutator.plans()[0], files.random.Random(1))

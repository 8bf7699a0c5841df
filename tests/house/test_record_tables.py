"""The docs show what the records of benchmarks/results have."""

import json

from ..support.upstream_plans import KNOWN
from . import record_tables


def test_the_pages_have_the_records_figures():
    for page, text in record_tables.pages().items():
        assert page.read_text() == text, "python tests/house/record_tables.py"


def test_each_backend_was_asked_1200_cases_and_the_device_agreed():
    records = record_tables.records()
    assert len(records) >= 3 and {"0.26.0", "0.21.0"} <= records.keys()
    assert not any(record["findings"] for record in records.values())
    assert all(n >= 1200 for n, _, _ in record_tables.counted(records["0.26.0"]).values())
    assert record_tables.counted(records["0.26.0"]).keys() == record_tables.OF_BACKEND.keys()


def test_every_card_was_planned_as_libllama_plans_it():
    """18 models and more, of each backend that is cut."""
    cards = record_tables.promised()["cards"]
    backends = record_tables.OF_BACKEND
    assert cards.keys() == set(backends.values())
    for card, cells in cards.items():
        assert len(cells) >= 18 and set(cells.values()) <= {True, "refused"}, card


def test_any_model_is_planned_as_an_unmodified_build_plans_it():
    """What differs is named (docs/ARCHITECTURES.md): one that upstream plans and cannot compute."""
    found = record_tables.any_model()
    assert len(found) >= 130
    wrong = {
        (name, setting): said for name, row in found.items() for setting, said in row.items()
        if said != "equal" and not said.startswith("refused: ")
    }  # fmt: skip
    assert all(said.startswith(KNOWN.get(what, "none")) for what, said in wrong.items()), wrong


def test_fit_print_is_upstreams_for_every_model():
    record = json.loads((record_tables.RESULTS / "fit_print.json").read_text())
    assert record["equal"] and record["different"] == [] and record["models"] >= 130
    for what, counts in record["rows"].items():
        assert set(counts) <= {"equal", "refused by both"} and counts["equal"] >= 100, what

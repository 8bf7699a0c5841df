"""docs/PROFILES.md shows the counts of benchmarks/cards.py, for three releases."""

import card_table


def test_the_page_has_the_records_counts():
    stale = "python tests/house/card_table.py"
    assert card_table.PAGE.read_text() == card_table.page(), stale


def test_each_backend_was_asked_1200_cases_and_the_device_agreed():
    records = card_table.records()
    assert len(records) >= 3 and {"0.26.0", "0.21.0"} <= records.keys()
    assert not any(record["findings"] for record in records.values())
    assert all(n >= 1200 for n, _, _ in card_table.counted(records["0.26.0"]).values())
    assert card_table.counted(records["0.26.0"]).keys() == card_table.OF_BACKEND.keys()

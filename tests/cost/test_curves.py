"""Seconds between samples are on straight lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggml_py.cost.curves import Curve

from ..support.measured import sample


def curve(*samples):
    return Curve([(one.at, i, one) for i, one in enumerate(samples)])


def test_between_two_samples_time_is_a_line():
    found = curve(sample("k", (100,), 1.0), sample("k", (300,), 2.0)).read((200.0,))
    assert found.seconds == 1.5
    assert set(found.samples) == {0, 1}


def test_at_a_sample_only_that_one_counts():
    c = curve(sample("k", (100,), 1.0), sample("k", (300,), 2.0), sample("k", (900,), 7.0))
    assert c.read((300.0,)).seconds == 2.0
    assert c.read((900.0,)) == (7.0, 0.0, (2,))


def test_beyond_the_largest_the_last_line_goes_on_and_the_error_grows():
    c = curve(sample("k", (100,), 1.0), sample("k", (300,), 2.0))
    near, far = c.read((600.0,)), c.read((1200.0,))
    assert near.seconds == 3.5 and far.seconds == 6.5
    assert 0 < near.error < far.error


def test_below_the_smallest_a_constant_part_stays():
    c = curve(sample("k", (100,), 1.0), sample("k", (300,), 2.0))
    assert c.read((50.0,)).seconds == 0.75
    assert c.read((0.0,)).seconds == 0.5


def test_a_line_through_zero_is_not_left_below():
    # The first two samples would meet zero at 50: smaller ones still take their part.
    c = curve(sample("k", (100,), 1.0), sample("k", (150,), 2.0))
    assert c.read((25.0,)).seconds == 0.25


def test_one_sample_is_taken_in_proportion():
    found = curve(sample("k", (100,), 1.0)).read((400.0,))
    assert found.seconds == 4.0 and found.error == pytest.approx(0.08)


def test_the_last_coordinate_is_the_innermost():
    c = curve(
        sample("k", (1, 100), 1.0), sample("k", (1, 200), 2.0),
        sample("k", (3, 100), 10.0), sample("k", (3, 200), 20.0),
    )  # fmt: skip
    assert c.read((2.0, 150.0)).seconds == pytest.approx((1.5 + 15.0) / 2)


def test_samples_without_coordinates_are_averaged():
    assert curve(sample("k", (), 1.0), sample("k", (), 3.0)).read(()).seconds == 2.0


def test_the_median_counts_and_the_spread_is_the_error():
    one = sample("k", (100,), 1.0, 1.0, 1.2, 9.0, 1.1)
    found = curve(one).read((100.0,))
    assert found.seconds == 1.1
    assert found.error == one.spread == pytest.approx(0.1 / 1.1)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-6, 1.0)), min_size=2, max_size=6,
                unique_by=lambda row: row[0]), st.floats(0, 2e6))  # fmt: skip
def test_time_is_never_negative_and_between_neighbours_inside(rows, x):
    rows.sort()
    found = curve(*(sample("k", (at,), s) for at, s in rows)).read((x,))
    assert found.seconds >= 0
    for (a, s), (b, t) in pairwise(rows):
        if a <= x <= b:
            assert min(s, t) * (1 - 1e-9) <= found.seconds <= max(s, t) * (1 + 1e-9)

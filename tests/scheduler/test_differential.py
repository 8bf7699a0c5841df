"""ggml's own scheduler and the reference agree, on random graphs over random devices.

`benchmarks/differential.py` runs many more, on other releases too.
"""


import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..support.scheduler_checks import check

ROUNDS = settings(
    max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.mark.thorough("long")
@ROUNDS
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_the_reference_plans_as_ggml_does(seed, max_nodes):
    check(seed, max_nodes)


@settings(ROUNDS, max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_the_reference_plans_some_graphs_as_ggml_does(seed, max_nodes):
    check(seed, max_nodes)

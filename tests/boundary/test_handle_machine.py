"""Random programs over handles of every kind: one after the other here, on threads in
benchmarks/handles.py, of which a sample is run."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from ggml_py.boundary.handle import LIVE

from ..support import handle_world

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import handles  # noqa: E402
import search  # noqa: E402

FOLDER = handle_world.folder()


class Handles(RuleBasedStateMachine):
    """On one thread nothing is in the middle of anything: `BusyError` is never right."""

    def __init__(self) -> None:
        super().__init__()
        gc.collect()
        self.before = dict(LIVE)
        self.world = handle_world.World(0, FOLDER)

    @rule(action=st.sampled_from(handle_world.ACTIONS), seed=st.integers(0, 1 << 20))
    def act(self, action, seed):
        with contextlib.suppress(*handle_world.ALONE):
            action(self.world, random.Random(seed))

    def teardown(self) -> None:
        self.world.close(random.Random(0))
        del self.world
        for _ in range(3):  # what a cycle's finalizers held ends with the next collection
            gc.collect()
        assert handles.more(self.before) == {}


_SETTINGS = {"stateful_step_count": 40, "deadline": None, "derandomize": True}
_SETTINGS["suppress_health_check"] = list(hypothesis.HealthCheck)
TestHandles = Handles.TestCase
TestHandles.settings = hypothesis.settings(max_examples=8, **_SETTINGS)


@pytest.mark.thorough("sample")
def test_more_of_the_same():
    many = hypothesis.settings(max_examples=30, **_SETTINGS)
    hypothesis.stateful.run_state_machine_as_test(Handles, settings=many)


@pytest.mark.thorough("sample")
def test_threads_that_share_handles():
    report = search.run(BENCHMARKS / "handles.py", handles.SEARCH, 0, 400)
    assert report.cases == 400
    assert report.findings == []


@pytest.mark.thorough("sample")
def test_a_pointer_that_is_no_reference_would_be_noticed():
    """The same with handles that close() frees at once: of 1,000 cases 30 were findings, 23 of them
    deaths (22 November 2026)."""
    planted = Path(__file__).parents[1] / "support" / "handles_planted.py"
    for first in range(0, 600, 40):
        if search.run(planted, handles.SEARCH, first, first + 40).findings:
            return
    pytest.fail("600 cases, and nothing was noticed")

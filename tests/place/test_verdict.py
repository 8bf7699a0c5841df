"""What is certain, and what is not: verdicts about ways with made-up times."""

from types import SimpleNamespace

import pytest

from ggml_py.cost.bench_rows import BenchRow
from ggml_py.place.evaluate import Way, WorkloadTime
from ggml_py.place.placing_flags import Flags
from ggml_py.place.verdict import judge
from ggml_py.place.workload import Workload

COST = SimpleNamespace(splits=(), copies=(), unknown=(), missing_copies=())


def way(seconds, late=0.0, **flags):
    row = BenchRow(512, 0, 0, seconds, (seconds, seconds), ((512, 0, COST),), {}, late)
    return Way(Flags(n_threads=1, **flags), (WorkloadTime(Workload(512, 0), row, None),), (), {})


def test_all_changes_together_may_be_certain_where_the_simplest_is_not():
    given, simple, all_of_them = way(1.0), way(0.92, n_ubatch=64), way(0.8, flash_attn="on")
    assert judge(given, simple, 0.01).keep
    verdict = judge(given, simple, 0.01, quickest=all_of_them)
    assert not verdict.keep and verdict.chosen is all_of_them
    assert "1.25 times as fast" in verdict.text
    assert judge(given, simple, 0.01, quickest=way(0.9, flash_attn="on")).chosen is given


@pytest.mark.parametrize("before, after, keep", ((0.0, 0.0, False), (0.0, 0.5, True),
                                                 (0.5, 0.5, False), (0.5, 0.0, False)))  # fmt: skip
def test_what_a_gpu_may_take_more_is_not_certain_to_be_gained(before, after, keep):
    """Of a GPU that both use it is the same."""
    assert judge(way(1.0, before), way(0.6, after, n_gpu_layers=1), 0.01).keep == keep

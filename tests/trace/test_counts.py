"""Copied and live bytes: every place that shows them has the same counts, on a corpus of plans."""

import json
import random

import pytest

import ggml_py as ggml
from ggml_py.export import timeline
from ggml_py.export.json import plan_file as to_json
from ggml_py.export.rows import copy_rows, split_rows
from ggml_py.trace.answers.passing import passing
from ggml_py.trace.facts import Facts, nbytes

from ..support import graphs, random_graphs

N = 120


@pytest.fixture(scope="module")
def plans():
    """Plans of random graphs: views, pins, several devices, pipelines."""
    found = []
    for seed in range(N):
        world = random_graphs.build(random.Random(seed))
        try:
            world.pin()
            found.append(world.scheduler.plan(world.graphs[0]))
            found[-1].layout  # noqa: B018  read while the scheduler is there
        except (ggml.ArgumentError, ggml.AbortError):
            continue
        finally:
            world.close()
    assert len(found) > 0.8 * N
    return found


def test_copied_bytes_are_counted_alike(plans):
    n_copying = 0
    for plan in plans:
        n, total = plan.n_inputs, plan.copy_bytes
        counts = {
            "splits": (sum(len(s.inputs) for s in plan.splits),
                       sum(s.copy_bytes for s in plan.splits)),
            "rows of splits": (sum(r.n_copies for r in split_rows(plan)),
                               sum(r.copy_bytes for r in split_rows(plan))),
            "rows of copies": (len(copy_rows(plan)), sum(r.nbytes for r in copy_rows(plan))),
            "findings": (len(Facts(plan, 0).copies), nbytes(Facts(plan, 0).copies)),
            "diff": (plan.diff(plan).before.n_copies, plan.diff(plan).before.copy_bytes),
            "passing": (n, passing(plan).link),
            "file": tuple(getattr(to_json.parse(json.dumps(plan.to_json()).encode(), "p"), name)
                          for name in ("n_inputs", "copy_bytes")),
        }  # fmt: skip
        assert set(counts.values()) == {(n, total)}, counts
        n_copying += n > 0
    assert n_copying > N / 2


def test_a_record_counts_as_its_plans_do(tmp_path):
    with ggml.record(tmp_path / "r.ggrec"):
        for make in graphs.CASES.values():
            case = make()
            case.scheduler.plan(case.graph)
            case.scheduler.alloc_graph(case.graph)
            case.close()
    recorded = list(ggml.Record.read(tmp_path / "r.ggrec"))
    assert len(recorded) >= len(graphs.CASES)
    for one in recorded:
        assert (one.n_copies, one.copy_bytes) == (one.plan.n_inputs, one.plan.copy_bytes)


def test_live_bytes_are_counted_alike(plans):
    """The timeline's are those of the compute buffers, at each node."""
    n_known = 0
    for plan in plans:
        shown = {}
        for level in timeline.of_plan(plan).levels:
            shown.setdefault(level.start, {})[level.buft] = level.nbytes
        if not plan.memory.buffers:
            assert shown == {}
            continue
        at = {id: step for step, id in enumerate(plan.memory.layout.order)}
        computed = [n for n in plan.order if not n.is_view_op]
        expected = [
            {b.name: b.live[at[n.id]] for b in plan.memory.buffers} for n in computed
        ]
        assert [shown[start] for start in sorted(shown)] == expected
        for buffer in plan.memory.buffers:
            assert max(buffer.live, default=0) == buffer.peak <= buffer.size
        n_known += bool(computed)
    assert n_known > N / 2

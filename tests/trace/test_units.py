"""Numbers that people can read: no exponent, intervals that contain their number, no total of what
was not measured. Each place that prints times, rates or bytes is fed with extreme values."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggml_py.advice.finding import Finding
from ggml_py.cli import cost as cli_cost
from ggml_py.cli import place as cli_place
from ggml_py.conformance.divergence import NodeError
from ggml_py.cost.bench_rows import BenchRow
from ggml_py.cost.cost import CopyCost, Cost, NodeCost, SplitCost
from ggml_py.cost.machine import Machine
from ggml_py.cost.time_difference import PredictedTime, predicted
from ggml_py.cost.unmeasured import unmeasured
from ggml_py.export.predicted_times import predicted_times
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.releases.outputs import TimeChange
from ggml_py.trace.answers.run_summary import _time
from ggml_py.trace.answers.shares import format_count
from ggml_py.trace.answers.sweep import told_time
from ggml_py.trace.planned import format_bytes
from ggml_py.trace.units import (
    format_error,
    format_interval,
    format_number,
    format_rate,
    format_rates,
    format_time,
    format_times,
)

from ..support.measured import knows_all

EXTREMES = (0.0, 1e-13, 3e-7, 9.996e-4, 0.9996, 1.0, 59.96, 12_345.6, 2.71e5, 1e9, 7e17, 1e30,
            math.inf)  # fmt: skip
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400, "": 1}
NUMBER = re.compile(r"([\d,.]+) ?(days|min|ns|µs|ms|h|s)?\b")


def readable(text):
    assert not re.search(r"\de[+]|\binf\b|\bnan\b", str(text)), text


def seconds_in(text):
    """The times in a text; a number without a unit has that of the next, or of the one before."""
    found = [(float(n.replace(",", "")), unit) for n, unit in NUMBER.findall(text)]
    units = [unit for _n, unit in found]
    for i, unit in enumerate(units):
        units[i] = unit or next((u for u in units[:i] if u), "")
    return [n * UNITS[unit] for (n, _unit), unit in zip(found, units, strict=True)]


@given(st.floats(1e-9, 1e3), st.floats(0, 1), st.floats(1, 1e6))
def test_a_printed_interval_contains_its_number(seconds, low, high):
    interval = seconds * low, seconds * high
    text = format_times(seconds, interval)
    readable(text)
    best, first, last = seconds_in(text)
    assert first <= best * (1 + 1e-9) and best <= last * (1 + 1e-9), text
    assert last >= interval[1] * (1 - 1e-6) and first <= interval[0] * (1 + 1e-6), text
    assert last <= interval[1] * 1.01 + 1e-12, text


@given(st.floats(1e-9, 1e12), st.floats(0, 1), st.floats(1, 1e6))
def test_a_printed_interval_contains_its_rate(rate, low, high):
    text = format_rate(rate, (rate * low, rate * high))
    readable(text)
    best, first, last = (float(n.replace(",", "")) for n in re.findall(r"[\d,.]*\d", text))
    assert first <= best <= last, text
    assert last >= rate * high * (1 - 1e-6), text


@given(st.floats(allow_nan=False, allow_infinity=True, min_value=0))
def test_no_number_has_an_exponent(n):
    for text in (format_number(n), format_time(n), format_times(n, (0.0, n)), format_rate(n),
                 format_interval(n, (0.0, n)), format_rates((0.0, n)),
                 format_error(n)):  # fmt: skip
        readable(text)


@pytest.mark.parametrize(
    ("seconds", "interval", "text"),
    [
        (1.2e-3, (1.1e-3, 1.3e-3), "1.2 ms (1.1 to 1.3)"),
        (1.36, (0.9, 1.9), "1.36 s (0.9 to 1.9)"),
        (2.9e-3, (0.0, 2.71e5), "2.9 ms (0 to 3.14 days)"),
        (0.9994, (0.999, 0.9999), "999 ms (999 ms to 1 s)"),
        (1e-3, (9.9e-4, math.inf), "1 ms (0.99 ms to no limit that is known)"),
        (0.0, (0.0, 0.0), "0 (0 to 0)"),
    ],
)
def test_times(seconds, interval, text):
    assert format_times(seconds, interval) == text


# --- every place that prints


def costs(plan, seconds, high, known=1.0):
    """A cost of `plan` in which a part of the nodes is known."""
    computed = [n for n in plan.nodes if n.is_computed]
    n_known = round(len(computed) * known)
    nodes = tuple(
        NodeCost(n.id, n.backend, seconds if i < n_known else None, 0.1, "bytes", None, ())
        for i, n in enumerate(computed)
    )
    copies = (CopyCost(0, 0, "CPU", "gpu0", 10, seconds, 0.1, "bytes", ()),)
    splits = (SplitCost(0, "CPU", seconds, (0.0, high), "bytes", 0.0, seconds),)
    machine = knows_all([plan])
    return Cost(plan, machine, nodes, copies, splits, seconds, (0.0, high), "bytes", {}, {}, high,
                seconds)  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("units") / "m.gguf"
    write_llama(path, LlamaSpec(n_layer=1, n_vocab=64))
    with load(path, n_ctx=256) as model:
        return model.plan(4)


@pytest.mark.parametrize("seconds", EXTREMES)
def test_every_printing_of_a_time_is_readable(seconds, plan, capsys):
    cost = costs(plan, min(seconds, 1e200), seconds * 1e9 or 1.0)
    row = BenchRow(512, 0, 0, seconds, (0.0, seconds * 1e9), ((4, 0, cost),))
    finding = Finding("GP102", "cost", "t", "t", "s", (), int(min(seconds, 1e18)))
    error = NodeError(0, "g", "n", "ADD", "f32", ("a", "b"), seconds, seconds, "", "")
    texts = [
        cost.headline(), repr(cost), predicted(cost), predicted_times(cost).compute,
        str(PredictedTime(1.0, min(seconds, 1e30), (0.0, 1.0), (0.0, seconds), (0, 0))),
        str(TimeChange(seconds, 2 * seconds, 2.0, 0.01, 8)) if 0 < seconds < math.inf else "",
        told_time((seconds, 0.0, seconds)), _time(min(seconds, 1e20) * 1e9),
        str(finding), str(finding).replace("t", ""),
        str(error), cli_place._rates(way(seconds), "gen"),
        format_bytes(min(seconds, 1e30)), format_count(min(seconds, 1e30)),
    ]  # fmt: skip
    object.__setattr__(finding, "seconds", seconds)
    texts.append(str(finding))
    cli_cost._show_plan(cost, False)
    cli_cost._show_rows([row], knows_all([plan]), "machine.json", (), None)
    texts.append(capsys.readouterr().out)
    for text in texts:
        readable(text)


def way(seconds):
    """A way whose generation takes so long."""
    rate = 1 / seconds if seconds else math.inf
    part = SimpleNamespace(tokens_per_second=lambda: {"gen": (rate, 0.0, rate * 1e6)})
    return SimpleNamespace(usable=True, parts=[part])


# --- what was not measured


@pytest.mark.parametrize(("known", "has_total"), [(1.0, True), (0.95, True), (0.5, False)])
def test_no_total_without_more_than_a_tenth(known, has_total, plan, capsys):
    cost = costs(plan, 2e-3, 1.0, known)
    share = unmeasured(cost)
    assert (share <= 0.1) == has_total or known == 0.95
    has_total = share <= 0.1
    said = [cost.headline(), predicted_times(cost).compute]
    cli_cost._show_rows(
        [BenchRow(8, 0, 0, 2e-3, (1e-3, 1.0), ((4, 0, cost),))], knows_all([plan]), "m", (), None
    )
    said.append(capsys.readouterr().out)
    for text in said:
        assert (f"{share:.0%} of the work" in text) != has_total, text
        if not has_total:
            assert "2 ms" not in text and "4000.00" not in text
    assert (predicted_times(cost).total < 0) != has_total
    assert cost.to_dict()["unmeasured"] == share
    if share:
        said = predicted(cost)
        assert "is not known: of" in said and f"{share:.0%} of the work" in said


def test_bytes_count_as_well_as_nodes(plan):
    """One product without a time may be most of the work."""
    cost = costs(plan, 1e-3, 1.0)
    heaviest = max(cost.nodes, key=lambda n: plan.nodes[n.id].record.nbytes)
    nodes = tuple(
        NodeCost(n.id, n.backend, None if n is heaviest else 1e-3, 0.1, "bytes", None, ())
        for n in cost.nodes
    )
    assert unmeasured(Cost(plan, cost.machine, nodes, (), cost.splits, 1.0, (0.0, 1.0), "bytes", {},
                           {}, 0.0, 1.0)) >= 1 / len(nodes)  # fmt: skip
    assert isinstance(cost.machine, Machine)

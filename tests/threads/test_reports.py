"""What we say of public reports, beside what llama.cpp printed for the people who made them.

Each is planned as llama.cpp's program with these flags would load it.
"""

from dataclasses import replace

import pytest

from ggml_py import llama

from ..support.reports import REPORTS

pytestmark = [pytest.mark.needs(release="default"), pytest.mark.thorough("programs")]
MIB = 1 << 20


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens a report's model; its header is written once."""
    folder, written = tmp_path_factory.mktemp("headers"), {}

    def open_model(report):
        if report.model not in written:
            written[report.model] = report.model.write(folder / f"{len(written)}.gguf")
        line = f"{report.program} -m {written[report.model]} -fit off -np 1 {report.flags}"
        return llama.open_command_line(line, devices=(*report.devices, "CPU"))

    return open_model


def printed_range(text):
    """The least and the largest number of bytes that a log prints so."""
    low = high = 0.0
    for number in text.split("+"):
        rounded = "." in number
        low += float(number) - 0.005 * rounded
        high += float(number) + (0.005 if rounded else 1)
    return low * MIB, high * MIB


def named(reports):
    return pytest.mark.parametrize("report", reports, ids=lambda report: report.name)


@named([report for report in REPORTS if report.printed])
def test_memory(report, opened):
    """Weights, caches and outputs on each device, to the precision of the log."""
    with opened(report) as model:
        rows = model.memory
    for device, sizes in report.printed.items():
        for what, printed in sizes.items():
            n_bytes = sum(getattr(row, what) for row in rows if row.device == device)
            low, high = printed_range(printed)
            assert low <= n_bytes <= high, (device, what, f"{n_bytes / MIB:.2f}", printed)


@named([report for report in REPORTS if report.splits])
def test_splits(report, opened):
    """Splits of the graphs that memory is reserved for: a prompt, and one token."""
    with opened(report) as model:
        plans = model.reserved_plan(), model.reserved_plan(1)
    assert tuple(len(plan.splits) for plan in plans) == report.splits


@named([report for report in REPORTS if report.refused])
def test_splits_where_the_card_refused_an_op(report, opened):
    """The pinned release, asked as if its card answered as the report's did."""
    with opened(report) as model:
        plan = model.reserved_plan()
    for device, op, n_splits in report.refused:
        assert len(plan.what_if(supports={(device, op): False}).splits) == n_splits


def test_a_figure_that_is_off_is_noticed(opened):
    """The comparison fails for a hundredth of a MiB."""
    wrong = replace(REPORTS[0], printed={"Vulkan0": {"weights": "16708.37"}})
    with pytest.raises(AssertionError):
        test_memory(wrong, opened)

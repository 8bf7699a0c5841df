"""A plan's nodes as CSV, for spreadsheets and DataFrames."""

from __future__ import annotations

import csv
import io

from ..files.foreign import cell
from ..trace.planned import Planned
from .rows import NodeRow, node_rows


def render(plan: Planned) -> str:
    """A line with the column names, then a line per node in graph order."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(NodeRow._fields)
    for row in node_rows(plan):
        values = row._replace(ne="x".join(map(str, row.ne)))  # type: ignore[arg-type]
        writer.writerow(["" if v is None else cell(v) for v in values])
    return out.getvalue()

"""Closed objects."""

from misuses import misuse

import ggml_py as ggml

CLOSED = ggml.ClosedError


MISUSES = [
    misuse(
        "plan-on-closed",
        lambda e: (e.scheduler.close(), e.scheduler.plan(e.graph)),
        CLOSED,
        "Scheduler is closed",
        "make another",
    ),
    misuse(
        "plan-of-closed",
        lambda e: (e.graph.close(), e.scheduler.plan(e.graph)),
        CLOSED,
        "Graph is closed",
        "make another",
    ),
]

"""Evaluations that stop half-way."""

from __future__ import annotations

from contextlib import contextmanager

import pytest


@contextmanager
def stopped_after(model, monkeypatch, n):
    """The compute of the n-th graph (from 0) is interrupted."""
    compute, graphs = type(model._graphs._sched).compute, []

    def stop(self, graph):
        if len(graphs) == n:
            raise KeyboardInterrupt
        graphs.append(graph)
        compute(self, graph)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(model._graphs._sched), "compute", stop)
        yield

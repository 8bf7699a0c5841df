"""What a model shows of how it computes: its scheduler, its graphs, the decode flow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..scheduler.scheduler import Scheduler
    from .flow import Decode, ModelGraph
    from .graphs import Graphs


class Watched:
    """The part of `Model` that only looks."""

    _graphs: Graphs

    def _check_open(self) -> None:
        raise NotImplementedError

    @property
    def scheduler(self) -> Scheduler:
        """What the graphs run on. Read it (`state`, `plan`, `buffer_size`), give it callbacks; what
        is reset or allocated on it makes the next evaluation allocate its graph again. The model
        closes it, and before its first evaluation may make another."""
        self._check_open()
        return self._graphs.scheduler

    @property
    def graphs(self) -> tuple[ModelGraph, ...]:
        """The graphs that it keeps, each until too many others were needed since: to be looked at,
        not changed."""
        self._check_open()
        return self._graphs.kept

    @property
    def last_decode(self) -> Decode | None:
        """What the last evaluation did, of `generate` the last token's: whether graphs were used
        again, if not which parameter differs, and the inputs set. None before the first."""
        return self._graphs.last_decode

    @property
    def n_reused(self) -> int:
        """Ubatches so far whose graph was the one before. C: llama_perf_context_data.n_reused"""
        return self._graphs.n_reused

    @contextmanager
    def watch(self) -> Iterator[list[Decode]]:
        """A list that has, at the end of each evaluation in the block, what it did."""
        self._check_open()
        found: list[Decode] = []
        before, self._graphs.watching = self._graphs.watching, found
        try:
            yield found
        finally:
            self._graphs.watching = before

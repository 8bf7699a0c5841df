"""Requirements on every plan that is made inside a `with` block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..boundary.arguments import describe, integer
from ..errors import ArgumentError, PlacementError
from ..typed import names_of

if TYPE_CHECKING:
    from ..plan import Plan


@dataclass(frozen=True)
class Requirements:
    """What one block requires."""

    no_fallback: bool
    allow: tuple[str, ...]
    max_splits: int | None
    max_copy_bytes: int | None

    def problem(self, plan: Plan) -> str:
        """The first requirement that a plan does not meet, in words; "" if it meets all."""
        from ..trace.answers.requirements import (
            fallen_back,
            out_of_reach,
            too_many_bytes,
            too_many_splits,
        )

        found = out_of_reach(plan)
        if not found and self.no_fallback:
            found = fallen_back(plan, allow=self.allow)
        if not found and self.max_splits is not None:
            found = too_many_splits(plan, self.max_splits)
        if not found and self.max_copy_bytes is not None:
            found = too_many_bytes(plan, self.max_copy_bytes)
        return found


# Requirements of the enclosing blocks, outermost first. Each thread and each task has its own.
ACTIVE: ContextVar[tuple[Requirements, ...]] = ContextVar("ggml_py.strict", default=())


@contextmanager
def strict(
    *,
    no_fallback: bool = False,
    max_splits: int | None = None,
    max_copy_bytes: int | None = None,
    allow: str | Sequence[str] = (),
) -> Iterator[None]:
    """In this block a scheduler refuses to plan, allocate, reserve for or compute a graph whose
    plan does not meet the requirements. It raises `PlacementError`, which explains the node, before
    anything is allocated or computed. Every such block also refuses a plan that no discrete card
    could compute (GP117 of `Plan.advice`); a plain `strict()` requires nothing else.

    `no_fallback` and `allow` (ops and node names, as shell patterns) mean the same as in
    `ggml_py.checks.assert_no_fallback`. `max_splits` and `max_copy_bytes` apply to each graph.
    Nested blocks add up. A block applies only to its own thread or asyncio task.
    """
    if not isinstance(no_fallback, bool):
        raise TypeError(f"no_fallback: expected True or False, got {describe(no_fallback)}")
    names = tuple(names_of("allow", allow))
    if names and not no_fallback:
        raise ArgumentError(f"allow={allow!r} needs no_fallback=True")
    required = Requirements(
        no_fallback,
        names,
        None if max_splits is None else integer("max_splits", max_splits),
        None if max_copy_bytes is None else integer("max_copy_bytes", max_copy_bytes),
    )
    token = ACTIVE.set((*ACTIVE.get(), required))
    try:
        yield
    finally:
        ACTIVE.reset(token)


@contextmanager
def without_requirements() -> Iterator[None]:
    """In this block no requirement applies: for plans that nobody computes."""
    token = ACTIVE.set(())
    try:
        yield
    finally:
        ACTIVE.reset(token)


def check(plan: Plan) -> Plan:
    """Returns the plan if it meets the enclosing blocks' requirements. Raises `PlacementError`."""
    for required in ACTIVE.get():
        if problem := required.problem(plan):
            raise PlacementError(f"strict() refuses this plan: {problem}", plan)
    return plan

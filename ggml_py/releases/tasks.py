"""The work that releases are given, and what each makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..plan import Plan
from ..scheduler.observed import Observed


@dataclass(frozen=True)
class Work:
    """A piece of work that every release is given.

    `words` is what `ggml-py plan` takes: a model, or a record or saved plan with devices (-d), and
    options. `plan` is a plan whose graph is planned again with its own devices' answers, after
    those in `earlier` on the same scheduler. It gets memory after the graph of `reserve` was
    reserved, or its own. With `in_depth` it is computed several times, in different ways.
    """

    name: str
    words: tuple[str, ...] = ()
    plan: Plan | None = None
    earlier: tuple[Plan, ...] = ()
    reserve: Plan | None = None
    in_depth: bool = False


class Made(NamedTuple):
    """What one release makes of a piece of work."""

    plan: Plan | None
    error: str = ""  # why there is no plan
    observed: Observed | None = None  # of the plan's graph; None without a plan

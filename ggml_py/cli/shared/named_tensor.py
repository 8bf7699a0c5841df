"""A plan's tensor, as a user names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...plan import Plan
    from ...trace.planned import PlanTensor


def get_tensor(plan: Plan, text: str) -> PlanTensor:
    """The tensor that a user names: a node, leaf or copy by its name, or a node by its number.
    Raises KeyError."""
    which = name_or_number(plan, text)
    tensor = plan.node(which)
    same = [str(node.index) for node in plan.nodes if node.name == tensor.name]
    if len(same) > 1 and isinstance(which, str):
        *others, last = same
        click.echo(
            f"nodes {', '.join(others)} and {last} are all called {tensor.name}: using {last}",
            err=True,
        )
    return tensor


def name_or_number(plan: Plan, text: str) -> str | int:
    """A tensor as `Plan.node` takes it. A number is a node's, unless a tensor has it as name."""
    named = any(t.name == text for t in plan.tensors)
    return text if named or not text.isdecimal() else int(text)

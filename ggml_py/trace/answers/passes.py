"""The assignment after each pass and sweep: a letter per node, then one per leaf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..causes import STAGES

if TYPE_CHECKING:
    from ..planned import Planned, PlanTensor

# Titles of the stages in `Placement.passes`, in its order.
PASS_NAMES = tuple(stage.title for stage in sorted(STAGES.values(), key=lambda s: s.row))
_WIDTH = max(map(len, PASS_NAMES))
MARKS_AT = _WIDTH + 2  # columns before the first letter of a line
LEAFS = "leafs"  # the line between the nodes' lines and the leafs'
NO_LEAFS = "leafs: unknown, because an older ggml_py recorded only nodes"


def has_leaf_passes(plan: Planned) -> bool:
    """Whether the plan says where its leafs were after each pass; files of schema 2 do not."""
    return all(leaf.placement.passes for leaf in plan.leafs)


def check_has_passes(plan: Planned) -> None:
    """Raises ValueError for a plan from a log or a snapshot."""
    if plan.capture.source != "scheduler":
        raise ValueError(f"a {plan.capture.source} does not contain the passes, only their result")


def passes_text(plan: Planned) -> str:
    """See `Plan.passes`."""
    check_has_passes(plan)
    letters = backend_letters([b.name for b in plan.backends])
    lines = _lines(letters, plan.nodes)
    if plan.leafs:
        known = has_leaf_passes(plan)
        lines += [LEAFS, *_lines(letters, plan.leafs)] if known else [NO_LEAFS]
    pairs = zip(letters, plan.backends, strict=True)
    return "\n".join([*lines, ", ".join(f"{letter} = {b.name}" for letter, b in pairs)])


def _lines(letters: list[str], tensors: Iterable[PlanTensor]) -> list[str]:
    columns = [t.placement.passes for t in tensors]
    return [
        f"{name:<{MARKS_AT}}{' '.join(letters[c[row]] if c[row] >= 0 else '?' for c in columns)}"
        for row, name in enumerate(PASS_NAMES)
    ]


def backend_letters(names: list[str]) -> list[str]:
    """One letter per backend: the first free one of its name, else a digit or another letter."""
    taken: list[str] = []
    for name in names:
        choices = [*name.upper(), *"0123456789", *"abcdefghijklmnopqrstuvwxyz"]
        taken.append(next(c for c in choices if c.isalnum() and c not in taken))
    return taken

"""A model's decode flow, as lines and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...llama.decodes import Decode


def lines(decodes: Sequence[Decode]) -> list[str]:
    """A line for each ubatch that did not reuse the previous graph, with the inputs that were set;
    the last line counts the reused graphs."""
    out, n_reused, n = [], 0, 0
    for index, decode in enumerate(decodes):
        for ubatch in decode.ubatches:
            n += 1
            n_reused += ubatch.reused
            if not ubatch.reused:
                inputs = ", ".join(f"{i.name} {i.nbytes:,} B" for i in ubatch.inputs)
                out.append(f"evaluation {index}: {ubatch}; inputs set: {inputs}")
    return [*out, f"graphs reused: {n_reused} of {n}"]


def as_data(decodes: Sequence[Decode]) -> list[dict[str, Any]]:
    """A row for each ubatch."""
    return [
        {
            "evaluation": index,
            "n_tokens": u.n_tokens,
            "n_outputs": u.n_outputs,
            "reused": u.reused,
            "built": u.built,
            "differs": [d._asdict() for d in u.differs],
            "why": u.why,
            "inputs": [i._asdict() for i in u.inputs],
            "native": u.native,
        }
        for index, decode in enumerate(decodes)
        for u in decode.ubatches
    ]

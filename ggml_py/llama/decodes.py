"""The decode flow: whether the graph was reused, if not why, and which inputs were set.

Parameters have upstream's names (llm_graph_params::allow_reuse and can_reuse of the inputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..typed import typed


class Differs(NamedTuple):
    """A parameter in which the previous graph differs from the one that was needed: `name` was
    `old` and had to be `new`."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} {self.old} -> {self.new}"


class InputSet(NamedTuple):
    """A tensor that was written before the compute."""

    name: str
    nbytes: int


class DecodedUbatch(NamedTuple):
    """How one ubatch was computed.

    `reused` means that the previous ubatch's graph was used again and only its inputs were set.
    Otherwise a graph was planned and allocated: a new one (`built`), or one of the last few that
    the model keeps. `differs` then has the parameters in which the previous graph differs. If there
    was no previous graph, or if no parameter differs, `why` says why. `native` means that inputs
    and compute were one call of native code.
    """

    n_tokens: int
    n_outputs: int
    reused: bool
    built: bool
    differs: tuple[Differs, ...]
    why: str
    inputs: tuple[InputSet, ...]
    native: bool

    def __str__(self) -> str:
        tokens = f"{self.n_tokens} token{'s' * (self.n_tokens != 1)}: "
        if self.reused:
            return f"{tokens}graph reused"
        graph = "graph built" if self.built else "kept graph allocated again"
        return f"{tokens}{graph}: {', '.join(map(str, self.differs)) or self.why}"


class Decode(NamedTuple):
    """What `eval` or a step of `generate` did, ubatch by ubatch."""

    ubatches: tuple[DecodedUbatch, ...]

    @property
    def n_ubatches(self) -> int:
        """How many graphs were computed."""
        return len(self.ubatches)

    @property
    def reused(self) -> bool:
        """Whether nothing was planned or allocated."""
        return all(ubatch.reused for ubatch in self.ubatches)

    def __str__(self) -> str:
        return "\n".join(map(str, self.ubatches))


@typed
def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Differs, ...]:
    """The parameters in which two graphs differ; None where a graph does not have one."""
    names = dict.fromkeys((*new, *old))
    pairs = ((name, old.get(name), new.get(name)) for name in names)
    return tuple(Differs(*pair) for pair in pairs if pair[1] != pair[2])

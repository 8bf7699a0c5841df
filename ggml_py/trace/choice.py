"""Decisions above the scheduler: what llama.cpp chose before a graph was planned, and why.

libllama plans probes, graphs that it never computes, and does without a fused op in the whole model
if one node of a probe is not on its layer's device. It also gives up pipeline parallelism, and
--fit leaves layers on the CPU.
"""

from __future__ import annotations

from typing import NamedTuple

FUSED, PIPELINE, LAYERS = "fused op", "pipeline", "layers"


class Choice(NamedTuple):
    """One decision. `why` names the node of the probe that decided, or the option."""

    kind: str  # FUSED, PIPELINE or LAYERS
    what: str  # "Flash Attention", as libllama calls it
    decided: str  # "is off"
    why: str  # a sentence
    node: str = ""  # of the probe
    op: str = ""  # of that node
    probe: str = ""  # "a graph of 1 token"
    flips: tuple[str, ...] = ()  # each would decide otherwise
    inferred: bool = False  # from the plans of a record: libllama does not say which node it was

    def __str__(self) -> str:
        said = "llama.cpp" + (" (inferred)" if self.inferred else "")
        return f"{said}: {self.what} {self.decided}: {self.why}"

"""The scheduler's rules that differ from release to release."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .record import Settings

MAX_SPLIT_INPUTS = 30  # GGML_SCHED_MAX_SPLIT_INPUTS, in all releases of vendor/upstream.toml
# Two packages say 0.9.4; this is the label of the older one.
_RESERVE_WITHOUT_PINS = "0.9.4.p0.2.4"


class Rules(NamedTuple):
    """How one release plans. C: ggml_backend_sched_split_graph"""

    # Ops that do not follow their weights in pass 1: those are too small to decide about the op.
    ignore_weights: frozenset[str]
    # When a split that has many inputs ends: at 30 ("fixed"), at the room that its slot had left
    # from earlier plans ("capacity"), never ("").
    input_limit: Literal["fixed", "capacity", ""]
    # Where copies of graph inputs for pipeline parallelism are made: as they are met in pass 5, or
    # for all input leafs in a pass 6.
    graph_inputs_pass: Literal[5, 6]
    # Whether `reserve` forgets the pins before it plans.
    reserve_ignores_pins: bool


def rules_of(settings: Settings) -> Rules:
    """The rules of the release that made a plan. Raises ValueError for a version it cannot read."""
    version = parse_version(settings.upstream)
    # llama.cpp #25800: attention sinks in host memory pulled flash attention to the GPU.
    follows = {"ROPE"} if version < (0, 18) else {"ROPE", "FLASH_ATTN_EXT"}
    limit: Literal["fixed", "capacity", ""] = "capacity" if version < (0, 24) else ""
    return Rules(
        ignore_weights=frozenset(follows),
        input_limit="fixed" if version <= (0, 18, 0) else limit,
        graph_inputs_pass=5 if version < (0, 25) else 6,
        reserve_ignores_pins=settings.release == _RESERVE_WITHOUT_PINS,
    )


def parse_version(upstream: str) -> tuple[int, ...]:
    """ "0.26.0" -> (0, 26, 0)"""
    try:
        return tuple(int(part) for part in upstream.split("."))
    except ValueError:
        raise ValueError(f"ggml version {upstream!r}: expected numbers with dots") from None

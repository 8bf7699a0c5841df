"""Findings about tensors that are copied between backends in each evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..trace import causes
from ..trace.facts import (
    ALL_LAYERS,
    CACHE_HERE,
    CACHE_THERE,
    NO_OP_OFFLOAD,
    CopiedTensor,
    Facts,
    nbytes,
    override,
    verb,
)
from ..trace.names import quoted
from ..trace.planned import format_bytes
from ..trace.record import TensorRecord
from ..trace.rules import parse_version
from ..trace.units import most
from .finding import Observation

# Since this version only a copy callback can limit the copies to the used experts.
_ALL_EXPERTS = (0, 26)


def offloaded_weights(facts: Facts) -> Iterator[Observation]:
    """Weights in host memory that are copied to a device for the ops that it offloads."""
    mine = [
        c
        for c in facts.unexplained()
        if facts.is_weight(c.holder)
        and any(facts.cause(r) == causes.OFFLOADED.code for r in c.readers)
    ]
    for at, to, copies in _large(facts, mine):
        name, weights = facts.name(to), _tensors(copies)
        yield Observation(
            f"{facts.of(weights, 'weight')} in host memory {verb(weights)} copied to {name}, "
            "which wants ops at this batch size although it does not hold their weights.",
            f"If {name} has room for more layers, put them there. A larger batch (-ub) spreads "
            "the copies over more tokens. Without op offload the ops run where the weights are."
            + _experts(facts, copies),
            weights,
            nbytes(copies),
            (ALL_LAYERS, override(facts, weights, to), NO_OP_OFFLOAD),
            headline=_every_time(copies, "of weights", facts.name(at), name),
        )


def _experts(facts: Facts, copies: list[CopiedTensor]) -> str:
    """A sentence on copied experts; "" without any. An evaluation uses only some of a layer's."""
    if not any(r.op == "MUL_MAT_ID" for c in copies for r in c.readers):
        return ""
    if facts.from_log:
        return (
            " Up to ggml 0.25 only the used experts are copied. Since then all are, unless the "
            "scheduler has a copy callback (llama.cpp has one). The log does not say which ggml "
            "printed it."
        )
    if parse_version(facts.capture.settings.upstream) < _ALL_EXPERTS:
        return " Of the experts, ggml copies only the used ones."
    return (
        " All experts are copied, unless the scheduler has a copy callback that leaves out the "
        "unused ones (Scheduler.set_copy_callback; llama.cpp has one)."
    )


def weights(facts: Facts) -> Iterator[Observation]:
    """Weights that are read on another backend than the one that holds them."""
    mine = [c for c in facts.unexplained() if facts.is_weight(c.holder)]
    for at, to, copies in _large(facts, mine):
        weights = _tensors(copies)
        yield Observation(
            f"{facts.of(weights, 'weight')} {verb(weights)} kept on {facts.name(at)} and copied "
            f"to {facts.name(to)}, {_reader(facts, copies)}.",
            f"Keep {verb(weights, 'it where it is', 'them where they are')} read."
            + (
                " It may also be op offload; the log does not say."
                if _may_be_offload(facts, mine)
                else ""
            ),
            weights,
            nbytes(copies),
            (override(facts, weights, to),),
            headline=_every_time(copies, "of weights", facts.name(at), facts.name(to)),
        )


def _may_be_offload(facts: Facts, copies: list[CopiedTensor]) -> bool:
    """Whether op offload may have made the copies: unknown in a log without causes."""
    return facts.from_log and not any(facts.cause(r) for c in copies for r in c.readers)


def state(facts: Facts) -> Iterator[Observation]:
    """State kept between evaluations, such as a KV cache, that another backend reads."""
    mine = [c for c in facts.unexplained() if facts.is_state(c.holder)]
    for at, to, copies in _large(facts, mine):
        kept = _tensors(copies)
        home, name = facts.name(at), facts.name(to)
        readers = dict.fromkeys(r.id for c in copies for r in c.readers)
        after = facts.what_if(pins=dict.fromkeys(readers, home))
        there = after is not None and after.copy_bytes < facts.plan.copy_bytes
        options = (CACHE_HERE,) if to == facts.last else (CACHE_THERE, ALL_LAYERS)
        instead = f" On {home} instead: {facts.compared(after)}." if after and there else ""
        yield Observation(
            f"{facts.of(kept, 'tensor')} {verb(kept, 'stays', 'stay')} on {home} between "
            f"evaluations and {verb(kept)} copied to {name}, {_reader(facts, copies)}.{instead}",
            f"Keep {verb(kept, 'it', 'them')} on {name}"
            + (f", or pin what reads {verb(kept, 'it', 'them')} to {home}." if there else "."),
            kept,
            nbytes(copies),
            options,
            headline=_every_time(copies, "of the KV cache", home, name),
        )


def inputs(facts: Facts) -> Iterator[Observation]:
    """Graph inputs that are not read on the backend where they are set."""
    mine = [
        c
        for c in facts.unexplained()
        if "input" in c.holder.flags
        and not facts.capture.is_weight(c.holder)
        and all(facts.where[r.id] == c.to for r in facts.all_readers(c.holder))
    ]
    for at, to, copies in _large(facts, mine):
        found = _tensors(copies)
        home, name = facts.name(at), facts.name(to)
        if any(t.buffer >= 0 for t in found):
            after = facts.what_if(move_weights={t.id: name for t in found if t.buffer >= 0})
            advice = f"Allocate {verb(found, 'it', 'them')} in memory of {name}"
        else:
            after = facts.what_if(pins={t.id: name for t in found})
            advice = f"Pin {verb(found, 'it', 'them')} to {name} with set_tensor_backend"
        if after is None or after.copy_bytes >= facts.plan.copy_bytes:
            continue
        yield Observation(
            f"{facts.of(found, 'input')} {verb(found)} on {home}, and only {name} reads "
            f"{verb(found, 'it', 'them')}. On {name}: {facts.compared(after)}.",
            f"{advice}, so that setting {verb(found, 'it', 'them')} writes there directly.",
            found,
            nbytes(copies),
        )


def _large(
    facts: Facts, copies: Iterable[CopiedTensor]
) -> Iterator[tuple[int, int, list[CopiedTensor]]]:
    """Groups of copies by source and destination that are large enough for a finding; marks them as
    explained."""
    groups: dict[tuple[int, int], list[CopiedTensor]] = {}
    for c in copies:
        groups.setdefault((facts.where[c.holder.id], c.to), []).append(c)
    for (at, to), group in sorted(groups.items()):
        if most(nbytes(group)) >= facts.min_bytes:  # of a log: unless it is certainly less
            facts.explain(group)
            yield at, to, group


def _every_time(copies: list[CopiedTensor], what: str, home: str, to: str) -> str:
    return f"{format_bytes(nbytes(copies))} {what} are copied from {home} to {to} every time"


def _tensors(copies: Iterable[CopiedTensor]) -> list[TensorRecord]:
    return list(dict.fromkeys(c.holder for c in copies))


def _reader(facts: Facts, copies: list[CopiedTensor]) -> str:
    """ "where ADD 'sum' reads it (1.wgt0: …)" """
    if not copies[0].readers:
        return "which reads it" if len(copies) == 1 else "which reads them"
    reader = facts.plan.tensor(copies[0].readers[0].id)
    what = "it" if len(copies) == 1 else quoted(facts.plan.tensor(copies[0].holder.id))
    why = f" ({reader.cause})" if reader.cause.code else ""
    return f"where {reader.record.op_desc} {quoted(reader)} reads {what}{why}"

"""Findings about weights and caches in the host's memory, and about devices that are left empty.

They cost no split and no copy. They cost the time in which the host reads its memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from math import prod

from ..trace.facts import ALL_LAYERS, CACHE_THERE, Facts, Option, override, verb
from ..trace.names import block_of, counted
from ..trace.planned import format_bytes
from ..trace.record import TensorRecord
from .finding import Observation

_PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
_OF_LAYER = re.compile(r"_l(\d+)$")  # of a cache's name: cache_k_l12


def weights_in_host_memory(facts: Facts) -> Iterator[Observation]:
    """Weights that the host multiplies with in each evaluation, beside a device."""
    read: dict[TensorRecord, int] = {}
    nodes = []
    for t in facts.computed:
        if t.op in _PRODUCTS and _is_hosts(facts, t) and t.id not in facts.explained_nodes:
            weight = facts.capture.tensors[t.src[0]]
            if facts.is_weight(weight):
                read[weight] = max(read.get(weight, 0), _read(facts, t, weight))
                nodes.append(t)
    size = sum(read.values())
    if size < max(facts.min_bytes, 1):
        return
    weights = list(read)
    layers = {block[0] for w in weights if (block := block_of(w.name))}
    of_layers = f" of {counted(len(layers), 'layer')}" if layers else ""
    there = sum(_weights_of(facts, b) for b in facts.devices)
    experts = all(w.ne[2] > 1 for w in weights)
    options = (override(facts, weights, facts.devices[0]),) if experts else (ALL_LAYERS,)
    rooms = [facts.room(b) for b in facts.devices]
    whole = sum(w.nbytes for w in weights)
    too_many = None not in rooms and whole > sum(room or 0 for room in rooms)
    yield Observation(
        f"{facts.of(weights, 'weight')}{of_layers} {verb(weights)} in host memory, of which "
        f"{facts.name(facts.last)} reads {format_bytes(size)} in each evaluation"
        + (f", beside {format_bytes(there)} of weights on devices." if there else "."),
        "A device reads its own memory several times as fast: keep as many there as fit."
        + (f" All of them ({format_bytes(whole)}) do not." if too_many else ""),
        nodes,
        size,
        () if too_many else options,
        headline=f"{'the experts of ' * (experts and bool(layers))}{_layers_of(facts, layers)} "
        "read from host memory",
    )


def _layers_of(facts: Facts, layers: set[str]) -> str:
    """ "21 of 80 layers are" """
    weights = (t for t in facts.capture.tensors if facts.capture.is_weight(t))
    every = {block[0] for w in weights if (block := block_of(w.name))}
    are = "is" if len(layers) == 1 else "are"
    return f"{len(layers)} of {len(every)} layers {are}" if layers else "weights are"


def cache_in_host_memory(facts: Facts) -> Iterator[Observation]:
    """Caches that the host computes attention with, of layers whose weights are on a device."""
    on_devices = {
        block[0] for b in facts.devices for w in _held(facts, b) if (block := block_of(w.name))
    }
    read: dict[TensorRecord, int] = {}
    nodes: dict[TensorRecord, None] = {}
    for t in facts.computed:
        if not _is_hosts(facts, t):
            continue
        for source in facts.sources(t):
            holder = facts.holder(source)
            layer = _OF_LAYER.search(holder.name)
            if layer and layer[1] in on_devices and facts.is_state(holder) and t.op != "SET_ROWS":
                read[holder] = max(read.get(holder, 0), min(source.nbytes, holder.nbytes))
                nodes[t] = None
    size = sum(read.values())
    if size < max(facts.min_bytes, 1):
        return
    kept = list(read)
    yield Observation(
        f"{facts.of(kept, 'cache')} {verb(kept)} in host memory, and {facts.name(facts.last)} "
        f"reads up to {format_bytes(size)} of {verb(kept, 'it', 'them')} in each evaluation, while "
        "the weights of the same layers are on a device.",
        f"Keep {verb(kept, 'it', 'them')} where the layers are.",
        list(nodes),
        size,
        (CACHE_THERE,),
        headline=f"{facts.name(facts.last)} reads the KV cache from host memory",
    )


def empty_devices(facts: Facts) -> Iterator[Observation]:
    """Devices that hold and compute nothing, while others or the host hold weights."""
    others = sum(w.nbytes for w in facts.capture.tensors if facts.capture.is_weight(w))
    if others < max(facts.min_bytes, 1):
        return
    busy = {split.backend for split in facts.plan.split_records}
    empty = [b for b in facts.devices if b not in busy and not _weights_of(facts, b)]
    left_out = _left_out(facts)
    for name in (*(facts.name(b) for b in empty), *left_out):
        options = [ALL_LAYERS]
        if len(facts.devices) + len(left_out) > 1:
            options.insert(0, Option("-sm layer", {"split_mode": "layer"}))
        why = " It was given to llama.cpp, but is not used." if name in left_out else ""
        if why and ("-sm", "none") in pairwise(facts.plan.provenance.flags or ()):
            why = " -sm none uses one device and leaves it out."
        yield Observation(
            f"{name} holds no weights and computes nothing, while {format_bytes(others)} of "
            f"weights are elsewhere.{why}",
            f"Give {name} layers, or leave it out.",
            options=options,
            headline=f"{name} holds nothing and computes nothing",
        )


def _left_out(facts: Facts) -> list[str]:
    """The devices that a plan's maker was given and its scheduler was not."""
    used = {name for backend in facts.plan.backends for name in (backend.device, backend.name)}
    given = facts.plan.provenance.devices or ()
    return [d.name for d in given if d.type in ("GPU", "IGPU") and d.name not in used]


def _is_hosts(facts: Facts, t: TensorRecord) -> bool:
    where = facts.where[t.id]
    return bool(facts.devices) and not facts.has_own_memory(where)


def _read(facts: Facts, t: TensorRecord, weight: TensorRecord) -> int:
    """Bytes of the weight that `t` reads; of experts it reads the ones that its tokens choose."""
    if t.op != "MUL_MAT_ID":
        return weight.nbytes
    chosen = prod(facts.capture.tensors[t.src[2]].ne)
    return min(weight.nbytes, chosen * weight.nb[2])


def _held(facts: Facts, b: int) -> Iterator[TensorRecord]:
    """The weights in memory that a backend has for itself."""
    own = facts.plan.backends[b].buft
    for t in facts.capture.tensors:
        if facts.capture.is_weight(t) and t.view_src < 0 and facts.capture.buft_of(t) == own:
            yield t


def _weights_of(facts: Facts, b: int) -> int:
    return sum(w.nbytes for w in _held(facts, b))

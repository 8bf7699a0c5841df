"""Matches the tensors of two graphs: by name, and by position if names fail."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from ..record import DUMPED_OP, NODE, Capture, TensorRecord, dumped_name
from ..rules import parse_version

# ggml names unnamed tensors after their place in the graph, which does not identify them.
AUTOMATIC = re.compile(r"\b(node|leaf)_(?:\d+|#)")
# Stretches without names that have more pairs than this are not aligned: it takes quadratic time.
_MOST_PAIRS = 1_000_000


def without_number(name: str) -> str:
    """A name without the number that ggml gave it: "node_# (view)"."""
    return AUTOMATIC.sub(r"\1_#", name)


@dataclass(frozen=True, slots=True)
class Match:
    """Pairs of tensor ids: of one capture and of another."""

    pairs: dict[int, int]
    compared: tuple[list[int], list[int]]  # the ids to match, on each side


def match_tensors(a: Capture, b: Capture) -> Match:
    """The tensors that two graphs have in common.

    If a name occurs equally often in both graphs (real graphs repeat names), its tensors are paired
    in order. Other tensors, also those with a name made up by ggml (node_12), are aligned by the
    sequence of ops between pairs, or else matched by their sources. Views are not compared if a
    capture is from a debug log or a snapshot, which leave them out. Names and ops are compared only
    as far as a log prints them.
    """
    logs = [c for c in (a, b) if c.source == "debug log"]
    dumped, partial = bool(logs), any(c.source != "scheduler" for c in (a, b))
    # Older logs have UNARY where newer releases print SILU.
    old = any(parse_version(c.settings.upstream) < (0, 11) for c in logs)
    pairs: dict[int, int] = {}
    compared: tuple[list[int], list[int]] = ([], [])
    for is_node in (True, False):
        ours, theirs = (
            [t for t in capture.tensors if (t.kind == NODE) == is_node]
            if not (is_node and partial)
            else [t for t in capture.tensors if t.kind == NODE and not t.is_view_op]
            for capture in (a, b)
        )
        keys = [[key_of(t, dumped, old) for t in side] for side in (ours, theirs)]
        at = [0, 0]
        late = a.begins_late - b.begins_late or a.is_partial - b.is_partial
        if is_node and late:
            whole = int(late > 0)
            first = (a, b)[1 - whole].first_node
            before = sum(t.id < first for t in (ours, theirs)[whole])
            window = _window(keys[1 - whole], keys[whole], before)
            keys[whole] = keys[whole][window.start : window.stop]
            at[whole] = window.start
        for i, j in match(*keys).items():
            pairs[ours[at[0] + i].id] = theirs[at[1] + j].id
        # The other tensors of a dump are those that its nodes read; some are nodes in another
        # capture. The other tensors of a snapshot are the copied ones.
        if is_node or not partial:
            for ids, side in zip(compared, (ours, theirs), strict=True):
                ids += [t.id for t in side]
    _match_by_sources(a, b, pairs, compared)
    return Match(pairs, compared)


def _window(part: Sequence[Key], whole: Sequence[Key], before: int) -> range:
    """Range of positions in the whole graph from which an excerpt may come. If the graph is the
    same there, these are the excerpt's own positions; otherwise names that occur once in both give
    the range. `before` is the number of nodes before the excerpt's first, if the graph is the same.
    """
    if part == whole[before : before + len(part)]:
        return range(before, before + len(part))
    places, there = _places(part), _places(whole)
    anchors = [
        (of_part[0], there[key][0])
        for key, of_part in places.items()
        if key.name and len(of_part) == 1 and len(there.get(key, ())) == 1
    ]
    if not anchors:
        return range(len(whole))
    first, last = min(anchors), max(anchors)
    start = max(0, first[1] - first[0])
    return range(start, last[1] + len(part) - last[0])


def _match_by_sources(
    a: Capture, b: Capture, pairs: dict[int, int], compared: tuple[list[int], list[int]]
) -> None:
    """Pairs unnamed tensors elsewhere in the graph that have the same op and the same sources."""
    taken = set(pairs.values())
    there: dict[tuple[str, tuple[int, ...]], int] = {}
    for t in (b.tensors[j] for j in reversed(compared[1]) if j not in taken):
        if t.src and AUTOMATIC.search(t.name):
            there[t.op_desc, t.src] = t.id
    for t in (a.tensors[i] for i in compared[0] if i not in pairs):
        key = t.op_desc, tuple(pairs.get(i, -2) if i >= 0 else i for i in t.src)
        if t.src and AUTOMATIC.search(t.name) and key in there:
            pairs[t.id] = there.pop(key)


class Key(NamedTuple):
    """What identifies a tensor in both graphs."""

    name: str  # "" if ggml made it up
    what: str


def key_of(t: TensorRecord, dumped: bool = False, old: bool = False) -> Key:
    """The key that a tensor is compared by."""
    name = dumped_name(t.name) if dumped else t.name
    if AUTOMATIC.search(name):
        name = ""
    if t.kind == NODE:
        op = t.op if old else t.op_desc
        return Key(name.strip(), op[:DUMPED_OP] if dumped else op)
    return Key(name.strip(), "" if name or dumped else t.type)


def match(a: Sequence[Key], b: Sequence[Key]) -> dict[int, int]:
    """Positions in `a` -> positions in `b`."""
    if a == b:
        return {i: i for i in range(len(a))}
    pairs: dict[int, int] = {}
    there = _places(b)
    for key, places in _places(a).items():
        if key.name and len(places) == len(there.get(key, ())):
            pairs.update(zip(places, there[key], strict=True))
    # A stretch after a paired position is compared with the stretch after its partner.
    gaps = _gaps(len(a), pairs)
    others = _gaps(len(b), {j: j for j in pairs.values()})
    for anchor, places in gaps.items():
        pairs |= _align(a, b, places, others.get(anchor, []))
    return pairs


def _places(keys: Sequence[Key]) -> dict[Key, list[int]]:
    places = defaultdict(list)
    for i, key in enumerate(keys):
        places[key].append(i)
    return places


def _gaps(n: int, pairs: dict[int, int]) -> dict[int, list[int]]:
    """The unpaired positions, by the partner of the last paired position before them (-1: none)."""
    gaps = defaultdict(list)
    anchor = -1
    for i in range(n):
        if i in pairs:
            anchor = pairs[i]
        else:
            gaps[anchor].append(i)
    return gaps


def _align(
    a: Sequence[Key], b: Sequence[Key], ours: list[int], theirs: list[int]
) -> dict[int, int]:
    """Pairs within one stretch of both graphs."""
    left, right = [a[i] for i in ours], [b[j] for j in theirs]
    if len(left) * len(right) <= _MOST_PAIRS:
        blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
        return {ours[i + k]: theirs[j + k] for i, j, n in blocks for k in range(n)}
    there = _places(right)
    return {
        ours[i]: theirs[j]
        for key, places in _places(left).items()
        for i, j in zip(places, there.get(key, ()), strict=False)
    }

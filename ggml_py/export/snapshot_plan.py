"""The plan on a page that `snapshot.py` wrote, as far as the page shows it: enough for a diff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..trace.names import counted
from ..trace.planned import Planned
from ..trace.planning import copy_record
from ..trace.record import (
    NODE,
    NOT_ON_RECORD,
    OTHER,
    BackendRecord,
    Capture,
    Outcome,
    Placement,
    Settings,
    SplitRecord,
    TensorRecord,
    named_tensor,
)  # fmt: skip
from ..trace.split import possible_optimizers
from .debug_log_plan import unknown as unknown_of_log
from .snapshot import CopyLine, Row, parse

SOURCE = "snapshot"
UNKNOWN = (
    "shapes, types, views, sources of nodes and op parameters are not in a snapshot, so FLOPs and "
    "bytes per device are not known",
    "what the backends support, pins, and the buffers of weights are not in a snapshot, so steps, "
    "reference, why_not and what_if need a plan that Plan.to_json wrote",
    "ggml's version and the scheduler's settings are not in a snapshot",
    "the order in which devices compute the nodes of a split is not in a snapshot",
)
_NOT_KNOWN = -1
_VERSION = "0.11.0"  # not known: a release that prints all that newer ones do


def unknown(plan: Planned) -> tuple[str, ...]:
    """See `Plan.unknown`."""
    if plan.capture.source == SOURCE:
        return UNKNOWN
    return (*unknown_of_log(plan), *_not_made(plan))


def _not_made(plan: Planned) -> Iterator[str]:
    """Says what a plan of a scheduler does not know: which ops a device supports, and how the plan
    was made."""
    made = plan.provenance
    if plan.capture.source != "scheduler":
        return
    refusals = [r for r in plan.capture.refusals or () if r.srcs == NOT_ON_RECORD]
    lacking = Counter(r.backend for r in refusals if plan.tensor(r.tensor).is_computed)
    n_computed = sum(node.is_computed for node in plan.nodes)
    for b, n in lacking.items():
        yield (
            f"{counted(n, 'op')} of {n_computed} {'is' if n == 1 else 'are'} not on record for "
            f"{plan.backends[b].name}, which counts as not supported: `ggml-py view PLAN "
            "--op-tests OPS` writes them for test-backend-ops"
        )
    if not made.known:
        yield (
            "how the plan was made is not recorded: model, flags, context, tokens, the cards that "
            "devices stand for, date"
        )
    elif made.flags is not None and (missing := made.missing):
        yield f"how the plan was made is not recorded in full: {', '.join(missing)}"


def from_snapshot(text: str) -> Planned:
    """See `Plan.from_snapshot`."""
    if not isinstance(text, str):
        kind = type(text).__name__
        raise TypeError(f"expected the text of a page that snapshot() wrote, got {kind}")
    named, rows, made = parse(text)
    if not rows or rows[0].split is None:
        raise ValueError("this snapshot has no nodes, or they are not in a split")
    names = _backends(named, rows)
    number = {name: i for i, name in enumerate(names)}
    tensors = [named_tensor(i, NODE, row.name, row.op) for i, row in enumerate(rows)]
    for i, row in enumerate(rows):
        tensors[i] = tensors[i]._replace(flags=("compute",) * row.is_computed)
    places = [_place(number.get(row.backend or "", -1), row.cause) for row in rows]
    copied: dict[tuple[CopyLine, int], int] = {}  # the copy and its target -> the tensor
    for row in rows:
        for c in row.copies:
            copied[c, number[row.split or ""]] = len(tensors)
            tensors.append(named_tensor(len(tensors), OTHER, c.name, "NONE", c.nbytes))
            places.append(_place(number.get(c.src or "", -1)))
    backends = tuple(BackendRecord(name, "", "", -1) for name in names)
    settings = Settings(_VERSION, "", True, 1, 0, 0, 0)
    capture = Capture(
        settings, backends, (), (), tuple(tensors), (),
        optimizers=possible_optimizers([b.name for b in backends]), source=SOURCE,
    )  # fmt: skip
    copies: list[TensorRecord] = []
    for (_c, b), id in copied.items():
        copies.append(copy_record(capture, tensors[id], len(tensors) + len(copies), b, 0))
        places.append(_place(b)._replace(copy_of=id, copy_index=0))
    pairs = {id: (id, copy.id) for id, copy in zip(copied.values(), copies, strict=True)}
    splits = _splits(rows, number, {key: pairs[id] for key, id in copied.items()})
    outcome = Outcome(tuple(places), tuple(copies), tuple(splits), 0)
    return Planned(capture, outcome, SOURCE, provenance=made)


def _backends(named: Iterable[str], rows: Iterable[Row]) -> list[str]:
    """The backends that the page names at the top, then those that an edit added below."""
    names = [name for row in rows for name in (row.split, row.backend) if name is not None]
    names += [c.src for row in rows for c in row.copies if c.src is not None]
    return list(dict.fromkeys([*named, *names]))


def _splits(
    rows: Sequence[Row], number: dict[str, int], copied: dict[tuple[CopyLine, int], tuple[int, int]]
) -> Iterable[SplitRecord]:
    starts = [i for i, row in enumerate(rows) if row.split is not None]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        on = number[rows[start].split or ""]
        yield SplitRecord(on, start, end, tuple(copied[c, on] for c in rows[start].copies))


def _place(backend: int, cause: str = "") -> Placement:
    return Placement(backend, cause, _NOT_KNOWN, (), ())

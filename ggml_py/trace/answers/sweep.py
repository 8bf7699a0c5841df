"""Plans over a range of shapes, and the shapes at which the plan changes."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, TypeAlias

from ...files.foreign import visible
from ...typed import typed
from .. import causes
from ..names import counted, label, quoted, shape
from ..planned import Planned, PlanTensor, format_bytes
from ..refusals import OP, refused
from ..units import format_times
from .diff import Totals
from .match import key_of, match_tensors
from .what_if import batch_size

Value: TypeAlias = "int | str | float | bool | None"
Shape: TypeAlias = "dict[str, Value]"
Progress: TypeAlias = "Callable[[str, int], None]"  # what is being built, builds to expect
# Seconds of a compute, low and high; None: not known.
Time: TypeAlias = "tuple[float, float, float] | None"
Predict: TypeAlias = "Callable[[Planned, Shape], Time]"

_KEPT = 32  # plans to keep; others are built again if they are needed


@dataclass(frozen=True, slots=True)
class Point:
    """The plan of one shape in numbers; None if `build` returned no plan."""

    shape: Shape
    totals: Totals | None
    time: Time = None  # predicted seconds, low and high


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that another backend computes after a threshold."""

    name: str
    op: str  # its description: SILU rather than UNARY
    index: int  # in the graph before
    before: str | None
    after: str | None
    cause_before: str
    cause_after: str
    # `reason` says why, in a sentence. `decides` is true if a backend changed its answer about this
    # node, and false if the node only follows another.
    reason: str
    decides: bool


@dataclass(frozen=True, slots=True)
class Threshold:
    """The plan changes between `before` and `after`, two neighbours on one axis."""

    axis: str
    before: Value  # the last value with the plan before
    after: Value  # the first value with the plan after
    at: Shape  # the values of the other axes
    moved: tuple[Moved, ...]  # nodes that decide first, then in the order of the graph
    n_removed: int  # computed nodes that only the graph before has
    n_added: int
    totals_before: Totals
    totals_after: Totals
    time_before: Time = None  # predicted seconds, low and high
    time_after: Time = None

    @property
    def reason(self) -> str:
        """Why, in a sentence: the reason of the node that decides, if there is one."""
        if self.moved:
            return self.moved[0].reason
        if self.n_removed or self.n_added:
            return (
                f"the graph changes: {counted(self.n_removed, 'node')} removed, "
                f"{self.n_added} added"
            )
        return "the nodes stay where they are, but the splits or their copies change"

    def __repr__(self) -> str:
        return f"<Threshold {self.headline()}>"

    def headline(self) -> str:
        """One line: where, how many nodes move, splits and bytes before and after."""
        a, b = self.totals_before, self.totals_after
        moved = counted(len(self.moved), "node moves", "nodes move")
        took = ""
        if self.time_before and self.time_after:
            took = f", predicted {told_time(self.time_before)} → {told_time(self.time_after)}"
        return (
            f"{self.axis} {self.before} → {self.after}: {moved}, "
            f"splits {a.n_splits} → {b.n_splits}, "
            f"copied {format_bytes(a.copy_bytes)} → {format_bytes(b.copy_bytes)}{took}"
        )


@dataclass(frozen=True, slots=True)
class Sweep:
    """The plans of all given shapes, and the thresholds between neighbours."""

    axes: dict[str, tuple[Value, ...]]
    points: tuple[Point, ...]
    thresholds: tuple[Threshold, ...]
    n_builds: int  # how often `build` was called

    def __repr__(self) -> str:
        axes = ", ".join(self.axes)
        n, found = len(self.points), len(self.thresholds)
        return f"<Sweep of {axes}: {n} plan{'s' * (n != 1)}, {found} threshold{'s' * (found != 1)}>"

    def grouped(self) -> list[tuple[Threshold, list[Shape]]]:
        """The thresholds, each with the values of the other axes where it occurs. Thresholds that
        differ only in these values are one."""
        groups: dict[Any, tuple[Threshold, list[Shape]]] = {}
        for t in self.thresholds:
            nodes = tuple((m.name, m.before, m.after) for m in t.moved)
            key = t.axis, t.before, t.after, nodes, t.n_removed, t.n_added
            groups.setdefault(key, (t, []))[1].append(t.at)
        return list(groups.values())

    def __str__(self) -> str:
        """A line for each plan, then the thresholds with their nodes and reasons."""
        lines = []
        for point in self.points:
            shape = describe(point.shape)
            if point.totals is None:
                lines.append(f"{shape}: no plan")
                continue
            n = point.totals
            nodes = ", ".join(f"{name} {k}" for name, k in n.nodes_per_backend.items())
            lines.append(
                f"{shape}: {counted(n.n_splits, 'split')}, {counted(n.n_copies, 'copy', 'copies')} "
                f"({format_bytes(n.copy_bytes)}), nodes: {nodes}"
                + (f", predicted {told_time(point.time)}" if point.time else "")
            )
        for threshold, places in self.grouped():
            where = " or ".join(filter(None, map(describe, places)))
            lines.append(threshold.headline() + (f", at {where}" if where else ""))
            lines += [f"    {row}" for row in moved_rows(threshold)]
        if not self.thresholds:
            lines.append("the plan is the same everywhere")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        data = asdict(self)
        for row, threshold in zip(data["thresholds"], self.thresholds, strict=True):
            row["reason"] = threshold.reason
        return data


@typed
def moved_rows(threshold: Threshold, limit: int = 8) -> list[str]:
    """A row for each reason, with its nodes, and one for the nodes that follow others. Reasons that
    differ only in the numbers of names, such as layer numbers, count as one."""
    if not threshold.moved:
        return [threshold.reason]
    deciding = [m for m in threshold.moved if m.decides]
    groups: dict[str, list[Moved]] = {}
    for m in deciding or threshold.moved:
        reason = re.sub(r"'[^']*'", lambda name: re.sub(r"\d+", "*", name[0]), m.reason)
        groups.setdefault(f"{m.op} {m.before} → {m.after}: {reason}", []).append(m)
    rows = []
    for what, nodes in groups.items():
        reasons = {f"{m.op} {m.before} → {m.after}: {m.reason}" for m in nodes}
        rows.append(f"{_names(nodes)}, {reasons.pop() if len(reasons) == 1 else what}")
    if len(rows) > limit:
        rows[limit:] = [f"… {len(rows) - limit} more"]
    others = [m for m in threshold.moved if deciding and not m.decides]
    if others:
        rows.append(f"along with them: {_names(others)}")
    return rows


def _names(nodes: list[Moved]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(m.name for m in nodes[:3]) + more


@typed
def told_time(time: Time) -> str:
    """ "1.2 ms (1.1 to 1.3)"; "" if it is not known."""
    if time is None:
        return ""
    seconds, *interval = time
    return format_times(seconds, (interval[0], interval[1]))


@typed
def describe(shape: Mapping[str, Value]) -> str:
    """n_tokens=1, n_kv=256"""
    return ", ".join(f"{name}={value}" for name, value in shape.items())


# --- sweeping


def sweep(
    build: Callable[..., Planned | None],
    /,
    *,
    progress: bool | None = None,
    predict: Predict | None = None,
    **axes: Iterable[Value] | Value,
) -> Sweep:
    """The plans of `build(n_tokens=…, n_kv=…)` for all combinations of the given values, as in
    `sweep(build, n_tokens=[1, 512], n_kv=[256, 8192])`, and where the plan changes.

    If the plans of neighbouring integers differ, bisection finds the exact thresholds between them,
    with the nodes that move and the reason. A change that is undone between two given values is not
    seen. Other values (types, flags) are compared in the given order. Plans differ if another
    backend computes a node, the splits are cut elsewhere, or other tensors are copied, but not if
    only sizes change. `build` may return None for a shape without a plan; its exceptions are passed
    on. `predict(plan, shape)` returns the predicted seconds of a plan, low and high, or None, for
    the result (`cost.time_difference.predict_with` makes such a function). `progress` shows the
    progress on standard error (default: if that is a terminal).

    Raises TypeError and ValueError for an axis without values or a build that returns something
    other than a Plan.
    """
    if not callable(build):
        raise TypeError(f"build: expected a function that returns a Plan, got {build!r}")
    values = {name: _values(name, given) for name, given in axes.items()}
    if not values:
        raise TypeError("no axes: give values for the arguments of build, such as n_kv=[256, 8192]")
    with _progress(progress) as show:
        return _Sweeping(build, values, show, predict).run()


def _values(name: str, given: Any) -> tuple[Value, ...]:
    """The distinct values of an axis; integers are sorted."""
    if isinstance(given, str | int | float | None):
        given = [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"{name}={given!r}: expected values for build's argument {name}")
    values = [v.item() if hasattr(v, "item") else v for v in given]  # numpy's integers
    if not values:
        raise ValueError(f"{name}: no values, expected at least one")
    for value in values:
        if not isinstance(value, str | int | float | None):
            raise TypeError(f"{name}: {value!r}: expected integers, or words and flags")
    values = list(dict.fromkeys(values))
    return tuple(sorted(values) if all(map(_is_integer, values)) else values)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _Sweeping:
    """One sweep. Plans are built when they are needed, and the latest ones are kept."""

    def __init__(
        self,
        build: Callable[..., Planned | None],
        axes: dict[str, tuple[Value, ...]],
        show: Progress,
        predict: Predict | None = None,
    ) -> None:
        self.predict = predict
        self.build, self.axes, self.show = build, axes, show
        self.names = tuple(axes)
        self.n_builds = 0
        self.plan = lru_cache(_KEPT)(self.built)
        self.signatures: dict[tuple[Value, ...], bytes | None] = {}
        # Values next to found thresholds, by axis: other lines often have the same ones.
        self.found: dict[str, list[int]] = {name: [] for name in axes}

    def run(self) -> Sweep:
        grid = list(product(*self.axes.values()))
        self.show("", len(grid))
        points = []
        for place in grid:
            self.signature(place)
            plan = self.plan(place)
            point = Point(self.shape(place), None) if plan is None else self.point(place, plan)
            points.append(point)
        thresholds = [
            threshold
            for i, name in enumerate(self.names)
            for others in product(*(v for n, v in self.axes.items() if n != name))
            for a, b in pairwise(self.axes[name])
            for threshold in self.between((*others[:i], a, *others[i:]), b, i)
        ]
        return Sweep(self.axes, tuple(points), tuple(thresholds), self.n_builds)

    def point(self, place: tuple[Value, ...], plan: Planned) -> Point:
        return Point(self.shape(place), totals(plan), self.time(place, plan))

    def time(self, place: tuple[Value, ...], plan: Planned) -> Time:
        return None if self.predict is None else self.predict(plan, self.shape(place))

    def shape(self, place: tuple[Value, ...]) -> Shape:
        return dict(zip(self.names, place, strict=True))

    def built(self, place: tuple[Value, ...]) -> Planned | None:
        """The plan of a shape."""
        shape = self.shape(place)
        self.n_builds += 1
        try:
            plan = self.build(**shape)
        except Exception as error:
            add_note = getattr(error, "add_note", None)  # Python 3.11
            if add_note:
                add_note(f"while sweep built the plan for {describe(shape)}")
            raise
        if plan is not None and not isinstance(plan, Planned):
            raise TypeError(f"build({describe(shape)}) returned {plan!r}: expected a Plan or None")
        self.show(describe(shape), 0)
        return plan

    def signature(self, place: tuple[Value, ...]) -> bytes | None:
        """A hash of the plan's decisions; None if there is no plan."""
        if place not in self.signatures:
            plan = self.plan(place)
            self.signatures[place] = None if plan is None else signature(plan)
        return self.signatures[place]

    def between(self, place: tuple[Value, ...], to: Value, i: int) -> Iterator[Threshold]:
        """The thresholds from `place` to the value `to` of axis i."""
        end = (*place[:i], to, *place[i + 1 :])
        ours, theirs = self.signature(place), self.signature(end)
        if ours == theirs or ours is None or theirs is None:
            return
        low, high = place[i], to
        if not (_is_integer(low) and _is_integer(high)) or high - low == 1:  # type: ignore[operator]
            yield self.threshold(place, end, i)
            return
        assert isinstance(low, int) and isinstance(high, int)
        known = [v for v in self.found[self.names[i]] if low < v < high]
        value = known[0] if known else (low + high) // 2
        middle = (*place[:i], value, *place[i + 1 :])
        self.show("", int(middle not in self.signatures))
        if self.signature(middle) is None:
            yield self.threshold(place, end, i)
            return
        yield from self.between(place, value, i)
        yield from self.between(middle, to, i)

    def threshold(self, place: tuple[Value, ...], end: tuple[Value, ...], i: int) -> Threshold:
        name, before, after = self.names[i], self.plan(place), self.plan(end)
        assert before is not None and after is not None
        for value in (place[i], end[i]):
            if _is_integer(value) and value not in self.found[name]:
                self.found[name].append(value)  # type: ignore[arg-type]
        at = {n: v for n, v in self.shape(place).items() if n != name}
        found = compare(name, place[i], end[i], at, before, after)
        return replace(
            found, time_before=self.time(place, before), time_after=self.time(end, after)
        )


@contextmanager
def _progress(wanted: bool | None) -> Iterator[Progress]:
    """Calls with builds > 0 add expected builds; a call with 0 marks one build as done."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda _what, _builds: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=console.is_terminal) as bar:
        task, total = bar.add_task("plans", total=0), 0

        def show(what: str, builds: int) -> None:
            nonlocal total
            total += builds
            if builds:
                bar.update(task, total=total)
            else:
                bar.update(task, advance=1, description=escape(visible(f"plans, {what}")))

        yield show


# --- what is different


@typed
def signature(plan: Planned) -> bytes:
    """A hash of a plan's decisions: where each node is computed, where the splits are cut, and what
    is copied for them. Names that ggml made up do not count."""
    rows: list[Any] = []
    keys = [key_of(t) for t in plan.tensors]
    for split in plan.split_records:
        rows.append((plan.backends[split.backend].name, [keys[i] for i, _copy in split.inputs]))
        nodes = plan.nodes[split.start : split.end]
        rows += [(keys[n.id], n.backend) for n in nodes if not n.is_view_op]
    return hashlib.blake2b(repr(rows).encode(), digest_size=16).digest()


@typed
def totals(plan: Planned) -> Totals:
    """A plan in numbers."""
    nodes = plan.nodes_per_backend()
    return Totals(sum(nodes.values()), plan.n_splits, plan.n_inputs, plan.copy_bytes, nodes)


@typed
def compare(
    axis: str, low: Value, high: Value, at: Shape, before: Planned, after: Planned
) -> Threshold:
    """The threshold between two plans."""
    match = match_tensors(before.capture, after.capture)
    both = [(before.tensor(i), after.tensor(j)) for i, j in sorted(match.pairs.items())]
    computed = [(x, y) for x, y in both if x.is_computed and y.is_computed]
    moved = [_moved(x, y) for x, y in computed if x.backend != y.backend]
    matched = set(match.pairs.values())
    return Threshold(
        axis,
        low,
        high,
        at,
        tuple(sorted(moved, key=lambda m: not m.decides)),
        sum(before.tensor(i).is_computed for i in match.compared[0] if i not in match.pairs),
        sum(after.tensor(j).is_computed for j in match.compared[1] if j not in matched),
        totals(before),
        totals(after),
    )


def _moved(x: PlanTensor, y: PlanTensor) -> Moved:
    answer = _other_answer(x, y)
    return Moved(
        label(y),
        y.record.op_desc,
        x.id,
        x.backend,
        y.backend,
        x.placement.cause,
        y.placement.cause,
        answer or y.cause.text,
        decides=answer is not None,
    )


def _other_answer(x: PlanTensor, y: PlanTensor) -> str | None:
    """The changed answer of the node's old or new backend, in a sentence; None if none changed."""
    for backend in (x.backend, y.backend):
        old, new = (_answer(t, backend, "supports") for t in (x, y))
        if old is not None and new is not None and old != new:
            says = "supports" if new else "does not support"
            b = y.plan.capture.backend_index(str(backend))
            if (why := refused(y, b)) is not None and why.kind != OP:
                return why.clause(y)
            return f"{backend} {says} it with {_sizes(x, y)}"
    for backend, cause in ((x.backend, x.placement.cause), (y.backend, y.placement.cause)):
        old, new = (_answer(t, backend, "offload") for t in (x, y))
        if cause == causes.OFFLOADED.code and old is not None and new is not None and old != new:
            says = "wants" if new else "does not want"
            rows = f"{batch_size(y.record)} rows instead of {batch_size(x.record)}"
            return f"{backend} {says} it with {rows}; its weight is in host memory"
    return None


def _answer(t: PlanTensor, backend: str | None, question: str) -> bool | None:
    """The answer of a backend about a tensor; None if the plan does not have the backend."""
    names = [b.name for b in t.plan.backends]
    if backend not in names:
        return None
    return bool(getattr(t.record, question) >> names.index(backend) & 1)


def _sizes(x: PlanTensor, y: PlanTensor) -> str:
    """The types and shapes that changed, of the result and the sources."""
    pairs = [("its result", x, y)]
    sources = zip(x.srcs, y.srcs, strict=False)
    pairs += [(f"src[{i}] {quoted(b)}", a, b) for i, (a, b) in enumerate(sources)]
    changed = [
        f"{what} {shape(b)} instead of {shape(a)}"
        for what, a, b in pairs
        if (a.type, a.ne) != (b.type, b.ne)
    ]
    return ", ".join(changed) or "the same types and sizes"

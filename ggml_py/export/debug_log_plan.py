"""The plan in a debug print of ggml's scheduler, as far as the print shows it.

A print has the computed nodes, with the names of their sources. Backends, splits and copies follow
from it. Shapes, types, what the backends support and where weights are do not. `unknown` says in
sentences what is missing, and what was inferred rather than read.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from ..trace import causes
from ..trace.answers.excerpt import limits
from ..trace.names import counted, is_cache
from ..trace.planned import Planned
from ..trace.planning import copy_record
from ..trace.record import (
    DUMPED_BACKEND,
    DUMPED_NAME,
    DUMPED_OP,
    LEAF,
    NODE,
    OTHER,
    UNPRINTED_OP,
    BackendRecord,
    Capture,
    Outcome,
    Placement,
    PrintRecord,
    Settings,
    SplitRecord,
    TensorRecord,
    dumped_name,
    named_tensor,
)  # fmt: skip
from ..trace.rules import find_release
from ..trace.split import possible_optimizers
from ..trace.units import AtLeast
from .debug_log import NodeLine, Printed, PrintedInput, SplitLine, dumps

SOURCE = "debug log"
_NOBODY = "NULL"  # what is printed for a copy
_MAX_COPIES = 4  # GGML_SCHED_MAX_COPIES
# What ggml appends to the names of views, and their ops.
_VIEWS = {
    " (view)": "VIEW", " (reshaped)": "RESHAPE", " (permuted)": "PERMUTE",
    " (transposed)": "TRANSPOSE",
}  # fmt: skip

# llama.cpp's graphs write to a cache before they read it.
_WRITES = ("SET_ROWS", "CPY")

_COPY_NUMBER = re.compile(r"#\d?$")  # at the end of a copy's name, which may be cut off

# A copy that has no id yet: the tensor, the backend, and its number among several.
_Copy = tuple[int, int, int]


def from_debug_log(text: str, index: int = -1, upstream: str | None = None) -> Planned:
    """The plan of debug print number `index` in a log (default: the last)."""
    if upstream is not None:
        upstream = find_release(upstream).ggml
    found = dumps(text)
    if not -len(found) <= index < len(found):
        raise ValueError(f"index={index}: this log has {counted(len(found), 'debug print')}")
    *before, last = found[index]
    for split in before:
        # ggml begins each with a printed node, or prints none in any
        if not split.nodes and (last.nodes or any(s.nodes for s in before)):
            raise ValueError(
                f"split {split.index} of debug print {index} has no nodes: a part of the log is "
                "missing"
            )
    return _Reading(found[index]).plan(upstream)


class _Reading:
    """Turns one print into a plan."""

    def __init__(self, splits: list[SplitLine]) -> None:
        self.splits = splits
        self.lines = [node for split in splits for node in split.nodes]
        first = splits[0]
        self.begins_late = first.is_headless or first.index > 0
        self.first_node = self.lines[0].index if self.lines and self.begins_late else 0
        self.n_nodes = self.lines[-1].index + 1 - self.first_node if self.lines else 0
        names = [t.name for line in self.lines for t in (line.tensor, *line.sources)]
        self.width = max([DUMPED_NAME, *(len(name.encode()) for name in names)])
        self.backends = self._backends()
        # Nodes in between are views, which are not printed.
        self.tensors = [_record(i, NODE, "", "VIEW", 0) for i in range(self.n_nodes)]
        self.places = [Placement(-1, "", causes.NOT_KNOWN, (), ())] * self.n_nodes
        self.planned: dict[int, list[int | _Copy]] = {}  # what each node reads
        self.printed: dict[int, Printed] = {}
        self.by_name: dict[str, list[int]] = defaultdict(list)  # printed name -> ids
        self.inputs: list[list[int]] = []  # of each split
        self.copies: dict[tuple[int, int], Printed | None] = {}  # (tensor, backend): as read
        # (backend, name as printed) -> tensor -> which of its copies
        self.copy_names: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
        self.cur_copy = 0

    def plan(self, upstream: str | None) -> Planned:
        for split in self.splits:
            on = self._on(split)
            inputs = self._read_copies(split) if split.is_headless else split.inputs
            self.inputs.append([self._input(i.name, i.nbytes, on) for i in inputs])
            self._make_copies(self.inputs[-1], on)
            for line in split.nodes:
                self._node(line, on)
        settings = Settings(
            upstream=upstream or self._upstream(),
            build="",
            op_offload=True,
            n_copies=_MAX_COPIES if self.cur_copy else 1,
            cur_copy=self.cur_copy,
            hash_set_size=0,
            pins_elsewhere=0,
        )
        leafs = tuple(t.id for t in self.tensors if t.kind == LEAF)
        backends = tuple(BackendRecord(name, "", "", -1) for name in self.backends)
        capture = Capture(
            settings, backends, (), (), tuple(self.tensors), leafs,
            optimizers=possible_optimizers([b.name for b in backends]), source=SOURCE,
            may_be_cut=self.splits[-1].may_be_cut,
            printed=PrintRecord(
                self.splits[0].index, self.first_node, self.splits[0].is_headless, self._end(),
                bool(self.lines), self.width,
            ),
        )  # fmt: skip
        return Planned(capture, self._outcome(capture), SOURCE)

    def _end(self) -> str:
        """Whether nodes are missing at the end (`PrintRecord.end`). A print has no last line, but
        a node says how many others read it."""
        last = self.splits[-1]
        if not last.is_last or (self.lines and not last.nodes):
            return "cut"
        if not self.lines:
            return "open" if last.may_be_cut else ""
        on = self._on(last)
        # A node of the split that is printed reads each of the split's inputs.
        lacks_reader = any(self.copies[i, on] is None for i in self.inputs[-1])
        line = last.nodes[-1]
        is_write = line.op in _WRITES and is_cache(line.tensor.name.partition(" (")[0])
        is_open = last.may_be_cut or lacks_reader or is_write or self._has_unread_nodes()
        return "open" if is_open else ""

    def _has_unread_nodes(self) -> bool:
        """Whether a node has more readers than the print accounts for: printed nodes, and views,
        which are not printed. Each view reads one tensor, and has a higher number than that."""
        read: Counter[int] = Counter()
        for t in self.tensors:
            read.update(t.src)
        views = [t for t in self.tensors if t.kind == OTHER and t.op in _VIEWS.values()]
        read.update(t.view_src for t in views)
        printed = {line.index - self.first_node for line in self.lines}
        unread = n_views = 0  # readers that are missing; views that may be others
        for t in reversed(self.tensors[: self.n_nodes]):
            if t.id not in printed:
                n_views += 1
                continue
            missing = max(0, t.use_count - read[t.id])
            if missing > n_views:
                return True
            n_views -= missing
            unread += missing
        # The sources of views with a known name are counted. The graph may end with one more view.
        return unread - (self.n_nodes - len(printed) - len({t.name for t in views})) > 1

    def _upstream(self) -> str:
        """The oldest release that prints like this."""
        if any(line.compute is None for line in self.lines):
            return "0.9.4"
        old = any(line.op in ("UNARY", "GLU") for line in self.lines)
        return "0.9.7" if old else "0.11.0"

    # --- backends

    def _backends(self) -> list[str]:
        """The backends: full names where a split has them, otherwise as far as they are printed.
        The print does not show their priority, but ggml requires that the CPU is last."""
        names = list(dict.fromkeys(map(self._name_of, self.splits)))
        for line in self.lines:
            for t in (line.tensor, *line.sources):
                if t.backend != _NOBODY and all(
                    dumped_name(n, DUMPED_BACKEND).strip() != t.backend for n in names
                ):
                    names.append(t.backend)
        return sorted(names, key=lambda name: name == "CPU")

    def _backend(self, printed: str, on: int) -> int:
        """The number of a printed backend. If several begin alike, it is the split's: tensors on
        another backend are copied and read under another name."""
        if printed == _NOBODY:
            return -1
        same = [
            b
            for b, name in enumerate(self.backends)
            if dumped_name(name, DUMPED_BACKEND).strip() == printed
        ]
        return on if on in same else same[0]

    def _on(self, split: SplitLine) -> int:
        """The number of a split's backend."""
        return self.backends.index(self._name_of(split))

    def _name_of(self, split: SplitLine) -> str:
        """The name of a split's backend. If the split's first line is missing, it is only whole if
        its nodes read copies, whose names begin with it."""
        for t in (t for line in split.nodes for t in line.sources if split.is_headless):
            whole, mark, _name = t.name.partition("#")
            cut = dumped_name(whole, DUMPED_BACKEND).strip()
            if t.backend == _NOBODY and mark and cut == split.backend:
                return whole
        return split.backend

    # --- nodes and what they read

    def _node(self, line: NodeLine, on: int) -> None:
        planned = [self._source(t, on) for t in line.sources]
        cause, weight = line.tensor.cause, -1
        if causes.is_of(causes.WEIGHT, cause):
            weight = causes.source_of(causes.WEIGHT, cause)
        if planned and len(planned) <= weight:
            # Empty sources are not printed. The weight that it follows is the last, after them.
            holes = weight + 1 - len(planned)
            planned[-1:] = [*[-1] * holes, planned[-1]]
        src = tuple(s if isinstance(s, int) else s[0] for s in planned)
        flags = ("compute",) if line.compute else ()
        t, id = line.tensor, line.index - self.first_node
        record = _record(id, NODE, t.name, line.op, t.nbytes)
        self.tensors[id] = record._replace(src=src, flags=flags, use_count=line.use_count)
        self.planned[id] = planned
        self._place(id, t, on)

    def _place(self, id: int, t: Printed, on: int) -> None:
        self.places[id] = Placement(
            self._backend(t.backend, on), t.cause, causes.stage_of_print(t.cause), (), ()
        )
        self.printed[id] = t
        self.by_name[t.name].append(id)

    def _source(self, t: Printed, on: int) -> int | _Copy:
        """What a node reads: a copy, an earlier node, or a tensor without a line of its own."""
        if t.backend == _NOBODY and (copy := self._copy(t, on)):
            return copy
        same = [i for i in self.by_name[t.name] if self.printed[i] == t]
        if same:
            return next((i for i in reversed(same) if self.places[i].backend == on), same[-1])
        for i in reversed(self.by_name[t.name]):
            # an input of a split whose backend was not known yet
            if self.places[i].backend == -1 and self.printed[i].nbytes == t.nbytes:
                self.by_name[t.name].remove(i)
                self._place(i, t, on)
                return i
        return self._other(t, on)

    def _other(self, t: Printed, on: int) -> int:
        """Adds a tensor that a node reads and no line prints: a leaf or a view. In an excerpt that
        begins late it may also be a node before it."""
        base, op = t.name, ""
        while suffix := next((s for s in _VIEWS if base.endswith(s)), ""):
            base, op = base.removesuffix(suffix), op or _VIEWS[suffix]
        viewed = [
            i for i in self.by_name[base]
            if op or (i < self.n_nodes and self.printed[i].nbytes == t.nbytes)
        ]  # fmt: skip
        id = len(self.tensors)
        if op or viewed:  # llama.cpp names views after what they view
            record = _record(id, OTHER, t.name, op or "VIEW", t.nbytes)
            record = record._replace(view_src=viewed[-1] if viewed else -1)
        elif self.begins_late:
            record = _record(id, OTHER, t.name, UNPRINTED_OP, t.nbytes)
        else:
            record = _record(id, LEAF, t.name, "NONE", t.nbytes)
        self.tensors.append(record)
        self.places.append(Placement(-1, "", causes.NOT_KNOWN, (), ()))
        self._place(id, t, on)
        return id

    # --- copies, which are read under the name "BACKEND#tensor#number"

    def _input(self, name: str, nbytes: int, on: int) -> int:
        """The tensor that is copied as an input of a split. Its name is complete here."""
        printed = dumped_name(name, self.width).lstrip(" ")
        for i in reversed(self.by_name[printed]):
            t = self.tensors[i]
            if t.name in (name, printed) and t.nbytes == nbytes and self.places[i].backend != on:
                break
        else:
            i = self._other(Printed(printed, nbytes, _NOBODY, ""), on)
        self.tensors[i] = self.tensors[i]._replace(name=name)
        return i

    def _read_copies(self, split: SplitLine) -> list[PrintedInput]:
        """The inputs of a split whose first line is missing, as far as its nodes read them."""
        found: dict[str, PrintedInput] = {}
        for t in (t for line in split.nodes for t in line.sources):
            _backend, mark, name = t.name.partition("#")
            if t.backend == _NOBODY and mark:
                name = _COPY_NUMBER.sub("", name)
                found.setdefault(name, PrintedInput(name, t.nbytes))
        return list(found.values())

    def _make_copies(self, inputs: list[int], on: int) -> None:
        for i in inputs:
            if (i, on) not in self.copies:
                self.copies[i, on] = None
                for c in reversed(range(_MAX_COPIES)):  # the first if the number is cut off
                    name = f"{self.backends[on]}#{self.tensors[i].name}#{c}"
                    self.copy_names[on, dumped_name(name, self.width)][i] = c

    def _copy(self, t: Printed, on: int) -> _Copy | None:
        """The copy for the split's backend that is printed like this. Inputs are in the order of
        their first use, which distinguishes inputs whose names begin alike."""
        named = self.copy_names.get((on, t.name), {})
        fitting = [i for i in named if self.tensors[i].nbytes == t.nbytes]
        new = [i for i in fitting if self.copies[i, on] is None]
        again = [i for i in fitting if self.copies[i, on] == t]
        if not new and not again:
            return None
        i = new[0] if new else again[-1]
        self.copies[i, on] = t
        self.cur_copy = max(self.cur_copy, named[i])
        return i, on, named[i]

    # --- the result

    def _outcome(self, capture: Capture) -> Outcome:
        now = capture.settings.cur_copy
        numbers = {key: len(self.tensors) + n for n, key in enumerate(sorted(self.copies))}
        copies, splits = [], []
        for (i, b), number in numbers.items():
            copies.append(copy_record(capture, self.tensors[i], number, b, now))
            read = self.copies[i, b]
            cause = read.cause if read else ""
            self.places.append(Placement(b, cause, causes.PASS_5.number, (), (), i, now))
        for id, planned in self.planned.items():
            ids = [s if isinstance(s, int) else numbers[s[:2]] for s in planned]
            self.places[id] = self.places[id]._replace(planned_src=tuple(ids))
        firsts = [s.nodes[0].index - self.first_node if s.nodes else None for s in self.splits]
        starts = [0] + [self.n_nodes if first is None else first for first in firsts[1:]]
        ends = [*starts[1:], self.n_nodes]
        for split, start, end, inputs in zip(self.splits, starts, ends, self.inputs, strict=True):
            on = self._on(split)
            pairs = tuple((i, numbers[i, on]) for i in inputs)
            splits.append(SplitRecord(on, start, end, pairs))
        return Outcome(tuple(self.places), tuple(copies), tuple(splits), 0)


def _record(id: int, kind: str, name: str, op: str, nbytes: int) -> TensorRecord:
    return named_tensor(id, kind, name, op, AtLeast(nbytes))


# --- what a print does not show


def unknown(plan: Planned) -> tuple[str, ...]:
    """Facts about a plan that its log does not print, in sentences; () unless it is from a log."""
    if plan.capture.source != SOURCE:
        return ()
    views = sum(n.op == "VIEW" and not n.name for n in plan.nodes)
    named = [t for t in plan.tensors if t.name]
    ops = sum(len(n.op) == DUMPED_OP for n in plan.nodes)
    whole = {split.backend for split in plan.splits}
    short = [b.name for b in plan.backends if len(b.name) == DUMPED_BACKEND and b.name not in whole]
    begins = Counter(dumped_name(b.name, DUMPED_BACKEND) for b in plan.backends)
    alike = [b.name for b in plan.backends if begins[dumped_name(b.name, DUMPED_BACKEND)] > 1]
    lost = [t.name for t in plan.leafs if t.backend is None]
    printed = plan.capture.printed
    width = DUMPED_NAME if printed is None else printed.name_width
    long = sum(len(t.name.encode()) == width for t in named)
    sentences = [
        *limits(plan.capture),
        "shapes, types and op parameters are not printed, so FLOPs and bytes per device are not "
        "known",
        "sizes are printed in whole KiB or MiB: numbers of bytes are lower bounds, and 0 means "
        "less than 1 KiB",
        "what the backends support, pins, and the buffers of weights are not printed, so steps, "
        "reference, why_not and what_if need a plan that Plan.to_json wrote",
        f"ggml's version is not printed: assumed to be {plan.settings.upstream}",
        f"the priority of the backends is not printed: assumed to be "
        f"{', '.join(b.name for b in plan.backends)}",
        "sources are found by name: one without a line is assumed to be a leaf, but may be a view",
    ]
    if plan.capture.may_be_cut:
        sentences.append(
            "the last line of the log may be cut off: node "
            f"{plan.capture.first_node + len(plan.nodes) - 1} may have more sources than are "
            "known, and more nodes may follow"
        )
    elif not plan.capture.is_partial:
        sentences.append(
            "a print has no last line: nodes that a log lost at its end are only noticed if they "
            "read printed nodes"
        )
    if views:
        which = counted(views, "node is a view", "nodes are views")
        sentences.append(f"{which}: views are not printed, so they have no names here")
    if long:
        sentences.append(
            f"names are cut at {width} bytes: {long} of them may be longer, and may stand "
            "for several tensors each"
        )
    if ops:
        sentences.append(
            f"ops are cut at {DUMPED_OP} bytes: those of {counted(ops, 'node')} may be longer"
        )
    if short:
        sentences.append(
            f"names of backends without a split are cut at 5 bytes: {', '.join(short)}"
        )
    if alike:
        sentences.append(
            f"names of backends are cut at 5 bytes, and {', '.join(alike)} begin alike: tensors "
            "that no split computes are assumed to be where they are read"
        )
    if lost:
        names = ", ".join(lost[:5]) + (", …" if len(lost) > 5 else "")
        which = counted(len(lost), "tensor is", "tensors are")
        sentences.append(f"where {which} copied from is not printed: {names}")
    if free := [s.backend for s in plan.splits if s.order is None]:
        sentences.append(
            "nodes are printed in the graph's order: it is not known whether "
            f"{', '.join(dict.fromkeys(free))} computes them in another"
        )
    if not plan.has_causes and plan.nodes:
        sentences.append("causes are not printed: stock ggml leaves their column empty")
    return tuple(sentences)

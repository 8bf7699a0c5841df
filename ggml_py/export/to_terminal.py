"""Plans as tables for a terminal (rich)."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..files.foreign import visible
from ..trace.answers.diff import Diff
from ..trace.answers.remedy import Remedy, remedy_of
from ..trace.answers.shares import format_count, headline, shares
from ..trace.answers.sweep import Sweep, describe, moved_rows, told_time
from ..trace.answers.why_splits import WhySplits, why_splits
from ..trace.expert_cache import expert_cache
from ..trace.names import counted
from ..trace.planned import Planned, PlanTensor, Split, SplitInput, format_bytes
from .passes_by_layer import lines as passes_by_layer
from .snapshot_plan import unknown
from .split_reasons import lines as why_lines
from .split_reasons import numbers, short_ops

_ANY_WIDTH = 100_000
_GROUPS = 5  # rows of groups of splits; if there are more, the last row is for all others
_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


class _Console(Console):
    """Shows text as it is: brackets are no markup, colons no emoji, escapes do nothing."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Like rich's, which renders all texts."""
        return super().render_str(visible(text), **settings)

    def on_broken_pipe(self) -> None:
        """Raises the exception again: rich would end the process with status 1."""
        raise


def new_console() -> Console:
    """A console as wide as the terminal. In a pipe or a file nothing is wrapped or cut, so grep
    finds whole names, unless COLUMNS sets a width."""
    console = _Console()
    if not console.is_terminal and not console.is_jupyter and "COLUMNS" not in os.environ:
        console.width = _ANY_WIDTH
    return console


def show(
    plan: Planned,
    nodes: bool = False,
    why: WhySplits | None = None,
    remedy: Remedy | None = None,
    console: Console | None = None,
) -> None:
    """Prints the headline, each backend's share, the splits, and the reasons for their number. With
    `nodes` it prints every split, every node with its cause, and memory. `why` and `remedy` are
    computed from the plan unless `why` is given."""
    console = console or new_console()
    if why is None:
        why = why_splits(plan)
        remedy = remedy_of(plan, why)
    console.print(headline(plan), style="bold", soft_wrap=True)
    console.print(devices_table(plan))
    if nodes and plan.breakdown:
        console.print(memory_table(plan))
    console.print(splits_table(plan) if nodes else groups_table(plan, why))
    for line in why_lines(plan, why, remedy, console.width):
        _print(console, line)
    for cache in expert_cache(plan):
        _print(console, str(cache))
    for choice in plan.choices:
        _print(console, str(choice))
        for flip in choice.flips:
            _print(console, f"  > {flip}")
    if nodes:
        console.print(nodes_table(plan))
    if plan.promise.text:
        console.print(plan.promise.text, soft_wrap=True)
    for sentence in unknown(plan):
        console.print(f"not known: {sentence}", style="dim", soft_wrap=True)


def show_diff(diff: Diff, limit: int | None = 20, console: Console | None = None) -> None:
    """Prints what differs, a table for each kind of difference (the first `limit` rows)."""
    console = console or new_console()
    console.print(diff.headline(), style="bold", soft_wrap=True)
    for title, rows in diff.sections():
        table = Table(title=title, title_justify="left", show_header=False)
        for row in rows[:limit]:
            what, separator, how = row.partition(": ")
            table.add_row(what, how if separator else "")
        if limit is not None and limit < len(rows):
            table.add_row("…", f"{len(rows) - limit} more")
        console.print(table)


def memory_table(plan: Planned) -> Table:
    """MiB of the context's buffers by type, as llama.cpp's log has them."""
    table = plain_table()
    table.add_column("memory (MiB)")
    for column in ("weights", "cache", "compute"):
        table.add_column(column, justify="right")
    for row in plan.breakdown:
        sizes = (row.weights, row.cache, row.compute)
        table.add_row(row.buft, *("?" if n is None else f"{n / 2**20:.2f}" for n in sizes))
    return table


def devices_table(plan: Planned) -> Table:
    """A row per backend: its share of nodes, FLOPs, bytes read and written, and weights."""
    table = plain_table()
    table.add_column("backend")
    for column in ("nodes", "FLOPs", "read and written", "weights held"):
        table.add_column(column, justify="right")
    parts = shares(plan)
    if parts is None:
        for name, n in plan.nodes_per_backend().items():
            table.add_row(_backend(plan, name), str(n) if plan.nodes else "?", "?", "?", "?")
    for s in parts or ():
        table.add_row(
            _backend(plan, s.backend),
            f"{s.nodes} ({s.node_share:.0%})",
            f"{format_count(s.flops)} ({s.flops_share:.0%})",
            f"{format_bytes(s.bytes)} ({s.bytes_share:.0%})",
            format_bytes(s.weight_bytes),
        )
    return table


def show_passes(plan: Planned, console: Console | None = None) -> None:
    """Prints the assignment after each pass, by layer, in pieces that fit the terminal."""
    console = console or new_console()
    for line in passes_by_layer(plan, console.width if console.is_terminal else None):
        _print(console, line)


def _print(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True)


def groups_table(plan: Planned, why: WhySplits) -> Table:
    """A row per group of equal splits. If there are many groups: those with the most splits."""
    table = plain_table()
    for column in ("splits", "backend", "ops"):
        table.add_column(column, no_wrap=column != "ops")
    table.add_column("copied in", justify="right", no_wrap=True)
    n_shown = _GROUPS - (len(why.groups) > _GROUPS)
    most = sorted(why.groups, key=lambda g: (-len(g.splits), -g.copy_bytes))[:n_shown]
    for group in why.groups:
        if group in most:
            copied = format_bytes(group.copy_bytes) if group.n_inputs else "–"
            ops = short_ops(group.ops)
            table.add_row(numbers(group), _backend(plan, group.backend), ops, copied)
    others = [g for g in why.groups if g not in most]
    if others:
        n = counted(sum(len(g.splits) for g in others), "split")
        copied = format_bytes(sum(g.copy_bytes for g in others))
        table.add_row("…", "", f"{n} of {counted(len(others), 'other kind')}", copied)
    return table


def plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def splits_table(plan: Planned) -> Table:
    """A row per split: backend, nodes, and what is copied in."""
    table = Table(title="splits", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("backend")
    table.add_column("nodes", justify="right")
    table.add_column("ops")
    table.add_column("first node")
    table.add_column("copied in", justify="right")
    first = plan.capture.first_node
    for split in plan.splits:
        table.add_row(
            str(split.number),
            _backend(plan, split.backend),
            f"{first + split.start}–{first + split.end - 1}" if split.nodes else "?",
            _ops(split),
            _name(split.nodes[0]) if split.nodes else "?",
            _inputs(split),
        )
    return table


def nodes_table(plan: Planned) -> Table:
    """A row per computed node: where it is, and why."""
    table = Table(title="computed nodes", title_justify="left")
    for column in ("#", "name", "op", "type", "ne", "backend", "cause", "why"):
        table.add_column(column, justify="right" if column == "#" else "left")
    for node in plan.nodes:
        if node.is_computed:
            cause = node.cause
            ne = "×".join(map(str, node.ne))
            table.add_row(
                str(plan.capture.first_node + node.id), node.name, node.record.op_desc,
                node.type, ne, _backend(plan, node.backend), cause.code, cause.text,
            )  # fmt: skip
    return table


def _backend(plan: Planned, name: str | None) -> Text:
    names = [b.name for b in plan.backends]
    if name is None:
        return Text("?")
    return Text(visible(name), _COLOURS[names.index(name) % len(_COLOURS)])


def _name(node: PlanTensor) -> str:
    return node.name or f"node {node.index}"


def _ops(split: Split) -> str:
    counts = Counter(n.record.op_desc for n in split.nodes if n.is_computed)
    return short_ops(counts.most_common())


def _input(given: SplitInput) -> str:
    src = given.src_backend  # a debug log may not tell
    return f"{given.tensor.name} from {src}" if src else given.tensor.name


def _inputs(split: Split) -> str:
    if not split.inputs:
        return "–"
    total = format_bytes(split.copy_bytes)
    named = ", ".join(map(_input, split.inputs[:3]))
    more = f", {len(split.inputs) - 3} more" if len(split.inputs) > 3 else ""
    return f"{total}: {named}{more}"


def show_sweep(sweep: Sweep, console: Console | None = None) -> None:
    """Prints the table of plans over shapes, then where and why the plan changes."""
    console = console or new_console()
    console.print(sweep_table(sweep))
    for threshold, places in sweep.grouped():
        where = " or ".join(filter(None, map(describe, places)))
        headline = threshold.headline() + (f", at {where}" if where else "")
        console.print(headline, style="bold", soft_wrap=True)
        for row in moved_rows(threshold):
            console.print(f"  {row}", soft_wrap=True)
    if not sweep.thresholds:
        console.print("the plan is the same everywhere", style="bold")


def sweep_table(sweep: Sweep) -> Table:
    """A row per shape: splits, copies, bytes, nodes on each backend."""
    table = Table(title="plans", title_justify="left")
    planned = [p.totals for p in sweep.points if p.totals is not None]
    backends = list(dict.fromkeys(b for n in planned for b in n.nodes_per_backend))
    timed = any(point.time for point in sweep.points)
    predicted = ["predicted"] * timed
    for column in (*sweep.axes, "splits", "copies", "copied", *backends, *predicted):
        table.add_column(column, justify="right")
    for point in sweep.points:
        row, n = [str(value) for value in point.shape.values()], point.totals
        if n is not None:
            row += [str(n.n_splits), str(n.n_copies), format_bytes(n.copy_bytes)]
            row += [str(n.nodes_per_backend.get(b, 0)) for b in backends]
            row += [told_time(point.time) or "not known"] * timed
        table.add_row(*row)
    return table

"""Plans as tables for a terminal (rich)."""

from __future__ import annotations

from collections import Counter

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
from .console import new_console, new_table, say
from .passes_by_layer import lines as passes_by_layer
from .snapshot_plan import unknown
from .split_reasons import lines as why_lines
from .split_reasons import numbers, short_ops
from .wrapping import MANY

_GROUPS = 5  # rows of groups of splits; if there are more, the last row is for all others
_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


def show(
    plan: Planned,
    nodes: bool = False,
    why: WhySplits | None = None,
    remedy: Remedy | None = None,
    console: Console | None = None,
) -> None:
    """Prints splits and copies, each backend's share, the splits, and the reasons for their number.
    With `nodes` it prints every split, every node with its cause, and memory. `why` and `remedy`
    are computed from the plan unless `why` is given."""
    console = console or new_console()
    if why is None:
        why = why_splits(plan)
        remedy = remedy_of(plan, why)
    line = headline(plan)  # the table has the rest
    say(line.partition(", nodes: ")[0] if plan.nodes else line, console=console, style="bold")
    console.print(devices_table(plan))
    if nodes and plan.breakdown:
        console.print(memory_table(plan))
    console.print(splits_table(plan) if nodes else groups_table(plan, why))
    for line in why_lines(plan, why, remedy, console.width):
        console.print(line, soft_wrap=True)
    for cache in expert_cache(plan):
        say(str(cache), console=console)
    for choice in plan.choices:
        say(str(choice), console=console)
        for flip in choice.flips:
            say(flip, "  > ", console)
    if nodes:
        console.print(nodes_table(plan, console.width))
    if plan.promise.text:
        say(plan.promise.text, console=console)
    for sentence in unknown(plan):
        say(f"not known: {sentence}", console=console, style="dim")


def show_diff(
    diff: Diff, limit: int | None = 20, console: Console | None = None, verdict: str = ""
) -> None:
    """Prints the verdict, or else the headline, and a table for each kind of difference (the first
    `limit` rows)."""
    console = console or new_console()
    say(verdict or diff.headline(), console=console, style="bold")
    for title, rows in diff.sections():
        table = new_table("", "", title=title)
        table.show_header = False
        for row in rows[:limit]:
            what, separator, how = row.partition(": ")
            table.add_row(what, how if separator else "")
        if limit is not None and limit < len(rows):
            table.add_row("…", f"{len(rows) - limit} more")
        console.print(table)


def memory_table(plan: Planned) -> Table:
    """MiB of the context's buffers by type, as llama.cpp's log has them."""
    table = new_table("memory (MiB)", ">weights", ">cache", ">compute")
    for row in plan.breakdown:
        sizes = (row.weights, row.cache, row.compute)
        table.add_row(row.buft, *("?" if n is None else f"{n / 2**20:.2f}" for n in sizes))
    return table


def devices_table(plan: Planned) -> Table:
    """A row per backend: its share of nodes, FLOPs, bytes read and written, and weights."""
    table = new_table("backend", ">nodes", ">FLOPs", ">read and written", ">weights held")
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
        console.print(line, soft_wrap=True)


def groups_table(plan: Planned, why: WhySplits) -> Table:
    """A row per group of equal splits. If there are many groups: those with the most splits."""
    table = new_table("splits", "backend", "ops", ">copied in")
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


def splits_table(plan: Planned) -> Table:
    """A row per split: backend, nodes, and what is copied in."""
    columns = (">#", "backend", ">nodes", "ops", "first node", "copied in")
    table = new_table(*columns, title="splits")
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


def nodes_table(plan: Planned, width: int = MANY) -> Table:
    """A row per computed node: where it is, and why, in one line of a terminal's width."""
    columns = (">#", "name", "op", "type", "ne", "backend", "cause", "why")
    table = new_table(*columns, title="computed nodes")
    table.expand, why = width < MANY, table.columns[-1]
    why.no_wrap, why.overflow, why.ratio = True, "ellipsis", 1  # `explain` has what is cut
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
    """Prints where the plan changes, the table of plans over shapes, and why it changes."""
    console = console or new_console()
    changes = []
    for threshold, places in sweep.grouped():
        where = " or ".join(filter(None, map(describe, places)))
        changes.append((threshold, threshold.headline() + (f", at {where}" if where else "")))
    for _threshold, line in changes:
        say(line, console=console, style="bold")
    if not changes:
        say("the plan is the same everywhere", console=console, style="bold")
    console.print(sweep_table(sweep))
    for threshold, line in changes:
        say(line.partition(":")[0] if len(changes) > 1 else "why", console=console)
        for row in moved_rows(threshold):
            say(row, "  ", console)


def sweep_table(sweep: Sweep) -> Table:
    """A row per shape: splits, copies, bytes, nodes on each backend."""
    planned = [p.totals for p in sweep.points if p.totals is not None]
    backends = list(dict.fromkeys(b for n in planned for b in n.nodes_per_backend))
    timed = any(point.time for point in sweep.points)
    predicted = ["predicted"] * timed
    columns = (*sweep.axes, "splits", "copies", "copied", *backends, *predicted)
    table = new_table(*(f">{column}" for column in columns))
    for point in sweep.points:
        row, n = [str(value) for value in point.shape.values()], point.totals
        if n is not None:
            row += [str(n.n_splits), str(n.n_copies), format_bytes(n.copy_bytes)]
            row += [str(n.nodes_per_backend.get(b, 0)) for b in backends]
            row += [told_time(point.time) or "not known"] * timed
        table.add_row(*row)
    return table

"""A plan as a graph for Graphviz: nodes in their backends' colours, each layer of a large plan
folded into one box, copies as dashed edges with their bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from ..trace.names import short_label
from ..trace.planned import Planned, format_bytes
from .palette import COLORS, fills, ink
from .rows import NodeRow, node_rows

_FOLD_FROM = 100  # nodes: nobody reads larger pictures
_WHITE = "#ffffff"


def render(plan: Planned, fold: bool | None = None) -> str:
    """The graph in the DOT language. `fold` makes each layer a box; None does in large plans."""
    rows = node_rows(plan)
    if fold is None:
        fold = len(rows) >= _FOLD_FROM
    group_of = _groups(rows, fold)
    members: dict[str, list[NodeRow]] = defaultdict(list)
    for row in rows:
        members[group_of[row.node]].append(row)
    color = fills(plan)
    edges, inside = _edges(plan, group_of)
    lines = [
        "digraph plan {",
        '  graph [rankdir=TB, fontname="sans-serif"]',
        '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=10]',
        '  edge [fontname="sans-serif", fontsize=9]',
    ]
    for group, nodes in members.items():
        look = _look(nodes, color)
        text = _label(plan, nodes, fold)
        if inside.get(group):
            text += f"\ncopied inside: {format_bytes(inside[group])}"
        lines.append(f"  {group} [label={_quoted(text)}, {look}]")
    lines += edges
    lines += [*_legend(color), "}"]
    return "\n".join(lines) + "\n"


def _groups(rows: list[NodeRow], fold: bool) -> dict[int, str]:
    """The box of each node: its own, or its layer's. A layer has several boxes if other nodes are
    in between."""
    found, run, last = {}, 0, None
    for row in rows:
        if fold and row.layer is not None:
            run += row.layer != last
            found[row.node] = f"l{run}"
        else:
            found[row.node] = f"n{row.node}"
        last = row.layer
    return found


def _label(plan: Planned, nodes: list[NodeRow], fold: bool) -> str:
    if fold and nodes[0].layer is not None:
        counts = Counter(n.backend or "?" for n in nodes if n.is_computed)
        return f"layer {nodes[0].layer}\n" + "\n".join(f"{b}: {n}" for b, n in counts.items())
    (node,) = nodes
    name, ne = short_label(plan.nodes[node.node]), "x".join(map(str, node.ne))
    return f"{name}\n{node.op} {ne}\n{node.backend} {node.cause}"


def _look(nodes: list[NodeRow], color: dict[str, str]) -> str:
    """The backends' colours, as stripes by number of nodes if there are several. White if nothing
    is computed."""
    counts = Counter(color[n.backend] for n in nodes if n.is_computed and n.backend in color)
    total = sum(counts.values())
    if len(counts) < 2:
        (fill,) = counts or (_WHITE,)
        return f'fillcolor="{fill}", fontcolor="{ink(fill)}"'
    fill = ":".join(f"{c};{n / total:.3f}" for c, n in counts.items())
    return f'style=striped, fillcolor="{fill}", fontcolor="{ink(*counts)}"'


def _edges(plan: Planned, group_of: dict[int, str]) -> tuple[list[str], dict[str, int]]:
    """One edge between two boxes for any number of tensors, and the bytes copied inside a box."""
    copied = {(i.split.index, i.tensor.id): i.nbytes for i in plan.copied}
    split_of = [i for i, s in enumerate(plan.split_records) for _ in range(s.start, s.end)]
    n_edges: dict[tuple[str, str], int] = defaultdict(int)
    moved: dict[tuple[str, str], dict[tuple[int, int], int]] = defaultdict(dict)
    for node in plan.nodes:
        for source in node.srcs:
            if source.index is None:
                continue
            edge = group_of[source.index], group_of[node.id]
            n_edges[edge] += 1
            key = split_of[node.id], source.id
            if key in copied:
                moved[edge][key] = copied[key]
    lines = []
    inside = {a: sum(copies.values()) for (a, b), copies in moved.items() if a == b}
    for (a, b), n in n_edges.items():
        if a == b:
            continue
        nbytes = sum(moved[a, b].values())
        text = format_bytes(nbytes) if nbytes else str(n) if n > 1 else ""
        style = f', style=dashed, color="{COLORS["arrow"].light}"' if nbytes else ""
        lines.append(f"  {a} -> {b} [label={_quoted(text)}{style}]")
    return lines, inside


def _legend(color: dict[str, str]) -> list[str]:
    boxes = [
        f'    b{i} [label={_quoted(name)}, fillcolor="{fill}", fontcolor="{ink(fill)}"]'
        for i, (name, fill) in enumerate(color.items())
    ]
    return ["  subgraph cluster_backends {", '    label="backends"', *boxes, "  }"]


def _quoted(text: str) -> str:
    """A DOT string. Characters that cannot be printed become U+FFFD."""
    text = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

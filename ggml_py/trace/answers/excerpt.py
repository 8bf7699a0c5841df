"""The part of a plan that a debug print shows, in words: logs are often pasted in excerpts."""

from __future__ import annotations

from ..record import Capture


def mark(capture: Capture) -> str:
    """ "partial (from split 8 on)", for headlines and titles; "" for a whole plan."""
    printed = capture.printed
    if printed is None or not printed.is_partial:
        return ""
    parts = [] if printed.has_nodes else ["splits without their nodes"]
    if printed.begins_inside:
        parts.append(f"from within {_split(printed.first_split)} on")
    elif printed.first_split:
        parts.append(f"from {_split(printed.first_split)} on")
    ends = {"cut": "its end is missing", "open": "its end may be missing"}
    parts += [ends[printed.end]] if printed.end else []
    sure = printed.end != "open" or len(parts) > 1
    return f"{'partial' if sure else 'perhaps partial'} ({', '.join(parts)})"


def limits(capture: Capture) -> tuple[str, ...]:
    """The missing part of the plan, in sentences; () for a whole plan."""
    printed = capture.printed
    if printed is None or not printed.is_partial:
        return ()
    sentences = []
    split, node = printed.first_split, printed.first_node
    if split or printed.begins_inside:
        begin = f"node {node} of the graph" if printed.has_nodes else _split(split)
        sentences.append(
            f"this is an excerpt of a print, which begins with {begin}: splits, nodes and copies "
            "before it are missing, and a source without a line may be one of those nodes"
        )
    if printed.begins_inside:
        sentences.append(
            f"the line that begins {_split(split)} is missing: its backend is that of its nodes, "
            "its copies are only those that they read, and their names may be cut"
        )
    if not printed.has_nodes:
        sentences.append(
            "nodes are not printed: GGML_SCHED_DEBUG=1 prints only splits and what is copied for "
            "them, GGML_SCHED_DEBUG=2 the nodes too"
        )
    if split > 0 or node:
        first = f"split {split}" if split > 0 else ""
        number = " and ".join(filter(None, (f"node {node}" if node else "", first)))
        sentences.append(f"nodes and splits are counted from the excerpt's first, {number}")
    if printed.end == "cut":
        sentences.append("the end of the print is missing: nodes, and perhaps splits, follow")
    elif printed.end:
        sentences.append(
            "the end of the print may be missing: printed nodes, or inputs of its last split, are "
            "read by nodes that are not printed, its last node writes to a cache, or its last line "
            "is not complete"
        )
    return tuple(sentences)


def _split(number: int) -> str:
    return f"split {number}" if number >= 0 else "a split"

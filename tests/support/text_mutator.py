"""Damaged texts: lines deleted, repeated and moved, and words of other lines."""

from __future__ import annotations

import random

ODD_TEXT = (
    "", " ", "\n", "\x00", "\ud800", "é", "-1", "0", "99999999999999999999", "1.5", "nan",
    "  split on",
    "    < ", "nodes", "layer 0", "layers 0-9", "layers 0-999999999", "- ", "{", "}", '"', "\\",
    "node #", "## SPLIT #0: CPU # 0 inputs", "## SPLIT #1: CPU # 1 inputs: [x (   0K)] ",
    "0 B", "7 XiB",
)  # fmt: skip


def damaged_text(rng: random.Random, text: str) -> str:
    """Deletes, repeats and moves lines, takes words of other lines, and cuts lines."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        lines = text.split("\n")
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(7)
        if kind == 0:
            del lines[i]
        elif kind == 1:
            lines.insert(i, lines[j])
        elif kind == 2:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 3:
            words, others = lines[i].split(" "), lines[j].split(" ")
            words[rng.randrange(len(words))] = rng.choice((*others, *ODD_TEXT))
            lines[i] = " ".join(words)
        elif kind == 4:
            at = rng.randint(0, len(lines[i]))
            lines[i] = lines[i][:at] + rng.choice(ODD_TEXT) + lines[i][at + rng.randint(0, 4) :]
        elif kind == 5:
            lines = lines[: max(i, 1)]
        else:
            lines[i] = lines[i].strip() if rng.random() < 0.5 else f"  {lines[i]}"
        text = "\n".join(lines)
    return text

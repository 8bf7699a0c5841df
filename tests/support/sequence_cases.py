"""Scripts of what is done with sequences."""

from __future__ import annotations

from .sequence_scripts import run, t

SCRIPT = [
    ("decode", *run(1, 9, 0, last=True)),
    ("decode", *run(2, 5, 1), *run(3, 7, 2)),
    ("decode", t(1, 0), t(2, 1), t(3, 2)),
    ("decode", t(4, 1, False), t(5, 2), t(6, 0), t(7, 1), *run(4, 3, 3)),
    ("seq_rm", 1, 3, None),
    ("decode", t(8, 1), t(9, 2)),
    ("seq_cp", 0, 3, 0, None),
    ("decode", *run(5, 4, 3), t(10, 0)),
    ("seq_rm", 0, 0, None),
    ("seq_rm", 1, 0, None),
    ("seq_rm", 2, 0, None),
    ("decode", *run(6, 3, 0), t(11, 3)),
    ("clear",),
    ("decode", t(12, 2)),
]
SHIFTS = [
    ("decode", *run(1, 40, 0, last=True), *run(2, 12, 1, last=True)),
    ("seq_rm", 0, 4, 20),
    ("seq_add", 0, 20, None, -16),
    ("decode", t(1, 0), t(2, 1)),
    ("seq_add", 1, 0, 5, 7),
    ("seq_div", 0, 10, 30, 2),
    ("seq_add", 0, 0, None, -3),
    ("decode", *run(3, 4, 0), t(3, 1)),
]

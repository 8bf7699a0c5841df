"""What one edit of an upstream source is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One change: `text` goes before `anchor`, which is found exactly once.

    With `after` it goes behind it, with `replace` it takes the anchor's place; with `until`, found
    exactly once too, the place of everything from the one to the end of the other. An
    `optional` one may be missing: it mends what some releases have. `edits_absent` in the
    `build.json` of a build names those, and a test knows why.
    """

    name: str
    anchor: str
    text: str
    after: bool = False
    replace: bool = False
    until: str = ""
    optional: bool = False

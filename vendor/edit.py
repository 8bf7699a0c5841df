"""One edit of an upstream source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One change: inserts `text` before `anchor`, which must be found exactly once.

    With `after` the text goes after the anchor, with `replace` it replaces the anchor. With
    `until`, also found exactly once, it replaces everything from `anchor` to the end of `until`.
    The anchor of an `optional` edit may be missing, because only some releases need the edit.
    `edits_absent` in a build's `build.json` names the edits left out; a test knows the reasons.
    """

    name: str
    anchor: str
    text: str
    after: bool = False
    replace: bool = False
    until: str = ""
    optional: bool = False

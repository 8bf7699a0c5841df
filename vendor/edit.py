"""One edit of an upstream source, and where its text is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class AnchorError(Exception):
    """An anchor was not found exactly once: this release needs its edits looked at."""


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


class Placed(NamedTuple):
    """What became of an edit in one release."""

    source: str  # the file that it is listed under
    name: str
    made: bool
    optional: bool
    wrong: str  # where it was looked for in vain, in a sentence; "" if made, or not needed


def place(source: str, edit: Edit, texts: dict[str, str]) -> Placed:
    """Makes the edit in its file if that has the anchor exactly once, in place in `texts`. A file
    that is not in `texts` does not exist."""
    text = texts.get(source, "")
    ends = text.count(edit.until) if edit.until else 1
    if text.count(edit.anchor) == 1 and ends == 1:
        texts[source] = _edited(edit, text)
        return Placed(source, edit.name, True, edit.optional, "")
    nowhere = edit.anchor not in text
    wrong = "" if edit.optional and nowhere else _wrong(source, edit, texts)
    return Placed(source, edit.name, False, edit.optional, wrong)


def _edited(edit: Edit, text: str) -> str:
    start = end = text.index(edit.anchor)
    if edit.until:
        end = text.index(edit.until) + len(edit.until)
    elif edit.replace:
        end = start + len(edit.anchor)
    elif edit.after:
        start = end = start + len(edit.anchor)
    return text[:start] + edit.text + text[end:]


def _wrong(source: str, edit: Edit, texts: dict[str, str]) -> str:
    name, anchor = edit.name, edit.anchor
    if edit.until and texts.get(source, "").count(anchor) == 1:
        name, anchor = f"end of {name}", edit.until
    n = texts.get(source, "").count(anchor)
    lacking = "" if source in texts else ", which is not there"
    return (
        f"anchor '{name}' was found {n} times in {source}{lacking}, expected exactly once "
        f"(it reads {anchor.strip()!r})"
    )

"""Names that resemble an unknown one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

_ALIKE = 0.7  # of 1
_FEW, _LIKE = 16, 8  # names that are listed; of more, those like the unknown one


def meant(name: str, known: Iterable[str], alike: float = _ALIKE, most: int = 3) -> str:
    """The end of an error's sentence, ". Did you mean BLAS?"; "" without a similar name. Case does
    not count."""
    by_lower = {one.lower(): one for one in known}
    near = [by_lower[one] for one in get_close_matches(name.lower(), by_lower, most, alike)]
    return f". Did you mean {' or '.join(near)}?" if near else ""


def meant_file(path: str | os.PathLike[str]) -> str:
    """The same for the files beside `path`."""
    try:
        known = [entry.name for entry in os.scandir(Path(path).parent) if entry.is_file()]
    except OSError:
        return ""
    return meant(Path(path).name, known)


def one_of(name: str, known: Sequence[str]) -> str:
    """The names that are expected; of many, those that resemble `name` most."""
    if len(known) <= _FEW:
        return ", ".join(known)
    near = get_close_matches(name, known, _LIKE, 0.0)
    return f"{', '.join(near)} or {len(known) - len(near)} more"

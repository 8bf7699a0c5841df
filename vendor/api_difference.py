"""How the headers of one release differ from another's: what a bump adds, removes or changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vendor.report import BuildError

_STRUCT = re.compile(r"^(?:typedef )?(?:struct|union) (\w+)\s*\{")


def difference(before: Path, after: Path) -> dict[str, Any]:
    """Names that were added, removed and changed between two ggml folders: functions (by their
    prototypes), enum members (by their numbers), structs (by their members) and number macros.

    Only the headers that are bound count (vendor/headers.py). Raises BuildError if they cannot be
    read.
    """
    try:
        from vendor import headers
    except ImportError as error:
        raise BuildError(
            f"reading headers needs the module {error.name}: python -m pip install pycparser"
        ) from error
    from vendor.identity import NATIVE

    headers.NATIVE = NATIVE     # in an installed package native/ is beside `_build`, not below it
    try:
        old, new = (headers.read(folder) for folder in (before, after))
    except Exception as error:      # pycparser's errors have no common base
        first = (str(error).splitlines() or [repr(error)])[0]
        raise BuildError(f"the headers in {after / 'include'} cannot be read: {first}") from error
    return {
        "functions": _compared(_functions(old), _functions(new)),
        "enums": _compared(_members(old), _members(new)),
        "structs": _compared(_structs(old), _structs(new)),
        "macros": _compared(dict.fromkeys(old.macros), dict.fromkeys(new.macros)),
    }


def _functions(api: Any) -> dict[str, str]:
    from vendor.headers import HEADERS

    return {f.name: f.prototype for f in api.functions if f.header in HEADERS}


def _members(api: Any) -> dict[str, int]:
    return {member: number for members in api.enums.values() for member, number in members.items()}


def _structs(api: Any) -> dict[str, str]:
    return {found[1]: text for text in api.types if (found := _STRUCT.match(text))}


def _compared(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, list[str]]:
    return {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in old.keys() & new.keys() if old[name] != new[name]),
    }

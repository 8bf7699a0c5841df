"""Numbers of bytes as users write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int | None:
    """The bytes of "4096", "512M", "1.5G" or "8GiB"; None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    return None if found is None else int(float(found[1]) * _UNITS[found[2].upper()])

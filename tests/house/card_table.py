"""The table in docs/PROFILES.md of what was asked of cards: the counts of benchmarks/cards.py.

`python tests/house/card_table.py` writes it into the page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ggml_py.sim.profiles.cards import OF_BACKEND

REPO = Path(__file__).parents[2]
PAGE = REPO / "docs" / "PROFILES.md"
RESULTS = REPO / "benchmarks" / "results"
_BEGIN, _END = "<!-- benchmarks/cards.py -->\n", "<!-- end -->\n"
_NOT_ASKED = re.compile(r"refused by|\S+ is not built")


def records() -> dict[str, dict[str, Any]]:
    """The records by release, newest first."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("cards*.json"))]
    by_release = {next(iter(record["builds"])).split("-")[0]: record for record in found}
    newest = sorted(by_release, key=lambda label: tuple(map(int, label.split("."))), reverse=True)
    return {label: by_release[label] for label in newest}


def counted(record: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """By backend: cases that could be asked, those that answer otherwise than upstream's record,
    and the ops of these."""
    asked: dict[str, int] = {}
    others: dict[str, dict[str, int]] = {}
    for outcome, n in record["outcomes"].items():
        backend, _, what = outcome.partition(": ")
        if _NOT_ASKED.match(what):
            continue
        asked[backend] = asked.get(backend, 0) + n
        if found := re.match(r"(\S+) is now ", what):
            ops = others.setdefault(backend, {})
            ops[found[1]] = ops.get(found[1], 0) + n
    return {
        backend: (n, sum(others.get(backend, {}).values()), len(others.get(backend, ())))
        for backend, n in sorted(asked.items())
    }


def table() -> str:
    """The table, in Markdown."""
    by_release = {release: counted(record) for release, record in records().items()}
    head = "| backend | card | " + " | ".join(f"ggml {release}" for release in by_release)
    lines = [f"{head} |", "|---|---|" + "---|" * len(by_release)]
    for backend in sorted({name for counts in by_release.values() for name in counts}):
        cells = []
        for counts in by_release.values():
            n, others, ops = counts.get(backend, (0, 0, 0))
            said = f"{n:,}" if n else "not cut"
            if others:
                said += f"; {others:,} not as on record, in {ops} {'op' if ops == 1 else 'ops'}"
            cells.append(said)
        lines.append(f"| {backend} | `{OF_BACKEND[backend]}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with the table in its place."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())

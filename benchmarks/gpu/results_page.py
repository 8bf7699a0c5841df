"""Results of runs on GPUs, in docs/GPU.md: `make gpu-results OUT=DIR` keeps those of a run.

Results are committed in benchmarks/results/gpu, compressed; those of dry runs in its folder
dry_run. The page's tables are generated from them; a part without a result says "not run yet".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "benchmarks"), str(Path(__file__).resolve().parent)]
import record  # noqa: E402
import search  # noqa: E402
from parts import PARTS  # noqa: E402

PAGE = REPO / "docs" / "GPU.md"
RESULTS = REPO / "benchmarks" / "results" / "gpu"
BEGIN, END = "<!-- results: written by `make gpu-results` -->", "<!-- end of results -->"
Results = Mapping[str, Mapping[str, Any]]
GIB = 1 << 30


def take(folder: Path, results: Path = RESULTS) -> list[str]:
    """Copies the results in a folder to where they are committed. Returns their names. A final
    result is not replaced by one that was cut short."""
    taken = []
    for name, data in record.results(folder).items():
        home = results / "dry_run" if data["dry_run"] else results
        before = record.results(home).get(name)
        if before and before["status"] in record.FINAL and data["status"] not in record.FINAL:
            continue
        record.write(home / f"{name}.json.gz", data)
        taken.append(f"{home.name}/{name}")
    return taken


def tables(real: Results, dry: Results) -> str:
    """The page's tables."""
    real = {name: data for name, data in real.items() if not data["dry_run"]}
    lines = ["| part | on a GPU | dry run, without one |", "|---|---|---|"]
    for part in PARTS:
        cells = (_cell(real.get(part.name)), _cell(dry.get(part.name)))
        lines.append(f"| {part.what} | {cells[0]} | {cells[1]} |")
    more = {
        "The machines": _machines(real, dry), "Speed": _speed(real),
        "Device and card": _cards(real), "Failures": _failures(real),
    }  # fmt: skip
    for title, rows in more.items():
        if found := list(rows):
            lines += ["", f"### {title}", "", *found]
    return "\n".join(lines)


def _cell(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return "not run yet"
    said = data["result"].get("said") or data.get("why", "")
    return f"{data['date'][:10]}, {data['seconds']:.0f} s: **{data['status']}**. {_plain(said)}"


def _plain(text: str) -> str:
    return str(text).replace("|", "/").replace("<", "&lt;").replace("\n", " ")


def _machines(real: Results, dry: Results) -> Iterator[str]:
    rows = {}
    for data in (*real.values(), *dry.values()):
        device = data["device"]
        memory = f", {device['totalGlobalMem'] / GIB:.0f} GiB" if "totalGlobalMem" in device else ""
        what = "dry run" if data["dry_run"] else f"{device['n_gpus']} GPU"
        rows[what, f"{_plain(device['name'])}{memory}", _plain(device["driver"]) or "none",
             str(device["cores"]), data["commit"][:10] + "+" * data["commit"].endswith("+"),
             data.get("build", "")] = None  # fmt: skip
    if rows:
        yield "| what | device | driver | cores | commit | build |"
        yield "|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _speed(real: Results) -> Iterator[str]:
    rows = [row for name in ("speed", "offload") if name in real
            for row in real[name]["result"].get("rows", ())]  # fmt: skip
    if rows:
        yield "Tokens per second, ours beside `llama-bench` on the same libraries: medians over the"
        yield "rounds, and the 95 % interval of the ratio."
        yield ""
        yield "| test | model | ours | llama-bench | ratio | ≥ 1.00 |"
        yield "|---|---|---|---|---|---|"
    for row in rows:
        low, high = row["interval"]
        yield (
            f"| {row['what']} | {row['model']} | {row['ours']:,.0f} | {row['theirs']:,.0f} | "
            f"{row['ratio']:.3f} ({low:.3f} to {high:.3f}) | {row['verdict']} |"
        )


def _cards(real: Results) -> Iterator[str]:
    result = real.get("supports", {}).get("result", {})
    differing = [
        (name, *pair)
        for table in ("properties", "described")
        for name, pair in result.get(table, {}).items()
        if pair[0] != pair[1]
    ]
    if result:
        yield f"What the card `{result.get('named')}` and the device say differently:"
        yield ""
        yield "| property | card | device |"
        yield "|---|---|---|"
    for row in differing:
        yield f"| {' | '.join(_plain(one) for one in row)} |"


def _failures(real: Results) -> Iterator[str]:
    for name, data in real.items():
        for text in data["result"].get("failures", ())[:20]:
            yield f"- {name}: {_plain(text)[:300]}"


def page_of(text: str, shown: str) -> str:
    """The page's text with these tables. Raises `ValueError` if it has no place for them."""
    before, begin, rest = text.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{shown}\n\n{END}{after}"


def refreshed() -> str:
    """The page as the committed results make it."""
    shown = tables(record.results(RESULTS), record.results(RESULTS / "dry_run"))
    return page_of(PAGE.read_text(encoding="utf-8"), shown)


def changed_since(data: Mapping[str, Any], patterns: tuple[str, ...]) -> list[str]:
    """The files that a result is about and that changed since."""
    now, then = search.hashes(patterns), data["about"]
    return sorted(path for path in {*now, *then} if now.get(path) != then.get(path))


def main() -> int:
    """Keeps the results of a run, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--take", type=Path, metavar="DIR", help="what a run brought back")
    options = parser.parse_args()
    if options.take:
        taken = take(options.take)
        if not taken:
            print(f"error: {options.take} has no results of parts", file=sys.stderr)
            return 1
        print("\n".join(taken))
    PAGE.write_text(refreshed(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

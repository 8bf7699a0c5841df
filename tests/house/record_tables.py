"""The tables in docs/ that show records of benchmarks/results.

`python tests/house/record_tables.py` writes them into the pages, between `<!-- NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ggml_py.models.archs import ARCHS
from ggml_py.sim.profiles.cards import OF_BACKEND

REPO = Path(__file__).parents[2]
RESULTS = REPO / "benchmarks" / "results"
_END = "<!-- end -->\n"
_NOT_ASKED = re.compile(r"refused by|\S+ is not built")


# --- benchmarks/cards.py


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


def asked() -> str:
    """What cards of each backend were asked, on each release."""
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


# --- benchmarks/promises.py


def promised() -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / "promises.json").read_text())
    return record


def on_cards() -> str:
    """How many plans and bytes are libllama's, for a card of each backend."""
    lines = [
        "| a card's plans and bytes | models and options | equal | both refuse |",
        "| --- | ---: | ---: | ---: |",
    ]
    for card, cells in promised()["cards"].items():
        same, refused = [*cells.values()].count(True), [*cells.values()].count("refused")
        lines.append(f"| `{card}` | {len(cells)} | {same} | {refused} |")
    return "\n".join(lines) + "\n"


def what_ifs() -> str:
    """In how many nodes a what-if is what libllama does with a device that lacks the op."""
    head = "what if gpu0 lacks | models | nodes | loaded again: equal | scheduler alone: equal"
    lines = [f"| {head} |", "| --- | ---: | ---: | ---: | ---: |"]
    for op, cells in promised()["what-ifs"].items():
        again, alone, n = (sum(column) for column in zip(*cells.values(), strict=True))
        lines.append(f"| {op} | {len(cells)} | {n:,} | {again:,} | {alone:,} |")
    return "\n".join(lines) + "\n"


# --- benchmarks/any_model.py


def any_model() -> dict[str, dict[str, str]]:
    record = json.loads((RESULTS / "any_model.json").read_text())
    found: dict[str, dict[str, str]] = record["table"]
    return found


def any_models() -> str:
    """For how many of upstream's models libllama's plans and bytes are an unmodified build's."""
    found = any_model()
    lines = [
        "| devices | models | equal | refused by both | different |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for setting in next(iter(found.values())):
        said = {name: row[setting] for name, row in found.items()}
        equal = [*said.values()].count("equal")
        refused = [name for name, one in said.items() if one.startswith("refused")]
        rest = [name for name, one in said.items() if one != "equal" and name not in refused]
        lines.append(
            f"| {setting} | {len(said)} | {equal} | {len(refused)} | {', '.join(rest) or 'none'} |"
        )
    return "\n".join(lines) + "\n"


def by_architecture() -> str:
    """Whether they are, for each model and set of devices."""
    found = any_model()
    settings = [*next(iter(found.values()))]
    lines = [
        f"| model | graphs | {' | '.join(settings)} |",
        f"| --- | --- {'| --- ' * len(settings)}|",
    ]
    for name, row in found.items():
        graphs = "ours and libllama's" if name.rpartition("-")[0] in ARCHS else "libllama's"
        said = [one.partition(":")[0].partition(" (")[0] for one in row.values()]
        lines.append(f"| {name} | {graphs} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


# --- benchmarks/release_rules.py


def release_rules() -> str:
    """Which release changed which rule."""
    record = json.loads((RESULTS / "release_rules.json").read_text())
    lines = ["| first in | not in | graph | what changed |", "|---|---|---|---|"]
    lines += [
        f"| {new} | {old} | {case} | {kind}: {text} |"
        for case, old, new, kind, text, first in record["changes"]
        if first
    ]
    n, refused = record["n_cases"], record["n_refused"]
    lines += [
        "",
        f"{n - refused - len(record['wrong'])} of {n - refused} plans of "
        f"{len(record['releases'])} releases are those of the reference by the release's rules; "
        f"{refused} graphs are refused by both ({record['date']}).",
    ]
    return "\n".join(lines) + "\n"


# --- benchmarks/corpus_releases.py


def corpus_releases() -> str:
    """How each release plans and computes a sample of the corpus."""
    return _of_corpus("corpus_releases.json")


def corpus_plans() -> str:
    """How each release plans the whole corpus."""
    return _of_corpus("corpus_plans.json")


def _of_corpus(name: str) -> str:
    record = json.loads((RESULTS / name).read_text())
    lines = [
        "| release | plans | as the reference | ops that it lacks | changed since the one before |",
        "|---|---:|---:|---:|---|",
    ]
    for label, row in record["releases"].items():
        changed = ", ".join(f"{what}: {n}" for what, n in row.get("changed", {}).items())
        lines.append(
            f"| {label} | {row['planned']:,} | {row['planned'] - len(row['wrong']):,} | "
            f"{sum(row['errors'].values())} | {changed} |"
        )
    lines += ["", f"`{record['command']}`, {record['date']}."]
    return "\n".join(lines) + "\n"


# --- benchmarks/fit_print.py


def fit_print() -> str:
    """For how many models `--fit-print` is what llama-fit-params prints."""
    record = json.loads((RESULTS / "fit_print.json").read_text())
    lines = ["| devices, flags | models | equal | refused by both |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for what, counts in record["rows"].items():
        equal, refused = counts.get("equal", 0), counts.get("refused by both", 0)
        lines.append(f"| {what} | {sum(counts.values())} | {equal} | {refused} |")
    lines += ["", f"`{record['command']}`, {record['date']}."]
    return "\n".join(lines) + "\n"


# --- the pages

TABLES = {  # page, name there: table
    ("PROFILES_CHECKED.md", "benchmarks/cards.py"): asked,
    ("MODELS.md", "benchmarks/promises.py: cards"): on_cards,
    ("MODELS.md", "benchmarks/promises.py: what-ifs"): what_ifs,
    ("ARCHITECTURES.md", "benchmarks/any_model.py: devices"): any_models,
    ("ARCHITECTURES.md", "benchmarks/any_model.py"): by_architecture,
    ("MEMORY_CHECKED.md", "benchmarks/fit_print.py"): fit_print,
    ("RELEASES_CHECKED.md", "benchmarks/release_rules.py"): release_rules,
    ("RELEASES_CHECKED.md", "benchmarks/corpus_releases.py"): corpus_releases,
    ("RELEASES_CHECKED.md", "benchmarks/corpus_releases.py: plans"): corpus_plans,
}


def pages() -> dict[Path, str]:
    """The pages with the tables in their places."""
    made: dict[Path, str] = {}
    for (name, mark), table in TABLES.items():
        path, begin = REPO / "docs" / name, f"<!-- {mark} -->\n"
        text = made.get(path) or path.read_text()
        before, _, rest = text.partition(begin)
        assert rest, f"{path} has no {begin}"
        made[path] = f"{before}{begin}\n{table()}\n{_END}{rest.partition(_END)[2]}"
    return made


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)

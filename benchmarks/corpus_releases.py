"""Every release plans a corpus natively: is each plan the reference's, and what did each change?

    ggml-py corpus make CORPUS MODELS/*.gguf       (models: test-llama-archs -o MODELS)
    python benchmarks/corpus_releases.py CORPUS [--every N] [--upstream RELEASE…] [--write]
    python benchmarks/corpus_releases.py CORPUS --plans-only [--every N] [--write]

Builds the releases that are missing, and plans the graphs of the corpus under each, with the
answers that were recorded. Exit status 1 means that a release and the reference by its rules
disagree about a plan, or that a change between neighbours has no known cause. `--every N` takes a
sample: each Nth plan. `--plans-only` computes nothing, and needs a quarter of the time. `--write`
puts the result into benchmarks/results/corpus_releases.json, or corpus_plans.json of what was only
planned, release by release; a release that is there for the same build and the same corpus is not
asked again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path

import search

from ggml_py.releases.attribution import agrees
from ggml_py.releases.compare import compared
from ggml_py.releases.kept import kept_in
from ggml_py.releases.planned_cases import plans_under, prepared
from ggml_py.releases.tasks import Made, Work
from ggml_py.trace.rules import RELEASES

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "ggml_py/releases/*.py", "ggml_py/scheduler/as_recorded.py", "ggml_py/scheduler/rebuilt.py",
    "ggml_py/scheduler/made_up.py", "ggml_py/scheduler/observed.py",
    "ggml_py/trace/planning.py", "ggml_py/trace/rules.py", "ggml_py/llama/corpus_cases.py",
    "vendor/upstream.toml",
)  # fmt: skip


def main() -> int:
    """Prints a row for each release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--upstream", action="append")
    parser.add_argument("--plans-only", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    work = [kept.work for kept in kept_in(args.corpus)][:: args.every]
    labels = args.upstream or [release.label for release in reversed(RELEASES)]
    corpus = hashlib.sha256("\n".join(case.name for case in work).encode()).hexdigest()[:16]
    name = "corpus_plans" if args.plans_only else "corpus_releases"
    target = search.RESULTS / f"{name}.json"
    known = json.loads(target.read_text())["releases"] if target.is_file() else {}
    rows: dict[str, dict] = {}
    before: tuple[str, list[Made]] | None = None
    for label in labels:
        key = prepared(label)
        row = known.get(label)
        if row is not None and (row["key"], row["corpus"]) == (key, corpus):
            rows[label], before = row, None
            continue
        start = time.monotonic()
        (made,) = plans_under([key], work, jobs=2, observe=not args.plans_only)
        rows[label] = row = judged(work, made) | {"key": key, "corpus": corpus}
        if before is not None:
            row["changed"] = changed(before, (label, made), work)
        before = label, made
        row["seconds"] = round(time.monotonic() - start)
        print(f"{label}: {json.dumps(row)}", flush=True)
        if args.write:
            write(name, rows, len(work), args)
    held = all(
        not row["wrong"] and "unknown" not in row.get("changed", {}) for row in rows.values()
    )
    print(f"{len(work)} plans, {len(rows)} releases: {'all as the reference' if held else 'NOT'}")
    return 0 if held else 1


def judged(work: list[Work], made: list[Made]) -> dict:
    """How many plans are the reference's, why others are missing, and which disagree."""
    planned = [one.plan for one in made if one.plan is not None]
    wrong = [
        case.name for case, one in zip(work, made, strict=True)
        if one.plan is not None and not agrees(one.plan)
    ]  # fmt: skip
    errors = Counter(_kind(one.error) for one in made if one.plan is None)
    computed = sum(one.observed is not None and one.observed.waits is not None for one in made)
    again = sum(one.observed is not None and bool(one.observed.reallocations) for one in made)
    return {
        "planned": len(planned), "computed": computed, "laid_out_again": again, "wrong": wrong,
        "errors": dict(errors.most_common()),
    }  # fmt: skip


def _kind(error: str) -> str:
    """An error without the name of the tensor."""
    return error.partition(" is a ")[2] or error


def changed(old: tuple[str, list[Made]], new: tuple[str, list[Made]], work: list[Work]) -> dict:
    """In how many cases what is different from the release before, by reason."""
    found: Counter[str] = Counter()
    for row in compared(old[0], new[0], work, old[1], new[1]).rows:
        for change in {(c.kind, c.what) for c in row.changes or row.run}:
            found[" ".join(filter(None, change))] += 1
    return dict(found.most_common())


def write(name: str, rows: dict[str, dict], n: int, args: argparse.Namespace) -> None:
    """Writes the record."""
    options = [f"--every {args.every}"] * (args.every > 1) + ["--plans-only"] * args.plans_only
    command = " ".join(["python benchmarks/corpus_releases.py CORPUS", *options, "--write"])
    held = all(not row["wrong"] for row in rows.values())
    search.keep(name, command, PATTERNS, equal=held, n_plans=n, releases=rows)


if __name__ == "__main__":
    sys.exit(main())

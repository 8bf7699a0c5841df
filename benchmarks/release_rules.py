"""Which release changed what in the scheduler: every release plans and runs a few small graphs.

    python benchmarks/release_rules.py [--write]

Builds the releases that are missing (one to two minutes each), plans `ggml_py.releases.rule_cases`
natively under each, reserves, allocates and computes them, and compares neighbours. Nothing tells
it where something changed. Exit status 1 means that a release and the reference by its rules
disagree, that a graph could not be computed, or that a change of a plan has no known cause.
`--write` puts the result into benchmarks/results/release_rules.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import search

from ggml_py.releases import Work, rule_cases
from ggml_py.releases.attribution import agrees
from ggml_py.releases.compare import compared
from ggml_py.releases.planned_cases import plans_under, prepared
from ggml_py.trace import reference
from ggml_py.trace.reference import CannotPlanError
from ggml_py.trace.rules import RELEASES

REPO = Path(__file__).resolve().parent.parent
PATTERNS = (
    "ggml_py/releases/*.py", "ggml_py/trace/planning.py", "ggml_py/trace/rules.py",
    "vendor/upstream.toml",
)  # fmt: skip


def main() -> int:
    """Prints what changed where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    start = time.monotonic()
    labels = [release.label for release in reversed(RELEASES)]
    cases = rule_cases()
    found = plans_under([prepared(label) for label in labels], cases, jobs=2)
    rows, wrong, n_refused = [], [], 0
    for label, made in zip(labels, found, strict=True):
        for case, one in zip(cases, made, strict=True):
            if one.plan is None or one.observed is None:
                both = refused(label, case)
                n_refused += both
                wrong += [] if both else [[label, case.name, one.error]]
            elif not agrees(one.plan):
                wrong.append([label, case.name, "the reference plans otherwise"])
            elif one.observed.waits is None:
                wrong.append([label, case.name, one.observed.left_out])
    for (old, before), (new, after) in pairwise(zip(labels, found, strict=True)):
        for row in compared(old, new, cases, before, after).rows:
            if row.errors[0] != row.errors[1]:
                rows.append([row.case, old, new, "error", row.headline(), True])
                print(f"{new} (not in {old}): {row.case}: {row.headline()}")
            for change in (*row.changes, *row.run):
                rules = [one for one in row.run if one.kind == "rule"]
                first = change in (row.changes or rules or row.run)  # not what follows from it
                rows.append([row.case, old, new, change.kind, change.text, first])
                print(f"{new} (not in {old}): {row.case}: {change.kind}: {change.text}")
    wrong += [row for row in rows if row[3] == "unknown"]
    n = len(labels) * len(cases)
    said = wrong or "none"
    print(
        f"{n} cases of {len(labels)} releases, {n_refused} refused by both; not as the reference, "
        f"or unexplained: {said}"
    )
    if args.write:
        write(rows, labels, wrong, (n, n_refused), time.monotonic() - start)
    return 1 if wrong else 0


def refused(label: str, case: Work) -> bool:
    """Whether the reference cannot plan it by the rules of that release either."""
    known = next(release for release in RELEASES if release.label == label)
    for plan in (*case.earlier, case.plan):
        settings = plan.settings._replace(upstream=known.ggml, build=f"{label}-0")
        try:
            reference.plan(replace(plan.capture, settings=settings))
        except CannotPlanError:
            return True
    return False


def write(
    rows: list[list[str]], labels: list[str], wrong: list, n: tuple[int, int], seconds: float
) -> None:
    """Writes the record."""
    search.keep(
        "release_rules", "python benchmarks/release_rules.py --write", PATTERNS,
        seconds=round(seconds), equal=not wrong, releases=labels, n_cases=n[0], n_refused=n[1],
        wrong=wrong, changes=rows,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""Looks for releases of ggml that upstream.toml does not list, and tries one.

    python -m vendor.new_release check [PACKAGE ...]
    python -m vendor.new_release try VERSION [SOURCE ...] [--report FILE] [--write]

`check` asks the index that pip is configured for. Exit status: 0 if there is nothing newer than the
table has, 1 if there is, or if the index cannot be asked.

`try` downloads a version and checks its hash, looks for the place of each edit, builds it, and
compares its headers with the default release's and its plans with the newest listed release's and
with the reference scheduler's. SOURCES are records and saved plans, compared besides a graph for
each rule. The tests that hold under every release run under it. The report is Markdown, for the
commit that lists the release. Only --write changes files of the source tree, at the very end. Exit
status: 0 if every edit has its place, it builds, the reference makes the same plans, and no test
fails; 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ggml_py import GgmlError
from ggml_py.builds import script
from ggml_py.cli.shared.bar import bar
from ggml_py.cli.shared.cases import cases_of
from ggml_py.releases import rule_cases
from ggml_py.releases.compare import Comparison, compared
from ggml_py.releases.planned_cases import Progress, plans_under, prepared
from ggml_py.releases.tasks import Work
from ggml_py.trace.names import counted
from ggml_py.trace.planned import format_bytes
from ggml_py.trace.rules import RELEASES
from vendor import cache, candidate, index, releases, rows
from vendor.report import BuildError
from vendor.suite import SuiteRun, run_suite

_SHOWN = 12  # names of what changed or was renumbered; what was added or removed is listed in full


@dataclass(frozen=True)
class Candidate:
    """What is known of a release that is not listed yet."""

    found: dict[str, Any]  # of `vendor.candidate.inspect`
    key: str  # of its build; "" if it does not build
    error: str  # why it does not build
    proof: dict[str, Any]  # its build.json
    comparison: Comparison | None  # with `against`; None without a build
    against: str  # the newest listed release
    suite: SuiteRun | None = None  # if the tests ran under it (`run_suite`)

    @property
    def label(self) -> str:
        """ggml's version, with the package's behind it if another release has that label."""
        return str(self.found["release"]["label"])

    @property
    def complete(self) -> bool:
        """Whether all edits have a place, it builds, the reference makes all of its plans, and no
        test failed."""
        if self.comparison is None or self.found["edits"]["missing"]:
            return False
        if self.suite is not None and not self.suite.passed:
            return False
        return all(row.agrees[1] for row in self.comparison.rows)

    def report(self) -> str:
        """In Markdown, for the message of the commit that lists the release."""
        parts = (_head, _edits, _built, _bindings, _plans, _suite, _left)
        return "\n\n".join(part(self) for part in parts) + "\n"


def tried(
    package: str,
    version: str,
    cases: Sequence[Work],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Candidate:
    """A version that is not listed: downloaded, looked at, built, and `cases` planned natively
    under it and under the newest listed release. Changes no file of the source tree.

    Whatever succeeded is found again by the next call. A release that does not build, or has no
    place for an edit, is a result, not an error. Raises BuildError if the index lacks the version,
    if it is listed, or has no ggml; `NotBuiltError` if the newest listed release does not build.
    """
    found = candidate.inspect(package, version, cache.default_folder())
    against = RELEASES[0].label
    key, error, proof = _build(str(found["table"]))
    comparison = None
    if key:
        base = prepared(against)
        before, after = plans_under([base, key], cases, jobs, progress)
        label = found["release"]["label"]
        comparison = compared(against, label, cases, before, after)
    return Candidate(found, key, error, proof, comparison, against)


def enter(one: Candidate) -> list[Path]:
    """Enters the release into the tables of this source tree. Returns the changed files. Raises
    BuildError for a release that does not build, or that the tables cannot take."""
    if not one.key:
        raise BuildError(f"{one.label} does not build and is not entered: {one.error}")
    return rows.add(releases.read_row(Path(one.found["table"])))


def _build(table: str) -> tuple[str, str, dict[str, Any]]:
    try:
        proof: dict[str, Any] = script.answer_of("build_ggml", "--upstream", table, "--json")
    except ValueError as error:
        return "", str(error), {}
    return str(proof["key"]), "", proof


# --- the report, part by part


def _head(one: Candidate) -> str:
    row = one.found["release"]
    uploaded = one.found["uploaded"] or "at an unknown time"
    number = f"llama.cpp b{row['build']}" if row["build"] else "llama.cpp's build is not known"
    lines = [
        f"# ggml {row['ggml']} ({number})",
        "",
        f"- label: {row['label']}",
        f"- package: {row['package']} {row['version']} ({row['file']}, "
        f"{format_bytes(one.found['size'])}, uploaded {uploaded})",
        f"- sha256: {row['sha256']} ("
        + ("the index says the same)" if one.found["hash_from_index"] else
           "of what was downloaded; the index says none)"),
    ]  # fmt: skip
    if others := one.found["shares_ggml_with"]:
        lines.append(f"- ggml's version is also that of {', '.join(others)}")
    return "\n".join(lines)


def _edits(one: Candidate) -> str:
    edits = one.found["edits"]
    lines = ["## Edits", "", f"{edits['made']} of {edits['all']} edits have a place."]
    if edits["missing"]:
        lines += ["", "Missing:", "", *(f"- {wrong}" for wrong in edits["missing"])]
    if edits["absent"]:
        lines += [
            "", f"Optional ones that {one.found['default']} has and this release has no place for "
            "(`ABSENT` in `tests/boundary/test_releases.py` says why):", "",
            *(f"- {name}" for name in edits["absent"]),
        ]  # fmt: skip
    return "\n".join(lines)


def _built(one: Candidate) -> str:
    if not one.key:
        return f"## Build\n\nIt does not build: {one.error}"
    seconds = one.proof.get("seconds")
    took = f", in {seconds:.0f} s" if seconds is not None else ""
    lines = ["## Build", "", f"`{one.key}`{took}."]
    if one.proof.get("pristine"):
        lines.append(
            "Without instrumentation, because edits are missing: no causes, no copies of splits. "
            "Plans are the reference scheduler's, and the release's own confirms what it tells."
        )
    cards = {name: why for name, why in (one.proof.get("cards") or {}).items() if why}
    if cards:
        lines += ["", "Backends that could not be cut out for simulated cards:", ""]
        lines += [f"- {name}: {str(why).partition(';')[0]}" for name, why in cards.items()]
    return "\n".join(lines)


def _bindings(one: Candidate) -> str:
    lines = ["## Bindings", "", f"Compared with {one.found['default']}, the default release:", ""]
    for kind, sides in one.found["api"].items():
        changed = "renumbered" if kind == "enums" else "changed"
        said = [
            f"{len(names)} {side} ({_names(names)})"
            for side, names in (("added", sides["added"]), ("removed", sides["removed"]))
            if names
        ]
        if names := sides["changed"]:
            said.append(f"{len(names)} {changed} ({_names(names, _SHOWN)})")
        lines.append(f"- {kind}: {'; '.join(said) or 'the same'}")
    return "\n".join(lines)


def _names(names: Sequence[str], most: int | None = None) -> str:
    shown = names[:most]
    more = len(names) - len(shown)
    return ", ".join(f"`{name}`" for name in shown) + (f" and {more} more" if more > 0 else "")


def _plans(one: Candidate) -> str:
    if one.comparison is None:
        return "## Plans\n\nNot compared: there is no build."
    rows = one.comparison.rows
    lines = ["## Plans", "", one.comparison.headline() + ".", ""]
    lines += [f"- {row.case}: {_plan_of(row.headline(), row.changes or row.run)}" for row in rows]
    planned = [row for row in rows if row.after.plan is not None]
    same = sum(row.agrees[1] is True for row in rows)
    if one.comparison.only_confirmed:
        lines += ["", f"{len(planned)} of {counted(len(rows), 'plan')} are the reference "
                  "scheduler's, confirmed as far as a build without causes tells."]  # fmt: skip
    else:
        lines += ["", f"{same} of {counted(len(planned), 'plan')} are those of the reference "
                  "scheduler by the rules for this version."]  # fmt: skip
    if same < len(planned) and not one.comparison.only_confirmed:
        lines.append("Where it plans otherwise, it has a rule that is not known here.")
    return "\n".join(lines)


def _plan_of(headline: str, changes: Sequence[Any]) -> str:
    return headline + "".join(f" ({change.kind}: {change.text})" for change in changes)


def _suite(one: Candidate) -> str:
    if one.suite is None:
        why = "it was not asked for" if one.key else "there is no build"
        return f"## Tests\n\nNot run: {why}."
    run = one.suite
    lines = ["## Tests", "", f"`{run.command}`: {run.n - len(run.failed)} of {run.n} passed, in "
             f"{run.seconds:.0f} s."]  # fmt: skip
    if run.broken:
        lines += ["", f"pytest did not run to its end: {run.broken}"]
    if run.failed:
        lines += ["", *(f"- failed: {name}" for name in run.failed)]
    return "\n".join(lines)


def _left(one: Candidate) -> str:
    ops = [n for n in one.found["api"]["enums"]["added"] if n.startswith("GGML_OP_")]
    steps = [
        "no records or saved plans were compared: name them behind the version",
        "the generated table: `python -m vendor.since`",
    ]
    if one.comparison is not None and len(one.comparison.rows) > len(rule_cases()):
        del steps[0]
    if ops:
        steps.append(f"new ops need rows in `vendor/ops_*.toml`: {_names(ops)}")
    return "\n".join(["## Not done", "", *(f"- {step}" for step in steps)])


# --- the command


def _check(packages: Sequence[str]) -> int:
    n_newer = 0
    for package in packages or index.PACKAGES:
        found = index.newer(package)
        n_newer += len(found)
        n = counted(len(found), "newer source distribution") if found else "none newer"
        print(f"{package}: {n} (listed: {index.newest_listed(package) or 'none'})")
        for offer in found:
            size = "size unknown" if offer.size is None else format_bytes(offer.size)
            day = (offer.uploaded or "date unknown").partition("T")[0]
            print(f"  {offer.version}  {day}  {size}  which ggml: known once downloaded")
            print(f"    python -m vendor.new_release try {offer.version} --package {package}")
    return int(n_newer > 0)


def _try(given: argparse.Namespace) -> int:
    if given.report is not None and given.report.exists() and not given.force:
        raise BuildError(f"{given.report} already exists: --force replaces it")
    cases = rule_cases() + (cases_of(given.sources) if given.sources else [])
    with bar(f"planning {len(cases)} cases twice", at_once=False) as show:
        found = tried(given.package, given.version, cases, jobs=given.jobs, progress=show)
    if given.suite and found.key:
        with bar(f"running the tests under {found.key}", at_once=True) as show:
            found = replace(found, suite=run_suite(found.key, show))
    text = found.report()
    if given.report is not None:
        given.report.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    for file in enter(found) if given.write else []:
        print(f"entered {found.label} into {file}", file=sys.stderr)
    return int(not found.complete)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one action. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("check").add_argument("packages", nargs="*", metavar="PACKAGE")
    one = actions.add_parser("try")
    one.add_argument("version")
    one.add_argument("sources", nargs="*", metavar="SOURCE", help="a record or saved plan")
    one.add_argument("--package", default="xllamacpp", help="%(default)s, or llama-cpp-python")
    one.add_argument("--report", type=Path, metavar="FILE", help="write the report there, too")
    one.add_argument("--force", action="store_true", help="replace the report's FILE")
    one.add_argument("--write", action="store_true",
                     help="enter it into vendor/upstream.toml and trace/rules.py at the end")
    one.add_argument("--no-suite", dest="suite", action="store_false", help="run no tests")
    one.add_argument("--jobs", type=int, default=1, metavar="N", help="plans made at once")
    given = parser.parse_args(argv)
    try:
        return _check(given.packages) if given.action == "check" else _try(given)
    except (BuildError, GgmlError, ValueError, OSError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else error
        print(f"error: {message}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""A release that is not listed yet: what works with it, and the report that listing it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..builds import script
from ..trace.names import counted
from ..trace.planned import format_bytes
from ..trace.rules import RELEASES
from .compare import Comparison, compared
from .planning import Progress, plans_under, prepared
from .rule_cases import rule_cases
from .suite import SuiteRun
from .work import Work

_SHOWN = 12  # names of what changed or was renumbered; what was added or removed is listed in full


def newer(packages: Sequence[str] = ()) -> list[dict[str, Any]]:
    """For each package (default: all that have ggml) its newest listed version, as `listed`, and
    what the package index has beyond it, as `newer`. Raises ValueError if the index cannot be asked
    or does not know a package."""
    found: list[dict[str, Any]] = script.answer_of("vendor.candidate", "check", *packages)
    return found


@dataclass(frozen=True)
class Candidate:
    """What is known of a release that is not listed yet."""

    found: dict[str, Any]  # what `vendor.candidate inspect` says
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
        if self.suite is not None and not self.suite.passed and not self.suite.why_not:
            return False
        return all(row.agrees[1] for row in self.comparison.rows)

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "label": self.label, "complete": self.complete, **self.found,
            "build": {"key": self.key, "error": self.error, "seconds": self.proof.get("seconds")},
            "against": self.against,
            "comparison": self.comparison.to_dict() if self.comparison is not None else None,
            "suite": self.suite._asdict() if self.suite is not None else None,
        }  # fmt: skip

    def report(self) -> str:
        """In Markdown, for the message of the commit that lists the release."""
        parts = (_head, _edits, _built, _bindings, _plans, _suite, _left)
        return "\n\n".join(part(self) for part in parts) + "\n"


def candidate(
    package: str,
    version: str,
    cases: Sequence[Work],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Candidate:
    """Downloads a version that is not listed, looks at what is in it, builds it, and plans `cases`
    under it and under the newest listed release, natively. Changes no file of the source tree.

    Whatever succeeded is found again by the next call. A release that does not build, or has no
    place for an edit, is a result, not an error. Raises ValueError if the index lacks the version,
    if it is listed, or has no ggml; `NotBuiltError` if the newest listed release does not build.
    """
    found = script.answer_of("vendor.candidate", "inspect", package, version)
    against = RELEASES[0].label
    key, error, proof = _build(str(found["table"]))
    comparison = None
    if key:
        base = prepared(against)
        before, after = plans_under([base, key], cases, jobs, progress)
        label = found["release"]["label"]
        comparison = compared(against, label, cases, before, after)
    return Candidate(found, key, error, proof, comparison, against)


def enter(found: Candidate) -> list[str]:
    """Enters the release into the tables of this source tree. Returns the changed files. Raises
    ValueError outside of a source tree, and for a release that does not build."""
    if not found.key:
        raise ValueError(f"{found.label} does not build and is not entered: {found.error}")
    answer = script.answer_of("vendor.candidate", "add", str(found.found["table"]))
    return list(answer["changed"])


def must_be_a_source_tree() -> None:
    """Raises ValueError in an installed package, whose table cannot be committed."""
    folder = script.find_script().parent
    if folder.name == "_build":
        raise ValueError(
            f"the table of releases in {folder} belongs to an installed package: enter a release "
            "in a source tree of ggml_py. Without --write it is only tried"
        )


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
    if elsewhere := edits["elsewhere"]:
        files = sorted({f"{source} is now in {file}" for source, _name, file in elsewhere})
        lines.append(f"{counted(len(elsewhere), 'edit')} elsewhere: {'; '.join(files)}.")
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
    if one.suite is None or one.suite.why_not:
        why = one.suite.why_not if one.suite is not None else "it was not asked for"
        return f"## Tests\n\nNot run: {why if one.key else 'there is no build'}."
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
        "records of supported ops: `pytest tests/vendor/test_build_profiles.py "
        "tests/sim/test_profiles.py`",
        "generated tables: `python -m vendor.since`, `python -m vendor.record_ages`",
    ]
    if one.comparison is not None and len(one.comparison.rows) > len(rule_cases()):
        del steps[0]
    if ops:
        steps.append(f"new ops need rows in `vendor/ops_*.toml`: {_names(ops)}")
    return "\n".join(["## Not done", "", *(f"- {step}" for step in steps)])

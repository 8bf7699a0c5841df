"""The known releases: what each changed in the scheduler's rules, and its build here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..builds import builds, script
from ..trace.record import Settings
from ..trace.rules import Rules, rules_of
from .attribution import rules_changed


class BuildHere(NamedTuple):
    """A build that is beside this package."""

    key: str
    folder: str
    disk: int  # bytes
    seconds: float | None  # that making it took; None if its build.json does not say
    instrumented: bool
    edits_missing: int  # edits without a place, for which it was built without instrumentation


class ReleaseRow(NamedTuple):
    """One row of `vendor/upstream.toml`."""

    label: str
    ggml: str
    build: int | None  # of llama.cpp; None if the package does not say
    package: str
    version: str
    default: bool
    rules: dict[str, str]  # that differ from the release before, in sentences; {} for the oldest
    here: tuple[BuildHere, ...]  # newest first

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {**self._asdict(), "here": [one._asdict() for one in self.here]}


def listing() -> list[ReleaseRow]:
    """Every known release, newest first. Raises `NotBuiltError` if the table is not here."""
    answer = script.answer_of("build_ggml", "--list", "--json")
    present = builds()
    found: list[ReleaseRow] = []
    older: Rules | None = None
    for row in reversed(answer["releases"]):
        settings = Settings(row["ggml"], f"{row['label']}-0", True, 1, 0, 0, 0)
        rules = rules_of(settings)
        changed = rules_changed(older, rules) if older is not None else {}
        older = rules
        here = tuple(_here(one) for one in present if one["source_sha256"] == row["sha256"])
        found.append(
            ReleaseRow(
                row["label"], row["ggml"], row["build"], row["package"], row["version"],
                row["label"] == answer["default"], changed, here,
            )
        )  # fmt: skip
    return found[::-1]


def _here(build: dict[str, Any]) -> BuildHere:
    folder = Path(build["folder"])
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return BuildHere(
        build["key"], str(folder), size, build.get("seconds"), not build["pristine"],
        len(build.get("edits_missing") or ()),
    )  # fmt: skip

"""A folder of kept plans: what a project wants ggml's scheduler to go on deciding.

A file `NAME.json.gz` is a plan. `cases.txt` tells how plans of models are made, a line for each:

    NAME: model.gguf -d sim:gpu0,profile=rtx4090 -d CPU -ngl 9

are the words that follow `ggml-py plan`, the model from this folder. The graphs of other plans, and
of records (`NAME.ggrec`), are planned again with the answers that were recorded.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..files.bounds import LIST
from ..files.reading import decoded, read_file
from ..plan import Plan
from ..record.session import Record
from .attribution import changes
from .tasks import Made, Work

CASES, PLAN, RECORD = "cases.txt", ".json.gz", ".ggrec"


class Kept(NamedTuple):
    """A plan that is kept, and the work that makes it."""

    work: Work
    plan: Plan | None  # None: not kept yet
    path: Path | None  # where it is kept; None: in a record, which stays as it is

    @property
    def made(self) -> Made:
        """As one side of a comparison."""
        return Made(self.plan, "" if self.plan else "not kept yet: --update keeps it")


def kept_in(folder: Path) -> list[Kept]:
    """The kept cases of a folder, by name. Raises ValueError for invalid files, and for a folder
    without cases."""
    recipes = _recipes(folder)
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.endswith((PLAN, RECORD)):
            _check_inside(path, folder)
        if path.name.endswith(PLAN):
            name = path.name.removesuffix(PLAN)
            plan = _read(path)
            words = recipes.pop(name, None)
            work = Work(name, plan=plan) if words is None else Work(name, words)
            found.append(Kept(work, plan, path))
        elif path.name.endswith(RECORD):
            record = Record.read(path)
            found += kept_of_record(record, path.name.removesuffix(RECORD))
            if record.damaged:
                raise ValueError(f"{path}: {record.damaged_plans}")
    found += [
        Kept(Work(name, words), None, folder / f"{name}{PLAN}") for name, words in recipes.items()
    ]
    if not found:
        raise ValueError(
            f"{folder} keeps no plans: expected files *{PLAN} or *{RECORD}, or {CASES}"
        )
    return sorted(found, key=lambda kept: _natural(kept.work.name))


def kept_of_record(record: Record, name: str) -> list[Kept]:
    """The whole plans of a record. Each comes after the distinct plans that its scheduler made
    before."""
    found: list[Kept] = []
    earlier: dict[tuple[int, int], tuple[Plan, ...]] = {}
    for one, plan in record.whole():
        key = id(one.process), one.scheduler
        before = earlier.get(key, ())
        work = Work(f"{name} {one.index} ({one.label})", plan=plan, earlier=before)
        found.append(Kept(work, plan, None))
        earlier[key] = (*before, plan)
    return found


def update(kept: Sequence[Kept], made: Sequence[Made]) -> list[Path]:
    """Writes the plans that differ from the kept ones, or were not kept. Returns their files."""
    written = []
    for one, now in zip(kept, made, strict=True):
        same = (
            one.plan is not None and now.plan is not None
            and not one.plan.diff(now.plan) and not changes(one.plan, now.plan)
        )  # fmt: skip
        if one.path is not None and now.plan is not None and not same:
            now.plan.to_json(one.path)
            written.append(one.path)
    return written


def _check_inside(path: Path, folder: Path) -> None:
    """Raises ValueError for a file elsewhere: somebody else may have made the folder."""
    # Not `resolve`, which raises RuntimeError for links that lead to each other.
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise ValueError(
            f"{path} is {real}, outside the folder: expected a file that is in {folder}"
        )


def _natural(name: str) -> list[tuple[int, str]]:
    """For sorting: numbers by their value, so that plan 10 of a record comes after plan 9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


def _read(path: Path) -> Plan:
    try:
        plan = Plan.from_json(path)
        plan.capture.check_answers()
        return plan
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _recipes(folder: Path) -> dict[str, tuple[str, ...]]:
    path = folder / CASES
    if not path.is_file():
        return {}
    found: dict[str, tuple[str, ...]] = {}
    text = decoded(read_file(path, LIST), path)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, words = line.partition(":")
        try:
            model, *options = shlex.split(words)
        except ValueError:
            model = ""
        if not (colon and model and name.strip()) or "/" in name or name.strip() in found:
            raise ValueError(
                f"{path}:{number}: expected NAME: MODEL OPTIONS of ggml-py plan, each name once "
                f"and one that a file may have. Given: {line.strip()}"
            )
        if not (folder / model).is_file():
            raise ValueError(f"{path}:{number}: there is no {folder / model}")
        _check_inside(folder / model, folder)
        found[name.strip()] = (str((folder / model).resolve()), *options)
    return found

"""Plans the same work natively under two releases, each plan in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..builds import script, select
from ..errors import NotBuiltError
from ..plan import Plan
from ..trace.answers.diff import Diff, diff
from ..trace.names import counted
from ..trace.rules import find_release
from .attribution import Attribution, agrees, changes

Progress = Callable[[float], None]
_ONLY_CONFIRMED = (
    "its build has no causes. The plans are the reference scheduler's; the release's own told only "
    "the backend of each node and the number of splits, which are the same"
)


@dataclass(frozen=True)
class Work:
    """A piece of work that every release is given.

    `words` is what `ggml-py plan` takes: a model, or a record or saved plan with devices (-d), and
    options. `plan` is a plan whose graph is planned again with its own devices' answers.
    """

    name: str
    words: tuple[str, ...] = ()
    plan: Plan | None = None


@dataclass(frozen=True)
class Compared:
    """One case under two releases."""

    case: str
    before: Plan | None
    after: Plan | None
    errors: tuple[str, str]  # why there is no plan; "" with one
    diff: Diff | None  # None unless both releases plan it
    changes: tuple[Attribution, ...]
    agrees: tuple[bool | None, bool | None]  # whether the reference makes the same plans

    @property
    def differs(self) -> bool:
        """Whether the releases decide differently, or only one of them can."""
        if self.diff is None:
            return (self.before is None) != (self.after is None)
        return bool(self.diff) or bool(self.changes)

    def headline(self) -> str:
        """What is different, in a line."""
        if self.diff is not None:
            return self.diff.headline()
        said = [f"no plan: {error}" if error else "plans it" for error in self.errors]
        return said[0] if said[0] == said[1] else f"{said[0]} → {said[1]}"

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "case": self.case, "differs": self.differs, "headline": self.headline(),
            "errors": list(self.errors), "reference_agrees": list(self.agrees),
            "changes": [change._asdict() for change in self.changes],
            "diff": self.diff.to_dict() if self.diff is not None else None,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """All cases under two releases; true if any differs."""

    before: str
    after: str
    rows: tuple[Compared, ...]

    def __bool__(self) -> bool:
        return bool(self.different)

    @property
    def different(self) -> tuple[Compared, ...]:
        """The cases that the releases decide differently."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def only_confirmed(self) -> tuple[str, ...]:
        """The releases whose build has no causes: their plans are the reference's."""
        sides = (
            (self.before, [row.before for row in self.rows]),
            (self.after, [row.after for row in self.rows]),
        )
        return tuple(
            release for release, plans in sides
            if any(plan is not None and plan.planner == "reference" for plan in plans)
        )  # fmt: skip

    def headline(self) -> str:
        """One line."""
        n, failed = len(self.different), sum(row.diff is None for row in self.rows)
        cases = counted(len(self.rows), "case")
        without = f"; {counted(failed, 'case')} without a plan in one or both" if failed else ""
        return f"{self.before} → {self.after}: {n} of {cases} differ{'s' * (n == 1)}{without}"

    def __str__(self) -> str:
        lines = [self.headline()]
        for row in self.rows:
            if row.differs or row.diff is None:
                lines.append(f"{row.case}: {row.headline()}")
            lines += [f"  {c.kind}: {c.text}" for c in row.changes if row.differs]
            for release, agreed in zip((self.before, self.after), row.agrees, strict=True):
                if agreed is False:
                    lines.append(
                        f"  {row.case}: the reference scheduler plans otherwise by the rules of "
                        f"{release}: its reasons are not proven here"
                    )
        lines += [f"{release}: {_ONLY_CONFIRMED}" for release in self.only_confirmed]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        return {
            "before": self.before, "after": self.after, "headline": self.headline(),
            "n_different": len(self.different), "only_confirmed": list(self.only_confirmed),
            "cases": [row.to_dict() for row in self.rows],
        }  # fmt: skip


def compare(
    before: str,
    after: str,
    cases: Iterable[Work],
    *,
    build: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    """What release `after` plans differently from release `before`, case by case, and why.

    A release is any name that `ggml-py build --list` prints, or the folder of a checkout. One that
    is missing is built, unless `build` is false. A case that a release cannot plan is in the result
    with the reason. Raises `NotBuiltError`, and ValueError for an unknown name.
    """
    work = list(cases)
    labels = [prepared(release, build) for release in (before, after)]
    if labels[0] == labels[1]:
        raise ValueError(f"{before} and {after} are the same build, {labels[0]}: name two releases")
    return compared(before, after, work, *plans_under(labels, work, jobs, progress))


def compared(
    before: str,
    after: str,
    cases: Sequence[Work],
    plans_before: Sequence[Plan | str],
    plans_after: Sequence[Plan | str],
) -> Comparison:
    """What `compare` returns, for plans of `plans_under`."""
    rows = map(_row, cases, plans_before, plans_after)
    return Comparison(before, after, tuple(rows))


def prepared(release: str, build: bool = True) -> str:
    """The key of that release's build, which is made if it is missing; of a folder, which is a
    checkout of ggml or llama.cpp, the build of what is in it now. Raises `NotBuiltError`, and
    ValueError for an unknown name."""
    if Path(release).is_dir():
        folder = script.folder_of("--source", release)
        if folder is None:
            raise NotBuiltError(f"{release} could not be built: see above")
        return folder.name
    try:
        return str(select(release)["key"])
    except NotBuiltError:
        find_release(release)
        if not build:
            raise
    if script.folder_of("--upstream", release) is None:
        raise NotBuiltError(f"release {release} could not be built: see above")
    return str(select(release)["key"])


def plans_under(
    keys: Sequence[str], cases: Sequence[Work], jobs: int = 1, progress: Progress | None = None
) -> list[list[Plan | str]]:
    """For each build the plan of each case, or why there is none."""
    found: list[list[Plan | str]] = [["" for _ in cases] for _ in keys]
    tell = progress or (lambda _share: None)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, jobs)) as pool:
        saved = [_saved(case, Path(folder) / f"{c}.json.gz") for c, case in enumerate(cases)]
        asked = {}
        for k, key in enumerate(keys):
            for c, case in enumerate(cases):
                out = Path(folder) / f"{c}-{k}.json.gz"
                asked[pool.submit(_planned, key, case, saved[c], out)] = (k, c)
        try:
            for done, future in enumerate(as_completed(asked), 1):
                k, c = asked[future]
                found[k][c] = future.result()
                tell(done / len(asked))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _saved(case: Work, path: Path) -> Path | None:
    if case.plan is None:
        return None
    case.plan.to_json(path)
    return path


def _planned(key: str, case: Work, saved: Path | None, out: Path) -> Plan | str:
    """The plan that a build makes; why there is none."""
    command = [sys.executable, "-m"]
    if saved is not None:
        command += ["ggml_py.releases.again", str(saved), str(out)]
    else:
        command += ["ggml_py", "plan", *case.words, "-o", str(out)]
    package = str(Path(__file__).resolve().parents[2])  # this code, wherever the caller stands
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, env={**os.environ, "GGML_PY_UPSTREAM": key, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode == 0 and out.is_file():
        return Plan.from_json(out)
    if done.returncode < 0:
        return f"the process ended with signal {-done.returncode}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return (said[-1] if said else f"exit status {done.returncode}").removeprefix("error: ")


def _row(case: Work, before: Plan | str, after: Plan | str) -> Compared:
    plans = [side if isinstance(side, Plan) else None for side in (before, after)]
    errors = [side if isinstance(side, str) else "" for side in (before, after)]
    a, b = plans
    agreed = [
        agrees(plan) if plan is not None and plan.planner != "reference" else None
        for plan in plans
    ]
    return Compared(
        case.name, a, b, (errors[0], errors[1]),
        diff(a, b) if a is not None and b is not None else None,
        changes(a, b) if a is not None and b is not None else (),
        (agreed[0], agreed[1]),
    )  # fmt: skip

"""Plans work natively under releases, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..boundary.isolate import last_error
from ..builds import script, select
from ..builds.script import LIBLLAMA_MISSING, NO_BUILD
from ..errors import NotBuiltError
from ..plan import Plan
from ..scheduler.observed import Observed
from ..trace.rules import find_release
from .again import STOPPED
from .tasks import Made, Work

Progress = Callable[[float], None]
_STOPPED, _GRACE = "stopped: ", 2.0  # seconds
_Item = dict[str, Any]  # as `again` takes them


def check_release(release: str) -> None:
    """Raises ValueError for a name that is neither a folder, nor a build, nor a known release."""
    if Path(release).is_dir():
        return
    try:
        select(release)
    except NotBuiltError:
        find_release(release)


def prepared(release: str, build: bool = True) -> str:
    """The key of that release's build. Makes the build if it is missing. `release` may also be the
    folder of a checkout of ggml or llama.cpp: its present content is built. Raises `NotBuiltError`,
    and ValueError for an unknown name."""
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
            raise NotBuiltError(
                f"release {release} is not built here: leave out --no-build, or run `ggml-py build "
                f"--upstream {release}`. `ggml-py plan MODEL --what-if upstream={release}` needs "
                "no build"
            ) from None
    if script.folder_of("--upstream", release) is None:
        raise NotBuiltError(f"release {release} could not be built: see above")
    return str(select(release)["key"])


def plans_under(
    keys: Sequence[str],
    cases: Sequence[Work],
    jobs: int = 1,
    progress: Progress | None = None,
    build: bool = True,
    rounds: int = 0,
    observe: bool = True,
) -> list[list[Made]]:
    """The results of each build, one for each case. At most `jobs` processes run at once. A
    libllama that a model needs is built first, unless `build` is false. At the end, the cases are
    timed `rounds` times. The builds take turns in each round, one process at a time. Without
    `observe` graphs are only planned."""
    with tempfile.TemporaryDirectory() as folder:
        planning = _Planning(Path(folder), cases, progress or (lambda _share: None), build, observe)
        planning.total = len(keys) * len(cases) * (1 + rounds)
        per_key = -(-jobs // len(keys))  # processes for each build
        step = max(1, -(-len(cases) // per_key))
        parts = [range(at, min(at + step, len(cases))) for at in range(0, len(cases), step)]
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            try:
                asked = [[pool.submit(planning.part, key, part) for part in parts] for key in keys]
                made = [[made for one in row for made in one.result()] for row in asked]
                return planning.timed(keys, made, rounds) if rounds else made
            except BaseException:
                planning.stop()
                pool.shutdown(cancel_futures=True)
                raise


class _Planning:
    """The files and the progress of `plans_under`."""

    def __init__(
        self, folder: Path, cases: Sequence[Work], progress: Progress, build: bool, observe: bool
    ) -> None:
        self._folder, self._cases, self._progress = folder, cases, progress
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._build, self._observe = build, observe
        self._libllamas: dict[str, bool] = {}  # by key of the build: whether it could be built
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._done = 0
        self.total = 0
        self._saved: dict[int, str] = {}  # by id of the plan, which the cases keep
        of_cases = ((*case.earlier, case.plan, case.reserve) for case in cases)
        plans = [p for of_case in of_cases for p in of_case if p is not None]
        for plan in plans:
            if id(plan) not in self._saved:
                path = folder / f"saved-{len(self._saved)}.json.gz"
                plan.to_json(path)
                self._saved[id(plan)] = str(path)
        sizes = (max(p.settings.hash_set_size, len(p.capture.tensors)) for p in plans)
        self._size = max(sizes, default=0)

    def stop(self) -> None:
        """Ends the processes."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()  # ends a stopped one, too

    def part(self, key: str, part: range) -> list[Made]:
        """What a build makes of some of the cases."""
        errors: dict[int, str] = {}
        items: list[_Item] = []
        for c in part:
            case, out = self._cases[c], self._out(key, c)
            saved = out if case.plan is None else self._saved[id(case.plan)]
            if case.plan is None:
                errors[c] = self._planned(key, "plan", *case.words, "-o", out)
            if errors.get(c):
                self._tell()
                continue
            earlier = [self._saved[id(plan)] for plan in case.earlier]
            items.append({
                "case": c, "saved": saved, "own": case.plan is None, "goes_on": False,
                "earlier": earlier, "out": out, "observe": self._observe,
                "reserve": self._saved[id(case.reserve)] if case.reserve else "",
                "in_depth": case.in_depth,
            })  # fmt: skip
        for item, following in pairwise(items):
            item["goes_on"] = following["earlier"] == [*item["earlier"], item["saved"]]
        errors |= self._again(key, items)
        return [self._made(key, c, errors.get(c, "")) for c in part]

    def timed(
        self, keys: Sequence[str], made: Sequence[Sequence[Made]], rounds: int
    ) -> list[list[Made]]:
        """With the times of the cases that all builds computed."""
        computed = [
            c for c, of_case in enumerate(zip(*made, strict=True))
            if all(m.observed is not None and m.observed.waits is not None for m in of_case)
        ]  # fmt: skip
        taken: dict[tuple[str, int], list[float]] = {(k, c): [] for k in keys for c in computed}
        errors: dict[int, str] = {}
        for r in range(rounds):
            for key in keys if r % 2 == 0 else reversed(keys):
                saved = {
                    c: self._saved[id(plan)] if (plan := self._cases[c].plan) else self._out(key, c)
                    for c in computed
                    if c not in errors
                }
                items: list[_Item] = [
                    {"case": c, "saved": path, "earlier": [], "goes_on": False,
                     "out": f"{self._out(key, c)}.{r}", "timed": True}
                    for c, path in saved.items()
                ]  # fmt: skip
                errors |= self._again(key, items)
                for item in items:
                    with contextlib.suppress(FileNotFoundError):
                        said = Path(f"{item['out']}.error").read_text()
                        errors[item["case"]] = said.partition("\n")[0]
                    with contextlib.suppress(FileNotFoundError):
                        text = Path(f"{item['out']}.observed").read_text()
                        taken[key, item["case"]].append(json.loads(text))
        return [
            [self._with_times(m, taken.get((key, c)), errors.get(c)) for c, m in enumerate(row)]
            for key, row in zip(keys, made, strict=True)
        ]

    @staticmethod
    def _with_times(made: Made, taken: list[float] | None, error: str | None) -> Made:
        seen = made.observed
        if seen is None:
            return made
        if error is not None or taken is None:
            why = error or seen.left_out or "not every release computes it"
            return made._replace(observed=seen._replace(untimed=why))
        return made._replace(observed=seen._replace(seconds=tuple(taken)))

    def _planned(self, key: str, *words: str) -> str:
        """Runs a verb under a build; why it failed. It does not build the libllama that it may
        need: that is done here, once, where people see it."""
        said = self._run(key, "ggml_py", *words)
        if not self._build or LIBLLAMA_MISSING.format(key) not in said:
            return said
        with self._building:
            if key not in self._libllamas:
                build = ("--llama", "--on", str(select(key)["folder"]))
                self._libllamas[key] = script.folder_of(*build) is not None
        if not self._libllamas[key]:
            return f"libllama of build {key} could not be built: see above"
        return self._run(key, "ggml_py", *words)

    def _out(self, key: str, c: int) -> str:
        return str(self._folder / f"{c}-{key}.json.gz")

    def _again(self, key: str, items: Sequence[_Item]) -> dict[int, str]:
        """Why items were not done to their end. An item that ends its process does not keep the
        next ones from being done."""
        errors: dict[int, str] = {}
        while items:
            job = self._folder / f"{items[0]['case']}-{key}.job"
            job.write_text(json.dumps({"size": self._size, "items": items}))
            said = self._run(key, "ggml_py.releases.again", str(job), lines=self._tell)
            undone = [item for item in items if not _finished(item["out"])]
            # One may have ended the process; what stopped it keeps the others from being done, too.
            for item in undone if said.startswith(_STOPPED) else undone[:1]:
                text = said.removeprefix(_STOPPED)
                errors[item["case"]] = text or "the process ended before it was done"
                self._tell()
            items = [] if said.startswith(_STOPPED) else undone[1:]
        return errors

    def _run(self, key: str, *words: str, lines: Callable[[], None] | None = None) -> str:
        """Runs a module under a build; why it failed. `lines` is called for each line."""
        package = str(Path(__file__).resolve().parents[2])  # this code, wherever the caller stands
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        with tempfile.TemporaryFile() as errors:
            with self._lock:
                if self._stopped:
                    return "stopped"
                process = subprocess.Popen(
                    [sys.executable, "-m", *words], stdin=subprocess.DEVNULL, stderr=errors,
                    stdout=subprocess.DEVNULL if lines is None else subprocess.PIPE,
                    env={**os.environ, "GGML_PY_UPSTREAM": key, "PYTHONPATH": path, NO_BUILD: "1"},
                )  # fmt: skip
                self._running.add(process)
            for _line in process.stdout or ():
                if lines is not None:
                    lines()
            status = process.wait()
            with self._lock:
                self._running.discard(process)
            errors.seek(0)
            said = last_error(errors.read().decode("utf-8", "replace"))
        if status == STOPPED:
            return _STOPPED + said
        if status < 0:
            return f"the process ended with signal {-status}"
        return (said or f"exit status {status}") * bool(status)

    def _tell(self) -> None:
        with self._lock:
            self._done += 1
            self._progress(self._done / self.total)

    def _made(self, key: str, c: int, error: str) -> Made:
        out = Path(self._out(key, c))
        with contextlib.suppress(FileNotFoundError):
            error = Path(f"{out}.error").read_text()
        if not out.is_file():
            return Made(None, error or "it was not planned, and nothing says why")
        plan = Plan.from_json(out)
        if plan.planner == "reference" and self._cases[c].plan is None:
            return Made(None, "a plan of --what-if: the reference made it, and no release")
        seen = Observed({}, {}, (), None, (), error)
        with contextlib.suppress(FileNotFoundError):
            seen = Observed.from_json(Path(f"{out}.observed").read_text())
        return Made(plan, "", seen)


def _finished(out: str) -> bool:
    return any(Path(f"{out}.{end}").is_file() for end in ("observed", "error"))

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

from ..builds import script, select
from ..builds.script import LIBLLAMA_MISSING, NO_BUILD
from ..errors import NotBuiltError
from ..plan import Plan
from ..scheduler.as_recorded import Observed, RunCopy
from ..trace.rules import find_release
from .again import STOPPED
from .work import Made, Work

Progress = Callable[[float], None]
_STOPPED, _GRACE = "stopped: ", 2.0  # seconds
_Item = dict[str, Any]  # as `again` takes them


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
    keys: Sequence[str],
    cases: Sequence[Work],
    jobs: int = 1,
    progress: Progress | None = None,
    build: bool = True,
) -> list[list[Made]]:
    """For each build what it makes of each case. At most `jobs` processes run at once. A libllama
    that a model needs is built first, unless `build` is false."""
    with tempfile.TemporaryDirectory() as folder:
        planning = _Planning(Path(folder), cases, progress or (lambda _share: None), build)
        planning.total = len(keys) * len(cases)
        per_key = -(-jobs // len(keys))  # processes for each build
        step = max(1, -(-len(cases) // per_key))
        parts = [range(at, min(at + step, len(cases))) for at in range(0, len(cases), step)]
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            try:
                asked = [[pool.submit(planning.part, key, part) for part in parts] for key in keys]
                return [[made for one in row for made in one.result()] for row in asked]
            except BaseException:
                planning.stop()
                pool.shutdown(cancel_futures=True)
                raise


class _Planning:
    """The files and the progress of `plans_under`."""

    def __init__(
        self, folder: Path, cases: Sequence[Work], progress: Progress, build: bool
    ) -> None:
        self._folder, self._cases, self._progress = folder, cases, progress
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._build = build
        self._libllamas: dict[str, bool] = {}  # by key of the build: whether it could be built
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._done = 0
        self.total = 0
        self._saved: dict[int, str] = {}  # by id of the plan, which the cases keep
        plans = [p for case in cases for p in (*case.earlier, case.plan) if p is not None]
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
                "earlier": earlier, "out": out,
            })  # fmt: skip
        for item, following in pairwise(items):
            item["goes_on"] = following["earlier"] == [*item["earlier"], item["saved"]]
        errors |= self._again(key, items)
        return [self._made(key, c, errors.get(c, "")) for c in part]

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
            said = errors.read().decode("utf-8", "replace").strip().splitlines()
        if status == STOPPED:
            return _STOPPED + (said[-1] if said else "").removeprefix("error: ")
        if status < 0:
            return f"the process ended with signal {-status}"
        return (said[-1] if said else f"exit status {status}").removeprefix("error: ") * bool(
            status
        )

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
            data = json.loads(Path(f"{out}.observed").read_text())
            seen = Observed(
                data[0], data[1], tuple(data[2]), data[3],
                tuple(RunCopy(*one) for one in data[4]), data[5],
            )  # fmt: skip
        return Made(plan, "", seen)


def _finished(out: str) -> bool:
    return any(Path(f"{out}.{end}").is_file() for end in ("observed", "error"))

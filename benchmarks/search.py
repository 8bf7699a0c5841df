"""Shared code of all searches for faults: numbered cases in separate processes, and a record.

A search is a script with a `SEARCH` and `sys.exit(search.main(SEARCH))`:

    python benchmarks/NAME.py                  continues the record until --cases are done
    python benchmarks/NAME.py --only 4711      repeats one case in this process, with its traceback

A case that raises, ends its process or takes too long is a finding; after a death or a timeout the
next case runs in a new process. The record (`benchmarks/results/NAME.json`) is written atomically
every half minute. A new record is begun if upstream's release or the code of a file that the search
is about has changed. Otherwise a search that was stopped or killed continues, and the record says
how many cases ran on which build. A committed record names under `mended`, by seed, the test of a
fault that was found and mended since, and under `named` the page that says why one is left.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import hashlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

sys.path[:0] = [str(Path(__file__).resolve().parent)]
from meaning import meaning  # noqa: E402

REPO = Path(__file__).resolve().parent.parent
OBJECTS = tuple(
    f"ggml_py/{folder}/*.py"
    for folder in ("boundary", "backends", "tensors", "graphs", "gguf", "sim", "scheduler", "train")
)
RESULTS = REPO / "benchmarks" / "results"
SAVE_S = 30.0
KEPT = 200  # findings that the record shows in full; all are counted
START_S = 120.0  # time for a process to import its modules


@dataclass(frozen=True)
class Search:
    """`case(seed)` returns the outcome of a case, in a word or two. An exception is a finding.

    `about` are globs below the repository: the files that a result is about, besides the script.
    """

    name: str
    about: tuple[str, ...]
    case: Callable[[int], str]
    limit_s: float = 60.0  # for one case
    per_process: int = 2000  # number of cases, to bound what leaks can add up to
    count: Callable[[], int] | None = None  # the number of all cases, if there is an end

    @property
    def patterns(self) -> tuple[str, ...]:
        """All files that a result is about."""
        return (*self.about, f"benchmarks/{self.name}.py")


@dataclass
class Report:
    """The outcomes of the cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)  # seed, how, text
    seconds: float = 0.0
    builds: Counter[str] = field(default_factory=Counter)  # number of cases that each build ran

    @property
    def cases(self) -> int:
        return self.outcomes.total()

    def add(self, other: Report) -> None:
        """Adds the outcomes of another part of the same search."""
        self.outcomes += other.outcomes
        self.findings += other.findings[: max(KEPT - len(self.findings), 0)]
        self.seconds += other.seconds
        self.builds += other.builds


# --- the process that runs cases


def child(search: Search, first: int, end: int) -> None:
    """Runs cases, and reports its progress on stdout so that the reader knows which case it died
    of."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the output of cases goes to stderr

    def say(**row: Any) -> None:
        out.write(json.dumps(row) + "\n")

    from ggml_py.boundary.ffi import BUILD

    say(build=BUILD["key"])
    gc.collect()
    gc.freeze()  # modules stay: collections during cases need not look at them
    for seed in range(first, end):
        say(begin=seed)
        try:
            say(end=seed, how=search.case(seed))
        except Exception as error:
            text = traceback.format_exc()[-3000:]
            say(end=seed, how=f"raised {type(error).__name__}", text=text)


@dataclass
class Process:
    """One child process and its output."""

    script: Path
    first: int
    end: int

    def __post_init__(self) -> None:
        command = [sys.executable, str(self.script), "--child", str(self.first), str(self.end)]
        self._child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self._said: SimpleQueue[str] = SimpleQueue()
        self._errors: list[str] = []
        self._readers = [
            Thread(target=self._read, daemon=True), Thread(target=self._read_errors, daemon=True)
        ]  # fmt: skip
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._said.put(line)
        self._said.put("")

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._errors = [*self._errors[-40:], line]

    def rows(self, limit_s: float) -> Iterator[dict[str, Any]]:
        """The child's rows. The last one has `died`, unless the child finished."""
        started = False
        while True:
            line = self._line(limit_s if started else limit_s + START_S)
            if line is None:
                self._child.kill()
                self._child.wait()
                yield {"died": f"took more than {limit_s:g} s", "text": self._last_words()}
                return
            if not line.endswith("\n"):
                if status := self._child.wait():  # it may also die while the interpreter exits
                    yield {"died": _status(status), "text": self._last_words()}
                return
            row = json.loads(line)
            started = started or "begin" in row
            yield row

    def _line(self, limit_s: float) -> str | None:
        """The next line, or None if the child says nothing for so long. The time is counted in
        seconds that passed here, so a machine that sleeps or a search that is paused is no finding.
        """
        for _ in range(math.ceil(limit_s) + 1):  # a pause can end one of these early
            try:
                return self._said.get(timeout=min(limit_s, 1.0))
            except Empty:
                continue
        return None

    def _last_words(self) -> str:
        self._readers[1].join(timeout=5)
        return "".join(self._errors)[-3000:]


def _status(status: int) -> str:
    return f"died of {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"


def run(script: Path, search: Search, first: int, end: int) -> Report:
    """Runs the cases `first` … `end - 1` one after the other, in as many processes as needed."""
    report, start = Report(), time.monotonic()
    at, build = first, ""
    while at < end:
        process = Process(script, at, min(end, at + search.per_process))
        began, how = None, ""
        for row in process.rows(search.limit_s):
            build = row.get("build", build)
            began = row.get("begin", began)
            if "died" in row:
                if began is None:
                    said = f"({row['died']}):\n{row['text']}"
                    raise RuntimeError(f"{script.name} did not start {said}")
                if at > began:  # the process died after the case had ended
                    report.outcomes[how] -= 1
                _count(report, began, row["died"], row["text"])
                at = began + 1
                break
            if "end" in row:
                how = row["how"]
                _count(report, row["end"], how, row.get("text", ""))
                at = row["end"] + 1
    report.seconds = time.monotonic() - start
    report.builds[build] += report.cases
    return report


def _count(report: Report, seed: int, how: str, text: str) -> None:
    report.outcomes[how] += 1
    report.outcomes += Counter()  # removes zero counts
    if text or how.startswith(("died", "exited", "took")):
        report.findings.append({"seed": seed, "how": how, "text": text})


# --- the record


def hashes(about: tuple[str, ...]) -> dict[str, str]:
    """Each file that a search is about, and a hash of what its code does (meaning.py)."""
    paths = sorted({p for pattern in about for p in REPO.glob(pattern) if p.is_file()})
    return {p.relative_to(REPO).as_posix(): meaning(p.name, p.read_bytes()) for p in paths}


def code(about: tuple[str, ...]) -> str:
    """One hash of all files that a search is about."""
    text = json.dumps(hashes(about), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed_since(record: dict[str, Any]) -> bool:
    """Whether a file that this record is about changed since."""
    return code(tuple(record["patterns"])) != record.get("code")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPO, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def stamp(name: str) -> dict[str, str]:
    """What ran, when, and on which commit ("+": with changes that are not in it)."""
    return {
        "search": name,
        "command": f"python benchmarks/{name}.py",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain") else ""),
    }


def _save(path: Path, search: Search, report: Report, of_code: str) -> None:
    record = {
        **stamp(search.name),
        "builds": dict(report.builds.most_common()),
        "python": platform.python_version(),
        "cases": report.cases,
        "seconds": round(report.seconds),  # summed over the processes
        "outcomes": dict(report.outcomes.most_common()),
        "findings": report.findings,
        "patterns": list(search.patterns),
        "code": of_code,
    }
    write(path, record)


def write(path: Path, record: dict[str, Any]) -> None:
    """Writes a record in one step: a line for each field, and one for each row of a table."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(_lines(record, 2) + "\n")
    new.replace(path)


def _lines(value: Any, depth: int, indent: str = "") -> str:
    """JSON whose outermost `depth` levels of objects have a line for each entry."""
    inner = value.values() if isinstance(value, dict) else value
    if not (depth and isinstance(value, dict | list) and value):
        return json.dumps(value)
    if indent and not any(isinstance(one, dict | list) for one in inner):
        return json.dumps(value)
    open_, close = "{}" if isinstance(value, dict) else "[]"
    step = indent + " "
    if isinstance(value, dict):
        rows = [f"{json.dumps(str(k))}: {_lines(v, depth - 1, step)}" for k, v in value.items()]
    else:
        rows = [_lines(one, depth - 1, step) for one in value]
    return f"{open_}\n{step}" + f",\n{step}".join(rows) + f"\n{indent}{close}"


def keep(name: str, command: str, patterns: tuple[str, ...], **fields: Any) -> None:
    """Writes the record of a benchmark that is no search. `patterns` are globs of the files that
    its result is about; one of `fields` is `equal`, whether all was as it must be."""
    record = {
        "command": command,
        "date": str(datetime.date.today()),
        "commit": _git("rev-parse", "HEAD"),
        **fields,
        "patterns": list(patterns),
        "code": code(patterns),
    }
    write(RESULTS / f"{name}.json", record)


def _resume(path: Path, of_code: str, build: str) -> Report:
    if not path.exists():
        return Report()
    record = json.loads(path.read_text())
    before = record.get("builds", {})
    if record.get("code") != of_code or {_release(b) for b in before} != {_release(build)}:
        print(f"{path.name} is of other code ({record['date']}): starting over", file=sys.stderr)
        return Report()
    counted = Counter(record["outcomes"])
    return Report(counted, record["findings"], record["seconds"], Counter(before))


def _release(build: str) -> str:
    """Upstream's release and the kind of build: "0.26.0-sanitize-..." is a different one."""
    return build.rpartition("-")[0]


def show(report: Report) -> str:
    """The counts, then each kind of finding with its first seeds."""
    lines = [f"{report.cases:,} cases in {report.seconds:.0f} s: {dict(report.outcomes)}"]
    kinds: dict[str, list[int]] = {}
    for finding in report.findings:
        last = finding["text"].strip().splitlines()[-1:] or [""]
        kinds.setdefault(f"{finding['how']}: {last[0][:160]}", []).append(finding["seed"])
    for kind, seeds in sorted(kinds.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(seeds):6} {kind}\n       seeds {seeds[:6]}")
    return "\n".join(lines)


def _description() -> str:
    return (sys.modules["__main__"].__doc__ or "").partition("\n\n")[0]


def main(search: Search) -> int:
    """Runs the command of a search. Returns 1 if there are findings."""
    parser = argparse.ArgumentParser(description=_description())
    usual = "all" if search.count else 10_000
    parser.add_argument(
        "--cases", type=int, help=f"number in all, from case 0 on (default: {usual})"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes at a time")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{search.name}.json")
    parser.add_argument(
        "--limit", type=float, default=search.limit_s, help="for a case (default: %(default)g s)"
    )
    parser.add_argument("--only", type=int, metavar="SEED", help="run this case in this process")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    search = replace(search, limit_s=options.limit)
    if options.child:
        child(search, *options.child)
        return 0
    if options.only is not None:
        print(search.case(options.only))
        return 0
    from ggml_py.boundary.ffi import BUILD

    if options.cases is None:
        options.cases = search.count() if search.count else 10_000
    elif search.count:
        options.cases = min(options.cases, search.count())
    script = Path(sys.argv[0]).resolve()
    of_code = code(search.patterns)
    report = _resume(options.out, of_code, BUILD["key"])
    # Each chunk is a process, which must import everything first.
    share = -(-max(options.cases - report.cases, 0) // options.jobs)
    step = max(min(search.per_process, share), 1)
    chunks = [(i, min(i + step, options.cases)) for i in range(report.cases, options.cases, step)]
    bar = Progress(
        *Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    saved = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # saves first
    with bar, ThreadPoolExecutor(options.jobs) as pool:
        task = bar.add_task(search.name, total=options.cases, completed=report.cases)
        # In order, so that the record always covers the cases 0 … n - 1.
        pending = [pool.submit(run, script, search, *chunk) for chunk in chunks]
        try:
            for part in pending:
                done = part.result()
                if code(search.patterns) != of_code:
                    sys.exit(f"a file that {search.name} is about has changed: run it again")
                report.add(done)
                bar.update(task, completed=report.cases)
                if time.monotonic() - saved > SAVE_S:
                    _save(options.out, search, report, of_code)
                    saved = time.monotonic()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _save(options.out, search, report, of_code)
            raise
    _save(options.out, search, report, of_code)
    print(show(report))
    return bool(report.findings)

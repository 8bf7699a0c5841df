"""Shared code of the benchmarks: rounds in which all candidates take turns, and a row per result.

Machines are shared and noisy, so our code and the peer run in the same rounds, and a result is the
median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

UNITS = {"ns": 1e9, "µs": 1e6, "ms": 1e3, "s": 1.0, "B": 1.0, "MB": 1e-6}
# Prepended to a child's code: it runs a round for each line that it reads, and prints a number.
_CHILD = """
import sys, time
clock = time.perf_counter
def rounds(run):
    print("ready", flush=True)
    for _ in sys.stdin:
        print(run(), flush=True)
"""


@dataclass(frozen=True)
class Row:
    """One result. `ours` and `theirs` are medians in `unit`; ratios are ours/theirs per round."""

    what: str
    peer: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    bar: float | None = None  # the largest acceptable ratio

    @property
    def span(self) -> str:
        """The median ratio and its range over the rounds."""
        return f"{self.ratio:.2f} ({self.low:.2f}-{self.high:.2f})"

    @property
    def verdict(self) -> str:
        """Whether the bar is met."""
        if self.bar is None:
            return ""
        return f"≤ {self.bar:g} " + ("yes" if self.ratio <= self.bar else "NO")


@dataclass(frozen=True)
class Measured(Row):
    """A row for a bar of one percent. `sure` is the ratio's 95 % confidence interval."""

    sure: tuple[float, float] = (0.0, float("inf"))

    @property
    def span(self) -> str:
        """The ratio with more digits, its range and its interval."""
        low, high = self.sure
        return f"{self.ratio:.4f} ({self.low:.2f}-{self.high:.2f}), 95 %: {low:.4f}-{high:.4f}"

    @property
    def verdict(self) -> str:
        """Whether the bar is met, or undecided."""
        if self.bar is None:
            return ""
        low, high = self.sure
        said = "yes" if high <= self.bar else "NO" if low > self.bar else "undecided"
        return f"≤ {self.bar:g} {said}"


def seconds(work: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(
    what: str,
    ours: Callable[[], float],
    peers: dict[str, Callable[[], float]],
    *,
    rounds: int = 11,
    unit: str = "ms",
    bars: dict[str, float] | None = None,
    pause: float = 0.0,
) -> list[Row]:
    """A row for each peer. Each function returns seconds and runs once before the rounds begin.
    `pause` seconds before each call let the threads of the call before go to sleep."""
    runs = {"": ours, **peers}
    took: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    gc.collect()
    gc.disable()
    names = list(runs)
    try:
        for _ in range(rounds):
            for name in names:
                time.sleep(pause)
                took[name].append(runs[name]())
            names.append(names.pop(0))  # rotate the order
    finally:
        gc.enable()
    return [row(what, name, unit, took[""], took[name], (bars or {}).get(name)) for name in peers]


def row(
    what: str, peer: str, unit: str, ours: Sequence[float], theirs: Sequence[float],
    bar: float | None = None,
) -> Row:  # fmt: skip
    """A row from the seconds of each round."""
    return Row(what, peer, unit, *_figures([(ours, theirs)], UNITS[unit]), bar)


def measured(
    what: str, peer: str, unit: str,
    launches: Sequence[tuple[Sequence[float], Sequence[float]]], bar: float | None = None,
) -> Measured:  # fmt: skip
    """A row with the interval, from the seconds of each round of each launch."""
    ratios = [[a / b for a, b in zip(*launch, strict=True)] for launch in launches]
    figures = _figures(launches, UNITS[unit])
    return Measured(what, peer, unit, *figures, bar, interval(ratios))


def _figures(
    launches: Sequence[tuple[Sequence[float], Sequence[float]]], scale: float
) -> tuple[float, float, float, float, float]:
    """The medians of ours, theirs and their ratio, and the smallest and largest ratio."""
    pairs = [pair for launch in launches for pair in zip(*launch, strict=True)]
    ratios, middle = [a / b for a, b in pairs], statistics.median
    ours, theirs = (middle(values) * scale for values in zip(*pairs, strict=True))
    return ours, theirs, middle(ratios), min(ratios), max(ratios)


def interval(ratios: Sequence[Sequence[float]], draws: int = 2000) -> tuple[float, float]:
    """The 95 % confidence interval of the median ratio over several launches."""
    chance = random.Random(0)
    medians = []
    for _ in range(draws):
        launches = chance.choices(ratios, k=len(ratios))
        drawn = [r for part in launches for r in chance.choices(part, k=len(part))]
        medians.append(statistics.median(drawn))
    medians.sort()
    return medians[draws // 40], medians[-draws // 40 - 1]


@contextlib.contextmanager
def child(
    code: str, interpreter: str = sys.executable, **env: str
) -> Iterator[Callable[[], float] | None]:
    """A separate Python process that calls `rounds(run)` at the end of `code`, for a peer that
    cannot be in our process. Yields a function that calls its `run`, or None if the code does not
    get that far, as when the peer is not installed.
    """
    environment = {**os.environ, **env}
    if interpreter != sys.executable:
        environment.pop("PYTHONPATH", None)
    command = [interpreter, "-c", _CHILD + textwrap.dedent(code)]
    quiet = "import ggml\n" in code  # the peer may be missing
    with talking(command, environment, quiet) as run:
        yield run


@contextlib.contextmanager
def talking(
    command: Sequence[str], environment: dict[str, str] | None = None, quiet: bool = False
) -> Iterator[Callable[[], float] | None]:
    """A program that prints "ready", and then a number for each line that it reads. Yields a
    function that returns the next number, or None if the program ends before "ready"."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        out, into = process.stdout, process.stdin

        def run() -> float:
            print(file=into, flush=True)
            return float(out.readline())

        yield run if out.readline() == "ready\n" else None
        with contextlib.suppress(BrokenPipeError):
            into.close()


@contextlib.contextmanager
def children(**codes: tuple[str, dict[str, str]]) -> Iterator[dict[str, Callable[[], float]]]:
    """A `child` for each name. Those that cannot run are left out."""
    with contextlib.ExitStack() as stack:
        runs = {}
        for name, (code, options) in codes.items():
            run = stack.enter_context(child(code, **options))
            if run is not None:
                runs[name] = run
        yield runs


HEADINGS = ("what", "ours", "peer", "peer's", "ours/peer (min-max)", "bar")


def cells(r: Row) -> tuple[str, ...]:
    """The cells of a row in a table."""
    ours, theirs = f"{r.ours:.3g} {r.unit}", f"{r.theirs:.3g} {r.unit}"
    return (r.what, ours, r.peer, theirs, r.span, r.verdict)


def show(rows: Sequence[Row], form: str = "table") -> None:
    """Prints the rows as a table, as Markdown or as JSON."""
    if form == "json":
        print(json.dumps([asdict(r) for r in rows], indent=1))
    elif form == "markdown":
        for line in (HEADINGS, ("---",) * len(HEADINGS), *map(cells, rows)):
            print("|", " | ".join(line), "|")
    else:
        table = Table(*HEADINGS)
        for r in rows:
            table.add_row(*cells(r))
        Console(width=None if sys.stdout.isatty() else 140).print(table)


def some_of(*all_: str) -> Callable[[str], tuple[str, ...]]:
    """The argparse type of an option that names some of these, comma-separated."""

    def chosen(given: str) -> tuple[str, ...]:
        names = given.split(",")
        if not set(names) <= set(all_):
            expected = f"expected some of {','.join(all_)}, got {given!r}"
            raise argparse.ArgumentTypeError(expected)
        return tuple(name for name in all_ if name in names)

    return chosen


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    new = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    new.add_argument("--rounds", type=int, default=11)
    for form in ("json", "markdown"):
        new.add_argument(f"--{form}", dest="form", action="store_const", const=form)
    new.set_defaults(form="table")
    new.add_argument(
        "--peer", default=sys.executable, metavar="PYTHON",
        help="a Python that has the peer (pip install ggml-python==0.0.45, in a separate "
        "environment, because it compiles); without the peer its rows are left out",
    )  # fmt: skip
    return new

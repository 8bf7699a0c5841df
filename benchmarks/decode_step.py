"""Where the time of one decoded token goes: the graph's compute, and each Python function.

    python benchmarks/decode_step.py [--model 110M-q4_0] [--threads 2] [--tokens 300] [--json]

Tokens come from `Model.stream`, each the most likely one after the token before. A token's whole
time, and the time inside its native call (`gp_decode_one`: cells, inputs, the compute, the most
likely token), are medians of plain runs; the rest is Python's time. A recorded run shows what the
call does besides the compute. cProfile then shows how Python's time is spread over functions. It
makes small functions look larger than they are, so its figures are scaled to the sum of the plain
runs.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from models import file_of, opened
from rich.console import Console
from rich.table import Table
from rounds import parser

import ggml_py
from ggml_py.boundary.ffi import lib
from ggml_py.models import Model, graphs

_NATIVE = ("gp_decode_one", "graph_compute")  # the latter for a new graph
PACKAGE = Path(ggml_py.__file__).parent
LEAST = 0.01  # functions with a smaller share of Python's time are shown as one line


@dataclass(frozen=True)
class Function:
    """One function. `us` and `calls` are per token; `us` is without the functions it calls."""

    function: str
    us: float
    calls: float


def started(model: Model, n: int) -> Iterator[int]:
    """A stream with n tokens to go, past its first tokens."""
    model.reset()
    tokens = model.stream([1], n + 4)
    for _ in range(4):
        next(tokens)
    return tokens


def timed(model: Model, n: int) -> tuple[list[float], list[float]]:
    """Seconds of each of n tokens, and of their native calls."""
    clock, native = time.perf_counter, lib.gp_decode_one
    wholes, insides, inside = [], [], list[float]()

    def call(one: Any, token: int, seq: int, greedy: bool) -> Any:
        start = clock()
        status = native(one, token, seq, greedy)
        inside.append(clock() - start)
        return status

    tokens = started(model, n)
    graphs.lib = SimpleNamespace(gp_decode_one=call)  # type: ignore[attr-defined]
    try:
        for _ in range(n):
            start = clock()
            next(tokens)
            wholes.append(clock() - start)
            insides.append(sum(inside))
            inside.clear()
    finally:
        graphs.lib = lib  # type: ignore[attr-defined]
    return wholes, insides


def beside_the_compute(model: Model, n: int) -> float:
    """Seconds of the native call without the graph's compute, according to a recording."""
    with model.record() as recording:
        _wholes, insides = timed(model, n)
    computes = [event.ns * 1e-9 for event in recording.run.events if event.kind == "compute"]
    pairs = zip(insides, computes[-n:], strict=True)
    return statistics.median(inside - compute for inside, compute in pairs if inside)


def functions(model: Model, n: int, python: float) -> list[Function]:
    """The functions that a token calls, without the compute, scaled to `python` seconds in all."""
    profile = cProfile.Profile()
    tokens = started(model, n)
    profile.enable()
    for _ in range(n):
        next(tokens)
    profile.disable()
    found: dict[str, list[float]] = {}
    stats: Any = pstats.Stats(profile)
    for (file, _line, name), (_cc, calls, own, _all, _callers) in stats.stats.items():
        if not any(native in name for native in _NATIVE) and name != "disable":
            entry = found.setdefault(_name(file, name), [0.0, 0.0])
            entry[0] += own
            entry[1] += calls / n
    scale = python / sum(own for own, _calls in found.values()) * 1e6
    rows = [Function(name, own * scale, calls) for name, (own, calls) in found.items()]
    return sorted(rows, key=lambda row: -row.us)


def _name(file: str, name: str) -> str:
    """A name such as "models/own_model.py: eval"; for a function in C only its name."""
    if file.startswith(str(PACKAGE)):
        return f"{Path(file).relative_to(PACKAGE)}: {name}"
    if file == __file__:
        return "the loop around it"
    if file != "~":
        return f"{Path(file).name}: {name}"
    short = name.strip("<>").removeprefix("built-in method ").removeprefix("method ")
    words = short.replace("'", "").replace(" objects", "").split(" of ")
    return f"{words[1].split('.')[0]}: {words[0]}" if len(words) > 1 else words[0]


def measure(path: Path, threads: int, n: int) -> dict[str, Any]:
    """All measurements of one model."""
    with opened(path, threads, repack=True) as model:
        wholes, insides = timed(model, n)
        whole = statistics.median(wholes)
        python = statistics.median(a - b for a, b in zip(wholes, insides, strict=True))
        beside = beside_the_compute(model, n)
        rows = functions(model, n, python)
    return {
        "token_us": whole * 1e6,
        "compute_us": (whole - python - beside) * 1e6,
        "native_us": (whole - python) * 1e6,
        "python_us": python * 1e6,
        "python_share": python / whole,
        "functions": [asdict(row) for row in rows],
    }


def show(result: dict[str, Any], markdown: bool) -> None:
    """Prints a line for each function that matters."""
    token, python = result["token_us"], result["python_us"]
    compute = result["compute_us"]
    lines = [
        ("the graph's compute", compute, 1.0),
        ("cells, inputs, the likeliest: C", result["native_us"] - compute, 1.0),
    ]
    small = [0.0, 0.0]
    for row in result["functions"]:
        if row["us"] >= LEAST * python:
            lines.append((row["function"], row["us"], row["calls"]))
        else:
            small[0] += row["us"]
            small[1] += row["calls"]
    lines.append(("smaller ones", *small))
    lines.append(("Python in all", python, sum(row["calls"] for row in result["functions"])))
    headings = ("where", "µs by token", "% of token", "calls")
    cells = [(n, f"{us:.1f}", f"{100 * us / token:.2f}", f"{calls:.0f}") for n, us, calls in lines]
    if markdown:
        for line in (headings, ("---", "---:", "---:", "---:"), *cells):
            print("|", " | ".join(line), "|")
        return
    table = Table(*headings)
    for line in cells:
        table.add_row(*line)
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def main() -> None:
    """Measures the parts of a token's time."""
    options = parser(__doc__)
    options.add_argument("--model", default="110M-q4_0", help="SIZE-TYPE, as in models.py")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--tokens", type=int, default=300)
    options.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "ggml_py_models"
    )
    args = options.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(f"load average {os.getloadavg()[0]:.2f}, {args.threads} threads", file=sys.stderr)
    result = measure(file_of(args.model, args.folder), args.threads, args.tokens)
    if args.form == "json":
        print(json.dumps(result, indent=1))
    else:
        show(result, args.form == "markdown")


if __name__ == "__main__":
    main()

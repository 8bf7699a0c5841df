"""Whether `place` orders placements as llama-bench measures them, and whether what it chooses is
among the quickest: an RPC server behind links of several speeds, beside the CPU.

    sudo python benchmarks/place_order.py [--folder DIR] [--again] [--write]

The server runs in a network namespace, and `tc` slows both ends of the pair of interfaces between.
The CPU was calibrated with one and with two threads (benchmarks/cost_error.py keeps its files in
DIR); the server is calibrated here, its copies once for each link. Each placement is predicted, and
then measured in rounds, all placements of a link in turns. What was measured is kept in
DIR/place_order.json, so a run that was stopped goes on; `--again` predicts again and measures
nothing.

1. Kendall's tau is over pairs of one link whose medians differ by more than the noise of their
   rounds.
2. `place` is then asked for each link, with flags that are good there and with flags that are not.
   What it chooses must take at most 5 % longer than the best that was measured, or be kept where
   nothing is certain.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import search
from cost_models import MODELS, model_file
from rich.console import Console
from rich.table import Table
from rpc_server import rpc_server

from ggml_py.calibrate import calibrate
from ggml_py.cost import Machine
from ggml_py.cost.machine import MeasuredDevice
from ggml_py.cost.sample import COPY_FROM, COPY_TO
from ggml_py.place import Flags, Way, Workload, place
from ggml_py.place.evaluate import Evaluator
from ggml_py.place.measure import Measured, find_program, measure, noise

SPACE, HERE, THERE = "ggml-py-order", "198.51.100.1", "198.51.100.2"
PORT = 50353
ENDPOINT = f"{THERE}:{PORT}"
DEVICES = (f"rpc:{ENDPOINT}", "CPU")
LINKS = {"fast": "", "200mbit": "200mbit", "50mbit": "50mbit"}
MODEL = "60M-q4_0"
WORK = Workload(256, 48)
N_CTX = 512
ROUNDS = 3
PATTERNS = ("ggml_py/place/*.py", "ggml_py/cost/*.py", "ggml_py/calibrate/*.py",
            "benchmarks/place_order.py")  # fmt: skip


def placements() -> list[Flags]:
    """Layers on the server, threads, groups of tensors that stay here, batches."""
    n = MODELS[MODEL].n_layer
    found = [Flags(n_threads=t, n_gpu_layers=g) for t in (1, 2) for g in (0, 2, 5, 8, n, -1)]
    found += [Flags(n_threads=2, groups=((group, n),)) for group in ("dense", "attention")]
    found += [Flags(n_threads=2, n_gpu_layers=5, n_ubatch=64), Flags(n_threads=2, n_ubatch=64)]
    return found


# --- the network


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def namespace() -> Iterator[tuple[str, ...]]:
    """A network namespace with one interface; gives the words that run a command in it."""
    inside = ("ip", "netns", "exec", SPACE)
    _ip("netns", "add", SPACE)
    try:
        _ip("link", "add", "gpy-here", "type", "veth", "peer", "name", "gpy-there")
        _ip("link", "set", "gpy-there", "netns", SPACE)
        _ip("addr", "add", f"{HERE}/30", "dev", "gpy-here")
        _ip("link", "set", "gpy-here", "up")
        for words in (("addr", "add", f"{THERE}/30", "dev", "gpy-there"),
                      ("link", "set", "gpy-there", "up"), ("link", "set", "lo", "up")):  # fmt: skip
            subprocess.run([*inside, "ip", *words], check=True)
        yield inside
    finally:
        _ip("netns", "del", SPACE)


def slow(inside: tuple[str, ...], rate: str) -> None:
    """Limits both directions to a rate; "" lifts the limit."""
    for words in (("tc", "qdisc", "{}", "dev", "gpy-here", "root"),
                  (*inside, "tc", "qdisc", "{}", "dev", "gpy-there", "root")):  # fmt: skip
        remove = [word.format("del") for word in words]
        subprocess.run(remove, check=False, stderr=subprocess.DEVNULL)
        if rate:
            limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
            subprocess.run([*(word.format("add") for word in words), *limit], check=True)


# --- machines


def server(folder: Path) -> MeasuredDevice:
    """The server's samples, over the fast link."""
    path = folder / "machine-order.json"
    if not path.exists():
        calibrate(DEVICES[:1], 1, types=("f32", "q4_0")).save(path)
    return Machine.load(path).devices[0]


def link_copies(folder: Path, link: str) -> list[Any]:
    """The samples of copies over a link."""
    path = folder / f"machine-order-{link}.json"
    if not path.exists():
        calibrate(DEVICES[:1], 1, types=("f32",), seconds=0.5).save(path)
    samples = Machine.load(path).devices[0].samples
    return [s for s in samples if s.key.startswith((COPY_FROM, COPY_TO))]


def machines(folder: Path, link: str) -> dict[int, Machine]:
    """By threads: the CPU and the server behind this link."""
    there = server(folder)
    own = [s for s in there.samples if not s.key.startswith((COPY_FROM, COPY_TO))]
    behind = replace(there, samples=(*own, *link_copies(folder, link)))
    found = {}
    for threads in (1, 2):
        made = folder.glob(f"machine-CPU-{threads}-*.json")
        cpu = Machine.load(max(made, key=lambda path: path.stat().st_mtime))
        found[threads] = replace(cpu, devices=(*cpu.devices, behind), _derived={})
    return found


# --- the order


def tau(predicted: list[float], measured: list[Measured]) -> tuple[int, int]:
    """Pairs in the same order and in the other, of those whose difference exceeds the noise."""
    same = other = 0
    for i, j in combinations(range(len(measured)), 2):
        a, b = measured[i].usual, measured[j].usual
        if abs(a - b) <= max(a, b) * noise((measured[i], measured[j])):
            continue
        if (a < b) == (predicted[i] < predicted[j]):
            same += 1
        else:
            other += 1
    return same, other


STARTS = (Flags(n_threads=1, n_gpu_layers=0), Flags(n_threads=2, n_gpu_layers=0),
          Flags(n_threads=1), Flags(n_threads=2))  # fmt: skip


def _known(way: Way, seconds: list[float]) -> Measured:
    return Measured(way, tuple(seconds), {})


def choose(
    path: Path, mine: dict[int, Machine], link: str, measured: list[Measured], start: Flags
) -> dict[str, Any]:
    """What `place` says to someone who has the flags `start`."""
    found = place(path, list(mine.values()), DEVICES, (WORK,), given=start.options, n_ctx=N_CTX,
                  reserve=0)  # fmt: skip
    quickest = min(measured, key=lambda one: one.usual)
    best = quickest.usual
    by_flags = {one.way.flags: one.usual for one in measured}
    taken = by_flags.get(found.chosen.flags)
    if taken is None:  # not among them: measured now, in turns with the quickest of them
        taken, best = (
            one.usual for one in measure(find_program(), str(path), [found.chosen, quickest.way],
                                         (WORK,), DEVICES, MODELS[MODEL].n_layer, ROUNDS)
        )  # fmt: skip
    over = taken / min(best, taken) - 1
    gain = by_flags[start] / best - 1
    return {
        "link": link, "given": str(start), "keep": found.verdict.keep,
        "chosen": str(found.chosen.flags), "seconds": taken, "over_best": round(over, 4),
        "to_gain": round(gain, 4), "text": found.verdict.text,
        # Keeping is right where less is to be gained than the prediction can be sure of.
        "good": over <= 0.05 or (found.verdict.keep and gain <= (found.verdict.certain_from or 0)),
    }  # fmt: skip


def main() -> int:
    """Runs the command. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache/ggml_py/cost_error")
    parser.add_argument("--again", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the record")
    asked = parser.parse_args()
    kept = asked.folder / "place_order.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    path, n_layer = model_file(MODEL, asked.folder), MODELS[MODEL].n_layer
    table = Table("link", "placement", "measured s", "predicted s", "error")
    rows: list[dict[str, Any]] = []
    pairs = [0, 0]
    choices: list[dict[str, Any]] = []
    with namespace() as inside, rpc_server(PORT, 1, THERE, inside):
        server(asked.folder)
        for link, rate in LINKS.items():
            slow(inside, rate)
            mine = machines(asked.folder, link)
            evaluator = Evaluator(path, DEVICES, mine, (WORK,), N_CTX, 0)
            ways = [evaluator.way(flags) for flags in placements()]
            if link not in known and not asked.again:
                found = measure(find_program(), str(path), ways, (WORK,), DEVICES, n_layer, ROUNDS)
                known[link] = [list(one.seconds) for one in found]
                search.write(kept, known)
            if link not in known:
                continue
            measured = [_known(w, s) for w, s in zip(ways, known[link], strict=True)]
            for one in measured:
                error = one.way.seconds / one.usual - 1
                table.add_row(link, str(one.way.flags), f"{one.usual:.3f}",
                              f"{one.way.seconds:.3f}", f"{error:+.0%}")  # fmt: skip
                rows.append({
                    "link": link, "flags": str(one.way.flags), "measured": one.usual,
                    "rounds": list(one.seconds), "predicted": one.way.seconds,
                })  # fmt: skip
            for i, n in enumerate(tau([w.seconds for w in ways], measured)):
                pairs[i] += n
            choices += [choose(path, mine, link, measured, start) for start in STARTS]
    Console(width=140).print(table)
    for one in choices:
        print(one)
    n = sum(pairs)
    figures = {
        "placements": len(rows), "pairs": n, "tau": (pairs[0] - pairs[1]) / n if n else None,
        "choices": len(choices), "within_5": sum(c["over_best"] <= 0.05 for c in choices),
        "kept": sum(c["keep"] for c in choices),
    }  # fmt: skip
    print(figures)
    met = len(rows) >= 40 and n > 0 and figures["tau"] >= 0.8 and all(c["good"] for c in choices)
    if asked.write:
        search.keep("place_order", "python benchmarks/place_order.py --write", PATTERNS, equal=met,
                    figures=figures, choices=choices, rows=rows)  # fmt: skip
    return int(not met)


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("network namespaces need root: run it with sudo")
    sys.exit(main())

"""Our speed beside llama-bench's, on the same libraries: in turns, with the same options."""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_part import Doing

BAR = 1.0  # the least ratio of tokens per second, ours over theirs
BOOTSTRAPS = 2000
SPEED = Path(__file__).resolve().parent.parent / "model_speed.py"


def compare(
    doing: Doing, what: str, path: Path, rounds: int, seconds: float, options: Sequence[object]
) -> dict[str, Any]:
    """A row for the model: tokens per second of each round, and the ratio with its interval.

    `rounds` end early if they would take more than `seconds`, but not before two. `options` are
    llama-bench's; each process loads the model, warms up, and is timed three times.
    """
    programs = {
        "ours": [sys.executable, SPEED],
        "theirs": [doing.programs / "llama-bench"],
    }
    order = list(programs)
    took: dict[str, list[float]] = {who: [] for who in programs}
    begin = doing.left
    for n in range(rounds):
        if n >= 2 and (begin - doing.left) * (n + 1) / n > seconds:
            break
        for who in order:
            printed = doing.run(*programs[who], "-m", path, "-r", 3, "-o", "json", *options)
            took[who].append(_tokens_per_s(printed))
        order.reverse()  # neither always follows the other
    ratios = [a / b for a, b in zip(took["ours"], took["theirs"], strict=True)]
    low, high = interval(ratios)
    ratio = statistics.median(ratios)
    return {
        "what": what,
        "model": path.stem,
        "options": " ".join(map(str, options)),
        "ours": statistics.median(took["ours"]),
        "theirs": statistics.median(took["theirs"]),
        "ratio": ratio,
        "interval": [low, high],
        "bar": BAR,
        "verdict": "yes" if low >= BAR else "no" if high < BAR else "undecided",
        "rounds": took,
    }


def _tokens_per_s(printed: str) -> float:
    (result,) = json.loads(printed[printed.index("[") :])
    return statistics.median(result["samples_ts"])


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, by bootstrap over the rounds."""
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS)
    )
    return medians[BOOTSTRAPS // 40], medians[-1 - BOOTSTRAPS // 40]


def line_of(row: dict[str, Any]) -> str:
    """One line about a row."""
    low, high = row["interval"]
    return (
        f"{row['what']} of {row['model']}: {row['ours']:,.0f} tokens/s beside "
        f"{row['theirs']:,.0f}, ratio {row['ratio']:.3f} ({low:.3f}-{high:.3f}), "
        f"≥ {row['bar']:g}: {row['verdict']}"
    )

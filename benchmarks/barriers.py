"""Where a token's time goes on the computing thread: large ops, small ops, waiting for others.

    python benchmarks/barriers.py [--models 1.1B-q4_0,…] [--launches 3] [--rounds 4] [--json]

`ggml_barrier` is preloaded (barriers.c, compiled with `cc`; Linux) into one process of ours and one
of libllama's, which take turns decoding the same tokens. Both compute the same graph, so the n-th
barrier of a token is the same in both. The work between two barriers is this thread's part of one
or a few ops. It counts as large if it takes more than 40 µs in our process, as the products with
weights do. The time from the last barrier of a token to the first of the next covers the work
between two graphs and the first op. All figures are medians over tokens, summed over the barriers.
Each line is one launch, because launches differ: the memory that a process gets for its weights
makes its large ops faster or slower for its whole life.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from models import N_GEN, file_of
from rich.console import Console
from rich.table import Table
from rounds import child, parser, talking
from steady import launch, programs

LARGE = 40  # µs


@dataclass(frozen=True)
class Token:
    """Milliseconds per decoded token: medians of one launch."""

    model: str
    who: str
    launch: int
    large: float
    small: float
    between: float  # between two graphs
    waiting: float
    barriers: int  # per token


def tokens_of(
    name: str, path: Path, threads: int, rounds: int, number: int, folder: Path
) -> list[Token]:
    """Our tokens and libllama's, in new processes."""
    code, command = programs(path, threads, 0, N_GEN, "ours")
    preloaded = {"LD_PRELOAD": str(compiled(folder))}
    outs = {who: folder / f"{name}-{who}-{number}" for who in ("ours", "libllama")}
    env = {who: {**preloaded, "BARRIERS": str(out)} for who, out in outs.items()}
    starts = {
        "ours": partial(child, code, **env["ours"]),
        "libllama": partial(talking, command, {**os.environ, **env["libllama"]}),
    }
    launch(starts, rounds, random.Random(number))
    n_tokens = N_GEN * (rounds + 1)  # the first round warms up
    medians = {who: by_barrier(out, n_tokens) for who, out in outs.items()}
    large = medians["ours"][0] > LARGE
    large[0] = False
    found = []
    for who, (work, waits) in medians.items():
        between, all_of_it, of_large = work[0], work.sum(), work[large].sum()
        parts = (of_large, all_of_it - of_large - between, between, waits.sum())
        found.append(Token(name, who, number, *(float(us) / 1e3 for us in parts), len(work)))
    return found


def compiled(folder: Path) -> Path:
    """The compiled barriers.c, for LD_PRELOAD."""
    made = folder / "barriers.so"
    if not made.exists():
        source = Path(__file__).with_name("barriers.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def by_barrier(out: Path, n_tokens: int) -> npt.NDArray[np.float32]:
    """The work before each barrier of a token, and the wait at it, in µs: medians over the tokens
    after the first round [2, barriers]."""
    numbers = np.fromfile(out, np.float32)
    if numbers.size % (2 * n_tokens):
        raise RuntimeError(f"{out.name}: {numbers.size // 2} barriers in {n_tokens} tokens")
    return np.median(numbers.reshape(2, n_tokens, -1)[:, N_GEN:], axis=1)


def main() -> None:
    """Measures the models one after the other."""
    options = parser(__doc__)
    options.set_defaults(rounds=4)
    options.add_argument("--launches", type=int, default=3)
    options.add_argument("--models", default="1.1B-q4_0", help="SIZE-TYPE, comma-separated")
    options.add_argument("--threads", type=int, default=2)
    default = Path(tempfile.gettempdir()) / "ggml_py_models"
    options.add_argument("--folder", type=Path, default=default)
    args = options.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            path = file_of(name, args.folder)
            for number in range(1, args.launches + 1):
                found += tokens_of(name, path, args.threads, args.rounds, number, Path(folder))
    if args.form == "json":
        print(json.dumps([asdict(token) for token in found], indent=1))
        return
    table = Table("a token of", "launch", "who", "large ops", "small ops", "between", "waiting")
    for t in found:
        figures = (f"{ms:.2f} ms" for ms in (t.large, t.small, t.between, t.waiting))
        table.add_row(t.model, str(t.launch), t.who, *figures)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()

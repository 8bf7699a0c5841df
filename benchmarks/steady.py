"""Prompts and tokens of two long-lived processes, ours and libllama's, which take turns.

    python benchmarks/steady.py [--models 110M-q4_0,1.1B-q4_0,…] [--what prompt,decode]
                                [--launches 8] [--rounds 5] [--graphs ours|libllama]

`models.py` starts new processes each time, so the two measurements are many seconds apart. Here
both have the model loaded and warm. They take turns of one prompt of 512 tokens, or of 128 tokens
one by one, in a new random order each round, with pauses in which the threads of both fall asleep.
The memory that a process gets makes it slightly faster or slower for its whole life, so both are
started several times, and the intervals are over launches and rounds. `models.py` makes the models
and sets the bars.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from models import N_GEN, N_PROMPT, SLOWEST, USUAL, file_of, reference
from rich.console import Console
from rich.progress import track
from rounds import Row, child, measured, parser, show, some_of, talking

Program = AbstractContextManager[Callable[[], float] | None]
PAUSE = 0.6  # seconds; with 110M a thread spins for 0.18 s after its work is done
_OURS = """
from ggml_py.models import load
graphs = {graphs!r}
model = load(
    {path!r}, n_threads={threads}, n_ctx={n_ctx}, flash_attn=True, repack=True, graphs=graphs
)
n_vocab = model.n_vocab
prompt = [i % n_vocab for i in range({n_prompt})]
def run():
    model.reset()
    start = clock()
    if prompt:
        model.eval(prompt, copy=False)
    for i in range({n_gen}):
        model.eval([i % n_vocab], copy=False)
    return clock() - start
run()
rounds(run)
"""


def programs(
    path: Path, threads: int, n_prompt: int, n_gen: int, graphs: str
) -> tuple[str, list[str]]:
    """Our code for `rounds.child`, and libllama's command for `rounds.talking`. Both evaluate
    `n_prompt` tokens at once, and then `n_gen` tokens one by one."""
    n_ctx = N_PROMPT + N_GEN
    code = _OURS.format(
        path=str(path), threads=threads, n_ctx=n_ctx, n_prompt=n_prompt, n_gen=n_gen, graphs=graphs
    )
    command = [
        str(reference("llama_speed")), str(path), str(n_prompt), str(n_gen), "--n-ctx", str(n_ctx),
        "--threads", str(threads), "--flash-attn", "on", "--repack",
    ]  # fmt: skip
    return code, command


def steady(
    what: str, name: str, path: Path, threads: int, launches: int, rounds: int, graphs: str
) -> Row:
    """Seconds per token of what="prompt" or "decode"."""
    n_prompt, n_gen = (N_PROMPT, 0) if what == "prompt" else (0, N_GEN)
    code, command = programs(path, threads, n_prompt, n_gen, graphs)
    named = f"{what} of {name}, by token"
    console, order = Console(stderr=True), random.Random(named)
    shown = {"console": console, "transient": True, "disable": not console.is_terminal}
    both = {"ours": partial(child, code), "theirs": partial(talking, command)}
    found = []
    for _ in track(range(launches), named, **shown):
        took = launch(both, rounds, order)
        found.append([[t / (n_prompt + n_gen) for t in took[who]] for who in both])
    return measured(named, "libllama", "ms", found, SLOWEST)


def launch(
    starts: dict[str, Callable[[], Program]], rounds: int, order: random.Random
) -> dict[str, list[float]]:
    """Seconds of each round of each program, in new processes."""
    names = list(starts)
    took: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        order.shuffle(names)
        runs = {name: stack.enter_context(starts[name]()) for name in names}
        for _ in range(rounds):
            order.shuffle(names)
            for name in names:
                run = runs[name]
                assert run, f"{name} ended: see its error above"
                time.sleep(PAUSE)
                took[name].append(run())
    return took


def main() -> None:
    """Measures the models one after the other."""
    options = parser(__doc__)
    options.set_defaults(rounds=5)
    options.add_argument("--launches", type=int, default=8)
    options.add_argument("--models", default=USUAL, help="SIZE-TYPE, comma-separated")
    both = ("prompt", "decode")
    options.add_argument("--what", type=some_of(*both), default=both, help="comma-separated")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--graphs", choices=("ours", "libllama"), default="ours")
    folder = Path(tempfile.gettempdir()) / "ggml_py_models"
    options.add_argument("--folder", type=Path, default=folder)
    args = options.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(f"load average {os.getloadavg()[0]:.2f}, {args.threads} threads", file=sys.stderr)
    how = (args.threads, args.launches, args.rounds, args.graphs)
    found = [
        steady(what, name, file_of(name, args.folder), *how)
        for name in args.models.split(",")
        for what in args.what
    ]
    show(found, args.form)


if __name__ == "__main__":
    main()

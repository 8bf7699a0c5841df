"""The cost of recording a run: decoding with recording, compared with decoding without it and with
upstream's own scheduler without our instrumentation. A token of the 110M model, one thread.

    python benchmarks/recording.py [--rounds 11]     three minutes at most; the pristine library is
                                                     built on first use, half a minute

On a busy machine one block of tokens can take half as long again as the next. So the benchmark
compares the median tokens of blocks of 16 at the same positions, one block directly after the
other: recorded, not recorded, not recorded again, pristine, in a new random order each round. A
result is the median of the ratios within rounds, with its 95 % interval (bootstrap over six
launches of the processes, and over the rounds of each). A bar is decided only if the whole interval
is on one side of it. "not recorded, again" compares the same thing twice: the distance of its
interval from 1 is the limit of what can be measured here. CPU time leaves out the time that other
programs took, and recording never waits, so CPU time can decide where wall-clock time cannot. Where
neither can, the first row does: the time that recording adds to a compute of one node, which has as
many events as a token's (one split, no copies), relative to the token.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import models
import numpy as np
from plans import pristine
from rounds import Row, measured, parser, show

import ggml_py as ggml

LAUNCHES = 6  # several, because the place of a process's memory matters too
BLOCKS = 3  # rounds of each launch, for each of --rounds
MOST = 22.0  # seconds per launch; a busy machine runs fewer rounds
BAR = 1.01
PLAIN, AGAIN, RECORDED, PER_OP, PRISTINE = (
    "not recorded", "not recorded, again", "recorded", "recorded node by node", "pristine",
)  # fmt: skip
_DECODER = f"""
import contextlib, gc, json, statistics, sys, time
import ggml_py.scheduler.recording
from ggml_py.models import load
N = 16

def now():
    return time.perf_counter(), time.process_time()

ggml_py.scheduler.recording._memcpy = lambda: 1.0  # after each block, which the caches would feel
model = load(sys.argv[1], n_threads=1, flash_attn=True)
model.eval([1])
gc.disable()
print("ready", flush=True)
for line in sys.stdin:
    what = line.strip()
    model.reset()
    with contextlib.ExitStack() as stack:
        if what in ({RECORDED!r}, {PER_OP!r}):
            recording = stack.enter_context(model.record(what == {PER_OP!r}))
        model.eval([1], copy=False)  # reads the plan, once
        times = [now()]
        for _ in range(N):
            model.eval([1], copy=False)
            times.append(now())
    if what in ({RECORDED!r}, {PER_OP!r}):
        run = recording.run
        assert len(run.computes) == N + 1 and run.per_op == (what == {PER_OP!r})
        assert run.per_op or [e.kind for e in run.events[-3:]] == ["compute", "nodes", "wait"]
        assert run.per_op or len(run.events) <= 3 * (N + 1) + 4
        del recording, run
        gc.collect()
    token = [[b - a for a, b in zip(clock, clock[1:])] for clock in zip(*times)]
    print(json.dumps([statistics.median(tokens) for tokens in token]), flush=True)
"""
Times = list[dict[str, tuple[float, float]]]  # for each round: wall-clock and CPU seconds


class Decoder:
    """A process that decodes blocks of tokens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def block(self, what: str) -> tuple[float, float]:
        """Wall-clock and CPU seconds of the block's median token."""
        assert self._process.stdin and self._process.stdout
        print(what, file=self._process.stdin, flush=True)
        wall, cpu = json.loads(self._process.stdout.readline())
        return wall, cpu


@contextlib.contextmanager
def decoder(path: Path, **env: str) -> Iterator[Decoder]:
    """A decoder that has loaded its model."""
    with subprocess.Popen(
        [sys.executable, "-c", _DECODER, str(path)], env={**os.environ, **env},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the model could not be loaded with {env or 'the usual library'}")
        yield Decoder(process)
        process.stdin.close()


def launch(path: Path, rounds: int, order: random.Random) -> Times:
    """The rounds of one pair of processes, without the first round."""
    found = []
    with decoder(path) as ours, decoder(path, GGML_PY_UPSTREAM=pristine()) as theirs:
        end = time.monotonic() + MOST
        for index in range(rounds + 1):
            if len(found) > 2 * BLOCKS and time.monotonic() > end:
                break
            names = [PLAIN, AGAIN, RECORDED, PRISTINE]
            if index % BLOCKS == 0:
                names.append(PER_OP)
            order.shuffle(names)
            found.append({n: (theirs if n == PRISTINE else ours).block(n) for n in names})
    return found[1:]


def compared(what: str, peer: str, clock: int, launches: Sequence[Times], bar: float | None) -> Row:
    """A row from the rounds in which both took a turn. `clock` is 0 for wall-clock, 1 for CPU
    time."""
    pairs = [
        [(r[what][clock], r[peer][clock]) for r in rounds if what in r and peer in r]
        for rounds in launches
    ]
    named = f"a token, {what}" + (", CPU time" if clock else "")
    return measured(named, peer, "ms", [tuple(zip(*part, strict=True)) for part in pairs], bar)


def added(rounds: int, token: float) -> Row:
    """The time that recording adds to a compute of one node, relative to a token of `token`
    seconds."""
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        graphs = [ctx.new_graph(16), ctx.new_graph(16)]
        scheds = [ggml.Scheduler([cpu], graph_size=64) for _ in graphs]
        for graph, sched in zip(graphs, scheds, strict=True):
            x = ctx.new_tensor("f32", 8)
            x.set_input()
            graph.build_forward_expand(ctx.sqr(x))
            sched.alloc_graph(graph)
            x.set(np.ones(8, np.float32))

        def took(which: int) -> float:
            times = [time.perf_counter()]
            for _ in range(200):
                scheds[which].compute(graphs[which])
                times.append(time.perf_counter())
            return statistics.median(b - a for a, b in pairwise(times))

        with scheds[0].record() as recording:
            found = [(took(0), took(1)) for _ in range(rounds + 1)][1:]
        kinds = [e.kind for e in recording.run.events if e.compute == 0]
        assert sorted(kinds) == ["compute", "nodes", "wait"], "as for a token on the CPU"
        for sched in scheds:
            sched.close()
    with_it = [token + recorded - plain for recorded, plain in found]
    pair = (with_it, [token] * len(with_it))
    return measured("a token, and what recording adds", PLAIN, "ms", [pair], BAR)


def rows(rounds: int, _peer: str) -> list[Row]:
    """Wall-clock and CPU time of each, compared with its peer."""
    order = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path = models.file_of("110M-q4_0", Path(folder))
        launches = [launch(path, rounds * BLOCKS, order) for _ in range(LAUNCHES)]
    pairs = (
        (RECORDED, PLAIN, BAR), (RECORDED, PRISTINE, BAR), (AGAIN, PLAIN, None),
        (PLAIN, PRISTINE, BAR), (PER_OP, PLAIN, None),
    )  # fmt: skip
    found = [
        compared(what, peer, clock, launches, bar) for what, peer, bar in pairs for clock in (0, 1)
    ]
    token = statistics.median(r[PLAIN][1] for rounds_ in launches for r in rounds_)
    return [added(rounds * BLOCKS, token), *found]


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

"""What the foundation costs, each time with the peer beside us in the same run.

    python benchmarks/foundation.py         about three minutes; builds llama-bench on first use

Import against numpy's; prompt and decode speed of a llama against llama-bench; planning with
tracing on and off. Medians of alternating runs; machines are shared, so only ratios mean much.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import ggml_py as ggml
from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

REPO = Path(__file__).resolve().parent.parent
SPEC = LlamaSpec(n_layer=12, n_embd=768, n_head=12, n_head_kv=12, n_ff=2048, n_vocab=32000)


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def imports(runs: int) -> tuple[list[float], list[float]]:
    """Seconds to start Python and import: ours (devices listed), numpy."""

    def start(code: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    ours, theirs = [], []
    for _ in range(runs):
        ours.append(start("import ggml_py; ggml_py.devices(); ggml_py.Scheduler"))
        theirs.append(start("import numpy"))
    return ours, theirs


def llama(
    model: Path, program: Path, runs: int, n_prompt: int, n_gen: int, n_threads: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds per token of prompt and decode: ours, llama-bench's."""
    result: dict[str, tuple[list[float], list[float]]] = {"prompt": ([], []), "decode": ([], [])}
    command = [
        program, "-m", model, "-p", n_prompt, "-n", n_gen, "-t", n_threads, "-r", 1, "-fa", 1,
        "-o", "json",
    ]  # fmt: skip
    with load(
        model, devices=("CPU",), n_threads=n_threads, n_ctx=n_prompt + n_gen, flash_attn=True
    ) as m:
        prompt = np.arange(n_prompt) % m.hparams.n_vocab
        m.eval(prompt)  # warm up, as llama-bench does
        for _ in range(runs):
            m.reset()
            result["prompt"][0].append(seconds(lambda: m.eval(prompt)) / n_prompt)
            m.reset()
            result["decode"][0].append(seconds(lambda: decode(m, n_gen)) / n_gen)
            done = subprocess.run(map(str, command), capture_output=True, text=True, check=True)
            for row in json.loads(done.stdout):
                kind = "prompt" if row["n_prompt"] else "decode"
                result[kind][1].append(1 / row["avg_ts"])
    return result


def decode(m: object, n: int) -> None:
    """Evaluates one token n times, as llama-bench's tg test does."""
    for _ in range(n):
        m.eval([1])  # type: ignore[attr-defined]


def planning(runs: int) -> tuple[list[float], list[float]]:
    """Seconds to split a graph of 2000 nodes: with tracing, without."""
    with ggml.device("CPU").init() as cpu, ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 64, 64)
        for _ in range(2000):
            x = ctx.sqr(x)
        graph = ctx.new_graph(4096)
        graph.build_forward_expand(x)
        on, off = [], []
        with ggml.Scheduler([cpu], 4096) as traced, ggml.Scheduler([cpu], 4096) as plain:
            ggml.lib.gp_sched_trace(plain.ptr, False)
            split = ggml.lib.ggml_backend_sched_split_graph
            for _ in range(runs * 10):
                for sched, times in ((traced, on), (plain, off)):
                    times.append(seconds(functools.partial(split, sched.ptr, graph.ptr)))
                    sched.reset()
    return on, off


def main() -> None:
    """Runs everything and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-p", "--n-prompt", type=int, default=512)
    parser.add_argument("-n", "--n-gen", type=int, default=64)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--llama-bench", type=Path, help="the program; default: built when missing")
    args = parser.parse_args()
    program = args.llama_bench
    if program is None:
        build = [sys.executable, REPO / "build_ggml.py", "--reference"]
        done = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
        program = Path(done.stdout.splitlines()[-1]) / "bin" / "llama-bench"

    table = Table("what", "ours", "peer", "peer is", "ratio ours/peer (min-max)")

    def row(what: str, ours: list[float], peer: list[float], name: str, unit: float) -> None:
        ratios = [a / b for a, b in zip(ours, peer, strict=True)]
        a, b = statistics.median(ours) * unit, statistics.median(peer) * unit
        span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        table.add_row(what, f"{a:.3g} ms", f"{b:.3g} ms", name, span)

    row("python start + import", *imports(args.runs), "numpy", 1e3)
    row("split, 2000 nodes", *planning(args.runs), "tracing off", 1e3)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama.gguf"
        write_llama(model, SPEC)
        times = llama(model, program, args.runs, args.n_prompt, args.n_gen, args.threads)
        for kind, (ours, theirs) in times.items():
            row(f"{kind}, {SPEC.n_params / 1e6:.0f}M {SPEC.type}, per token", ours, theirs,
                "llama-bench", 1e3)  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()

"""Prompt and decode speed of a llama with random weights, beside upstream's llama-bench.

    python benchmarks/llama.py          builds llama-bench on first use, three minutes

With llama-bench's defaults, and with `--repack 0`: its weights are then as ours, not rearranged.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rounds import Row, compare, parser, seconds, show

from ggml_py.models import load
from ggml_py.models.synthetic import LlamaSpec, write_llama

REPO = Path(__file__).resolve().parent.parent
SPEC = LlamaSpec(n_layer=12, n_embd=768, n_head=12, n_head_kv=12, n_ff=2048, n_vocab=32000)
N_PROMPT, N_GEN, N_THREADS = 512, 64, 2


def llama_bench() -> Path:
    """Upstream's program."""
    build = [sys.executable, REPO / "build_ggml.py", "--reference"]
    done = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.splitlines()[-1]) / "bin" / "llama-bench"


def bench(program: Path, model: Path, n_prompt: int, n_gen: int, *more: str) -> float:
    """Seconds per token that llama-bench reports."""
    command = [
        str(program), "-m", str(model), "-p", str(n_prompt), "-n", str(n_gen),
        "-t", str(N_THREADS), "-r", "1", "-fa", "1", "-o", "json", *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)
    return 1 / float(row["avg_ts"])


def rows(rounds: int, _peer: str) -> list[Row]:
    """Prompt and decode."""
    program = llama_bench()
    rounds = min(rounds, 5)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama.gguf"
        write_llama(model, SPEC)
        n_ctx = N_PROMPT + N_GEN
        with load(
            model, devices=("CPU",), n_threads=N_THREADS, n_ctx=n_ctx, flash_attn=True
        ) as m:
            prompt = np.arange(N_PROMPT) % m.hparams.n_vocab

            def ours(n_prompt: int, n_gen: int) -> float:
                def work() -> None:
                    if n_prompt:
                        m.eval(prompt)
                    for _ in range(n_gen):
                        m.eval([1])

                m.reset()
                return seconds(work) / (n_prompt + n_gen)

            found = []
            for what, n_prompt, n_gen in (("prompt", N_PROMPT, 0), ("decode", 0, N_GEN)):
                peers: dict[str, Callable[[], float]] = {
                    "llama-bench": lambda p=n_prompt, g=n_gen: bench(program, model, p, g),
                    "llama-bench --repack 0": lambda p=n_prompt, g=n_gen: bench(
                        program, model, p, g, "--repack", "0"
                    ),
                }
                name = f"{what} of {SPEC.n_params / 1e6:.0f}M {SPEC.type}, by token"
                found += compare(
                    name, lambda p=n_prompt, g=n_gen: ours(p, g), peers, rounds=rounds
                )  # fmt: skip
            return found


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

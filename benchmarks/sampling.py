"""Time of sampling a token with `Sampler`, beside llama.cpp's loop over the same samplers. Ours are
compiled with -O1, and a row of 12 bytes is written for each token from Python.

    python benchmarks/sampling.py       the reference programs are built on first use, three minutes
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
from models import reference
from rounds import Row, compare, parser, seconds, show

from ggml_py.models import Sampler
from ggml_py.models.synthetic import LlamaSpec, write_llama

N_VOCAB, N_ROWS = 151_936, 20
CHAINS = {"defaults": {}, "penalties": {"repeat_penalty": 1.1}, "all tokens": {"top_k": 0}}


def rows(rounds: int, _peer: str) -> list[Row]:
    """A row for each chain. A few tokens stand out, most are far below, as with a model."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((N_ROWS, N_VOCAB)) + rng.exponential(2.0, (N_ROWS, N_VOCAB))
    logits = logits.astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        model, data = Path(folder) / "vocab.gguf", Path(folder) / "logits"
        write_llama(model, LlamaSpec(n_layer=1, n_embd=32, n_head=2, n_ff=32, n_vocab=N_VOCAB))
        logits.tofile(data)
        command = [reference("llama_sampler"), model, data, data.with_suffix(".out")]

        def theirs(chain: dict[str, float]) -> float:
            words = [w for k, v in chain.items() for w in (f"--{k.replace('_', '-')}", v)]
            run = [*command, "--time", 1, "--", "--seed", 1, *words]
            done = subprocess.run(list(map(str, run)), capture_output=True, text=True, check=True)
            return float(done.stdout) * 1e-6

        def ours(chain: dict[str, float]) -> float:
            sampler = Sampler(**chain, seed=1)
            return seconds(lambda: [sampler(row) for row in logits]) / N_ROWS

        found = []
        for what, chain in CHAINS.items():
            peers = {"llama.cpp": lambda c=chain: theirs(c)}
            found += compare(what, lambda c=chain: ours(c), peers, rounds=rounds, unit="µs")
        return found


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

"""The cost of sampling a token, compared with libllama's samplers on the same logits and tokens.

    python benchmarks/sampling.py       the reference programs are built on first use, three minutes

The logits are like a model's: a few tokens stand out, most are far below.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
from models import reference
from rounds import Row, compare, parser, seconds, show

from ggml_py.models import Sampler

N_ROWS = 20
VOCABULARIES = (32_000, 151_936)
CHAINS = {
    "defaults": {},
    "greedy, penalties": {"temperature": 0.0, "repeat_penalty": 1.1},
    "top-p of all": {"top_k": 0, "min_p": 0.0},
    "min-p of all": {"top_k": 0, "top_p": 1.0},
    "temperature alone": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
}


def rows(rounds: int, _peer: str) -> list[Row]:
    """A row for each chain on each vocabulary."""
    rng = np.random.default_rng(0)
    found, program = [], reference("llama_sampler")
    with tempfile.TemporaryDirectory() as folder:
        for n_vocab in VOCABULARIES:
            logits = rng.standard_normal((N_ROWS, n_vocab)).astype(np.float32)
            logits += rng.exponential(2.0, (N_ROWS, n_vocab)).astype(np.float32)
            path = Path(folder) / f"{n_vocab}.bin"
            logits.tofile(path)
            for name, chain in CHAINS.items():
                what = f"{name}, {n_vocab} tokens"
                peers = {"libllama": lambda p=path, c=chain: _theirs(program, p, c)}
                ours = lambda x=logits, c=chain: _ours(x, c)  # noqa: E731
                found += compare(what, ours, peers, rounds=rounds, unit="µs")
    return found


def _ours(logits: np.ndarray, chain: dict[str, float]) -> float:
    sampler = Sampler(**chain, seed=1)
    return seconds(lambda: [sampler(row) for row in logits]) / len(logits)


def _theirs(program: Path, path: Path, chain: dict[str, float]) -> float:
    settings = Sampler(**chain, seed=1)
    names = {"top_k", "top_p", "min_p", "repeat_penalty", "seed"}
    options = {f"--{name.replace('_', '-')}": getattr(settings, name) for name in names}
    options |= {"--temp": settings.temperature, "--time": 1}
    words = [str(word) for option in options.items() for word in option]
    out = path.with_suffix(".out")
    command = [program, path.stem, path, out, *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e-6


if __name__ == "__main__":
    args = parser(__doc__).parse_args()
    show(rows(args.rounds, args.peer), args.form)

"""Times prompts or generated tokens of `ggml_py.models`, as llama-bench does and with its options.

    python benchmarks/model_speed.py -m MODEL -p 512 -n 0 [-t 2] [-dev CUDA0] [--graphs libllama]

Prints a list of one row with llama-bench's keys `samples_ns` and `samples_ts`. `models.py` and
`gpu/beside.py` start this and llama-bench in turns; `ggml-py bench` is llama-bench itself.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

from ggml_py.models import load


def options() -> argparse.Namespace:
    """llama-bench's options, one value each, and --graphs."""
    made = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    made.add_argument("-m", dest="model", required=True)
    made.add_argument("-p", dest="n_prompt", type=int, required=True)
    made.add_argument("-n", dest="n_gen", type=int, required=True)
    made.add_argument("-r", dest="repetitions", type=int, default=5)
    made.add_argument("-t", dest="n_threads", type=int)
    made.add_argument("-fa", dest="flash_attn", type=int, choices=(0, 1), default=1)
    made.add_argument("-ngl", dest="n_gpu_layers", type=int, default=-1)
    made.add_argument("-nopo", dest="no_op_offload", type=int, choices=(0, 1), default=0)
    made.add_argument("--repack", type=int, choices=(0, 1), default=1)
    made.add_argument("-dev", dest="devices", default="none")
    made.add_argument("-o", choices=("json",), default="json")
    made.add_argument("--graphs", choices=("ours", "libllama"), default="ours")
    return made.parse_args()


def samples(model: Any, given: argparse.Namespace) -> list[int]:
    """Nanoseconds of each repetition; a run before them warms up."""
    how = {"copy": False}
    found = []
    for _ in range(given.repetitions + 1):
        model.reset()
        vocab = range(model.n_vocab)
        prompt = random.choices(vocab, k=given.n_prompt)
        tokens = random.choices(vocab, k=given.n_gen if found else min(given.n_gen, 1))
        start = time.perf_counter_ns()
        if prompt:
            model.eval(prompt, **how)
        for token in tokens:
            model.eval([token], **how)
        found.append(time.perf_counter_ns() - start)
    return found[1:]


def main() -> None:
    """Prints the row."""
    given = options()
    devices = [] if given.devices == "none" else given.devices.split("/")
    with load(
        given.model, devices=[*devices, "CPU"], n_threads=given.n_threads,
        n_ctx=given.n_prompt + given.n_gen, flash_attn=bool(given.flash_attn),
        n_gpu_layers=given.n_gpu_layers, op_offload=not given.no_op_offload,
        repack=bool(given.repack), graphs=given.graphs,
    ) as model:  # fmt: skip
        took = samples(model, given)
    rates = [1e9 * (given.n_prompt + given.n_gen) / ns for ns in took]
    print(json.dumps([{"samples_ns": took, "samples_ts": rates}]))


if __name__ == "__main__":
    main()

"""Plans of a model under what decides most: where its layers, experts and cache are, and how many
tokens come at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..errors import GgmlError
from ..plan import Plan
from ..sim.sim_device import sim_device
from .opening import open

_CARD, _PROMPT = "rtx4090", 64  # the card that is simulated; tokens of a prompt
# By name: how many GPUs, whether BLAS is there, options of `open`.
SETS: Mapping[str, tuple[int, bool, Mapping[str, Any]]] = {
    "cpu": (0, False, {}),
    "blas": (0, True, {}),
    "gpu": (1, False, {"n_gpu_layers": 99}),
    "partly": (1, False, {"n_gpu_layers": 1}),
    "two-gpus": (2, False, {"n_gpu_layers": 99}),
    "host-experts": (1, False, {"n_gpu_layers": 99, "cpu_moe": True}),
    "host-cache": (1, False, {"n_gpu_layers": 99, "offload_kqv": False}),
}


def corpus_plans(path: Path) -> Iterator[tuple[str, Plan | str]]:
    """Labelled plans of each of `SETS`: of the graph that libllama reserves, of a prompt and of one
    token. After an error its text comes instead of the missing plans. Weights are not read."""
    for name, (n_gpus, blas, options) in SETS.items():
        with ExitStack() as stack:
            gpus = [f"gpu{i}" for i in range(n_gpus)]
            for gpu in gpus:
                stack.enter_context(sim_device(gpu, profile=_CARD))
            devices = (*gpus, *(("BLAS",) if blas else ()), "CPU")
            try:
                model = stack.enter_context(open(path, devices=devices, repack=False, **options))
                yield f"{name}.reserve", model.reserved_plan()
                yield f"{name}.prompt", model.plan(_PROMPT)
                yield f"{name}.decode", model.plan(1)
            except GgmlError as error:
                yield name, f"{type(error).__name__}: {error}"

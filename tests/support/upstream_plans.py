"""Plans of libllama's graphs from headers alone, beside what an unmodified build prints."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ggml_py as ggml
from ggml_py import llama
from ggml_py.boundary.ffi import BUILD
from ggml_py.llama.overrides import parse_overrides

from .oracle_programs import Oracle
from .placements import Theirs, blank, sims_text

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
GPU: dict[str, dict[str, Any]] = {"gpu0": {"host_buffer": 1}}
TWO: dict[str, dict[str, Any]] = {"gpu0": {"memory": 4 << 30}, "gpu1": {"memory": 2 << 30}}
SETTINGS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "CPU": ({}, {}),
    "BLAS and CPU": ({}, {"blas": True}),
    "GPU, all layers": (GPU, {"n_gpu_layers": 99}),
    "GPU, one layer": (GPU, {"n_gpu_layers": 1}),
    "2 GPUs": (TWO, {"n_gpu_layers": 99}),
    "2 GPUs, tensor": (TWO, {"n_gpu_layers": 99, "split_mode": "tensor"}),
    "experts on the CPU": (GPU, {"n_gpu_layers": 99, "overrides": EXPERTS}),
}  # fmt: skip
N_TOKENS = (31, 1)
# Known differences (docs/ARCHITECTURES.md): how the text of `compared` begins.
KNOWN = {
    ("qwen3-dense", "2 GPUs, tensor"): "theirs ends (GGML_ASSERT(src_ss[0].axis != ",
}


def compared(oracle: Oracle, path: Path, setting: str) -> str:
    """ "equal", or what differs."""
    devices, options = SETTINGS[setting]
    options = dict(options)
    blas = options.pop("blas", False)
    theirs: Theirs | str
    try:
        more = {"blas": Path(BUILD["folder"]) / "libggml-blas.so.0"} if blas else {}
        theirs = Theirs(oracle, path, N_TOKENS, sims=sims_text(devices), **options, **more)
    except (AssertionError, ValueError) as error:  # of the program, with all that it printed
        said = re.findall(r"^(?:\S+\.cpp:\d+: |llama_place: )(.*)", str(error), re.M)
        theirs = said[-1] if said else "ended"
    if "overrides" in options:
        options["tensor_overrides"] = parse_overrides(options.pop("overrides"))
    with ExitStack() as stack:
        for name, settings in devices.items():
            stack.enter_context(ggml.sim_device(name, **settings))
        names = (*devices, *(("BLAS",) if blas else ()), "CPU")
        try:
            with llama.open(path, devices=names, repack=False, **options) as model:
                plans = {n: blank(model.plan(n).text()) for n in N_TOKENS}
                memory = {
                    row.buft: sizes for row in model.memory
                    if any(sizes := (row.weights, row.cache, row.compute))
                }  # fmt: skip
        except ggml.GgmlError as error:
            if isinstance(theirs, str):
                return f"refused: {theirs}"
            return f"ours raises {type(error).__name__}: {str(error)[:200]}"
    if isinstance(theirs, str):
        return f"theirs ends ({theirs}), ours plans"
    for n in N_TOKENS:
        if plans[n] != blank(theirs.plans[n]):
            return f"{n} tokens: {_first_difference(plans[n], blank(theirs.plans[n]))}"
    if options.get("split_mode") == "tensor":
        return "equal"  # upstream knows no bytes before it has the weights
    return "equal" if memory == theirs.memory else f"bytes: ours {memory}, theirs {theirs.memory}"


def _first_difference(ours: str, theirs: str) -> str:
    for a, b in zip(ours.splitlines(), theirs.splitlines(), strict=False):
        if a != b:
            return f"ours {a.strip()!r}, theirs {b.strip()!r}"
    return f"{len(ours.splitlines())} lines, theirs {len(theirs.splitlines())}"

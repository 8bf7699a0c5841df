"""libllama's placements: what it logs and plans with the same simulated devices as ours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ggml_py.models import Model
from ggml_py.sim.card import card_properties
from ggml_py.sim.named import load_profile
from ggml_py.trace.promise import MemoryRow

from .oracle_programs import Oracle, command_line, printed_plan

MIB = 1 << 20
# The oracle's names of load's options, where they differ.
_NAMES = {"offload_kqv": "no_kv_offload", "op_offload": "no_op_offload"}
_FLAGS = ("repack", "no_host", "no_kv_offload", "no_op_offload")
# Options that change what a card is asked and given.
CARD_OPTIONS = {
    "all layers": {"n_gpu_layers": 99},
    "one layer": {"n_gpu_layers": 1},
    "no layers": {"n_gpu_layers": 0},
    "flash attention": {"n_gpu_layers": 99, "flash_attn": "on"},
    "q8_0 cache": {"n_gpu_layers": 99, "flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
    "iq4_nl keys": {"n_gpu_layers": 2, "flash_attn": "on", "type_k": "iq4_nl"},
    "cache on the CPU": {"n_gpu_layers": 99, "offload_kqv": False},
    "no op offload": {"n_gpu_layers": 1, "op_offload": False},
}  # fmt: skip


class Theirs:
    """One run of libllama: `plans` by the number of tokens, and `memory`: bytes of weights, cache
    and compute by buffer type."""

    def __init__(self, oracle: Oracle, path: Path, n_tokens: tuple[int, ...], **options: Any):
        numbers = ",".join(map(str, n_tokens))
        done = oracle.run(
            "llama_place", path, numbers, *command_line(_named(options)), GGML_SCHED_DEBUG="2"
        )
        self.log = done.stderr
        self.memory = {
            name: tuple(map(int, sizes.split()))
            for name, sizes in re.findall(r"^memory (\S+) (\d+ \d+ \d+)$", self.log, re.M)
            if sizes != "0 0 0"
        }
        parts = re.split(r"^n_tokens=(\d+)$", self.log, flags=re.M)
        self.plans = {
            int(n): printed_plan(said)
            for n, said in zip(parts[1::2], parts[2::2], strict=True)
        }

    def sizes(self, what: str) -> dict[str, float]:
        """MiB by buffer type, for "model", "KV" or "compute"."""
        found = re.findall(rf"(\S+) {what} buffer size = +([\d.]+) MiB", self.log)
        sizes: dict[str, float] = {}
        for name, size in found:
            name = name.removesuffix("_Mapped")
            sizes[name] = sizes.get(name, 0) + float(size)
        return sizes


def _named(options: dict[str, Any]) -> dict[str, Any]:
    named = {}
    for key, value in options.items():
        name = _NAMES.get(key, key)
        if name != key:
            value = not value
        if name in _FLAGS:
            if value:
                named[name] = True
        elif isinstance(value, tuple):
            named[name] = ",".join(map(str, value))
        else:
            named[name] = value
    return named


def sims_text(devices: dict[str, dict[str, Any]]) -> str:
    """Settings of simulated devices, as the oracle's options."""
    return ";".join(
        ",".join([name, *(_setting(key, value) for key, value in settings.items())])
        for name, settings in devices.items()
    )


def _setting(key: str, value: Any) -> str:
    if key != "card":
        return f"{key}={value}"
    profile = load_profile(value)
    values = [profile.properties[name] for name in card_properties(profile.card.backend)]
    return f"card={'|'.join([profile.card.backend, *values])},memory={profile.memory}"


def blank(plan: str) -> str:
    """A plan's text without causes, which libllama's build does not have, and without the numbers
    of copies, because the copies of one input take turns."""
    text = re.sub(r"\[( *[\w(]+) [^]]*\]", r"[\1         ]", plan)
    return re.sub(r"#\d+ ", "#0 ", text).strip()


def backends_of(plan: str) -> list[str]:
    """The backend of each computed node, from a plan's text."""
    return re.findall(r"^node #.*?\) \[ *(\S+) ", plan, re.M)


def memory_of(model: Model) -> dict[str, tuple[int | None, ...]]:
    """`Model.memory` as `Theirs.memory`: without buffer types that have no bytes."""
    return rows_of(model.memory)


def rows_of(rows: Iterable[MemoryRow]) -> dict[str, tuple[int | None, ...]]:
    """The rows of a context's memory as `Theirs.memory`, which does not have outputs."""
    sizes = {row.buft: (row.weights, row.cache, row.compute) for row in rows}
    return {name: each for name, each in sizes.items() if any(each)}


def asked_by(program: str, n_ctx_train: int) -> dict[str, Any]:
    """What a program of llama.cpp puts into llama_context_params without options, as the oracle's
    options. docs/MODELS.md says which programs were run."""
    usual = {"n_ctx": n_ctx_train, "n_batch": 2048, "n_ubatch": 512}
    return usual | {
        "bench": {"n_ctx": 512},
        "server": {"n_seq_max": 4, "kv_unified": True, "n_outputs_max": 4},
        "cli": {"n_outputs_max": 1},
        "completion": {},
        "perplexity": {"n_ctx": 2048, "n_seq_max": 4},
    }[program]

"""The options of `open` as flags of llama.cpp's programs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..enums import Type
from .options import DEFAULTS, Options


class ProgramFlag(NamedTuple):
    """How a field is written for each program; with `negated` a flag means that it is false."""

    name: str
    server: str
    bench: str
    negated: bool = False


BOTH = (
    ProgramFlag("n_gpu_layers", "-ngl", "-ngl"),
    ProgramFlag("tensor_split", "-ts", "-ts"), ProgramFlag("split_mode", "-sm", "-sm"),
    ProgramFlag("main_gpu", "-mg", "-mg"), ProgramFlag("n_batch", "-b", "-b"),
    ProgramFlag("n_ubatch", "-ub", "-ub"),
    ProgramFlag("flash_attn", "-fa", "-fa"), ProgramFlag("type_k", "-ctk", "-ctk"),
    ProgramFlag("type_v", "-ctv", "-ctv"), ProgramFlag("n_threads", "-t", "-t"),
    ProgramFlag("op_offload", "--no-op-offload", "-nopo", True),
    ProgramFlag("offload_kqv", "-nkvo", "-nkvo", True), ProgramFlag("repack", "-nr", "--repack"),
    ProgramFlag("no_host", "--no-host", "--no-host"), ProgramFlag("load_mode", "-lm", "-lm"),
    ProgramFlag("n_cpu_moe", "-ncmoe", "-ncmoe"),
)  # fmt: skip
# In the order in which `llama.open` takes them; llama-bench has the first two as patterns.
ONLY_SERVER = (
    ProgramFlag("cpu_moe", "-cmoe", ""), ProgramFlag("n_cpu_ffn", "-ncffn", ""),
    ProgramFlag("swa_full", "--swa-full", ""),
)  # fmt: skip
# Flags that are always written, because the programs' defaults are not ours.
_ALWAYS = {
    "n_gpu_layers": "-ngl", "n_ctx": "-c", "n_batch": "-b", "n_ubatch": "-ub", "n_seq_max": "-np",
}  # fmt: skip
_UNIFIED = "-kvu"
NO_FIT = ("--fit", "off")
FREE = {"-ngl": "all", "-c": "0"}  # how a number is written that --fit may choose


def words_of(options: Options) -> tuple[str, ...]:
    """The options as llama-server takes them, without model and devices. Nothing is left to its
    --fit, and nothing that has another default there."""
    words: list[str] = []
    if options.tensor_overrides:
        pairs = (
            (regex, getattr(place, "name", place)) for regex, place in options.tensor_overrides
        )
        words += ["-ot", ",".join(f"{regex}={name}" for regex, name in pairs)]
    for name, flag in _ALWAYS.items():
        value = getattr(options, name)
        words += [flag, "all" if name == "n_gpu_layers" and value < 0 else flag_text(value)]
    for row in (*BOTH, *ONLY_SERVER):
        value = getattr(options, row.name)
        if row.name in _ALWAYS or _plain(value) == DEFAULTS[row.name]:
            continue
        words += [row.server] if isinstance(value, bool) else [row.server, flag_text(_plain(value))]
    words += [_UNIFIED] if options.kv_unified else []
    return *words, *NO_FIT


def _plain(value: Any) -> Any:
    if isinstance(value, Type):
        return value.name.lower()
    if isinstance(value, (list, tuple)):
        return tuple(value) or None
    return value


def flag_text(value: Any, bench: bool = False) -> str:
    """A value as llama-bench or the other programs take it."""
    if isinstance(value, tuple):
        return ("/" if bench else ",").join(f"{part:g}" for part in value)
    return str(value)

"""llama.cpp's description of a model, from its file: "llama 1B Q4_0"."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from ...enums import Type
from ...gguf.reader import Gguf
from .hparams import HParams

# By architecture and number of layers (load_arch_hparams in llama.cpp's src/models/*.cpp). Sizes
# that depend on more than that are in `_size`.
_SIZES: Final[dict[str, dict[int, str]]] = {
    "llama": {
        16: "1B", 22: "1B", 26: "3B", 28: "3B", 30: "256M", 36: "8B", 40: "13B", 48: "34B",
        60: "30B",
    },
    "qwen2": {32: "7B", 36: "3B", 48: "14B", 64: "32B", 80: "70B"},
    "qwen3": {40: "14B", 64: "32B"},
    "qwen3moe": {48: "30B.A3B", 94: "235B.A22B"},
    "gemma2": {26: "2B", 42: "9B", 46: "27B"},
    "gemma3": {18: "270M", 26: "1B", 32: "8B", 34: "4B", 48: "12B", 62: "27B"},
    "phi3": {24: "1B", 32: "3B", 40: "14B"},
    "olmo2": {16: "1B", 32: "7B", 40: "13B", 64: "32B"},
    "smollm3": {36: "3B"},
    "gpt2": {12: "0.1B", 24: "0.4B", 36: "0.8B", 48: "1.5B"},
    "gpt-oss": {24: "20B", 36: "120B"},
}  # fmt: skip
# By number of layers and n_embd.
_MAMBA: Final = {
    (24, 768): "0.1B", (48, 1024): "0.4B", (48, 1536): "0.8B", (48, 2048): "1.5B",
    (64, 2560): "3B",
}  # fmt: skip
_MAMBA2: Final = _MAMBA | {(64, 4096): "7B"}

# enum llama_ftype, whose numbers differ from those of enum ggml_ftype (`enums.Ftype`).
_FTYPES: Final = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K - Medium", 11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large",
    14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K",
    19: "IQ2_XXS - 2.0625 bpw", 20: "IQ2_XS - 2.3125 bpw", 21: "Q2_K - Small",
    22: "IQ3_XS - 3.3 bpw", 23: "IQ3_XXS - 3.0625 bpw", 24: "IQ1_S - 1.5625 bpw",
    25: "IQ4_NL - 4.5 bpw", 26: "IQ3_S - 3.4375 bpw", 27: "IQ3_S mix - 3.66 bpw",
    28: "IQ2_S - 2.5 bpw", 29: "IQ2_M - 2.7 bpw", 30: "IQ4_XS - 4.25 bpw", 31: "IQ1_M - 1.75 bpw",
    32: "BF16", 36: "TQ1_0 - 1.69 bpw ternary", 37: "TQ2_0 - 2.06 bpw ternary", 38: "MXFP4 MoE",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
_GUESSED: Final = 1024
# By the type that most tensors have, to guess from; all other types count as "all F32". The keys
# are names because some releases lack some types.
_FTYPE_OF: Final = {
    "F16": 1, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9,
    "Q8_0": 7, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18,
    "TQ1_0": 36, "TQ2_0": 37, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28,
    "IQ3_XXS": 23, "IQ1_S": 24, "IQ1_M": 31, "IQ4_NL": 25, "IQ4_XS": 30,
    "IQ3_S": 26, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip


def desc(gguf: Gguf, hp: HParams) -> str:
    """Architecture, size and type of the file's model, worded as in libllama. The size is that of
    known models with as many layers, or "?B". C: llama_model_desc"""
    return f"{hp.arch} {_size(hp)} {_ftype(gguf)}"


def _size(hp: HParams) -> str:
    n_layer, n_embd = hp.n_layer, hp.n_embd
    found = _SIZES.get(hp.arch, {}).get(n_layer)
    if hp.arch == "llama":
        if hp.n_expert == 8:
            found = {32: "8x7B", 56: "8x22B"}.get(n_layer)
        elif n_layer == 32:
            found = "3B" if hp.n_vocab == 49152 else "7B" if hp.n_vocab < 40000 else "8B"
        elif n_layer == 80:
            found = "65B" if hp.n_head == hp.n_head_kv else "70B"
    elif hp.arch == "qwen2" and n_layer in (24, 28, 40):
        found = {
            24: "0.5B" if n_embd == 1024 else "1B",
            28: "1.5B" if n_embd == 1536 else "7B",
            40: "4B" if hp.n_head == 20 else "13B",
        }[n_layer]
    elif hp.arch == "qwen3" and n_layer in (28, 36):
        small = n_embd == {28: 1024, 36: 2560}[n_layer]
        found = {28: ("1.7B", "0.6B"), 36: ("8B", "4B")}[n_layer][small]
    elif hp.arch in ("mamba", "mamba2"):
        found = (_MAMBA2 if hp.arch == "mamba2" else _MAMBA).get((n_layer, n_embd))
    return found or "?B"


def _ftype(gguf: Gguf) -> str:
    known = gguf.metadata.get("general.file_type")
    if isinstance(known, int):
        words = _FTYPES.get(known & ~_GUESSED, "unknown, may not work")
        return f"(guessed) {words}" if known & _GUESSED else words
    # The most common type; of several, the one that gets there first when counting by layer.
    counts: Counter[Type] = Counter()
    most, n_most = Type.F32, 0
    for name in sorted(gguf.tensors, key=_layer_and_name):
        type_ = gguf.tensors[name].type
        counts[type_] += 1
        if counts[type_] > n_most:
            most, n_most = type_, counts[type_]
    return f"(guessed) {_FTYPES[_FTYPE_OF.get(most.name, 0)]}"


def _layer_and_name(name: str) -> tuple[int, str]:
    layer = re.match(r"blk\.(\d+)", name)
    return int(layer[1]) if layer else -1, name

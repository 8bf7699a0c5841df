"""Mixtures of experts of any size with zero weights, for tests of plans, not of results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from ggml_py.boundary.ffi import lib
from ggml_py.gguf.writer import TensorEntry, write_gguf
from ggml_py.tensors.tensor import type_of

N_EMBD, N_HEAD, N_FF, N_VOCAB = 64, 4, 32, 64


def write_moe(path: Path, n_layer: int = 48, n_expert: int = 8, type_: str = "q4_0") -> None:
    """A qwen3moe file with 64 elements per row."""
    arch = "qwen3moe"
    metadata = {
        "general.architecture": arch,
        f"{arch}.block_count": n_layer,
        f"{arch}.context_length": 2048,
        f"{arch}.embedding_length": N_EMBD,
        f"{arch}.feed_forward_length": 2 * N_FF,
        f"{arch}.expert_feed_forward_length": N_FF,
        f"{arch}.expert_count": n_expert,
        f"{arch}.expert_used_count": 2,
        f"{arch}.attention.head_count": N_HEAD,
        f"{arch}.attention.head_count_kv": N_HEAD,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.vocab_size": N_VOCAB,
        "tokenizer.ggml.model": "no_vocab",
    }
    write_gguf(path, metadata, _tensors(n_layer, n_expert, type_))


def _tensors(n_layer: int, n_expert: int, type_: str) -> Iterator[TensorEntry]:
    square, head = (N_EMBD, N_EMBD), (N_EMBD // N_HEAD,)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (N_EMBD, N_VOCAB)}
    for il in range(n_layer):
        shapes |= {f"blk.{il}.attn_{x}": square for x in ("q", "k", "v", "output")}
        shapes |= {f"blk.{il}.{x}_norm": (N_EMBD,) for x in ("attn", "ffn")}
        shapes |= {f"blk.{il}.attn_{x}_norm": head for x in "qk"}
        shapes[f"blk.{il}.ffn_gate_inp"] = (N_EMBD, n_expert)
        shapes |= {f"blk.{il}.ffn_{x}_exps": (N_EMBD, N_FF, n_expert) for x in ("gate", "up")}
        shapes[f"blk.{il}.ffn_down_exps"] = (N_FF, N_EMBD, n_expert)
    shapes |= {"output_norm": (N_EMBD,), "output": (N_EMBD, N_VOCAB)}
    for name, ne in shapes.items():
        kind = "f32" if len(ne) == 1 or name.endswith("gate_inp") else type_
        n_bytes = lib.ggml_row_size(type_of(kind), ne[0]) * math.prod(ne[1:])
        yield f"{name}.weight", bytes(n_bytes), kind, ne

"""Models of random weights in real shapes, to predict and to measure: dense, experts, mamba."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ggml_py.enums import Type
from ggml_py.models.synthetic import LlamaSpec, write_llama
from ggml_py.tensors.tensor import type_of


@dataclass(frozen=True)
class ExpertSpec(LlamaSpec):
    """A llama whose feed-forward network has experts."""

    n_expert: int = 8
    n_used: int = 2

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, ne in super()._shapes():
            if "ffn_gate" not in name and "ffn_up" not in name and "ffn_down" not in name:
                yield name, ne
                continue
            if "ffn_gate" in name:
                yield name.replace("ffn_gate", "ffn_gate_inp"), (self.n_embd, self.n_expert)
            yield name.replace(".weight", "_exps.weight"), (*ne, self.n_expert)

    def tensors(self) -> Any:
        for name, make, type_, ne in super().tensors():
            if "gate_inp" in name:
                type_ = Type.F32
            elif len(ne) == 3:
                type_ = type_of(self.type)
            yield name, make, type_, ne

    def header(self) -> dict[str, Any]:
        counts = {"llama.expert_count": self.n_expert, "llama.expert_used_count": self.n_used}
        return super().header() | counts


@dataclass(frozen=True)
class MambaSpec(LlamaSpec):
    """A mamba: a state in place of attention. Its small matrices are f32, as llama-quantize leaves
    them."""

    n_state: int = 16
    n_conv: int = 4

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        n, inner, rank = self.n_embd, 2 * self.n_embd, -(-self.n_embd // 16)
        yield "token_embd.weight", (n, self.n_vocab)
        for il in range(self.n_layer):
            yield f"blk.{il}.attn_norm.weight", (n,)
            yield f"blk.{il}.ssm_in.weight", (n, 2 * inner)
            yield f"blk.{il}.ssm_conv1d.weight", (self.n_conv, inner)
            yield f"blk.{il}.ssm_conv1d.bias", (inner,)
            yield f"blk.{il}.ssm_x.weight", (inner, rank + 2 * self.n_state)
            yield f"blk.{il}.ssm_dt.weight", (rank, inner)
            yield f"blk.{il}.ssm_dt.bias", (inner,)
            yield f"blk.{il}.ssm_a", (self.n_state, inner)
            yield f"blk.{il}.ssm_d", (inner,)
            yield f"blk.{il}.ssm_out.weight", (inner, n)
        yield "output_norm.weight", (n,)

    def tensors(self) -> Any:
        for name, make, type_, ne in super().tensors():
            if name.endswith("ssm_a"):  # states decay
                yield name, _decay(ne), Type.F32, ne
            else:
                small = any(part in name for part in ("ssm_conv1d", "ssm_x", "ssm_dt"))
                yield name, make, Type.F32 if small else type_, ne

    def header(self) -> dict[str, Any]:
        kept = ("general.", "tokenizer.")
        found = {k: v for k, v in super().header().items() if k.startswith(kept)}
        return found | {
            "general.architecture": "mamba", "mamba.context_length": self.n_ctx,
            "mamba.embedding_length": self.n_embd, "mamba.feed_forward_length": 0,
            "mamba.attention.head_count": 0, "mamba.block_count": self.n_layer,
            "mamba.ssm.conv_kernel": self.n_conv, "mamba.ssm.inner_size": 2 * self.n_embd,
            "mamba.ssm.state_size": self.n_state, "mamba.ssm.time_step_rank": -(-self.n_embd // 16),
            "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        }  # fmt: skip


def _decay(ne: tuple[int, ...]) -> Any:
    return lambda: -np.broadcast_to(np.arange(1, ne[0] + 1, dtype=np.float32), ne[::-1]).copy()


_60M = {"n_layer": 10, "n_embd": 512, "n_head": 8, "n_head_kv": 4, "n_ff": 1536, "n_vocab": 32000}
_110M = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_head_kv": 4, "n_ff": 2048, "n_vocab": 16000}
_160M = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_head_kv": 12, "n_ff": 2816,
         "n_vocab": 32000}  # fmt: skip
_360M = {"n_layer": 24, "n_embd": 1024, "n_head": 16, "n_head_kv": 8, "n_ff": 2816,
         "n_vocab": 32000}  # fmt: skip
_1B = {"n_layer": 22, "n_embd": 2048, "n_head": 32, "n_head_kv": 4, "n_ff": 5632, "n_vocab": 32000}
_MOE = {"n_layer": 12, "n_embd": 512, "n_head": 8, "n_head_kv": 4, "n_ff": 768, "n_vocab": 16000}
_MAMBA = {"n_layer": 24, "n_embd": 768, "n_vocab": 32000}
MODELS: dict[str, LlamaSpec] = {
    "60M-q4_0": LlamaSpec(type="q4_0", n_ctx=8192, **_60M),
    "60M-q8_0": LlamaSpec(type="q8_0", n_ctx=8192, **_60M),
    "60M-f16": LlamaSpec(type="f16", n_ctx=8192, **_60M),
    "110M-q4_0": LlamaSpec(type="q4_0", n_ctx=8192, **_110M),
    "110M-q4_K": LlamaSpec(type="q4_K", n_ctx=8192, **_110M),
    "110M-f16": LlamaSpec(type="f16", n_ctx=8192, **_110M),
    "160M-q8_0": LlamaSpec(type="q8_0", n_ctx=8192, **_160M),
    "8x100M-q4_0": ExpertSpec(type="q4_0", n_ctx=8192, **_MOE),
    "8x100M-q8_0": ExpertSpec(type="q8_0", n_ctx=8192, **_MOE),
    "mamba-130M-q8_0": MambaSpec(type="q8_0", n_ctx=8192, **_MAMBA),
    "360M-q4_K": LlamaSpec(type="q4_K", n_ctx=8192, **_360M),
    "1B-q4_0": LlamaSpec(type="q4_0", n_ctx=8192, **_1B),
}
LARGE = 500_000_000  # parameters, from which on a model is measured at one depth only


def model_file(name: str, folder: Path) -> Path:
    """The model's file, made if it is not there."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        print(f"making {path}", file=sys.stderr)
        write_llama(path, MODELS[name])
    return path

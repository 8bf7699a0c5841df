"""What a model file says about its own shape: one frozen object, read from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ModelError

ROPE_NORM = 0  # GGML_ROPE_TYPE_NORMAL: pairs of neighbours are rotated


@dataclass(frozen=True, slots=True)
class Rope:
    """The arguments of `rope_ext` after the positions, in its order."""

    n_rot: int
    mode: int
    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class HParams:
    """The numbers of one model, by llama.cpp's names."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_ff: int
    norm_rms_eps: float
    rope: Rope

    @property
    def n_embd_q(self) -> int:
        """Elements of one token's queries, all heads."""
        return self.n_embd_head * self.n_head

    @property
    def n_embd_gqa(self) -> int:
        """Elements of one token's keys (or values), all heads: a row of the KV cache."""
        return self.n_embd_head * self.n_head_kv


class Keys:
    """Typed access to metadata; `name` is without the architecture's prefix."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self._metadata = metadata
        self._arch = arch

    def get(self, name: str, type_: type, default: Any = None) -> Any:
        """One value as `type_`; an array (a value per layer) counts when its values are equal.

        Raises `ModelError` when it is missing without a default, or is of another type.
        """
        key = f"{self._arch}.{name}"
        value = self._metadata.get(key)
        if value is None:
            if default is None:
                raise ModelError(f"metadata '{key}' is missing: this is no complete model file")
            return default
        if isinstance(value, np.ndarray):
            if not value.size or (value != value[0]).any():
                raise ModelError(
                    f"metadata '{key}' differs between layers ({value.tolist()}): models of "
                    f"architecture '{self._arch}' are supported with one value for all layers"
                )
            value = value[0].item()
        numbers = (int, float) if type_ is float else type_
        if not isinstance(value, numbers) or isinstance(value, bool) is not (type_ is bool):
            raise ModelError(f"metadata '{key}' is {value!r}: expected {type_.__name__}")
        return type_(value)

    def size(self, name: str, default: int | None = None) -> int:
        """A positive number. Raises `ModelError` for anything else."""
        value: int = self.get(name, int, default)
        if value < 1:
            raise ModelError(f"metadata '{self._arch}.{name}' is {value}: expected at least 1")
        return value


def read(metadata: Mapping[str, Any], arch: str) -> HParams:
    """The hyperparameters of a dense model with rotary attention.

    Raises `ModelError` for what is missing, impossible, or not supported.
    """
    keys = Keys(metadata, arch)
    n_expert = keys.get("expert_count", int, 0)
    if n_expert:
        raise ModelError(
            f"this {arch} is a mixture of {n_expert} experts; dense models are supported so far"
        )
    n_embd, n_head = keys.size("embedding_length"), keys.size("attention.head_count")
    n_head_kv = keys.size("attention.head_count_kv", n_head)
    n_embd_head = keys.size("attention.key_length", n_embd // n_head)
    if keys.size("attention.value_length", n_embd_head) != n_embd_head:
        raise ModelError(f"metadata '{arch}.attention.value_length' must equal key_length")
    if n_head % n_head_kv:
        raise ModelError(f"{n_head} heads cannot share {n_head_kv} key/value heads evenly")
    n_ctx_train = keys.size("context_length")
    rope = _rope(keys, n_embd_head, n_ctx_train)
    if rope.n_rot != n_embd_head:
        raise ModelError(
            f"metadata '{arch}.rope.dimension_count' is {rope.n_rot}: expected the head's "
            f"{n_embd_head} elements"
        )
    return HParams(
        arch=arch,
        n_vocab=_n_vocab(metadata, keys),
        n_ctx_train=n_ctx_train,
        n_embd=n_embd,
        n_layer=keys.size("block_count"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head=n_embd_head,
        n_ff=keys.size("feed_forward_length"),
        norm_rms_eps=keys.get("attention.layer_norm_rms_epsilon", float),
        rope=rope,
    )


def _n_vocab(metadata: Mapping[str, Any], keys: Keys) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if tokens is not None else keys.size("vocab_size")


def _rope(keys: Keys, n_embd_head: int, n_ctx_train: int) -> Rope:
    """Rope parameters as llama.cpp derives them (llama-model.cpp, then llama-context.cpp)."""
    scaling = keys.get("rope.scaling.type", str, "linear")
    if scaling not in ("none", "linear", "yarn"):
        raise ModelError(f"rope scaling '{scaling}': expected none, linear or yarn")
    old_name = keys.get("rope.scale_linear", float, 0.0)
    factor = keys.get("rope.scaling.factor", float, old_name)
    if scaling == "none" or factor == 0.0:
        factor = 1.0
    attn_factor = keys.get("rope.scaling.attn_factor", float, 1.0)
    ext_factor = 0.0
    if scaling == "yarn":
        ext_factor = 1.0
        # rope_ext scales the magnitude by itself; llama.cpp divides that out and applies its own,
        # which has no effect for factors below 1. What is left differs from 1 only there.
        magnitude = 1.0 + 0.1 * math.log(factor)
        attn_factor *= max(magnitude, 1.0) / magnitude
    return Rope(
        n_rot=keys.size("rope.dimension_count", n_embd_head),
        mode=ROPE_NORM,
        n_ctx_orig=keys.get("rope.scaling.original_context_length", int, 0) or n_ctx_train,
        freq_base=keys.get("rope.freq_base", float, 10000.0),
        freq_scale=1.0 / factor,
        ext_factor=ext_factor,
        attn_factor=attn_factor,
    )

"""A model's hyperparameters: one frozen object, read from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelError
from ...llama.model_sizes import ModelSizes
from ...typed import typed
from .vocab import eog_tokens

if TYPE_CHECKING:
    import numpy.typing as npt

F32 = np.float32  # llama.cpp computes hyperparameters in single precision; other roundings show
ROPE_NORM = 0  # GGML_ROPE_TYPE_NORMAL: rotates pairs of neighbours
ROPE_NEOX = 2  # GGML_ROPE_TYPE_NEOX: rotates each element with the one half a head further on


_ROPE_SCALINGS = ("none", "linear", "yarn")


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


NO_ROPE = Rope(0, -1, 0, 0.0, 1.0, 0.0, 1.0)  # for models without positions


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of one feed-forward network."""

    n_expert: int
    n_expert_used: int  # per token


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers whose tokens see only the last n_swa tokens, including themselves."""

    n_swa: int
    layers: tuple[bool, ...]  # whether layer il has the window
    rope: Rope  # of these layers


@dataclass(frozen=True, slots=True)
class HParams(ModelSizes):
    """The hyperparameters of one model, by llama.cpp's names; 0 for those that it does not have."""

    n_embd_head: int = 0
    n_ff: int = 0
    rope: Rope = NO_ROPE
    norm_rms_eps: float = 0.0
    experts: Experts | None = None
    n_ff_exp: int = 0  # of one expert
    swa: SlidingWindow | None = None
    eog_tokens: frozenset[int] = frozenset()  # tokens that end a generation

    @property
    def n_embd_q(self) -> int:
        """Elements of one token's queries, over all heads."""
        return self.n_embd_head * self.n_head

    @property
    def n_embd_gqa(self) -> int:
        """Elements of one token's keys (or values), over all heads: a row of the KV cache."""
        return self.n_embd_head * self.n_head_kv

    @property
    def n_expert(self) -> int:
        """The number of experts, 0 in a dense model."""
        return self.experts.n_expert if self.experts else 0

    @property
    def kq_scale(self) -> float:
        """The usual factor for the product of queries and keys."""
        return inverse(root(self.n_embd_head))

    def is_swa(self, il: int) -> bool:
        """Whether layer `il` has a sliding window."""
        return self.swa is not None and self.swa.layers[il]

    def layer_rope(self, il: int) -> Rope:
        """The rotation of layer `il`."""
        return self.swa.rope if self.swa is not None and self.swa.layers[il] else self.rope


class UnsupportedError(ModelError):
    """The model has something that our own graphs lack; libllama's may have it."""


class Keys:
    """Typed access to metadata. Names are without the architecture's prefix."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self._metadata = metadata
        self._arch = arch

    def get(self, name: str, type_: type, default: Any = None) -> Any:
        """One value as `type_`. An array (a value per layer) must have equal values.

        Raises `ModelError` if the value is missing and there is no default, or if it has another
        type.
        """
        key = f"{self._arch}.{name}"
        value = self._metadata.get(key)
        if value is None:
            if default is None:
                raise ModelError(f"metadata {key!r} is missing: this model file is not complete")
            return default
        if isinstance(value, np.ndarray):
            if not value.size or (value != value[0]).any():
                raise UnsupportedError(
                    f"metadata '{key}' differs between layers ({value.tolist()}): architecture "
                    f"'{self._arch}' is supported only with the same value for all layers"
                )
            value = value[0].item()
        numbers = (int, float) if type_ is float else type_
        if not isinstance(value, numbers) or isinstance(value, bool) is not (type_ is bool):
            raise ModelError(f"metadata '{key}' is {value!r}: expected {type_.__name__}")
        return type_(value)

    def check(self, good: bool, name: str, expected: str) -> None:
        """Raises `ModelError` unless `good`."""
        if not good:
            key = f"{self._arch}.{name}"
            raise ModelError(f"metadata '{key}' is {self._metadata[key]!r}: {expected}")

    def array(self, name: str) -> npt.NDArray[Any] | None:
        """The values if this is an array of numbers, else None."""
        value = self._metadata.get(f"{self._arch}.{name}")
        return value if isinstance(value, np.ndarray) else None

    def size(self, name: str, default: int | None = None) -> int:
        """A positive number. Raises `ModelError` for anything else."""
        value: int = self.get(name, int, default)
        self.check(value >= 1, name, "expected at least 1")
        return value


@typed
def read(metadata: Mapping[str, Any], arch: str, rope_mode: int) -> HParams:
    """The hyperparameters that all architectures share.

    Raises `ModelError` for keys that are missing, impossible, or not supported.
    """
    keys = Keys(metadata, arch)
    common = HParams(
        arch=arch,
        n_embd=keys.size("embedding_length"),
        n_ctx_train=keys.size("context_length"),
        n_layer=keys.size("block_count"),
        n_vocab=_n_vocab(metadata, keys),
        eog_tokens=eog_tokens(metadata),
    )
    n_head = keys.size("attention.head_count")
    n_head_kv = keys.size("attention.head_count_kv", n_head)
    n_embd_head = keys.size("attention.key_length", common.n_embd // n_head)
    if keys.size("attention.value_length", n_embd_head) != n_embd_head:
        raise UnsupportedError(f"metadata '{arch}.attention.value_length' must equal key_length")
    if n_head % n_head_kv:
        raise ModelError(f"{n_head} heads cannot share {n_head_kv} key/value heads evenly")
    return replace(
        common,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head=n_embd_head,
        n_ff=keys.size("feed_forward_length"),
        rope=_rope(keys, n_embd_head, common.n_ctx_train, rope_mode),
    )


def _n_vocab(metadata: Mapping[str, Any], keys: Keys) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if tokens is not None else keys.size("vocab_size")


def _rope(keys: Keys, n_embd_head: int, n_ctx_train: int, mode: int) -> Rope:
    """Rope parameters as llama.cpp derives them (llama-model.cpp, then llama-context.cpp)."""
    scaling = keys.get("rope.scaling.type", str, "linear")
    if scaling not in _ROPE_SCALINGS:
        raise UnsupportedError(f"rope scaling '{scaling}': expected {', '.join(_ROPE_SCALINGS)}")
    freq_scale = 1.0 if scaling == "none" else train_scale(keys)
    ext_factor, attn_factor = 0.0, F32(1.0)
    if scaling == "yarn":
        ext_factor = 1.0
        # rope_ext scales the magnitude itself. llama.cpp divides that out and applies its own
        # scale, which has no effect for factors below 1. The result differs from 1 only there.
        factor = F32(1.0) / F32(freq_scale)
        log_factor = np.log(factor)
        magnitude = F32(0.1) * log_factor + F32(1.0)
        attn_factor = magnitude if factor > 1.0 else F32(1.0)
        attn_factor *= F32(1.0) / (F32(1.0) + F32(0.1) * log_factor)
    attn_factor *= F32(keys.get("rope.scaling.attn_factor", float, 1.0))
    return Rope(
        n_rot=keys.size("rope.dimension_count", n_embd_head),
        mode=mode,
        n_ctx_orig=keys.get("rope.scaling.original_context_length", int, 0) or n_ctx_train,
        freq_base=keys.get("rope.freq_base", float, 10000.0),
        freq_scale=freq_scale,
        ext_factor=ext_factor,
        attn_factor=float(attn_factor),
    )


def train_scale(keys: Keys) -> float:
    """The factor for positions, whatever the kind of scaling."""
    old_name = keys.get("rope.scale_linear", float, 0.0)
    factor = keys.get("rope.scaling.factor", float, old_name)
    return 1.0 if factor == 0.0 else inverse(factor)


@lru_cache
def root(n: int) -> float:
    """The square root, in single precision."""
    return float(np.sqrt(F32(n)))


@lru_cache
def inverse(x: float) -> float:
    """1/x, in single precision."""
    return float(F32(1.0) / F32(x))


# --- for some architectures only


@typed
def check_whole_rope(hp: HParams) -> None:
    """Raises `ModelError` if only a part of each head is rotated."""
    if hp.rope.n_rot != hp.n_embd_head:
        raise UnsupportedError(
            f"metadata '{hp.arch}.rope.dimension_count' is {hp.rope.n_rot}: expected "
            f"{hp.n_embd_head}, all elements of a head"
        )


def check_dense(keys: Keys, hp: HParams) -> None:
    """Raises `ModelError` for a mixture of experts."""
    n_expert = keys.get("expert_count", int, 0)
    if n_expert:
        raise UnsupportedError(
            f"this {hp.arch} model is a mixture of {n_expert} experts, but only dense models of "
            f"architecture '{hp.arch}' are supported"
        )


def sliding_window(
    keys: Keys, hp: HParams, n_swa: int, n_pattern: int, rope: Rope
) -> SlidingWindow:
    """The window of all layers except every n_pattern-th, or of the layers that the file lists.

    Raises `ModelError` if heads of these layers have another size than those of other layers.
    """
    expected = f"expected {hp.n_embd_head}, as in the other layers"
    for name in ("attention.key_length", "attention.value_length"):
        n = keys.size(f"{name}_swa", hp.n_embd_head)
        keys.check(n == hp.n_embd_head, f"{name}_swa", expected)
    n_rot = keys.size("rope.dimension_count_swa", rope.n_rot)
    keys.check(n_rot == rope.n_rot, "rope.dimension_count_swa", f"expected {rope.n_rot}")
    return SlidingWindow(n_swa, _swa_layers(keys, hp, n_pattern), rope)


def _swa_layers(keys: Keys, hp: HParams, n_pattern: int) -> tuple[bool, ...]:
    """True for layers with a sliding window: as the file lists them, else all but every n-th."""
    name = "attention.sliding_window_pattern"
    listed = keys.array(name)
    if listed is None:
        n = keys.get(name, int, n_pattern)
        return tuple(n == 0 or il % n < n - 1 for il in range(hp.n_layer))
    if len(listed) < hp.n_layer:
        raise ModelError(
            f"metadata '{hp.arch}.{name}' has {len(listed)} value{'s' * (len(listed) != 1)}: "
            f"expected {hp.n_layer}, one per layer"
        )
    return tuple(bool(value) for value in listed[: hp.n_layer])

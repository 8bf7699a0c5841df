"""Llama models with random weights: complete GGUF files of any size, for demos, tests, benchmarks.

They are ordinary files: llama.cpp's programs load them, tokenizer included. The models generate
noise, always the same for a given seed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.ffi import lib
from ..enums import Ftype, Type
from ..errors import ModelError
from ..gguf.writer import TensorEntry, write_gguf
from ..tensors.tensor import TypeLike, type_of
from ..typed import typed

if TYPE_CHECKING:
    import numpy.typing as npt

_BYTE_TOKENS = 256
_TOKEN_NORMAL, _TOKEN_UNKNOWN, _TOKEN_CONTROL, _TOKEN_BYTE = 1, 2, 3, 6  # enum llama_token_type


@typed
@dataclass(frozen=True)
class LlamaSpec:
    """The size of a model. The defaults make one with 7.3M parameters, 4.3 MB in q4_0."""

    n_layer: int = 4
    n_embd: int = 256
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 768
    n_vocab: int = 8192
    n_ctx: int = 2048
    type: TypeLike = "q4_0"  # of all matrices; norms are f32, as in every file
    seed: int = 0
    tied: bool = False  # the output is the token embedding
    metadata: Mapping[str, Any] = field(default_factory=dict)  # adds to or replaces the usual keys

    def __post_init__(self) -> None:
        """Raises `ModelError` for sizes that do not make a model."""
        for name in ("n_layer", "n_embd", "n_head", "n_head_kv", "n_ff", "n_vocab", "n_ctx"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.n_embd % self.n_head or self.n_embd // self.n_head % 2:
            raise ModelError(
                f"n_embd={self.n_embd}, n_head={self.n_head}: expected n_embd to be an even "
                "multiple of n_head"
            )
        if self.n_head % self.n_head_kv:
            raise ModelError(
                f"n_head_kv={self.n_head_kv}: expected a divisor of n_head={self.n_head}"
            )
        type_ = type_of(self.type)
        if type_ not in (Type.F32, Type.F16, Type.BF16) and not lib.ggml_is_quantized(type_):
            raise ModelError(
                f"type={type_.name.lower()}: expected f32, f16, bf16 or a quantised type"
            )
        block = lib.ggml_blck_size(type_)
        for name in ("n_embd", "n_ff"):
            if getattr(self, name) % block:
                raise ModelError(
                    f"{name}={getattr(self, name)}: expected a multiple of {block}, the block of "
                    f"{type_.name.lower()}"
                )

    @property
    def n_params(self) -> int:
        """The number of elements of all tensors."""
        return sum(math.prod(ne) for _name, ne in self._shapes())

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and ne of all tensors, in the order that is usual in files."""
        n_embd, n_ff, embd = self.n_embd, self.n_ff, (self.n_embd, self.n_vocab)
        n_gqa = n_embd // self.n_head * self.n_head_kv
        yield "token_embd.weight", embd
        for il in range(self.n_layer):
            yield f"blk.{il}.attn_norm.weight", (n_embd,)
            yield f"blk.{il}.attn_q.weight", (n_embd, n_embd)
            yield f"blk.{il}.attn_k.weight", (n_embd, n_gqa)
            yield f"blk.{il}.attn_v.weight", (n_embd, n_gqa)
            yield f"blk.{il}.attn_output.weight", (n_embd, n_embd)
            yield f"blk.{il}.ffn_norm.weight", (n_embd,)
            yield f"blk.{il}.ffn_gate.weight", (n_embd, n_ff)
            yield f"blk.{il}.ffn_up.weight", (n_embd, n_ff)
            yield f"blk.{il}.ffn_down.weight", (n_ff, n_embd)
        yield "output_norm.weight", (n_embd,)
        if not self.tied:
            yield "output.weight", embd

    def tensors(self) -> Iterator[TensorEntry]:
        """The tensors for `write_gguf`. Their data is made when each one is written."""
        for index, (name, ne) in enumerate(self._shapes()):
            matrix = len(ne) == 2
            make = _random(np.random.default_rng([self.seed, index]), ne)
            yield name, make, type_of(self.type) if matrix else Type.F32, ne

    def header(self) -> dict[str, Any]:
        """The metadata."""
        return {
            "general.architecture": "llama",
            "general.name": f"random {self.n_params / 1e6:.1f}M",
            **_file_type(type_of(self.type)),
            "llama.vocab_size": self.n_vocab,
            "llama.context_length": self.n_ctx,
            "llama.embedding_length": self.n_embd,
            "llama.block_count": self.n_layer,
            "llama.feed_forward_length": self.n_ff,
            "llama.attention.head_count": self.n_head,
            "llama.attention.head_count_kv": self.n_head_kv,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": self.n_embd // self.n_head,
            "llama.rope.freq_base": 10000.0,
            **_tokenizer(self.n_vocab),
            **self.metadata,
        }


@typed
def write_llama(path: str | os.PathLike[str], spec: LlamaSpec | None = None) -> None:
    """Writes a model of size `spec` (default: a small one). Leaves no file if it raises OSError."""
    spec = spec or LlamaSpec()
    write_gguf(path, spec.header(), spec.tensors())


def _random(rng: np.random.Generator, ne: tuple[int, ...]) -> Callable[[], npt.NDArray[np.float32]]:
    def make() -> npt.NDArray[np.float32]:
        values = rng.standard_normal(tuple(reversed(ne)), np.float32)
        if len(ne) == 1:  # a norm: near one
            values *= 0.1
            values += 1.0
        else:  # scaled so that a product is about as large as its input, at any width
            values /= math.sqrt(ne[0])
        return values

    return make


def _file_type(type_: Type) -> dict[str, Any]:
    """The key with llama.cpp's name for the file's type, if it has a number for the type."""
    names = (f"MOSTLY_{type_.name}", f"ALL_{type_.name}")
    found = [Ftype[name] for name in names if name in Ftype.__members__]
    return {"general.file_type": int(found[0])} if found else {}


def _tokenizer(n_vocab: int) -> dict[str, Any]:
    """A SentencePiece vocabulary of three control tokens, the 256 bytes, and made-up words.

    Below 259 tokens there is no room for the bytes, so no vocabulary is written, and the model
    takes only token ids.
    """
    if n_vocab < 3 + _BYTE_TOKENS:
        return {"tokenizer.ggml.model": "no_vocab"}
    words = n_vocab - 3 - _BYTE_TOKENS
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(_BYTE_TOKENS))]
    types = [_TOKEN_UNKNOWN, _TOKEN_CONTROL, _TOKEN_CONTROL, *[_TOKEN_BYTE] * _BYTE_TOKENS]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *(f"\u2581w{i}" for i in range(words))],
        "tokenizer.ggml.scores": [0.0] * (3 + _BYTE_TOKENS) + [-float(i) for i in range(words)],
        "tokenizer.ggml.token_type": types + [_TOKEN_NORMAL] * words,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }

"""A model's sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a model, by llama.cpp's names. Where layers differ, those of the first one."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: int = 0
    n_head_kv: int = 0

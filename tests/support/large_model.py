"""The header of a large model, without its weights."""

from __future__ import annotations

from pathlib import Path

from .real_headers import Spec


def write(folder: str | Path) -> Path:
    """A llama of 32 layers and more than 1 TB in f16, of which only the header is there."""
    spec = Spec(
        "llama", n_layer=32, n_embd=32768, n_head=256, n_head_kv=8, n_ff=131072, n_vocab=128000,
        n_ctx_train=8192, freq_base=10000.0, quantised="f16",
    )  # fmt: skip
    return spec.write(Path(folder) / "large.gguf")

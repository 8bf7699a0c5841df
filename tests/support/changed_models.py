"""Model files with something changed."""

from __future__ import annotations

import numpy as np

from ggml_py.gguf.writer import write_gguf
from ggml_py.models.synthetic import LlamaSpec

SPEC = LlamaSpec(n_layer=2, n_embd=64, n_head=4, n_head_kv=2, n_ff=96, n_vocab=300, type="f32")


def changed(tmp_path, *, metadata=None, drop=(), reshape=None, add=()):
    """A file like SPEC's with other metadata or other tensors."""
    header = {**SPEC.header(), **(metadata or {})}
    header = {k: v for k, v in header.items() if v is not None}
    tensors = []
    for name, data, type_, ne in SPEC.tensors():
        if reshape and name == reshape[0]:
            data, ne = np.zeros(tuple(reversed(reshape[1])), np.float32), reshape[1]
        if name not in drop:
            tensors.append((name, data, type_, ne))
    target = tmp_path / "changed.gguf"
    write_gguf(target, header, [*tensors, *add])
    return target

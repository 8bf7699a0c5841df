"""Models in several parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ggml_py as ggml


def split(path: Path, folder: Path, n: int) -> list[Path]:
    """The model in `n` parts, named as llama.cpp names them; each has every n-th tensor."""
    parts = [folder / f"{path.stem}-{i + 1:05}-of-{n:05}.gguf" for i in range(n)]
    with ggml.Gguf.open(path) as gguf:
        tensors = list(gguf.tensors.values())
        for i, part in enumerate(parts):
            header = {"split.no": np.uint16(i), "split.count": np.uint16(n)}
            header["split.tensors.count"] = np.int32(len(tensors))
            ggml.write_gguf(
                part,
                {**gguf.metadata, **header} if i == 0 else header,
                [(t.name, gguf.data(t.name), t.type, t.ne) for t in tensors[i::n]],
            )
    return parts

"""Small models of every architecture without upstream's programs: the headers of upstream's own
small files (arch_headers.json), with weights drawn here.

    python tests/support/arch_headers.py FOLDER    writes arch_headers.json from upstream's files

`pytest --all` uses upstream's files themselves, and compares their headers with these
(test_models_archs.py). Keys that are 0, empty or not of the architecture are left out: for a reader
they mean the same.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ggml_py import Gguf
from ggml_py.gguf.writer import write_gguf

FILE = Path(__file__).with_suffix(".json")
Header = dict[str, Any]  # "metadata": {key: value}, "tensors": {name: ne}, all f32


def header_of(path: Path) -> Header:
    """The part of a file's header that is kept."""
    with Gguf.open(path) as gguf:
        arch = gguf.metadata["general.architecture"]
        keys = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in gguf.metadata.items()}
        assert {info.type.name for info in gguf.tensors.values()} == {"F32"}
        tensors = {name: _trimmed(list(info.ne)) for name, info in gguf.tensors.items()}
    kept = {
        key: value
        for key, value in keys.items()
        if key.startswith(("general.architecture", f"{arch}.", "tokenizer.ggml.model"))
        and not (isinstance(value, float) and math.isinf(value))
        and (any(set(value) - {0, -1}) if isinstance(value, list) else value)
    }
    return {"metadata": kept, "n_tokens": len(keys["tokenizer.ggml.tokens"]), "tensors": tensors}


def _trimmed(ne: list[int]) -> list[int]:
    while len(ne) > 1 and ne[-1] == 1:
        ne.pop()
    return ne


@cache
def headers() -> dict[str, Header]:
    """The headers, by the names of arch_files.ARCHS."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(path: Path, name: str, seed: int) -> None:
    """A model of the architecture, with weights drawn from `seed`."""
    header = headers()[name]
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    tokens = [f"tok_{i}" for i in range(header["n_tokens"])]

    def values(tensor: str, ne: list[int]) -> np.ndarray:
        drawn = rng.normal(0.0, 0.01, ne[::-1]).astype(np.float32)
        if "norm" in tensor or "scale" in tensor:
            drawn += 1
        return -np.abs(drawn) - np.float32(0.1) if tensor.endswith("ssm_a") else drawn

    entries = [(tensor, values(tensor, ne), "f32", ne) for tensor, ne in header["tensors"].items()]
    write_gguf(path, header["metadata"] | {"tokenizer.ggml.tokens": tokens}, entries)


def main(folder: Path) -> None:
    from .arch_files import ARCHS

    found = {name: header_of(folder / f"{file}.gguf") for name, file in ARCHS.items()}
    rows = (f"{json.dumps(name)}: {json.dumps(header)}" for name, header in found.items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

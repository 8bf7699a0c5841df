"""Writes a tiny whisper model with random weights, in whisper.cpp's own format (8 MB).

    python make_whisper.py MODEL.bin

It prints nothing. Weights with more than one dimension are f16, as upstream's converter has them.
"""

import struct
import sys
from pathlib import Path

import numpy as np

STATES, LAYERS, HEADS, MELS, FRAMES, TOKENS = 64, 1, 2, 80, 1500, 448
VOCABULARY, WORDS = 51_864, 50_256  # whisper.cpp makes the names of the other tokens
FILTERS = 201


def write(path: Path) -> None:
    """Writes the file."""
    with path.open("wb") as file:
        file.write(struct.pack("<I", 0x67676D6C))  # "ggml"
        sizes = (FRAMES, STATES, HEADS, LAYERS, TOKENS, STATES, HEADS, LAYERS, MELS)
        file.write(struct.pack("<11i", VOCABULARY, *sizes, 1))  # 1: f16
        file.write(struct.pack("<2i", MELS, FILTERS) + _filters().tobytes())
        file.write(struct.pack("<i", WORDS))
        for i in range(WORDS):
            word = bytes([i]) if 32 <= i < 127 else b" w%d" % i
            file.write(struct.pack("<I", len(word)) + word)
        rng = np.random.default_rng(0)
        for name, shape in _weights().items():
            f32 = len(shape) == 1 or name.endswith(("positional_embedding", ".bias"))
            data = rng.normal(0, 0.05, shape).astype(np.float32 if f32 else np.float16)
            file.write(struct.pack("<3i", len(shape), len(name), int(not f32)))
            file.write(struct.pack(f"<{len(shape)}i", *reversed(shape)))
            file.write(name.encode() + data.tobytes())


def _filters():
    filters = np.zeros((MELS, FILTERS), np.float32)
    for i in range(MELS):
        start = 1 + i * (FILTERS - 4) // MELS
        filters[i, start : start + 3] = (0.5, 1.0, 0.5)
    return filters


def _weights():
    """Shapes by name, as numpy has them: the reverse of ggml's."""
    s = STATES
    found = {
        "encoder.positional_embedding": (FRAMES, s),
        "encoder.conv1.weight": (s, MELS, 3), "encoder.conv1.bias": (s, 1),
        "encoder.conv2.weight": (s, s, 3), "encoder.conv2.bias": (s, 1),
    }  # fmt: skip
    for i in range(LAYERS):
        found |= _block(f"encoder.blocks.{i}", ("attn",))
    found |= {"encoder.ln_post.weight": (s,), "encoder.ln_post.bias": (s,)}
    found["decoder.positional_embedding"] = (TOKENS, s)
    found["decoder.token_embedding.weight"] = (VOCABULARY, s)
    for i in range(LAYERS):
        found |= _block(f"decoder.blocks.{i}", ("attn", "cross_attn"))
    return found | {"decoder.ln.weight": (s,), "decoder.ln.bias": (s,)}


def _block(block, attentions):
    s = STATES
    found = {}
    for name in attentions:
        norm, own = f"{block}.{name}_ln", f"{block}.{name}"
        found |= {f"{norm}.weight": (s,), f"{norm}.bias": (s,)}
        for part in ("query", "key", "value", "out"):
            found[f"{own}.{part}.weight"] = (s, s)
            if part != "key":
                found[f"{own}.{part}.bias"] = (s,)
    found |= {f"{block}.mlp_ln.weight": (s,), f"{block}.mlp_ln.bias": (s,)}
    found |= {f"{block}.mlp.0.weight": (4 * s, s), f"{block}.mlp.0.bias": (4 * s,)}
    return found | {f"{block}.mlp.2.weight": (s, 4 * s), f"{block}.mlp.2.bias": (s,)}


if __name__ == "__main__":
    write(Path(sys.argv[1]))

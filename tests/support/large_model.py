"""The header of a large model, without its weights."""

from __future__ import annotations

import struct
from pathlib import Path

N_LAYER, N_EMBD, N_FF, N_VOCAB, N_HEAD = 32, 32768, 131072, 128000, 256
F32, F16 = 0, 1
_U32, _F32, _STR = 4, 6, 8


def write(folder: str | Path) -> Path:
    """A llama of 32 layers and more than 1 TB in f16, of which only the header is there."""
    arch = "llama"
    keys: list[bytes] = [
        _key("general.architecture", _STR, _text(arch)),
        *(_key(f"{arch}.{name}", _U32, struct.pack("<I", value)) for name, value in (
            ("block_count", N_LAYER), ("embedding_length", N_EMBD), ("context_length", 8192),
            ("feed_forward_length", N_FF), ("attention.head_count", N_HEAD),
            ("attention.head_count_kv", 8), ("vocab_size", N_VOCAB),
        )),
        _key(f"{arch}.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _key("tokenizer.ggml.model", _STR, _text("no_vocab")),
    ]  # fmt: skip
    kv = 8 * (N_EMBD // N_HEAD)
    tensors = [("token_embd", F16, (N_EMBD, N_VOCAB)), ("output", F16, (N_EMBD, N_VOCAB)),
               ("output_norm", F32, (N_EMBD,))]  # fmt: skip
    for il in range(N_LAYER):
        tensors += [(f"blk.{il}.{name}", type_, ne) for name, type_, ne in (
            ("attn_norm", F32, (N_EMBD,)), ("attn_q", F16, (N_EMBD, N_EMBD)),
            ("attn_k", F16, (N_EMBD, kv)), ("attn_v", F16, (N_EMBD, kv)),
            ("attn_output", F16, (N_EMBD, N_EMBD)), ("ffn_norm", F32, (N_EMBD,)),
            ("ffn_gate", F16, (N_EMBD, N_FF)), ("ffn_up", F16, (N_EMBD, N_FF)),
            ("ffn_down", F16, (N_FF, N_EMBD)),
        )]  # fmt: skip
    infos, offset = [], 0
    for name, type_, ne in tensors:
        size = {F32: 4, F16: 2}[type_]
        for n in ne:
            size *= n
        shape = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        infos.append(_text(f"{name}.weight") + shape + struct.pack("<IQ", type_, offset))
        offset += (size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    path = Path(folder) / "large.gguf"
    header = head + b"".join(keys) + b"".join(infos)
    path.write_bytes(header + bytes(-len(header) % 32))
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _key(name: str, type_: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", type_) + value

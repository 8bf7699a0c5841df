"""Headers of models as large as people run, without their weights: made from the hyperparameters
that a program prints when it loads one (print_info), the tensors of its architecture, and the types
that upstream's quantisation gives them.

A file ends after its header: `plan`, `memory` and `ggml_py.llama.open` read no more.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggml_py.boundary.ffi import lib
from ggml_py.tensors.convert import type_of

Tensor = tuple[str, str, tuple[int, ...]]  # name, type, ne
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def write_header(path: Path, metadata: Mapping[str, Any], tensors: Iterable[Tensor]) -> Path:
    """Writes a GGUF file that ends after its header."""
    keys = [_text(key) + _value(value) for key, value in metadata.items()]
    infos, offset = [], 0
    for name, type_name, ne in tensors:
        type_ = type_of(type_name)
        shape = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        infos.append(_text(name) + shape + struct.pack("<IQ", type_, offset))
        size = lib.ggml_row_size(type_, ne[0]) * math.prod(ne[1:])
        offset += (size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys))
    header = head + b"".join(keys) + b"".join(infos)
    path.write_bytes(header + bytes(-len(header) % 32))
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: bool | float | str | tuple[int, ...]) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _I32, len(value), *value)


@dataclass(frozen=True)
class Spec:
    """A model's hyperparameters, with the names of print_info, and its quantisation: a type of ggml
    (all matrices have it) or "q4_K_M", "q5_K_M" (upstream's mixtures)."""

    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    freq_base: float
    quantised: str
    n_embd_head: int = 0  # 0: n_embd / n_head
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    n_swa: int = 0
    tied: bool = False  # the embeddings are the output, too
    rope_freqs: bool = False  # llama 3's factors
    more: tuple[tuple[str, Any], ...] = ()  # further metadata of the architecture
    experts: str = ""  # their type, if it is another

    @property
    def head(self) -> int:
        return self.n_embd_head or self.n_embd // self.n_head

    def write(self, path: Path) -> Path:
        """The header of the model."""
        return write_header(path, self.metadata(), self.tensors())

    def metadata(self) -> dict[str, Any]:
        values = {
            "block_count": self.n_layer, "context_length": self.n_ctx_train,
            "embedding_length": self.n_embd, "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head, "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head, "attention.value_length": self.head,
            "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": self.freq_base,
            "expert_count": self.n_expert, "expert_used_count": self.n_expert_used,
            "expert_feed_forward_length": self.n_ff_exp, "attention.sliding_window": self.n_swa,
            "vocab_size": self.n_vocab, "rope.dimension_count": self.head, **dict(self.more),
        }  # fmt: skip
        return {
            "general.architecture": self.arch,
            "tokenizer.ggml.model": "no_vocab",
            **{f"{self.arch}.{key}": value for key, value in values.items() if value},
        }

    def tensors(self) -> Iterator[Tensor]:
        """All tensors with their types."""
        for name, ne in self._shapes():
            one = len([n for n in ne if n > 1]) == 1
            plain = one or ".ffn_gate_inp." in name or name.endswith(".bias") or "ssm_conv" in name
            yield name, "f32" if plain else self._type(name), ne

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "token_embd.weight", (self.n_embd, self.n_vocab)
        yield "output_norm.weight", (self.n_embd,)
        if not self.tied:
            yield "output.weight", (self.n_embd, self.n_vocab)
        if self.rope_freqs:
            yield "rope_freqs.weight", (self.head // 2,)
        for il in range(self.n_layer):
            for name, ne in BLOCKS[self.arch](self, il).items():
                whole = name.endswith((".", ".bias"))  # "ssm_a." has no suffix
                yield f"blk.{il}.{name.removesuffix('.') if whole else name + '.weight'}", ne

    def _type(self, name: str) -> str:
        """C++: llama_tensor_get_type (src/llama-quant.cpp)"""
        if "_exps." in name and self.experts:
            return self.experts
        is_output = name == ("token_embd.weight" if self.tied else "output.weight")
        if is_output and self.quantised not in ("q8_0", "bf16", "f16"):
            return "q6_K"
        usual = self.quantised.removesuffix("_M")
        if usual != self.quantised and ("attn_v." in name or "ffn_down" in name):
            il, n = int(name.split(".")[1]), self.n_layer
            if il < n // 8 or il >= 7 * n // 8 or (il - n // 8) % 3 == 2:
                return "q6_K"
            if self._is_70b and "attn_v." in name and usual == "q4_K":
                return "q5_K"
        return usual

    @property
    def _is_70b(self) -> bool:
        return self.n_layer == 80 and self.n_head == 64 and self.n_head_kv == 8


Shapes = dict[str, tuple[int, ...]]


def _attention(spec: Spec, il: int) -> Shapes:
    width, kv = spec.n_head * spec.head, spec.n_head_kv * spec.head
    return {
        "attn_norm": (spec.n_embd,),
        "attn_q": (spec.n_embd, width),
        "attn_k": (spec.n_embd, kv),
        "attn_v": (spec.n_embd, kv),
        "attn_output": (width, spec.n_embd),
    }


def _dense(spec: Spec) -> Shapes:
    wide = (spec.n_embd, spec.n_ff)
    return {"ffn_norm": wide[:1], "ffn_gate": wide, "ffn_up": wide, "ffn_down": wide[::-1]}


def _llama(spec: Spec, il: int) -> Shapes:
    return _attention(spec, il) | _dense(spec)


def _qwen2(spec: Spec, il: int) -> Shapes:
    width, kv = spec.n_head * spec.head, spec.n_head_kv * spec.head
    biases = {"attn_q.bias": (width,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    return _llama(spec, il) | biases


def _norms(spec: Spec) -> Shapes:
    return {"attn_q_norm": (spec.head,), "attn_k_norm": (spec.head,)}


def _qwen3(spec: Spec, il: int) -> Shapes:
    return _llama(spec, il) | _norms(spec)


def _experts(spec: Spec) -> Shapes:
    wide = (spec.n_embd, spec.n_ff_exp, spec.n_expert)
    return {
        "ffn_gate_inp": (spec.n_embd, spec.n_expert),
        "ffn_gate_exps": wide,
        "ffn_up_exps": wide,
        "ffn_down_exps": (wide[1], wide[0], wide[2]),
    }


def _qwen3moe(spec: Spec, il: int) -> Shapes:
    return _attention(spec, il) | _norms(spec) | {"ffn_norm": (spec.n_embd,)} | _experts(spec)


def _gemma3(spec: Spec, il: int) -> Shapes:
    after = {"post_attention_norm": (spec.n_embd,), "post_ffw_norm": (spec.n_embd,)}
    return _llama(spec, il) | _norms(spec) | after


def _gpt_oss(spec: Spec, il: int) -> Shapes:
    width, kv = spec.n_head * spec.head, spec.n_head_kv * spec.head
    return (
        _attention(spec, il)
        | {"post_attention_norm": (spec.n_embd,), "attn_sinks": (spec.n_head,)}
        | {"attn_q.bias": (width,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        | {"attn_output.bias": (spec.n_embd,), "ffn_gate_inp.bias": (spec.n_expert,)}
        | {f"ffn_{x}_exps.bias": (spec.n_ff_exp, spec.n_expert) for x in ("gate", "up")}
        | {"ffn_down_exps.bias": (spec.n_embd, spec.n_expert)}
        | _experts(spec)
    )


def _deepseek2(spec: Spec, il: int) -> Shapes:
    """Without the absorbed matrices that newer files have (attn_k_b, attn_v_b)."""
    keys = dict(spec.more)
    n_lora_q, n_lora_kv = keys["attention.q_lora_rank"], keys["attention.kv_lora_rank"]
    n_k, n_v = keys["attention.key_length"], keys["attention.value_length"]
    n_rope = keys["rope.dimension_count"]
    shapes: Shapes = {
        "attn_norm": (spec.n_embd,),
        "attn_q_a_norm": (n_lora_q,),
        "attn_kv_a_norm": (n_lora_kv,),
        "attn_q_a": (spec.n_embd, n_lora_q),
        "attn_q_b": (n_lora_q, spec.n_head * n_k),
        "attn_kv_a_mqa": (spec.n_embd, n_lora_kv + n_rope),
        "attn_kv_b": (n_lora_kv, spec.n_head * (n_k - n_rope + n_v)),
        "attn_output": (spec.n_head * n_v, spec.n_embd),
    }
    if il < keys["leading_dense_block_count"]:
        return shapes | _dense(spec)
    shared = (spec.n_embd, spec.n_ff_exp * keys["expert_shared_count"])
    return (
        shapes
        | {"ffn_norm": (spec.n_embd,), "ffn_gate_shexp": shared, "ffn_up_shexp": shared}
        | {"ffn_down_shexp": shared[::-1]}
        | _experts(spec)
    )


def _qwen35(spec: Spec, il: int) -> Shapes:
    keys = dict(spec.more)
    norms = {"attn_norm": (spec.n_embd,), "post_attention_norm": (spec.n_embd,)}
    dense = {name: ne for name, ne in _dense(spec).items() if name != "ffn_norm"}
    after = {
        "nextn.eh_proj": (2 * spec.n_embd, spec.n_embd),
        "nextn.enorm": (spec.n_embd,),
        "nextn.hnorm": (spec.n_embd,),
        "nextn.shared_head_norm": (spec.n_embd,),
    }
    mtp = il >= spec.n_layer - keys.get("nextn_predict_layers", 0)
    if (il + 1) % 4 == 0 or mtp:
        width = spec.n_head * spec.head
        attention = _attention(spec, il) | {"attn_q": (spec.n_embd, 2 * width)} | _norms(spec)
        return norms | attention | dense | (after if mtp else {})
    d_state, n_v = keys["ssm.state_size"], keys["ssm.time_step_rank"]
    value, key = keys["ssm.inner_size"], d_state * keys["ssm.group_count"]
    return norms | dense | {
        "attn_qkv": (spec.n_embd, 2 * key + value),
        "attn_gate": (spec.n_embd, value),
        "ssm_conv1d": (keys["ssm.conv_kernel"], 2 * key + value),
        "ssm_dt.bias": (n_v,),
        "ssm_a.": (n_v,),
        "ssm_beta": (spec.n_embd, n_v),
        "ssm_alpha": (spec.n_embd, n_v),
        "ssm_norm": (d_state,),
        "ssm_out": (value, spec.n_embd),
    }  # fmt: skip


BLOCKS = {
    "llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "qwen3moe": _qwen3moe, "gemma3": _gemma3,
    "gpt-oss": _gpt_oss, "deepseek2": _deepseek2, "qwen35": _qwen35,
}  # fmt: skip


LLAMA_8B = Spec(
    "llama", n_layer=32, n_embd=4096, n_head=32, n_head_kv=8, n_ff=14336, n_vocab=128256,
    n_ctx_train=8192, freq_base=5e5, quantised="q4_K",
)  # fmt: skip
LLAMA_70B = Spec(
    "llama", n_layer=80, n_embd=8192, n_head=64, n_head_kv=8, n_ff=28672, n_vocab=128256,
    n_ctx_train=8192, freq_base=5e5, quantised="q4_K",
)  # fmt: skip
MOE_30B = Spec(
    "qwen3moe", n_layer=48, n_embd=2048, n_head=32, n_head_kv=4, n_ff=6144, n_vocab=151936,
    n_ctx_train=40960, freq_base=1e6, quantised="q4_K", n_embd_head=128, n_expert=128,
    n_expert_used=8, n_ff_exp=768,
)  # fmt: skip

"""The options of `load`, checked before anything is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..backends.device import Device
from ..boundary.arguments import SIZE_MAX, check_function, integer
from ..boundary.ffi import lib
from ..enums import Type
from ..errors import ModelError
from ..tensors.tensor import type_of
from .overrides import Place, override_pairs
from .programs import with_defaults

# Those of `llama.open`. None: what the program asks for, or our own.
DEFAULTS: dict[str, Any] = {
    "devices": ("CPU",), "n_gpu_layers": 0, "n_ctx": None, "n_batch": None, "n_ubatch": None,
    "n_threads": None, "flash_attn": "auto", "type_k": "f16", "type_v": "f16", "repack": True,
    "swa_full": False, "n_seq_max": None, "kv_unified": None, "offload_kqv": True,
    "op_offload": True, "tensor_overrides": None, "cpu_moe": False, "n_cpu_moe": 0,
    "n_cpu_ffn": 0, "split_mode": "layer", "main_gpu": 0, "tensor_split": None,
    "load_mode": "auto", "no_host": False, "progress": None, "n_outputs_max": None,
    "program": None,
}  # fmt: skip
_LEAST = {
    "n_ctx": 0, "n_batch": 1, "n_ubatch": 1, "n_seq_max": 1, "n_threads": 1,
    "n_outputs_max": 0, "n_gpu_layers": -SIZE_MAX, "main_gpu": -SIZE_MAX, "n_cpu_moe": 0,
    "n_cpu_ffn": 0,
}  # fmt: skip
_CHOICES = {
    "flash_attn": ("auto", "on", "off"),
    "split_mode": ("layer", "none", "row", "tensor"),
    "load_mode": ("auto", "mmap", "none"),
}
_FLAGS = (
    "repack", "swa_full", "kv_unified", "offload_kqv", "op_offload", "cpu_moe", "no_host",
)  # fmt: skip
_INT_MAX = (1 << 31) - 1  # the largest number that llama.cpp can hold

log = logging.getLogger("ggml_py")

MAX_SEQ = 256  # sequences: LLAMA_MAX_SEQ
PAD = 256  # cells: llama.cpp pads the context to this
Progress = Callable[[float], object]


def pad(n: int) -> int:
    """`n` rounded up to whole steps of `PAD`."""
    return -(-n // PAD) * PAD


class Fit(NamedTuple):
    """How `open` fits a model into memory: llama.cpp's --fit-target and --fit-ctx."""

    margins: tuple[int, ...] = (1 << 30,)  # bytes that stay free on each device; one for all
    n_ctx: int = 4096  # the smallest context that it may choose


@dataclass(frozen=True)
class Options:
    """All arguments of `load` except the path. Made by `checked`."""

    devices: Sequence[str | Device]
    n_gpu_layers: int
    n_ctx: int  # 0: the length that the model was trained with; see `sized`
    n_batch: int
    n_ubatch: int
    n_threads: int | None
    flash_attn: str
    type_k: Type
    type_v: Type
    repack: bool
    swa_full: bool
    n_seq_max: int
    kv_unified: bool
    offload_kqv: bool
    op_offload: bool
    tensor_overrides: Sequence[tuple[str, Place]]
    cpu_moe: bool
    n_cpu_moe: int
    n_cpu_ffn: int
    split_mode: str
    main_gpu: int
    tensor_split: Sequence[float] | None
    load_mode: str
    no_host: bool
    progress: Progress | None
    n_outputs_max: int  # 0: n_batch; see `sized`
    program: str | None

    @property
    def v_trans(self) -> bool:
        """Whether the cache has its values transposed. With "auto" it does not, even if flash
        attention turns out to be off: as in llama.cpp, the cache's layout is fixed before that."""
        return self.flash_attn == "off"

    def sized(self, n_ctx_train: int) -> Options:
        """The options with the final numbers for a model that was trained with n_ctx_train tokens.
        As in llama.cpp a batch is limited to n_ctx before that is padded."""
        n_ctx = self.n_ctx or n_ctx_train
        n_batch = min(self.n_batch, n_ctx)
        return replace(
            self,
            n_ctx=pad(n_ctx),
            n_batch=n_batch,
            n_ubatch=min(self.n_ubatch, n_batch),
            n_outputs_max=self.n_outputs_max or n_batch,
        )


def checked(asked: Mapping[str, Any]) -> Options:
    """Checks the arguments of `load`, given by name. Raises `ModelError` and TypeError."""
    n_ubatch, asked = asked["n_ubatch"], with_defaults(asked)
    if isinstance(asked["flash_attn"], bool):
        asked["flash_attn"] = "on" if asked["flash_attn"] else "off"
    _check_numbers(asked)
    if n_ubatch is not None and n_ubatch > asked["n_batch"]:
        log.warning(
            "n_ubatch=%d (-ub) is more than n_batch=%d (-b): as in llama.cpp it becomes %d",
            n_ubatch, asked["n_batch"], asked["n_batch"],
        )  # fmt: skip
    for name, choices in _CHOICES.items():
        if asked[name] not in choices:
            raise ModelError(f"{name}={asked[name]!r}: expected one of {', '.join(choices)}")
    for name in _FLAGS:
        if not isinstance(asked[name], bool):
            raise TypeError(f"{name}={asked[name]!r}: expected True or False")
    asked["tensor_overrides"] = tuple(override_pairs(asked["tensor_overrides"]))
    check_function(asked["progress"], "(share)", "progress")
    asked["type_k"], asked["type_v"] = type_of(asked["type_k"]), type_of(asked["type_v"])
    asked["flash_attn"] = _with_quantised_v(asked["flash_attn"], asked["type_v"])
    return Options(**asked)


def _check_numbers(asked: Mapping[str, Any]) -> None:
    layers = asked["n_gpu_layers"]
    if isinstance(layers, str):
        raise TypeError(f"n_gpu_layers={layers!r}: expected a number of layers; -1 means all")
    for name, least in _LEAST.items():
        value = asked[name]
        if name == "n_threads" and value is None:
            continue
        if integer(name, value, -SIZE_MAX) < least:
            raise ModelError(f"{name}={value}: expected at least {least}")
        if value > _INT_MAX:
            raise ModelError(f"{name}={value}: expected at most {_INT_MAX:,}")
    if asked["n_seq_max"] > MAX_SEQ:
        raise ModelError(f"n_seq_max={asked['n_seq_max']}: expected at most {MAX_SEQ} sequences")


def _with_quantised_v(flash_attn: str, type_v: Type) -> str:
    """`flash_attn`, but with a quantised V "auto" becomes "on", as in llama.cpp: attention without
    flash cannot read a quantised V."""
    if not lib.ggml_is_quantized(type_v):
        return flash_attn
    if flash_attn == "off":
        raise ModelError(
            f"type_v={type_v.name.lower()}: a quantised V cache needs flash attention. Use "
            'flash_attn="on" (-fa) or type_v="f16" (-ctv)'
        )
    return "on"

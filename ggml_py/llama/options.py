"""The options of a model and its context: the table of them, and their check before anything is
opened. Whatever takes, checks, passes on or prints an option goes through `TABLE`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ArgumentError, ModelError
from .programs import PROGRAMS, with_defaults

if TYPE_CHECKING:
    from ..backends.device import Device
    from ..enums import Type
    from .overrides import Place

# What options are for: groups of the help.
ASKED, DEVICES = "What is asked", "Devices"
PLACEMENT, CONTEXT = "Memory and offload", "Context and threads"
SPLIT_MODES = {"layer": 1, "none": 0, "row": 2, "tensor": 3}  # enum llama_split_mode
LOAD_MODES = {"auto": -1, "mmap": 1, "none": 0}
FLASH_ATTN = {"auto": -1, "on": 1, "off": 0}  # enum llama_flash_attn_type
_VALUES = ("bool", "int", "layers", "parts", "type", "word")


class Keyword(NamedTuple):
    """A keyword of `ggml_py.models.load`, with the flags that verbs and llama.cpp's programs have
    for it."""

    name: str
    flags: tuple[str, ...]  # the first one is printed; () without a flag
    kind: str  # one of `_VALUES`, or "devices", "overrides", "program", "function"
    default: Any  # of the keyword; None: what the program asks for, or our own
    help: str
    group: str = PLACEMENT
    off: tuple[str, ...] = ()  # flags that say no
    least: int | None = None
    words: Mapping[str, int] = MappingProxyType({})  # their numbers in llama.h
    field: str = ""  # of llama.h: "model." or "context." and its name
    bench: str = ""  # llama-bench's flag
    bench_off: bool = False  # which says no
    verb: str = ""  # the verbs' name, if it is another
    verb_default: Any = None  # on a command line, if it is another
    metavar: str | None = None
    always: bool = False  # printed even if it is the default, which programs have another
    plans: bool = False  # only of verbs that plan one graph
    saved: bool = False  # also says how a saved plan's graph is planned again
    usual: bool = False  # `--help` shows it, and not only `--help-all`

    @property
    def in_line(self) -> bool:
        """Whether programs take it, and it has a value of its own."""
        return bool(self.flags) and self.kind in _VALUES

    @property
    def is_flag(self) -> bool:
        """Whether it says how a model runs, whatever the size of its context."""
        return self.in_line and not self.plans and self.name != "n_ctx"

    def is_default(self, value: Any) -> bool:
        """Whether a command line can leave it out."""
        return value == self.default or (self.default is None and not value)

    @property
    def in_verbs(self) -> Any:
        """The default on a command line."""
        return self.default if self.verb_default is None else self.verb_default

    def line(self, value: Any) -> list[str]:
        """The words of a command line of llama.cpp's programs, but llama-bench's."""
        if self.kind == "bool":
            return list(self.flags[:1] if value else self.off[:1])
        if self.kind == "layers" and value < 0:
            return [self.flags[0], "all"]
        return [self.flags[0], flag_text(value)]

    def bench_line(self, value: Any) -> list[str]:
        """The words of a command line of llama-bench."""
        if self.kind == "bool":
            return [self.bench, str(int(value != self.bench_off))]
        return [self.bench, flag_text(value, bench=True)]


def flag_text(value: Any, bench: bool = False) -> str:
    """A value as llama-bench or the other programs take it."""
    if isinstance(value, tuple):
        return ("/" if bench else ",").join(f"{part:g}" for part in value)
    return str(value)


# In the order of the help, and of printed command lines.
TABLE = (
    Keyword("devices", ("-d", "-dev", "--device"), "devices", ("CPU",),
            "Devices in priority order: repeat the option, or separate them by commas. none: only "
            "the CPU. rpc:HOST:PORT is a server's device. sim:NAME[,SETTING=...] is a simulated "
            "one, with settings like profile=cuda, memory=8G, min_batch=32. CPU,memory=64G is the "
            "CPU of a machine with more memory, or less. Default: all, the GPUs first, CPU last. "
            "BLAS takes part if it is named, or if no device is.", DEVICES,
            verb_default=(), metavar="NAME", saved=True, usual=True),
    Keyword("n_gpu_layers", ("-ngl", "--gpu-layers", "--n-gpu-layers"), "layers", 0,
            "Layers whose weights go to the GPUs, shared out by free memory; or all.",
            field="model.n_gpu_layers", bench="-ngl", verb_default=-1, metavar="N",
            always=True, usual=True),
    Keyword("tensor_overrides", ("-ot", "--override-tensor"), "overrides", None,
            "Put weights whose names match REGEX (in Python's syntax; commas are allowed) on a "
            "device or in a buffer type. The first match counts, also before -cmoe, -ncmoe and "
            "-ncffn. May be repeated.", verb="overrides", metavar="REGEX=NAME,...",
            usual=True),
    Keyword("tensor_split", ("-ts", "--tensor-split"), "parts", None,
            "Share of the layers that each GPU gets, like 3,1.", bench="-ts",
            metavar="N0,N1,..."),
    Keyword("split_mode", ("-sm", "--split-mode"), "word", "layer",
            "Whether one GPU gets all layers (none), several share them (layer) or each layer's "
            "matrices (row, tensor; through libllama).", words=SPLIT_MODES,
            field="model.split_mode", bench="-sm"),
    Keyword("main_gpu", ("-mg", "--main-gpu"), "int", 0,
            "Which GPU gets all layers, with -sm none.", field="model.main_gpu", bench="-mg",
            metavar="INDEX"),
    Keyword("n_ctx", ("-c", "--ctx-size"), "int", None,
            "Tokens that the cache holds. Default: 512; 0: as many as in training.", CONTEXT,
            least=0, field="context.n_ctx", metavar="N", always=True, usual=True),
    Keyword("n_batch", ("-b", "--batch-size"), "int", None,
            "Tokens that one evaluation takes. Default: 512.", CONTEXT, least=1,
            field="context.n_batch", bench="-b", metavar="N", always=True),
    Keyword("n_ubatch", ("-ub", "--ubatch-size"), "int", None,
            "Tokens that one graph takes. Default: 512.", CONTEXT, least=1,
            field="context.n_ubatch", bench="-ub", metavar="N", always=True),
    Keyword("n_seq_max", ("-np", "--parallel"), "int", None, "Sequences in the batch. Default: 1.",
            ASKED, least=1, field="context.n_seq_max", verb="n_seqs", metavar="N", always=True,
            plans=True),
    Keyword("flash_attn", ("-fa", "--flash-attn"), "word", "auto", "Compute attention in one op.",
            CONTEXT, words=FLASH_ATTN, field="context.flash_attn_type", bench="-fa"),
    Keyword("type_k", ("-ctk", "--cache-type-k"), "type", "f16", "Type of the K cache.", CONTEXT,
            field="context.type_k", bench="-ctk"),
    Keyword("type_v", ("-ctv", "--cache-type-v"), "type", "f16", "Type of the V cache.", CONTEXT,
            field="context.type_v", bench="-ctv"),
    Keyword("n_threads", ("-t", "--threads"), "int", None,
            "Threads. Default: the cores this process may use.", CONTEXT, least=1, bench="-t",
            metavar="N", usual=True),
    Keyword("op_offload", ("--op-offload",), "bool", True,
            "Let GPUs take ops of large batches whose weights are on the CPU.",
            off=("--no-op-offload",), field="context.op_offload", bench="-nopo", bench_off=True,
            saved=True),
    Keyword("offload_kqv", ("-kvo", "--kv-offload"), "bool", True,
            "Keep the KV cache on the layers' devices. If not, and without flash attention, the "
            "end of attention is on the CPU, too.", off=("-nkvo", "--no-kv-offload"),
            field="context.offload_kqv", bench="-nkvo", bench_off=True),
    Keyword("repack", ("--repack",), "bool", True,
            "Repack weights for the CPU's kernels, if it has layouts for that.",
            off=("-nr", "--no-repack"), field="model.use_extra_bufts", bench="--repack"),
    Keyword("no_host", ("--no-host",), "bool", False,
            "Do not put the CPU's weights into a GPU's host memory.", field="model.no_host",
            bench="--no-host"),
    Keyword("load_mode", ("-lm", "--load-mode"), "word", "auto",
            "Whether the CPU's weights stay in the mapped file.", words=LOAD_MODES,
            field="model.load_mode", bench="-lm"),
    Keyword("n_cpu_moe", ("-ncmoe", "--n-cpu-moe"), "int", 0,
            "Keep the experts of the first N layers on the CPU.", least=0, bench="-ncmoe",
            metavar="N"),
    Keyword("cpu_moe", ("-cmoe", "--cpu-moe"), "bool", False, "Keep all experts on the CPU."),
    Keyword("n_cpu_ffn", ("-ncffn", "--n-cpu-ffn"), "int", 0,
            "Keep the dense networks of the first N layers on the CPU.", least=0, metavar="N"),
    Keyword("swa_full", ("--swa-full",), "bool", False,
            "Layers with a sliding window keep all tokens in the cache.", CONTEXT,
            field="context.swa_full"),
    Keyword("kv_unified", ("-kvu", "--kv-unified"), "bool", None,
            "Share one cache among all sequences, instead of an equal part for each.", ASKED,
            field="context.kv_unified", plans=True),
    Keyword("program", ("--for",), "program", None,
            "Plan for a context as this program of llama.cpp makes it (llama-bench, ...): the "
            "defaults of -c, -b, -ub, -np and -kvu, and room for its logits.", ASKED,
            words=dict.fromkeys(PROGRAMS, 0), plans=True),
    Keyword("n_outputs_max", (), "int", None, "", least=0, field="context.n_outputs_max"),
    Keyword("progress", (), "function", None, ""),
)  # fmt: skip
BY_NAME = {option.name: option for option in TABLE}
DEFAULTS: dict[str, Any] = {option.name: option.default for option in TABLE}

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1  # the numbers that llama.cpp can hold

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


# As llama.cpp's command line has them.
_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def checked(asked: Mapping[str, Any]) -> Options:
    """Checks the arguments of `load`, given by name. Raises `ModelError` and TypeError."""
    from ..boundary.arguments import check_function
    from ..tensors.tensor import type_of
    from .overrides import override_pairs

    n_ubatch, asked = asked["n_ubatch"], with_defaults(asked)
    if isinstance(asked["flash_attn"], bool):
        asked["flash_attn"] = "on" if asked["flash_attn"] else "off"
    _check_numbers(asked)
    if n_ubatch is not None and n_ubatch > asked["n_batch"]:
        log.warning(
            "n_ubatch=%d (-ub) is more than n_batch=%d (-b): as in llama.cpp it becomes %d",
            n_ubatch, asked["n_batch"], asked["n_batch"],
        )  # fmt: skip
    for option in TABLE:
        value = asked[option.name]
        if option.kind == "word" and not (isinstance(value, str) and value in option.words):
            raise ModelError(f"{option.name}={value!r}: expected one of {', '.join(option.words)}")
        if option.kind == "bool" and not isinstance(value, bool):
            raise TypeError(f"{option.name}={value!r}: expected True or False")
    asked["tensor_overrides"] = tuple(override_pairs(asked["tensor_overrides"]))
    check_function(asked["progress"], "(share)", "progress")
    for name in ("type_k", "type_v"):
        try:
            asked[name] = type_of(asked[name])
        except ArgumentError as error:
            raise ArgumentError(f"{name}={asked[name]!r}: {error}") from None
        if (given := asked[name].name.lower()) not in _CACHE_TYPES:
            types = ", ".join(_CACHE_TYPES)
            raise ModelError(f"{name}={given}: a cache can have the types {types}")
    asked["flash_attn"] = _with_quantised_v(asked["flash_attn"], asked["type_v"])
    return Options(**asked)


def _check_numbers(asked: Mapping[str, Any]) -> None:
    from ..boundary.arguments import SIZE_MAX, integer

    layers = asked["n_gpu_layers"]
    if isinstance(layers, str):
        raise TypeError(f"n_gpu_layers={layers!r}: expected a number of layers; -1 means all")
    for option in TABLE:
        name, value = option.name, asked[option.name]
        if option.kind not in ("int", "layers") or (name == "n_threads" and value is None):
            continue
        least = _INT_MIN if option.least is None else option.least
        if integer(name, value, -SIZE_MAX) < least:
            raise ModelError(f"{name}={value}: expected at least {least}")
        if value > _INT_MAX:
            raise ModelError(f"{name}={value}: expected at most {_INT_MAX:,}")
    if asked["n_seq_max"] > MAX_SEQ:
        raise ModelError(f"n_seq_max={asked['n_seq_max']}: expected at most {MAX_SEQ} sequences")


def _with_quantised_v(flash_attn: str, type_v: Type) -> str:
    """`flash_attn`, but with a quantised V "auto" becomes "on", as in llama.cpp: attention without
    flash cannot read a quantised V."""
    from ..boundary.ffi import lib

    if not lib.ggml_is_quantized(type_v):
        return flash_attn
    if flash_attn == "off":
        raise ModelError(
            f"type_v={type_v.name.lower()}: a quantised V cache needs flash attention. Use "
            'flash_attn="on" (-fa) or type_v="f16" (-ctv)'
        )
    return "on"

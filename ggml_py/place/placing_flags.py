"""The options of llama.cpp that decide where a model runs, as `llama.open` takes them and as its
programs do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..llama.options import BY_NAME, TABLE
from ..llama.overrides import cpu_overrides

ATTENTION, DENSE = "attention", "dense"
_HOSTS = ("CPU", "BLAS")
# The tensors of a layer that are moved together, as part of a pattern of -ot.
GROUPS = {ATTENTION: r"attn_", DENSE: r"ffn_(up|down|gate)\."}


@dataclass(frozen=True)
class Flags:
    """One way to run a model. A command line omits flags with llama.cpp's default.

    `groups` has the groups of tensors of the first layers that stay on the CPU:
    (("dense", 8),) stands for an -ot of the dense networks of layers 0 to 7.
    """

    n_threads: int | None = None
    n_gpu_layers: int = -1  # -1: all
    n_cpu_moe: int = 0
    groups: tuple[tuple[str, int], ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()  # as they were given, behind those of `groups`
    tensor_split: tuple[float, ...] = ()
    split_mode: str = "layer"
    main_gpu: int = 0
    n_batch: int | None = None
    n_ubatch: int | None = None
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    op_offload: bool = True
    offload_kqv: bool = True
    cpu_moe: bool = False
    n_cpu_ffn: int = 0
    others: tuple[tuple[str, Any], ...] = ()  # options that stay as they are, by name

    @staticmethod
    def of(options: dict[str, Any]) -> Flags:
        """From the options of `llama.open`. Raises TypeError for others."""
        options = dict(options)
        others = {option.name: options.pop(option.name) for option in _OTHERS
                  if option.name in options}  # fmt: skip
        options["others"] = tuple(
            (name, value) for name, value in others.items() if not BY_NAME[name].is_default(value)
        )
        if "tensor_overrides" in options:
            options["overrides"] = tuple(map(tuple, options.pop("tensor_overrides") or ()))
        if "tensor_split" in options:
            options["tensor_split"] = tuple(options["tensor_split"] or ())
        if isinstance(options.get("flash_attn"), bool):
            options["flash_attn"] = "on" if options["flash_attn"] else "off"
        for name in ("type_k", "type_v"):
            if name in options:
                options[name] = str(getattr(options[name], "name", options[name])).lower()
        return Flags(**options)

    def but(self, **changes: Any) -> Flags:
        """The same with changes."""
        return replace(self, **changes)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `llama.open`."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        overrides = (*self.patterns(), *found.pop("overrides"))
        del found["groups"], found["others"]
        others = {option.name: option.default for option in _OTHERS} | dict(self.others)
        return {**found, **others, "tensor_overrides": overrides or None,
                "tensor_split": self.tensor_split or None}  # fmt: skip

    def patterns(self) -> Iterator[tuple[str, str]]:
        """The overrides that `groups` stand for."""
        for group, n in self.groups:
            layers = "|".join(map(str, range(n)))
            yield rf"blk\.({layers})\.{GROUPS[group]}", "CPU"

    def words(self, program: str, n_layer: int) -> list[str]:
        """The options on the command line of llama-server ("server") or llama-bench ("bench").
        llama-bench separates overrides by ";" and parts by "/"."""
        bench = program == "bench"
        pairs = [*self.patterns(), *self.overrides]
        others = dict(self.others)
        if bench:  # which lacks -cmoe and -ncffn
            pairs += cpu_overrides(self.cpu_moe, 0, self.n_cpu_ffn, n_layer)
        words: list[str] = []
        if pairs:  # the first match counts, and -ncmoe and others stand for patterns, too
            joined = (";" if bench else ",").join(f"{pattern}={where}" for pattern, where in pairs)
            words += ["-ot", joined]
        for option in TABLE:
            value = others.get(option.name, getattr(self, option.name, None))
            if not option.in_line or value == _DEFAULTS.get(option.name):
                continue
            if not bench:
                words += option.line(value)
            elif option.bench:
                words += option.bench_line(value)
        return words

    def __str__(self) -> str:
        return shlex.join(self.words("server", 0)) or "llama.cpp's defaults"


_DEFAULTS = {f.name: f.default for f in fields(Flags)}
_OTHERS = [option for option in TABLE if option.is_flag and option.name not in _DEFAULTS]


def server_line(
    model: str, flags: Flags, n_ctx: int, n_parallel: int, devices: Sequence[str], n_layer: int
) -> str:
    """The command line of llama-server. Nothing is left to its --fit: what was not given would be
    chosen again."""
    words = ["llama-server", "-m", model, "-c", str(n_ctx), "-np", str(n_parallel), "--fit", "off"]
    words += device_words(devices, "server")
    return shlex.join([*words, *flags.words("server", n_layer)])


def device_words(devices: Sequence[str], program: str) -> list[str]:
    """The words that choose the devices, in this order: their names, servers as "rpc:HOST:PORT".
    A simulated device stands for one that the program finds by itself: then nothing is chosen."""
    servers = [name.removeprefix("rpc:") for name in devices if name.startswith("rpc:")]
    words = ["--rpc", ",".join(servers)] if servers else []
    if any(name.startswith("sim:") for name in devices):
        return words
    # Servers get their numbers in the order in which they are named.
    numbers = iter(range(len(servers)))
    names = [f"RPC{next(numbers)}" if name.startswith("rpc:") else name for name in devices]
    gpus = [name for name in names if name.partition(",")[0].upper() not in _HOSTS]
    return [*words, "-dev", ("/" if program == "bench" else ",").join(gpus) or "none"]

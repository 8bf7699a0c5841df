"""Random set-ups: a model, cards with their memory, and llama.cpp's flags.

Models are headers: of real sizes, from tests/threads, and small ones of the same architectures.
"""

from __future__ import annotations

import math
import random
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ggml_py import llama
from ggml_py.backends.device import Device
from ggml_py.boundary.ffi import lib
from ggml_py.llama import LlamaModel
from ggml_py.llama.overrides import parse_overrides
from ggml_py.sim.text import sim_device_of
from ggml_py.tensors.convert import type_of

REPO = Path(__file__).resolve().parent.parent
sys.path.append(str(REPO))
from tests.support.real_headers import Spec  # noqa: E402
from tests.support.reports import REPORTS  # noqa: E402

MIB = 1 << 20
# Without the largest, whose plans take a second each.
REAL = tuple({report.model: None for report in REPORTS if report.model.n_expert <= 128})
# Cards of one machine. "" supports everything, and nobody knows its speed.
FAMILIES = (("rtx4090", "rtx3090", "t4"), ("rx7900xtx",), ("vulkan",), ("",))
RESERVE = 1 << 30  # bytes that stay free on each device, as for --fit
Flags = dict[str, str]  # option: value; "" for a switch
SWITCHES = ("-cmoe", "-nkvo", "-nr", "--swa-full", "-kvo", "--no-op-offload")
OPTIONS = (
    "-ngl", "-ncmoe", "-ncffn", "-ot", "-c", "-b", "-ub", "-fa", "-ctk", "-ctv", "-ts", "-sm",
    "-mg", "-lm",
)  # fmt: skip
_NAMES = {
    "-ncmoe": "n_cpu_moe", "-ncffn": "n_cpu_ffn", "-c": "n_ctx", "-b": "n_batch", "-ub": "n_ubatch",
    "-mg": "main_gpu", "-fa": "flash_attn", "-ctk": "type_k", "-ctv": "type_v", "-sm": "split_mode",
    "-lm": "load_mode",
}  # fmt: skip


@dataclass(frozen=True)
class Card:
    """A simulated GPU."""

    name: str
    profile: str
    memory: int  # bytes
    max_size: int = 0  # bytes of the largest buffer; 0: no limit

    @property
    def text(self) -> str:
        """As -d takes it."""
        settings = [f"sim:{self.name}"]
        if self.profile:
            settings.append(f"profile={self.profile}")
        settings.append(f"memory={self.memory}")
        if self.max_size:
            settings.append(f"max_size={self.max_size}")
        return ",".join(settings)


@dataclass(frozen=True)
class Setup:
    """A model, cards, flags, and the number of tokens in the graph."""

    spec: Spec
    cards: tuple[Card, ...]
    flags: tuple[tuple[str, str], ...]
    n_tokens: int

    def __str__(self) -> str:
        cards = " ".join(f"-d {card.text}" for card in self.cards)
        size = f"{self.spec.arch} of {weights_of(self.spec) / MIB:.0f} MiB"
        return f"{size}: {cards} -d CPU {' '.join(self.words)} --n-tokens {self.n_tokens}"

    @property
    def reserve(self) -> int:
        """Bytes that a recommendation leaves free on each card."""
        return int(dict(self.flags)["-fitt"]) * MIB if "-fitt" in dict(self.flags) else RESERVE

    @property
    def words(self) -> list[str]:
        return [word for option, value in self.flags for word in (option, value) if word]

    def changed(self, changes: dict[str, str | None]) -> Setup:
        """With other flags; None leaves an option out."""
        flags = dict(self.flags) | {k: v for k, v in changes.items() if v is not None}
        for option, value in changes.items():
            if value is None:
                flags.pop(option, None)
        if "-kvo" in changes:
            flags.pop("-nkvo", None)
        return replace(self, flags=tuple(flags.items()))

    def options(self) -> dict[str, Any]:
        """As `llama.open` takes them."""
        found: dict[str, Any] = {"n_gpu_layers": -1}
        for option, value in self.flags:
            if option == "-ngl":
                found["n_gpu_layers"] = -1 if value in ("all", "-1") else int(value)
            elif option == "-ot":
                found["tensor_overrides"] = parse_overrides(value)
            elif option == "-ts":
                found["tensor_split"] = [float(part) for part in value.split(",")]
            elif option in _NAMES:
                found[_NAMES[option]] = int(value) if value.isdigit() else value
        given = dict(self.flags)
        found["cpu_moe"], found["offload_kqv"] = "-cmoe" in given, "-nkvo" not in given
        found["op_offload"] = "--no-op-offload" not in given
        found["swa_full"], found["repack"] = "--swa-full" in given, "-nr" not in given
        return found

    @contextmanager
    def opened(self, path: Path, options: dict[str, Any]) -> Iterator[LlamaModel]:
        """The model, planned by libllama on these cards. Raises `GgmlError`."""
        with ExitStack() as stack:
            devices: list[Device | str] = [
                stack.enter_context(sim_device_of(card.text.removeprefix("sim:")))
                for card in self.cards
            ]
            yield stack.enter_context(llama.open(path, devices=[*devices, "CPU"], **options))


def change_of(text: str) -> dict[str, str | None] | None:
    """The flags that a recommendation names: "-ngl all without -ot". None if it is no such list."""
    found: dict[str, str | None] = {}
    words = shlex.split(text.replace(", ", " "))
    while words:
        word = words.pop(0)
        if word == "without" and words and {*words} <= {*OPTIONS, *SWITCHES}:
            found |= dict.fromkeys(words)
            words = []
        elif word in SWITCHES:
            found[word] = ""
        elif word in OPTIONS and words:
            before = found.get(word) if word == "-ot" else None  # the only one that repeats
            found[word] = ",".join(filter(None, (before, words.pop(0))))
        else:
            return None
    return found or None


def left(setup: Setup, model: LlamaModel) -> dict[str, int]:
    """Bytes that stay free on each card."""
    return {
        card.name: card.memory - sum(r.nbytes for r in model.memory if r.device == card.name)
        for card in setup.cards
    }


def too_large(setup: Setup, model: LlamaModel) -> str:
    """A tensor that is larger than its card's largest buffer; "" if there is none."""
    limits = {c.name: c.max_size for c in setup.cards if c.max_size}
    if not limits:
        return ""
    for plan in (model.reserved_plan(), model.reserved_plan(model.n_seq_max)):
        capture = plan.capture
        sizes = [
            (t.name, t.nbytes, capture.bufts[capture.buffers[t.buffer].buft].name)
            for t in capture.tensors if t.buffer >= 0 and t.view_src < 0
        ]  # fmt: skip
        names = dict(enumerate(t.name for t in capture.tensors))  # copies have later ids
        sizes += [
            (names.get(block.tensor, "a copy"), block.size, buffer.name)
            for buffer in plan.memory.buffers for block in buffer.blocks
        ]  # fmt: skip
        for name, size, where in sizes:
            if size > limits.get(where, size):
                return f"{name} ({size:,} bytes) is larger than {where}'s largest buffer"
    return ""


def weights_of(spec: Spec) -> int:
    """Bytes of a model's tensors."""
    return sum(
        lib.ggml_row_size(type_of(type_), ne[0]) * math.prod(ne[1:])
        for _name, type_, ne in spec.tensors()
    )


# --- random ones


def drawn(seed: int) -> Setup:
    """The set-up of a seed."""
    rng = random.Random(seed)
    spec = rng.choice(REAL) if rng.random() < 0.1 else _small(rng)
    cards = _cards(rng, weights_of(spec))
    flags = _flags(rng, spec, cards)
    if weights_of(spec) < RESERVE:  # cards of some MiB have no GiB to keep free
        flags["-fitt"] = "0"
    n_ubatch = int(flags["-ub"])
    n_tokens = 1 if rng.random() < 0.6 else rng.choice([n for n in (8, 64, 512) if n <= n_ubatch])
    return Setup(spec, cards, tuple(flags.items()), n_tokens)


def _small(rng: random.Random) -> Spec:
    arch = rng.choice(("llama", "qwen2", "qwen3", "qwen3moe", "gemma3"))
    n_head = rng.choice((4, 8))
    moe = {"n_expert": 8, "n_expert_used": 2, "n_ff_exp": 256} if arch == "qwen3moe" else {}
    return Spec(
        arch, n_layer=rng.randint(2, 12), n_embd=n_head * 64, n_head=n_head,
        n_head_kv=rng.choice((n_head, n_head // 2)), n_ff=n_head * 128,
        n_vocab=rng.choice((512, 4096)), n_ctx_train=32768, freq_base=1e4,
        quantised=rng.choice(("q4_0", "q8_0", "f16", "q4_K_M")), n_embd_head=64,
        n_swa=256 if arch == "gemma3" else 0, tied=rng.random() < 0.3, **moe,
    )  # fmt: skip


def _cards(rng: random.Random, weights: int) -> tuple[Card, ...]:
    n = rng.choice((1, 1, 1, 2, 2, 3))
    room = weights * rng.uniform(0.4, 2.5)  # of all cards together
    shares, family = [rng.choice((1, 1, 2, 3)) for _ in range(n)], rng.choice(FAMILIES)
    found = []
    for i, share in enumerate(shares):
        memory = max(int(room * share / sum(shares)) // MIB, 1) * MIB
        memory += (
            rng.choice((0, 256, 1024)) * MIB
            if weights > 512 * MIB
            else rng.choice((2, 8, 64)) * MIB
        )
        max_size = max(memory // rng.choice((4, 16)), MIB) if rng.random() < 0.15 else 0
        found.append(Card(f"gpu{i}", rng.choice(family), memory, max_size))
    return tuple(found)


def _flags(rng: random.Random, spec: Spec, cards: tuple[Card, ...]) -> Flags:
    n, some = spec.n_layer, rng.random
    flags = {"-ngl": rng.choice(("all", "all", str(n), str(rng.randint(0, n)), "0"))}
    if spec.n_expert and some() < 0.5:
        flags |= {"-cmoe": ""} if some() < 0.3 else {"-ncmoe": str(rng.randint(1, n))}
    if some() < 0.2:
        experts = "exps=CPU" if spec.n_expert else "ffn_up=CPU"
        names = (experts, "ffn=CPU", r"blk\.[0-3]\..*=CPU", f"attn={cards[-1].name}")
        flags["-ot"] = rng.choice(names)
    if some() < 0.2:
        flags["-nkvo"] = ""
    flags["-fa"] = rng.choice(("auto", "auto", "on", "off"))
    if some() < 0.3:
        flags["-ctk"] = rng.choice(("q8_0", "q4_0", "q4_1", "iq4_nl"))
        flags["-ctv"] = flags["-ctk"] if flags["-fa"] != "off" else "f16"
    flags["-c"] = str(rng.choice((512, 2048, 8192, 32768)))
    flags["-ub"] = str(rng.choice((64, 512, 512, 2048)))
    flags["-b"] = str(max(int(flags["-ub"]), 512))
    if len(cards) > 1:
        how = some()
        if how < 0.3:
            flags["-ts"] = ",".join(str(rng.randint(0, 4)) for _ in cards)
            if not re.search("[1-9]", flags["-ts"]):
                flags["-ts"] = ",".join("1" for _ in cards)
        elif how < 0.45:
            flags |= {"-sm": "none", "-mg": str(rng.randrange(len(cards)))}
    return flags


def single_changes(setup: Setup) -> Iterator[dict[str, str | None]]:
    """The fixed list that a plain search tries, one at a time."""
    given, n = dict(setup.flags), setup.spec.n_layer
    layers = {0, n // 4, n // 2, 3 * n // 4, n}
    for n_gpu_layers in (*sorted(layers), "all"):
        yield {"-ngl": str(n_gpu_layers)}
    for option in ("-ot", "-cmoe", "-ncmoe", "-nkvo", "-ts", "-sm", "-mg"):
        if option in given:
            yield {option: None}
    if setup.spec.n_expert:
        yield from ({"-ncmoe": str(k), "-cmoe": None} for k in sorted(layers - {0}))
    for how in ("on", "off"):
        yield {"-fa": how}
    for kind in ("f16", "q8_0") if "-ctk" in given else ():
        yield {"-ctk": kind, "-ctv": kind}
    if setup.n_tokens <= 512 and given["-ub"] != "512":
        yield {"-ub": "512"}
    if len(setup.cards) > 1 and "-sm" not in given:
        yield from ({"-sm": "none", "-mg": str(i), "-ts": None} for i in range(len(setup.cards)))

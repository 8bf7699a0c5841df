"""llama-bench's parameters. A parameter may have several values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeVar

import click

from ..shared.options import NO_AUTO

F = TypeVar("F", bound=Callable[..., Any])
_MOST = 10_000  # numbers in one range
_RANGE = re.compile(r"(-?\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
_FLASH_ATTN = {  # enum llama_flash_attn_type, and the words for it
    1: ("on", "enabled", "true", "1"),
    0: ("off", "disabled", "false", "0"),
    -1: ("auto", "-1"),
}


class _Several(click.ParamType):  # type: ignore[type-arg]
    """Values separated by commas, as a list."""

    def convert(self, value: Any, param: Any, ctx: Any) -> list[Any]:
        """The list; usage error for anything else."""
        if isinstance(value, list):
            return value
        return [found for part in value.split(",") for found in self.values(part, param, ctx)]

    def values(self, part: str, param: Any, ctx: Any) -> Sequence[Any]:
        """The values that one part between commas stands for."""
        raise NotImplementedError


class Numbers(_Several):
    """1,2,3, and ranges: 1-3 (every number), 1-9+2 (in steps of 2), 1-64*2 (doubling)."""

    name = "numbers"

    def __init__(self, least: int) -> None:
        self._least = least

    def values(self, part: str, param: Any, ctx: Any) -> Sequence[Any]:
        """A number, or the numbers of a range."""
        found = _RANGE.fullmatch(part)
        numbers = _numbers(*found.groups()) if found else ()
        if not numbers or numbers[0] < self._least or numbers[_MOST:]:
            self.fail(
                f"{part!r}: expected whole numbers from {self._least} on, separated by commas; "
                "ranges are first-last, first-last+step or first-last*factor, of at most "
                f"{_MOST} numbers",
                param,
                ctx,
            )
        return numbers


def _numbers(first: str, last: str | None, op: str | None, step: str | None) -> Sequence[int]:
    """The numbers of a range; none if it would not end."""
    start, stop, by = int(first), int(last or first) + 1, int(step or 1)
    if op != "*":
        return range(start, stop, by) if by else ()
    if by < 2 or start < 1:
        return ()
    return [start * by**i for i in range(64) if start * by**i < stop]


class Depths(Numbers):
    """Numbers of tokens; in other verbs -d is a device."""

    def values(self, part: str, param: Any, ctx: Any) -> Sequence[Any]:
        """A number, or the numbers of a range."""
        if not part[:1].isdecimal():
            self.fail(
                f"{part!r}: -d is a depth here, as in llama-bench: a number of tokens. Give "
                "devices with -dev",
                param,
                ctx,
            )
        return super().values(part, param, ctx)


class LayerNumbers(Numbers):
    """Numbers of layers; "all" is -1, as in other verbs."""

    def values(self, part: str, param: Any, ctx: Any) -> Sequence[Any]:
        """A number, the numbers of a range, or -1 for "all"."""
        if part == "auto":
            self.fail(NO_AUTO, param, ctx)
        return [-1] if part == "all" else super().values(part, param, ctx)


class Words(_Several):
    """Each value is one of `known`, or any text if that is None; `name` says what they are."""

    def __init__(self, name: str, known: Mapping[str, Any] | None = None) -> None:
        self.name, self._known = name, known

    def values(self, part: str, param: Any, ctx: Any) -> Sequence[Any]:
        """The value that the word stands for."""
        if self._known is None and part:
            return [part]
        if not self._known or part not in self._known:
            known = ", ".join(self._known) if self._known else self.name
            self.fail(f"{part!r}: expected one of {known}", param, ctx)
        return [self._known[part]]


class Overrides(_Several):
    """Sets of regex=name;regex=name, unparsed; "none" or nothing means no overrides."""

    name = "regex=name;..."

    def values(self, part: str, param: Any, ctx: Any) -> Sequence[Any]:
        """The text itself."""
        return [part or "none"]


class TensorSplits(_Several):
    """Numbers separated by /, as llama-bench prints them: 3/1 is 3.00/1.00."""

    name = "n0/n1/..."

    def values(self, part: str, param: Any, ctx: Any) -> Sequence[Any]:
        """The split as one text."""
        try:
            numbers = [float(number) for number in part.split("/")]
        except ValueError:
            self.fail(f"{part!r}: expected numbers separated by /, like 3/1", param, ctx)
        while len(numbers) > 1 and not numbers[-1]:
            numbers.pop()
        return ["/".join(f"{number:.2f}" for number in numbers)]


def _same(*words: str) -> dict[str, str]:
    return {word: word for word in words}


_FLAG = Words("0|1", {"0": False, "1": True})


@dataclass(frozen=True)
class Param:
    """One parameter. `field` is its key in results. `default` is its value if it is not given,
    written as an argument; None means the number of cores."""

    field: str
    flags: tuple[str, ...]
    type: _Several
    default: str | None
    help: str

    @property
    def usual(self) -> list[Any]:
        """The values if it is not given."""
        if self.default is None:
            from ...backends.device import default_n_threads

            return [default_n_threads()]
        found: list[Any] = self.type.convert(self.default, None, None)
        return found


TEST_PARAMS: Final = (
    Param("n_prompt", ("-p", "--n-prompt"), Numbers(0), "512",
          "Tokens in the prompt; 0: no prompt is timed."),
    Param("n_gen", ("-n", "--n-gen"), Numbers(0), "128",
          "Tokens evaluated one by one; 0: none are timed."),
    Param("n_depth", ("-d", "--n-depth"), Depths(0), "0", "Tokens already in the cache."),
)  # fmt: skip
# From the outermost loop to the innermost, as in llama-bench. The tests are the innermost loop.
PARAMS: Final = (
    Param("n_gpu_layers", ("-ngl", "--n-gpu-layers"), LayerNumbers(-1),
          "-1", "Layers whose weights go to the GPUs; -1 or all: all."),
    Param("n_cpu_moe", ("-ncmoe", "--n-cpu-moe"), Numbers(0), "0",
          "Keep the experts of the first N layers on the CPU."),
    Param("split_mode", ("-sm", "--split-mode"), Words("none|layer", _same("none", "layer")),
          "layer", "Whether one GPU gets all layers, or several share them."),
    Param("load_mode", ("-lm", "--load-mode"), Words("modes", _same("auto", "mmap", "none")),
          "auto", "Whether the CPU's weights stay in the mapped file."),
    Param("main_gpu", ("-mg", "--main-gpu"), Numbers(0), "0",
          "Which GPU gets all layers, with -sm none."),
    Param("devices", ("-dev", "--device"), Words("names"), "auto",
          "Devices in priority order, separated by /; none: only the CPU; auto: all."),
    Param("tensor_split", ("-ts", "--tensor-split"), TensorSplits(), "0",
          "Share of the layers that each GPU gets, like 3/1."),
    Param("tensor_buft_overrides", ("-ot", "--override-tensor"), Overrides(), "none",
          "Put weights whose names match the regex on a device or in a buffer type."),
    Param("no_host", ("--no-host",), _FLAG, "0",
          "Do not put the CPU's weights into a GPU's host memory."),
    Param("repack", ("--repack",), _FLAG, "1",
          "Repack weights for the CPU's kernels, if it has layouts for that."),
    Param("no_op_offload", ("-nopo", "--no-op-offload"), Words("0|1", {"0": 0, "1": 1}), "0",
          "Give GPUs no ops whose weights are on the CPU."),
    Param("n_batch", ("-b", "--batch-size"), Numbers(1), "2048",
          "Tokens that one evaluation takes."),
    Param("n_ubatch", ("-ub", "--ubatch-size"), Numbers(1), "512",
          "Tokens that one graph takes."),
    Param("type_k", ("-ctk", "--cache-type-k"), Words("types"), "f16", "Type of the K cache."),
    Param("type_v", ("-ctv", "--cache-type-v"), Words("types"), "f16", "Type of the V cache."),
    Param("no_kv_offload", ("-nkvo", "--no-kv-offload"), _FLAG, "0",
          "Keep the KV cache on the CPU."),
    Param("flash_attn", ("-fa", "--flash-attn"),
          Words("on|off|auto", {w: n for n, words in _FLASH_ATTN.items() for w in words}), "auto",
          "Compute attention in one op."),
    Param("n_threads", ("-t", "--threads"), Numbers(1), None,
          "Threads. Default: the cores this process may use."),
)  # fmt: skip


def _devices(words: str) -> tuple[str, ...]:
    from ...backends.device import devices

    if words == "auto":
        return tuple(d.name for d in devices())
    return ("CPU",) if words == "none" else tuple(words.split("/"))


def _overrides(words: str) -> list[tuple[str, str]]:
    from ...llama.overrides import parse_overrides

    texts = () if words == "none" else words.split(";")
    return [pair for text in texts for pair in parse_overrides(text)]


@dataclass(frozen=True)
class Test:
    """What one test times: a prompt, generated tokens, or both, after `n_depth` other tokens."""

    n_prompt: int
    n_gen: int
    n_depth: int

    @property
    def n_tokens(self) -> int:
        """The tokens that are timed."""
        return self.n_prompt + self.n_gen


@dataclass(frozen=True)
class Setup:
    """A model with one value of each parameter, which one `load` takes, and its tests."""

    model: str
    values: Mapping[str, Any]
    tests: tuple[Test, ...]

    def load_options(self) -> dict[str, Any]:
        """The arguments of `models.load`, with a context for the largest test."""
        v = dict(self.values)
        parts = tuple(float(part) for part in v.pop("tensor_split").split("/"))
        changed = {
            "devices": _devices(v.pop("devices")),
            "tensor_split": parts if any(parts) else None,
            "tensor_overrides": _overrides(v.pop("tensor_buft_overrides")),
            "flash_attn": _FLASH_ATTN[v.pop("flash_attn")][0],
            "op_offload": not v.pop("no_op_offload"),
            "offload_kqv": not v.pop("no_kv_offload"),
            "n_ctx": max(test.n_tokens + test.n_depth for test in self.tests),
        }
        return v | changed


def param_options(function: F) -> F:
    """Adds a repeatable option for each parameter; the command gets lists by `field`."""
    for param in reversed((*TEST_PARAMS, *PARAMS)):
        words = param.help + (f"  [default: {param.default}]" if param.default else "")
        option = click.option(*param.flags, param.field, type=param.type, multiple=True, help=words)
        function = option(function)
    return function


def values_of(given: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[Any]]:
    """All values of each parameter, by `field`, from the lists that its options gave."""
    return {
        param.field: [value for values in given[param.field] for value in values] or param.usual
        for param in (*TEST_PARAMS, *PARAMS)
    }


def setups(
    models: Sequence[str], both: Sequence[tuple[int, int]], given: Mapping[str, Sequence[Any]]
) -> Iterator[Setup]:
    """All combinations, in llama-bench's order. `both` are prompts with tokens after them."""
    pairs = [*((n, 0) for n in given["n_prompt"]), *((0, n) for n in given["n_gen"]), *both]
    tests = [Test(*pair, depth) for depth in given["n_depth"] for pair in pairs if any(pair)]
    if not tests:
        raise click.UsageError("nothing to time: -p, -n and -pg are all 0")
    for model, *values in product(models, *(given[param.field] for param in PARAMS)):
        named = {param.field: value for param, value in zip(PARAMS, values, strict=True)}
        yield Setup(model, named, tuple(tests))

"""Command lines of llama-bench, as the options of our verbs.

C++: parse_cmd_params of tools/llama-bench/llama-bench.cpp
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ArgumentError
from .options import TABLE, Keyword

_MODEL, _RPC = ("-m", "--model"), ("-rpc", "--rpc")
_SIZES = {
    "-p": "n_prompt", "--n-prompt": "n_prompt", "-n": "n_gen", "--n-gen": "n_gen",
    "-d": "n_depth", "--n-depth": "n_depth",
}  # fmt: skip
_BOTH = "-pg"  # a prompt and then a generation
_BATCH = 2048  # its default, which is not that of the verbs
_USUAL = {"n_prompt": 512, "n_gen": 128, "n_depth": 0}
_ALONE = ("-v", "--verbose", "--progress", "--no-warmup", "--offline")  # without a value
# What changes neither a graph nor where it runs.
_OTHERS = (
    "-r", "--repetitions", "-o", "--output", "-oe", "--output-err", "--prio", "--delay", "--poll",
    "-C", "--cpu-mask", "--cpu-strict", "--numa",
)  # fmt: skip
_RANGE = re.compile(r"(\d+)-\d+([+*]\d+)?")  # of which the first number is looked at
_IN_ONE = {"devices": "/", "parts": "/", "overrides": ";"}  # what separates parts of a value
_WORDS = {"1": "on", "0": "off"}


class BenchLine(NamedTuple):
    """What a command line of llama-bench asks for."""

    models: list[str]
    words: list[str]  # for a verb
    left_out: list[str]  # of lists of values, all but the first
    tests: list[str]  # words about what it measures, and how often, as they were given


def read_bench_line(words: Sequence[str]) -> BenchLine:
    """Reads the words behind "llama-bench". Of several values of an option the first counts, as
    there is one graph to look at. Its context is as large as the largest of its tests needs.

    Raises `ArgumentError` for an option that is not known here, or has no value.
    """
    sizes, models, left_out = dict(_USUAL), list[str](), list[str]()
    own, seen, tests = ["--for", "bench"], set[str](), list[str]()
    rest = iter(words)
    for word in rest:
        flag = word.replace("_", "-") if word.startswith("--") else word
        if flag in _ALONE:
            tests.append(word)
            continue
        option = next((one for one in TABLE if flag in _flags(one)), None)
        if option is None and flag not in (*_MODEL, *_RPC, *_SIZES, *_OTHERS, _BOTH):
            raise ArgumentError(
                f"llama-bench: {word}: cannot be looked at here; `ggml-py bench` runs the command"
            )
        value = next(rest, None)
        if value is None:
            raise ArgumentError(f"llama-bench: {word}: expected a value behind it")
        if flag in (*_OTHERS, *_SIZES, _BOTH):
            tests += [word, value]
        if flag in _OTHERS:
            continue
        if flag == _BOTH:
            both = [_number(word, number) for number in value.split(",")]
            sizes["both"] = sum(both)
            continue
        first, *others = value.split(",")
        if _RANGE.fullmatch(first):
            others, first = [value], first.partition("-")[0]
        what = option.name if option and flag not in _SIZES else _SIZES.get(flag, flag)
        if what in seen:  # a second value of a list
            left_out.append(f"{word} {value}")
            continue
        seen.add(what)
        if others:
            left_out.append(f"{word} {','.join(others)}")
        if flag in _MODEL:
            models.append(first)
        elif flag in _SIZES:
            sizes[_SIZES[flag]] = _number(word, first)
        elif flag in _RPC:
            own += ["-d", f"rpc:{first}"]
        elif option is not None:
            own += _own(option, word, first)
    most = max(sizes["n_prompt"], sizes["n_gen"], sizes.get("both", 1))
    n_ctx = sizes["n_depth"] + most
    usual = [] if "n_batch" in seen else ["-b", str(_BATCH)]
    return BenchLine(models, [*own, *usual, "-c", str(n_ctx)], left_out, tests)


def _flags(option: Keyword) -> tuple[str, ...]:
    """The flags that llama-bench has for it, too."""
    if not option.bench and option.name not in ("devices", "tensor_overrides"):
        return ()
    long = [flag for flag in (*option.flags, *option.off) if flag.startswith("--")]
    return (option.bench, *long, *(option.flags if not option.bench else ()))


def _own(option: Keyword, word: str, value: str) -> list[str]:
    """The words of a verb for a value of llama-bench."""
    if option.kind == "bool":
        if value not in _WORDS:
            raise ArgumentError(f"llama-bench: {word} {value}: expected 0 or 1")
        return option.line((value == "1") != option.bench_off)
    if option.name == "flash_attn":
        value = _WORDS.get(value, value)
    return [option.flags[0], value.replace(_IN_ONE.get(option.kind, ","), ",")]


def _number(word: str, text: str) -> int:
    """A size; of a range ("128-512*2") the first one."""
    first = text.partition("-")[0]
    if not first.isdecimal():
        raise ArgumentError(f"llama-bench: {word} {text}: expected a number of tokens")
    return int(first)

"""`ggml-py plan [-d DEVICE ...] -- llama-server -m MODEL ...`: the command line of a program of
llama.cpp, as upstream's own parser reads it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from ...errors import ArgumentError

if TYPE_CHECKING:
    from ...llama import LlamaModel

_META = "ggml_py.command_line"
_TESTS = "ggml_py.bench_tests"
_MODEL = ("-m", "--model")
_VARIABLE = "LLAMA_ARG_MODEL"  # as the programs read it


def keep_command_line(context: click.Context, args: list[str]) -> list[str]:
    """The arguments of a verb. A program's command line behind "--" is kept in `context`, and its
    model becomes the verb's."""
    if "--" not in args:
        return args
    own, words = args[: args.index("--")], args[args.index("--") + 1 :]
    is_llama = bool(words) and PurePath(words[0]).name.startswith("llama-")
    if not words[1:] and not (is_llama and not Path(words[0]).exists()):
        return args  # a file whose name begins with a hyphen
    if not is_llama:
        raise click.UsageError(
            f"{words[0]}: expected llama-server, llama-cli, llama-completion, llama-bench or "
            f"llama-perplexity behind --; `ggml-py record -- {words[0]} ...` takes other programs",
            context,
        )
    if PurePath(words[0]).name.removesuffix(".exe") == "llama-bench":
        return _of_bench(own, words[1:], context)
    models = models_in(words)
    models += [os.environ[_VARIABLE]] if not models and os.environ.get(_VARIABLE) else []
    if not models:
        raise click.UsageError(
            f"{words[0]}: expected -m MODEL in its command line (models are not downloaded)",
            context,
        )
    context.meta[_META] = words
    return [models[-1], *own]


def _of_bench(own: list[str], words: Sequence[str], context: click.Context) -> list[str]:
    """The arguments of a verb that a command line of llama-bench stands for."""
    from ...llama.bench_line import read_bench_line

    try:
        line = read_bench_line(words)
    except ArgumentError as error:
        raise click.UsageError(str(error), context) from None
    if not line.models:
        raise click.UsageError("llama-bench: expected -m MODEL in its command line", context)
    for text in line.left_out:
        click.echo(f"{text}: left out, the first value is looked at", err=True)
    context.meta[_TESTS] = line.tests
    return [line.models[0], *line.words, *own]


def models_in(words: Sequence[str]) -> list[str]:
    """The models that the command line of a program of llama.cpp names."""
    if not PurePath(words[0]).name.startswith("llama-"):
        return []
    return [value for flag, value in pairwise(words) if flag in _MODEL]


def command_line() -> list[str] | None:
    """The program's command line that the verb was given; None without one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_META)


def bench_tests() -> Sequence[str]:
    """What llama-bench measures, in the words of the command line that the verb was given."""
    context = click.get_current_context(silent=True)
    tests: Sequence[str] = () if context is None else context.meta.get(_TESTS, ())
    return tests


def open_it(source: str, words: Sequence[str], devices: Sequence[str], build: bool) -> LlamaModel:
    """The model as the program opens it. `source` is the file with its header."""
    from ...llama import open_command_line

    given = {i for i, word in enumerate(words[:-1]) if word in _MODEL}
    rest = [word for i, word in enumerate(words) if i not in given and i - 1 not in given]
    local = [rest[0], "-m", source, *rest[1:]]
    return open_command_line(local, devices=devices, build=build)

"""`ggml-py plan [-d DEVICE ...] -- llama-server -m MODEL ...`: the command line of a program of
llama.cpp, as upstream's own parser reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from ...llama import LlamaModel

_META = "ggml_py.command_line"
# What says more than the program's command line does: its machine, and the graph's shape.
_BESIDE = {"devices", "profile_set", "no_build", "n_tokens", "n_past", "n_seqs"}


def keep_command_line(context: click.Context, args: list[str]) -> list[str]:
    """The arguments of a verb. A program's command line behind "--" is kept in `context`, and its
    model becomes the verb's."""
    if "--" not in args:
        return args
    own, words = args[: args.index("--")], args[args.index("--") + 1 :]
    if not words or not PurePath(words[0]).name.startswith("llama-"):
        return args
    context.meta[_META] = words
    for i, word in enumerate(words[:-1]):
        if word in ("-m", "--model"):
            return [words[i + 1], *own]
    raise click.UsageError(
        f"{words[0]}: expected -m MODEL in its command line (models are not downloaded)", context
    )


def command_line() -> list[str] | None:
    """The program's command line that the verb was given; None without one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_META)


def check_alone() -> None:
    """Raises a usage error for options of the verb that belong into the program's command line."""
    from .options import ModelOption

    context = click.get_current_context()
    given = [
        p.opts[0]
        for p in context.command.params
        if isinstance(p, ModelOption)
        and p.name not in _BESIDE
        and context.get_parameter_source(p.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: give it in the command line behind --, as the program takes it; "
            "in front of -- are the devices (-d) and the graph's shape (-n, --n-past, -np)"
        )


def open_it(source: str, words: Sequence[str], devices: Sequence[str], build: bool) -> LlamaModel:
    """The model as the program opens it. `source` is the file with its header."""
    from ...llama import open_command_line

    i = next(i for i, word in enumerate(words) if word in ("-m", "--model"))
    local = [*words[: i + 1], source, *words[i + 2 :]]
    return open_command_line(local, devices=devices, build=build)

"""Messages of the library, with the flags of the running verb in place of Python's keywords."""

from __future__ import annotations

import ast
import logging
import re
import shlex
from collections.abc import Iterator, Mapping

import click

from ...llama.options import TABLE, flag_text
from .model_options import LOAD_OPTIONS, SHAPE_OPTIONS

_VALUE = r"""\{[^{}]*\}|'[^']*'|"[^"]*"|\([^()]*\)|-?\d{1,3}(?:,\d{3})+|[^\s:;,()]+"""
_LONGEST = 200  # characters of a value
_BEFORE = r"(?<![\w.-])"


def with_flags(text: str, command: click.Command | None) -> str:
    """The message with flags of `command`: "-ncmoe -1: expected …" for "n_cpu_moe=-1: expected …",
    "(-ub)" for "(n_ubatch, -ub)"."""
    verbs = [command, *getattr(command, "commands", {}).values()]
    own = [p for verb in verbs if verb for p in verb.params if isinstance(p, click.Option)]
    for name, option in _options_of_models({str(option.name): option for option in own}):
        if name in text:
            text = _without_flag(_replaced(text, name, option), name, option)
    for option in own:
        for flag in option.opts:
            if flag.startswith("--"):  # c=1 is no option
                text = _replaced(text, flag[2:].replace("-", "_"), option)
    return text


def _replaced(text: str, name: str, option: click.Option) -> str:
    """NAME=VALUE, and its flag where the message has it, too."""
    pattern = rf"{_BEFORE}{name}=({_VALUE}){_own(option)}?"
    return re.sub(pattern, lambda match: _words(option, match[1]), text)


def _without_flag(text: str, name: str, option: click.Option) -> str:
    """NAME beside its flag, in front of the message, or in parentheses."""
    alone = rf"{_BEFORE}{name}(?:{_own(option)}|(?=: )(?<=^{name})|(?=\))(?<=\({name}))"
    return re.sub(alone, option.opts[0], text)


def _own(option: click.Option) -> str:
    flags = "|".join(map(re.escape, (*option.opts, *option.secondary_opts)))
    return rf"(?: \((?:{flags})\)|, (?:{flags})(?![\w-]))"


def _options_of_models(own: Mapping[str, click.Option]) -> Iterator[tuple[str, click.Option]]:
    """The options of a model by keyword, as the verb has them."""
    called = {option.verb: option.name for option in TABLE if option.verb}
    for usual in (*LOAD_OPTIONS, *SHAPE_OPTIONS):
        name = str(usual.name)
        for keyword in dict.fromkeys((called.get(name, name), name)):
            yield keyword, own.get(keyword) or own.get(name) or usual


def _words(option: click.Option, text: str) -> str:
    """A keyword's value behind its flag."""
    try:
        if len(text) > _LONGEST:  # no value of ours: Python's parser has limits of its own
            raise ValueError
        value = ast.literal_eval(text.replace(",", "") if text[0] in "-123456789" else text)
    except (SyntaxError, ValueError):
        value = text
    if isinstance(value, bool) and option.is_flag:
        return (option.opts if value else option.secondary_opts or option.opts)[0]
    if isinstance(value, dict):
        value = ",".join(f"{pattern}={place}" for pattern, place in value.items())
    return f"{option.opts[0]} {shlex.quote(flag_text(value))}"


class FlagHandler(logging.Handler):
    """Prints warnings of the library on standard error, each once: verbs may open a model often."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.command: click.Command | None = None
        self._said = set[str]()

    def begin(self, command: click.Command | None) -> None:
        """Begins a command line of this verb: what an earlier one in this process said is said
        again."""
        self.command, self._said = command, set()

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one."""
        text = with_flags(record.getMessage(), self.command)
        if text not in self._said:
            self._said.add(text)
            click.echo(text, err=True)

"""A verb of the command line: its help by what options are for, and mistakes in its words."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click

from ...files.similar import meant
from .help_groups import GROUPS, group_of, is_usual

_FEW = 16  # options, that `--help` shows all of
_COLUMN = 26  # the widest option with its description beside it
_ALL = "ggml_py.help_all"
_VERBATIM = "\b\n"  # click's mark of lines that are not wrapped
_EXAMPLE = re.compile(r"ggml-py |eval ")
_NUMBERS = (type(click.INT), type(click.FLOAT))  # click's ranges are of these types, too
_NUMBER = re.compile(r"\b(INTEGER|FLOAT)( RANGE)?$")  # click's names of types
_HYPHEN = "\N{NON-BREAKING HYPHEN}"
# Spellings that llama.cpp has for something else.
_RENAMED = {"-n": "--n-tokens"}
_STATUS = "Exit status: "


class Told(NamedTuple):
    """A verb's docstring: paragraphs, what its exit status says, and command lines."""

    text: tuple[str, ...]
    status: tuple[str, ...]
    examples: tuple[str, ...]

    @classmethod
    def of(cls, command: click.Command) -> Told:
        """The parts of a command's docstring."""
        text, status, examples = list[str](), list[str](), list[str]()
        for part in inspect.cleandoc(command.help or "").split("\n\n"):
            lines = part.removeprefix(_VERBATIM).splitlines()
            if part.startswith(_VERBATIM) and _EXAMPLE.match(lines[0]):
                examples += lines
            elif part.startswith(_STATUS):
                status.append(part)
            else:
                text.append(part)
        return cls(tuple(text), tuple(status), tuple(examples))


class _WholeWords(click.HelpFormatter):
    """Breaks no line behind a hyphen, as click's does."""

    def write_text(self, text: str) -> None:
        """Like click's."""
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], *where: int, **more: int) -> None:
        """Like click's."""
        super().write_dl([(a, b.replace("-", _HYPHEN)) for a, b in rows], *where, **more)

    def getvalue(self) -> str:
        """Like click's."""
        return super().getvalue().replace(_HYPHEN, "-")


class _Context(click.Context):
    formatter_class = _WholeWords


class Verb(click.Command):
    """A verb. `--help` shows the usual options, `--help-all` all."""

    context_class = _Context

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Like click's, with --help-all."""
        return [*super().get_params(ctx), _HELP_ALL]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Like click's, which would read -nlg as -n lg."""
        if not ctx.ignore_unknown_options:
            self._check_flags(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def _check_flags(self, ctx: click.Context, args: Sequence[str]) -> None:
        known = {
            flag: option for option in self.get_params(ctx) if isinstance(option, click.Option)
            for flag in (*option.opts, *option.secondary_opts)
        }  # fmt: skip
        left = iter(args)
        for word in left:
            flag, equals, _value = word.partition("=")
            if word == "--" or (word[:1] != "-" and not ctx.allow_interspersed_args):
                return
            if flag not in known and _RENAMED.get(flag) in known:
                new = _RENAMED[flag]
                raise click.UsageError(
                    f"{flag} {next(left, '')}: expected {new} for the tokens of a graph: {flag} is "
                    "what llama.cpp generates", ctx,
                )  # fmt: skip
            if flag not in known and re.match("-[A-Za-z]{2}", flag):
                raise click.NoSuchOption(flag, possibilities=known, ctx=ctx)
            if flag in known and not equals and not known[flag].is_flag:
                for _ in range(known[flag].nargs):
                    next(left, None)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's, with the examples last."""
        told = Told.of(self)
        for part in (*told.text, *told.status):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(part)
        if told.examples:
            with formatter.section("Examples"):
                for line in told.examples:
                    formatter.write("".join(wrapped(line, formatter)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's, by what options are for, in one column."""
        sections = self.sections(ctx, everything=not self._left(ctx))
        terms = (term for rows in sections.values() for term, _help in rows)
        widest = max((len(term) for term in terms if len(term) <= _COLUMN), default=0)
        for group, rows in sections.items():
            with formatter.section(group):
                formatter.write_dl([(f"{t:{widest}}", h) for t, h in rows], col_max=widest)

    def sections(
        self, ctx: click.Context, everything: bool = True
    ) -> dict[str, list[tuple[str, str]]]:
        """Options with their help, by heading: all, or the usual ones."""
        options = (option for option in self.get_params(ctx) if isinstance(option, click.Option))
        found: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for option in options:
            record = option.get_help_record(ctx)
            if record is not None and (everything or is_usual(option)):
                terms, told = record
                found[group_of(option)].append((_NUMBER.sub("N", terms), told))
        return {group: rows for group, rows in found.items() if rows}

    def _left(self, ctx: click.Context) -> int:
        """How many options the help leaves out."""
        n_all, n_usual = (
            sum(map(len, self.sections(ctx, everything).values())) for everything in (True, False)
        )
        return 0 if ctx.meta.get(_ALL) or n_all <= _FEW else n_all - n_usual

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's, with the number of options that were left out."""
        super().format_epilog(ctx, formatter)
        if left := self._left(ctx):
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: {ctx.command_path} --help-all")


def wrapped(line: str, formatter: click.HelpFormatter) -> Iterator[str]:
    """An example, which a shell takes however many lines it has."""
    indent = " " * formatter.current_indent
    parts = textwrap.wrap(
        line, formatter.width - 2, initial_indent=indent, subsequent_indent=f"{indent}    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    yield " \\\n".join(parts) + "\n"


def _show_all(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show this message with all options.",
)  # fmt: skip


# --- mistakes


def usage_text(error: click.ClickException) -> str:
    """The text of an error in a command line: given, expected, and the help to read."""
    ctx = getattr(error, "ctx", None)
    if ctx is None or not isinstance(error, click.UsageError):
        return f"error: {error.format_message()}"
    command = ctx.command
    more = "--help-all" if isinstance(error, click.NoSuchOption) else "--help"
    more = more if isinstance(command, Verb) else "--help"
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    return f"error: {_said(error, ctx)}\nUsage: {usage}; see {ctx.command_path} {more}"


def _said(error: click.UsageError, ctx: click.Context) -> str:
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        return f"No such option '{error.option_name}'{meant(error.option_name, _flags(ctx))}"
    if isinstance(error, click.MissingParameter):
        lines = (e for e in Told.of(ctx.command).examples if e.startswith(ctx.command_path))
        return next((f"{text} For example: {line}" for line in lines), text)
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
        is_number = isinstance(error.param.type, _NUMBERS)
        more = f" {error.param.help}" if is_number and error.param.help else ""
        return f"{error.param.opts[0]}: {error.message}{more}"
    if isinstance(error, click.BadOptionUsage):
        for option in ctx.command.get_params(ctx):
            if error.option_name in option.opts and not getattr(option, "is_flag", True):
                return f"{error.option_name}: expected a value. {': '.join(_told(option, ctx))}"
    return text


def _flags(ctx: click.Context) -> list[str]:
    return [flag for o in ctx.command.get_params(ctx) for flag in (*o.opts, *o.secondary_opts)]


def _told(option: click.Parameter, ctx: click.Context) -> tuple[str, str]:
    return option.get_help_record(ctx) or ("", "")

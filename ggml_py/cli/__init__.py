"""The command line: ``ggml-py VERB``. One file per verb; each imports the library when it runs."""

from __future__ import annotations

import codecs
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import click

from ..errors import GgmlError
from ..files.foreign import visible
from ..files.similar import meant, one_of
from . import (
    bench,
    bisect,
    build,
    calibrate,
    check,
    ci,
    compare,
    corpus,
    cost,
    demo,
    devices,
    diff,
    diverge,
    explain,
    generate,
    memory,
    ops,
    place,
    plan,
    record,
    releases,
    sweep,
    trace,
    view,
    why_not,
)
from .shared.ctrl_c import never_lost
from .shared.flag_names import FlagHandler, with_flags
from .shared.source import as_given, is_address, say_downloads
from .shared.verb import usage_text

VERSION = importlib.import_module("ggml_py").__version__  # of this code, not of an installed one


class _ReaderGoneError(Exception):
    """The reader of our output closed the pipe, as `ggml-py plan m.gguf -v | head` does."""


_WARNINGS = FlagHandler()


class _Verbs(click.Group):
    """The verbs. click treats a closed pipe as a failure; here it is not one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Like click's, which finds the verb."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(_no_verb(args[0], self.commands))
        found = super().resolve_command(ctx, args)
        _WARNINGS.begin(found[1])
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's, by group."""
        widest = max(map(len, self.commands))
        limit = formatter.width - 6 - widest
        for name, verbs in GROUPS.items():
            with formatter.section(name):
                formatter.write_dl([
                    (f"{v.command.name:{widest}}", v.command.get_short_help_str(limit))
                    for v in verbs
                ])  # fmt: skip

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """Like click's, which prints the help."""
        with _reader():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Like click's."""
        with _reader():
            return super().invoke(ctx)


def _no_verb(word: str, verbs: Collection[str]) -> str:
    """What to do about a word that is no verb."""
    if is_address(word) or Path(word).exists() or Path(word).suffix:
        return f"{word!r} is no verb: expected one in front of it, like ggml-py check {word}"
    if word.startswith("llama-"):
        return f"{word!r} is no verb: expected ggml-py check -- {word} ..."
    return f"{word!r} is no verb: expected one of {one_of(word, [*verbs])}{meant(word, verbs)}"


@contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _ReaderGoneError from None


@click.group(
    cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80}
)
@click.version_option(VERSION, prog_name="ggml-py")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Drive upstream ggml, and see why every op runs where it runs."""
    context.obj = debug
    context.call_on_close(say_downloads)
    logging.getLogger("ggml_py").addHandler(_WARNINGS)
    if not debug:
        # The error's line already has what ggml said about it; logging would print it again.
        logging.getLogger("ggml").addHandler(logging.NullHandler())


GROUPS = {
    "Start here": (check, plan, record),
    "See": (explain, why_not, diff, view, memory, sweep, trace),
    "Decide": (calibrate, cost, place),
    "Run": (demo, generate, bench),
    "Upstream and releases": (compare, ci, corpus, bisect, releases, ops, diverge),
    "Set up": (build, devices),
}
for verb in (verb for verbs in GROUPS.values() for verb in verbs):
    cli.add_command(verb.command)


_NO_MEMORY = "no memory for "  # as errors of a model begin
NEXT = "`ggml-py check` with this model and these devices says which options fit"


class _Closed(io.TextIOBase):
    """In place of a standard output that is closed."""

    def write(self, _text: str) -> int:
        raise OSError("standard output is closed: there is nowhere to print to")


class _Bytes(io.RawIOBase):
    """Bytes for a `_Stream`."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Writes them as text."""
        self._stream.write(self._decoder.decode(bytes(data)))
        return len(data)


class _Stream:
    """Standard output or error: text that is printed cannot control the terminal, and has no names
    of temporary files and no passwords. Consoles of rich write to the stream itself."""

    def __init__(self, stream: TextIO | None) -> None:
        """None: the process was started with a closed one."""
        if isinstance(stream, io.TextIOWrapper):  # rather a "?" than no output at all
            stream.reconfigure(errors="replace")
        self.rich_proxied_file = _Closed() if stream is None else stream  # rich's name for it
        self._bytes = _Bytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # click tries whether it takes bytes
            raise TypeError(f"expected a str, got {type(text).__name__}")
        return self.rich_proxied_file.write(visible(as_given(text)))

    @property
    def buffer(self) -> _Bytes:
        """For bytes: another program's output, and all of click's on a stream of ASCII."""
        return self._bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _is_stopped(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused it: an import may turn that into an exception of its own."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def main() -> None:
    """Runs a verb. Errors go to stderr; exit 1 = failed, 2 = wrong usage, 130 = Ctrl-C."""
    if sys.stderr is None:  # closed: what it would get is nowhere to be seen
        sys.stderr = io.StringIO()
    sys.stdout, sys.stderr = (cast(TextIO, _Stream(s)) for s in (sys.stdout, sys.stderr))
    never_lost()
    try:
        code = cli.main(prog_name="ggml-py", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except click.ClickException as error:
        click.echo(usage_text(error), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except (_ReaderGoneError, BrokenPipeError):
        # Python flushes stdout at exit, which would fail on the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (GgmlError, OSError, ValueError, KeyError) as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        else:
            # str() of a KeyError is the message in quotation marks
            message = error.args[0] if isinstance(error, KeyError) and error.args else error
            text = with_flags(str(message), _WARNINGS.command)
            click.echo(f"error: {text}", err=True)
            if text.startswith(_NO_MEMORY) and "check" not in sys.argv:
                click.echo(NEXT, err=True)
        sys.exit(1)
    except Exception as error:
        if _is_stopped(error):
            click.echo("stopped", err=True)
            sys.exit(130)
        if "--debug" in sys.argv:
            raise
        what = f"{type(error).__name__}: {error}"
        click.echo(f"error: a fault of ggml_py, {what}", err=True)
        click.echo("please report it with the Traceback of `ggml-py --debug VERB ...`", err=True)
        sys.exit(1)

"""``ggml-py bench``: upstream's llama-bench, which is built with libllama, on our libraries."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice, pairwise
from typing import IO

import click

from .shared.bar import bar
from .shared.ctrl_c import CtrlC
from .shared.model_options import device_names
from .shared.verb import Verb

_NO_MODEL = {"-hf", "-hfr", "--hf-repo", "--list-devices", "--version", "-h", "--help"}
# The values of llama-bench's own: a depth, and devices with names that it knows.
_DEVICE = {"-d": r"\d", **dict.fromkeys(("-dev", "--device"), r"(?!(sim|rpc):|CPU\b)")}
_ROW = re.compile(rb"\xc2\xb1|T\d\d:\d\d:\d\dZ")  # in every format: "±", or the time of a test
_PROGRESS = re.compile(r"llama-bench: (benchmark \d+/\d+): (?:(starting)|\D*(?:(\d+)/(\d+).*)?)$")
_ERROR = re.compile(r"error|fail|invalid|abort|terminate|\.(c|cc|cpp|cu|h|m):\d+: ", re.I)
_PLACE = re.compile(r"^(llama_bench: )?(error: )?(\S+\.\w+:\d+: )?")  # in front of a reason
_SIMULATOR = ("ggml-py record: ", "load_backend: ")  # lines of the module with simulated devices
_REASONS = 5  # lines of an error


class _Command(Verb):
    """A command that leaves all options but its own to llama-bench, in the context's `args`."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The words of a command line, in their order."""
        return ["[MODEL]...", "[OPTIONS]", "[LLAMA-BENCH'S OPTIONS]"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Like click's, with models in front of the options, or with -m."""
        ours: list[str] = []
        theirs: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                theirs += words
            elif word in ("-h", "--help", "--help-all", "--json"):
                ours.append(word)
            elif word in ("-m", "--model"):
                ours += [word, *islice(words, 1)]
            elif word in _DEVICE:
                value = [*islice(words, 1)]
                if any(re.match(_DEVICE[word], text, re.I) for text in value):
                    theirs += [word, *value]
                else:
                    ours += ["-d", *value]
            elif word.startswith("-") or theirs:
                theirs.append(word)
            else:
                ours.append(word)
        super().parse_args(ctx, ours)
        ctx.args = theirs
        return theirs


@click.command(
    "bench", cls=_Command, short_help="Time MODEL in tokens per second, with llama-bench."
)
@click.argument("models", nargs=-1, metavar="[MODEL]...", type=click.Path(dir_okay=False))
@click.option("-m", "--model", "more", multiple=True, metavar="MODEL[,MODEL]...",
              help="Models, as llama-bench takes them.")  # fmt: skip
@click.option("-d", "devices", multiple=True, metavar="NAME",
              help="A device to run on, as in other verbs: a name, sim:NAME,SETTING=... or "
              "rpc:HOST:PORT. May be repeated. -d with a number is llama-bench's depth. Default: "
              "all devices of this machine.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
def command(
    models: tuple[str, ...], more: tuple[str, ...], devices: tuple[str, ...], as_json: bool
) -> None:
    """Time MODEL with random tokens: llama-bench of the same release, on this library.

    The models come first. All options but the ones below are llama-bench's: `ggml-py bench --
    --help` lists them. Some take several values (-p 128,512 or -t 1-8*2); all combinations are run.
    Each row is printed when it is done; Ctrl-C keeps those.

    \b
    ggml-py bench model.gguf
    ggml-py bench model.gguf -p 512 -n 0 -b 128,256,512 -t 1-4 --json
    ggml-py bench model.gguf -d sim:gpu0,profile=rtx4090 -ngl 8 -d 4096
    """
    words = click.get_current_context().args
    if as_json:
        words = [*words, "-o", "json"]
    names = [*models, *(name for text in more for name in text.split(","))]
    if not names and not _NO_MODEL & set(words):
        raise click.UsageError(
            "Missing argument 'MODEL': it comes before llama-bench's options, or with -m."
        )
    _check(names)
    chosen, variables = _devices(devices, words) if devices else ([], {})
    given = [word for name in names for word in ("-m", name)]
    _run([*given, *chosen, *words], variables)


def _check(names: Sequence[str]) -> None:
    """Raises the errors of models' files in our words, before anything is built."""
    from ..errors import ModelError
    from ..gguf.header_file import check_has_weights, described
    from ..gguf.reader import Gguf

    for name in names:
        if "," in name:
            raise click.UsageError(
                f"{name}: llama-bench separates models by commas, and this name has one: rename it"
            )
        with described(name, header_only=False) as (local, only_header), Gguf.open(local) as gguf:
            check_has_weights(gguf)
        if only_header:
            raise ModelError(only_header)


def _devices(given: tuple[str, ...], words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """llama-bench's options and the environment variables for our names of devices."""
    from ..enums import BackendDevType
    from ..place.placing_flags import device_words
    from ..record.programs.identify import simulator_here
    from ..record.programs.sim_devices import sims_text
    from ..sim.given import named_devices

    if {"-dev", "--device"} & set(words):
        raise click.UsageError("-d and -dev both name the devices: give one of them")
    names = device_names(given)
    sims = sims_text([name for name in names if name.startswith(("sim:", "CPU"))])
    others = [name for name in names if not name.startswith(("sim:", "rpc:"))]
    here = [one for name in others for one in named_devices(name)]
    accelerators = [one.name for one in here if one.type == BackendDevType.ACCEL]
    variables = {"GGML_PY_ACCELERATORS": ",".join(accelerators)}
    if sims:
        variables |= {"GGML_BACKEND_PATH": str(simulator_here()), "GGML_PY_SIMS": sims}
    bare = [name.removeprefix("sim:").partition(",")[0] for name in names]
    return device_words([name for name in bare if name not in accelerators], "bench"), variables


def _run(words: Sequence[str], variables: dict[str, str]) -> None:
    """Runs llama-bench: its rows are printed, and its errors are raised as ours."""
    from ..boundary.ffi import BUILD, openblas_settings
    from ..llama.library import find

    program = find() / "llama-bench"
    path = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    folder = str(BUILD["folder"])
    drawn = sys.stderr.isatty() and not {"-v", "--verbose", "--progress", "-oe"} & set(words)
    with openblas_settings():
        variables = {
            **os.environ, **variables, "GGML_PY_BACKENDS": folder, "GGML_NO_BACKTRACE": "1",
            path: os.pathsep.join(filter(None, (folder, os.environ.get(path)))),
        }  # fmt: skip
    output = _Output(words, drawn)
    with CtrlC() as ctrl_c, output.bars, subprocess.Popen(
        [str(program), *words, *(["--progress"] if drawn else [])],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        try:
            _relay({process.stdout: output.rows, process.stderr: output.lines}, ctrl_c)
            process.wait()
        except BaseException as error:
            process.kill()
            if isinstance(error, KeyboardInterrupt):
                output.rows(process.stdout.read())
                output.stop()
            raise
    output.end(process.returncode)


def _relay(pipes: dict[IO[bytes], Callable[[bytes], None]], ctrl_c: CtrlC) -> None:
    """Gives what comes from each pipe to its function, until all are closed."""
    with selectors.DefaultSelector() as selector:
        for pipe, function in pipes.items():
            selector.register(pipe, selectors.EVENT_READ, function)
        while selector.get_map():
            for key, _ in selector.select():
                ctrl_c.hold()
                if data := os.read(key.fd, 1 << 16):
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)
                ctrl_c.release()


class _Output:
    """Prints the rows and lines of llama-bench, and collects its errors. If `drawn`, its progress
    becomes a bar in `bars`."""

    def __init__(self, words: Sequence[str], drawn: bool) -> None:
        formats = [value for option, value in pairwise(words) if option in ("-o", "--output")]
        self._is_list = formats[-1:] == ["json"]
        self._verbose = bool({"-v", "--verbose"} & set(words))
        self._drawn = drawn
        self.bars = ExitStack()
        self._show: Callable[[float], None] = lambda _share: None
        self._begun = False
        self._held = b""  # output before the first row, which is dropped if the program fails
        self._rest = b""  # of a line
        self._errors: list[str] = []

    def rows(self, data: bytes) -> None:
        """Prints rows."""
        self._held += data
        if self._begun or _ROW.search(self._held):
            self._begun = True
            self.bars.close()
            click.echo(self._held, nl=False)
            self._held = b""

    def lines(self, data: bytes) -> None:
        """Prints lines of standard error, or keeps them."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode("utf-8", "replace"))

    def _line(self, line: str) -> None:
        if self._drawn and (found := _PROGRESS.match(line)):
            self._draw(*found.groups())
        elif not line.startswith(_SIMULATOR):
            if wrong := _ERROR.search(line):
                self._errors.append(line)
            if self._verbose or not wrong:
                click.echo(line, err=True)

    def _draw(self, benchmark: str, starts: str | None, run: str | None, runs: str | None) -> None:
        if starts:
            self.bars.close()
            self._show = self.bars.enter_context(bar(benchmark, at_once=True))
        self._show((int(run or 1) - 1) / int(runs or 1))

    def stop(self) -> None:
        """Ends a list, after the rows that are done."""
        if self._is_list:
            click.echo("\n]" if self._begun else "[\n]")

    def end(self, status: int) -> None:
        """Raises the error of a program that has failed: a usage error for its options."""
        if self._rest:
            self._line(self._rest.decode("utf-8", "replace"))
        if not status:
            click.echo(self._held, nl=False)
            for line in () if self._verbose else self._errors:
                click.echo(line, err=True)
            return
        if self._begun:
            self.stop()
        before, usage, _ = self._held.decode("utf-8", "replace").partition("usage: ")
        found = [line for line in before.splitlines() if line.startswith("error: ")]
        reasons = [_PLACE.sub("", line) for line in (*found, *self._errors)][-_REASONS:]
        text = "; ".join(dict.fromkeys(reasons))
        if not usage:
            how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
            raise ChildProcessError(f"llama-bench: {text or 'no reason given'} ({how})")
        raise click.UsageError(f"llama-bench: {text}. `ggml-py bench -- --help` lists its options")

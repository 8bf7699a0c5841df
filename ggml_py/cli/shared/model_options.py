"""Options that several verbs share, with llama.cpp's names, and their meaning for `models.load`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ...files.kinds import LOG, MODEL, PLAN, RECORD, SNAPSHOT, FileKind
from ...llama.options import TABLE, Keyword
from .bar import bar
from .program_options import keep_command_line
from .verb import Verb

if TYPE_CHECKING:
    from ...llama import Fit
    from ...models import Model

F = TypeVar("F", bound=Callable[..., Any])

SAVED = (PLAN, SNAPSHOT, LOG)
PLANNED = (MODEL, *SAVED, RECORD)  # whose graphs can be planned, or planned again


class SourceOption(click.Option):
    """An option that applies to sources of these `kinds`. llama.cpp's have their `group` in the
    help from the table, and whether they are `usual`."""

    def __init__(
        self,
        *arguments: Any,
        kinds: tuple[FileKind, ...] = (MODEL,),
        group: str | None = None,
        usual: bool | None = None,
        **settings: Any,
    ) -> None:
        self.kinds, self.group, self.usual = kinds, group, usual
        super().__init__(*arguments, **settings)


def given_options() -> list[SourceOption]:
    """The options about its sources that the command line of the running verb has."""
    context = click.get_current_context()
    return [
        option
        for option in context.command.params
        if isinstance(option, SourceOption)
        and context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    ]


class ModelCommand(Verb):
    """A verb whose first argument `-m MODEL` can give, as with llama.cpp's programs; one that plans
    takes the command line of such a program, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Like click's, with the model moved in front of the other arguments."""
        flags = {flag for option in self.get_params(ctx) for flag in option.opts}
        if flags & _MODEL_FLAGS:
            ctx.meta[_WORDS] = list(args)
            args = keep_command_line(ctx, args) if _PLANS in flags else args
            args = _model_first(args)
        return super().parse_args(ctx, args)


def same_of(verb: str) -> str:
    """The command line of another verb with the words of the running one; "" if it lacks one of
    their options."""
    context = click.get_current_context()
    group, words = context.find_root().command, context.meta[_WORDS]
    other = group.get_command(context, verb) if isinstance(group, click.Group) else None
    own = words[: words.index("--")] if "--" in words else words
    words = [*(word for word in own if word not in _FORMATS), *words[len(own) :]]
    known = {
        flag for one in (other.params if other else ()) for flag in (*one.opts, *one.secondary_opts)
    }
    used = {word.partition("=")[0] for word in own if _FLAG.match(word)} - _FORMATS
    return shlex.join(["ggml-py", verb, *words]) if used <= known else ""


_WORDS = "ggml_py.words"  # of the running verb, as they were given
_FORMATS = frozenset(("--json", "--markdown"))
_FLAG = re.compile(r"--?[a-zA-Z]")
_MODEL_FLAGS = frozenset(("-m", "--model"))
_PLANS = "--for"  # the option that only verbs have that plan


def _model_first(args: list[str]) -> list[str]:
    """The arguments, with `-m MODEL` turned into the first positional one."""
    end = args.index("--") if "--" in args else len(args)
    for i, word in enumerate(args[:end]):
        flag, equals, value = word.partition("=")
        if flag == "--model" and equals:
            return [value, *args[:i], *args[i + 1 :]]
        if word in _MODEL_FLAGS and i + 1 < len(args):
            return [args[i + 1], *args[:i], *args[i + 2 :]]
    return args


_PATH = click.Path(dir_okay=False)


def model_argument(function: F, type: click.Path = _PATH) -> F:
    """The MODEL argument, which -m can give, too."""
    flag = click.option("-m", "--model", "_model", expose_value=False, metavar="MODEL",
                        help="Another way to give MODEL, as in llama.cpp.")  # fmt: skip
    return click.argument("model", type=type)(flag(function))


class Layers(click.ParamType):  # type: ignore[type-arg]
    """A number of layers or "all", as in llama.cpp, where "auto" means what `--fit on` does. -1
    means "auto" in llama.cpp's programs, but "all" in llama.h and here."""

    name = "layers"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number, -1 for all; usage error for anything else."""
        if value == "auto":
            self.fail(
                "'auto': expected a number of layers, or all; with --fit on, llama.cpp chooses the "
                "number that fits"
            )
        try:
            return -1 if value == "all" else int(value)
        except ValueError:
            self.fail(f"{value!r}: expected a number of layers, or all")


class Parts(click.ParamType):  # type: ignore[type-arg]
    """Numbers separated by commas."""

    name = "parts"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        """The numbers; usage error for anything else."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in re.split("[,/]+", value))
        except ValueError:
            self.fail(f"{value!r}: expected numbers separated by commas, like 3,1")


class IntList(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers separated by commas. `what` names them, `least` is the smallest allowed."""

    def __init__(self, what: str, least: int, example: str) -> None:
        self.name, self.least, self.example = what, least, example

    def get_metavar(self, param: click.Parameter, ctx: Any = None) -> str:
        """What stands for it in the help."""
        return "N,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """The list; usage error for anything else."""
        if isinstance(value, list):
            return value
        try:
            numbers = [int(part) for part in value.split(",")]
        except ValueError:
            numbers = [self.least - 1]
        if min(numbers) < self.least:
            self.fail(f"{value!r}: expected {self.name} separated by commas, like {self.example}")
        return numbers


def _option(*names: str, **settings: Any) -> SourceOption:
    return SourceOption(names, **settings)


_TYPES: dict[str, Callable[[Keyword], Any]] = {
    "int": lambda option: click.IntRange(min=option.least) if option.least == 1 else int,
    "layers": lambda _option: Layers(),
    "parts": lambda _option: Parts(),
    "word": lambda option: click.Choice([*option.words]),
    "program": lambda option: click.Choice([*option.words]),
}


def in_click(option: Keyword) -> SourceOption:
    """An option of the table, as click takes it."""
    flags = [
        f"{on}/{off}" if off else on
        for on, off in zip_longest(option.flags, option.off, fillvalue=" " if option.off else "")
    ]
    type_ = _TYPES.get(option.kind)
    several = option.kind in ("devices", "overrides")
    default = "all" if option.kind == "layers" else option.in_verbs
    return SourceOption(
        [*flags, option.verb or option.name],
        type=type_ and type_(option),
        is_flag=option.kind == "bool" or None, multiple=several,
        default=() if several else default,
        show_default=default is not False and default not in (None, ()),
        metavar=option.metavar, group=option.group, usual=option.usual, help=option.help,
        kinds=PLANNED if option.saved else (MODEL,),
    )  # fmt: skip


# The options of llama.cpp come first, then ours.
LOAD_OPTIONS = [
    *(in_click(option) for option in TABLE if option.flags and not option.plans),
    _option("--profile-set", "profile_set", multiple=True, metavar="KEY=VALUE", kinds=PLANNED,
                 help="Change a property of the cards among the devices, as set.KEY=VALUE behind "
                      "one of them does. May be repeated."),
    _option("--graphs", type=click.Choice(["auto", "ours", "libllama"]), default="auto",
                 show_default=True,
                 help="Who builds the graphs. auto: we, for the architectures that we write; for "
                      "others libllama, which is built when it is first needed."),
    _option("--no-build", is_flag=True,
                 help="Do not build libllama: an error if it is needed and not there."),
]  # fmt: skip
SHAPE_OPTIONS = [
    _option("-fit", "--fit", type=click.Choice(["on", "off"]), default="off",
                 show_default=True,
                 help="Let llama.cpp choose the layers on the GPUs, the context and the places of "
                      "weights that are not given, so that all fits into memory."),
    _option("-fitt", "--fit-target", type=IntList("MiB", 0, "1024,512"), default="1024",
                 show_default=True, metavar="MiB,...",
                 help="With --fit: memory that stays free on each device."),
    _option("-fitc", "--fit-ctx", default=4096, show_default=True, metavar="N",
                 help="With --fit: the smallest context that it may choose."),
    _option("--n-tokens", default=1, show_default=True, metavar="N",
                 help="Tokens of each sequence in the batch."),
    _option("--n-past", default=0, show_default=True, metavar="N",
                 help="Tokens of each sequence already in the cache."),
    *(in_click(option) for option in TABLE if option.plans),
]  # fmt: skip

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def add_options(function: F, options: Sequence[click.Parameter]) -> F:
    """Adds options to a verb, in front of its own."""
    function.__dict__.setdefault("__click_params__", []).extend(reversed(options))
    return function


def load_options(function: F) -> F:
    """Adds the options of `models.load` to a verb."""
    return add_options(function, LOAD_OPTIONS)


def model_options(function: F) -> F:
    """The MODEL argument and the options of `models.load`."""
    return model_argument(load_options(function))


def load_model(
    model: str,
    devices: tuple[str, ...],
    overrides: tuple[str, ...],
    profile_set: tuple[str, ...] = (),
    no_build: bool = False,
    fit: Fit | None = None,
    **options: Any,
) -> Model:
    """The model that the options describe."""
    from ... import llama
    from ...llama.overrides import parse_overrides
    from ...models import load

    pairs = [pair for text in overrides for pair in parse_overrides(text)]
    names = with_properties(device_names(devices), profile_set)
    options |= {"devices": names, "tensor_overrides": pairs, "build": not no_build}
    if fit is not None:
        if options.pop("graphs", "auto") == "ours":
            raise click.UsageError("--fit is libllama's: not with --graphs ours")
        return llama.open(model, fit=fit, **options)
    return load(model, **options)


def read_model(model: str, quiet: bool, **options: Any) -> Model:
    """`load_model`, which also reads the weights; a bar shows the progress unless `quiet`."""
    with bar(f"loading {Path(model).name}", not quiet) as progress:
        return load_model(model, progress=progress, **options)


_NO_DEPTH = (
    "-d {}: expected a device, as for -dev. llama-bench's depth is -d in ggml-py bench, and "
    "--n-past in verbs that plan a graph"
)


def device_names(given: tuple[str, ...]) -> tuple[str, ...]:
    """Devices as `load` takes them. The settings of a simulated device and of the CPU contain
    commas, too."""
    from ...backends.device import devices

    if given == ("none",):
        return ("CPU",)
    for text in given:
        if text.isdecimal():
            raise click.UsageError(_NO_DEPTH.format(text))
    parts = [part for text in given for part in re.split(r",(?=sim:|(?i:CPU)(?:,|$))", text)]
    names = [[part] if part.startswith("sim:") else re.split(r",(?!\w+=)", part) for part in parts]
    return tuple(name for some in names for name in some) or tuple(d.name for d in devices())


def with_properties(devices: tuple[str, ...], changes: tuple[str, ...]) -> tuple[str, ...]:
    """The names of devices, with "KEY=VALUE" changes to the properties of all that have a
    profile."""
    if not changes:
        return devices
    for change in changes:
        if not re.fullmatch(r"[A-Za-z_]\w*=.+", change) or "," in change:
            raise click.UsageError(f"--profile-set {change}: expected KEY=VALUE, such as minor=6")
    if not any("profile=" in name for name in devices):
        raise click.UsageError(
            "--profile-set: no device has a profile; expected a card, such as "
            "-d sim:gpu0,profile=rtx4090"
        )
    more = "".join(f",set.{change}" for change in changes)
    return tuple(name + more if "profile=" in name else name for name in devices)


def echo_json(data: Any) -> None:
    """Prints `data` as JSON."""
    click.echo(json.dumps(data, indent=2))

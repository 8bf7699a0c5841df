"""The input of a verb: a model, a saved plan, a snapshot, a log, a record, a run or a folder.

A `Source` decides its kind once, by the first bytes, and then answers the verb's questions. `USES`
has the kinds that each verb takes. `kinds` of an option are the kinds that the option applies to.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ...files import bounds
from ...files.kinds import (
    LOG,
    MODEL,
    N_HEAD,
    PLAN,
    RECORD,
    RUN,
    SNAPSHOT,
    FileKind,
    in_command,
    kind_of,
)
from ...files.reading import (
    UNMARKED,
    decompressed,
    in_utf8,
    is_unmarked,
    open_file,
    parse_json,
    read_file,
    read_most,
)
from ...files.similar import meant_file
from ...llama.options import TABLE
from ...trace.names import counted
from . import records
from .bar import bar
from .model_options import (
    SAVED,
    SHAPE_OPTIONS,
    SourceOption,
    add_options,
    device_names,
    given_options,
    load_model,
    load_options,
    model_argument,
    with_properties,
)
from .program_options import command_line, open_it

if TYPE_CHECKING:
    from ...models import Model
    from ...plan import Plan
    from ...record.session import Record, RecordedPlan
    from ...run import Run

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = FileKind("a folder of kept plans", "`ggml-py ci {path}` plans them again")
ADDRESS = FileKind(
    "an address",
    "only verbs that plan a model take one, such as `ggml-py plan {path} -o plan.html`",
)


class Use(NamedTuple):
    """The kinds of source that a verb takes, in words, and advice on others in which {path} is the
    source."""

    kinds: tuple[FileKind, ...]
    expected: str
    instead: Mapping[FileKind, str] = MappingProxyType({})


_PAGE = {MODEL: "`ggml-py plan {path} -o plan.html` plans it and writes the page"}
_NO_SHAPES = "it lacks the shapes that a prediction needs: give a model, a saved plan or a run"
USES = {
    "check": Use((MODEL, *SAVED, RECORD, RUN), "a model, a plan, a record, a run or a log"),
    "plan": Use((MODEL, *SAVED, RECORD), "a model or a plan"),
    "cost": Use(
        (MODEL, PLAN, RUN, RECORD), "a model, a plan or a run",
        {LOG: _NO_SHAPES, SNAPSHOT: _NO_SHAPES},
    ),
    "sweep": Use(
        (MODEL, RECORD), "a model or a record",
        dict.fromkeys(SAVED, "a sweep makes many plans, so it needs the model"),
    ),
    "place": Use((MODEL,), "a model"),
    "view": Use((*SAVED, RECORD, RUN), "a plan or a run", _PAGE),
    "view OTHER": Use(
        (*SAVED, RECORD), "a plan", {**_PAGE, RUN: "it cannot be compared: give it alone"}
    ),
    "compare": Use((MODEL, *SAVED, RECORD, FOLDER, ADDRESS), "a model or a plan"),
    "corpus make": Use((MODEL,), "a model"),
    "corpus add": Use(
        (*SAVED, RECORD), "a plan or a record", {MODEL: "`ggml-py corpus make` plans it"}
    ),
    "ops": Use(
        (*SAVED, RECORD), "a plan or a record",
        {MODEL: "save a plan of it, with `ggml-py plan {path} -o FILE`"},
    ),
}  # fmt: skip
_FETCHING = ("check", "plan", "cost", "sweep", "place", "corpus make")  # they need the header only
_PLURALS = {LOG: "logs", RECORD: "records", PLAN: "saved plans"}
# Options beside a program's command line: its machine, and the graph's shape.
_BESIDE = ("devices", "profile_set", "no_build", "n_tokens", "n_past", "n_seqs")
_SHOWN = 3  # files of a folder
_STDIN = "standard input"
_N_MAGIC = 16
_BENCH_GEN = 128  # llama-bench's default of -n
_OF_SAVED = ("dump", "numbers", "when", "weights")  # options that a model has no use for
_NO_FIT = (
    "--fit changed nothing: llama.cpp found nothing that fits. It chooses only what is not given "
    "(-ngl, -c, -ts, -ot), and nothing with -sm row or tensor; the program would go on all the same"
)


class Source:
    """One input of a verb, with the options for it. `given` is its name as the user wrote it."""

    def __init__(self, given: str, use: str) -> None:
        self.given, self.use = given, use
        self.options: dict[str, Any] = {}
        self.words: Sequence[str] | None = None  # a program's command line, which has the model

    def __str__(self) -> str:
        if is_address(self.given):
            from ...gguf.remote import shown

            return shown(self.given)
        return _STDIN if self.given == "-" else self.given

    # --- what it is

    @cached_property
    def kind(self) -> FileKind:
        """Its kind. Raises a usage error if the verb does not take this kind, ValueError for other
        files, and FileNotFoundError."""
        use, kind = USES[self.use], self._found
        if self.words is not None and kind is not MODEL:
            raise click.UsageError(f"-m {kind.told(self, 'a model')}")
        if kind not in use.kinds:
            advice = use.instead.get(kind)
            raise click.UsageError(
                kind.told(self, use.expected) if advice is None
                else f"{self} is {kind.what}: {in_command(advice, self)}"
            )  # fmt: skip
        return kind

    @property
    def is_model(self) -> bool:
        """Whether its graphs are planned, by the options."""
        return self.kind is MODEL

    @cached_property
    def _found(self) -> FileKind:
        if is_address(self.given) and self.use not in _FETCHING:
            return ADDRESS
        if self.given != "-" and Path(self.path).is_dir():
            return FOLDER
        content = self._content
        found = kind_of(content[:N_HEAD])
        if found in (MODEL, RECORD, PLAN, RUN, SNAPSHOT):
            return found
        from ...export.debug_log import has_print

        if has_print(self._text):
            return LOG
        if found is not None:
            raise ValueError(found.told(self, "a model or a plan"))
        if is_unmarked(content):
            raise ValueError(f"{self} {UNMARKED}")
        if content.lstrip()[:1] == b"{":
            return self._sorted(content)
        raise ValueError(
            f"{self} is neither a GGUF model (its magic is {content[:4]!r}, not b'GGUF') nor a plan"
            " that `ggml-py plan MODEL -o FILE` saved nor a log with GGML_SCHED_DEBUG=2 prints "
            "(llama-bench writes them with -v only)"
        )

    def _sorted(self, content: bytes) -> FileKind:
        """The kind of a plan or a run with keys in another order. Raises ValueError for others."""
        from ...export.json import plan_file as to_json
        from ...export.json import run_file as run_json

        with suppress(ValueError):
            data = parse_json(content)
            if isinstance(data, dict) and data.get("kind") == run_json.KIND:
                return RUN
        to_json.parse(content, str(self))
        return PLAN

    @cached_property
    def path(self) -> str:
        """The file. Of a model at an address, its header is fetched into one."""
        if not is_address(self.given):
            return self.given
        from ...gguf.remote import header_of

        with bar(f"reading the header of {self}") as show:
            file = header_of(self.given, lambda n, total: show(n / total))
            return str(click.get_current_context().with_resource(file))

    def is_at(self, path: str) -> bool:
        """Whether it is that file."""
        return self.given != "-" and Path(path).exists() and Path(path).samefile(self.path)

    @cached_property
    def _content(self) -> bytes:
        """The file's bytes, decompressed and in UTF-8; of a model and a record, which may be large,
        the first ones."""
        raw = self._read()
        if kind_of(raw[:_N_MAGIC]) in (MODEL, RECORD):
            return raw[:_N_MAGIC]
        try:
            content = decompressed(raw)
        except ValueError as error:
            raise ValueError(f"{self} is damaged: {error}") from None
        if kind_of(content[:_N_MAGIC]) in (MODEL, RECORD) and (kind := kind_of(raw[:N_HEAD])):
            raise ValueError(kind.told(self, "a model or a plan"))
        return in_utf8(content)

    def _read(self) -> bytes:
        try:
            if self.given == "-":
                return self._whole(read_most(sys.stdin.buffer, _STDIN, bounds.TEXT))
            if Path(self.path).is_file():
                with open_file(self.path) as file:
                    magic = file.read(_N_MAGIC) or b""
                if kind_of(magic) in (MODEL, RECORD):
                    return magic
            return self._whole(read_file(self.path))
        except FileNotFoundError:
            expected = USES[self.use].expected
            raise FileNotFoundError(
                f"{self}: no such file: expected {expected}{meant_file(self.path)}"
            ) from None

    def _whole(self, content: bytes) -> bytes:
        """The bytes of a pipe. Raises a usage error for kinds that are read by their path."""
        kind = kind_of(content[:_N_MAGIC])
        if kind in (MODEL, RECORD):
            raise click.UsageError(f"{kind.what} cannot be read from {self}: give its path")
        return content

    @property
    def _text(self) -> str:
        return self._content.decode("utf-8", "replace")

    # --- its plans

    @property
    def chooses(self) -> bool:
        """Whether the options choose a plan of the file."""
        return any(self.options[name] not in (None, ()) for name in ("dump", "numbers", "when"))

    def plan(self) -> Plan:
        """The plan that is meant: the file's, or of the model's graph. Raises usage errors for
        options that do not apply to it, and ValueError."""
        (plan,) = plans_of(self)
        return plan

    def plans(self) -> list[tuple[str, Plan]]:
        """All plans in the file, each with a label."""
        if self.kind is RECORD:
            whole = records.whole_plans(self.record, str(self))
            if not whole:
                raise ValueError(f"{self}: the record has no plan that can be read")
            return [(f"{one.index} ({one.label})", plan) for one, plan in whole]
        return [("plan", self._saved())]

    @cached_property
    def record(self) -> Record:
        """The whole record. Says on standard error what of it is damaged."""
        return records.read_record(self.path)

    @cached_property
    def recorded(self) -> RecordedPlan:
        """The record's plan that is meant."""
        (number,) = self.options.get("numbers") or (None,)
        return records.choose(self.record, str(self), number, self.options.get("when"))

    def _saved(self) -> Plan:
        """The plan in the file."""
        from ...export.json import plan_file as to_json
        from ...plan import Plan

        if self.kind is RECORD:
            return self.recorded.plan
        if self.kind is PLAN:
            return Plan.of(to_json.parse(self._content, str(self)))
        try:
            if self.kind is SNAPSHOT:
                return Plan.from_snapshot(self._text.replace("\r\n", "\n"))
            return Plan.from_debug_log(self._text, self._dump())
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from None

    def _dump(self) -> int:
        """Which debug print of a log."""
        from ...export.debug_log import dumps

        dump, n = self.options.get("dump"), len(dumps(self._text))
        if dump is not None and not -n <= dump < n:
            raise ValueError(f"--dump {dump}: the log has {counted(n, 'debug print')}, from 0")
        if dump is None and n > 1:
            click.echo(
                f"{self} has {n} debug prints: using the last, --dump N (from 0) chooses another",
                err=True,
            )
        return -1 if dump is None else dump

    # --- its times

    def run(self) -> Run:
        """The run, or that of a record. Raises ValueError without times."""
        if self._found is RUN:
            from ...export.json import run_file as run_json
            from ...run import Run

            return Run.of(run_json.parse(self._content, str(self)))
        timed = self._found is RECORD and [one for one in self.record.processes if one.runs]
        if not timed:
            raise ValueError(
                f"{self} has no measured times: expected a run that `ggml-py trace MODEL --per-op "
                "-o FILE` saved, or a record that was made with --run"
            )
        if len(timed) > 1:
            click.echo(
                f"{self} has computes of {len(timed)} processes: these are of "
                f"{timed[0].program}[{timed[0].pid}], ggml_py.Record has the others", err=True,
            )  # fmt: skip
        return timed[0].run

    # --- its model

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tokens, tokens before them, and sequences of the graph that the options ask for."""
        options = self.options
        return options["n_tokens"], options["n_past"], options["n_seqs"] or 1

    def devices(self) -> tuple[str, ...]:
        """The devices to plan on, as `load` takes them."""
        return with_properties(device_names(self.options["devices"]), self.options["profile_set"])

    def flags(self, only_given: bool = False) -> dict[str, Any]:
        """Options of `llama.open`, without devices and n_ctx. With `only_given` an option that the
        command line lacks is left out."""
        from ...llama.overrides import parse_overrides

        given = {option.name for option in given_options()}
        found = {
            option.name: self.options[option.name]
            for option in TABLE
            if option.is_flag and (option.name in given or not only_given)
        }
        texts = self.options["overrides"]
        return {**found, "tensor_overrides": [p for text in texts for p in parse_overrides(text)]}

    @contextmanager
    def opened(
        self, more: Sequence[str] = (), quiet: bool = False, **changes: Any
    ) -> Iterator[Model]:
        """The model, of which the header is read, with the options and `changes` to them; a
        program's command line has `more` words. What --fit chose is printed unless `quiet`."""
        if self.words is not None:
            _check_alone()
            opened: Model
            build = not self.options["no_build"]
            opened = open_it(self.path, [*self.words, *more], self.devices(), build)
        else:
            opened = self._load({**self.options, **changes})
        with opened as model:
            if not quiet:
                _say_fit(model)
            yield model

    def _load(self, options: dict[str, Any]) -> Model:
        options = {name: value for name, value in options.items() if name not in _OF_SAVED}
        n_tokens, n_past = options.pop("n_tokens", 1), options.pop("n_past", 0)
        if options.get("program") == "bench" and options["n_ctx"] is None:
            # As for llama-bench -p N -d PAST; one token is one of its 128 of -n.
            options["n_ctx"] = n_past + (n_tokens if n_tokens > 1 else _BENCH_GEN)
        margins, n_ctx_min = options.pop("fit_target", ()), options.pop("fit_ctx", 0)
        if options.pop("fit", "off") == "on":
            from ...llama import Fit

            options["fit"] = Fit(tuple(mib << 20 for mib in margins), n_ctx_min)
        n_seqs = options.pop("n_seqs", None)
        return load_model(self.path, n_seq_max=n_seqs, header_only=True, **options)

    def what_if(self, changes: dict[str, Any]) -> Plan:
        """The plan of the model's graph with changes, as `Model.what_if` takes them."""
        with self.opened() as model:
            return model.what_if(*self.shape, **changes)


def plans_of(*sources: Source) -> list[Plan]:
    """The plan of each source. Options apply to each source that takes them."""
    check_options(*sources)
    given, options = {option.name for option in given_options()}, sources[0].options
    models = [source for source in sources if source.is_model]
    weights = options.get("weights", ())
    if weights and models:
        raise click.UsageError(
            f"--weights plans saved graphs again, and {models[0]} is a model: give it -ot"
        )
    if weights and "devices" not in given:
        raise click.UsageError("--weights needs -d: the devices to plan the graph on again")
    again = not models and bool(given.intersection(records.REPLAYING))
    op_offload = options["op_offload"] if "op_offload" in given else None
    plans = []
    for source in sources:
        if source.is_model:
            with source.opened() as model:
                plans.append(model.plan(*source.shape))
            continue
        plan = source._saved()
        if again:
            plan = records.replayed(plan, str(source), weights, source.devices(), op_offload)
        plans.append(plan)
    return plans


def check_options(*sources: Source) -> None:
    """Raises a usage error for options that apply to none of the sources."""
    if [source.given for source in sources].count("-") > 1:
        raise click.UsageError("'-' is standard input, which can be read only once")
    kinds = {source.kind for source in sources}
    flags: dict[tuple[FileKind, ...], list[str]] = {}
    for option in given_options():
        # Verbs without --weights plan no saved graph again.
        again = "weights" in sources[0].options or MODEL not in option.kinds
        of = option.kinds if again else (MODEL,)
        if not kinds.intersection(of):
            flags.setdefault(of, []).append(option.opts[0])
    called = " and ".join(map(str, sources))
    for of, names in flags.items():
        if MODEL in of:
            raise click.UsageError(
                f"{called}: {', '.join(names)} can only apply to a model: a saved plan keeps the "
                "options that it was made with"
            )
        expected = " and ".join(_PLURALS[kind] for kind in dict.fromkeys((of[0], of[-1])))
        raise click.UsageError(
            f"{', '.join(names)} {'apply' if names[1:] else 'applies'} to {expected} only, and not "
            f"to {called}"
        )
    _divide(sources)


def _divide(sources: Sequence[Source]) -> None:
    """Gives each record its number of --plan, if there are several."""
    numbers = sources[0].options.get("numbers", ())
    of_records = [source for source in sources if source.kind is RECORD]
    if numbers and sources[0].options["when"] is not None:
        raise click.UsageError("--plan and --when exclude each other: give one of them")
    if len(numbers) == 1 or not numbers:
        return
    if len(numbers) != len(of_records):
        raise click.UsageError(
            f"--plan was given {counted(len(numbers), 'time')} for "
            f"{counted(len(of_records), 'record')}: give it once, or once for each"
        )
    for source, number in zip(of_records, numbers, strict=True):
        source.options = {**source.options, "numbers": (number,)}


def _check_alone() -> None:
    """Raises a usage error for options of the verb that belong into a program's command line."""
    given = [option.opts[0] for option in given_options() if option.name not in _BESIDE]
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: give it in the command line behind --, as the program takes it; "
            "in front of -- are the devices (-d) and the graph's shape (--n-tokens, --n-past, -np)"
        )


def is_address(source: str) -> bool:
    """Whether a source is an http(s) address."""
    return source.startswith(("http://", "https://"))


def as_given(text: str) -> str:
    """A text with addresses in place of the temporary files that their headers are in."""
    remote = sys.modules.get("ggml_py.gguf.remote")
    context = click.get_current_context(silent=True)
    to_download = context.meta.setdefault(as_given.__name__, {}) if context else None
    return text if remote is None else str(remote.as_given(text, to_download))


def say_downloads() -> None:
    """Says which files of the command lines that this verb printed are at an address."""
    sys.stdout.flush()
    for file, address in click.get_current_context().meta.get(as_given.__name__, {}).items():
        click.echo(f"{file} is to be downloaded first, from {address}", err=True)


def _say_fit(model: Model) -> None:
    if fitted := getattr(model, "fit_arguments", ""):
        click.echo(f"--fit chose {fitted}", err=True)
    elif not getattr(model, "fits", True):
        click.echo(_NO_FIT, err=True)


# --- as arguments of a verb


class SourceType(click.Path):
    """A path or an address, as a `Source` of a verb."""

    def __init__(self, use: str, dir_okay: bool = False) -> None:
        super().__init__(dir_okay=dir_okay)
        self._use = use

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The source; a usage error for a folder, unless the verb takes some."""
        if isinstance(value, Source):
            return value
        if not self.dir_okay and Path(value).is_dir():
            models = [path.name for path in sorted(Path(value).glob("*.gguf"))[:_SHOWN]]
            found = f", such as {', '.join(models)} in it" if models else ""
            self.fail(f"File {value!r} is a directory: expected a file{found}", param, ctx)
        return Source(str(super().convert(value, param, ctx)), self._use)


def with_sources(*arguments: str) -> Callable[[F], F]:
    """Gives the sources among a verb's arguments the options about them, without those that the
    verb has a parameter for."""

    def decorate(function: F) -> Any:
        own = inspect.signature(function).parameters

        @wraps(function)
        def bound(**given: Any) -> Any:
            about = (p for p in click.get_current_context().command.params
                     if isinstance(p, SourceOption) and p.name not in own)  # fmt: skip
            options = {str(option.name): given.pop(str(option.name)) for option in about}
            for name in arguments:
                found = given[name] if isinstance(given[name], tuple) else (given[name],)
                for source in filter(None, found):
                    source.options = options
            if given[arguments[0]] is not None:
                given[arguments[0]].words = command_line()
            return function(**given)

        return bound

    return decorate


def source_options(*arguments: str) -> Callable[[F], F]:
    """Adds arguments for sources, the options of `models.load`, and options that choose the
    graph's shape or a plan of a file."""

    def decorate(function: F) -> F:
        function = with_sources(*arguments)(function)
        function = records.choice_options(records.weights_option(function))
        function = load_options(add_options(function, SHAPE_OPTIONS))
        if arguments == ("model",):
            return model_argument(function, SourceType("plan"))
        for name in reversed(arguments):
            function = click.argument(name, type=SourceType("plan"))(function)
        return function

    return decorate


def planning_options(use: str) -> Callable[[F], F]:
    """The MODEL argument of a verb that makes many plans, and the options of `models.load`."""

    def decorate(function: F) -> F:
        return model_argument(load_options(with_sources("model")(function)), SourceType(use))

    return decorate

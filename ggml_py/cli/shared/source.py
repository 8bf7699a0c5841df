"""The input of a verb: a model, whose graph is planned, a saved plan, a snapshot of a plan
(`Plan.snapshot`), or a log with a debug print of a plan."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...files.kinds import N_HEAD, kind_of
from ...files.reading import MOST, open_file, read_most
from ...trace.names import counted
from . import records
from .bar import bar
from .command_line import check_alone, command_line, open_it
from .options import (
    PLACEMENT,
    IntList,
    device_names,
    given_model_options,
    load_model,
    load_options,
    model_argument,
    model_option,
    with_properties,
)

if TYPE_CHECKING:
    from ...llama import LlamaModel
    from ...models import Model
    from ...plan import Plan
    from ...run import Run
    from ...trace.planned import PlanTensor

F = TypeVar("F", bound=Callable[..., Any])

# As in llama/programs.py, which needs the native library.
PROGRAMS = ("bench", "server", "cli", "completion", "perplexity")
_SHAPE_OPTIONS = [
    model_option("-fit", "--fit", type=click.Choice(["on", "off"]), default="off",
                 show_default=True, group=PLACEMENT,
                 help="Let llama.cpp choose the layers on the GPUs, the context and the places of "
                      "weights that are not given, so that all fits into memory."),
    model_option("-fitt", "--fit-target", type=IntList("MiB", 0, "1024,512"), default="1024",
                 show_default=True, metavar="MiB,...", group=PLACEMENT,
                 help="With --fit: memory that stays free on each device."),
    model_option("-fitc", "--fit-ctx", default=4096, show_default=True, metavar="N",
                 group=PLACEMENT, help="With --fit: the smallest context that it may choose."),
    model_option("-n", "--n-tokens", default=1, show_default=True,
                 help="Tokens of each sequence in the batch."),
    model_option("--n-past", default=0, show_default=True,
                 help="Tokens of each sequence already in the cache."),
    model_option("-np", "--parallel", "n_seqs", type=click.IntRange(min=1), metavar="N",
                 help="Sequences in the batch. Default: 1."),
    model_option("-kvu", "--kv-unified", is_flag=True, default=None,
                 help="Share one cache among all sequences, instead of an equal part for each."),
    model_option("--for", "program", type=click.Choice(PROGRAMS),
                 help="Plan for a context as this program of llama.cpp makes it (llama-bench, ...):"
                      " the defaults of -c, -b, -ub, -np and -kvu, and room for its logits."),
]  # fmt: skip
_dump_option = click.option(
    "--dump", type=int, metavar="N",
    help="Which debug print of a log, from 0. Default: the last.",
)  # fmt: skip
_OF_SAVED = ("dump", "numbers", "when", "weights")  # options that choose what a file has
_BENCH_GEN = 128  # llama-bench's default of -n
_STDIN = "standard input"
_NO_FIT = (
    "--fit changed nothing: llama.cpp found nothing that fits. It chooses only what is not given "
    "(-ngl, -c, -ts, -ot), and nothing with -sm row or tensor; the program would go on all the same"
)


def source_options(*arguments: str) -> Callable[[F], F]:
    """Arguments that are each a model, a saved plan or a log, and the options for them: those of
    `models.load` and the graph's shape for a model, and which debug print of a log."""

    def decorate(function: F) -> F:
        function = _dump_option(records.choice_options(records.weights_option(function)))
        for option in reversed(_SHAPE_OPTIONS):
            function = option(function)
        function = load_options(function)
        if arguments == ("model",):
            return model_argument(function, callback=_local)
        for name in reversed(arguments):
            kind = click.Path(dir_okay=False)
            function = click.argument(name, type=kind, callback=_local)(function)
        return function

    return decorate


def is_address(source: str) -> bool:
    """Whether a source is an http(s) address."""
    return source.startswith(("http://", "https://"))


def planning_options(function: F) -> F:
    """The MODEL argument, of which only the header is read, so it may be an http(s) address; and
    the options of `models.load`."""
    return model_argument(load_options(function), callback=_local)


def _local(context: click.Context, _parameter: click.Parameter, source: str) -> str:
    """The path of a source. Of a model at an http(s) address the header is fetched."""
    if not is_address(source):
        return source
    from ...gguf.remote import header_of

    with bar(f"reading the header of {source}") as show:
        file = header_of(source, lambda n, total: show(n / total))
        return str(context.with_resource(file))


def locals_of(
    context: click.Context, parameter: click.Parameter, sources: Sequence[str]
) -> tuple[str, ...]:
    """The paths of several models: of those at http(s) addresses the headers are fetched."""
    paths = tuple(_local(context, parameter, source) for source in sources)
    if missing := [path for path in paths if not Path(path).is_file()]:
        raise click.UsageError(f"{missing[0]}: no such file")
    return paths


def as_given(text: str) -> str:
    """A text with addresses in place of the temporary files that their headers are in."""
    remote = sys.modules.get("ggml_py.gguf.remote")
    return text if remote is None else str(remote.as_given(text))


def get_plan(source: str, **options: Any) -> Plan:
    """The plan in that file, or the plan of that model's graph with the options.

    Raises a usage error for options that do not apply to such a file, and ValueError for any other
    kind of file.
    """
    (plan,) = get_plans((source,), **options)
    return plan


def get_plans(
    sources: tuple[str, ...],
    n_tokens: int,
    n_past: int,
    n_seqs: int | None,
    dump: int | None,
    numbers: tuple[int, ...] = (),
    when: str | None = None,
    weights: tuple[str, ...] = (),
    **options: Any,
) -> list[Plan]:
    """Like `get_plan`, for several sources. Options apply to each source that takes them."""
    if sources.count("-") > 1:
        raise click.UsageError("'-' is standard input, which can be read only once")
    saved = saved_plans(sources, dump, numbers, when)
    called = " and ".join(map(_called, sources))
    if weights and None in saved:
        raise click.UsageError(
            f"--weights is for records and saved plans, and not for {called}: give a model -ot"
        )
    again = False
    if None not in saved:
        _refuse_model_options(called)
        again = bool(given_model_options())
        if weights and "-d" not in given_model_options():
            raise click.UsageError("--weights needs -d: the devices to plan the graph on again")
    if dump is not None and not any(plan and plan.capture.source == "debug log" for plan in saved):
        raise click.UsageError(f"--dump applies to logs only, and not to {called}")
    plans = []
    for source, plan in zip(sources, saved, strict=True):
        shape: dict[str, Any] = {"n_tokens": n_tokens, "n_past": n_past, "n_seqs": n_seqs}
        if plan is None:
            plans.append(plan_model(source, **{**shape, **options}))
        elif again:
            plans.append(records.replayed(plan, source, weights, options))
        else:
            plans.append(plan)
    return plans


def refuse_saved_options(source: str, options: dict[str, Any]) -> None:
    """Raises a usage error for options that choose what a file has, which a model does not take."""
    flags = {"numbers": "--plan", "when": "--when", "weights": "--weights", "dump": "--dump"}
    if given := [flags[name] for name in _OF_SAVED if options.get(name) not in (None, ())]:
        raise click.UsageError(f"{', '.join(given)}: for records and logs, and {source} is a model")


def for_model(options: dict[str, Any]) -> dict[str, Any]:
    """The options that `plan_model` takes, of those of `source_options`."""
    return {name: value for name, value in options.items() if name not in _OF_SAVED}


def plan_model(source: str, changes: dict[str, Any] | None = None, **options: Any) -> Plan:
    """The plan of a model's graph; with `changes` (of `Model.what_if`), as it would be then."""
    n_tokens, n_past, n_seqs = shape_of(options)
    with opened(source, **options) as model:
        if changes is None:
            return model.plan(n_tokens, n_past, n_seqs)
        return model.what_if(n_tokens, n_past, n_seqs, **changes)


def shape_of(options: dict[str, Any]) -> tuple[int, int, int]:
    """Tokens, tokens before them, and sequences of the graph that the options ask for."""
    return options["n_tokens"], options["n_past"], options["n_seqs"] or 1


@contextmanager
def opened(
    source: str, more: Sequence[str] = (), quiet: bool = False, **options: Any
) -> Iterator[Model | LlamaModel]:
    """The model that the options of `source_options` describe, of which the header is read. Behind
    -- there may be a program's command line instead, which then has `more` words. What --fit chose
    is printed unless `quiet`."""
    n_tokens, n_past, _n_seqs = shape_of(options)
    n_seqs = options["n_seqs"]
    options = {k: v for k, v in options.items() if k not in ("n_tokens", "n_past", "n_seqs")}
    if options["program"] == "bench" and options["n_ctx"] is None:
        # As for llama-bench -p N -d PAST; one token is one of its 128 of -n.
        options["n_ctx"] = n_past + (n_tokens if n_tokens > 1 else _BENCH_GEN)
    if words := command_line():
        check_alone()
        names = with_properties(device_names(options["devices"]), options["profile_set"])
        with open_it(source, [*words, *more], names, not options["no_build"]) as model:
            _say_fit(model, quiet)
            yield model
        return
    margins, n_ctx_min = options.pop("fit_target"), options.pop("fit_ctx")
    if options.pop("fit") == "on":
        from ...llama import Fit

        options["fit"] = Fit(tuple(mib << 20 for mib in margins), n_ctx_min)
    with load_model(source, n_seq_max=n_seqs, header_only=True, **options) as loaded:
        _say_fit(loaded, quiet)
        yield loaded


def _say_fit(model: Model | LlamaModel, quiet: bool) -> None:
    if quiet:
        return
    if fitted := getattr(model, "fit_arguments", ""):
        click.echo(f"--fit chose {fitted}", err=True)
    elif not getattr(model, "fits", True):
        click.echo(_NO_FIT, err=True)


def is_model(source: str) -> bool:
    """Whether that file is a model."""
    if source == "-":
        return False
    try:
        with open_file(source) as file:
            return file.read(4) == b"GGUF"
    except FileNotFoundError:
        raise FileNotFoundError(f"{source}: no such file") from None


def get_tensor(plan: Plan, text: str) -> PlanTensor:
    """The tensor that a user names: a node, leaf or copy by its name, or a node by its number.
    Raises KeyError."""
    which = name_or_number(plan, text)
    tensor = plan.node(which)
    same = [str(node.index) for node in plan.nodes if node.name == tensor.name]
    if len(same) > 1 and isinstance(which, str):
        *others, last = same
        click.echo(
            f"nodes {', '.join(others)} and {last} are all called {tensor.name}: using {last}",
            err=True,
        )
    return tensor


def name_or_number(plan: Plan, text: str) -> str | int:
    """A tensor as `Plan.node` takes it. A number is a node's, unless a tensor has it as name."""
    named = any(t.name == text for t in plan.tensors)
    return text if named or not text.isdecimal() else int(text)


def saved_plans(
    sources: Sequence[str], dump: int | None, numbers: Sequence[int], when: str | None
) -> list[Plan | None]:
    """The plans in those files; None for a model. `numbers` and `when` choose those of records: one
    number for all records, or one for each."""
    chosen: list[int | None] = list(numbers) or [None]
    of_records = [source for source in sources if records.is_record(source)]
    if (numbers or when is not None) and not of_records:
        option = "--plan" if numbers else "--when"
        raise click.UsageError(
            f"{option} applies to records only, and not to {' and '.join(map(_called, sources))}"
        )
    if numbers and when is not None:
        raise click.UsageError("--plan and --when exclude each other: give one of them")
    if len(chosen) == 1:
        chosen *= len(of_records)
    if len(chosen) != len(of_records) and of_records:
        raise click.UsageError(
            f"--plan was given {counted(len(chosen), 'time')} for "
            f"{counted(len(of_records), 'record')}: give it once, or once for each"
        )
    found: list[Plan | None] = []
    for source in sources:
        if source in of_records:
            record = records.read_record(source)
            found.append(records.choose(record, source, chosen.pop(0), when).plan)
        else:
            found.append(saved_plan(source, dump))
    return found


def saved_plan(source: str, dump: int | None = None) -> Plan | None:
    """The plan in that file, judged by its content; None for a model. "-" is standard input. `dump`
    chooses the debug print of a log, by default the last."""
    from ...export.debug_log import has_print
    from ...export.json import plan as to_json
    from ...export.snapshot import MAGIC
    from ...plan import as_plan

    content = _content(source)
    if content is None:
        return None
    name = _called(source)
    try:
        content = to_json.decompressed(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    # A log may wrap each message in a JSON object.
    log = to_json.KIND.encode() not in content[:1000] and has_print(_text(content))
    if content.lstrip()[:1] == b"{" and not log:
        _refuse_known(content, name)
        return as_plan(to_json.parse(content, name))
    text = _text(content)
    if text.startswith(MAGIC):
        return _plan_on_page(text, name)
    if log:
        return _plan_in_log(text, name, dump)
    _refuse_known(content, name)
    raise ValueError(
        f"{name} is neither a GGUF model (its magic is {content[:4]!r}, not b'GGUF') nor a plan "
        "that `ggml-py plan MODEL -o FILE` saved nor a log with GGML_SCHED_DEBUG=2 prints"
    )


def _text(content: bytes) -> str:
    """The text of a file. PowerShell's > writes UTF-16."""
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return content.decode("utf-16" if utf16 else "utf-8", "replace")


def _refuse_known(content: bytes, name: str) -> None:
    """Raises ValueError for a file of another known kind, and names the kind."""
    kind = kind_of(content[:N_HEAD])
    if kind is not None and not kind.is_plan:
        raise ValueError(kind.told(name, "a model or a plan"))


def saved_run(source: str) -> Run | None:
    """The run in that file; None for anything else."""
    from ...export.json import plan as to_json
    from ...export.json import run as run_json
    from ...run import as_run

    content = _content(source)
    if content is None:
        return None
    try:
        content = to_json.decompressed(content)
    except (OSError, EOFError, zlib.error):
        return None  # `saved_plan` says what is wrong
    # As we write it, or with its keys sorted; a plan may have a node with that name.
    known = run_json.KIND.encode() in content and to_json.KIND.encode() not in content[:200]
    if not known or content.lstrip()[:1] != b"{":
        return None
    return as_run(run_json.parse(content, _called(source)))


def _plan_on_page(text: str, name: str) -> Plan:
    from ...plan import Plan

    try:
        return Plan.from_snapshot(text.replace("\r\n", "\n"))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _plan_in_log(text: str, name: str, dump: int | None) -> Plan:
    from ...export.debug_log import dumps
    from ...plan import Plan

    try:
        n = len(dumps(text))
        if dump is not None and not -n <= dump < n:
            raise ValueError(f"--dump {dump}: the log has {counted(n, 'debug print')}, from 0")
        plan = Plan.from_debug_log(text, -1 if dump is None else dump)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if dump is None and n > 1:
        click.echo(
            f"{name} has {n} debug prints: using the last, --dump N (from 0) chooses another",
            err=True,
        )
    return plan


def _content(source: str) -> bytes | None:
    """The bytes of a file; None if it is a model, which may be large."""
    if source == "-":
        read = click.get_current_context().meta  # read once: tried as a run, then as a plan
        content: bytes = read.get(_STDIN) or read.setdefault(_STDIN, _read_stdin())
        if content.startswith(b"GGUF"):
            raise click.UsageError("a model cannot be read from standard input: give its path")
        return content
    try:
        with open_file(source) as file:
            magic = file.read(4)
            return None if magic == b"GGUF" else magic + read_most(file, source)
    except FileNotFoundError:
        if is_address(source):
            raise click.UsageError(
                f"{source} is an address: only verbs that plan a model take one, such as "
                f"`ggml-py plan {source} -o plan.html`"
            ) from None
        raise FileNotFoundError(f"{source}: no such file") from None


def _read_stdin() -> bytes:
    content = sys.stdin.buffer.read(MOST + 1)
    if len(content) > MOST:
        raise ValueError(f"{_STDIN} has more than {MOST >> 20:,} MiB: give a smaller file")
    return content


def _refuse_model_options(source: str) -> None:
    """Raises a usage error if options were given that only a model takes."""
    if given := given_model_options(records.REPLAYING):
        raise click.UsageError(
            f"{source}: {', '.join(given)} can only apply to a model: a saved plan keeps the "
            "options that it was made with"
        )


def _called(source: str) -> str:
    return _STDIN if source == "-" else source

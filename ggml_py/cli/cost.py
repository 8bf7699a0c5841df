"""``ggml-py cost``"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from ..files.kinds import PLAN
from ..trace.units import format_rate, format_rates, format_time
from .shared.measured_run import show_analysis
from .shared.model_options import IntList, ModelCommand, as_json, echo_json
from .shared.output import say
from .shared.predicted import load_machine, machine_option, said_of
from .shared.source import Source, as_given, check_options, planning_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..cost import Cost, Machine
    from ..cost.bench_rows import BenchRow

_MOST_NODES = 12  # that the table of a plan shows


@click.command(
    "cost", cls=ModelCommand, short_help="Predict how fast MODEL runs, from a calibration."
)
@planning_options("cost")
@machine_option
@click.option("-p", "--n-prompt", type=IntList("numbers of tokens", 0, "512"), default="512",
              show_default=True, help="Tokens of the prompt, as in llama-bench.")  # fmt: skip
@click.option("-n", "--n-gen", type=IntList("numbers of tokens", 0, "128"), default="128",
              show_default=True, help="Tokens to generate, as in llama-bench.")  # fmt: skip
@click.option("--depth", "--n-depth", "depths", type=IntList("numbers of tokens", 0, "0,4096"),
              default="0", show_default=True,
              help="Tokens in the cache before, llama-bench's -d.")  # fmt: skip
@as_json
def command(
    model: Source,
    machine_path: str | None,
    n_prompt: list[int],
    n_gen: list[int],
    depths: list[int],
    as_json: bool,
) -> None:
    """Predict the rows of llama-bench for MODEL on a calibrated machine, without running it: tokens
    per second, and the interval that holds the measured number in nine of ten cases. Only the
    header of the model is read. Without -t it has the threads of the calibration.

    MODEL may also be a plan that `ggml-py plan -o` saved: then the time of that one graph. Of a run
    that `ggml-py trace --per-op -o` saved, predicted and measured times stand side by side, the
    greatest misses first.

    \b
    ggml-py calibrate -t 8
    ggml-py cost model.gguf --machine machine.json -p 512 -n 128 --depth 0,4096
    ggml-py cost model.gguf --machine machine.json -d BLAS -d CPU --json
    ggml-py cost plan.json.gz --machine machine.json
    ggml-py cost run.json --machine machine.json
    """
    check_options(model)
    if machine_path is None:
        raise click.UsageError(
            "cost needs --machine FILE, which `ggml-py calibrate -o FILE` writes once for a machine"
        )
    machine = load_machine(machine_path)
    if model.kind is PLAN:
        _show_plan(model.plan().cost(machine), as_json)
        return
    if not model.is_model:
        show_analysis(model.run(), machine, as_json)
        return
    options = model.options
    options["n_threads"] = options["n_threads"] or machine.n_threads
    rows: list[BenchRow] = []
    n_layer = 0
    for depth in depths:
        more, n_layer = _rows(model, machine, n_prompt, n_gen, depth)
        rows += more
    if not rows:
        raise click.UsageError("-p 0 -n 0: expected tokens to evaluate")
    if not any(row.seconds for row in rows):
        raise click.ClickException(_nothing_known(model, machine_path, machine, rows))
    stale = dict.fromkeys(s for row in rows for _n, _past, cost in row.graphs for s in cost.stale)
    doubts = machine.doubts_about(_computing(rows))
    line = None
    if not _refusal(model):
        line = as_given(bench_line(model, n_prompt, n_gen, depths, n_layer))
    if as_json:
        echo_json({
            "machine": machine.to_dict()["machine"], "doubts": list(doubts),
            "stale": list(stale), "verify": line, "rows": [row.to_dict() for row in rows],
        })  # fmt: skip
        return
    said = (
        *(f"stale: {s}; the interval does not count that" for s in stale),
        *(f"doubt: {d}" for d in doubts),
    )
    _show_rows(rows, machine, machine_path, said, line)


def _computing(rows: Sequence[BenchRow]) -> set[str]:
    """The devices that have a split."""
    return {
        split.backend for row in rows for _n, _past, cost in row.graphs for split in cost.splits
    }


def _nothing_known(model: Source, path: str, machine: Machine, rows: Sequence[BenchRow]) -> str:
    measured = ", ".join(device.name for device in machine.devices) or "nothing"
    return (
        f"{path} has measured {measured}, and {model} computes on "
        f"{', '.join(sorted(_computing(rows)))}, of which it "
        "knows nothing: `ggml-py calibrate -d DEVICE` measures a device"
    )


def _rows(
    model: Source, machine: Machine, n_prompt: list[int], n_gen: list[int], depth: int
) -> tuple[list[BenchRow], int]:
    """The rows at one depth, for which llama-bench makes contexts as large as they need, and the
    number of the model's layers."""
    from ..cost.bench_rows import gen_row, prompt_row

    found, n_layer = [], 0
    for n, prompt in [*((n, True) for n in n_prompt), *((n, False) for n in n_gen)]:
        if not n:
            continue
        n_ctx = model.options["n_ctx"] or depth + n
        if n_ctx < depth + n:
            raise click.UsageError(
                f"-c {n_ctx}: {n} tokens at depth {depth} need {depth + n}; llama-bench "
                "makes its contexts as large as they must be, so -c can be left out"
            )
        with model.opened(program="bench", n_ctx=n_ctx) as loaded:
            n_layer = loaded.n_layer
            if prompt:
                found.append(prompt_row(
                    loaded.plan, machine, n, depth, loaded.n_batch, loaded.n_ubatch
                ))  # fmt: skip
            else:
                found.append(gen_row(loaded.plan, machine, n, depth))
    return found, n_layer


def _refusal(model: Source) -> str:
    """Why llama-bench cannot measure this; "" if it can."""
    from ..place.measure import refusal
    from ..place.placing_flags import Flags

    return refusal((), model.devices(), model.path, Flags.of(model.flags()))


def bench_line(
    model: Source, n_prompt: list[int], n_gen: list[int], depths: list[int], n_layer: int
) -> str:
    """The line of llama-bench that measures what was predicted."""
    from ..place.placing_flags import Flags, device_words

    words = ["llama-bench", "-m", model.path, *device_words(model.devices(), "bench")]
    words += Flags.of(model.flags()).words("bench", n_layer)
    for flag, numbers in (("-p", n_prompt), ("-n", n_gen), ("-d", depths)):
        words += [flag, ",".join(map(str, numbers))]
    return shlex.join(words)


def _show_rows(
    rows: list[BenchRow], machine: Machine, path: str, said: tuple[str, ...], line: str | None
) -> None:
    from ..cost.unmeasured import MOST

    was = machine.described
    threads = f"{was.n_threads} thread" + "s" * (was.n_threads != 1)
    say(f"predicted from {path}: {was.processor}, {threads}, ggml {was.ggml}, {was.date}")
    click.echo(f"{'test':>16} {'t/s':>10} {'90% between':>22}  bound by")
    for row in rows:
        between = format_rates(row.tokens_per_second_interval)
        rate = f"{'≤ ' if row.n_unknown else ''}{format_rate(row.tokens_per_second)}"
        if row.unmeasured > MOST:
            rate, between = "?", f"{row.unmeasured:.0%} of the work not measured"
        click.echo(f"{row.test:>16} {rate:>10} {between:>22}  {row.bound}")
    if unknown := dict.fromkeys(kind for row in rows for kind in row.not_measured):
        say(f"not measured, so it is slower than that: {', '.join(unknown)}")
    assumed = dict.fromkeys(one for row in rows for one in row.assumed)
    for sentence in (*assumed, *said):
        say(sentence)
    if line is not None:
        click.echo(f"to verify: {line}")


def _show_plan(cost: Cost, as_json: bool) -> None:
    if as_json:
        echo_json(cost.to_dict())
        return
    say(cost.headline())
    for split in cost.splits if len(cost.splits) > 1 else ():
        click.echo(
            f"split #{split.index} on {split.backend}: {format_time(split.seconds)}, {split.bound}"
        )
    longest = sorted(cost.nodes, key=lambda node: -(node.seconds or 0.0))[:_MOST_NODES]
    click.echo(f"{'node':>6} {'ms':>9}  {'bound by':9} {'op':16} name")
    for node in longest:
        tensor = cost.plan.tensor(node.id)
        ms = "?" if node.seconds is None else f"{node.seconds * 1e3:.3f}"
        click.echo(f"{node.id:6} {ms:>9}  {node.bound:9} {tensor.op:16} {tensor.name}")
    for sentence in said_of(cost):
        say(sentence)

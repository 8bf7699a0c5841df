"""``ggml-py bench``"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..shared.bar import bar
from .output import PRINTERS, Printer, test_name, times
from .params import PARAMS, Setup, Test, param_options, setups, values_of

if TYPE_CHECKING:
    from ...models import Model

# llama-bench's keys that are constant here, with their values.
_FIXED = {
    "cpu_mask": "0x0", "cpu_strict": False, "poll": 50, "lazy_mode": "auto", "embeddings": False,
    "fit_target": 0, "fit_min_ctx": 0,
}  # fmt: skip
_FIELDS = (
    "build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename",
    "model_type", "model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads", "cpu_mask",
    "cpu_strict", "poll", "type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode",
    "main_gpu", "no_kv_offload", "flash_attn", "devices", "tensor_split", "tensor_buft_overrides",
    "load_mode", "lazy_mode", "embeddings", "no_op_offload", "no_host", "repack", "fit_target",
    "fit_min_ctx", "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts",
    "stddev_ts",
)  # fmt: skip
# Parameters that get a column of the table if they are not the default, in the table's order.
_COLUMNS = (
    "n_gpu_layers", "n_cpu_moe", "n_threads", "n_batch", "n_ubatch", "type_k", "type_v",
    "main_gpu", "split_mode", "no_kv_offload", "flash_attn", "devices", "tensor_split",
    "tensor_buft_overrides", "load_mode", "no_op_offload", "no_host", "repack",
)  # fmt: skip


class _PromptAndGen(click.ParamType):  # type: ignore[type-arg]
    """Two numbers."""

    name = "pp,tg"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Both numbers; usage error for anything else."""
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        if len(parts) != 2 or not all(part.isdecimal() for part in parts):
            self.fail(f"{value!r}: expected two numbers of tokens, like 512,128", param, ctx)
        return int(parts[0]), int(parts[1])


@click.command("bench", short_help="Time MODEL in tokens per second, as llama-bench does.")
@click.argument("models", nargs=-1, metavar="[MODEL]...", type=click.Path(dir_okay=False))
@click.option(
    "-m",
    "--model",
    "more",
    multiple=True,
    metavar="MODEL[,MODEL]...",
    help="Models, as llama-bench takes them.",
)
@click.option(
    "-pg",
    "n_pg",
    type=_PromptAndGen(),
    multiple=True,
    help="A prompt and the tokens after it, timed together.",
)
@param_options
@click.option(
    "-r",
    "--repetitions",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="How often each test is timed.",
)
@click.option(
    "--delay",
    default=0,
    metavar="SECONDS",
    type=click.IntRange(0),
    help="Time to cool down before each test.",
)
@click.option("--no-warmup", is_flag=True, help="Do not warm up: time the first run, too.")
@click.option(
    "-o",
    "--output",
    default="md",
    show_default=True,
    type=click.Choice([*PRINTERS]),
    help="Format on standard output.",
)
@click.option(
    "-oe", "--output-err", type=click.Choice([*PRINTERS]), help="Format on standard error."
)
@click.option("--progress", is_flag=True, help="Say on standard error what runs.")
@click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
def command(
    models: tuple[str, ...], more: tuple[str, ...], n_pg: Sequence[tuple[int, int]],
    repetitions: int, delay: int, no_warmup: bool, output: str, output_err: str | None,
    progress: bool, as_json: bool, **lists: Sequence[Sequence[Any]],
) -> None:  # fmt: skip
    """Time MODEL with random tokens: llama-bench's tests, options, table and keys.

    Options may have several values: separate them by commas, give a range (128-512*2) or repeat the
    option. All combinations are run. Each row is printed when it is done; Ctrl-C keeps those.

    \b
    ggml-py bench model.gguf
    ggml-py bench model.gguf -p 512 -n 0 -b 128,256,512 -t 1-4 --json
    """
    names = [*models, *(name for words in more for name in words.split(",") if name)]
    if not names:
        raise click.UsageError("Missing argument 'MODEL'.")
    given = values_of(lists)
    todo = list(setups(names, n_pg, given))
    system = _system()
    columns = _columns(given, system["backends"])
    printers = [PRINTERS["json" if as_json else output](_FIELDS, columns)]
    if output_err:
        printers.append(PRINTERS[output_err](_FIELDS, columns, err=True))
    say = _counting(sum(len(setup.tests) for setup in todo)) if progress else None
    run = _Run(repetitions, delay, not no_warmup, say, wants_bar=not (as_json or progress))
    rows = (row for setup in todo for row in run.rows(setup, system))
    with contextlib.ExitStack() as stack:
        begun: list[Printer] = []
        try:
            for row in rows:
                for printer in printers:
                    if printer not in begun:  # a failure before the first row prints nothing
                        _begin(printer, begun, stack)
                    printer.row(row)
        except KeyboardInterrupt:
            for printer in printers:  # an empty list is still JSON
                if printer not in begun:
                    _begin(printer, begun, stack)
            raise


def _begin(printer: Printer, begun: list[Printer], stack: contextlib.ExitStack) -> None:
    printer.header()
    stack.callback(printer.footer)
    begun.append(printer)


def _columns(given: Mapping[str, Sequence[Any]], backends: str) -> list[str]:
    """The parameters that a table shows: parameters with other values than their defaults."""
    on_cpu = any(name in backends for name in ("CPU", "BLAS", "ZenDNN"))
    shown = {param.field for param in PARAMS if given[param.field] != param.usual}
    shown = shown - {"n_gpu_layers"} | {"n_threads"} if on_cpu else shown | {"n_gpu_layers"}
    return [field for field in _COLUMNS if field in shown]


def _system() -> dict[str, Any]:
    """The keys with the same value in all rows. The build is ours, not llama.cpp's."""
    from ...backends.device import devices
    from ...backends.registry import registries
    from ...boundary.ffi import BUILD
    from ...enums import BackendDevType as Dev

    found = [reg.name for reg in registries() if reg.name not in ("CPU", "RPC")]
    found += ["RPC"] if any(r.devices for r in registries() if r.name.startswith("RPC")) else []

    def described(*types: Dev) -> str:
        return ", ".join(d.description for d in devices() if d.type in types)

    return {
        "build_commit": BUILD["key"],
        "build_number": BUILD["llama_build"],
        "cpu_info": described(Dev.CPU, Dev.ACCEL),
        "gpu_info": described(Dev.GPU, Dev.IGPU),
        "backends": ",".join(found) or "CPU",
    }


def _counting(n: int) -> Callable[[str, bool], None]:
    """A function that prints for --progress what runs; `another` starts the next benchmark."""
    count = 0

    def say(what: str, another: bool = False) -> None:
        nonlocal count
        count += another
        click.echo(f"ggml-py bench: benchmark {count}/{n}: {what}", err=True)

    return say


class _Run:
    """Loads the model of a setup, and times its tests."""

    def __init__(
        self, repetitions: int, delay: int, warmup: bool,
        say: Callable[[str, bool], None] | None, wants_bar: bool,
    ) -> None:  # fmt: skip
        self._repetitions, self._delay, self._warmup = repetitions, delay, warmup
        self._say = say or (lambda _what, _another: None)
        self._wants_bar = wants_bar
        self._state = 0, b""  # a depth, and the sequence's state at that depth

    def rows(self, setup: Setup, system: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields a row for each test when it is done."""
        from ...gguf.reader import Gguf
        from ...models import Model, desc, load

        with bar(f"loading {Path(setup.model).name}", self._wants_bar) as progress:
            model = load(setup.model, progress=progress, graphs="ours", **setup.load_options())
        assert isinstance(model, Model)
        self._state = 0, b""
        with model:
            with Gguf.open(setup.model) as gguf:
                named = {
                    "model_filename": setup.model,
                    "model_type": desc(gguf, model.hparams),
                    "model_size": sum(t.nbytes for t in gguf.tensors.values()),
                    "model_n_params": model.weights.n_params,
                }
            for test in setup.tests:
                began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                samples = self._samples(model, setup, test)
                row = {
                    **system, **named, **_FIXED, **setup.values, "n_prompt": test.n_prompt,
                    "n_gen": test.n_gen, "n_depth": test.n_depth, "test_time": began,
                    **times(samples, test.n_tokens),
                }  # fmt: skip
                yield {key: row[key] for key in (*_FIELDS, "samples_ns", "samples_ts")}

    def _samples(self, model: Model, setup: Setup, test: Test) -> list[int]:
        """Nanoseconds of each repetition."""
        n_batch, n = setup.values["n_batch"], self._repetitions
        self._say("starting", True)
        time.sleep(self._delay)
        model.reset()
        if self._warmup and test.n_prompt:
            self._say("warmup prompt run", False)
            _prompt(model, test.n_prompt, n_batch)
        if self._warmup and test.n_gen:
            self._say("warmup generation run", False)
            _generate(model, 1)
        samples = []
        name = test_name(test.n_prompt, test.n_gen, test.n_depth)
        with bar(name, self._wants_bar) as show:
            for i in range(n):
                model.reset()
                if test.n_depth:
                    self._to_depth(model, test.n_depth, n_batch, f"depth run {i + 1}/{n}")
                start = time.perf_counter_ns()
                if test.n_prompt:
                    self._say(f"prompt run {i + 1}/{n}", False)
                    _prompt(model, test.n_prompt, n_batch)
                if test.n_gen:
                    self._say(f"generation run {i + 1}/{n}", False)
                    _generate(model, test.n_gen)
                samples.append(time.perf_counter_ns() - start)
                show((i + 1) / n)
        return samples

    def _to_depth(self, model: Model, n_depth: int, n_batch: int, what: str) -> None:
        """Fills the cache with `n_depth` tokens; reuses the last state of the same depth."""
        depth, state = self._state
        if depth == n_depth:
            self._say(f"{what} (cached)", False)
            model.set_seq_state(0, state)
        else:
            self._say(what, False)
            _prompt(model, n_depth, n_batch)
            self._state = n_depth, model.seq_state()


def _prompt(model: Model, n: int, n_batch: int) -> None:
    """Evaluates random tokens in batches, with the logits after each batch's last token."""
    n_vocab = model.hparams.n_vocab
    for start in range(0, n, n_batch):
        tokens = random.choices(range(n_vocab), k=min(n_batch, n - start))
        model.eval(tokens, copy=False)


def _generate(model: Model, n: int) -> None:
    """Evaluates random tokens one by one, with the logits after each."""
    n_vocab = model.hparams.n_vocab
    for _ in range(n):
        model.eval([random.randrange(n_vocab)], copy=False)

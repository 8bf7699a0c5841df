"""``ggml-py generate``"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from ..trace.names import counted
from .shared.bar import bar
from .shared.ctrl_c import CtrlC
from .shared.decode_table import as_data, lines
from .shared.model_options import (
    IntList,
    ModelCommand,
    as_json,
    echo_json,
    model_options,
    read_model,
)
from .shared.prompt import prompt_of
from .shared.sampling_options import given_sampling, make_sampler, sampling_options

if TYPE_CHECKING:
    from ..llama.decodes import Decode
    from ..models import Model, Sampler


@click.command(
    "generate",
    cls=ModelCommand,
    short_help="Continue a prompt with MODEL: text or token ids.",
)
@model_options
@click.option("-p", "--prompt", help="The prompt, as text. Text is also what is printed.")
@click.option(
    "--tokens",
    type=IntList("token ids", 0, "1,2,3"),
    help="The prompt, as token ids: 1,2,3. Ids are also what is printed.",
)
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template.")
@click.option("--system-prompt", "-sys", help="With --chat: what the template says first.")
@click.option(
    "-n",
    "--predict",
    "--n-predict",
    "n_predict",
    type=click.IntRange(min=-2),
    help="Maximum number of tokens to generate; -1 or -2: until the context is full. Default: 16; "
    "with --chat until the answer ends.",
)
@sampling_options
@click.option(
    "--ignore-eos",
    is_flag=True,
    help="Never choose a token that ends the text. Otherwise such a token ends the generation.",
)
@click.option(
    "--context-shift/--no-context-shift",
    default=False,
    help="When the context is full, drop half of it and go on.",
)
@click.option(
    "--keep",
    "n_keep",
    type=click.IntRange(min=-1),
    default=0,
    show_default=True,
    help="Tokens at the start that a context shift keeps; -1: the whole prompt.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Say which evaluations could not reuse the previous graph, which parameter differed, and "
    "which inputs were set.",
)
@as_json
def command(
    prompt: str | None,
    tokens: list[int] | None,
    chat: bool,
    system_prompt: str | None,
    n_predict: int | None,
    ignore_eos: bool,
    context_shift: bool,
    n_keep: int,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a prompt with MODEL: text or token ids, printed as they come.

    \b
    ggml-py generate model.gguf -p "The capital of France is" -n 16
    ggml-py generate model.gguf -p "Tell me a joke" --chat -n 200
    ggml-py generate model.gguf --tokens 1,2,3

    Text and sampling need libllama, which is built when it is first needed.

    Without sampling options, the likeliest token is always taken. With at least one, the others
    have llama.cpp's defaults, and the same seed gives the tokens that llama.cpp samples.
    """
    out: list[int] = []
    stop_type = "limit"
    given = given_sampling(options)
    if (prompt is None) == (tokens is None):  # before the weights are read
        raise click.UsageError("expected a prompt: either -p TEXT or --tokens 1,2,3")
    if context_shift:  # our own graphs cannot move positions
        if options["graphs"] == "ours":
            raise click.UsageError("--context-shift is libllama's: not with --graphs ours")
        options["graphs"] = "libllama"
    with read_model(quiet=as_json, **options) as model:
        given_prompt = prompt_of(model, prompt, tokens, chat, system_prompt)
        tokens, eog = given_prompt.tokens, model.eog_tokens
        sampler = make_sampler(given, eog if ignore_eos else (), model)
        n = n_predict = (-2 if chat else 16) if n_predict is None else n_predict
        if n < 0:
            forever = context_shift and n == -1
            n = sys.maxsize if forever else max(0, model.n_ctx_seq - len(tokens) + 1)
        start = time.perf_counter()
        how: dict[str, Any] = {"stop": eog}
        if context_shift:
            how |= {"context_shift": True, "n_keep": n_keep}
        stream = _stream(model, tokens, n, sampler, wants_bar=not as_json, **how)
        decodes: list[Decode] = []
        text_ends = eog if prompt is not None else ()  # they have no text to print
        try:
            with (
                CtrlC() as ctrl_c,
                model.watch() if verbose else nullcontext(decodes) as decodes,
            ):
                for token in stream:
                    ctrl_c.hold()
                    given_prompt.take(token, quiet=as_json or token in text_ends)
                    out.append(token)
                    ctrl_c.release()
            if out and out[-1] in eog:
                stop_type = "eos"
        except KeyboardInterrupt:
            stop_type = "interrupt"
        seconds = time.perf_counter() - start
        n_past = model.n_past
    if as_json:
        echo_json(
            {
                "prompt": tokens,
                "tokens": out,
                **({"text": given_prompt.text} if prompt is not None else {}),
                "stop_type": stop_type,
                "seed": sampler.seed if sampler is not None else None,
                "seconds": seconds,
                "tokens_per_s": len(out) / seconds,
                **({"decodes": as_data(decodes)} if verbose else {}),
            }
        )
    else:
        click.echo()
        seed = f", seed {sampler.seed}" if sampler is not None and sampler.temperature else ""
        for line in lines(decodes) if verbose else ():
            click.echo(line, err=True)
        n_out = counted(len(out), "token")
        click.echo(f"{n_out} in {seconds:.2f} s, prompt included{seed}", err=True)
    if stop_type == "interrupt":
        n_out = f"{len(out)} of {n_predict} tokens" if n_predict > 0 else counted(len(out), "token")
        done = f"; evaluated {n_past} of the prompt's {len(tokens)}" if not out else ""
        click.echo(f"stopped after {n_out}{done}", err=True)
        sys.exit(130)


def _stream(
    model: Model,
    tokens: list[int],
    n: int,
    sampler: Sampler | None,
    wants_bar: bool,
    **how: Any,
) -> Iterator[int]:
    """`Model.stream`, with a bar for a prompt of several batches. The batches are evaluated one by
    one, as `Model.eval` does, so the tokens are the same."""
    if how.get("context_shift"):
        yield from model.stream(tokens, n, sampler, **how)
        return
    model.stream(tokens, n, sampler, **how)  # raises for invalid arguments, with all tokens
    starts = range(0, len(tokens), model.n_batch)
    with bar("prompt", wants_bar and len(starts) > 1, at_once=True) as show:
        for start in starts[:-1]:
            show(start / len(tokens))
            batch = tokens[start : start + model.n_batch]
            model.eval(batch, copy=False)
            if sampler is not None:
                sampler.accept(batch)
        show(starts[-1] / len(tokens))
        stream = model.stream(tokens[starts[-1] :], n, sampler, **how)
        first = list(itertools.islice(stream, 1))
    yield from first
    yield from stream

"""``ggml-py generate``"""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from .ctrl_c import CtrlC
from .options import IntList, ModelCommand, as_json, echo_json, model_options, read_model
from .sampling import given_sampling, make_sampler, sampling_options


@click.command("generate", cls=ModelCommand)
@model_options
@click.option(
    "--tokens",
    type=IntList("token ids", 0, "1,2,3"),
    required=True,
    help="The prompt, as token ids: 1,2,3.",
)
@click.option(
    "-n",
    "--predict",
    "--n-predict",
    "n_predict",
    type=click.IntRange(min=-2),
    default=16,
    show_default=True,
    help="Tokens to generate at most; -1 or -2: until the context is full.",
)
@sampling_options
@click.option(
    "--ignore-eos",
    is_flag=True,
    help="Never choose a token that ends the text; else one ends the generation.",
)
@click.option(
    "--context-shift/--no-context-shift",
    default=False,
    help="Go on when the context is full: half of it is lost each time.",
)
@click.option(
    "--keep",
    "n_keep",
    type=click.IntRange(min=-1),
    default=0,
    show_default=True,
    help="Tokens at its start that it keeps then; -1: the prompt.",
)
@as_json
def command(
    tokens: list[int],
    n_predict: int,
    ignore_eos: bool,
    context_shift: bool,
    n_keep: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a prompt with MODEL; token ids in, token ids out, each as it comes.

    Without an option of sampling the likeliest token is taken. With one, the others have
    llama.cpp's defaults, and the same seed gives the tokens that llama.cpp samples.
    """
    out: list[int] = []
    stop_type = "limit"
    given = given_sampling(options)
    with read_model(quiet=as_json, **options) as model:
        eog = model.hparams.eog_tokens
        sampler = make_sampler(given, banned=eog if ignore_eos else ())
        n = n_predict
        if n < 0:
            forever = context_shift and n == -1
            n = sys.maxsize if forever else max(0, model.n_ctx_seq - len(tokens) + 1)
        start = time.perf_counter()
        stream = model.stream(
            tokens, n, sampler, stop=eog, context_shift=context_shift, n_keep=n_keep
        )
        try:
            with CtrlC() as ctrl_c:
                for token in stream:
                    ctrl_c.hold()
                    if not as_json:
                        click.echo(f"{',' if out else ''}{token}", nl=False)
                    out.append(token)
                    ctrl_c.release()
            if out and out[-1] in eog:
                stop_type = "eos"
        except KeyboardInterrupt:
            stop_type = "interrupt"
        seconds = time.perf_counter() - start
    if as_json:
        echo_json(
            {
                "prompt": tokens,
                "tokens": out,
                "stop_type": stop_type,
                "seed": sampler.seed if sampler is not None else None,
                "seconds": seconds,
                "tokens_per_s": len(out) / seconds,
            }
        )
    else:
        click.echo()
        seed = f", seed {sampler.seed}" if sampler is not None and sampler.temperature else ""
        click.echo(f"{len(out)} tokens in {seconds:.2f} s, prompt included{seed}", err=True)
    if stop_type == "interrupt":
        of = f" of {n_predict}" if n_predict > 0 else ""
        click.echo(f"stopped after {len(out)}{of} tokens", err=True)
        sys.exit(130)

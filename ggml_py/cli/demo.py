"""``ggml-py demo``"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from .shared.model_options import as_json, echo_json
from .shared.verb import Verb

N_PROMPT, N_GENERATE = 64, 16


@click.command("demo", cls=Verb, short_help="Write, plan, explain and run a small made-up llama.")
@click.option("-t", "--threads", "n_threads", type=click.IntRange(min=1), help="Threads.")
@as_json
def command(n_threads: int | None, as_json: bool) -> None:
    """Write a small made-up llama, plan its graph, say why, and generate tokens."""
    from ..backends.device import devices
    from ..export.to_terminal import show
    from ..models import load
    from ..models.synthetic import LlamaSpec, write_llama

    spec = LlamaSpec()
    names = tuple(d.name for d in devices())
    with tempfile.TemporaryDirectory(prefix="ggml-py-demo-") as folder:
        path = Path(folder) / "demo.gguf"
        write_llama(path, spec)
        size = path.stat().st_size
        with load(path, devices=names, n_threads=n_threads, repack=False) as model:
            plan = model.plan(n_tokens=N_PROMPT)
            prompt = [(7 * i) % model.hparams.n_vocab for i in range(N_PROMPT)]
            start = time.perf_counter()
            model.eval(prompt[:-1])
            between = time.perf_counter()
            tokens = model.generate(prompt[-1:], N_GENERATE)
            end = time.perf_counter()
    prompt_rate = (N_PROMPT - 1) / (between - start)
    rate = N_GENERATE / (end - between)
    node = plan.node(f"ffn_out-{spec.n_layer - 1}")
    if as_json:
        echo_json(
            {
                "model": {"n_params": spec.n_params, "bytes": size, "type": str(spec.type)},
                "devices": names,
                "n_splits": plan.n_splits,
                "copy_bytes": plan.copy_bytes,
                "nodes_per_backend": plan.nodes_per_backend(),
                "why": {"node": node.name, "backend": node.backend, "cause": str(node.cause)},
                "tokens": tokens,
                "prompt_tokens_per_s": prompt_rate,
                "tokens_per_s": rate,
            }
        )
        return
    click.echo(
        f"A llama with random weights: {spec.n_params / 1e6:.1f}M parameters, {spec.type}, "
        f"{size / 1e6:.1f} MB.\nIts graph for a prompt of {N_PROMPT} tokens, over "
        f"{' and '.join(names)}:\n"
    )
    show(plan)
    click.echo(
        f"\nWhy is {node.name} ({node.op}) on {node.backend}?\n"
        f"  {node.cause.code}: {node.cause.text}.\n\n"
        f"{N_GENERATE} tokens: {','.join(map(str, tokens))}\n"
        f"{rate:.1f} tokens/s (prompt: {prompt_rate:.1f} tokens/s)"
    )

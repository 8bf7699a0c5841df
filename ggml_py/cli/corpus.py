"""``ggml-py corpus``"""

from __future__ import annotations

import re
from pathlib import Path

import click

from ..trace.names import counted
from .shared.bar import bar
from .shared.source import Source, SourceType, as_given
from .shared.verb import Verb


@click.group("corpus", short_help="Keep plans of models and programs, for compare and ci.")
def command() -> None:
    """Keep many plans in a folder, which `ggml-py compare` and `ggml-py ci` take as a source.

    \b
    ggml-py corpus make plans models/*.gguf
    ggml-py corpus add plans llama-server.ggrec --no-names
    ggml-py compare --upstream 0.25.3 --upstream 0.26.0 plans
    """


@command.command(cls=Verb)
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument(
    "models",
    nargs=-1,
    required=True,
    type=SourceType("corpus make"),
    metavar="MODEL…",
)
def make(folder: str, models: tuple[Source, ...]) -> None:
    """Plan MODELS on seven sets of devices and options. These are the CPU, BLAS, and a simulated
    RTX 4090 with all layers, with one layer, with experts in host memory, or with the cache in host
    memory; and two such cards.

    Each set gives three plans: the graph that libllama reserves, a prompt of 64 tokens, and one
    token. Weights are not read. Existing plans stay; another plan in a file of that name is an
    error. Exit status 1 if a model gave no plan at all.
    """
    from ..llama.corpus_cases import corpus_plans
    from ..plan import Plan
    from ..releases.corpus import Corpus

    corpus = Corpus(Path(folder))
    written, without = 0, []
    paths = [Path(model.path) for model in models if model.is_model]
    with bar(f"planning {len(models)} models", at_once=True) as show:
        for i, model in enumerate(paths):
            rows = list(corpus_plans(model))
            plans = [(label, plan) for label, plan in rows if isinstance(plan, Plan)]
            written += corpus.add(model.stem, plans, anew=True)
            said = dict.fromkeys(text for _label, text in rows if isinstance(text, str))
            for text in said:
                labels = [label for label, other in rows if other == text]
                click.echo(f"{model.name}: {', '.join(labels)}: {as_given(text)}", err=True)
            without += [] if plans else [model.name]
            show((i + 1) / len(models))
    click.echo(f"{counted(written, 'plan')} written to {folder}")
    if without:
        click.echo(f"no plan of {', '.join(without)}", err=True)
        click.get_current_context().exit(1)


@command.command("add", cls=Verb)
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument(
    "sources", nargs=-1, required=True, metavar="RECORD…", type=SourceType("corpus add")
)
@click.option("--name", metavar="NAME", help="What files are called; by default like the source.")
@click.option("--no-names", is_flag=True, help="Replace the names of tensors.")
def add_command(folder: str, sources: tuple[Source, ...], name: str | None, no_names: bool) -> None:
    """Add the plans of records, and saved plans. A plan that decides the same about the same graph
    as one that is there is left out."""
    from ..releases.corpus import Corpus

    if name is not None and (len(sources) > 1 or not re.fullmatch(r"[\w.+-]+", name)):
        raise click.UsageError(
            f"--name {name}: expected letters, digits, '.', '+', '-' and '_', and one source"
        )
    corpus = Corpus(Path(folder))
    for source in sources:
        plans = [(re.sub(r"[^A-Za-z0-9.]+", "-", label), plan) for label, plan in source.plans()]
        called = name or re.sub(r"\.(ggrec|json|gz)\b", "", Path(source.given).name)
        written = corpus.add(called, plans, names=not no_names)
        known = f"; {counted(len(plans) - written, 'other')} known" if written < len(plans) else ""
        click.echo(f"{source}: {counted(written, 'plan')} added to {folder}{known}")

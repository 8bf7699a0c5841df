"""Options that several verbs share, by llama.cpp's names, and what they mean to `models.load`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..models import Model

F = TypeVar("F", bound=Callable[..., Any])


class ModelOption(click.Option):
    """An option of a model, which a saved plan does not take."""


def model_option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` for those."""
    return click.option(*names, cls=ModelOption, **settings)


_LOAD_OPTIONS = [
    model_option("-d", "--device", "devices", multiple=True, metavar="NAME",
                 help="Device, in priority order; repeat; rpc:HOST:PORT for a server's, "
                      "sim:NAME[,profile=cuda,memory=8G,min_batch=32,...] for a simulated one. "
                      "Default: all, GPUs first, the CPU last."),
    model_option("-ngl", "--n-gpu-layers", default=0, show_default=True,
                 help="Layers whose weights go to the GPUs, by their free memory."),
    model_option("-c", "--ctx-size", "n_ctx", default=512, show_default=True,
                 help="Tokens that the cache holds."),
    model_option("-b", "--batch-size", "n_batch", default=512, show_default=True,
                 help="Tokens that one evaluation takes."),
    model_option("-ub", "--ubatch-size", "n_ubatch", default=512, show_default=True,
                 help="Tokens that one graph takes."),
    model_option("-t", "--threads", "n_threads", type=click.IntRange(min=1),
                 help="Threads. Default: the cores this process may use."),
    model_option("-fa", "--flash-attn", type=click.Choice(["on", "off", "auto"]), default="auto",
                 show_default=True, help="Attention in one op."),
    model_option("-ctk", "--cache-type-k", "type_k", default="f16", show_default=True,
                 help="Type of the K cache."),
    model_option("-ctv", "--cache-type-v", "type_v", default="f16", show_default=True,
                 help="Type of the V cache."),
    model_option("--repack/--no-repack", " /-nr", default=True, show_default=True,
                 help="Lay weights out for the CPU's kernels, where it has such layouts."),
]  # fmt: skip

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def load_options(function: F) -> F:
    """The options of `models.load`."""
    for option in reversed(_LOAD_OPTIONS):
        function = option(function)
    return function


def model_options(function: F) -> F:
    """The MODEL argument and the options of `models.load`."""
    return click.argument("model", type=click.Path(dir_okay=False))(load_options(function))


def load_model(model: str, devices: tuple[str, ...], **options: Any) -> Model:
    """The model that the options describe."""
    from .._device import devices as all_devices
    from ..models import load

    return load(model, devices=devices or tuple(d.name for d in all_devices()), **options)


class IntList(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers with commas between them; `what` they are, `least` what they are at least."""

    def __init__(self, what: str, least: int, example: str) -> None:
        self.name, self.least, self.example = what, least, example

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """The list; usage error for anything else."""
        if isinstance(value, list):
            return value
        try:
            numbers = [int(part) for part in value.split(",")]
        except ValueError:
            numbers = [self.least - 1]
        if min(numbers) < self.least:
            self.fail(
                f"{value!r}: expected {self.name} with commas between them, like {self.example}"
            )
        return numbers


def echo_json(data: Any) -> None:
    """Prints `data` as JSON."""
    click.echo(json.dumps(data, indent=2))

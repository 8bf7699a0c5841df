"""Options that several verbs share, by llama.cpp's names, and what they mean to `models.load`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..models import Model

F = TypeVar("F", bound=Callable[..., Any])

_MODEL_OPTIONS = [
    click.argument("model", type=click.Path(dir_okay=False)),
    click.option("-d", "--device", "devices", multiple=True, metavar="NAME",
                 help="Device, in priority order; repeat; rpc:HOST:PORT for a server's, "
                      "sim:NAME[,profile=cuda,memory=8G,min_batch=32,...] for a simulated one. "
                      "Default: all, GPUs first, the CPU last."),
    click.option("-ngl", "--n-gpu-layers", default=0, show_default=True,
                 help="Layers whose weights go to the GPUs, by their free memory."),
    click.option("-c", "--ctx-size", "n_ctx", default=512, show_default=True,
                 help="Tokens that the cache holds."),
    click.option("-b", "--batch-size", "n_batch", default=512, show_default=True,
                 help="Tokens that one evaluation takes."),
    click.option("-ub", "--ubatch-size", "n_ubatch", default=512, show_default=True,
                 help="Tokens that one graph takes."),
    click.option("-t", "--threads", "n_threads", type=click.IntRange(min=1),
                 help="Threads. Default: the cores this process may use."),
    click.option("-fa", "--flash-attn", type=click.Choice(["on", "off", "auto"]), default="auto",
                 show_default=True, help="Attention in one op."),
    click.option("-ctk", "--cache-type-k", "type_k", default="f16", show_default=True,
                 help="Type of the K cache."),
    click.option("-ctv", "--cache-type-v", "type_v", default="f16", show_default=True,
                 help="Type of the V cache."),
]  # fmt: skip

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def model_options(function: F) -> F:
    """The MODEL argument and the options of `models.load`."""
    for option in reversed(_MODEL_OPTIONS):
        function = option(function)
    return function


def load_model(model: str, devices: tuple[str, ...], **options: Any) -> Model:
    """The model that the options describe."""
    from .._device import devices as all_devices
    from ..models import load

    return load(model, devices=devices or tuple(d.name for d in all_devices()), **options)


class TokenList(click.ParamType):  # type: ignore[type-arg]
    """Token ids with commas between them."""

    name = "ids"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """The list; usage error for anything that is no whole number."""
        if isinstance(value, list):
            return value
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r}: expected token ids with commas between them, like 1,2,3")


def echo_json(data: Any) -> None:
    """Prints `data` as JSON."""
    click.echo(json.dumps(data, indent=2))

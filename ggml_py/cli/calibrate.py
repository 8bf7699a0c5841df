"""``ggml-py calibrate``"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .shared.bar import bar
from .shared.model_options import as_json, device_names, echo_json
from .shared.verb import Verb

if TYPE_CHECKING:
    from ..cost import Machine

_PARTIAL = ".part.json"


@click.command(
    "calibrate", cls=Verb, short_help="Measure this machine, so that plans can be timed."
)
@click.option(
    "-d", "-dev", "--device", "devices", multiple=True, metavar="NAME",
    help="A device to measure, as in other verbs: a name, sim:NAME,SETTING=... or rpc:HOST:PORT. "
    "May be repeated. Default: all of this machine.",
)  # fmt: skip
@click.option("-t", "--threads", "n_threads", type=click.IntRange(min=1),
              help="Threads of the CPU. Default: the cores this process may use.")  # fmt: skip
@click.option("--types", metavar="TYPE,...",
              help="Types of weights to measure, the most needed first. Default: all that models "
              "usually have, as far as the time lasts.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False), default="machine.json",
              show_default=True, metavar="FILE", help="The file to write.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--seconds", type=click.FloatRange(min=1.0, max=90.0), default=90.0,
              show_default=True, help="The longest time for one device.")  # fmt: skip
@as_json
def command(
    devices: tuple[str, ...],
    n_threads: int | None,
    types: str | None,
    output: str,
    force: bool,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure how long this machine's devices take for the work of models, with the threads of -t.

    It measures matrix products by type and batch, attention by length and type of cache, the ops
    between them, and copies. It also measures the overhead of a graph, a split and a node. `ggml-py
    cost` predicts with these times.

    It takes at most 90 seconds for each device. Nothing else should run meanwhile: if others use
    the machine, the file and the output say so.

    \b
    ggml-py calibrate -t 8 -o machine.json
    ggml-py calibrate -d BLAS -d CPU -t 8 --force
    ggml-py cost model.gguf --machine machine.json -p 512 -n 128
    """
    from ..calibrate import TYPES, calibrate
    from ..errors import GgmlError
    from .shared.output import check_target

    check_target(output, force)
    names = device_names(devices)
    wanted = _types(types) if types else TYPES
    try:
        with bar("calibrating", not as_json, at_once=True) as show:
            machine = calibrate(
                names, n_threads, seconds=seconds, types=wanted,
                progress=lambda _what, share: show(share),
            )  # fmt: skip
    except KeyboardInterrupt:
        click.echo(f"stopped: {output} was not written", err=True)
        raise click.exceptions.Exit(128 + signal.SIGINT) from None
    except GgmlError as error:
        _keep_partial(getattr(error, "measured", None), output)
        raise
    machine.save(output, force=force)
    if as_json:
        echo_json(summary(machine, output))
        return
    for line in told(machine):
        click.echo(line)
    click.echo(f"{output}: written")


def _types(text: str) -> list[str]:
    from ..tensors.tensor import type_of

    try:
        return [type_of(word).name.lower().replace("_k", "_K") for word in text.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--types {text}: {error}") from None


def _keep_partial(machine: Machine | None, output: str) -> None:
    """Writes the measurements that were made before a device was lost."""
    if machine is None or not machine.devices:
        return
    path = Path(output).with_name(Path(output).name.removesuffix(".json") + _PARTIAL)
    machine.save(path, force=True)
    names = ", ".join(device.name for device in machine.devices)
    click.echo(f"{path}: what was measured before ({names})", err=True)


def summary(machine: Machine, path: str) -> dict[str, object]:
    """What `--json` prints: the description, and how much of each device was measured."""
    data = machine.to_dict()
    return {
        "path": path, "machine": data["machine"], "doubts": data["doubts"],
        "devices": {device.name: len(device.samples) for device in machine.devices},
    }  # fmt: skip


def told(machine: Machine) -> list[str]:
    """The machine in a few lines."""
    was = machine.described
    threads = f"{was.n_threads} thread" + "s" * (was.n_threads != 1)
    lines = [f"{was.processor}, {threads}, ggml {was.ggml}, {was.seconds:.0f} s"]
    lines += [f"{d.name}: {len(d.samples)} samples" for d in machine.devices]
    return lines + [f"doubt: {doubt}" for doubt in machine.doubts]

"""``ggml-py why-not``"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from .options import as_json, echo_json
from .source import get_plan, get_tensor, source_options
from .what_if import as_texts

if TYPE_CHECKING:
    from .._device import Device
    from ..trace.plan import Plan, PlanTensor
    from ..trace.variant import Nearest
    from ..trace.why_not import WhyNot


@click.command("why-not")
@source_options("model")
@click.argument("node")
@click.argument("backend")
@click.option(
    "--ask",
    metavar="DEVICE",
    help="Device that is asked what it would support instead (sim:NAME,profile=cuda too). "
    "Default: BACKEND's, if it is here and lacks the op.",
)
@as_json
def command(
    model: str, node: str, backend: str, ask: str | None, as_json: bool, **options: Any
) -> None:
    """Tell why NODE of MODEL's graph is not on BACKEND, and what it would take.

    The rule that kept it off comes first, then those that would have kept it off, too, each with
    the changes that help, and what `ggml-py plan` takes to show all that they change. If BACKEND
    lacks the op, its device is asked for the smallest change to the node that it supports.

    MODEL may be a plan that `ggml-py plan MODEL -o FILE` saved ('-': standard input). NODE is a
    name, of a weight too, or a node's number; a name that several have means the last.

    \b
    ggml-py why-not model.gguf ffn_out-3 BLAS
    ggml-py why-not model.gguf node_24 gpu0 -d sim:gpu0,profile=cuda -d CPU -ngl 99 -ctk q5_1
    ggml-py why-not plan.json.gz node_24 CUDA0 --ask sim:card,profile=cuda
    """
    plan = get_plan(model, **options)
    tensor = get_tensor(plan, node)
    answer = plan.why_not(tensor, backend)
    nearest, not_asked = _nearest(plan, tensor, backend, ask)
    changes = _changes(answer)
    if as_json:
        found = nearest.to_dict() if nearest else None
        more = {"what_if": changes, "nearest": found, "not_asked": not_asked}
        echo_json({**answer.to_dict(), **more})
        return
    click.echo(str(answer))
    if changes:
        click.echo("To see all that a change changes, ggml-py plan ...")
    for text in changes:
        click.echo(f"  --what-if {shlex.quote(text)}")
    if nearest:
        click.echo(nearest.render())
    elif not_asked:
        click.echo(f"What {backend} would support instead: {not_asked}")


def _changes(answer: WhyNot) -> list[str]:
    """The changes that it names, as --what-if takes them."""
    changes = [change for reason in answer.reasons for change in reason.changes]
    changes += [answer.pin] if answer.pin else []
    texts = (text for change in changes for text in as_texts(change.what_if))
    return list(dict.fromkeys(texts))


def _nearest(
    plan: Plan, tensor: PlanTensor, backend: str, ask: str | None
) -> tuple[Nearest | None, str]:
    """The nearest supported variant, or why the device was not asked; neither if it has the op."""
    b = plan.capture.backend_index(backend)
    if ask is None and (tensor.index is None or tensor.record.supports >> b & 1):
        return None, ""
    try:
        found = _device(ask) if ask else _same_device(plan, b)
    except ImportError as error:
        if ask:
            raise
        return None, f"no device can be asked here ({error})"
    if found is None:
        device = plan.backends[b].device
        return None, f"{device} is not here; --ask asks another device, like sim:x,profile=cuda"
    from ..trace.nearest import nearest

    return nearest(tensor, found), ""


def _device(name: str) -> Device:
    from ..models.placement import named_devices

    return named_devices(name)[0]


def _same_device(plan: Plan, b: int) -> Device | None:
    """The device of this machine that is called as the plan's."""
    from .._device import device
    from ..errors import UnknownDeviceError

    try:
        return device(plan.backends[b].device)
    except UnknownDeviceError:
        return None

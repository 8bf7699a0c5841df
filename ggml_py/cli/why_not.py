"""``ggml-py why-not``"""

from __future__ import annotations

import logging
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..errors import AllocError, ModelError
from ..trace.answers.why_not import ASKED
from ..trace.promise import as_texts
from .shared.flag_names import with_flags
from .shared.model_options import ModelCommand, as_json, echo_json
from .shared.model_setup import setup_of
from .shared.named_tensor import get_tensor
from .shared.output import say
from .shared.source import Source, source_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends.device import Device
    from ..memory.shortfalls import Shortfall
    from ..plan import Plan
    from ..sim.profile import Decision
    from ..trace.answers.reasons import Flag
    from ..trace.answers.why_not import WhyNot
    from ..trace.planned import PlanTensor

log = logging.getLogger("ggml_py")


@click.command(
    "why-not",
    cls=ModelCommand,
    short_help="Tell why NODE is not on BACKEND, and what would change it.",
)
@source_options("model")
@click.argument("node")
@click.argument("backend")
@click.option(
    "--ask",
    metavar="DEVICE",
    help="Device to ask what it would support instead, even sim:NAME,profile=cuda. "
    "Default: BACKEND's own, if it is here and lacks the op.",
)
@as_json
def command(model: Source, node: str, backend: str, ask: str | None, as_json: bool) -> None:
    """Tell why NODE of MODEL's graph is not on BACKEND, and what it would take.

    The rule that kept it off comes first, then the rules that would also have kept it off. Each
    comes with the changes that help, and with the `ggml-py plan` options that show their full
    effect. Options of llama.cpp may change the graph, too. A model is planned with them; for a
    saved plan they are marked "not checked". If BACKEND lacks the op, its device is asked for the
    smallest change to the node that makes it supported.

    MODEL may also be a plan that `ggml-py plan MODEL -o FILE` saved ('-' is standard input). NODE
    is a name (also of a weight) or a node's number. If several have the name, the last one counts.

    \b
    ggml-py why-not model.gguf ffn_out-3 BLAS
    ggml-py why-not model.gguf node_33 gpu0 -d sim:gpu0,profile=cuda -d CPU -ngl 99 -ctk iq4_nl
    ggml-py why-not plan.json.gz node_33 CUDA0 --ask sim:card,profile=cuda
    """
    plan = model.plan()
    _check_order(plan, node, backend)
    tensor = get_tensor(plan, node)
    device, not_asked = _device_to_ask(plan, tensor, backend, ask)
    answer = _checked(plan.why_not(tensor, backend, device), model)
    if any(reason.id == "op.memory" for reason in answer.reasons):
        not_asked = "this op, with that source in its own memory" if ask else ""
    elif not any(reason.id in ASKED for reason in answer.reasons):
        not_asked = ""
    decision = _decision(tensor, device) if answer.nearest else None
    changes = _changes(answer)
    if as_json:
        more = {
            "not_asked": not_asked,
            "decision": asdict(decision) if decision is not None else None,
            "what_if": changes,
        }
        echo_json({**answer.to_dict(), **more})
        return
    say(str(answer))
    if decision is not None:  # its truth is its answer
        say(f"  its profile says {decision.text}")
    if not_asked:
        say(f"  what it would support instead: {not_asked}")
    if changes:
        click.echo("To see everything that a change affects, run ggml-py plan ... with")
    for texts in changes:
        click.echo(f"  {' '.join(f'--what-if {shlex.quote(text)}' for text in texts)}")


def _check_order(plan: Plan, node: str, backend: str) -> None:
    """Raises a usage error for a backend and a node in each other's place."""
    names = {t.name for t in plan.tensors}
    given = [text in names or text.isdecimal() for text in (node, backend)]
    if given == [False, True]:
        raise click.UsageError(
            f"{backend} is a node, not a backend: the node comes first, {backend} {node}"
        )


def _checked(answer: WhyNot, model: Source) -> WhyNot:
    """The answer after planning the model with each of llama.cpp's options. A saved plan has no
    model, and --fit would choose other options again."""
    if not model.is_model or model.options["fit"] == "on":
        return answer
    trials = _Trials(model)
    return answer.checked(trials.planned_with, trials.lacks_at)


class _Trials:
    """The model of a source with options of llama.cpp before the given ones, each tried once."""

    def __init__(self, source: Source) -> None:
        self._source, self._setup = source, setup_of(source)
        self._made: dict[tuple[str, ...], tuple[Plan | str, str]] = {}

    def planned_with(self, flags: Sequence[Flag]) -> tuple[Plan | str, str]:
        """The plan, and the memory that devices then lack. If llama.cpp
        cannot load the model with them, the error's text is in the plan's place."""
        key = tuple(flag.text for flag in flags)
        if key not in self._made:
            self._made[key] = self._planned_with(flags)
        return self._made[key]

    def _planned_with(self, flags: Sequence[Flag]) -> tuple[Plan | str, str]:
        from ..llama import LlamaModel

        words = [word for flag in flags for word in flag.words]
        log.disabled = True  # its warnings about the options were already shown
        try:
            with self._source.opened(words, quiet=True, **self._changes(flags)) as loaded:
                plan = loaded.plan(*self._source.shape)
                if isinstance(loaded, LlamaModel):
                    return plan, _said(loaded.shortfalls())
        except (AllocError, ModelError) as error:
            return with_flags(str(error), click.get_current_context().command), ""
        finally:
            log.disabled = False
        return plan, self.lacks_at(flags)

    def lacks_at(self, flags: Sequence[Flag], n_tokens: int = 0) -> str:
        """The memory that devices lack if a graph takes this many tokens, as `memory` has it."""
        changes = self._changes(flags)
        for name in ("n_ubatch", "n_batch"):
            if n_tokens > (self._setup.options[name] or n_tokens):
                changes[name] = n_tokens
        try:
            with self._setup.by_libllama(changes) as loaded:
                return _said(loaded.shortfalls())
        except (AllocError, ModelError) as error:
            return str(error)

    def _changes(self, flags: Sequence[Flag]) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for flag in flags:
            changes |= flag.options
        first = [one for flag in flags for one in flag.options.get("overrides", ())]
        return {**changes, "overrides": (*first, *self._source.options["overrides"])}


def _said(lacks: Sequence[Shortfall]) -> str:
    return " and ".join(one.text for one in lacks)


def _changes(answer: WhyNot) -> list[list[str]]:
    """The changes that it names, as arguments of --what-if, with their prerequisites."""
    changes = [change for reason in answer.reasons for change in reason.changes]
    changes += [answer.pin] if answer.pin else []
    texts = (tuple(as_texts(change.what_if)) for change in changes)
    return [list(text) for text in dict.fromkeys(texts)]


def _device_to_ask(
    plan: Plan, tensor: PlanTensor, backend: str, ask: str | None
) -> tuple[Device | None, str]:
    """The device to ask for the nearest supported variant, or why there is none. Neither if the
    backend has the op."""
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
        return None, f"{device} is not here; --ask takes another device, like sim:x,profile=cuda"
    return found, ""


def _decision(tensor: PlanTensor, device: Device | None) -> Decision | None:
    """What a simulated device's profile says, and which row decides it."""
    decide = getattr(getattr(device, "profile", None), "decide", None)
    return decide(tensor) if decide else None


def _device(name: str) -> Device:
    from ..sim.given import named_devices

    return named_devices(name)[0]


def _same_device(plan: Plan, b: int) -> Device | None:
    """The device of this machine with the name of the plan's device."""
    from ..backends.device import device
    from ..errors import UnknownDeviceError
    from ..sim.sim_device import existing

    name = plan.backends[b].device
    try:
        return existing(name) or device(name)
    except UnknownDeviceError:
        return None

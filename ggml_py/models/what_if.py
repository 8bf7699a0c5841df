"""What llama.cpp would plan if something were otherwise: the model is loaded again.

A device that lacks an op has other weights, other pinned norms, perhaps no flash attention. So the
loader is asked again, on this thread, while the devices answer as assumed. Pins of nodes, copies
for pipeline parallelism and the rules of another release are nothing that llama.cpp's loader can be
asked about: only the scheduler is told about them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from ..backends.device import Device
from ..sim.assumed import Answer, assuming, means
from ..sim.given import named_devices
from ..sim.named import load_profile
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    from ..llama.options import Options
    from .file.placement import LayerPlacement

Changes = dict[str, Any]  # arguments of `Plan.what_if`


class Reload(NamedTuple):
    """How the model is to be loaded again."""

    options: Changes  # of `load`, other than before
    supports: dict[Device, Answer]
    offload: dict[Device, Answer]

    def assuming(self) -> Any:
        """A context in which the devices answer as assumed."""
        if not self.supports and not self.offload:
            return nullcontext()
        return assuming(self.supports, self.offload)


def divided(changes: Changes, weights: Iterable[str]) -> tuple[Changes, Changes]:
    """The changes that the loader can be asked about, and those for the scheduler alone."""
    names, loader, rest = list(weights), Changes(), Changes()
    for argument, value in changes.items():
        if isinstance(value, Mapping):
            for key, answer in value.items():
                where = loader if _is_loaders(argument, key, answer, names) else rest
                where.setdefault(argument, {})[key] = answer
        elif value is not None and value != ():
            (loader if argument in ("drop", "op_offload") else rest)[argument] = value
    return loader, rest


def _is_loaders(argument: str, key: Any, answer: Any, weights: list[str]) -> bool:
    if argument in ("supports", "offload"):
        return isinstance(key[1], str) and isinstance(answer, bool)
    if argument == "profiles":
        return True
    return (
        argument == "move_weights"
        and isinstance(key, str)
        and any(fnmatch.fnmatchcase(name, key) for name in weights)
        and not any(fnmatch.fnmatchcase(f"cache_{what}_l0", key) for what in "kvrs")
    )


def reload(changes: Changes, options: Options, placement: LayerPlacement) -> Reload:
    """How to load a model with `options` again under changes of the first kind of `divided`."""
    found = Reload({}, {}, {})
    if "op_offload" in changes:
        found.options["op_offload"] = changes["op_offload"]
    if "drop" in changes:
        gone = {_device(name, placement) for name in changes["drop"]}
        every = [d for given in options.devices for d in named_devices(given)]
        found.options["devices"] = [d for d in every if d not in gone]
    if "move_weights" in changes:
        # The first override that matches counts; of several changes the last.
        moved = [
            (f"^{fnmatch.translate(which)}", _device(to, placement))
            for which, to in changes["move_weights"].items()
        ]
        found.options["tensor_overrides"] = [*moved[::-1], *options.tensor_overrides]
    asked: dict[Device, list[tuple[str, bool]]] = {}
    for (backend, which), answer in changes.get("supports", {}).items():
        asked.setdefault(_device(backend, placement), []).insert(0, (which, answer))
    profiles = {_device(b, placement): p for b, p in changes.get("profiles", {}).items()}
    for device in dict.fromkeys((*profiles, *asked)):
        found.supports[device] = _answers(asked.get(device, []), profiles.get(device))
    wanted: dict[Device, list[tuple[str, bool]]] = {}
    for (backend, which), answer in changes.get("offload", {}).items():
        wanted.setdefault(_device(backend, placement), []).insert(0, (which, answer))
    for device, pairs in wanted.items():
        found.offload[device] = _answers(pairs, None)
    return found


def _answers(pairs: list[tuple[str, bool]], profile: Any) -> Answer:
    other = None if profile is None else load_profile(profile)

    def answer(tensor: Tensor) -> bool | None:
        for which, said in pairs:
            if means(which, tensor):
                return said
        return None if other is None else other.supports(tensor)

    return answer


def _device(name: str, placement: LayerPlacement) -> Device:
    """The device of a backend, by either name. Raises KeyError."""
    for backend in placement.backends:
        if name.casefold() in (backend.name.casefold(), backend.device.name.casefold()):
            return backend.device
    raise KeyError(
        f"no backend '{name}' in this model; it has "
        + ", ".join(backend.name for backend in placement.backends)
    )

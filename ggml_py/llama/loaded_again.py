"""What llama.cpp would plan if something were otherwise: the model is loaded again.

A device that lacks an op has other weights, other pinned norms, perhaps no flash attention. So the
loader is asked again, on this thread, while the devices answer as assumed. Pins of nodes, copies
for pipeline parallelism and the rules of another release are nothing that llama.cpp's loader can be
asked about: only the scheduler is told about them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from ..backends.backend import Backend
from ..backends.device import Device
from ..plan import as_texts
from ..sim.assumed import Answer, assuming, means
from ..sim.given import named_devices
from ..sim.named import load_profile
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    from ..plan import Plan
    from .options import Options

Changes = dict[str, Any]  # arguments of `Plan.what_if`


Again = Callable[[Changes], AbstractContextManager[Any]]  # loads the model under changes


def what_if(
    model: Any,
    again: Again,
    weights: Iterable[str],
    shape: tuple[int, int, int],
    changes: Changes,
) -> Plan:
    """The plan of a graph, as llama.cpp or the scheduler would make it under changes. `weights` are
    the names of the model's."""
    before: Plan = model.plan(*shape)
    loader, rest = divided(changes, weights)
    before.check_changes(**{k: v for k, v in changes.items() if k != "profiles"})
    if not loader:
        return before.what_if(**rest)
    with again(loader) as other:
        found: Plan = other.plan(*shape)
        promise = found.promise._replace(reloaded=as_texts(loader))
        found = found.promised(promise, found.breakdown)
    return found.what_if(**rest) if rest else found


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


def reload(changes: Changes, options: Options, backends: Sequence[Backend]) -> Reload:
    """How to load a model with `options` again under changes of the first kind of `divided`."""
    found = Reload({}, {}, {})
    if "op_offload" in changes:
        found.options["op_offload"] = changes["op_offload"]
    if "drop" in changes:
        gone = {_device(name, backends) for name in changes["drop"]}
        every = [d for given in options.devices for d in named_devices(given)]
        found.options["devices"] = [d for d in every if d not in gone]
    if "move_weights" in changes:
        # The first override that matches counts; of several changes the last.
        moved = [
            (regex_of(which), _device(to, backends))
            for which, to in changes["move_weights"].items()
        ]
        found.options["tensor_overrides"] = [*moved[::-1], *options.tensor_overrides]
    asked: dict[Device, list[tuple[str, bool]]] = {}
    for (backend, which), answer in changes.get("supports", {}).items():
        asked.setdefault(_device(backend, backends), []).insert(0, (which, answer))
    profiles = {_device(b, backends): p for b, p in changes.get("profiles", {}).items()}
    for device in dict.fromkeys((*profiles, *asked)):
        found.supports[device] = _answers(asked.get(device, []), profiles.get(device))
    wanted: dict[Device, list[tuple[str, bool]]] = {}
    for (backend, which), answer in changes.get("offload", {}).items():
        wanted.setdefault(_device(backend, backends), []).insert(0, (which, answer))
    for device, pairs in wanted.items():
        found.offload[device] = _answers(pairs, None)
    return found


def regex_of(pattern: str) -> str:
    """A shell pattern as a regular expression of C++ and of Python."""
    found, i = "", 0
    while i < len(pattern):
        char, end = pattern[i], pattern.find("]", i + 2)
        if char == "[" and end > 0:
            inside = pattern[i + 1 : end].replace("\\", r"\\")
            found += f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
            i = end
        else:
            found += {"*": ".*", "?": "."}.get(char) or re.escape(char)
        i += 1
    return f"^{found}$"


def _answers(pairs: list[tuple[str, bool]], profile: Any) -> Answer:
    other = None if profile is None else load_profile(profile)

    def answer(tensor: Tensor) -> bool | None:
        for which, said in pairs:
            if means(which, tensor):
                return said
        return None if other is None else other.supports(tensor)

    return answer


def _device(name: str, backends: Sequence[Backend]) -> Device:
    """The device of a backend, by either name. Raises KeyError."""
    for backend in backends:
        if name.casefold() in (backend.name.casefold(), backend.device.name.casefold()):
            return backend.device
    raise KeyError(
        f"no backend '{name}' in this model; it has "
        + ", ".join(backend.name for backend in backends)
    )

"""Placing tensors by name instead of by layer: llama.cpp's -ot and the options built on it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..backends.buffer import BufferType
from ..backends.device import Device
from ..backends.device import devices as all_devices
from ..boundary.arguments import describe
from ..errors import ArgumentError, UnknownDeviceError
from ..trace.facts import weight_pattern

log = logging.getLogger("ggml_py")

Place = str | Device | BufferType
Overrides = Mapping[str, Place] | Iterable[tuple[str, Place]]

# llama.cpp's patterns for the tensors of experts and of a dense network (common.h).
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."
_NONE = {
    _EXPERTS: "-cmoe, -ncmoe (cpu_moe, n_cpu_moe): the model has no experts",
    _DENSE: "-ncffn (n_cpu_ffn): the model has no dense networks",
}
_PAIR = re.compile(r"(.+?)=([^=,]+)(?:,|$)")
_LAYER = re.compile(r"(blk\\\.)(\d+)(\\\..*)")


class Override(NamedTuple):
    """Places tensors whose name contains the pattern in that buffer type."""

    pattern: re.Pattern[str]
    buffer_type: BufferType


def parse_overrides(text: str) -> list[tuple[str, str]]:
    """Parses the argument of `-ot`: "REGEX=NAME,REGEX=NAME,...". A regex may contain commas but no
    "=".

    Raises `ArgumentError`.
    """
    pairs, at = [], 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            raise ArgumentError(
                f"tensor_overrides={text[at:]!r}: expected REGEX=NAME, several separated by "
                r"commas, like '\.ffn_.*_exps=CPU'; NAME is that of a device or buffer type"
            )
        pairs.append((found[1], found[2].strip()))
        at = found.end()
    return pairs


def override_pairs(overrides: Overrides | None) -> list[tuple[str, Place]]:
    """The overrides given to `models.load`, in order. Raises TypeError for anything else."""
    if overrides is None:
        return []
    try:
        if isinstance(overrides, str):
            raise TypeError
        pairs = list(overrides.items() if isinstance(overrides, Mapping) else overrides)
    except TypeError:
        raise TypeError(
            "tensor_overrides: expected {regex: device} or pairs (regex, device), got "
            f"{describe(overrides)}"
        ) from None
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"tensor_overrides: expected pairs (regex, device), got {pair!r}")
    return pairs


def whole_name(name: str) -> str:
    """The regex for this tensor and no other: "^output\\.weight$"."""
    return f"^{re.escape(name)}$"


def on_cpu(names: Sequence[str], all_names: Iterable[str]) -> dict[str, str]:
    """The overrides that put tensors on the CPU, {regex: "CPU"}: one for all in blocks."""
    blocks = [name for name in names if name.startswith("blk.")]
    found = [whole_name(name) for name in names if name not in blocks]
    found += [weight_pattern(blocks, set(all_names).difference(blocks))] if blocks else []
    return dict.fromkeys(found, "CPU")


def cpu_overrides(
    cpu_moe: bool, n_cpu_moe: int, n_cpu_ffn: int, n_layer: int
) -> list[tuple[str, str]]:
    """The overrides that --cpu-moe, --n-cpu-moe N and --n-cpu-ffn N stand for. They put on the CPU:
    the experts of all layers, the experts of the first N, the dense networks of the first N."""
    pairs = [(_EXPERTS, "CPU")] if cpu_moe else []
    for n, pattern in ((n_cpu_moe, _EXPERTS), (n_cpu_ffn, _DENSE)):
        pairs += [(rf"blk\.{il}{pattern}", "CPU") for il in range(min(n, n_layer))]
    return layers_joined(pairs)


def layers_joined(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same overrides, in which neighbours that differ only in their layer are one: libllama
    compiles each pattern again for each tensor."""
    found: list[tuple[str, str, str, list[str]]] = []
    for pattern, place in pairs:
        layer = _LAYER.fullmatch(pattern)
        start, il, end = layer.groups() if layer else (pattern, "", "")
        if il and found and found[-1][:3] == (start, end, place):
            found[-1][3].append(il)
        else:
            found.append((start, end, place, [il]))
    return [
        (f"{start}({'|'.join(ils)}){end}" if ils[1:] else f"{start}{ils[0]}{end}", place)
        for start, end, place, ils in found
    ]


def resolve_overrides(
    pairs: Iterable[tuple[str, Place]], devices: Sequence[Device]
) -> tuple[Override, ...]:
    """Looks up the buffer types of the overrides among those of `devices`, the model's, and then of
    all devices, as llama.cpp does.

    Raises `ArgumentError` for a bad regex, and `UnknownDeviceError` with the known names.
    """
    return tuple(
        Override(_compiled(pattern), _buffer_type(pattern, place, devices))
        for pattern, place in pairs
    )


def warn_of_unmatched(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Logs a warning for each pattern that matches no name. The patterns of -cmoe, -ncmoe and
    -ncffn count as one for all layers: a model's first layers may lack experts."""
    names = list(names)
    kinds = {p: next((kind for kind in _NONE if p.endswith(kind)), p) for p in patterns}
    for pattern in dict.fromkeys(kinds.values()):
        if _is_found(pattern, names):
            continue
        if pattern in _NONE:
            log.warning("%s, so nothing is kept on the CPU", _NONE[pattern])
            continue
        log.warning(
            "tensor_overrides (-ot): '%s' matches none of the model's %d tensors, which have "
            "names like %s",
            pattern,
            len(names),
            _examples(names),
        )


def _is_found(pattern: str, names: Sequence[str]) -> bool:
    try:
        regex = re.compile(pattern)
    except re.error:  # of a program's command line, which has C++'s syntax
        return True
    return any(map(regex.search, names))


def _examples(names: Sequence[str]) -> str:
    return ", ".join(sorted(names, key=lambda name: (name.count("."), name))[-3:])


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ArgumentError(
            f"tensor_overrides: '{pattern}' is not a regular expression: {error}"
        ) from None


def _buffer_type(pattern: str, place: Place, devices: Sequence[Device]) -> BufferType:
    """The default buffer type of one of the devices, by its own name or by the device's."""
    if not isinstance(place, str | Device | BufferType):
        raise TypeError(
            f"tensor_overrides: '{pattern}': expected a device, a buffer type or its name, "
            f"got {describe(place)}"
        )
    known: dict[str, BufferType] = {}
    for device in (*devices, *all_devices()):
        known.setdefault(device.buffer_type.name, device.buffer_type)
        known.setdefault(device.name, device.buffer_type)
    name = place if isinstance(place, str) else place.name
    name = name.removeprefix("sim:")
    for key, buft in known.items():
        if key.casefold() == name.casefold():
            return buft
    raise UnknownDeviceError(
        f"tensor_overrides: '{pattern}' is to be in '{name}', but the devices and buffer types are "
        f"{', '.join(known)}"
    )

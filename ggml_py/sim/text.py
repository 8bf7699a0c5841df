"""Simulated devices as named on the command line: `sim:gpu0,profile=cuda,memory=8G`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends.device import device
from ..errors import ArgumentError
from ..files.sizes import parse_size
from .named import load_profile
from .sim_device import SimDevice, existing, sim_device

_SET = "set."


def sim_device_of(text: str) -> SimDevice:
    """The device that "NAME" or "NAME,SETTING=VALUE,..." means. Without settings it is the existing
    device of that name, if there is one; otherwise `sim_device` makes it.

    The settings are those of `sim_device`, with min_batch for offload_min_batch. Bytes may end in
    K, M, G or T. `host`, `host_buffer` and `async` need no value. `supports` is all, none, or ops
    joined with +. `set.PROPERTY=VALUE` changes a property of a card. Raises `ArgumentError`.
    """
    name, *parts = [part.strip() for part in text.split(",")]
    settings: dict[str, Any] = {}
    properties: dict[str, str] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key.startswith(_SET):
            properties[key.removeprefix(_SET)] = _word(part, value)
            continue
        if key not in _READ or key in settings:
            known = ", ".join(sorted(_READ))
            what = f"'{key}' is given twice" if key in settings else f"unknown setting '{key}'"
            raise ArgumentError(f"sim:{text}: {what}; the settings are {known}")
        settings[key] = _READ[key](part, value)
    if properties:
        if "profile" not in settings:
            what = f"{_SET}{next(iter(properties))}"
            raise ArgumentError(f"sim:{text}: {what} needs a profile: name one with profile=")
        settings["profile"] = load_profile(settings["profile"], **properties)
    known_device = existing(name)
    if known_device is not None and not settings:
        return known_device
    for key, argument in (("min_batch", "offload_min_batch"), ("async", "async_")):
        if key in settings:
            settings[argument] = settings.pop(key)
    return sim_device(name, **settings)


def _bytes(part: str, value: str) -> int:
    found = parse_size(value)
    if found is None:
        raise ArgumentError(f"{part}: expected bytes, such as 4096, 512M or 8G")
    return found


def _whole(part: str, value: str) -> int:
    if not value.isdecimal():
        raise ArgumentError(f"{part}: expected a whole number")
    return int(value)


def _flag(part: str, value: str) -> bool:
    if value not in ("", "0", "1"):
        raise ArgumentError(f"{part}: expected 1, 0, or no value for 1")
    return value != "0"


def _word(part: str, value: str) -> str:
    if not value:
        raise ArgumentError(f"{part}: expected a value after '='")
    return value


def _supports(part: str, value: str) -> Any:
    if _word(part, value) in ("all", "none"):
        return value == "all"
    return dict.fromkeys(value.split("+"), True)


_READ: dict[str, Callable[[str, str], Any]] = {
    "profile": _word, "supports": _supports, "type": _word,
    "memory": _bytes, "max_size": _bytes, "alignment": _whole, "min_batch": _whole,
    "graph_optimize": _word, "wrong": _word, "host": _flag, "host_buffer": _flag, "async": _flag,
    "buft_of": lambda part, value: device(_word(part, value)),
}  # fmt: skip

"""Devices as users name them: of this machine, of a server, simulated."""

from __future__ import annotations

import re

from ..backends.device import Device, device
from ..backends.rpc import rpc_devices
from ..boundary.ffi import lib
from ..errors import ArgumentError, UnknownDeviceError
from ..files.sizes import parse_size
from .named import profiles
from .text import sim_device_of


def named_devices(given: str | Device) -> tuple[Device, ...]:
    """The devices that one name stands for: "rpc:HOST:PORT" for all of that server, "sim:NAME" for
    a simulated one, with its settings (`sim_device_of`). "CPU,memory=1T" is the CPU, which says
    from then on that it has this much memory, as another machine's would (0: this machine's).

    Raises `UnknownDeviceError` with the known names, `ArgumentError`, and `RpcError`.
    """
    if isinstance(given, Device):
        return (given,)
    if not isinstance(given, str):
        raise TypeError(f"devices: expected Devices or their names, got {type(given).__name__}")
    if given.startswith("rpc:"):
        return rpc_devices(given[4:])
    if given.startswith("sim:"):
        return (sim_device_of(given[4:]),)
    name, comma, settings = given.partition(",")
    if comma and name.upper() == "CPU":
        _set_cpu_memory(given, settings)
        return (device("CPU"),)
    try:
        return (device(given),)
    except UnknownDeviceError as error:
        end = "" if str(error).endswith("?") else "."
        raise UnknownDeviceError(f"{error}{end} {_simulated(given)}") from None


def _simulated(name: str) -> str:
    """Says how to simulate a device that is not here."""
    name = name if re.fullmatch(r"(?!(?i:none|auto)$)[\w.-]+", name) else "gpu0"
    kind = re.sub(r"\d+$", "", name).casefold()
    profile = f",profile={kind}" if kind in profiles() else ",profile=cuda"
    return f"A device that is not here can be simulated: sim:{name}{profile}"


def _set_cpu_memory(given: str, settings: str) -> None:
    """Applies the settings of the CPU. C: gp_set_cpu_memory"""
    key, _, value = settings.partition("=")
    size = parse_size(value) if key == "memory" else None
    if size is None:
        raise ArgumentError(
            f"{given}: the CPU is this machine's, and only its memory can be another: expected "
            "CPU,memory=BYTES, such as CPU,memory=64G"
        )
    lib.gp_set_cpu_memory(size)

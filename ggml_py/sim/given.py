"""Devices as users name them: of this machine, of a server, simulated."""

from __future__ import annotations

import re

from ..backends.device import Device, device
from ..backends.rpc import rpc_devices
from ..errors import UnknownDeviceError
from .named import profiles
from .text import sim_device_of


def named_devices(given: str | Device) -> tuple[Device, ...]:
    """The devices that one name stands for: "rpc:HOST:PORT" for all of that server, "sim:NAME" for
    a simulated one, with its settings (`sim_device_of`).

    Raises `UnknownDeviceError` with the known names, and `RpcError`.
    """
    if isinstance(given, Device):
        return (given,)
    if not isinstance(given, str):
        raise TypeError(f"devices: expected Devices or their names, got {type(given).__name__}")
    if given.startswith("rpc:"):
        return rpc_devices(given[4:])
    if given.startswith("sim:"):
        return (sim_device_of(given[4:]),)
    try:
        return (device(given),)
    except UnknownDeviceError as error:
        raise UnknownDeviceError(f"{error}. {_simulated(given)}") from None


def _simulated(name: str) -> str:
    """Says how to simulate a device that is not here."""
    kind = re.sub(r"\d+$", "", name).casefold()
    profile = f",profile={kind}" if kind in profiles() else ",profile=cuda"
    return f"A device that is not here can be simulated: sim:{name}{profile}"

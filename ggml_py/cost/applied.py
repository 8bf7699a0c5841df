"""A machine's file applied to a plan: the cards that the plan's devices stand for, and why the file
may not fit the plan."""

from __future__ import annotations

from ..trace.planned import Planned
from ..trace.provenance import DeviceMade
from .datasheets import DATASHEETS, card_of
from .machine import Machine


def machine_for(plan: Planned, machine: Machine) -> Machine:
    """The machine with the data sheets of the cards that the plan's devices are or stand for. Cards
    that `with_cards` gave it go first."""
    cards = {
        device.name: card for device in plan.provenance.devices or ()
        if device.name not in machine.cards and (card := _sheet_of(device)) is not None
    }  # fmt: skip
    if not cards:
        return machine
    # Copies of a machine may share `_derived`. The kept machine keeps the objects of its key alive.
    key = id(machine.described), id(machine.devices), id(machine.doubts), *sorted(cards.items())
    kept: Machine | None = machine._derived.get(key)
    if kept is None:
        kept = machine._derived[key] = machine.with_cards(cards)
    return kept


def _sheet_of(device: DeviceMade) -> str | None:
    """The name of the data sheet of a device; None without one."""
    if device.card in DATASHEETS:
        return device.card
    is_real = device.simulated is not True and device.type in ("GPU", "IGPU")
    return card_of(device.description) if is_real and device.description else None


def stale(plan: Planned, machine: Machine) -> tuple[str, ...]:
    """Reasons why the machine's file may not apply to a plan. Facts that the plan lacks are not
    compared."""
    made, settings = plan.provenance, plan.settings
    gpus = {
        device.name: device.description for device in made.devices or ()
        if device.type in ("GPU", "IGPU") and device.simulated is False
        and device.description is not None and not device.name.startswith("RPC")
    }  # fmt: skip
    return machine.stale(
        ggml=settings.upstream, build=settings.native_build, processor=made.processor,
        n_threads=_threads_of(plan), cards=gpus,
    )  # fmt: skip


def _threads_of(plan: Planned) -> int | None:
    return max((cpu.n_threads for cpu in plan.capture.cpu), default=None)

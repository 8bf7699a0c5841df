"""Simulated devices for a program, as text for native/record/sim_module.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ... import enums
from ...errors import ArgumentError
from ...scheduler.process_facts import made_here
from ...sim.card import CardProfile
from ...sim.text import sim_device_of
from ...trace.provenance import DeviceMade

_ORDERS = {None: 0, "none": 0, "metal": 2, "card": 3}  # enum gp_sim_order
_BATCHES = {"rows": 0, "products": 1, "ne1": 2}  # enum gp_sim_batch
_BY_CARD = 3


def sims_text(names: Sequence[str]) -> str:
    """A line for each device, from names like "sim:gpu0,profile=cuda,memory=8G"; none for "CPU".

    Raises `ArgumentError` for other devices, and for settings that `ggml_py.sim_device` refuses or
    that need a process of ggml_py's own (profiles from records, functions).
    """
    found = []
    for name in names:
        if name.upper() == "CPU":
            continue  # every program has it
        if name.upper().startswith("CPU,"):
            raise ArgumentError(f"-d {name}: another program has this machine's memory")
        if not name.startswith("sim:"):
            raise ArgumentError(
                f"-d {name}: a program that is recorded has this machine's devices anyhow; only "
                "simulated ones can be added, as in -d sim:gpu0,profile=cuda"
            )
        with sim_device_of(name[len("sim:") :]) as device:
            found.append("\t".join([device.name, *_settings(name, device)]))
    return "\n".join(found)


def sims_made(names: Sequence[str]) -> tuple[DeviceMade, ...]:
    """The same devices, as the provenance of plans has them. Raises as `sims_text`."""
    with ExitStack() as stack:
        sims = [name for name in names if name.upper() != "CPU"]
        devices = [stack.enter_context(sim_device_of(name[len("sim:") :])) for name in sims]
        return made_here(devices).devices or ()


def _settings(name: str, device: Any) -> list[str]:
    settings = device.settings
    if settings["buft_of"] is not None:
        raise ArgumentError(f"-d {name}: buft_of is for ggml_py's own processes only")
    kind = settings["type"]
    type_ = kind if isinstance(kind, int) else enums.BackendDevType[str(kind).upper()]
    parts = {
        "type": int(type_), "memory": settings["memory"], "alignment": settings["alignment"],
        "host": int(settings["host"]), "host_buffer": int(bool(settings["host_buffer"])),
        "async": int(bool(settings["async_"]) and not settings["host"]),
        "optimize": _ORDERS[settings["graph_optimize"]],
    }  # fmt: skip
    if settings["max_size"] is not None:
        parts["max_size"] = settings["max_size"]
    if device.largest_buffer is not None:
        parts["largest"] = device.largest_buffer
    found = [f"{key}={value}" for key, value in parts.items()]
    return found + _decisions(name, settings, device.profile)


def _decisions(name: str, settings: dict[str, Any], profile: Any) -> list[str]:
    least = settings["offload_min_batch"]
    if isinstance(profile, CardProfile):
        batch, _least = profile.offload
        found = [f"card={profile.card.backend}"]
        found += [f"p.{key}={value}" for key, value in profile.properties.items()]
        if least is None:
            return [*found, f"batch={_BY_CARD}"]
        return [*found, f"batch={_BATCHES[batch]}", f"min_batch={least}"]
    found = [] if least is None else [f"min_batch={least}"]
    if profile is not None:
        raise ArgumentError(
            f"-d {name}: this profile answers from a record, which only a process of ggml_py's own "
            "can ask; a card can answer in any program (`ggml-py devices` lists them)"
        )
    supports = settings["supports"]
    if supports is False:
        return [*found, "none"]
    if isinstance(supports, dict):
        if not all(value is True for value in supports.values()):
            raise ArgumentError(f"-d {name}: expected supports=all, none, or ops joined with +")
        found += [f"only={op}" for op in supports]
    return found

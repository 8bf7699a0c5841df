"""Facts that a plan of this process keeps: devices, machine, build, model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone

from ..backends.device import Device
from ..boundary.ffi import BUILD
from ..builds.processor import host
from ..gguf.digest import header_digest
from ..gguf.reader import Gguf
from ..sim.card import CardProfile
from ..sim.profile import Profile
from ..sim.sim_device import existing
from ..trace.provenance import DeviceMade, Provenance

_NO_LIMIT = (1 << 63) - 1  # buffers of more bytes than any device has
# Builds of a checkout have neither.
_PACKAGE = " ".join(filter(None, (BUILD.get("package"), BUILD.get("version")))) or None


def made_here(devices: Iterable[Device], ask_servers: bool = True) -> Provenance:
    """The provenance of a plan for these devices, without its model. Their free memory is that of
    now. Without `ask_servers` that of servers is not known: it is a message to each."""
    return Provenance(
        devices=tuple(_device(device, ask_servers) for device in devices),
        processor=host(),
        package=_PACKAGE,
        source=BUILD.get("source_sha256"),
        date=now(),
    )


def made_again(provenance: Provenance) -> Provenance:
    """That of a plan that this build makes now of the same graph, for the same devices."""
    return provenance.but(package=_PACKAGE, source=BUILD.get("source_sha256"), date=now())


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def described(gguf: Gguf, made: Provenance) -> Provenance:
    """`made`, with what a header says of its model."""
    arch = gguf.metadata.get("general.architecture")
    sizes: Counter[str] = Counter()
    for tensor in gguf.tensors.values():
        sizes[tensor.type.name] += tensor.nbytes
    return made.but(
        model=gguf.path.name,
        architecture=arch if isinstance(arch, str) else None,
        quantisation=max(sizes, key=lambda name: sizes[name], default=None),
        model_bytes=sum(sizes.values()),
        header=header_digest(gguf),
    )


def _device(device: Device, ask_servers: bool) -> DeviceMade:
    free = total = largest = None
    if ask_servers or not device.registry.startswith("RPC"):
        free, total = device.memory
        size = device.buffer_type.max_size
        largest = 0 if size >= _NO_LIMIT else size
    sim = existing(device.name)
    profile = None if sim is None else sim.profile
    made = DeviceMade(
        device.name, device.type.name, device.description, sim is not None,
        memory_total=total, memory_free=free, max_size=largest,
    )  # fmt: skip
    if isinstance(profile, CardProfile):
        source = f"ggml-{profile.card.backend} of ggml {BUILD['label']}"
        return made._replace(
            description=profile.card.title, card=profile.name, cut_from=source,
            properties=tuple(profile.properties.items()), changed=tuple(profile.changes.items()),
        )  # fmt: skip
    if isinstance(profile, Profile):
        return made._replace(card=profile.name, cut_from=profile.title)
    return made

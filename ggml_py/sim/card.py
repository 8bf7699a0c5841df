"""Cards: what a device that is not here supports, answered by upstream's own functions.

The build cuts the functions that describe a backend's devices out of upstream's source
(vendor/cards.py, native/cards/card.h). A card gives them the properties of a named device.
"""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..boundary.ffi import BUILD, NULL, ffi, lib, text
from ..errors import ArgumentError, NotBuiltError
from ..files.bounds import TABLE
from ..files.damage import INTERNAL, said
from ..files.reading import decoded, read_file
from ..graphs.context import Context
from ..graphs.node import node_of_call
from ..tensors.tensor import Tensor
from ..typed import typed
from .profile import Decision
from .profiles import vulkaninfo
from .profiles.call import Call, recorded_call
from .profiles.cards import CARDS, OF_BACKEND, Card

# The property that is the memory in bytes.
_MEMORY = dict.fromkeys(("cuda", "hip", "musa"), "totalGlobalMem")
_MEMORY |= {
    **dict.fromkeys(("cann", "cann-310p"), "ACL_HBM_MEM"),
    "et": "memorySize_",
    "hexagon": "max_vmem",
    "metal": "recommendedMaxWorkingSetSize",
    "opencl": "CL_DEVICE_GLOBAL_MEM_SIZE",
    "sycl": "global_mem_size",
    "vulkan": "memoryHeapSize",
    "webgpu": "maxBufferSize",
}

# offload_op of upstream's backends, in all releases: what counts as the batch ("products" like
# Metal, only MUL_MAT and MUL_MAT_ID), and the least. Backends that are not listed have none.
_OFFLOAD = {
    "cuda": ("rows", 32), "hip": ("rows", 32), "musa": ("rows", 32), "vulkan": ("rows", 32),
    "sycl": ("rows", 32), "et": ("rows", 1), "metal": ("products", 32), "cann": ("ne1", 32),
}  # fmt: skip
_MAINTENANCE4 = "VK_KHR_maintenance4"  # without it a device of Vulkan has no maxBufferSize


def card_backends() -> tuple[str, ...]:
    """The backends whose functions this build has: ("cuda", "hip", ...). C: gp_card_backend"""
    found: list[str] = []
    while (name := lib.gp_card_backend(len(found))) != NULL:
        found.append(text(name))
    return tuple(sorted(found))


def why_no_card(backend: str) -> str:
    """Why this build has no functions of a backend; "" if it has them, or if nothing is known."""
    return str(BUILD.get("cards", {}).get(backend, ""))


def card_properties(backend: str) -> dict[str, str | None]:
    """The properties of a backend's cards and their defaults; None if a card must say it.

    C: gp_card_property_of
    """
    found: dict[str, str | None] = {}
    while (one := lib.gp_card_property_of(backend.encode(), len(found))) != NULL:
        found[text(one.name)] = None if one.text == NULL else text(one.text)
    return found


class CardProfile:
    """A device that is not here: a named card, or its backend's with other properties.

    `card` is the named one. Upstream's functions are given all `properties`; `changes` are the
    properties with other values than the card's.
    """

    def __init__(self, name: str, card: Card, changes: Mapping[str, object]) -> None:
        self.name = name
        self.card = card
        known = card_properties(card.backend)
        for key in changes:
            if key not in known:
                near = ", ".join(difflib.get_close_matches(key, known, 3)) or ", ".join(known)
                raise ArgumentError(
                    f"{name} has no property '{key}': expected one of ggml-{card.backend}'s "
                    f"properties, such as {near}"
                )
        values: dict[str, object] = {
            **known,
            "name": card.title,
            _MEMORY[card.backend]: card.memory,
        }
        values |= {**card.properties, **changes}
        self.properties = {key: str(values[key]) for key in known if values[key] is not None}
        self.changes = {key: str(value) for key, value in changes.items()}
        self._own: Any = None

    def __repr__(self) -> str:
        return f"<CardProfile {self.name}: {self.card.title}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CardProfile) and (
            (self.card.backend, self.properties) == (other.card.backend, other.properties)
        )

    def __hash__(self) -> int:
        return hash((self.card.backend, *self.properties.items()))

    def open(self) -> Any:
        """A native card. Close it with `gp_card_close`. Raises `ArgumentError`. C: gp_card_open"""
        names = card_properties(self.card.backend)
        texts = [ffi.new("char[]", self.properties[k].encode()) if k in self.properties else NULL
                 for k in names]  # fmt: skip
        why = ffi.new("char[256]")
        values = ffi.new("char *[]", texts)
        made = lib.gp_card_open(self.card.backend.encode(), values, why, len(why))
        if made == NULL:
            raise ArgumentError(f"card {self.name}: {text(why)}")
        return made

    @property
    def offload(self) -> tuple[str, int]:
        """What counts as the batch, and the least that is offloaded, if a device is given another
        least than its card's."""
        return _OFFLOAD.get(self.card.backend, ("rows", 0))

    @property
    def memory(self) -> int:
        """The bytes of its memory."""
        return int(self.properties[_MEMORY[self.card.backend]])

    @property
    def largest_buffer(self) -> int:
        """Bytes of the largest buffer, if the backend allocates larger ones than it usually makes;
        otherwise 0. C++: ggml_vk_create_buffer"""
        if self.card.backend not in ("vulkan", "webgpu"):
            return 0
        said = self.card.backend == "webgpu" or _MAINTENANCE4 in self.properties["extensions"]
        return int(self.properties.get("maxBufferSize" if said else "maxMemoryAllocationSize", 0))

    @property
    def ptr(self) -> Any:
        """The native card that `decide` asks."""
        if self._own is None:
            self._own = self.open()
            weakref.finalize(self, lib.gp_card_close, self._own)
        return self._own

    def decide(self, tensor: Any) -> Decision:
        """Whether the device can compute the op of `tensor`, and the lines of upstream's source
        that say so.

        Also takes nodes of a plan (even a recorded one) and `Call`s. Raises `ArgumentError` for
        nodes of a plan that was read from a debug log. C: supports_op of the backend's device
        """
        if isinstance(tensor, Tensor):
            return self._decide(tensor)
        with Context() as scratch:
            return self._decide(node_of_call(scratch, _call(tensor)))

    def supports(self, tensor: Any) -> bool:
        """Whether the device can compute the op of `tensor`."""
        return self.decide(tensor).supported

    @typed
    def answers(self, plan: Any, backend: str) -> dict[tuple[str, int], bool]:
        """The answers that make `backend` this device in `plan.what_if(supports=...)`, one for each
        node of a `Plan` (even a recorded one)."""
        nodes = ((t.id, recorded_call(plan, t)) for t in plan.capture.tensors if t.kind == "node")
        return {(backend, i): self.supports(call) for i, call in nodes}

    def _decide(self, tensor: Tensor) -> Decision:
        lines = ffi.new("struct gp_card_lines *")
        supported = bool(lib.gp_card_supports(self.ptr, tensor.ptr, lines))
        at = ", ".join(f"{text(lines.file[i])}:{lines.line[i]}" for i in range(lines.n))
        said = f"{'yes' if supported else 'no'}: {at} of ggml {BUILD['label']}"
        return Decision(supported, at, said, "source")


def _call(what: Any) -> Call:
    if isinstance(what, Call):
        return what
    if not hasattr(what, "record"):
        kind = type(what).__name__
        raise TypeError(f"expected a Tensor, a node of a plan or a Call, got {kind}")
    return recorded_call(what.plan, what.record)


def card_profile(name: str, changes: Mapping[str, object] | None = None) -> CardProfile:
    """The card that a name means: a card's name ("rtx4090") or its backend's ("cuda").

    Raises `NotBuiltError` if this build has no functions of the card's backend, `ArgumentError` for
    a property that the backend does not have.
    """
    named = OF_BACKEND.get(name.lower(), name.lower())
    return _profile(named, CARDS[named], changes)


def card_of_file(path: Path, changes: Mapping[str, object] | None = None) -> CardProfile:
    """The card that a file describes: what `vulkaninfo` printed on some machine.

    Raises `ArgumentError` for another file, otherwise as `card_profile`.
    """
    try:
        read = vulkaninfo.read(decoded(read_file(path, TABLE), "it"))
    except OSError:
        raise
    except INTERNAL as error:
        raise ArgumentError(f"{path}: {said(error)}") from error
    properties = {k: v for k, v in read.items() if k in card_properties("vulkan")}
    title, memory = str(read["name"]), int(read["memoryHeapSize"])
    return _profile(path.stem, Card("vulkan", title, memory, properties, str(path)), changes)


def _profile(name: str, card: Card, changes: Mapping[str, object] | None) -> CardProfile:
    if card.backend not in card_backends():
        why = why_no_card(card.backend) or "it was made by an older ggml_py"
        raise NotBuiltError(f"card {name}: this build has no ggml-{card.backend} ({why})")
    return CardProfile(name, card, changes or {})


def card_names() -> tuple[str, ...]:
    """The cards whose backend this build has."""
    have = card_backends()
    return tuple(name for name, card in CARDS.items() if card.backend in have)

"""Simulated devices: GPUs and accelerators that this machine does not have. Upstream's own
scheduler plans and computes on them. Their results are the CPU's, bit for bit.

Natively they are the backend registry "SIM" (native/sim_device.h).
"""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeAlias

from .. import enums
from ..backends.device import Device
from ..boundary.arguments import c_text, describe, enum_of, integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib
from ..errors import ArgumentError, ClosedError
from ..tensors.convert import TypeLike, type_of
from ..tensors.tensor import Tensor
from ..typed import typed
from .calls import VIEWS, Optimizer, asked_of, order_kind
from .profile import Profile


class AnyProfile(Protocol):
    """An object that knows what a device supports."""

    def supports(self, tensor: Tensor) -> bool:
        """Whether the device can compute the op of `tensor` with its types and shapes."""


Table: TypeAlias = Mapping[str, "bool | Iterable[TypeLike]"]
Supports: TypeAlias = "bool | Table | Callable[[Tensor], bool] | None"

_TYPES = (enums.BackendDevType.GPU, enums.BackendDevType.IGPU, enums.BackendDevType.ACCEL)
_EVERY_TYPE = (1 << lib.GP_SIM_TYPES) - 1
_SIZE_MAX = (1 << 64) - 1

_BATCHES = {"rows": lib.GP_SIM_ROWS, "products": lib.GP_SIM_PRODUCTS, "ne1": lib.GP_SIM_NE1}

_lock = threading.Lock()  # upstream's registry has no lock


@dataclass(frozen=True)
class _Settings:
    profile: AnyProfile | str | os.PathLike[str] | None = None
    supports: Supports = None
    memory: int | None = None
    offload_min_batch: int | None = None
    type: enums.BackendDevType | int | str | None = None
    max_size: int | None = None
    alignment: int | None = None
    host: bool = False
    host_buffer: bool | None = None
    async_: bool | None = None
    buft_of: Device | None = None
    graph_optimize: Optimizer | str | None = None
    wrong: enums.Op | int | str | None = None

    def like(self, profile: Any, card: Any) -> _Settings:
        """With a value for each setting: those of the card, or the usual ones."""
        usual: dict[str, Any] = (
            _USUAL if card is None else {"memory": profile.memory, **_of_card(card)}
        )
        return replace(self, **{k: v for k, v in usual.items() if getattr(self, k) is None})


_USUAL: dict[str, Any] = {
    "memory": 8 << 30, "type": "gpu", "alignment": 128, "host_buffer": False, "async_": True,
}  # fmt: skip


def _of_card(card: Any) -> dict[str, Any]:
    """What upstream's functions say of a card."""
    props = Device(card).props
    buft = lib.ggml_backend_dev_buffer_type(card)
    return {
        "type": props.type,
        "max_size": min(lib.ggml_backend_buft_get_max_size(buft), _SIZE_MAX),
        "alignment": max(lib.ggml_backend_buft_get_alignment(buft), 32),
        "host_buffer": props.caps.host_buffer,
        "async_": props.caps.async_,
        "graph_optimize": "card" if lib.gp_card_orders(card) else None,
    }


_NAMES = frozenset(field.name for field in fields(_Settings))


@typed("max_size", "host", "host_buffer", "async_")
def sim_device(
    name: str,
    profile: AnyProfile | str | os.PathLike[str] | None = None,
    supports: Supports = None,
    memory: int | None = None,
    offload_min_batch: int | None = None,
    *,
    type: enums.BackendDevType | int | str | None = None,
    max_size: int | None = None,
    alignment: int | None = None,
    host: bool = False,
    host_buffer: bool | None = None,
    async_: bool | None = None,
    buft_of: Device | None = None,
    graph_optimize: Optimizer | str | None = None,
    wrong: enums.Op | int | str | None = None,
) -> SimDevice:
    """Makes a simulated device. The scheduler plans on it, copies to it and computes on it, with
    the CPU's kernels. It is in `devices()` until it is closed. The same name gives the same device,
    `configure`d if the settings differ.

    `supports` says which ops it computes: None or True for all, False for none, or a table
    {"MUL_MAT": ["f16", "q4_0"], "SILU": True} by op and type of src[0], or a function of the
    Tensor. In a table, unary and GLU ops have their own names; RESHAPE, VIEW, PERMUTE and TRANSPOSE
    are supported unless it says otherwise. Leafs (NONE) are supported unless a table says
    otherwise; a function is not asked about them. Ops that the CPU cannot compute, and custom ops,
    are not supported.

    `profile`, in place of `supports`, is a profile of `load_profile`, its name or path, or an
    object with such a `supports` method. A card ("rtx4090"; a backend's name means one: "cuda")
    answers with upstream's own code, also for ops that the CPU cannot compute. The settings below
    default to the card's values with a card, otherwise to the values named here.

    `memory` is its size in bytes (8 GiB); allocations beyond it fail, and so do single allocations
    above `max_size` bytes (no limit). `alignment` is that of its tensors, a power of two of at
    least 32 (128). With at least `offload_min_batch` rows (0: never) it wants ops whose weights are
    in host memory; the default is that of its profile's device, or 32. `type` is "gpu", "igpu" or
    "accel" ("gpu"). With `host` it computes in the CPU's memory, as BLAS does. With `host_buffer`
    it has a type of pinned host memory (no), which an "igpu" reads in place. It computes and copies
    on its own thread, in the background, and has events, unless `async_` is false or `host` true.
    `buft_of` is another simulated device, whose buffer type and memory it shares.

    `graph_optimize` reorders the nodes of a split. It is "card", upstream's own function for the
    card's backend (the default for cards of CUDA, HIP, MUSA and Vulkan), "metal", upstream's
    function for Metal, "none", or a function. The function takes the nodes, a tuple of Tensors that
    also has `add_alloc_dep(tensor, until)`. It returns them, or their indices, in the order of
    computation. This result is checked: each node once, and none before a node that it needs.

    `wrong` is an op ("RMS_NORM") whose kernel is to be wrong: its f32 results are 1 % too large. It
    is for trying what looks for such a kernel, as `ggml-py diverge` does.

    Raises `ArgumentError` for a name that another device has, for settings that do not fit
    together, and for changed settings while it is in use. C: gp_sim_open
    """
    settings = _Settings(
        profile, supports, memory, offload_min_batch, type, max_size, alignment, host, host_buffer,
        async_, buft_of, graph_optimize, wrong,
    )  # fmt: skip
    encoded = c_text("a device's name", name)
    if not name or len(encoded) > 63:
        raise ArgumentError(f"device name {name!r}: expected 1 to 63 bytes")
    with _lock:
        known = _sims.get(name.casefold())
        if known is not None and known._name == name:
            known._apply(settings)
            return known
        if lib.ggml_backend_dev_by_name(encoded) != NULL:
            raise ArgumentError(f"there is already a device named '{name}': choose another name")
        made = SimDevice(name, settings)
        _sims[name.casefold()] = made
        return made


class SimDevice(Device):
    """A simulated device. Made by `sim_device`."""

    __slots__ = ("_card", "_name", "_profile", "_settings", "closed")

    def __init__(self, name: str, settings: _Settings) -> None:
        if not isinstance(settings, _Settings):
            raise TypeError(f"use sim_device(): a SimDevice is not made from {describe(settings)}")
        self._card: Any = None
        self._name = name
        self._profile = _profile_of(settings)
        card = _card_of(self._profile, None, None)
        try:
            full = settings.like(self._profile, card)
            decide = _decider(name, full, self._profile)
            super().__init__(_open(name, full, card, _largest(settings, self._profile)))
        except BaseException:
            _close_card(card)
            raise
        self.closed = False
        self._settings, self._card = settings, card
        decide(self.ptr)

    @property
    def ptr(self) -> Any:
        """The native object. Raises `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError(f"the simulated device {self._name} is closed: make it again")
        return super().ptr

    def __repr__(self) -> str:
        return f"<SimDevice {self._name}, closed>" if self.closed else super().__repr__()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings from `sim_device` and `configure`, by the names of its arguments; those that
        were not given as its card has them, or by default."""
        full = self._settings.like(self._profile, self._card)
        return {name: getattr(full, name) for name in sorted(_NAMES)}

    @property
    def largest_buffer(self) -> int | None:
        """Bytes of the largest buffer; None without a limit. For Vulkan it can exceed max_size."""
        most = max(self.settings["max_size"] or _SIZE_MAX, _largest(self._settings, self._profile))
        return None if most >= _SIZE_MAX else most

    @property
    def profile(self) -> AnyProfile | None:
        """The profile that decides what it supports; None without one."""
        return self._profile

    def configure(self, **settings: Any) -> None:
        """Changes settings of `sim_device`; settings that are not named stay as they are.

        `supports`, `profile`, `offload_min_batch` and another function as `graph_optimize` apply
        from the next question on: an allocated graph is computed as it was planned. Raises
        `ArgumentError` for the other settings while one of its backends or buffers is open, and
        TypeError for an unknown setting.
        """
        unknown = ", ".join(sorted(settings.keys() - _NAMES))
        if unknown:
            raise TypeError(f"{unknown}: expected settings of sim_device: {sorted(_NAMES)}")
        # One replaces the other.
        if settings.get("profile") is not None:
            settings.setdefault("supports", None)
        if settings.get("supports") is not None:
            settings.setdefault("profile", None)
        with _lock:
            self._apply(replace(self._settings, **settings))

    def _apply(self, settings: _Settings) -> None:
        self.ptr  # noqa: B018  raises when closed
        if settings == self._settings:
            return
        profile = _profile_of(settings)
        card = _card_of(profile, self._profile, self._card)
        try:
            full = settings.like(profile, card)
            decide = _decider(self._name, full, profile)
            _open(self._name, full, card, _largest(settings, profile), self)
        except BaseException:
            if card != self._card:
                _close_card(card)
            raise
        if card != self._card:
            _close_card(self._card)
        self._settings, self._profile, self._card = settings, profile, card
        decide(self.ptr)

    def _in_use(self) -> str:
        """Its open objects, in words; empty if there are none."""
        state = ffi.new("struct gp_sim_state *")
        lib.gp_sim_state(self.ptr, state)
        counts = (
            (state.n_backends, "backend", "backends"),
            (state.n_buffers, "buffer", "buffers"),
            (
                state.n_shared,
                "device that shares its buffer type",
                "devices that share its buffer type",
            ),
        )
        return ", ".join(f"{n} {one if n == 1 else several}" for n, one, several in counts if n)

    def close(self) -> None:
        """Removes it from `devices()`. Closing twice is harmless.

        Raises `ArgumentError` while one of its backends or buffers is open, or another device
        shares its buffer type. C: gp_sim_close
        """
        if self.closed:
            return
        with _lock:
            in_use = self._in_use()
            if in_use:
                raise ArgumentError(f"{self!r} cannot be closed yet; still open: {in_use}")
            lib.gp_sim_close(self.ptr)
            _close_card(self._card)
            del _sims[self._name.casefold()]
            self.closed = True

    def __enter__(self) -> SimDevice:
        self.ptr  # noqa: B018  raises when closed
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


_sims: dict[str, SimDevice] = {}


def existing(name: str) -> SimDevice | None:
    """The simulated device of that name, ignoring case; None if there is none now."""
    return _sims.get(name.casefold())


def profiles_of_files() -> dict[str, Profile]:
    """The profiles of the devices that answer from a file of op tests, by the devices' names."""
    sims = list(_sims.values())
    return {sim._name: sim._profile for sim in sims if isinstance(sim._profile, Profile)}


def _largest(settings: _Settings, profile: AnyProfile | None) -> int:
    """Bytes of the largest buffer, if the card allocates larger ones than ggml usually makes."""
    return int(getattr(profile, "largest_buffer", 0)) if settings.max_size is None else 0


def _open(
    name: str, settings: _Settings, card: Any, largest: int, device: SimDevice | None = None
) -> Any:
    native = ffi.new("struct gp_sim_settings *")
    native.card = NULL if card is None else card
    native.type = _type(settings.type)
    native.host, native.host_buffer = bool(settings.host), bool(settings.host_buffer)
    native.async_ = bool(settings.async_) and native.host == 0  # others may free host memory
    native.optimize = order_kind(settings.graph_optimize)
    native.wrong = _wrong(settings.wrong)
    native.memory = integer("memory", settings.memory, 1)
    no_limit = settings.max_size in (None, _SIZE_MAX)
    native.max_size = _SIZE_MAX if no_limit else integer("max_size", settings.max_size, 1)
    native.largest = largest
    alignment = integer("alignment", settings.alignment, 32, 1 << 20)
    native.alignment = alignment
    if alignment & (alignment - 1):
        raise ArgumentError(f"alignment={settings.alignment}: expected a power of two")
    native.buft_of = _buft_of(settings, device)
    if settings.host and settings.host_buffer:
        raise ArgumentError(
            "host=True computes in the CPU's memory: expected no host_buffer with it"
        )
    if settings.graph_optimize == "card" and (card is None or not lib.gp_card_orders(card)):
        raise ArgumentError(
            "graph_optimize='card': expected a card whose backend orders nodes, such as "
            "profile='vulkan'"
        )
    if settings.host and card is not None:
        raise ArgumentError("host=True computes in the CPU's memory: expected no card with it")
    ptr = lib.gp_sim_open(name.encode(), native)
    if ptr == NULL:
        in_use = device._in_use() if device is not None else "something"
        raise ArgumentError(
            f"device {name} has other settings and is in use (still open: {in_use}): close them "
            "first, or choose another name. What it supports can be changed at any time"
        )
    return ptr


def _buft_of(settings: _Settings, device: SimDevice | None) -> Any:
    if settings.buft_of is None:
        return NULL
    raw = ptr_of(Device, settings.buft_of)
    other = existing(settings.buft_of.name)
    if other is None or other == device or settings.host:
        raise ArgumentError(
            f"buft_of={settings.buft_of!r}: expected another simulated device, and no host=True "
            "with it"
        )
    if other._settings.buft_of is not None or other._settings.host:
        raise ArgumentError(f"buft_of={other!r}: expected a device with its own buffer type")
    return raw


def _wrong(value: enums.Op | int | str | None) -> int:
    if value is None:
        return int(enums.Op.NONE)
    number = enum_of(enums.Op, value)
    if enums.Op(number).name in ("COUNT", *VIEWS):
        raise ArgumentError(f"wrong={value!r}: expected an op that computes, such as 'RMS_NORM'")
    return int(number)


def _type(value: enums.BackendDevType | int | str | None) -> int:
    number = enum_of(enums.BackendDevType, value)
    if number not in _TYPES:
        raise ArgumentError(f"type={value!r}: expected 'gpu', 'igpu' or 'accel'")
    return int(number)


def _description(profile: AnyProfile | None) -> bytes:
    card = getattr(profile, "card", None)
    name = card.title if card else getattr(profile, "name", None)
    of = f" {name}" if isinstance(name, str) else ""
    return f"simulated{of}, computes on the CPU".encode()[:127]


# --- what it supports


def _profile_of(settings: _Settings) -> AnyProfile | None:
    profile = settings.profile
    if not isinstance(profile, str | os.PathLike):
        return profile
    from .named import load_profile  # here: most devices have no profile

    return load_profile(profile)


def _card_of(profile: AnyProfile | None, before: AnyProfile | None, card: Any) -> Any:
    """The native card of a profile; `card` if the profile is as `before`. None without a card."""
    from .card import CardProfile

    if not isinstance(profile, CardProfile):
        return None
    return card if card is not None and profile == before else profile.open()


def _close_card(card: Any) -> None:
    if card is not None:
        lib.gp_card_close(card)


def _decider(name: str, settings: _Settings, profile: AnyProfile | None) -> Callable[[Any], None]:
    """Checks the settings. Returns a function that makes a native device decide by them."""
    native = ffi.new("struct gp_sim_decisions *")
    native.description = _description(profile)
    batch, least = getattr(profile, "offload", ("rows", 32))
    native.batch = _BATCHES[batch]
    if settings.offload_min_batch is not None:
        least = integer("offload_min_batch", settings.offload_min_batch)
    native.offload_min_batch = least
    supports = _supports_of(settings.supports, profile)
    native.mode = lib.GP_SIM_ALL if supports else lib.GP_SIM_NONE
    is_card = hasattr(profile, "card")
    if is_card and settings.offload_min_batch is None:
        native.batch = lib.GP_SIM_BY_CARD
    predicate, order = asked_of(name)
    native.predicate, native.optimizer = predicate.handle, order.handle
    if is_card:
        native.mode = lib.GP_SIM_CARD
    elif isinstance(supports, Mapping):
        native.mode = lib.GP_SIM_TABLE
        _fill(native, supports)
    elif callable(supports):
        native.mode = lib.GP_SIM_ASK

    def decide(device: Any) -> None:
        predicate.function = supports if callable(supports) else bool
        optimize = settings.graph_optimize
        order.function = optimize if callable(optimize) else list
        lib.gp_sim_decide(device, native)

    return decide


def _supports_of(
    supports: Supports, profile: AnyProfile | None
) -> bool | Table | Callable[[Tensor], bool]:
    if profile is not None:
        if supports is not None:
            raise ArgumentError("profile= and supports= mean the same thing: give only one")
        supports = getattr(profile, "supports", None)
        if not callable(supports):
            raise TypeError(
                "profile: expected a name, a path or an object with supports(tensor), got "
                f"{describe(profile)}"
            )
    if supports is None:
        return True
    if isinstance(supports, bool | Mapping) or callable(supports):
        return supports
    raise TypeError(
        "supports: expected True, False, a table {op: types} or a function of the Tensor, got "
        f"{describe(supports)}"
    )


def _fill(native: Any, table: Table) -> None:
    """Sets the bits for a table, and for views that it does not name."""
    named = {_key(name): types for name, types in table.items()}
    for name, types in (dict.fromkeys(VIEWS, True) | named).items():
        bits = _bits(name, types)
        if name in enums.UnaryOp.__members__:
            native.unary[enums.UnaryOp[name]] = bits
        elif name in enums.GluOp.__members__:
            native.glu[enums.GluOp[name]] = bits
        else:
            native.ops[enums.Op[name]] = bits


def _key(name: object) -> str:
    known = [
        member
        for kind in (enums.Op, enums.UnaryOp, enums.GluOp)
        for member in kind.__members__
        if member != "COUNT"
    ]
    key = name.upper() if isinstance(name, str) else ""
    if key not in known:
        near = ", ".join(difflib.get_close_matches(key, known, 3)) or "Op, UnaryOp and GluOp"
        raise ArgumentError(f"supports: no op is named {name!r}; the nearest names are {near}")
    return key


def _bits(name: str, types: bool | Iterable[TypeLike]) -> int:
    if isinstance(types, bool):
        return _EVERY_TYPE if types else 0
    if isinstance(types, str) or not isinstance(types, Iterable):
        raise TypeError(f"supports[{name!r}]: expected True, False or types, got {describe(types)}")
    bits = 0
    for one in types:
        bits |= 1 << type_of(one)
    return bits

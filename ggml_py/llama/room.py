"""The memory that devices have for a model, and options with which it would need less, each tried
by planning the model with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..backends.device import Device, device
from ..boundary.arguments import SIZE_MAX
from ..enums import BackendDevType
from ..errors import AllocError, ModelError
from ..memory.shortfalls import DeviceRoom, Reserve, Shortfall, shortfalls
from ..memory.shortfalls import used as used
from ..plan import MemoryRow
from ..sim.sim_device import existing
from ..trace.expert_cache import ExpertCache, expert_cache
from .options import BY_NAME
from .overrides import whole_name

if TYPE_CHECKING:
    from .llama_model import LlamaModel

Changes = dict[str, Any]
Rooms = tuple[DeviceRoom, ...]
Opened = Callable[
    [Changes], AbstractContextManager["LlamaModel"]
]  # the model, with options changed

# Backends whose buffers may be larger than what ggml usually puts into one. A server does not say
# which backend it has.
_ALLOCATE_MORE = frozenset(("Vulkan", "WebGPU", "RPC"))
_LEAST_UBATCH, _CTX_STEP = 32, 256
_TOO_LARGE = 4  # rounds of tensors that leave a device for its largest buffer
_CACHE_TYPES = ("f32", "f16", "q8_0", "q4_0")  # each smaller than the one before


class OptionChange(NamedTuple):
    """One option: as llama.cpp's programs take it ("-ub 256"), and as `open` does."""

    text: str
    options: Changes


class Tried(NamedTuple):
    """What a change makes of the memory."""

    text: str  # "-ub 256"
    memory: tuple[MemoryRow, ...]
    saved: dict[str, int]  # bytes by device; negative: it needs more there
    left: dict[str, int]  # bytes that stay free, by device whose memory is known
    options: Mapping[str, Any] = MappingProxyType({})  # as `open` takes the change

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        rows = [row._asdict() for row in self.memory]
        return {"change": self.text, "saved": self.saved, "left": self.left, "memory": rows}


def expert_caches(model: LlamaModel) -> tuple[ExpertCache, ...]:
    """What of a model's cache is llama.cpp's expert cache (--moe-cache-mib)."""
    return expert_cache(model.plan(1)) if model._params.expert_cache else ()


def rooms(devices: Iterable[Device]) -> Rooms:
    """The memory of each device, and of the CPU, as they say now. Make it before a model is opened
    on them."""
    found = {room.device: room for room in map(_room, devices)}
    cpu = device("CPU")
    return tuple(found.values()) if cpu.name in found else (*found.values(), _room(cpu))


def _room(of: Device) -> DeviceRoom:
    free, total = of.memory
    sim = existing(of.name)
    limit = of.buffer_type.max_size if sim is None else sim.largest_buffer
    return DeviceRoom(
        of.name,
        free if total else None,  # a device whose size is not known reports 0 bytes
        total or None,
        None if limit is None or limit >= SIZE_MAX // 2 else limit,
        sim is not None or of.registry not in _ALLOCATE_MORE,
        "CPU" if sim is None and of.type == BackendDevType.IGPU else "",
    )


def lacking(rows: Iterable[MemoryRow], free: Mapping[str, int]) -> dict[str, int]:
    """Missing bytes per device; devices with enough memory are left out. A device of unknown
    memory is not in `free` and is left out, too."""
    return {
        device: size - free[device]
        for device, size in used(rows).items()
        if device in free and size > free[device]
    }


def lower(
    model: LlamaModel, opened: Opened, progress: Callable[[float], object] = lambda _part: None
) -> tuple[Tried, ...]:
    """The first step of each option that may lower the memory, tried: those that do on some device,
    the most bytes first."""
    found = []
    firsts = [way[0] for way in _ways(model, halves=True)]
    for i, change in enumerate(firsts):
        progress(i / len(firsts))
        if one := _try(model, opened, change):
            tried, _lacks = one
            if max(tried.saved.values(), default=0) > 0:
                found.append(tried)
    return tuple(sorted(found, key=lambda one: -sum(one.saved.values())))


def fitting(
    model: LlamaModel,
    opened: Opened,
    reserve: Reserve,
    most: int = 3,
    progress: Callable[[float], object] = lambda _part: None,
) -> tuple[Tried, ...]:
    """The smallest changes of one option with which the model fits, the one that frees the fewest
    bytes first. `reserve` bytes stay free on each device. Each was planned."""
    short = model.shortfalls(reserve)
    lacks = {one.device for one in short}
    found = []
    ways = [*_ways(model), *_without(model, opened, reserve, short)]
    for i, way in enumerate(ways):
        progress(i / len(ways))
        if one := _first_that_fits(model, way, opened, reserve, lacks):
            found.append(one)
    found.sort(key=lambda one: sum(one.saved.get(device, 0) for device in lacks))
    return tuple(found[:most])


def _first_that_fits(
    model: LlamaModel,
    way: Sequence[OptionChange],
    opened: Opened,
    reserve: Reserve,
    missing: Collection[str],
) -> Tried | None:
    """The first change of a way that fits. Later ones need less memory where it is missing now,
    and may need more elsewhere: layers that leave a device go to another."""
    tried: dict[int, tuple[Tried, tuple[Shortfall, ...]] | None] = {}

    def enough(i: int) -> bool:
        """Whether no device lacks memory that lacks it now."""
        if i not in tried:
            tried[i] = _try(model, opened, way[i], reserve)
        found = tried[i]
        return found is None or not any(one.device in missing for one in found[1])

    low, high = 0, len(way) - 1
    if high < 0 or not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    found = tried[high]
    return found[0] if found is not None and not found[1] else None


def _try(
    model: LlamaModel, opened: Opened, change: OptionChange, reserve: Reserve = 0
) -> tuple[Tried, tuple[Shortfall, ...]] | None:
    """A change, and what devices lack with it; None if llama.cpp refuses it, or ggml has no
    room."""
    before = used(model.memory)
    try:
        with opened(change.options) as changed:
            memory, uncut = changed.memory, changed.uncut_buffers
    except (ModelError, AllocError):
        return None
    after = used(memory)
    saved = {
        device: before.get(device, 0) - after.get(device, 0)
        for device in dict.fromkeys((*before, *after))
        if before.get(device, 0) != after.get(device, 0)
    }
    left = {r.device: r.free - after.get(r.device, 0) for r in model.rooms if r.free is not None}
    lacks = shortfalls(memory, uncut, model.rooms, reserve)
    return Tried(change.text, memory, saved, left, change.options), lacks


def _ways(model: LlamaModel, halves: bool = False) -> Iterator[Sequence[OptionChange]]:
    """For each option its values, from the smallest change to the largest; with `halves` the
    context and the ubatch are halved at once."""
    # A repacked weight takes memory; without, it stays in the mapped file.
    repacked = any(row.buft.endswith("_REPACK") for row in model.memory)
    ways = [
        list(_ubatches(min(model.n_ctx, model.n_ubatch), halves)),
        [] if model.flash_attn else [OptionChange("-fa on", {"flash_attn": "on"})],
        list(_cache_types(model)),
        list(_contexts(model.n_ctx, halves)),
        [OptionChange("--no-repack", {"repack": False})] if repacked else [],
        *(_placements(model) if model.has_gpu else ()),
    ]
    return (way for way in ways if way)


def without_the_largest(
    lacks_with: Callable[[Changes], Iterable[Shortfall]],
    overrides: Sequence[str] = (),
    flash_attn: str = "auto",
) -> Changes:
    """Options that make every buffer small enough: weights on the CPU, no copies of weights for
    prompts, flash attention in place of attention scores. {} if they are not enough.

    `lacks_with` plans the model with options. `overrides` (texts of -ot) and `flash_attn` are the
    given ones.
    """
    found: Changes = {}
    for _ in range(_TOO_LARGE):
        large = [one for one in lacks_with(found) if one.kind != "memory"]
        if not large:
            return found
        for one in large:
            if one.kind == "weights" and one.tensor:
                before = found.get("overrides", tuple(overrides))
                found["overrides"] = (f"{whole_name(one.tensor)}=CPU", *before)
            elif one.kind == "compute" and "#" in one.tensor:  # the scheduler's copy
                found["op_offload"] = False
            elif one.kind == "compute" and flash_attn == "off":
                found["flash_attn"] = "auto"
            else:
                return {}
    return {}


def _without(
    model: LlamaModel, opened: Opened, reserve: Reserve, short: Iterable[Shortfall]
) -> Iterator[Sequence[OptionChange]]:
    """The options of `without_the_largest`, as one change; none if the model has no such buffer."""

    def lacks_with(changes: Changes) -> Iterable[Shortfall]:
        if not changes:
            return short
        tried = _try(model, opened, OptionChange("", changes), reserve)
        return () if tried is None else tried[1]  # refused: it is tried again, and left out

    given = model._params.options
    before = [f"{one}={getattr(place, 'name', place)}" for one, place in given.tensor_overrides]
    if changes := without_the_largest(lacks_with, before, given.flash_attn):
        new = changes.get("overrides", ())[: len(changes.get("overrides", ())) - len(before)]
        words = [f"-ot '{','.join(new)}'"] if new else []
        words += [" ".join(BY_NAME[name].line(value)) for name, value in changes.items()
                  if name != "overrides"]  # fmt: skip
        yield [OptionChange(" ".join(words), changes)]


def _ubatches(n: int, halves: bool) -> Iterator[OptionChange]:
    step = _LEAST_UBATCH
    for smaller in (n // 2,) if halves else range((n - 1) // step * step, step - 1, -step):
        if smaller >= step:
            yield OptionChange(f"-ub {smaller}", {"n_ubatch": smaller})


def _contexts(n_ctx: int, halves: bool) -> Iterator[OptionChange]:
    for n in (n_ctx // 2,) if halves else range(n_ctx - _CTX_STEP, 0, -_CTX_STEP):
        if n > 0:
            yield OptionChange(f"-c {n}", {"n_ctx": n})


def _cache_types(model: LlamaModel) -> Iterator[OptionChange]:
    """Smaller types of the cache. llama.cpp takes a quantized V only with flash attention."""
    k = model._params.options.type_k.name.lower()
    for type_ in _CACHE_TYPES[_CACHE_TYPES.index(k) + 1 :] if k in _CACHE_TYPES else ():
        if model.flash_attn or type_ == "f16":
            yield OptionChange(f"-ctk {type_} -ctv {type_}", {"type_k": type_, "type_v": type_})
        else:
            yield OptionChange(f"-ctk {type_}", {"type_k": type_})


def _placements(model: LlamaModel) -> Iterator[list[OptionChange]]:
    options, n_layer = model._params.options, model.n_layer
    given = options.n_gpu_layers if 0 <= options.n_gpu_layers <= n_layer else n_layer + 1
    yield [OptionChange(f"-ngl {n}", {"n_gpu_layers": n}) for n in range(given - 1, -1, -1)]
    if model.n_expert and not options.cpu_moe:
        experts = range(options.n_cpu_moe + 1, n_layer + 1)
        yield [OptionChange(f"-ncmoe {n}", {"n_cpu_moe": n}) for n in experts]
    if options.offload_kqv:
        yield [OptionChange("-nkvo", {"offload_kqv": False})]

"""Options that would make a model need less memory, each tried by planning the model with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import AllocError, ModelError
from ..plan import MemoryRow
from ..trace.expert_cache import ExpertCache, expert_cache

if TYPE_CHECKING:
    from .model import LlamaModel

Changes = dict[str, Any]
Opened = Callable[
    [Changes], AbstractContextManager["LlamaModel"]
]  # the model, with options changed

_LEAST_UBATCH, _CTX_STEP = 32, 256
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

    def to_dict(self) -> dict[str, Any]:
        """As data that `json` can write."""
        rows = [row._asdict() for row in self.memory]
        return {"change": self.text, "saved": self.saved, "memory": rows}


def expert_caches(model: LlamaModel) -> tuple[ExpertCache, ...]:
    """What of a model's cache is llama.cpp's expert cache (--moe-cache-mib)."""
    return expert_cache(model.plan(1)) if model._params.expert_cache else ()


def used(rows: Iterable[MemoryRow]) -> dict[str, int]:
    """Bytes by device. A mapped file takes none: the system may drop its pages."""
    found: dict[str, int] = {}
    for row in rows:
        size = row.nbytes - (row.weights if row.buft.endswith("_Mapped") else 0)
        found[row.device] = found.get(row.device, 0) + size
    return found


def lacking(rows: Iterable[MemoryRow], free: Mapping[str, int]) -> dict[str, int]:
    """Bytes that devices lack, of those that lack any. A device whose memory is not known, which
    is not in `free`, lacks none."""
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
    before = used(model.memory)
    found = []
    firsts = [way[0] for way in _ways(model, halves=True)]
    for i, change in enumerate(firsts):
        progress(i / len(firsts))
        memory = _memory(opened, change)
        if memory is not None:
            tried = _tried(change, memory, before)
            if max(tried.saved.values(), default=0) > 0:
                found.append(tried)
    return tuple(sorted(found, key=lambda one: -sum(one.saved.values())))


def fitting(
    model: LlamaModel,
    opened: Opened,
    free: Mapping[str, int],
    most: int = 3,
    progress: Callable[[float], object] = lambda _part: None,
) -> tuple[Tried, ...]:
    """The smallest changes, of one option each, with which the model fits into `free` bytes on each
    device: those that free the fewest bytes. Each was planned."""
    before = used(model.memory)
    lacks = lacking(model.memory, free)
    found = []
    ways = list(_ways(model))
    for i, way in enumerate(ways):
        progress(i / len(ways))
        if one := _first_that_fits(way, opened, free, before):
            found.append(one)
    found.sort(key=lambda one: sum(one.saved.get(device, 0) for device in lacks))
    return tuple(found[:most])


def _first_that_fits(
    way: Sequence[OptionChange], opened: Opened, free: Mapping[str, int], before: dict[str, int]
) -> Tried | None:
    """The first change of a way that fits. Later ones need less memory where it is missing now,
    and may need more elsewhere: layers that leave a device go to another."""
    missing = [device for device in free if before.get(device, 0) > free[device]]
    tried: dict[int, tuple[MemoryRow, ...] | None] = {}

    def enough(i: int) -> bool:
        """Whether no device lacks memory that lacks it now."""
        if i not in tried:
            tried[i] = _memory(opened, way[i])
        found = tried[i]
        return found is None or not any(device in lacking(found, free) for device in missing)

    low, high = 0, len(way) - 1
    if high < 0 or not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    memory = tried[high]
    if memory is None or lacking(memory, free):
        return None
    return _tried(way[high], memory, before)


def _memory(opened: Opened, change: OptionChange) -> tuple[MemoryRow, ...] | None:
    """The memory with a change; None if llama.cpp refuses it, or ggml has no room."""
    try:
        with opened(change.options) as model:
            return model.memory
    except (ModelError, AllocError):
        return None


def _tried(change: OptionChange, memory: tuple[MemoryRow, ...], before: dict[str, int]) -> Tried:
    after = used(memory)
    saved = {
        device: before.get(device, 0) - after.get(device, 0)
        for device in dict.fromkeys((*before, *after))
        if before.get(device, 0) != after.get(device, 0)
    }
    return Tried(change.text, memory, saved)


def _ways(model: LlamaModel, halves: bool = False) -> Iterator[Sequence[OptionChange]]:
    """For each option its values, from the smallest change to the largest; with `halves` the
    context and the ubatch are halved at once."""
    ways = [
        list(_ubatches(min(model.n_ctx, model.n_ubatch), halves)),
        [] if model.flash_attn else [OptionChange("-fa on", {"flash_attn": "on"})],
        list(_cache_types(model)),
        list(_contexts(model.n_ctx, halves)),
        *(_placements(model) if model.has_gpu else ()),
    ]
    return (way for way in ways if way)


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

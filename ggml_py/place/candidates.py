"""Options that may make a model quicker where it is planned, judging by the given ones: each a few
flags of llama.cpp. The judge tries them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..llama.options import BY_NAME
from ..llama.room import without_the_largest
from ..memory.shortfalls import Shortfall
from ..trace.answers.remedy import Remedy
from .judge import LEAST, Changes, Judge

_USUAL_TYPES = {"f16", "q8_0"}  # of caches, which all backends compute attention with
_SHARES = 10  # parts of the layers that two GPUs share
_CLEARLY = 1.25  # gain from which on it is recommended to leave all devices empty
_FIT = 12  # times that a fit of llama.cpp takes as long as a look at the model
_NEAR = 0.9  # of the greatest gain: two changes together must gain more than this much of one
_ALMOST = 0.95  # of the greatest gain: a simpler remedy with this much is taken
# Where weights are: what llama.cpp's --fit chooses, if none of them is given.
_PLACED: Changes = {
    "n_gpu_layers": -1, "overrides": (), "cpu_moe": False, "n_cpu_moe": 0, "n_cpu_ffn": 0,
    "tensor_split": None,
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """A model and the options that it is planned with."""

    options: Mapping[str, Any]  # by the names of `models.load`; "overrides" are -ot's texts
    n_layer: int
    n_expert: int
    gpus: tuple[str, ...]
    # What llama.cpp's --fit chooses with changes, as changes; None if it finds nothing.
    fit: Callable[[Changes], Changes | None]

    def words(self, changes: Changes) -> str:
        """The changes as flags: what is no longer given comes as "without -ot"."""
        given = {name: self.options.get(name) for name in changes}
        is_bench = self.options.get("program") == "bench"
        found = [_word(name, value, self.n_layer, is_bench) for name, value in changes.items()
                 if value != given[name] and (value or name not in _DROPPED)]  # fmt: skip
        dropped = [flag for name, flag in _DROPPED.items()
                   if name in changes and given[name] and not changes[name]]  # fmt: skip
        # -ncmoe 4 in the place of -cmoe needs no "without".
        dropped = [flag for flag in dropped if flag != "-cmoe" or not changes.get("n_cpu_moe")]
        return " ".join([*found, *(["without " + ", ".join(dropped)] if dropped else [])])


_DROPPED = {
    "overrides": "-ot", "cpu_moe": "-cmoe", "n_cpu_moe": "-ncmoe", "n_cpu_ffn": "-ncffn",
    "tensor_split": "-ts",
}  # fmt: skip
_FLAGS = {
    "n_cpu_moe": "-ncmoe", "n_cpu_ffn": "-ncffn", "split_mode": "-sm", "main_gpu": "-mg",
    "flash_attn": "-fa", "type_k": "-ctk", "type_v": "-ctv", "n_ubatch": "-ub",
}  # fmt: skip


def _word(name: str, value: Any, n_layer: int, is_bench: bool) -> str:
    if is_bench and (option := BY_NAME.get(name)) is not None and option.bench:
        return shlex.join(option.bench_line(value))
    if name == "n_gpu_layers":
        return f"-ngl {'all' if value < 0 or value > n_layer else value}"
    if name == "overrides":
        texts = [";".join(value)] if is_bench else value
        return " ".join(f"-ot '{text}'" for text in texts)
    if name == "tensor_split":
        return f"-ts {','.join(f'{part:g}' for part in value)}"
    if name == "offload_kqv":
        return "-kvo" if value else "-nkvo"
    if name == "op_offload":
        return "--op-offload" if value else "--no-op-offload"
    if name == "repack":
        return "--repack" if value else "--no-repack"
    if name == "cpu_moe":
        return "-cmoe"
    return f"{_FLAGS[name]} {value}"


def remedies(judge: Judge, given: Given, more: Iterable[Changes] = ()) -> list[Remedy]:
    """All that the judge lets pass, the quickest first. Where it has little time, it tries `more`
    that findings name, experts in host memory, single options, then several together."""
    found: dict[str, Remedy] = {}

    def look(changes: Changes) -> Remedy | None:
        words = given.words(changes)
        if words and words not in found and (one := judge.remedy(words, changes)):
            found[words] = one
        return found.get(words)

    for changes in chain(more, _fewer_experts(judge, given), _singles(judge, given)):
        if look(changes) is None and not judge.fits(changes):
            for smaller in _made_to_fit(judge, given, changes):
                look(smaller)
    for changes in _several(judge, given):
        look(changes)
    merged: Changes = {}
    gain = 1.0
    for one in _sorted(found.values()):
        if merged.keys() & one.changes.keys():
            continue
        both = look({**merged, **one.changes})
        if both is not None and both.gain * _NEAR > gain:
            merged, gain = {**merged, **one.changes}, both.gain
    if not found and given.gpus and given.options["n_gpu_layers"]:
        # Small graphs may take longer to copy than to compute.
        for changes in _fewer(judge, given):
            look(changes)
        return [one for one in _sorted(found.values()) if one.gain > _CLEARLY]
    return _sorted(found.values())


def simplest(found: Iterable[Remedy]) -> Remedy | None:
    """The remedy with the fewest and shortest flags that gains nearly as much as the best one."""
    some = list(found)
    if not some:
        return None
    best = max(one.gain for one in some)
    near = [one for one in some if one.gain >= best * _ALMOST]
    # -ot with many layers comes last.
    return min(near, key=lambda one: (
        bool(one.changes.get("overrides")), len(one.changes), len(one.flags), -one.gain
    ))  # fmt: skip


def _sorted(found: Iterable[Remedy]) -> list[Remedy]:
    return sorted(found, key=lambda one: (-one.gain, len(one.flags)))


# --- one option


def _singles(judge: Judge, given: Given) -> Iterator[Changes]:
    options = given.options
    if given.gpus and options["split_mode"] != "layer":
        yield {"split_mode": "layer"}
    if len(given.gpus) > 1 and judge.differ(given.gpus):
        yield from _between_gpus(judge, given)
    if given.gpus and judge.waits_for_host > LEAST:
        yield from _layers(judge, given)
        yield from _experts(judge, given)
        if n := min(options["n_cpu_ffn"], given.n_layer):
            yield from _first(judge, range(n), "n_cpu_ffn")
        if options["overrides"]:
            yield {"overrides": ()}
        if not options["offload_kqv"]:
            yield {"offload_kqv": True}
        if not options["op_offload"]:
            yield {"op_offload": True}
    if options["flash_attn"] == "off":
        yield {"flash_attn": "auto"}
    types = {str(options[name]).lower() for name in ("type_k", "type_v")}
    if types - _USUAL_TYPES:
        for type_ in ("q8_0", "f16"):
            yield {"type_k": type_, "type_v": type_}
    if judge.shapes and judge.shapes[0].n_tokens > 1:
        yield from _batches(judge, options)
        if options["repack"] and given.gpus:
            yield {"repack": False}


def _layers(judge: Judge, given: Given) -> Iterator[Changes]:
    now, n_layer = given.options["n_gpu_layers"], given.n_layer
    if 0 <= now <= n_layer:
        more = (-1, *range(n_layer, now, -1))  # the output is one more
        found = list(_first(judge, more, "n_gpu_layers"))
        yield from found
        if not found:

            def lacks_with(changes: Changes) -> Iterable[Shortfall]:
                return judge.trial({"n_gpu_layers": -1, **changes}).lacks

            options = given.options
            besides = without_the_largest(lacks_with, options["overrides"], options["flash_attn"])
            if besides:
                yield from _first(judge, more, "n_gpu_layers", **besides)


def _fewer(judge: Judge, given: Given) -> Iterator[Changes]:
    """No layers on devices. Some layers, where none do not fit, or help the graph that decides:
    another graph may lose less with some."""
    none: Changes = {"n_gpu_layers": 0}
    yield none
    if not judge.fits(none) or judge.gain(none) > _CLEARLY:
        now, n = given.options["n_gpu_layers"], given.n_layer
        for layers in (n // 4, n // 2, 3 * n // 4):
            if layers < now or now < 0:
                yield {"n_gpu_layers": layers}


def _experts(judge: Judge, given: Given) -> Iterator[Changes]:
    options = given.options
    if options["cpu_moe"] or options["n_cpu_moe"]:
        before = given.n_layer if options["cpu_moe"] else min(options["n_cpu_moe"], given.n_layer)
        yield from _first(judge, range(before), "n_cpu_moe", cpu_moe=False)


def _between_gpus(judge: Judge, given: Given) -> Iterator[Changes]:
    """How several GPUs share the layers; one of them has all, where they fit."""
    options, n = given.options, len(given.gpus)
    if options["tensor_split"]:
        yield {"tensor_split": None}
    for i in range(n):
        one: Changes = {"split_mode": "none", "main_gpu": i}
        if any(options[name] != value for name, value in one.items()) and judge.fits(one):
            yield one
    shares: list[tuple[float, ...]]
    if n == 2:
        near = sorted(range(1, _SHARES), key=lambda k: abs(2 * k - _SHARES))
        shares = [(float(k), float(_SHARES - k)) for k in near]
    else:
        shares = [tuple(p if j == i else 1.0 for j in range(n)) for i in range(n) for p in (0, 3)]
    if options["split_mode"] == "layer":
        for share in shares:
            yield {"tensor_split": share}


def _batches(judge: Judge, options: Mapping[str, Any]) -> Iterator[Changes]:
    """Larger graphs of a prompt: weights that are copied for each are copied less often."""
    now, most = options["n_ubatch"] or 512, options["n_batch"] or 512
    if judge.shapes[0].n_tokens >= now:
        for n in (2 * now, 4 * now):
            if n <= most:
                yield {"n_ubatch": n}


def _first(judge: Judge, numbers: Sequence[int], option: str, **besides: Any) -> Iterator[Changes]:
    """The first of the numbers with which the model fits, if there is one. With all later ones it
    fits, too."""

    def missing(i: int) -> int:
        """Bytes that are missing with a number; below 0: left beside what must stay free."""
        return judge.missing({option: numbers[i], **besides})

    last = len(numbers) - 1
    if last < 0:
        return
    low, least = 0, missing(0)  # usually everything fits
    high, most = (0, least) if least <= 0 else (last, missing(last))
    by_bytes = True
    if most > 0:
        return
    while high - low > 1:
        part = least / (least - most) if by_bytes and least < judge.REFUSED else 0.5
        middle = min(max(low + round(part * (high - low)), low + 1), high - 1)
        found = missing(middle)
        narrow = min(middle - low, high - middle) * 4 < high - low
        low, least, high, most = (
            (middle, found, high, most) if found > 0 else (low, least, middle, found)
        )
        by_bytes = not (by_bytes and narrow and high - low > 3)  # never only from one side
    yield {option: numbers[high], **besides}


# --- several options


def _made_to_fit(judge: Judge, given: Given, changes: Changes) -> Iterator[Changes]:
    """The changes with fewer layers on the devices."""
    if judge.trial(changes).refused or not given.gpus:
        return
    now = changes.get("n_gpu_layers", given.options["n_gpu_layers"])
    most = now if 0 <= now <= given.n_layer else given.n_layer + 1
    yield from _first(
        judge, range(most - 1, 0, -1), "n_gpu_layers", **_but(changes, "n_gpu_layers")
    )


def _fewer_experts(judge: Judge, given: Given) -> Iterator[Changes]:
    """As many experts on the devices as fit, and all else."""
    if given.n_expert and given.gpus and judge.waits_for_host > LEAST:
        rest = _but(_unplaced(given), "n_cpu_moe")
        yield from _first(judge, range(given.n_layer + 1), "n_cpu_moe", **rest)


def _several(judge: Judge, given: Given) -> Iterator[Changes]:
    if not given.gpus or judge.waits_for_host <= LEAST:
        return
    if judge.has_time(_FIT) and (fitted := given.fit(_PLACED)):
        yield fitted
        if not given.options["offload_kqv"] and (
            with_cache := given.fit({**_PLACED, "offload_kqv": True})
        ):
            yield with_cache
    every = _unplaced(given)
    if len(every) > 1:
        yield every


def undone(judge: Judge, given: Given) -> Iterator[Changes]:
    """All layers on all devices, in the place of options that say where weights are; fewer layers
    if those do not fit. Nothing if no such option is given."""
    changes = _unplaced(given)
    if given.gpus and given.options["split_mode"] != "layer":
        changes["split_mode"] = "layer"
    if not _but(changes, "n_gpu_layers"):
        return
    if judge.fits(changes):
        yield changes
    else:
        yield from _made_to_fit(judge, given, changes)


def _unplaced(given: Given) -> Changes:
    """The changes after which no option says where weights are."""
    return {name: value for name, value in _PLACED.items() if given.options.get(name) != value}


def _but(changes: Changes, name: str) -> Changes:
    return {key: value for key, value in changes.items() if key != name}

"""Ways to run a model that differ from another one by one option: first far apart, then near."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .placing_flags import ATTENTION, DENSE, Flags

_UBATCHES = (64, 128, 256, 512, 1024, 2048)
_N_BATCH = 2048  # llama-server's
_COARSE = 8  # parts of the layers
_TENTHS = 10


@dataclass(frozen=True)
class Choices:
    """What there is to choose from."""

    n_layer: int
    n_expert: int
    gpus: tuple[str, ...]  # devices that layers may be on
    threads: tuple[int, ...]  # with which machines were measured
    cache_types: tuple[str, ...]  # that are allowed


Axis = Callable[[Choices, Flags], Iterator[Flags]]


# --- far apart


def _threads(choices: Choices, now: Flags) -> Iterator[Flags]:
    return (now.but(n_threads=n) for n in choices.threads)


def _layers(choices: Choices, now: Flags) -> Iterator[Flags]:
    return (now.but(n_gpu_layers=n) for n in (-1, *_steps(choices))) if choices.gpus else iter(())


def _experts(choices: Choices, now: Flags) -> Iterator[Flags]:
    some = choices.gpus and choices.n_expert
    return (now.but(n_cpu_moe=n) for n in (*_steps(choices), choices.n_layer) if some)


def _dense(choices: Choices, now: Flags) -> Iterator[Flags]:
    return _group(choices, now, DENSE)


def _attention(choices: Choices, now: Flags) -> Iterator[Flags]:
    return _group(choices, now, ATTENTION)


def _group(choices: Choices, now: Flags, group: str) -> Iterator[Flags]:
    return (_with_group(now, group, n) for n in (*_steps(choices), choices.n_layer) if choices.gpus)


def _switches(choices: Choices, now: Flags) -> Iterator[Flags]:
    if choices.gpus:
        yield now.but(offload_kqv=not now.offload_kqv)
        yield now.but(op_offload=not now.op_offload)


def _between_gpus(choices: Choices, now: Flags) -> Iterator[Flags]:
    """How several GPUs share the layers."""
    n = len(choices.gpus)
    if n <= 1:
        return
    for i in range(n):
        yield now.but(split_mode="none", main_gpu=i, tensor_split=())
    layer = now.but(split_mode="layer", main_gpu=0, tensor_split=())
    yield layer
    if n > 2:  # each gets less than the others, or more
        parts = (0.0, 0.5, 2.0, 4.0)
        shares = [tuple(p if j == i else 1.0 for j in range(n)) for i in range(n) for p in parts]
    else:
        shares = [(k / _TENTHS, round(1 - k / _TENTHS, 3)) for k in range(1, _TENTHS)]
    for share in shares:
        yield layer.but(tensor_split=share)


def _batches(_choices: Choices, now: Flags) -> Iterator[Flags]:
    most = now.n_batch or _N_BATCH
    return (now.but(n_ubatch=n) for n in _UBATCHES if n <= most)


def _flash(_choices: Choices, now: Flags) -> Iterator[Flags]:
    return (now.but(flash_attn=word) for word in ("on", "off"))


def _cache_types(choices: Choices, now: Flags) -> Iterator[Flags]:
    return (now.but(type_k=t, type_v=t) for t in choices.cache_types)


# --- near


def _near_layers(choices: Choices, now: Flags) -> Iterator[Flags]:
    last = choices.n_layer
    n = now.n_gpu_layers if 0 <= now.n_gpu_layers <= last else last + 1
    steps = _near(choices) if choices.gpus else ()
    return (now.but(n_gpu_layers=n + d) for d in steps if 0 <= n + d <= last)


def _near_experts(choices: Choices, now: Flags) -> Iterator[Flags]:
    n, steps = now.n_cpu_moe, _near(choices) if choices.gpus and choices.n_expert else ()
    return (now.but(n_cpu_moe=n + d) for d in steps if 0 <= n + d <= choices.n_layer)


def _near_groups(choices: Choices, now: Flags) -> Iterator[Flags]:
    for group, n in now.groups:
        for d in _near(choices):
            if 0 <= n + d <= choices.n_layer:
                yield _with_group(now, group, n + d)


def _near_shares(_choices: Choices, now: Flags) -> Iterator[Flags]:
    for i in range(len(now.tensor_split) - 1):
        first, second = now.tensor_split[i : i + 2]
        for by in (-0.05, 0.05):
            moved = by * (first + second)
            parts = tuple(round(max(p, 0.0), 3) for p in (first + moved, second - moved))
            split = (*now.tensor_split[:i], *parts, *now.tensor_split[i + 2 :])
            yield now.but(tensor_split=split)


AXES: Sequence[Axis] = (
    _threads, _layers, _experts, _dense, _attention, _switches, _between_gpus, _batches, _flash,
    _cache_types, _near_layers, _near_experts, _near_groups, _near_shares,
)  # fmt: skip


def _steps(choices: Choices) -> Sequence[int]:
    """Numbers of layers from 0, some apart."""
    return range(0, choices.n_layer + 1, max(choices.n_layer // _COARSE, 1))


def _near(choices: Choices) -> tuple[int, ...]:
    half = max(choices.n_layer // _COARSE // 2, 1)
    return tuple(sorted({-half, -1, 1, half}))


def _with_group(now: Flags, group: str, n: int) -> Flags:
    others = tuple(row for row in now.groups if row[0] != group)
    return now.but(groups=tuple(sorted((*others, (group, n)))) if n else others)

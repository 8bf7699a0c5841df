"""Measures attention in one op, by the cache's types, the size of a head, tokens and cells."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress

import numpy as np

from ..cost.estimate import HOT
from ..cost.sample import Sample
from ..errors import GgmlError
from ..graphs.context import Context
from ..tensors.convert import row_size
from ..tensors.tensor import Tensor
from .filled import Filled, own_memory, size_of
from .node_times import GRAPH_SIZE, LEAST, Bench, Steps

CELLS = (256, 512, 1024, 4096)
# Heads of the cache, each read by one of the query's, with the numbers of tokens. The more there
# are, the further apart are the cells of one; a power of two is worse than other distances, because
# fewer places of the caches are then used.
HEADS = ((4, (1, 8, 64, 512)), (8, (1,)), (12, (1,)), (16, (1, 512)))
_LONG = 0.1  # seconds of one node
_MORE = 256 + 32  # cells
_PLACES, _SECONDS = 3, 0.04
_CACHES = 4  # at least; of many tokens one, whose time is not that of reading it


def measure_attention(bench: Bench, type_: str, d: int, cold: int, cache: int) -> Steps:
    """One type of cache, one size of heads. `cold` bytes of caches are more than the processor's
    caches hold, `cache` bytes less.

    It is measured in several places of memory, which is also at several times: one token waits for
    memory, and many tokens with many cells for a cache that others use. For half a second all
    computes of those can take a fifth longer.
    """
    largest = size_of(type_, (d * HEADS[-1][0], CELLS[-1] + _MORE))
    with ExitStack() as stack:
        areas = _areas(bench, stack, type_, max(cold, 2 * _CACHES * largest))
        for i, area in enumerate(areas):
            for heads, tokens in ((h, n) for h, all_tokens in HEADS for n in all_tokens):
                for cells in _measured(heads, tokens, i):
                    seen = max(cells, tokens)
                    places = len(areas) if cells in _measured(heads, tokens, 1) else 1
                    sample = _attention(
                        bench, area, type_, d, heads, seen, tokens, cold, _SECONDS / places,
                        least=LEAST if tokens == 1 else LEAST // places,
                    )  # fmt: skip
                    if sample is None:
                        return
                    if tokens == 1 and not i:
                        _attention(bench, area, type_, d, heads, seen, tokens, cache, _SECONDS, HOT)
                    yield
                    if sample.usual * heads > _LONG:
                        break  # time is a line by then


def _measured(heads: int, tokens: int, place: int) -> tuple[int, ...]:
    """The numbers of cells that are measured in a place of memory. Of many tokens only the longest
    time changes, and it is long: so with few heads."""
    if tokens == 1:
        return CELLS
    return CELLS[1:] if place == 0 else CELLS[-1:] if heads == HEADS[0][0] else ()


def _areas(bench: Bench, stack: ExitStack, type_: str, total: int) -> list[Filled]:
    """Memory in several places, as far as they have room in a quarter of the free memory. On a
    server it is one place: the server chooses where, and sending takes long."""
    most = 1 if bench.is_remote else bench.device.memory[0] // (4 * total)
    areas = [stack.enter_context(closing(own_memory(bench.backend, type_, total)))]
    with suppress(GgmlError):
        while len(areas) < min(most, _PLACES):
            areas.append(stack.enter_context(closing(own_memory(bench.backend, type_, total))))
    stack.callback(bench.scheduler.reset)
    return areas


def _attention(
    bench: Bench,
    area: Filled,
    type_: str,
    d: int,
    heads: int,
    cells: int,
    tokens: int,
    total: int,
    seconds: float,
    suffix: str = "",
    least: int = LEAST,
) -> Sample | None:
    # More cells than attention reads, as models have: K and V tensors of a power of two of cells
    # would all lie in the same places of the processor's caches.
    ne = (d * heads, cells + _MORE)
    enough = bench.enough(1e8, cells * tokens * d * heads) + 1
    # Several, as in a model: one that was just read is read a third faster.
    few = _CACHES if tokens == 1 and not suffix else 1
    n = max(min(total // (2 * size_of(type_, ne)), enough, 400), few)
    matrices = area.matrices(type_, ne, 2 * n * size_of(type_, ne))
    with matrices as caches, Context(64 << 20) as context:
        keys, values = caches[: len(caches) // 2 * 2 : 2], caches[1::2]
        given = context.new_tensor("f32", d, heads, tokens)
        q = context.permute(given, 0, 2, 1, 3)
        mask = context.new_tensor("f16", cells, tokens)
        graph = context.new_graph(GRAPH_SIZE)
        again = max(-(-20 // len(keys)), 1) if suffix else 1
        try:
            for _ in range(again):
                for k, v in zip(keys, values, strict=True):
                    made = context.flash_attn_ext(
                        q,
                        _view(context, k, d, cells),
                        _view(context, v, d, cells),
                        mask,
                        d**-0.5,
                        0.0,
                        0.0,
                    )
                    graph.build_forward_expand(made)
        except GgmlError:
            return None
        # As in a model that was given all cells but the last `tokens` before.
        later = np.arange(cells)[None, :] > np.arange(cells - tokens, cells)[:, None]
        hidden = np.where(later, -np.inf, 0.0).astype(np.float16)
        queries = np.random.default_rng(d).standard_normal((tokens, heads, d), np.float32)
        inputs = {given: queries, mask: hidden}
        sample = bench.sample(graph, inputs, len(keys) * again, seconds, suffix, least)
        bench.scheduler.reset()
        return sample


def _view(context: Context, cache: Tensor, d: int, cells: int) -> Tensor:
    """The heads of the first cells of a cache, in which each cell has all heads, as attention reads
    them."""
    size = row_size(cache.type, d)
    view = context.view_3d(cache, d, cache.ne[0] // d, cells, size, cache.nb[1])
    return context.permute(view, 0, 2, 1, 3)

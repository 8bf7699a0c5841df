"""Keys and values of all layers: one cache, plus one for layers with a sliding window."""

from __future__ import annotations

from typing import NamedTuple

from ...backends.buffer import BufferType
from ...enums import Type
from ...errors import ModelError
from ...llama.options import pad
from ..file.free_memory import sizes
from ..file.hparams import HParams
from ..file.placement import LayerPlacement
from .cells import POS_END, Cells, Saved, padded_n_kv
from .kv_cache import KvCache
from .ubatch import Ubatch


class Shape(NamedTuple):
    """The properties that a graph is built for. Another shape needs another graph."""

    n_tokens: int
    n_outputs: int  # tokens whose logits are computed
    n_kv: tuple[int, ...]  # how many cells attention reads, by cache


class KvCaches:
    """One cache for the layers that see all tokens, and one for layers with a sliding window, of
    one sequence of up to `n_ctx` tokens.

    Unless `swa_full`, the second one reuses the cells of tokens that no later token sees. So it
    needs only the cells of the window and of one graph's tokens.
    C: llama_kv_cache, llama_kv_cache_iswa
    """

    def __init__(
        self,
        hparams: HParams,
        placement: LayerPlacement,
        n_ctx: int,
        n_ubatch: int,
        swa_full: bool,
        type_k: Type,
        type_v: Type,
        v_trans: bool,
    ) -> None:
        """Raises `ModelError` for a type that these caches cannot have, and `AllocError`."""
        self.n_ctx = pad(n_ctx)
        options = (type_k, type_v, v_trans)
        layers = [il for il in range(hparams.n_layer) if not hparams.is_swa(il)]
        self.base = KvCache(hparams, placement, layers, Cells(self.n_ctx), *options)
        self.caches: tuple[KvCache, ...] = (self.base,)
        if hparams.swa is not None:
            n_swa = hparams.swa.n_swa
            size = self.n_ctx if swa_full else min(self.n_ctx, pad(n_swa + n_ubatch))
            layers = [il for il in range(hparams.n_layer) if hparams.is_swa(il)]
            try:
                swa = KvCache(hparams, placement, layers, Cells(size, n_swa), *options)
            except BaseException:
                self.base.close()
                raise
            self.caches = (self.base, swa)
        self._cells = tuple(cache.cells for cache in self.caches)
        for cache in self.caches:
            cache.zero()

    # --- new tokens

    @property
    def n_past(self) -> int:
        """The next position."""
        return self._cells[-1].last + 1

    def prepare(self, ubatches: list[Ubatch]) -> None:
        """Finds the cells for the tokens of each ubatch, after those before it have taken theirs.
        Does not take them yet. Raises `ModelError` if there is no room for all tokens.

        A window's tokens whose cells later ubatches need are gone for earlier ubatches too, as
        upstream. C: llama_kv_cache::prepare
        """
        before: list[tuple[Cells, Saved]] = []
        try:
            for ubatch in ubatches:
                for cells in self._cells:
                    idxs = cells.find(ubatch.n_tokens)
                    if idxs is None:
                        self.check_room(sum(u.n_tokens for u in ubatches))
                        raise ModelError("no cells for the window: load with swa_full=True")
                    ubatch.slots.append(idxs)
                    if len(ubatches) > 1:
                        before.append((cells, cells.save(idxs)))
                        cells.put(idxs, ubatch.pos)
        finally:
            for cells, saved in reversed(before):
                cells.restore(saved)

    def apply(self, ubatch: Ubatch) -> None:
        """Takes the cells for the ubatch's tokens. Called for one ubatch after the other, before
        its graph is computed."""
        for cells, idxs in zip(self._cells, ubatch.slots, strict=True):
            cells.put(idxs, ubatch.pos)

    def check_room(self, n: int) -> None:
        """Raises `ModelError` if there is no room for n more tokens."""
        cells = self.base.cells
        used = cells.n_used
        if used + n > cells.size:
            raise ModelError(
                f"the context is full: {used} of {cells.size} tokens (n_ctx) are used, so there is "
                f"no room for {n} more. Remove them (reset), or load with a larger n_ctx (-c)"
            )

    def rm(self, p0: int) -> None:
        """Removes the tokens from position p0 on."""
        for cells in self._cells:
            cells.rm(p0, POS_END)

    def clear(self) -> None:
        """Removes all tokens."""
        for cache in self.caches:
            if cache.cells.n_used:
                cache.zero()
            cache.cells.clear()

    # --- save and restore

    def save(self) -> list[Saved]:
        """A copy of the state for `restore`."""
        return [cells.save() for cells in self._cells]

    def restore(self, saved: list[Saved], applied: list[Ubatch]) -> None:
        """Puts the tokens back as they were when `saved` was made. None are left if the ubatches
        `applied` have overwritten something that the next token needs."""
        missed = False
        for i, cells in enumerate(self._cells):
            cells.restore(saved[i])
            for ubatch in applied:
                missed |= cells.lose(ubatch.slots[i])
        if missed:
            self.rm(0)

    # --- shapes of graphs

    def shape(self, ubatch: Ubatch) -> Shape:
        """The shape of the graph for a ubatch that was applied."""
        n_kv = tuple([cells.n_kv() for cells in self._cells])
        return Shape(ubatch.n_tokens, len(ubatch.out_ids), n_kv)

    def planned_shape(self, n_tokens: int, n_past: int) -> Shape:
        """The shape of the graph for `n_tokens` more tokens after n_past, with the last one's
        logits."""
        n_kv = tuple(padded_n_kv(n_past + n_tokens, cells.size) for cells in self._cells)
        return Shape(n_tokens, 1, n_kv)

    def full_shape(self, n_tokens: int, n_outputs: int) -> Shape:
        """The shape of the largest graph for `n_tokens` tokens, with the logits of `n_outputs`.
        C: llama_context::graph_reserve"""
        return self.planned_shape(n_tokens, self.n_ctx)._replace(n_outputs=n_outputs)

    # --- memory

    def nbytes_by_buffer_type(self) -> dict[BufferType, int]:
        """Bytes of its buffers of each type."""
        return sizes(buffer for cache in self.caches for buffer in cache.buffers)

    def close(self) -> None:
        """Closes the caches, and the buffers with them."""
        for cache in self.caches:
            cache.close()

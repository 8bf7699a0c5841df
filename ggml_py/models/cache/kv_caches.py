"""Keys and values of all layers: one cache, plus one for layers with a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...backends.buffer import BufferType
from ...enums import Type
from ...errors import ModelError
from ...llama.options import pad
from ..file.free_memory import sizes
from ..file.hparams import HParams
from ..file.placement import LayerPlacement
from . import kv_state
from .cells import POS_END, Saved, padded_n_kv
from .kv_cache import KvCache
from .memory import Memory, Shape
from .state_reader import StateReader
from .streams import Slot, Streams
from .ubatch import Tokens, Ubatch, split_equal, split_simple


class KvShape(NamedTuple):
    """The properties of the caches that a graph depends on."""

    n_kv: tuple[int, ...]  # how many cells attention reads, by cache
    s0: int  # the first stream of the graph's tokens
    n_stream: int


class KvCaches(Memory):
    """One cache for the layers that see all tokens, and one for layers with a sliding window.

    Unless `swa_full`, the second one reuses the cells of tokens that no later token sees. So it
    needs only the cells of the windows and of one graph's tokens.
    C: llama_kv_cache, llama_kv_cache_iswa
    """

    def __init__(
        self,
        hparams: HParams,
        placement: LayerPlacement,
        n_ctx: int,
        n_ubatch: int,
        n_seq_max: int,
        kv_unified: bool,
        swa_full: bool,
        type_k: Type,
        type_v: Type,
        v_trans: bool,
    ) -> None:
        """Raises `ModelError` for a type that these caches cannot have, and `AllocError`."""
        self.n_seq_max = n_seq_max
        self.n_stream = 1 if kv_unified else n_seq_max
        self.n_ctx_seq = pad(n_ctx if kv_unified else pad(n_ctx) // n_seq_max)
        self.n_ctx = self.n_ctx_seq * self.n_stream
        self.v_trans = v_trans
        self.has_update = False
        options = (type_k, type_v, v_trans)
        layers = [il for il in range(hparams.n_layer) if not hparams.is_swa(il)]
        cells = Streams(self.n_ctx_seq, n_seq_max, self.n_stream)
        self.base = KvCache(hparams, placement, layers, cells, *options)
        self.swa: KvCache | None = None
        self.caches: tuple[KvCache, ...] = (self.base,)  # and `swa`, if there is one
        if hparams.swa is not None:
            n_swa = hparams.swa.n_swa
            n_seen = n_swa * (n_seq_max if self.n_stream == 1 else 1)
            size = self.n_ctx_seq if swa_full else min(self.n_ctx_seq, pad(n_seen + n_ubatch))
            cells = Streams(size, n_seq_max, self.n_stream, n_swa)
            layers = [il for il in range(hparams.n_layer) if hparams.is_swa(il)]
            try:
                self.swa = KvCache(hparams, placement, layers, cells, *options)
            except BaseException:
                self.base.close()
                raise
            self.caches = (self.base, self.swa)
        self._cells = tuple(cache.cells for cache in self.caches)
        for cache in self.caches:
            cache.zero()

    # --- new tokens

    def prepare(self, tokens: Tokens, n_ubatch: int) -> list[Ubatch]:
        """See `Memory`."""
        saved = self.save() if self.swa is not None else None
        for ubatches in self._splits(tokens, n_ubatch):
            slots = [cells.prepare(ubatches) for cells in self._cells]
            if all(slot is not None for slot in slots):
                for i, ubatch in enumerate(ubatches):
                    ubatch.slots = [slot[i] for slot in slots if slot is not None]
                return ubatches
        if saved is not None:
            self.restore(saved, [])
        raise self._full(tokens)

    def _splits(self, tokens: Tokens, n_ubatch: int) -> list[list[Ubatch]]:
        """The ways to split the tokens, in the order in which upstream tries them."""
        if self.n_stream > 1:
            if max(map(len, tokens.seqs)) > 1:
                raise ModelError(
                    "a token of several sequences needs a cache that they share: load with "
                    "kv_unified=True, or give each sequence its own token"
                )
            return [split_equal(tokens, n_ubatch, sequential=True)]
        splits = [split_simple(tokens, n_ubatch)]
        if self.swa is not None and self.n_seq_max > 1:
            splits.append(split_equal(tokens, n_ubatch, sequential=False))
        return splits

    def apply(self, ubatch: Ubatch) -> None:
        """See `Memory`."""
        for cells, slot in zip(self._cells, ubatch.slots, strict=True):
            cells.put(ubatch, slot)

    def _full(self, tokens: Tokens) -> ModelError:
        """The error for a batch that does not fit. Raises `check_room`'s if a stream is full."""
        wanted: dict[int, int] = {}
        for seqs in tokens.seqs:
            stream = 0 if self.n_stream == 1 else seqs[0]
            wanted[stream] = wanted.get(stream, 0) + 1
        for stream, n in wanted.items():
            self.check_room(stream, n)
        return ModelError(
            "the context is full: layers with a sliding window do not have enough cells for this "
            "batch beside the other sequences. Evaluate smaller batches, remove sequences, or load "
            "with swa_full=True"
        )

    def check_room(self, seq: int, n: int) -> None:
        """See `Memory`."""
        cells, _row = self.base.cells.of(seq)
        used = cells.n_used
        if used + n <= cells.size:
            return
        whose, n_ctx = (f" of sequence {seq}", "n_ctx_seq") if self.n_stream > 1 else ("", "n_ctx")
        raise ModelError(
            f"the context is full: {used} of {cells.size} tokens{whose} ({n_ctx}) are used, so "
            f"there is no room for {n} more. Remove tokens (seq_rm, reset), or load with a larger "
            "n_ctx (-c)"
        )

    # --- save and restore

    def save(self) -> list[list[Saved]]:
        """See `Memory`."""
        return [cells.save() for cells in self._cells]

    def restore(self, saved: list[list[Saved]], applied: list[Ubatch]) -> None:
        """See `Memory`."""
        missed: set[int] = set()
        for i, cells in enumerate(self._cells):
            written: list[tuple[Ubatch, Slot]] = [(u, u.slots[i]) for u in applied]
            missed |= cells.restore(saved[i], written)
        for seq in missed:
            self.seq_rm(seq, 0, POS_END)

    # --- shapes of graphs

    def shape(self, ubatch: Ubatch) -> Shape:
        """See `Memory`."""
        seqs = ubatch.seq_ids
        s0, n_stream = (0, 1) if self.n_stream == 1 else (seqs[0], len(seqs))
        n_kv = tuple([cells.n_kv(seqs) for cells in self._cells])
        kv = KvShape(n_kv, s0, n_stream)
        return Shape(ubatch.n_tokens, n_stream, len(ubatch.out_ids), kv)

    def planned_shape(self, n_tokens: int, n_past: int, n_seqs: int) -> Shape:
        """See `Memory`."""
        n_stream = 1 if self.n_stream == 1 else n_seqs
        n_used = (n_past + n_tokens) * n_seqs // n_stream
        n_kv = tuple(padded_n_kv(n_used, cells.size) for cells in self._cells)
        return Shape(n_tokens * n_seqs, n_stream, n_seqs, KvShape(n_kv, 0, n_stream))

    def full_shape(self, n_tokens: int, n_outputs: int) -> Shape:
        """See `Memory`."""
        n_tokens = -(-n_tokens // self.n_seq_max) * self.n_seq_max
        shape = self.planned_shape(n_tokens // self.n_stream, self.n_ctx_seq, self.n_stream)
        return shape._replace(n_outputs=n_outputs)

    # --- sequences

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """See `Memory`."""
        for streams in self._cells:
            cells, row = streams.of(seq)
            cells.rm(row, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """See `Memory`."""
        if src == dst:
            return
        if self.n_stream > 1:
            self._cp_stream(src, dst, p0, p1)
            return
        for streams in self._cells:
            streams.streams[0].cp(src, dst, p0, p1)

    def _cp_stream(self, src: int, dst: int, p0: int, p1: int) -> None:
        first, last = self.base.cells.first(src), self.base.cells.last(src)
        if p0 > max(first, 0) or p1 <= last:
            raise ModelError(
                f"seq_cp({src}, {dst}, {p0}, {p1}): each sequence has its own stream, which can "
                f"only be copied as a whole: positions {max(first, 0)} to {last}. Copy all and "
                "remove the rest, or load with kv_unified=True"
            )
        try:
            for cache in self.caches:
                cache.cp_stream(src, dst)
        except BaseException:  # copied in one cache but not in the other
            self.seq_rm(dst, 0, POS_END)
            raise
        self.has_update |= self._has_shift()

    def seq_keep(self, seq: int) -> None:
        """See `Memory`. Unlike libllama, it also removes sequences that have their own streams."""
        for other in range(self.n_seq_max):
            if self.n_stream > 1 and other != seq:
                self.seq_rm(other, 0, POS_END)
        for streams in self._cells:
            cells, row = streams.of(seq)
            cells.keep(row)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """See `Memory`."""
        self._check_shift()
        if delta == 0 or p0 >= p1:
            return
        for streams in self._cells:
            cells, row = streams.of(seq)
            cells.add(row, p0, p1, delta)
        self.has_update |= self._has_shift()

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """See `Memory`."""
        self._check_shift()
        if d == 1 or p0 >= p1:
            return
        for streams in self._cells:
            cells, row = streams.of(seq)
            cells.div(row, p0, p1, d)
        self.has_update |= self._has_shift()

    def _check_shift(self) -> None:
        if self.swa is not None and self.swa.cells.size != self.base.cells.size:
            raise ModelError(
                "positions cannot be moved: layers with a sliding window have forgotten tokens "
                "that the move may bring back into it. Load with swa_full=True"
            )
        if any(cache.rotation_crosses_heads for cache in self.caches):
            raise ModelError(
                "positions cannot be moved: only a part of each head is rotated, and a quantised "
                "K cache mixes it with the rest. Load with type_k='f16'"
            )

    def moved(self) -> list[int]:
        """Sequences with tokens that were moved since their keys were last rotated."""
        pairs = [
            (seq, *streams.of(seq)) for seq in range(self.n_seq_max) for streams in self._cells
        ]
        return [seq for seq, cells, row in pairs if cells.shift[cells.has[row]].any()]

    def shifted(self) -> None:
        """Notes that all keys have been rotated to their positions."""
        for streams in self._cells:
            for cells in streams.streams:
                cells.shifted()
        self.has_update = False

    def _has_shift(self) -> bool:
        return any(streams.has_shift for streams in self._cells)

    def seq_pos_min(self, seq: int) -> int:
        """See `Memory`. With a sliding window, the lowest position in that cache."""
        return self._cells[-1].first(seq)

    def seq_pos_max(self, seq: int) -> int:
        """See `Memory`."""
        return self._cells[-1].last(seq)

    def state_write(self, seq: int) -> Iterator[bytes]:
        """See `Memory`."""
        return kv_state.write(self.caches, seq)

    def state_read(self, seq: int, reader: StateReader) -> Callable[[], None]:
        """See `Memory`."""
        return kv_state.read(self, self.caches, seq, reader)

    def clear(self) -> None:
        """See `Memory`."""
        for cache in self.caches:
            if any(cells.n_used for cells in cache.cells.streams):
                cache.zero()
            for cells in cache.cells.streams:
                cells.clear()
        self.has_update = False

    def nbytes_by_buffer_type(self) -> dict[BufferType, int]:
        """See `Memory`."""
        return sizes(buffer for cache in self.caches for buffer in cache.buffers)

    def close(self) -> None:
        """Closes the caches, and the buffers with them."""
        for cache in self.caches:
            cache.close()

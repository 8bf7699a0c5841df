"""The memory of a recurrent model: one state per sequence, made of all its tokens so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...backends.buffer import BufferType
from ...enums import Type
from ...errors import ModelError
from ...graphs.context import Context
from ...graphs.graph import Graph
from ...tensors.tensor import Tensor
from ..build.inputs import array_of, new_input
from ..file.free_memory import alloc_all, sizes
from ..file.hparams import HParams
from ..file.placement import LayerPlacement
from . import recurrent_state
from .cells import POS_END
from .memory import Memory, Shape
from .recurrent_cells import NO_CELL, RecurrentCells
from .state_reader import StateReader
from .ubatch import Tokens, Ubatch, one_token, split_equal


class RsShape(NamedTuple):
    """The cells that a graph is built for. See `RecurrentCells`."""

    n_rs: int
    head: int
    rs_z: int


class RsSlots(NamedTuple):
    """The cells of a ubatch, and the cells that hold their states before it is computed."""

    shape: RsShape
    sources: list[int]


class RecurrentCache(Memory):
    """A tensor of convolution states and one of scan states per layer, on the layer's device.

    Each has a row per cell: r [n_embd_r, n_cells], s [n_embd_s, n_cells]. A sequence can have any
    number of tokens, but they can only be removed or copied all together.
    C: llama_memory_recurrent
    """

    def __init__(self, hparams: HParams, placement: LayerPlacement, n_seq_max: int) -> None:
        """Raises `AllocError`."""
        assert hparams.ssm
        self.n_seq_max = n_seq_max
        self.n_ctx = self.n_ctx_seq = POS_END
        self.has_update = False
        self._ones: dict[int, Ubatch] = {}
        self._before_one: tuple[tuple[int, int], Any] = ((-1, -1), None)
        self.cells = RecurrentCells(n_seq_max)
        self._contexts: dict[BufferType, Context] = {}
        self.r: list[Tensor] = []
        self.s: list[Tensor] = []
        for il in range(hparams.n_layer):
            buft = placement.buffer_type(il)
            if buft not in self._contexts:
                self._contexts[buft] = Context()
            new = self._contexts[buft].new_tensor
            ne_r, ne_s = (hparams.ssm.n_embd_r, n_seq_max), (hparams.ssm.n_embd_s, n_seq_max)
            self.r.append(new(Type.F32, *ne_r, name=f"cache_r_l{il}"))
            self.s.append(new(Type.F32, *ne_s, name=f"cache_s_l{il}"))
        self._buffers = alloc_all(self._contexts)
        self.clear()

    # --- new tokens

    def check_room(self, seq: int, n: int) -> None:
        """See `Memory`: there is always room."""

    def prepare(self, tokens: Tokens, n_ubatch: int) -> list[Ubatch]:
        """See `Memory`. There is always room. Raises only for a token of several sequences."""
        coupled = next((seqs for seqs in tokens.seqs if len(seqs) > 1), None)
        if coupled is not None:
            raise ModelError(
                f"a token of sequences {coupled}: with a recurrent memory each token has one "
                f"sequence. Evaluate it in {coupled[0]}, then copy that sequence with seq_cp"
            )
        return split_equal(tokens, n_ubatch, sequential=True)

    def apply(self, ubatch: Ubatch) -> None:
        """See `Memory`."""
        n = ubatch.n_seq_tokens
        self._apply(ubatch, [seqs[0] for seqs, _at in ubatch.sets], ubatch.pos[n - 1 :: n].tolist())

    def _apply(self, ubatch: Ubatch, seqs: list[int], last: list[int]) -> None:
        cells = self.cells
        cells.take(seqs, last)
        ubatch.slots = RsSlots(RsShape(cells.n_rs, cells.head, cells.rs_z), cells.sources)

    def take_one(self, token: int, seq: int) -> Ubatch | None:
        """See `Memory`."""
        ubatch = self._ones.get(seq)
        if ubatch is None:
            ubatch = self._ones[seq] = one_token(seq)
        pos = self.cells.pos(seq) + 1
        self._before_one = (seq, pos), self.save()
        ubatch.token[0], ubatch.pos[0] = token, pos
        self._apply(ubatch, [seq], [pos])
        return ubatch

    def undo_one(self, seq: int, pos: int) -> None:
        """See `Memory`."""
        which, saved = self._before_one
        if which == (seq, pos):
            self.restore(saved, [self._ones[seq]])

    def save(self) -> Any:
        """See `Memory`."""
        return self.cells.save()

    def restore(self, saved: Any, applied: list[Ubatch]) -> None:
        """See `Memory`: a graph overwrites the states that it reads."""
        shapes = [ubatch.slots.shape for ubatch in applied]
        written = {cell for n_rs, head, _z in shapes for cell in range(head, head + n_rs)}
        self.cells.restore(saved, written)

    # --- shapes of graphs

    def shape(self, ubatch: Ubatch) -> Shape:
        """See `Memory`."""
        return Shape(ubatch.n_tokens, ubatch.n_seqs, len(ubatch.out_ids), ubatch.slots.shape)

    def planned_shape(self, n_tokens: int, n_past: int, n_seqs: int) -> Shape:
        """See `Memory`."""
        memory = RsShape(n_seqs, 0, NO_CELL if n_past else 0)
        return Shape(n_tokens * n_seqs, n_seqs, n_seqs, memory)

    def full_shape(self, n_tokens: int, n_outputs: int) -> Shape:
        """See `Memory`."""
        n = self.n_seq_max
        return Shape(-(-n_tokens // n) * n, n, n_outputs, RsShape(n, 0, 0))

    # --- sequences

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """See `Memory`: removes the whole sequence or nothing."""
        if self._all(seq, p0, p1, "remove"):
            self.cells.forget(seq)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """See `Memory`: replaces `dst` by the whole of `src`."""
        if self.cells.pos(src) < 0 or self._all(src, p0, p1, "copy"):
            self.cells.copy(src, dst)

    def seq_keep(self, seq: int) -> None:
        """See `Memory`."""
        self.cells.keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """See `Memory`: only the last position counts."""
        pos = self.cells.pos(seq)
        if not p0 <= pos < p1:
            return
        if not 0 <= pos + delta < POS_END:
            raise ModelError(
                f"delta={delta}: the last token of sequence {seq} is at position {pos} and would "
                f"move to {pos + delta}, but positions are 0 to {POS_END - 1}"
            )
        self.cells.move(seq, pos + delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """See `Memory`: only the last position counts."""
        pos = self.cells.pos(seq)
        if p0 <= pos < p1:
            self.cells.move(seq, pos // d)

    def _all(self, seq: int, p0: int, p1: int, verb: str) -> bool:
        """True if the range has all positions of a sequence, False if it has none of them. Raises
        `ModelError` if it has only some."""
        pos = self.cells.pos(seq)
        if pos < 0 or p0 > pos or p1 <= 0 or p0 >= p1:
            return False
        if p0 <= 0 and pos < p1:
            return True
        raise ModelError(
            f"cannot {verb} positions {p0} to {p1} of sequence {seq}, which has 0 to {pos}: a "
            f"recurrent model keeps a single state for all tokens. {verb.capitalize()} the whole "
            "sequence"
        )

    def seq_pos_min(self, seq: int) -> int:
        """See `Memory`: the position of the state, that is, of the last token."""
        return self.cells.pos(seq)

    def seq_pos_max(self, seq: int) -> int:
        """See `Memory`."""
        return self.cells.pos(seq)

    def state_write(self, seq: int) -> Iterator[bytes]:
        """See `Memory`."""
        return recurrent_state.write(self.cells, self.r, self.s, seq)

    def state_read(self, seq: int, reader: StateReader) -> Callable[[], None]:
        """See `Memory`."""
        return recurrent_state.read(self.cells, self.r, self.s, seq, reader)

    def clear(self) -> None:
        """See `Memory`."""
        self.cells.clear()
        for buffer in self._buffers:
            buffer.clear()

    def nbytes_by_buffer_type(self) -> dict[BufferType, int]:
        """See `Memory`."""
        return sizes(self._buffers)

    def close(self) -> None:
        """Closes the contexts, and the buffers with them."""
        for context in self._contexts.values():
            context.close()


class RsInput:
    """The input with the cells that the graph's states are read from."""

    def __init__(self, ctx: Context, graph: Graph, rs: RecurrentCache, shape: Shape) -> None:
        self._ctx = ctx
        self._graph = graph
        self._shape: RsShape = shape.memory
        self.rs = rs
        self.n_seqs = shape.n_seqs
        n_rs = self._shape.n_rs
        self.s_copy = new_input(ctx, Type.I32, n_rs, name="rs_s_copy")
        self.tensors = (self.s_copy,)
        self.s_copy_main = ctx.view_1d(self.s_copy, self.n_seqs, 0)
        self.s_copy_tail = ctx.view_1d(self.s_copy, n_rs - 1, self.s_copy.nb[0])

    def share(self) -> None:
        """See `Input`."""
        self._array = array_of(self.s_copy)

    def set(self, ubatch: Ubatch) -> None:
        """See `Input`."""
        self._array[:] = ubatch.slots.sources

    def build_rs(
        self, cache: Tensor, read: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        """The states [n, n_seqs] of the graph's sequences, from `cache` [n, n_cells].

        With `read`, an op that reads the states in place, this is the op's result. It gets all
        states and the cells [n_seqs] of the graph's sequences. States of other sequences in the
        graph's cells are moved to where they belong.
        """
        ctx, (n_rs, head, rs_z), n_seqs = self._ctx, self._shape, self.n_seqs
        n, nb1 = cache.ne[0], cache.nb[1]
        states = ctx.reshape_2d(cache, n, cache.ne[1])
        # If no state starts from zeros the view is empty, but the nodes are the same.
        zero = (n, rs_z * nb1) if rs_z != NO_CELL else (0, 0)
        self._graph.build_forward_expand(ctx.scale_inplace(ctx.view_1d(states, *zero), 0.0))
        rows = self.s_copy if read is None else self.s_copy_tail
        gathered = ctx.get_rows(states, rows)
        if read is None:
            out = ctx.view_2d(gathered, n, n_seqs, gathered.nb[1], 0)
        else:
            out = read(states, self.s_copy_main)
        self._graph.build_forward_expand(out)
        n_extra, skipped = n_rs - n_seqs, n_rs - rows.ne[0]
        extra = ctx.view_2d(
            gathered, n, n_extra, gathered.nb[1], (n_seqs - skipped) * gathered.nb[1]
        )
        target = ctx.view_2d(cache, n, n_extra, nb1, (head + n_seqs) * nb1)
        self._graph.build_forward_expand(ctx.cpy(extra, target))
        return out

    def store(self, states: Tensor, cache: Tensor, flat: bool = False) -> None:
        """Writes the states of the graph's sequences to their cells in `cache`: one row each, or
        with `flat` all in one row, as in some of llama.cpp's graphs."""
        ctx, n, nb1 = self._ctx, cache.ne[0], cache.nb[1]
        offset = self._shape.head * nb1
        if flat:
            rows = ctx.view_1d(cache, n * self.n_seqs, offset)
        else:
            rows = ctx.view_2d(cache, n, self.n_seqs, nb1, offset)
        self._graph.build_forward_expand(ctx.cpy(states, rows))

"""The part of a model that checks and evaluates tokens, and changes its sequences."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.arguments import describe, integer
from ..boundary.ffi import lib
from ..errors import ClosedError, ModelError
from ..llama.likeliest import likeliest
from ..llama.batch import POS_MAX, Batch
from ..llama.batch_checks import check_seq, checked
from ..llama.watching import array_of
from .alone import CHANGING, COMPUTING, Alone, alone
from .cache.memory import Memory
from .cache.ubatch import Tokens, Ubatch, in_order
from .file.hparams import HParams
from .graphs import Graphs

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..tensors.tensor import Tensor
    from .build.decoder import Decoder


class Evaluation(Alone):
    """Evaluates tokens of up to `n_seq_max` sequences. The base class of `Model`."""

    def __init__(
        self, hparams: HParams, memory: Memory, graphs: Graphs, n_batch: int, n_ubatch: int
    ) -> None:
        self.hparams = hparams
        self.n_batch = n_batch
        self.n_ubatch = n_ubatch
        self._memory = memory
        self._graphs = graphs
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def n_ctx(self) -> int:
        """How many tokens all sequences together can have."""
        return self.n_ctx_seq if self.n_seq_max == 1 else self._memory.n_ctx

    @property
    def n_ctx_seq(self) -> int:
        """How many tokens one sequence can have: at most as many as the model has learned positions
        for."""
        n_ctx_seq = self._memory.n_ctx_seq
        return min(n_ctx_seq, self.hparams.n_positions or n_ctx_seq)

    @property
    def n_seq_max(self) -> int:
        """How many sequences there are."""
        return self._memory.n_seq_max

    @property
    def n_past(self) -> int:
        """The next position of sequence 0: its number of tokens, unless some were removed."""
        return self._memory.seq_pos_max(0) + 1

    # --- running

    @alone(COMPUTING)
    def eval(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        all_logits: bool = False,
        copy: bool = True,
        seq: int = 0,
        watch: Sequence[str] = (),
    ) -> Any:
        """Adds `tokens` to a sequence and returns the logits [n_vocab] after the last of them.

        `watch` lists names of nodes or shell patterns ("l_out-*"). With it the result is the logits
        and a dict of these nodes' values by name, with ggml's first axis last, as in numpy. If
        several graphs have a node of that name, the last graph's value counts.

        With `all_logits` it returns the logits after each token, [n_tokens, n_vocab]. Without
        `copy` the result may be the memory in which the logits were computed: it is read-only, and
        the next evaluation overwrites it. If `eval` fails, the sequence is what it was before. It
        is empty instead if the tokens took several graphs and a window has moved on, or if the
        model is recurrent and has overwritten its state. Raises `ModelError` for no tokens, a token
        outside the vocabulary, a sequence that does not exist, and more tokens than the context has
        room for. Raises `AllocError` if there is no memory for the compute buffers of that many
        tokens: fewer may fit.
        """
        if watch:
            return self._watched(watch, tokens, all_logits, seq)
        if seq:
            self._check_seq(seq)
        # Decoding: numpy's work around a single token takes longer than everything else here.
        token = tokens[0] if type(tokens) is list and len(tokens) == 1 else None
        if type(token) is int and 0 <= token < self.hparams.n_vocab:
            logits = self._eval_one(token, copy, seq)
            return logits.reshape(1, -1) if all_logits else logits
        self._check_open()
        return self._eval(self._check_tokens(tokens, seq), all_logits, copy, seq)

    def _watched(
        self, watch: Sequence[str], tokens: Any, all_logits: bool, seq: int
    ) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        if isinstance(watch, str):
            raise TypeError(f"watch={watch!r}: expected a list of names, like [{watch!r}]")
        found: dict[str, npt.NDArray[Any]] = {}

        def look(node: Tensor, ask: bool) -> bool:
            wanted = any(fnmatchcase(node.name, pattern) for pattern in watch)
            if wanted and not ask:
                found[node.name] = array_of(node.ptr)
            return wanted or not ask

        with self._graphs.watched(look):
            ids = self._check_tokens(tokens, seq)
            logits = self._eval(ids, all_logits, True, seq)
        return logits, found

    def _eval(
        self, ids: npt.NDArray[np.int32], all_logits: bool, copy: bool, seq: int = 0
    ) -> npt.NDArray[np.float32]:
        """`eval` for checked ids."""
        if len(ids) == 1:
            logits = self._eval_one(int(ids[0]), copy, seq)
            return logits.reshape(1, -1) if all_logits else logits
        n, start = len(ids), self._memory.seq_pos_max(seq) + 1
        output = np.full(n, all_logits)
        output[-1] = True
        pos = np.arange(start, start + n, dtype=np.int32)
        tokens = Tokens(ids, pos, [(seq,)] * n, output)
        logits = self._decode(tokens, copy)
        return logits if all_logits else logits.reshape(-1)

    def _eval_one(self, token: int, copy: bool, seq: int) -> npt.NDArray[np.float32]:
        """The logits [n_vocab] after one checked token."""
        memory, graphs = self._memory, self._graphs
        if self._closed:
            self._check_open()
        if memory.has_update:
            graphs.update()
        builder = graphs.compute_one(token, seq, False)
        if builder is None:
            builder = self._take_one(token, seq)
        if builder is not None:
            row = builder.read_logit_row()
            return row.copy() if copy else row
        self._check_room(1, seq)
        ids, positions = np.array([[token], [memory.seq_pos_max(seq) + 1]], np.int32)
        tokens = Tokens(ids, positions, [(seq,)], np.ones(1, np.bool_))
        return self._decode(tokens, copy).reshape(-1)

    @alone(COMPUTING)
    def _likeliest_after(self, token: int, seq: int) -> int:
        """The likeliest token after one checked token."""
        if not (self._closed or self._memory.has_update):
            builder = self._graphs.compute_one(token, seq, True)
            if builder is not None:
                found: int = builder.one.likeliest
                return found if found >= 0 else likeliest(builder.read_logit_row())
        return likeliest(self._eval_one(token, copy=False, seq=seq))

    def _take_one(self, token: int, seq: int) -> Decoder[Any] | None:
        """Evaluates one token the memory's own fast way and returns its graph. None if the memory
        has no such way."""
        memory, graphs, pos = self._memory, self._graphs, self._memory.seq_pos_max(seq) + 1
        try:
            ubatch = memory.take_one(token, seq)
            if ubatch is None:
                return None
            graphs.begin_decode()
            builder = graphs.compute(memory.shape(ubatch), ubatch)
            graphs.end_decode()
            return builder
        except BaseException:
            memory.undo_one(seq, pos)
            raise

    @alone(COMPUTING)
    def decode(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Evaluates a batch of tokens of any sequences. Returns the logits [n_outputs, n_vocab] of
        the tokens that were added with `logits`, in the batch's order.

        If `decode` fails, all sequences are as before the call, with two exceptions, which are then
        empty. One is a sequence whose window has moved on, with more tokens in the batch than fit
        in one graph. The other is a sequence of a recurrent model whose state was overwritten.
        Raises `ModelError` for an empty batch, for more tokens than n_batch or the free cells, for
        unknown tokens and sequences, and for positions that do not continue where their sequence
        ends. C: llama_decode
        """
        self._check_open()
        if not isinstance(batch, Batch):
            raise TypeError(f"batch: expected a Batch, got {describe(batch)}")
        if len(batch) > self.n_batch:
            raise ModelError(
                f"a batch of {len(batch)} tokens: expected at most {self.n_batch} (n_batch)"
            )
        hp = self.hparams
        found = checked(batch, self._memory, hp.n_vocab, hp.n_positions)
        tokens = Tokens(
            np.array(found.token, np.int32),
            np.array(found.pos, np.int32),
            # Upstream keeps a token's sequences in an unordered set, which returns them last first.
            # The order matters if the sequences do not have the same cells.
            [seqs[::-1] for seqs in found.seqs],
            np.array(found.output, np.bool_),
        )
        return self._decode(tokens, True)

    def _decode(self, tokens: Tokens, copy: bool) -> npt.NDArray[np.float32]:
        """The logits of a checked batch, evaluated n_batch tokens at a time."""
        memory, graphs = self._memory, self._graphs
        if memory.has_update:
            graphs.update()
        graphs.begin_decode()
        saved, applied = memory.save(), list[Ubatch]()
        rows: list[npt.NDArray[np.float32]] = []
        places: list[npt.NDArray[np.integer[Any]]] = []  # the rows' tokens
        n = len(tokens.token)
        try:
            for start in range(0, n, self.n_batch):
                part = tokens if n <= self.n_batch else tokens.range(start, self.n_batch)
                for ubatch in memory.prepare(part, self.n_ubatch):
                    memory.apply(ubatch)
                    applied.append(ubatch)
                    builder = graphs.compute(memory.shape(ubatch), ubatch)
                    if len(ubatch.out_ids):
                        rows.append(builder.read_logits())
                        places.append(ubatch.batch_idxs[ubatch.out_ids] + start)
                        if copy or len(applied) > 1 or ubatch.n_tokens < n:
                            rows[-1] = rows[-1].copy()
        except BaseException:
            memory.restore(saved, applied)
            raise
        graphs.end_decode()
        return in_order(rows, places, self.hparams.n_vocab)

    # --- sequences

    @alone(CHANGING)
    def reset(self) -> None:
        """Empties all sequences."""
        self._check_open()
        self._memory.clear()

    @alone(CHANGING)
    def seq_rm(self, seq: int, p0: int = 0, p1: int | None = None) -> None:
        """Removes a sequence's tokens at positions [p0, p1), or from p0 to the end.

        Later tokens keep their positions: use `seq_add` to move them. Removing the end does not
        bring back tokens that layers with a window have forgotten: `seq_pos_min` is the first one
        that they still have. Raises `ModelError` for a part of a sequence of a recurrent model,
        which has a single state for all tokens. C: llama_memory_seq_rm
        """
        self._memory.seq_rm(self._check_seq(seq), *self._check_range(p0, p1))

    @alone(CHANGING)
    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int | None = None) -> None:
        """Adds the tokens of `src` to `dst`. Nothing is copied if the sequences share one cache.
        Otherwise the whole of `src` replaces `dst`, and a part raises `ModelError`.
        C: llama_memory_seq_cp"""
        self._check_seq(src)
        self._memory.seq_cp(src, self._check_seq(dst), *self._check_range(p0, p1))

    @alone(CHANGING)
    def seq_keep(self, seq: int) -> None:
        """Removes all other sequences. C: llama_memory_seq_keep"""
        self._memory.seq_keep(self._check_seq(seq))

    @alone(CHANGING)
    def seq_add(self, seq: int, p0: int, p1: int | None, delta: int) -> None:
        """Adds `delta`, which may be negative, to the positions of tokens. Tokens that would move
        below position 0 are removed.

        Keys are rotated before the next evaluation. The tokens also move in other sequences that
        share them. C: llama_memory_seq_add
        """
        delta = integer("delta", delta, -POS_MAX, POS_MAX)
        self._memory.seq_add(self._check_seq(seq), *self._check_range(p0, p1), delta)

    @alone(CHANGING)
    def seq_div(self, seq: int, p0: int, p1: int | None, d: int) -> None:
        """Divides the positions of tokens by `d`, as `seq_add` adds to them. But the keys are
        rotated the wrong way, as in libllama of this release. C: llama_memory_seq_div"""
        d = integer("d", d, 1, POS_MAX)
        self._memory.seq_div(self._check_seq(seq), *self._check_range(p0, p1), d)

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position of a sequence, -1 if it is empty. If layers have a window, the lowest
        position that they still have. C: llama_memory_seq_pos_min"""
        return self._memory.seq_pos_min(self._check_seq(seq))

    def seq_pos_max(self, seq: int) -> int:
        """The highest position of a sequence, -1 if it is empty. C: llama_memory_seq_pos_max"""
        return self._memory.seq_pos_max(self._check_seq(seq))

    # --- checks

    def _check_tokens(self, tokens: Any, seq: int) -> npt.NDArray[np.int32]:
        try:
            ids = np.asarray(tokens)
        except ValueError:  # lists of different lengths
            ids = np.empty((0, 0))
        huge = ids.dtype == object and all(type(i) is int for i in ids.flat)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu" and not huge):
            raise ModelError(f"tokens {reprlib.repr(tokens)}: expected a list of token ids (int)")
        if not ids.size:
            raise ModelError("no tokens: give at least one token id")
        if ids.min() < 0 or ids.max() >= self.hparams.n_vocab:
            bad = ids[(ids < 0) | (ids >= self.hparams.n_vocab)]
            raise ModelError(
                f"token {bad[0]} is not in the vocabulary: ids are 0 to {self.hparams.n_vocab - 1}"
            )
        self._check_room(ids.size, seq)
        return np.ascontiguousarray(ids, np.int32)

    def _check_room(self, n: int, seq: int = 0) -> None:
        self._memory.check_room(seq, n)
        n_past, n_positions = self._memory.seq_pos_max(seq) + 1, self.hparams.n_positions
        if n_past + n - 1 > POS_MAX:
            raise ModelError(
                f"{n} token{'s' * (n != 1)} after position {n_past - 1}: the last position is "
                f"{POS_MAX}. Move the tokens that are there (seq_add), or call reset()"
            )
        if n_positions and n_past + n > n_positions:
            raise ModelError(
                f"the context is full: {n_past} of {self.n_ctx_seq} tokens (n_ctx) are used, so "
                f"there is no room for {n} more. Call reset(), or evaluate fewer"
            )

    def _check_seq(self, seq: int) -> int:
        self._check_open()
        seq = integer("seq", seq, -POS_MAX, POS_MAX)
        check_seq(seq, self._memory)
        return seq

    def _check_range(self, p0: int, p1: int | None) -> tuple[int, int]:
        return integer("p0", p0, 0, POS_MAX), POS_MAX if p1 is None else integer(
            "p1", p1, 0, POS_MAX
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this Model is closed: make another, or close it later")
        lib.gp_mapped_check()

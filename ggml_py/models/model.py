"""A model: what it holds, and the sequence that it evaluates."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ClosedError, ModelError
from .blocks import Shape
from .graphs import Graphs
from .hparams import HParams
from .kv_cache import KvCaches
from .placement import Placement
from .weights import Weights

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..recording import Recording
    from ..trace.plan import Plan


class Model:
    """A model that was loaded, and the one sequence it evaluates. Made by `load`; `with` closes.

    `eval` adds tokens to the sequence, `reset` starts a new one. Graphs are built once per shape
    and kept; decoding token by token sets inputs and computes, nothing else.
    """

    def __init__(
        self,
        hparams: HParams,
        placement: Placement,
        weights: Weights,
        kv: KvCaches,
        graphs: Graphs,
        n_batch: int,
        n_ubatch: int,
        closing: ExitStack,
    ) -> None:
        """`closing` closes what the model consists of, its graphs first."""
        self.hparams = hparams
        self.placement = placement
        self.weights = weights
        self.n_batch = n_batch
        self.n_ubatch = n_ubatch
        self._kv = kv
        self._graphs = graphs
        self._closing = closing
        self._closed = False

    def __repr__(self) -> str:
        if self._closed:
            return "<Model closed>"
        hp = self.hparams
        names = ", ".join(b.name for b in self.placement.backends)
        return (
            f"<Model {hp.arch} {self.weights.n_params / 1e6:.1f}M, {hp.n_layer} layers on {names}, "
            f"{self.n_past} of {self.n_ctx} tokens>"
        )

    @property
    def n_ctx(self) -> int:
        """Tokens that the sequence can have: no more than a model has learned positions for."""
        return min(self._kv.n_ctx, self.hparams.n_positions or self._kv.n_ctx)

    @property
    def flash_attn(self) -> bool:
        """Whether attention is one op."""
        return self._graphs.flash_attn

    @property
    def n_past(self) -> int:
        """Tokens that the sequence has."""
        return self._kv.n_past

    # --- running

    def eval(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        all_logits: bool = False,
        copy: bool = True,
    ) -> npt.NDArray[np.float32]:
        """Adds `tokens` to the sequence; the logits [n_vocab] after the last of them.

        With `all_logits` those after each, [n_tokens, n_vocab]. Without `copy` they may be, to be
        read only, the memory that they were computed in: the next evaluation writes to it. When it
        fails the sequence is what it was before; or empty, where it took several graphs and a
        window has moved on. Raises `ModelError` for no tokens, a token that the vocabulary does not
        have, and more tokens than the context has room for.
        """
        self._check_open()
        return self._eval(self._check_tokens(tokens), all_logits, copy)

    def _eval(
        self, ids: npt.NDArray[np.int32], all_logits: bool, copy: bool
    ) -> npt.NDArray[np.float32]:
        """`eval` of ids that were checked."""
        n_past, ubatches = self.n_past, self._ubatches(len(ids))
        rows: list[npt.NDArray[np.float32]] = []
        try:
            for start, stop in ubatches:
                n = stop - start
                wanted = n if all_logits else int(stop == len(ids))
                self._kv.take(n_past + start, n)
                shape = Shape(n, self._kv.n_kv(), wanted)
                builder = self._graphs.compute(shape, ids[start:stop], n_past + start)
                if wanted:
                    logits = builder.read_logits()
                    rows.append(logits.copy() if copy or len(ubatches) > 1 else logits)
        except BaseException:
            self._kv.rewind()
            raise
        self._kv.n_past = n_past + len(ids)
        logits = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return logits if all_logits else logits.reshape(-1)

    def generate(self, tokens: Sequence[int], n: int) -> list[int]:
        """Continues the sequence with `tokens` and then `n` tokens, each the likeliest next one.

        All but the last of the n are part of the sequence afterwards. Raises `ModelError` as `eval`
        does, before anything is computed when the context has no room for all of them.
        """
        self._check_open()
        if n < 0:
            raise ModelError(f"n={n}: expected the number of tokens to generate")
        self._check_room(len(tokens) + max(n - 1, 0))
        out: list[int] = []
        last = np.empty(1, np.int32)
        logits = self.eval(tokens, copy=False)
        while len(out) < n:
            last[0] = logits.argmax()
            out.append(int(last[0]))
            if len(out) < n:
                logits = self._eval(last, all_logits=False, copy=False)
        return out

    def reset(self) -> None:
        """Starts a new sequence."""
        self._check_open()
        self._kv.reset()

    def plan(self, n_tokens: int = 1, n_past: int = 0) -> Plan:
        """Where every node would run for a graph of n_tokens tokens after n_past others.

        Allocates no compute buffers and leaves the model as it is. Raises `ModelError` for more
        tokens than `n_ubatch` or the context takes.
        """
        self._check_open()
        if not 1 <= n_tokens <= self.n_ubatch:
            raise ModelError(
                f"n_tokens={n_tokens}: one graph takes 1 to {self.n_ubatch} tokens (n_ubatch)"
            )
        if n_past < 0 or n_past + n_tokens > self.n_ctx:
            raise ModelError(
                f"n_past={n_past} and n_tokens={n_tokens}: the context has {self.n_ctx} tokens"
            )
        shape = Shape(n_tokens, self._kv.n_kv(n_past + n_tokens), 1)
        return self._graphs.plan(shape)

    def _ubatches(self, n: int) -> list[tuple[int, int]]:
        """Ranges of at most n_ubatch tokens within batches of n_batch."""
        if n <= self.n_ubatch:
            return [(0, n)]
        return [
            (start, min(start + self.n_ubatch, batch + self.n_batch, n))
            for batch in range(0, n, self.n_batch)
            for start in range(batch, min(batch + self.n_batch, n), self.n_ubatch)
        ]

    def record(self, per_op: bool = False) -> Recording:
        """Records what evaluations do within a `with` block: see `Recording`."""
        self._check_open()
        return self._graphs.record(per_op)

    # --- checks

    def _check_tokens(self, tokens: Any) -> npt.NDArray[np.int32]:
        if type(tokens) is list and len(tokens) == 1:  # decoding: numpy's checks take longer
            token = tokens[0]
            if type(token) is int and 0 <= token < self.hparams.n_vocab:
                self._check_room(1)
                return np.array(token, np.int32, ndmin=1)
        try:
            ids = np.asarray(tokens)
        except ValueError:  # lists of different lengths
            ids = np.empty((0, 0))
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ModelError(f"tokens {reprlib.repr(tokens)}: expected a list of token ids (int)")
        if not ids.size:
            raise ModelError("no tokens: give at least one token id")
        if ids.min() < 0 or ids.max() >= self.hparams.n_vocab:
            bad = ids[(ids < 0) | (ids >= self.hparams.n_vocab)]
            raise ModelError(
                f"token {bad[0]} is not in the vocabulary: ids are 0 to {self.hparams.n_vocab - 1}"
            )
        self._check_room(ids.size)
        return np.ascontiguousarray(ids, np.int32)

    def _check_room(self, n: int) -> None:
        if self.n_past + n > self.n_ctx:
            raise ModelError(
                f"the context is full: {self.n_past} tokens and {n} more are {self.n_past + n}, "
                f"n_ctx is {self.n_ctx}. Call reset(), or load with a larger n_ctx"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this Model is closed: make another, or close it later")

    # --- lifetime

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Frees everything: graphs, scheduler, cache, weights, backends."""
        self._closed = True
        self._closing.close()

    def __enter__(self) -> Model:
        self._check_open()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

"""The part of a model that checks and evaluates tokens."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.ffi import lib
from ..errors import ClosedError, ModelError
from ..llama.batch_checks import check_seq, checked_tokens
from ..llama.likeliest import likeliest
from ..llama.watching import array_of
from .alone import CHANGING, COMPUTING, GENERATING, Alone, alone
from .cache.kv_caches import KvCaches
from .cache.ubatch import Ubatch, split
from .file.hparams import HParams
from .graphs import Graphs

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..llama.generation import Sample
    from ..tensors.tensor import Tensor


class Evaluation(Alone):
    """Evaluates tokens of one sequence. The base class of `Model`."""

    n_seq_max = 1  # libllama's models have more

    def __init__(
        self, hparams: HParams, memory: KvCaches, graphs: Graphs, n_batch: int, n_ubatch: int
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
        """How many tokens it can have: at most as many as the model has learned positions for."""
        n_ctx = self._memory.n_ctx
        return min(n_ctx, self.hparams.n_positions or n_ctx)

    n_ctx_seq = n_ctx

    @property
    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.hparams.n_vocab

    @property
    def n_past(self) -> int:
        """The next position: the number of tokens."""
        return self._memory.n_past

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
        """Adds `tokens` and returns the logits [n_vocab] after the last of them.

        `watch` lists names of nodes or shell patterns ("l_out-*"). With it the result is the logits
        and a dict of these nodes' values by name, with ggml's first axis last, as in numpy. If
        several graphs have a node of that name, the last graph's value counts.

        With `all_logits` it returns the logits after each token, [n_tokens, n_vocab]. Without
        `copy` the result may be the memory in which the logits were computed: it is read-only, and
        the next evaluation overwrites it. `seq` is 0, the only sequence. If `eval` fails, the
        tokens so far are those from before. None are left if the new ones took several graphs and a
        window has moved on. Raises `ModelError` for no tokens, a token outside the vocabulary, and
        more tokens than the context has room for. Raises `AllocError` if there is no memory for the
        compute buffers of that many tokens: fewer may fit.
        """
        if seq:
            check_seq(seq, self)
        if watch:
            return self._watched(watch, tokens, all_logits)
        # Decoding: numpy's work around a single token takes longer than everything else here.
        token = tokens[0] if type(tokens) is list and len(tokens) == 1 else None
        if type(token) is int and 0 <= token < self.hparams.n_vocab:
            logits = self._eval_one(token, copy)
            return logits.reshape(1, -1) if all_logits else logits
        self._check_open()
        return self._eval(self._check_tokens(tokens), all_logits, copy)

    def _watched(
        self, watch: Sequence[str], tokens: Any, all_logits: bool
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
            logits = self._eval(self._check_tokens(tokens), all_logits, True)
        return logits, found

    def _eval(
        self, ids: npt.NDArray[np.int32], all_logits: bool, copy: bool
    ) -> npt.NDArray[np.float32]:
        """`eval` for checked ids."""
        if len(ids) == 1:
            logits = self._eval_one(int(ids[0]), copy)
            return logits.reshape(1, -1) if all_logits else logits
        logits = self._decode(ids, all_logits, copy)
        return logits if all_logits else logits.reshape(-1)

    def _eval_one(self, token: int, copy: bool) -> npt.NDArray[np.float32]:
        """The logits [n_vocab] after one checked token."""
        if self._closed:
            self._check_open()
        builder = self._graphs.compute_one(token, False)
        if builder is not None:
            row = builder.read_logit_row()
            return row.copy() if copy else row
        self._check_room(1)
        return self._decode(np.array([token], np.int32), False, copy).reshape(-1)

    @alone(COMPUTING)
    def _likeliest_after(self, token: int, _seq: int = 0) -> int:
        """The likeliest token after one checked token."""
        if not self._closed:
            builder = self._graphs.compute_one(token, True)
            if builder is not None:
                found: int = builder.one.likeliest
                return found if found >= 0 else likeliest(builder.read_logit_row())
        return likeliest(self._eval_one(token, copy=False))

    @alone(GENERATING)
    def _sampled(self, tokens: Any, _seq: int, sample: Sample) -> Any:
        """The token sampled after `tokens`, before another evaluation can overwrite their
        logits."""
        return sample(self.eval(tokens, copy=False))

    def _decode(
        self, ids: npt.NDArray[np.int32], all_logits: bool, copy: bool
    ) -> npt.NDArray[np.float32]:
        """The logits [n_outputs, n_vocab] of checked tokens."""
        memory, graphs = self._memory, self._graphs
        graphs.begin_decode()
        saved, applied = memory.save(), list[Ubatch]()
        rows: list[npt.NDArray[np.float32]] = []
        ubatches = split(ids, memory.n_past, all_logits, self.n_batch, self.n_ubatch)
        try:
            memory.prepare(ubatches)
            for ubatch in ubatches:
                memory.apply(ubatch)
                applied.append(ubatch)
                builder = graphs.compute(memory.shape(ubatch), ubatch)
                if len(ubatch.out_ids):
                    row = builder.read_logits()
                    rows.append(row.copy() if copy or len(ubatches) > 1 else row)
        except BaseException:
            memory.restore(saved, applied)
            raise
        graphs.end_decode()
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    @alone(CHANGING)
    def reset(self) -> None:
        """Removes all tokens."""
        self._check_open()
        self._memory.clear()

    # --- checks

    def _check_tokens(self, tokens: Any, _seq: int = 0) -> npt.NDArray[np.int32]:
        ids = checked_tokens(tokens, self.hparams.n_vocab)
        self._check_room(len(ids))
        return ids

    def _check_room(self, n: int, _seq: int = 0) -> None:
        self._memory.check_room(n)
        n_past, n_positions = self._memory.n_past, self.hparams.n_positions
        if n_positions and n_past + n > n_positions:
            raise ModelError(
                f"the context is full: {n_past} of {self.n_ctx} tokens (n_ctx) are used, so "
                f"there is no room for {n} more. Call reset(), or evaluate fewer"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this Model is closed: make another, or close it later")
        lib.gp_mapped_check()

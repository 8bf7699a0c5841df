"""A model with our own graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.ffi import lib
from ..errors import ClosedError, ModelError
from ..llama.batch_checks import checked_tokens
from ..llama.likeliest import likeliest
from ..llama.model import Model, check_flags
from ..llama.sequences import SequenceCalls
from ..llama.tokenizer import Tokenizer
from ..llama.watching import Values, watched
from ..plan import MemoryRow
from ..typed import typed
from .alone import CHANGING, CLOSING, COMPUTING, GENERATING, PLANNING, Alone, alone
from .cache.kv_caches import KvCaches
from .cache.ubatch import Ubatch, split
from .file.hparams import HParams
from .file.placement import LayerPlacement
from .file.weights import Weights
from .graphs import Graphs

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..backends.device import Device
    from ..gguf.reader import Gguf
    from ..graphs.graph import Graph
    from ..llama.choices import Choice
    from ..llama.decodes import Decode
    from ..llama.generation import Sample
    from ..llama.loaded_again import Again
    from ..plan import Plan
    from ..scheduler.callbacks import EvalFunction
    from ..scheduler.recording import Recording
    from ..scheduler.scheduler import Scheduler

_LIBLLAMAS = 'our own graphs have one sequence, which only grows: load with graphs="libllama"'


class OwnModel(Alone, Model):
    """A `Model` whose graphs are built here: once per shape, and then kept. Decoding token by token
    only sets inputs and computes. It has one sequence; parts of sequences are libllama's."""

    graphs = "ours"

    def __init__(
        self,
        gguf: Gguf,
        hparams: HParams,
        placement: LayerPlacement,
        weights: Weights,
        memory: KvCaches,
        graphs: Graphs,
        sizes: tuple[int, int],
        made: Any,
        again: Again,
        closing: ExitStack,
    ) -> None:
        """`sizes` are n_batch and n_ubatch. `made` is the provenance of its plans. `again` loads
        the model under changes. `closing` closes its parts, its graphs first."""
        self.path, self.metadata = gguf.path, gguf.metadata
        self._hparams = hparams
        self.placement = placement
        self.weights = weights
        self._n_batch, self._n_ubatch = sizes
        self._memory = memory
        self._graphs = graphs
        self._made, self._again = made, again
        self._tokenizer: Tokenizer | None = None
        self._closing = closing
        self._closed = False

    def __repr__(self) -> str:
        if self._closed:
            return "<Model closed>"
        hp = self.hparams
        names = ", ".join(b.name for b in self.placement.backends)
        return (
            f"<Model {hp.arch} {self.weights.n_params / 1e6:.1f}M, "
            f"{hp.n_layer} layer{'s' * (hp.n_layer != 1)} on {names}, "
            f"{self.n_past} of {self.n_ctx} tokens>"
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(SequenceCalls, name):
            raise AttributeError(f"Model.{name}: {_LIBLLAMAS}")
        raise AttributeError(f"'Model' object has no attribute {name!r}")

    @property
    def hparams(self) -> HParams:
        """See `Model`."""
        return self._hparams

    @property
    def devices(self) -> tuple[Device, ...]:
        """See `Model`."""
        return tuple(backend.device for backend in self.placement.backends)

    @property
    def n_ctx(self) -> int:
        """See `Model`."""
        self._check_open()
        return self._memory.n_ctx

    n_ctx_seq = n_ctx

    @property
    def n_batch(self) -> int:
        """See `Model`."""
        self._check_open()
        return self._n_batch

    @property
    def n_ubatch(self) -> int:
        """See `Model`."""
        self._check_open()
        return self._n_ubatch

    @property
    def n_seq_max(self) -> int:
        """See `Model`."""
        self._check_open()
        return 1

    @property
    def n_past(self) -> int:
        """See `Model`."""
        self._check_open()
        return self._memory.n_past

    @property
    def flash_attn(self) -> bool:
        """See `Model`."""
        self._check_open()
        return self._graphs.flash_attn

    @property
    def tokenizer(self) -> Tokenizer:
        """See `Model`."""
        self._check_open()
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.open(self.path)
            self._closing.callback(self._tokenizer.close)
        return self._tokenizer

    @property
    def eog_tokens(self) -> frozenset[int]:
        """See `Model`."""
        self._check_open()
        return self.hparams.eog_tokens

    # --- plans

    @alone(PLANNING)
    def _plan(self, n_tokens: int, n_past: int, _n_seqs: int) -> Plan:
        return self._graphs.plan(self._memory.planned_shape(n_tokens, n_past))

    @property
    def choices(self) -> tuple[Choice, ...]:
        """See `Model`."""
        self._check_open()
        return self._graphs.choices

    @typed
    @contextmanager
    def graph(self, n_tokens: int = 1, n_past: int = 0, n_seqs: int = 1) -> Iterator[Graph]:
        """See `Model`."""
        self._check_shape(n_tokens, n_past, n_seqs)
        with closing(self._graphs.built(self._memory.planned_shape(n_tokens, n_past))) as built:
            yield built.graph

    def _loads_again(self) -> Again:
        return self._again

    def _weight_names(self) -> Iterable[str]:
        return (tensor for _buft, tensor in self.weights.placed)

    @property
    def memory(self) -> tuple[MemoryRow, ...]:
        """See `Model`."""
        self._check_open()
        weights, cache = self.weights.nbytes_by_buffer_type(), self._memory.nbytes_by_buffer_type()
        compute = self._graphs.compute_sizes()
        return tuple(
            MemoryRow(
                buft.name,
                self.placement.cpu.name
                if buft.is_host or buft.device is None
                else buft.device.name,
                weights.get(buft, 0),
                cache.get(buft, 0),
                None if compute is None else compute.get(buft, 0),
            )
            for buft in dict.fromkeys((*weights, *cache, *(compute or ())))
        )

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
        """See `Model`."""
        if type(all_logits) is not bool or type(copy) is not bool:
            check_flags(all_logits, copy)
        if type(seq) is not int or seq:
            self._seq(seq)
        values = watched(watch)
        if values is not None:
            self._check_open()
            return self._watched(values, tokens, all_logits)
        # Decoding: numpy's work around a single token takes longer than everything else here.
        token = tokens[0] if type(tokens) is list and len(tokens) == 1 else None
        if type(token) is int and 0 <= token < self._hparams.n_vocab:
            logits = self._eval_one(token, copy)
            return logits.reshape(1, -1) if all_logits else logits
        self._check_open()
        return self._eval(self._check_tokens(tokens), all_logits, copy)

    def _watched(
        self, values: Values, tokens: Any, all_logits: bool
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        ids = self._check_tokens(tokens)
        with self._graphs.watched(values.look):
            logits = self._decode(ids, all_logits, True, values.end_graph)
        return logits if all_logits else logits.reshape(-1), values.by_name()

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
        self,
        ids: npt.NDArray[np.int32],
        all_logits: bool,
        copy: bool,
        computed: Callable[[], None] = lambda: None,
    ) -> npt.NDArray[np.float32]:
        """The logits [n_outputs, n_vocab] of checked tokens. `computed` is called after each
        ubatch."""
        memory, graphs = self._memory, self._graphs
        graphs.begin_decode()
        saved, applied = memory.save(), list[Ubatch]()
        rows: list[npt.NDArray[np.float32]] = []
        ubatches = split(ids, memory.n_past, all_logits, self._n_batch, self._n_ubatch)
        try:
            memory.prepare(ubatches)
            for ubatch in ubatches:
                memory.apply(ubatch)
                applied.append(ubatch)
                builder = graphs.compute(memory.shape(ubatch), ubatch)
                computed()
                if len(ubatch.out_ids):
                    row = builder.read_logits()
                    rows.append(row.copy() if copy or len(ubatches) > 1 else row)
        except BaseException:
            memory.restore(saved, applied)
            raise
        graphs.end_decode()
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def stream(self, tokens: Sequence[int], n: int, *args: Any, **options: Any) -> Iterator[int]:
        """See `Model`."""
        self._check_open()
        if options.get("context_shift") or options.get("n_keep"):
            raise ModelError(f"context_shift: {_LIBLLAMAS}")
        return super().stream(tokens, n, *args, **options)

    @alone(CHANGING)
    def reset(self) -> None:
        """See `Model`."""
        self._check_open()
        self._memory.clear()

    def _check_tokens(self, tokens: Any, _seq: int = 0) -> npt.NDArray[np.int32]:
        ids = checked_tokens(tokens, self._hparams.n_vocab)
        self._check_room(len(ids))
        return ids

    def _check_room(self, n: int, _seq: int = 0) -> None:
        self._memory.check_room(n)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this Model is closed: make another, or close it later")
        lib.gp_mapped_check()

    # --- how it computes

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that the graphs run on. You may read it (`state`, `plan`, `buffer_size`)
        and set callbacks. If you reset it or allocate on it, the next evaluation allocates its
        graph again. The model closes it, and may replace it before the first evaluation."""
        self._check_open()
        return self._graphs.scheduler

    @property
    def n_reused(self) -> int:
        """See `Model`."""
        self._check_open()
        return self._graphs.n_reused

    @typed
    @alone(CHANGING)
    def record(self, per_op: bool = False) -> Recording:
        """See `Model`."""
        self._check_open()
        return self._graphs.record(per_op)

    def _decode_lists(self) -> list[list[Decode]]:
        self._check_open()
        return self._graphs.watching

    @typed
    def look_at_nodes(self, look: EvalFunction) -> AbstractContextManager[None]:
        """See `Model`."""
        self._check_open()
        return self._graphs.watched(look)

    # --- lifetime

    @alone(CLOSING)
    def close(self) -> None:
        """Frees everything: graphs, scheduler, cache, weights, backends."""
        self._closed = True
        self._closing.close()

    @property
    def closed(self) -> bool:
        """See `Model`."""
        return self._closed

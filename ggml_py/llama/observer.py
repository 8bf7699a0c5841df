"""Notes and recordings of a context of libllama, ubatch by ubatch."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..boundary.ffi import NULL, lib
from ..enums import TensorFlag
from ..graphs.graph import Graph
from ..scheduler.capture import read_plan
from ..scheduler.process_facts import made_here
from ..scheduler.recording import Recording
from .decodes import Decode, DecodedUbatch, InputSet, differing
from .norm_pins import why_norms

if TYPE_CHECKING:
    from ..plan import Plan
    from .evaluating import LlamaContext

_SIZES = {"n_tokens": "inp_tokens", "n_outputs": "out_ids", "n_kv": "kq_mask"}  # of which inputs
_UNSET = ("inp_embd", "inp_mixed_")  # for batches that have vectors in place of tokens
_OTHER = "no size differs; another setting does, or libllama let the graph go"


class Observer:
    """Notes each ubatch of a context, for as long as somebody wants to know.

    Then the context evaluates tokens one ubatch at a time, so that the graph of each can be read.
    The graphs are those of a single llama_decode.
    """

    def __init__(self, context: LlamaContext, full_offload: bool) -> None:
        self._context = context
        self._full_offload = full_offload
        self.lists: list[list[Decode]] = []  # get each decode
        self.recordings: list[Recording] = []
        self._found: list[DecodedUbatch] = []
        self._sizes: dict[str, Any] = {}  # of the graph that the scheduler holds; {} without one
        self._n_reused = 0
        self._n_graphs = 0

    def __bool__(self) -> bool:
        return bool(self.lists or self.recordings)

    @property
    def per_op(self) -> bool:
        """Whether a recording computes nodes one by one, through an eval callback."""
        return any(recording._per_op for recording in self.recordings)

    def begin(self) -> None:
        """Somebody wants to know, from now on."""
        with self._context.context.using("being observed"):
            self._sizes = self._read()[0]
            self._n_reused = self._context.n_reused()

    def starts(self) -> bool:
        """Whether a decode that starts now is to be noted."""
        self._found = []
        return bool(self)

    def noted(self, n_tokens: int, n_outputs: int) -> None:
        """Notes the ubatch that was just computed."""
        context, before = self._context, self._sizes
        n_reused = context.n_reused()
        reused, self._n_reused = n_reused > self._n_reused, n_reused
        self._n_graphs += not reused
        self._sizes, inputs = self._read()
        n_tokens = self._sizes.get("n_tokens", n_tokens)  # of several graphs, the last one's
        n_outputs = self._sizes.get("n_outputs", n_outputs)
        differs = differing(before, self._sizes) if before and not reused else ()
        why = "" if reused or differs else _OTHER if before else "the first graph"
        self._found.append(
            DecodedUbatch(n_tokens, n_outputs, reused, not reused, differs, why, inputs, True)
        )
        for recording in self.recordings:
            scheduler = context.scheduler
            index = int(lib.gp_run_computes(scheduler.ptr)) - 1
            recording.note(scheduler, self._n_graphs, index, lambda: self._plan(n_tokens))

    def end(self) -> None:
        """Ends a decode."""
        decode = Decode(tuple(self._found))
        for decodes in self.lists:
            decodes.append(decode)

    def _plan(self, n_tokens: int) -> Plan:
        sched = self._context.scheduler
        made = made_here((b.device for b in sched.backends), ask_servers=False)
        graph, norms = lib.gp_sched_graph(sched.ptr), why_norms(self._full_offload, n_tokens)
        return read_plan(lib.gp_sched_read, sched.ptr, graph, {}, norms, made)

    def _read(self) -> tuple[dict[str, Any], tuple[InputSet, ...]]:
        """The sizes of the graph that the scheduler holds, and the inputs that are set."""
        ptr = lib.gp_sched_graph(self._context.scheduler.ptr)
        if ptr == NULL:
            return {}, ()
        graph = Graph._borrow(ptr, only_read="it is libllama's")
        try:
            return _sizes_and_inputs(graph)
        finally:
            graph.close()


class ContextRecording(Recording):
    """Records a context's scheduler. Raises `BusyError` while another thread uses the model."""

    def __init__(self, context: LlamaContext, per_op: bool) -> None:
        super().__init__(context.scheduler, per_op=per_op)
        self._context = context

    def __enter__(self) -> ContextRecording:
        context = self._context
        with context.context.using("being recorded"):
            super().__enter__()
            if self._per_op:  # libllama would remove the recorder's callback
                context.set_eval_callback(context.scheduler.state.callback_eval)
        context.observer.begin()
        context.observer.recordings.append(self)
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        context = self._context
        context.observer.recordings.remove(self)
        if self._per_op and not context.context.closed:
            with context.context.using("being recorded"):
                context.set_eval_callback(NULL)
        super().__exit__(type_, value, traceback)


def _sizes_and_inputs(graph: Graph) -> tuple[dict[str, Any], tuple[InputSet, ...]]:
    inputs = [leaf for leaf in graph.leafs if TensorFlag.INPUT in leaf.flags]
    found = [leaf for leaf in inputs if not leaf.name.startswith(_UNSET)]
    sizes = {
        what: tuple(leaf.ne[0] for leaf in found if leaf.name.endswith(name))
        for what, name in _SIZES.items()
    }
    return (
        {what: n[0] if len(n) == 1 else n for what, n in sizes.items() if n},
        tuple(InputSet(leaf.name, leaf.nbytes) for leaf in found if leaf.nbytes),
    )

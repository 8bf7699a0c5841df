"""Training with ggml-opt: losses, optimizers, and the contexts that evaluate and step.

1. ggml-opt allocates its graphs on the scheduler itself. To let the scheduler know, we wrap what it
   allocated as a Graph (`OptContext.graph`), which is closed when the next one replaces it.
2. Its own tensors are in native contexts that nobody else sees. Gradients are in a Context of the
   OptContext, so no tensor of the user ever points to something that was freed before it.
3. With static graphs ggml-opt computes copies of the user's tensors. Copies do not notice closed
   buffers, so each evaluation first checks that all tensors are where they were.
4. Optimizer parameters are asked for before the native call, not in a callback from it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from .. import enums
from ..backends.computing import computing
from ..backends.sharing import changing
from ..boundary.arguments import describe, integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import Handle, within
from ..boundary.uses import in_use
from ..errors import AbortError, ArgumentError, MissingFunctionError, NoDataError
from ..graphs.context import Context
from ..graphs.graph import Graph
from ..scheduler.scheduler import Scheduler
from ..tensors.tensor import Tensor, enum_of
from ..typed import typed
from .datasets import OptResult
from .optimizers import SGD, AdamW, check_model, close_all, context_of, let_go

_LOSS, _BUILD = enums.OptLossType, enums.OptBuildType
_STATIC_SIZE = 2048  # GGML_DEFAULT_GRAPH_SIZE, of static graphs in ggml-opt.cpp
_OTHER = "another graph is allocated on this OptContext's scheduler: reset() the scheduler first"


class OptContext(Handle):
    """Evaluates a model and trains its parameters (`Tensor.set_param`). C: ggml_opt_init

    With `inputs` and `outputs` it has static graphs, built once for one batch size. Use `epoch` and
    `fit`, or go step by step: `alloc`, set `inputs` and `labels`, `eval`. Without them each
    evaluation has its own graph: call `prepare_alloc`, then do the same. A batch has ne[1] of
    inputs and outputs datapoints.

    Parameters and, with static graphs, inputs must be in memory that the scheduler's first backend
    can read. The scheduler allocates the model's other tensors, which cannot be read, and belongs
    to the OptContext from `alloc` to `eval`. It needs a graph_size of 8 times the nodes or more."""

    __slots__ = (
        "_allocated", "_borrowed", "_kind", "_lent", "_model", "_opt_i", "_optimizer", "_pars",
        "_places", "_private", "_ready", "_scheduler", "_shape", "_step", "build_type", "inputs",
        "loss_type", "opt_period", "outputs",
    )  # fmt: skip
    _needs_parents = False  # its model may need it: rule 5 of docs/HANDLES.md

    def __init__(
        self,
        scheduler: Scheduler,
        loss_type: enums.OptLossType | str | int,
        optimizer: AdamW | SGD | Callable[[int], AdamW | SGD] | None = None,
        *,
        inputs: Tensor | None = None,
        outputs: Tensor | None = None,
        build_type: enums.OptBuildType | str | int = _BUILD.OPT,
        opt_period: int = 1,
    ) -> None:
        """`loss_type` is "mean", "sum", "cross_entropy" or "mean_squared_error". The first two use
        the outputs alone, the others compare them with labels of the same ne. `optimizer` is a set
        of parameters (default `AdamW()`), or a function that returns those of step n, from 1. Each
        step follows `opt_period` evaluations with `backward`; until then gradients add up.
        `build_type="forward"` only evaluates.

        Raises `ArgumentError` and `NoDataError` where upstream would abort or train wrongly, and
        `AbortError` for ops that ggml cannot differentiate.
        """
        raw_scheduler = ptr_of(Scheduler, scheduler)
        if not scheduler._tracing:
            raise MissingFunctionError(
                "OptContext must see the graphs that ggml-opt makes, but this build is pristine: "
                "use an instrumented one (`ggml-py build --list` shows the builds)"
            )
        self._scheduler, self._optimizer = scheduler, AdamW() if optimizer is None else optimizer
        self.loss_type = _LOSS(enum_of(_LOSS, loss_type))
        self.build_type = _BUILD(enum_of(_BUILD, build_type))
        self.opt_period = integer("opt_period", opt_period, 1, (1 << 31) - 1)
        if self.build_type == _BUILD.GRAD:
            raise ArgumentError(
                "build_type='grad': ggml-opt always builds the step too; expected 'forward', or "
                "'opt' with an opt_period that is never reached"
            )
        if (inputs is None) != (outputs is None):
            raise ArgumentError("expected both inputs and outputs (static graphs), or neither")
        self.inputs, self.outputs = inputs, outputs
        self._step, self._opt_i = 1, 0
        self._ready = False  # between alloc() and eval()
        self._kind: enums.OptBuildType | None = None  # of the allocated graph
        self._allocated: Any = NULL  # that graph's pointer
        self._shape: list[Any] | None = None  # where the parameters are among the nodes
        self._places: list[tuple[Any, Any, Any]] = []  # tensors with memory, and where it is
        self._model: Graph | None = None
        self._private: list[Context] = []  # the Context of gradients, if any
        self._lent: list[Graph] = []  # `graph`, if any
        self._borrowed: weakref.WeakSet[Graph] = weakref.WeakSet()  # in use by somebody
        self._pars = pars = ffi.new("struct ggml_opt_optimizer_params *")
        kind = type(self._parameters())
        params = lib.ggml_opt_default_params(raw_scheduler, self.loss_type)
        params.build_type, params.opt_period = self.build_type, self.opt_period
        params.optimizer = enums.OptOptimizerType["ADAMW" if kind is AdamW else "SGD"]
        params.get_opt_pars = lib.ggml_opt_get_constant_optimizer_params
        params.get_opt_pars_ud = pars
        parents: list[Handle] = [scheduler]
        try:
            if inputs is not None and outputs is not None:
                self._build_static(inputs, outputs, params)
                parents += [inputs._context, outputs._context, *self._private]
            ptr = lib.ggml_opt_init(params)
            if inputs is not None:
                self._mark_labels(ptr)
        except BaseException:
            close_all([*self._private, *([] if self._model is None else [self._model])])
            raise
        super().__init__(ptr, lib.ggml_opt_free, *parents)
        needs = self._native.needs  # freeing needs no scheduler: it may be closed
        for one in [one for one in needs if one.token == scheduler._token]:
            needs.remove(one)
        # The scheduler holds its graph, which needs it: that ends when this object goes.
        weakref.finalize(self, let_go, weakref.ref(scheduler), self._borrowed).atexit = False

    def _before_free(self) -> None:
        if self._scheduler._spoiled_by is None:
            self._forget()
        close_all(self._lent)

    def _free(self) -> None:
        super()._free()
        close_all(self._private)  # not before: closing a parent closes its children

    def _reach(self, found: dict[int, Handle]) -> None:
        super()._reach(found)
        for graph in self._lent:
            graph._reach(found)

    def _build_static(self, inputs: Tensor, outputs: Tensor, params: Any) -> None:
        ptr_of(Tensor, inputs)
        self._model = model = Graph(context_of(outputs), _STATIC_SIZE)
        try:
            model.build_forward_expand(outputs)
        except AbortError:
            raise ArgumentError(
                f"the model has more than the {_STATIC_SIZE} nodes of a static graph: make the "
                "OptContext without inputs and outputs, and call prepare_alloc for each evaluation"
            ) from None
        check_model(self, model, inputs, outputs)
        inputs._data()
        model._check_leafs("allocate it: static graphs are computed on copies of the tensors")
        placed = (t._ptr for t in (*model.nodes, *model.leafs) if t._ptr.data != NULL)
        self._places = [(raw, raw.data, raw.buffer) for raw in placed]
        private = Context()
        self._private.append(private)
        private._adopt(inputs, outputs)
        params.ctx_compute = private.ptr
        params.inputs, params.outputs = inputs.ptr, outputs.ptr

    def __repr__(self) -> str:
        if self.closed:
            return "<OptContext closed>"
        graphs = "static graphs" if self.inputs is not None and self._places else "dynamic graphs"
        return f"<OptContext {self.loss_type.name.lower()}, {graphs}>"

    # --- parameters

    @property
    def optimizer(self) -> AdamW | SGD | Callable[[int], AdamW | SGD]:
        """The optimizer that was given or set last. Its class cannot change.

        C: ggml_opt_context_optimizer_type
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: AdamW | SGD | Callable[[int], AdamW | SGD]) -> None:
        raw, before = self.ptr, self._optimizer
        self._optimizer = optimizer
        try:
            now = self._parameters()
            adamw = lib.ggml_opt_context_optimizer_type(raw) == enums.OptOptimizerType.ADAMW
            if isinstance(now, AdamW) != adamw:
                was = "AdamW" if adamw else "SGD"
                raise ArgumentError(
                    f"{now}: this OptContext was made with {was} and takes no other class"
                )
        except BaseException:
            self._optimizer = before
            raise

    def _parameters(self) -> AdamW | SGD:
        """The parameters of the next step, passed on to ggml."""
        now = self._optimizer
        if callable(now):
            now = now(self._step)
        if not isinstance(now, AdamW | SGD):
            raise TypeError(
                f"optimizer: expected AdamW, SGD or a function returning one, got {describe(now)}"
            )
        native = self._pars.adamw if isinstance(now, AdamW) else self._pars.sgd
        names = (name for name, _field in ffi.typeof(native).fields)
        for name, value in zip(names, astuple(now), strict=True):
            setattr(native, name, value)
        return now

    @property
    def static_graphs(self) -> bool:
        """Whether it was made with inputs and outputs. C: ggml_opt_static_graphs"""
        return bool(lib.ggml_opt_static_graphs(self.ptr))

    # --- tensors

    @property
    def graph(self) -> Graph | None:
        """The allocated graph, with gradients and steps: `Scheduler.plan` explains it. Closed when
        `alloc` allocates another. C: gp_sched_graph"""
        self.ptr  # noqa: B018  raises when closed
        return self._lent[0] if self._lent else None

    @property
    def labels(self) -> Tensor | None:
        """The tensor that outputs are compared with, of the same ne. None for losses without
        labels, and for dynamic graphs before `alloc`. C: ggml_opt_labels"""
        return self._own(lib.ggml_opt_labels)

    @property
    def loss(self) -> Tensor | None:
        """The loss of the last batch, divided by opt_period for every loss type but "sum". None for
        dynamic graphs before `alloc`. C: ggml_opt_loss"""
        return self._own(lib.ggml_opt_loss)

    @property
    def pred(self) -> Tensor | None:
        """The index of each datapoint's largest output, for "cross_entropy". C: ggml_opt_pred"""
        return self._own(lib.ggml_opt_pred)

    @property
    def ncorrect(self) -> Tensor | None:
        """How many predictions are right, for "cross_entropy". C: ggml_opt_ncorrect"""
        return self._own(lib.ggml_opt_ncorrect)

    def _own(self, get: Any) -> Tensor | None:
        ptr = self.ptr
        static = self.static_graphs
        raw = get(ptr) if static or self._kind is not None else NULL
        if raw == NULL:
            return None
        return Tensor(within(raw, ptr), self) if static else Tensor(raw, self._private[0])

    def grad_acc(self, node: Tensor) -> Tensor | None:
        """The tensor in which a parameter's gradients add up. None where they do not: with static
        graphs and an opt_period of 1, and for a tensor that is not a parameter.

        Raises `ArgumentError` for a tensor that is not in the model, and if no graph makes a step:
        with build_type "forward", and for dynamic graphs outside of `alloc` to `eval` of a step.
        C: ggml_opt_grad_acc
        """
        ptr, raw = self.ptr, ptr_of(Tensor, node)
        static = self.static_graphs
        if self.build_type != _BUILD.OPT or not (
            static or (self._ready and self._kind == _BUILD.OPT)
        ):
            raise ArgumentError("no graph now makes a step: call alloc(backward=True) first")
        if self._model is None or node not in self._model:
            raise ArgumentError(f"{node!r} is not in the model: expected one of its parameters")
        acc = lib.ggml_opt_grad_acc(ptr, raw)
        return None if acc == NULL else Tensor(within(acc, ptr), self)

    # --- evaluating

    def prepare_alloc(self, graph: Graph, inputs: Tensor, outputs: Tensor) -> None:
        """For dynamic graphs: gives the next `alloc` its graph, which computes `outputs`. The graph
        and its tensors do not change and can be used again.

        After the first evaluation graphs may differ only in batch size. Raises `ArgumentError` for
        another model, and what __init__ raises. C: ggml_opt_prepare_alloc
        """
        with in_use("being prepared", self):
            self._prepare(graph, inputs, outputs)

    def _prepare(self, graph: Graph, inputs: Tensor, outputs: Tensor) -> None:
        ptr = self.ptr
        ptr_of(Graph, graph)
        inputs_raw, outputs_raw = ptr_of(Tensor, inputs), ptr_of(Tensor, outputs)
        if self.static_graphs:
            raise ArgumentError("this OptContext has static graphs: call alloc() directly")
        if self._ready:
            raise ArgumentError("the graph of the last alloc() waits for eval()")
        graph._changeable()
        check_model(self, graph, inputs, outputs)
        shape = [n._ptr if n.flags & enums.TensorFlag.PARAM else n.op for n in graph.nodes]
        if self._shape is not None and shape != self._shape and self.build_type == _BUILD.OPT:
            raise ArgumentError(
                f"this graph (nodes: {len(shape)}) differs from the first (nodes: "
                f"{len(self._shape)}) in nodes, parameters or ops, so momenta would be mixed up: "
                "make another OptContext for it"
            )
        self._forget()
        private = Context()
        self._private.append(private)
        private._adopt(inputs, outputs, *graph.nodes)
        # ggml-opt adds to the graph, and makes two more of its size.
        size = max(graph.size, 8 * (graph.n_nodes + graph.n_leafs + 16))
        self._model = model = Graph(private, size, grads=True)
        graph.copy_to(model)
        lib.ggml_opt_prepare_alloc(ptr, private.ptr, model.ptr, inputs_raw, outputs_raw)
        self._shape, self.inputs, self.outputs = shape, inputs, outputs

    def _with_model(self) -> Any:
        """`ptr`. Raises `ClosedError` if the last dynamic graph was closed with its context."""
        if self._model is not None:
            self._model.ptr  # noqa: B018
        return self.ptr

    def _forget(self) -> None:
        """Takes the allocated graph from the scheduler, and closes it and its contents."""
        if self._lent and self._scheduler._graph is self._lent[0]:
            self._scheduler.reset()
        close_all(self._lent)
        if not self.static_graphs:  # ggml-opt still takes a static one for allocated
            self._kind, self._allocated = None, NULL
            close_all(self._private)

    @typed
    def alloc(self, backward: bool = True) -> None:
        """Allocates the graph of the next `eval` on the scheduler; with `backward` it trains.

        Set `inputs` and `labels` after this. Needed before every `eval`; it does nothing if the
        graph is still there. Raises `ArgumentError` while another graph is on the scheduler, and
        `AllocError`. C: ggml_opt_alloc
        """
        with in_use("allocating", self):
            self._alloc_next(bool(backward))

    def _alloc_next(self, backward: bool) -> None:
        ptr, scheduler = self._with_model(), self._scheduler
        mine = self._lent[0] if self._lent else None
        if scheduler._graph is not None and scheduler._graph is not mine:
            raise ArgumentError(_OTHER)
        if self._ready:
            if scheduler._graph is not None:
                raise ArgumentError("alloc() was called already: call eval() now")
            scheduler.alloc_without_plan(self._graph_again())  # it was reset meanwhile
            return
        kind = self._next(backward)
        if not self.static_graphs and self._model is None:
            raise ArgumentError("dynamic graphs: call prepare_alloc(graph, inputs, outputs) first")
        if not self.static_graphs and self._kind is not None:
            raise ArgumentError("the last graph was evaluated: call prepare_alloc for the next one")
        if self._kind != kind:
            if self._lent:
                self._forget()
            with changing("allocating", scheduler, graph=self._model, gives=True):
                if scheduler._graph is not None:
                    raise ArgumentError(_OTHER)
                self._alloc(ptr, kind, backward)
            return
        lib.ggml_opt_alloc(ptr, backward)  # finds that graph there
        self._ready = True
        if scheduler._graph is None:
            scheduler.alloc_without_plan(self._graph_again())

    def _next(self, backward: bool) -> enums.OptBuildType:
        if not backward:
            return _BUILD.FORWARD
        if self.build_type == _BUILD.FORWARD:
            raise ArgumentError("build_type='forward': expected alloc(backward=False)")
        return _BUILD.OPT if (self._opt_i + 1) % self.opt_period == 0 else _BUILD.GRAD

    def _alloc(self, ptr: Any, kind: enums.OptBuildType, backward: bool) -> None:
        scheduler = self._scheduler
        model = self._model
        assert model is not None
        model._hold_arrays()
        model._gets_memory()
        try:
            with self._changing(), scheduler._changing():
                lib.ggml_opt_alloc(ptr, backward)
        except AbortError as error:
            if "hash_set.size" in error.condition:
                raise ArgumentError(
                    f"the graph of {self!r} is too large for the scheduler, made with graph_size="
                    f"{scheduler.graph_size}: make both again, with a larger graph_size"
                ) from error
            raise
        self._ready, self._kind = True, kind
        self._allocated = lib.gp_sched_graph(scheduler.ptr)
        graph = self._graph_again()
        if not scheduler._state().is_alloc:  # ggml-opt does not check
            raise scheduler._no_memory(graph)
        scheduler._graph = graph
        graph._scheduler = weakref.ref(scheduler)
        scheduler._lend()
        graph._upload_arrays()
        model._got_memory()
        if not self.static_graphs:
            self._mark_labels(ptr)
        if backward and self._opt_i == 0 and not self.static_graphs:
            lib.ggml_opt_reset(ptr, False)  # ggml-opt does it with static graphs only
        try:
            graph._check_custom(scheduler.backends, scheduler.tensor_backend)
        except ArgumentError:
            scheduler._reset()
            raise

    @staticmethod
    def _mark_labels(ptr: Any) -> None:
        """Call when the labels have got memory, in which there is nothing."""
        if (labels := lib.ggml_opt_labels(ptr)) != NULL:
            lib.gp_blank_add(labels)

    def _graph_again(self) -> Graph:
        """`graph`, or a new one for the same pointer if somebody closed it."""
        if not self._lent or self._lent[0].closed:
            # A dynamic graph is in the private context, or (forward only) is the model itself.
            places = () if self.static_graphs else (*self._private, self._model)
            parents = [place for place in places if place is not None]
            self._lent[:] = [graph := Graph._borrow(self._allocated, *parents)]
            graph._native.needs.append(self._native)  # not a parent: it may be collected
            self._borrowed.add(graph)
        return self._lent[0]

    def eval(self, result: OptResult | None = None) -> None:
        """Computes the allocated graph, adds to `result`, and makes a step when one is due.

        Raises what a callback or a custom op raised, and KeyboardInterrupt. The batch then counts
        as evaluated, but do not trust its result, nor the parameters if it made a step. Raises
        `ArgumentError` before `alloc` and for a result of other batches, `NoDataError` when a
        buffer of the model was closed. C: ggml_opt_eval
        """
        with in_use("evaluating", self):
            self._eval(result)

    def _eval(self, result: OptResult | None) -> None:
        ptr, scheduler = self._with_model(), self._scheduler
        if not self._ready or self._model is None or self.outputs is None:
            raise ArgumentError("call alloc() before each eval()")
        like = int(self.loss_type), self.opt_period, self.outputs.ne[1]
        raw_result = NULL if result is None else ptr_of(OptResult, result)
        self._check_in_place()
        if scheduler._graph is None and not self.static_graphs:
            raise ArgumentError(
                "the scheduler was reset after alloc(), so the inputs are gone: call alloc() "
                "again and set them"
            )
        if scheduler._graph is None:
            scheduler.alloc_without_plan(self._graph_again())
        elif scheduler._graph is not self._lent[0]:
            raise ArgumentError(_OTHER)
        self._check_set(ptr, self._model)
        steps = self._kind == _BUILD.OPT
        if steps:
            self.optimizer = self._optimizer  # checks what a function returns
        if result is not None:
            result._take(like)
        graph, model, handles = self._lent[0], self._model, (scheduler, *scheduler.backends)
        began = False

        def evaluate() -> None:
            nonlocal began
            began = True
            with self._changing(), scheduler._changing():
                lib.ggml_opt_eval(ptr, raw_result)

        try:
            computing(
                evaluate, (), graph, handles,
                # Static graphs compute copies, which custom ops do not know.
                lambda: (*scheduler._callbacks(), *model._failed_ops()),
                held=scheduler._held, backends=scheduler.backends,
            )  # fmt: skip
        finally:
            if began:  # else another thread uses these objects
                self._ready = False
                self._step += steps
                self._opt_i = (self._opt_i + 1) % self.opt_period

    @staticmethod
    def _check_set(ptr: Any, model: Graph) -> None:
        """Raises `NoDataError` for a leaf that was never set. The graph that is computed may be a
        copy, with tensors of its own."""
        leaf, labels = lib.gp_blank_compute(model.ptr), lib.ggml_opt_labels(ptr)
        if leaf == NULL and labels != NULL and lib.gp_blank_read(labels) == lib.GP_BLANK_NEW:
            leaf = labels
        if leaf != NULL:
            model._never_set(leaf)

    def _check_in_place(self) -> None:
        for raw, data, buffer in self._places:
            if raw.data != data or raw.buffer != buffer:
                name = ffi.string(raw.name).decode("utf-8", "replace")
                raise NoDataError(
                    f"tensor '{name}' is no longer in the memory that it had when this OptContext "
                    "was made, because its buffer was closed: make another OptContext"
                )

    @typed
    def reset(self, optimizer: bool = False) -> None:
        """Sets accumulated gradients to zero. With `optimizer` also resets AdamW's momenta to zero
        and the count of steps to one.

        Raises `ArgumentError` without a graph that trains: with build_type "forward", and for
        dynamic graphs outside of `alloc(backward=True)` to `eval`. C: ggml_opt_reset
        """
        with in_use("being reset", self):
            self._reset(optimizer)

    def _reset(self, optimizer: bool) -> None:
        ptr = self._with_model()
        needed = (_BUILD.OPT,) if optimizer else (_BUILD.GRAD, _BUILD.OPT)
        there = self.static_graphs or (self._ready and self._kind in needed)
        if self.build_type != _BUILD.OPT or not there:
            raise ArgumentError("no allocated graph trains: call alloc(backward=True) first")
        self._check_in_place()
        lib.ggml_opt_reset(ptr, optimizer)
        if optimizer:
            self._step = 1

"""A graph: the nodes that its results need, in the order of computation."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .. import enums
from ..backends.above import AnyGraph
from ..backends.buffer import BufferType
from ..backends.sharing import using
from ..boundary.arguments import c_text, describe, integer, ptr_of
from ..boundary.ffi import NULL, ffi, lib
from ..boundary.handle import Handle
from ..boundary.uses import in_use, reading
from ..errors import ArgumentError, NoDataError
from ..tensors.arrays import PENDING, Arrays
from ..tensors.blank import never_set
from ..tensors.tensor import Tensor
from ..typed import typed
from .context import new_native
from .custom import custom_nodes, failed_ops, is_remote

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..backends.device import Device
    from ..backends.sharing import Lender
    from .alloc import _Lent
    from .context import Context
    from .custom import CustomOp
    from .graph_plan import GraphPlan


class Graph(AnyGraph):
    """Made by `Context.new_graph`. It has its own memory, which closing it frees."""

    __slots__ = ("_backward", "_context", "_grads", "_lent", "_scheduler")

    @typed
    def __init__(self, context: Context | Graph, size: int = 2048, grads: bool = False) -> None:
        size = integer("size", size, 1, 1 << 31)
        grads = bool(grads)
        if not isinstance(context, Handle):
            raise TypeError(f"expected a Context, got {describe(context)}")
        context.ptr  # noqa: B018  raises when closed
        room = lib.ggml_graph_overhead_custom(size, grads)
        memory = new_native(room, f"a graph of size {size:,}")
        self._context = context
        self._grads = grads  # whether it has room for gradients
        self._backward = False  # whether the gradients are built
        self._scheduler: weakref.ref[Lender] | None = None  # where it is allocated
        self._lent: _Lent | None = None  # the same, for a GraphAllocator
        self._only_read = ""
        self._whole_at = self._turn = -1
        self._reused = None
        ptr = lib.ggml_new_graph_custom(memory, size, grads)
        super().__init__(ptr, lambda _graph: lib.ggml_free(memory), context)

    @classmethod
    def _borrow(cls, ptr: Any, *parents: Handle, only_read: str = "") -> Graph:
        """A graph in memory of somebody else, who must close it before freeing that. `only_read`
        says why it can neither be changed nor get memory."""
        graph = cls.__new__(cls)
        graph._context = graph
        graph._grads = graph._backward = True
        graph._scheduler = graph._lent = None
        graph._only_read = only_read
        graph._whole_at = graph._turn = -1
        graph._reused = ()  # whoever gave it memory knows what is in it
        Handle.__init__(graph, ptr, lambda _graph: None, *parents)
        return graph

    def __repr__(self) -> str:
        if self.closed or self._spoiled_by is not None:
            return f"<Graph {'closed' if self.closed else 'spoiled'}>"
        return f"<Graph {self.n_nodes} node{'s' * (self.n_nodes != 1)}>"

    # --- building

    def _changeable(self) -> Any:
        """`ptr`. Raises `ArgumentError` while it is allocated, or if it can only be read."""
        self._check_own()
        lender = self._allocated_on()
        if lender is not None:
            raise ArgumentError(f"the graph is allocated on {lender!r}: reset() that one first")
        self._reused = None
        return self.ptr

    def build_forward_expand(self, *tensors: Tensor) -> None:
        """Adds each tensor and everything that it needs.

        Raises `AbortError` if the graph is full; it is then half built and can only be closed.
        C: ggml_build_forward_expand
        """
        if not tensors:
            raise TypeError("build_forward_expand() without tensors: expected the graph's results")
        self._changeable()
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"expected a Tensor, got {describe(tensor)}")
            self._depend(tensor._context)
        with in_use("being built", self), self._changing():
            ptr = self._changeable()
            for tensor in tensors:
                lib.ggml_build_forward_expand(ptr, tensor.ptr)

    def build_backward_expand(
        self, context: Context | None = None, grad_accs: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        """Adds the nodes that compute the gradients of the losses with respect to the parameters.

        First call `Tensor.set_param` and `Tensor.set_loss`, then build the graph forward, then call
        this. The new tensors are made in `context` (by default the graph's own). `grad_accs` maps
        tensors of the graph to accumulators, f32 with the same ne: gradients are added to their
        contents, and `grad` of the tensor is its accumulator. Once the graph has memory, call
        `reset`, compute, then read `grad`; mark gradients with `set_output` where a scheduler
        could reuse their memory.

        Raises `ArgumentError` for a graph made without grads=True, without parameters or losses, or
        with gradients already. Raises `AbortError` for ops that ggml cannot differentiate: the
        graph is then half built and can only be closed. C: ggml_build_backward_expand
        """
        from .context import Context

        self._changeable()
        nodes = self.nodes
        if not self._grads:
            raise ArgumentError(
                "the graph has no room for gradients: make it with new_graph(grads=True)"
            )
        if self._backward:
            raise ArgumentError("the graph already has its gradients: clear() it to build anew")
        flags = enums.TensorFlag(0)
        for node in nodes:
            flags |= node.flags
        for flag, what, how in (
            (enums.TensorFlag.PARAM, "parameters to train", "set_param"),
            (enums.TensorFlag.LOSS, "loss", "set_loss"),
        ):
            if not flags & flag:
                raise ArgumentError(
                    f"the graph has no {what} among its nodes: call {how}() on a tensor "
                    "before build_forward_expand"
                )
        where = self._context if context is None else context
        if not isinstance(where, Context):
            raise TypeError(f"context: expected a Context, got {describe(where)}")
        accs = self._accumulators(nodes, grad_accs or {})
        where._adopt(*nodes)
        self._depend(where)
        with in_use("being built", self, where), self._changing():
            lib.ggml_build_backward_expand(where.ptr, self._changeable(), accs)
        self._backward = True

    def _accumulators(self, nodes: Sequence[Tensor], grad_accs: Mapping[Tensor, Tensor]) -> Any:
        """The array that ggml takes: for each node its accumulator, or NULL."""
        accs = ffi.new("struct ggml_tensor *[]", len(nodes))
        place = {node: i for i, node in enumerate(nodes)}
        for tensor, acc in grad_accs.items():
            if tensor not in place:
                raise ArgumentError(f"grad_accs: {tensor!r} is not a node of this graph")
            if acc.type != enums.Type.F32 or acc.ne != tensor.ne:
                raise ArgumentError(
                    f"grad_accs: the accumulator of '{tensor.name}' is {acc!r}, "
                    f"expected f32 with ne {list(tensor.ne)}"
                )
            self._depend(acc._context)
            accs[place[tensor]] = acc.ptr
        return accs

    def add_node(self, tensor: Tensor) -> None:
        """Appends one op to the nodes, without adding what it needs.

        Raises `ArgumentError` if one of its sources is not in the graph (`build_forward_expand`
        adds those too), if it is already in the graph, and if the graph is full.
        C: ggml_graph_add_node
        """
        ptr, raw = self._changeable(), ptr_of(Tensor, tensor)
        if lib.gp_graph_has(ptr, raw):
            raise ArgumentError(f"{tensor!r} is already in this graph")
        needs = (*tensor.src, *(() if tensor.view_src is None else (tensor.view_src,)))
        for source in needs:
            if not lib.gp_graph_has(ptr, source.ptr):
                raise ArgumentError(
                    f"{tensor!r} needs {source!r}, which is not in this graph: add that first, or "
                    "both with build_forward_expand"
                )
        if self.n_nodes == self.size:
            raise ArgumentError(
                f"the graph is full: it has room for {self.size} node{'s' * (self.size != 1)}; "
                "make it with a larger size"
            )
        self._depend(tensor._context)
        with in_use("being built", self):
            if self._changeable() and self.n_nodes < self.size:  # another thread may have added one
                lib.ggml_graph_add_node(ptr, raw)
        # As build_forward_expand does: backends skip nodes without the flag (since 0.9.7).
        raw.flags |= int(enums.TensorFlag.__members__.get("COMPUTE", 0))

    def clear(self) -> None:
        """Removes all nodes and leafs; the tensors stay as they are. C: ggml_graph_clear"""
        with in_use("being cleared", self):
            lib.ggml_graph_clear(self._changeable())
            self._backward = False

    def copy_to(self, other: Graph) -> None:
        """Replaces the contents of `other` with the nodes, leafs and gradients of this graph.

        The tensors are not copied. Raises `ArgumentError` if `other` has less room than this graph,
        or no room for gradients where this one has it. C: ggml_graph_cpy
        """
        ptr_of(Graph, other)
        source, target = self.ptr, other._changeable()
        if other is self:
            raise ArgumentError("a graph cannot be copied to itself: expected another one")
        if other.size < self.size or self._grads > other._grads:
            raise ArgumentError(
                f"the other graph has size={other.size}, grads={other._grads}: expected at least "
                f"size={self.size}, grads={self._grads}, as in this one"
            )
        for parent in (self._context, *self._parents):
            other._depend(parent)
        other.clear()  # ggml_graph_cpy would write out of bounds for a tensor in both graphs
        with in_use("being copied to", other, reads=(self,)):
            other._changeable()
            lib.ggml_graph_clear(target)
            lib.ggml_graph_cpy(source, target)
            other._only_read = self._only_read
            other._backward = self._backward

    @typed
    def dup(self, grads: bool = False) -> Graph:
        """A new graph with the same nodes, leafs and gradients; `grads` adds room for gradients.

        C: ggml_graph_dup
        """
        other = Graph(self._context, self.size, grads or self._grads)
        self.copy_to(other)
        return other

    # --- its contents

    @property
    def size(self) -> int:
        """Number of nodes that it has room for. C: ggml_graph_size"""
        return int(lib.ggml_graph_size(self.ptr))

    @property
    def n_nodes(self) -> int:
        """Number of nodes. C: ggml_graph_n_nodes"""
        return int(lib.ggml_graph_n_nodes(self.ptr))

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        """Its nodes, in the order of computation. C: ggml_graph_nodes"""
        with reading(self):
            ptr = self.ptr  # `nodes` is in its memory
            nodes = lib.ggml_graph_nodes(ptr)
            found = [nodes[i] for i in range(lib.ggml_graph_n_nodes(ptr))]
        return self._tensors(found)

    @property
    def n_leafs(self) -> int:
        """Number of leafs. C: gp_graph_leafs"""
        return int(lib.gp_graph_leafs(self.ptr, NULL))

    @property
    def leafs(self) -> tuple[Tensor, ...]:
        """Tensors that are not computed: inputs and weights. C: gp_graph_leafs"""
        with reading(self):
            leafs = ffi.new("struct ggml_tensor *[]", self.n_leafs)
            lib.gp_graph_leafs(self.ptr, leafs)
        return self._tensors(leafs)

    def _tensors(self, pointers: Iterable[Any]) -> tuple[Tensor, ...]:
        """The Tensors of these pointers, each with the context that owns it."""
        if len(self._parents) <= 1:
            return tuple(Tensor(ptr, self._context) for ptr in pointers)
        contexts = _contexts(self)
        return tuple(Tensor(ptr, _owner(contexts, ptr) or self._context) for ptr in pointers)

    def _tensor(self, ptr: Any) -> Tensor:
        return self._tensors([ptr])[0]

    def __contains__(self, tensor: object) -> bool:
        """Whether the tensor is one of the nodes or leafs. C: gp_graph_has"""
        return isinstance(tensor, Tensor) and bool(lib.gp_graph_has(self.ptr, tensor.ptr))

    def grad(self, tensor: Tensor) -> Tensor | None:
        """The gradient of the loss with respect to a tensor of the graph; None if it needs none,
        and before `build_backward_expand`.

        Raises `ArgumentError` for a tensor of another graph. C: ggml_graph_get_grad
        """
        return self._gradient(lib.ggml_graph_get_grad, tensor)

    def grad_acc(self, tensor: Tensor) -> Tensor | None:
        """The accumulator for the gradient of a tensor of the graph. Losses have one, and tensors
        given one in `build_backward_expand`; None for others.

        Raises `ArgumentError` for a tensor of another graph. C: ggml_graph_get_grad_acc
        """
        return self._gradient(lib.ggml_graph_get_grad_acc, tensor)

    def _gradient(self, get: Any, tensor: Tensor) -> Tensor | None:
        graph, raw = self.ptr, ptr_of(Tensor, tensor)
        if not lib.gp_graph_has(graph, raw):
            raise ArgumentError(f"{tensor!r} is not in this graph: expected a node or leaf of it")
        ptr = get(graph, raw) if self._backward else NULL
        return None if ptr == NULL else self._tensor(ptr)

    def reset(self) -> None:
        """Prepares gradients for the next compute: sets those of losses to one, and accumulators
        and the momenta of `opt_step_adamw` to zero. The graph must have memory.

        Raises `ArgumentError` before `build_backward_expand`, `NoDataError`. C: ggml_graph_reset
        """
        ptr = self.ptr
        if not self._backward:
            raise ArgumentError("the graph has no gradients yet: call build_backward_expand()")
        changed = []
        for node in self.nodes:
            acc = lib.ggml_graph_get_grad_acc(ptr, node._ptr)
            momenta = node._ptr.src[2:4] if node.op == enums.Op.OPT_STEP_ADAMW else ()
            changed += [one for one in (acc, *momenta) if one != NULL]
        for one in changed:
            self._tensor(one)._data()
        with using("being reset", self):
            self._check_data()
            lib.ggml_graph_reset(ptr)
        for one in changed:
            lib.gp_blank_written(one)

    def print(self) -> None:
        """Logs nodes and leafs, one per line, to `logging.getLogger("ggml")` at level INFO. x marks
        a parameter, g a node with a gradient. C: ggml_graph_print"""
        lib.ggml_graph_print(self.ptr)

    @typed
    def to_dot(self, path: str | os.PathLike[str], forward: Graph | None = None) -> None:
        """Writes the graph for Graphviz (`dot -Tsvg path`). Parameters are yellow, nodes with a
        gradient green; with `forward`, nodes that are not in that graph are light blue.

        Raises OSError if the file cannot be written; an old file is then kept.
        C: ggml_graph_dump_dot
        """
        ptr = self.ptr
        path = Path(path)
        for tensor in (*self.nodes, *self.leafs):
            if '"' in tensor.name or "\\" in tensor.name:
                raise ArgumentError(
                    f"tensor {tensor.name!r}: names in a DOT file must not have quotes or "
                    "backslashes; set another name"
                )
        native_forward = NULL if forward is None else ptr_of(Graph, forward)
        if path.is_dir():
            raise ArgumentError(f"path {str(path)!r} is a folder: expected a file's name")
        new = path.with_name(path.name + ".new")
        with new.open("wb"):  # raises here, where upstream would abort
            pass
        try:
            lib.ggml_graph_dump_dot(ptr, native_forward, os.fsencode(new))
            with new.open("rb") as file:
                if file.read()[-2:] != b"}\n":  # upstream does not check
                    raise OSError(f"{path}: the disk is full")
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

    # --- for the classes that compute it

    def _reach(self, found: dict[int, Handle]) -> None:
        super()._reach(found)
        lender = self._allocated_on()
        if lender is not None:
            found[id(lender)] = lender

    def _before_free(self) -> None:
        lender = self._allocated_on()  # takes its memory back from tensors that outlive the graph
        if lender is not None:
            lender.reset()

    def _allocated_on(self) -> Lender | None:
        """The scheduler or allocator that lent memory to this graph, None without one."""
        lent, scheduled = self._lent, self._scheduler  # another thread may reset them meanwhile
        if lent is not None:
            return lent.owner()
        scheduler = None if scheduled is None else scheduled()
        return scheduler if scheduler is not None and scheduler._graph is self else None

    def _failed_ops(self) -> list[CustomOp]:
        return failed_ops(self)

    def _plan_on(self, backend: Backend) -> GraphPlan:
        from .graph_plan import GraphPlan

        return GraphPlan(backend, self)

    def _check_leafs(self, what_to_do: str) -> Any:
        """The first tensor without memory; raises `NoDataError` if it is a leaf."""
        missing = lib.gp_graph_without_data(self.ptr)
        if missing != NULL and missing.op == enums.Op.NONE:
            name = Tensor(missing, self._context).name
            raise NoDataError(f"leaf '{name}' of the graph has no memory: {what_to_do}")
        return missing

    def _with_arrays(self) -> list[Arrays]:
        """Arrays of `from_numpy` that tensors of the graph may still need."""
        if not PENDING:
            return []
        contexts: list[Any] = [context for _start, _end, context in _contexts(self)]
        return [c._arrays for c in contexts if c._arrays]

    def _hold_arrays(self) -> None:
        """Call before the graph is allocated."""
        for arrays in self._with_arrays():
            arrays.hold(self.ptr)

    def _upload_arrays(self) -> None:
        """Call after the graph is allocated."""
        for arrays in self._with_arrays():
            arrays.upload_all()

    def _check_leafs_set(self) -> None:
        """Raises `NoDataError` for a leaf that cannot have been set: it has no memory and no array
        of `from_numpy`."""
        todo = "call alloc_graph first, set it, then compute"
        arrays = self._with_arrays()
        if not arrays:
            self._check_leafs(todo)
            return
        for leaf in self.leafs:
            ptr = leaf._ptr if leaf._ptr.view_src == NULL else leaf._ptr.view_src
            if ptr.data == NULL and leaf.n_elements and not any(a.has(ptr) for a in arrays):
                raise NoDataError(f"leaf '{leaf.name}' of the graph has no memory: {todo}")

    def _gets_memory(self) -> None:
        """Call before a scheduler or an allocator gives it memory, in which there is nothing."""
        if self._context is not self:  # else it is borrowed
            lib.gp_blank_graph(self.ptr)
            self._reused = None

    def _got_memory(self) -> None:
        """Call when it has it."""
        if self._context is not self:
            lib.gp_blank_given(self.ptr)
        self._upload_arrays()

    def _runs(self) -> Any:
        lender = self._allocated_on()
        return self.ptr if lender is None or lender._runs is None else lender._runs

    def _find_reused(self, runs: Any) -> None:
        room, n = 0, 8
        while n > room:
            leafs, room = ffi.new("struct ggml_tensor *[]", n), n
            n = lib.gp_blank_find_reused(runs, self.ptr, leafs, room)
        self._reused = (leafs, n) if n else ()

    def _never_set(self, leaf: Any) -> NoReturn:
        raise NoDataError(never_set(leaf, "call set(array) after the graph has memory"))

    def _check_data(self) -> None:
        """Raises `NoDataError` for a tensor without memory: a compute would read through NULL."""
        changes = lib.gp_changes()
        if changes == self._whole_at:
            return
        missing = self._check_leafs(
            "the buffer it was in is closed, or its context was never allocated"
        )
        if missing == NULL:
            self._upload_arrays()
            self._whole_at = changes
            return
        name = Tensor(missing, self._context).name
        raise NoDataError(
            f"node '{name}' of the graph has no memory: give it some with "
            "GraphAllocator.alloc_graph, or compute the graph with a Scheduler"
        )

    def _check_buffers(self, computes: Backend | Device) -> None:
        """Raises `ArgumentError` for a tensor in memory that `computes` cannot read."""
        room = 16
        n, buffers = room + 1, NULL
        while n > room:
            buffers, room = ffi.new("ggml_backend_buffer_t[]", n), n
            n = lib.gp_graph_buffers(self.ptr, buffers, room)
        for buffer in buffers[0:n]:
            buft = BufferType(lib.ggml_backend_buffer_get_type(buffer))
            if not computes.supports_buft(buft):
                raise ArgumentError(
                    f"tensors of the graph are in {buft.name} memory, which {computes.name} cannot "
                    "read: compute the graph with a Scheduler, which copies them"
                )

    def _check_custom(
        self, backends: Sequence[Backend], backend_of: Callable[[Tensor], Backend | None]
    ) -> None:
        """Raises `ArgumentError` for a custom op on a backend that cannot call Python."""
        remote = [b for b in backends if is_remote(b.device)]
        for node in custom_nodes(self) if remote else ():
            backend = backend_of(node)
            if backend is not None and backend in remote:
                raise ArgumentError(
                    f"the custom op '{node.name}' is on {backend.name} "
                    f"({backend.device.registry}), which cannot call Python: pin it to the CPU "
                    "with Scheduler.set_tensor_backend"
                )

    def __getitem__(self, name: str) -> Tensor:
        """The first node or leaf of that name. Raises KeyError. C: ggml_graph_get_tensor"""
        ptr = lib.ggml_graph_get_tensor(self.ptr, c_text("name", name))
        if ptr == NULL:
            raise KeyError(f"no node or leaf named '{name}' in this graph")
        return self._tensor(ptr)


def _contexts(handle: Handle) -> list[tuple[int, int, Handle]]:
    """Start, end and Context of all metadata that a handle depends on, directly or indirectly."""
    from .context import Context

    found: dict[Handle, tuple[int, int, Handle]] = {}
    pending = list(handle._parents)
    while pending:
        parent = pending.pop()
        if isinstance(parent, Context) and parent not in found:
            start = int(ffi.cast("uintptr_t", lib.ggml_get_mem_buffer(parent.ptr)))
            found[parent] = (start, start + int(lib.ggml_get_mem_size(parent.ptr)), parent)
            pending += parent._parents
    return list(found.values())


def _owner(contexts: list[tuple[int, int, Handle]], ptr: Any) -> Handle | None:
    address = int(ffi.cast("uintptr_t", ptr))
    return next((owner for start, end, owner in contexts if start <= address < end), None)

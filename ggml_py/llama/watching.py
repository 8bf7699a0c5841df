"""Callbacks that see the nodes of an evaluation: named activations, as arrays, and all nodes."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.arguments import describe
from ..boundary.callback import Callback
from ..boundary.ffi import ffi, lib
from ..enums import TensorFlag, Type
from ..errors import ModelError
from ..scheduler.callbacks import EvalFunction, both
from ..tensors.convert import DTYPES, decode, row_size
from ..tensors.lent import Lent
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt


_COMPUTE = int(getattr(TensorFlag, "COMPUTE", 0))  # older releases compute all nodes


class Values:
    """The values of the nodes whose names match one of `patterns`, graph by graph."""

    def __init__(self, patterns: Iterable[str]) -> None:
        try:
            self._patterns = tuple(() if isinstance(patterns, str) else patterns)
        except TypeError:
            self._patterns = ()
        if not self._patterns:
            raise TypeError(
                f"watch={reprlib.repr(patterns)}: expected a list of names, like ['ffn_out-0']"
            )
        for pattern in self._patterns:
            if not isinstance(pattern, str):
                raise TypeError(
                    f"watch: expected names like 'ffn_out-0', or patterns, got {describe(pattern)}"
                )
        self._seen: dict[str, bool] = {}  # names of nodes, and whether a pattern matches
        self._graphs: list[dict[str, npt.NDArray[Any]]] = []
        self._nodes: dict[str, list[npt.NDArray[Any]]] = {}  # of the graph that is computed

    def look(self, node: Tensor, ask: bool) -> bool:
        """An eval callback that copies the values. Nodes of the choices that a graph does not
        compute have none."""
        name = node.name
        if name not in self._seen:
            self._seen[name] = any(fnmatchcase(name, pattern) for pattern in self._patterns)
        wanted = self._seen[name]
        if wanted and not ask and (not _COMPUTE or node.ptr.flags & _COMPUTE):
            self._nodes.setdefault(name, []).append(array_of(node.ptr))
        return wanted or not ask  # False as the answer to a computed node would stop

    def end_graph(self) -> None:
        """The next nodes are another graph's. Raises `ModelError` for a name that no node had."""
        for pattern in self._patterns:
            if not any(fnmatchcase(name, pattern) for name in self._seen):
                near = get_close_matches(pattern, self._seen, 3)
                similar = f"; similar: {', '.join(near)}" if near else ""
                raise ModelError(f"watch: no node of the graph is named {pattern!r}{similar}")
        found: dict[str, npt.NDArray[Any]] = {}
        for name, values in self._nodes.items():
            found |= {f"{name} ({i})": value for i, value in enumerate(values[:-1], 1)}
            found[name] = values[-1]  # as in a plan, a name means its last node
        self._graphs.append(found)
        self._nodes = {}

    def by_name(self) -> dict[str, Any]:
        """The array of each node, ggml's first axis last; of several graphs a list of arrays."""
        if len(self._graphs) == 1:
            return dict(self._graphs[0])
        names = dict.fromkeys(name for graph in self._graphs for name in graph)
        return {name: [graph.get(name) for graph in self._graphs] for name in names}


def watched(names: Any) -> Values | None:
    """The values to watch; None for no names. Raises TypeError for anything but names."""
    return None if not isinstance(names, np.ndarray) and not names else Values(names)


class Looking(Callback):
    """Shows every node to a function of the node and of whether it asks, as an eval callback."""

    __slots__ = ("look",)

    def __init__(self, look: EvalFunction, before: Looking | None) -> None:
        """Beside `before`, the one of an outer block."""
        super().__init__()
        self.look: EvalFunction = look if before is None else both(before.look, look)

    def _run(self, node: Any, ask: bool) -> bool:
        lent = Lent("an eval callback")
        try:
            return bool(self.look(Tensor(node, lent), ask))
        finally:
            lent.closed = True


def array_of(tensor: Any) -> npt.NDArray[Any]:
    """A copy of a native tensor's data; quantised types as float32. Raises `ModelError` for a view
    of quantised blocks that lie along another axis than the first."""
    ne, nb, type_ = list(tensor.ne), list(tensor.nb), Type(tensor.type)
    raw = np.empty(lib.ggml_nbytes(tensor), np.uint8)
    if raw.size:
        lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(raw), 0, raw.nbytes)
    shape = ne[::-1]
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    strides, dtype = nb[::-1][4 - len(shape) :], DTYPES.get(type_)
    if dtype is None:
        if nb[0] != lib.ggml_type_size(type_):
            name = ffi.string(tensor.name).decode("utf-8", "replace")
            raise ModelError(f"watch: {name!r} is a transposed view of {type_.name.lower()} blocks")
        rows = _strided(raw, (*shape[:-1], row_size(type_, ne[0])), (*strides[:-1], 1))
        floats: npt.NDArray[Any] = decode(rows.reshape(-1), type_, int(np.prod(ne)))
        return floats.reshape(shape)
    return _strided(raw.view(dtype), shape, strides)


def _strided(
    raw: npt.NDArray[Any], shape: Sequence[int], strides: Sequence[int]
) -> npt.NDArray[Any]:
    return np.array(np.lib.stride_tricks.as_strided(raw, shape, strides))

"""Callbacks that see the nodes of an evaluation: named activations, as arrays, and all nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary.arguments import describe
from ..boundary.callback import Callback
from ..boundary.ffi import ffi, lib, text
from ..enums import TensorFlag, Type
from ..errors import ModelError
from ..tensors.convert import DTYPES, decode
from ..tensors.lent import Lent
from ..tensors.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt


_COMPUTE = int(getattr(TensorFlag, "COMPUTE", 0))  # older releases compute all nodes


class Values:
    """The values of the nodes whose names match one of `patterns`, graph by graph."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if isinstance(patterns, str):
            raise TypeError(f"watch={patterns!r}: expected a list of names, like [{patterns!r}]")
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(
                    f"watch: expected names like 'ffn_out-0', or patterns, got {describe(pattern)}"
                )
        self._patterns = tuple(patterns)
        self._seen: dict[str, bool] = {}  # names of nodes, and whether a pattern matches
        self._graphs: list[dict[str, npt.NDArray[Any]]] = []
        self._nodes: dict[str, list[npt.NDArray[Any]]] = {}  # of the graph that is computed

    def wants(self, name: str) -> bool:
        """Whether a pattern matches."""
        if name not in self._seen:
            self._seen[name] = any(fnmatchcase(name, pattern) for pattern in self._patterns)
        return self._seen[name]

    def take(self, name: str, node: Any) -> None:
        """Copies the value of a native node. Nodes of the choices that a graph does not compute
        have none."""
        if not _COMPUTE or node.flags & _COMPUTE:
            self._nodes.setdefault(name, []).append(array_of(node))

    def end_graph(self) -> None:
        """The next nodes are another graph's. Raises `ModelError` for a name that no node had."""
        for pattern in self._patterns:
            if not any(fnmatchcase(name, pattern) for name in self._seen):
                near = get_close_matches(pattern, self._seen, 3)
                similar = f"; similar: {', '.join(near)}" if near else ""
                raise ModelError(f"watch: no node of the graph is named '{pattern}'{similar}")
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
        return {name: [graph[name] for graph in self._graphs if name in graph] for name in names}


class Watching(Callback):
    """Copies the nodes whose names match one of some patterns, as they are computed."""

    __slots__ = ("values",)

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__()
        self.values = Values(patterns)

    def _run(self, node: Any, ask: bool) -> bool:
        name = text(node.name)
        wanted = self.values.wants(name)
        if wanted and not ask:
            self.values.take(name, node)
        return wanted or not ask  # False as the answer to a computed node would stop


class Looking(Callback):
    """Shows every node to a function of the node and of whether it asks, as an eval callback."""

    __slots__ = ("look",)

    def __init__(self, look: Callable[[Tensor, bool], bool]) -> None:
        super().__init__()
        self.look = look

    def _run(self, node: Any, ask: bool) -> bool:
        lent = Lent("an eval callback")
        try:
            return bool(self.look(Tensor(node, lent), ask))
        finally:
            lent.closed = True


def array_of(tensor: Any) -> npt.NDArray[Any]:
    """A copy of a native tensor's data; quantised types as float32."""
    ne, nb = list(tensor.ne), list(tensor.nb)
    raw = np.empty(lib.ggml_nbytes(tensor), np.uint8)
    if raw.size:
        lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(raw), 0, raw.nbytes)
    shape = ne[::-1]
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    dtype = DTYPES.get(Type(tensor.type))
    if dtype is None:
        floats: npt.NDArray[Any] = decode(raw, Type(tensor.type), int(np.prod(ne)))
        return floats.reshape(shape)
    strides = nb[::-1][4 - len(shape) :]
    view: npt.NDArray[Any] = np.lib.stride_tricks.as_strided(raw.view(dtype), shape, strides)
    return np.array(view)

"""Runs a model node by node. The first side keeps every result in a folder. The second side
compares its results with the kept ones and continues with the kept ones. Each of its ops thus has
the first side's inputs, and an error concerns that op alone.

Both sides run in processes of their own, which may have other releases of ggml loaded. Nodes are
matched by name (or sources, see `_key`), op, type and shape. A node that the other side does not
compute, as with another release's graph, is not compared, and computes with its own side's inputs.
The inputs of graphs are set by the same code on both sides.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeAlias

import numpy as np

from .. import enums
from ..boundary.ffi import ffi, lib
from ..llama.watching import array_of
from ..models import Model
from ..record.op_tests import op_test, op_test_lines, why_no_test
from ..tensors.live_call import call_of
from ..tensors.nmse import nmse
from ..trace.record import VIEW_OPS
from .divergence import limit_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..tensors.tensor import Tensor

FIRST, SECOND = "first", "second"
NODES = "{}.jsonl"  # of a side: a line before each node is computed, and one after it
_DATA = "first.data"
_MADE_UP = re.compile(r"\b(?:node|leaf)_\d+")
_COPY = re.compile(r"[^#]+#(.*)#\d+")


def run_side(model: Model, side: str, folder: Path, n_prompt: int, n_gen: int) -> None:
    """Evaluates a prompt of n_prompt tokens and n_gen more, one by one. `side` is FIRST or SECOND,
    for which FIRST must have been run in that folder. Raises what `eval` of the model raises."""
    ids = [(7919 * i + 1) % _n_vocab(model) for i in range(n_prompt + n_gen)]
    with ExitStack() as stack:
        file = stack.enter_context((folder / NODES.format(side)).open("w", encoding="utf-8"))
        look = (
            _Keep(file, stack.enter_context((folder / _DATA).open("wb")))
            if side == FIRST
            else _Follow(file, folder)
        )
        with model.look_at_nodes(look):
            look.begin("prompt", _backends(model, n_prompt, 0))
            model.eval(ids[:n_prompt])
            for i in range(n_prompt, n_prompt + n_gen):
                look.begin("decode", _backends(model, 1, i))
                model.eval(ids[i : i + 1])


def _n_vocab(model: Model) -> int:
    return model.n_vocab


Places: TypeAlias = "dict[tuple[str, str], str]"


def _backends(model: Model, n_tokens: int, n_past: int) -> Places:
    """Where the nodes of the next graph are, by name and op: names alone repeat."""
    n = min(n_tokens, model.n_ubatch)
    return {(node.name, node.op): node.backend or "" for node in model.plan(n, n_past).nodes}


class _Look(ABC):
    """The eval callback of a side."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.index = 0
        self.graph = ""
        self.places: Places = {}

    def begin(self, graph: str, places: Places) -> None:
        """Another evaluation begins."""
        self.graph, self.places = graph, places

    def __call__(self, node: Tensor, ask: bool) -> bool:
        op = node.op.name
        if op in VIEW_OPS or op == "NONE" or not node.n_elements or _is_left_out(node):
            return not ask
        about = {"index": self.index, "graph": self.graph, **_about(node),
                 "backend": self.places.get((node.name, op), "")}  # fmt: skip
        if ask:
            self._write({"begins": about})  # what is last there ended the process
            return True
        self._write(about | self.done(node, about))
        self.index += 1
        return True

    def _write(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    @abstractmethod
    def done(self, node: Tensor, about: dict[str, Any]) -> dict[str, Any]:
        """The fields that this side adds to the line of a computed node."""


class _Keep(_Look):
    def __init__(self, file: TextIO, data: BinaryIO) -> None:
        super().__init__(file)
        self.data = data

    def done(self, node: Tensor, about: dict[str, Any]) -> dict[str, Any]:
        raw = _bytes_of(node)
        at = self.data.tell()
        self.data.write(raw.tobytes())
        return {"at": at, "nbytes": raw.nbytes}


class _Follow(_Look):
    def __init__(self, file: TextIO, folder: Path) -> None:
        super().__init__(file)
        path = folder / _DATA
        self.data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        self.kept: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        for row in read_rows(folder, FIRST):
            self.kept[_key(row)].append(row)

    def done(self, node: Tensor, about: dict[str, Any]) -> dict[str, Any]:
        kept = self.kept[_key(about)]
        case, why = _case(node)
        more: dict[str, Any] = {"case": case, "why_no_case": why}
        if not kept:
            return more
        first = kept.popleft()
        before = np.array(self.data[first["at"] : first["at"] + first["nbytes"]])
        ours = array_of(node.ptr)
        # Its own decoder then reads the first side's bytes, whatever the type.
        lib.ggml_backend_tensor_set(node.ptr, ffi.from_buffer(before), 0, before.nbytes)
        error = nmse(ours, array_of(node.ptr))
        return more | {"first": first["index"], "error": error, "first_on": first["backend"]}


def _is_left_out(node: Tensor) -> bool:
    """Whether backends skip it: it is in a branch that was not selected. Its memory has anything.
    C: ggml_build_forward_select, since 0.21.0"""
    computed = getattr(enums.TensorFlag, "COMPUTE", None)
    return computed is not None and not node.flags & computed


def _about(node: Tensor) -> dict[str, Any]:
    ptr = node.ptr
    return {
        "name": node.name, "op": node.op.name, "desc": ffi.string(lib.ggml_op_desc(ptr)).decode(),
        "type": node.type.name.lower(), "ne": list(ptr.ne), "nb": list(ptr.nb),
        "src": [[s.type.name.lower(), list(s.ptr.ne)] for s in node.src],
        "sources": [_plain(s.name) for s in node.src],
        "limit": limit_of(node.op.name, [tuple(s.ptr.ne) for s in node.src]),
    }  # fmt: skip


def _key(row: dict[str, Any]) -> str:
    """The key by which nodes are matched. ggml numbers nodes without a name, and releases number
    them differently: the key of such a node has the names of its sources."""
    name = _MADE_UP.sub("#", row["name"])
    sources = row["sources"] if name != row["name"] else []
    return json.dumps([name, *(row[k] for k in ("desc", "type", "ne", "nb")), sources])


def _plain(name: str) -> str:
    """A source's name, without a made up number, and of a scheduler's copy that of the original."""
    copy = _COPY.fullmatch(name)
    return _MADE_UP.sub("#", copy[1] if copy else name)


def _bytes_of(node: Tensor) -> npt.NDArray[np.uint8]:
    raw = np.empty(node.nbytes, np.uint8)
    lib.ggml_backend_tensor_get(node.ptr, ffi.from_buffer(raw), 0, raw.nbytes)
    return raw


def _case(node: Tensor) -> tuple[str, str]:
    """Its line for `test-backend-ops --test-file`, or why there is none."""
    call = call_of(node)
    why = why_no_test(call)
    return ("", why) if why else (next(op_test_lines([op_test(call)])), "")


def read_rows(folder: Path, side: str) -> list[dict[str, Any]]:
    """The computed nodes of a side, in order."""
    return [row for row in _lines(folder, side) if "begins" not in row]


def last_begun(folder: Path, side: str) -> dict[str, Any] | None:
    """The node that a side was computing when it ended; None if it was not."""
    rows = _lines(folder, side)
    found: dict[str, Any] | None = rows[-1].get("begins") if rows else None
    return found


def _lines(folder: Path, side: str) -> list[dict[str, Any]]:
    path = folder / NODES.format(side)
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]

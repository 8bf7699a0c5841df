"""The parts of the tables of misuses (the other files here), which test_misuse.py runs.

A table is a list MISUSES of rows: an id, what the user does, the exception that it must raise, and
two pieces of its message: what was given, and what was expected or what to do. What the user does
is a function of a new `Env`. It raises in its last statement.

    MISUSES = [
        misuse("plan-str", lambda e: e.scheduler.plan("x"), TypeError, "str", "expected a Graph"),
    ]

A row may end in an AbortError only if it says why we do not check this ourselves (`abort=`).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import ggml_py as ggml


class Env:
    """y = relu(w x) on the CPU, for one row: built, but neither planned nor allocated."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.cpu = ggml.device("CPU").init(n_threads=1)
        self.weights, self.context, self.other = ggml.Context(), ggml.Context(), ggml.Context()
        self.w = self.weights.from_numpy(np.eye(8, 8, dtype=np.float32) * 2, "w")
        self.buffer = self.weights.alloc(self.cpu, usage="weights")
        self.x = self.context.new_tensor("f32", 8, 3, name="x")
        self.x.set_input()
        self.y = self.context.relu(self.context.mul_mat(self.w, self.x))
        self.y.name = "y"
        self.y.set_output()
        self.graph = self.context.new_graph(16)
        self.graph.build_forward_expand(self.y)
        self.scheduler = ggml.Scheduler([self.cpu], graph_size=16)
        self._open = [self.scheduler, self.graph, self.context, self.other, self.weights, self.cpu]

    def later(self, *handles: ggml.Context) -> object:
        """Closes these objects, which the row made, after the row. Returns the first one."""
        self._open[:0] = handles
        return handles[0]

    def allocated(self) -> Env:
        """This Env, with the graph allocated on the scheduler."""
        self.scheduler.alloc_graph(self.graph)
        return self

    def computes(self) -> bool:
        """Whether y is computed correctly after a reset."""
        self.scheduler.set_eval_callback(None)
        self.scheduler.reset()
        self.scheduler.alloc_graph(self.graph)
        x = np.arange(-12, 12, dtype=np.float32).reshape(3, 8)
        self.x.set(x)
        self.scheduler.compute(self.graph)
        return np.array_equal(self.y.get(), np.maximum(2 * x, 0))

    @property
    def whole(self) -> bool:
        """Whether the row left open and untaken everything that `computes` needs."""
        return not any(h.closed for h in (*self._open, self.buffer))

    def close(self) -> None:
        for handle in self._open:
            handle.close()


@dataclass(frozen=True)
class Misuse:
    """One row."""

    id: str
    act: Callable[[Env], object]
    error: type[BaseException]
    words: tuple[str, ...]
    abort: str = ""
    spoils: bool = False
    at: Callable[..., object] | None = None
    needs: tuple[str, ...] = ()
    release: str = "0.0"

    @property
    def file(self) -> str:
        return self.act.__code__.co_filename

    @property
    def lines(self) -> set[int]:
        """The lines of the last statement, which has the user's mistake."""
        return _last_statement(self.file, (self.at or self.act).__code__.co_firstlineno)


def misuse(
    id: str,
    act: Callable[[Env], object],
    error: type[BaseException],
    given: str,
    expected: str,
    *more: str,
    abort: str = "",
    spoils: bool = False,
    at: Callable[..., object] | None = None,
    needs: tuple[str, ...] = (),
    release: str = "0.0",
) -> Misuse:
    """A row. `spoils`: the scheduler of the Env can no longer be used, and says so. `at`: the
    function that has the mistake, if `act` only calls it. `needs` and `release`: features that a
    release may lack, as for the mark of that name."""
    assert given and expected, id
    return Misuse(id, act, error, (given, expected, *more), abort, spoils, at, needs, release)


@cache
def _functions(file: str) -> dict[int, ast.Lambda | ast.FunctionDef]:
    tree = ast.parse(Path(file).read_text())
    kinds = (ast.Lambda, ast.FunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {node.lineno: node for node in reversed(found)}  # the outer one of two in a line


def _last_statement(file: str, line: int) -> set[int]:
    """The statement's lines; for a `with` or `for`, the first line and the last statement's."""
    node: ast.AST = _functions(file)[line]
    heads = set()
    while isinstance(node, ast.FunctionDef | ast.With | ast.For):
        heads.add(node.lineno)
        node = node.body[-1]
    return heads | set(range(node.lineno, node.end_lineno + 1))


def user_frames(error: BaseException, file: str) -> list[inspect.FrameInfo]:
    """The frames of `error` that are in `file`, outermost first."""
    return [f for f in inspect.getinnerframes(error.__traceback__) if f.filename == file]

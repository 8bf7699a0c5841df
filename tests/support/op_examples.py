"""Runs the examples of vendor/ops_*.toml: what they show, and the call of the op."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ggml_py as ggml
from vendor import op_docs


@dataclass
class Call:
    """An op of an example: its arguments by name, and the tensor that it returned."""

    arguments: dict[str, Any]
    result: ggml.Tensor

    @property
    def operands(self) -> dict[str, ggml.Tensor]:
        return {n: a for n, a in self.arguments.items() if isinstance(a, ggml.Tensor)}


class Recorder:
    """A Context that notes the calls of one op. `before` gets the arguments of each call."""

    def __init__(
        self, ctx: ggml.Context, op: str, before: Callable[[dict[str, Any]], None]
    ) -> None:
        self._ctx, self._op, self._before = ctx, op, before
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ctx, name)
        if name != self._op:
            return method
        signature = inspect.signature(method)

        def call(*args: Any, **kwargs: Any) -> ggml.Tensor:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self._before(bound.arguments)
            result = method(*args, **kwargs)
            self.calls.append(Call(bound.arguments, result))
            return result

        return call


class Example:
    """One op's example in a context of its own."""

    def __init__(
        self, op: str, before: Callable[[dict[str, Any]], None] = lambda arguments: None
    ) -> None:
        self.op = op
        self.row = op_docs.row(op)
        assert self.row is not None, f"{op} has no row"
        self.ctx = ggml.Context()
        self.recorder = Recorder(self.ctx, op, before)
        self.names: dict[str, Any] = {"ctx": self.recorder, "np": np, "ggml": ggml}
        exec(op_docs.HELPERS, self.names)

    def close(self) -> None:
        self.names.clear()
        self.recorder.calls.clear()
        self.ctx.close()

    def run(self, compute: Callable[[ggml.Tensor], Any] | None = None) -> Any:
        """The value of its last line. `compute` replaces the docstring's function."""
        if compute is not None:
            self.names["compute"] = compute
        *lines, last = self.row.example
        exec("\n".join(lines), self.names)
        return eval(last, self.names)

    @property
    def call(self) -> Call:
        return self.recorder.calls[-1]

    def in_numpy(self) -> Any:
        """The value of the row's `numpy`, on the arrays that the example's tensors were made of."""
        names: dict[str, Any] = {"np": np, "math": math, **FUNCTIONS}
        for line in self.row.example[:-1]:
            made = re.fullmatch(r"(\w+) = tensor\((.*)\)", line)
            if made:
                names[made[1]] = _array(made[2])
        return eval(self.row.numpy, names)


def _array(arguments: str) -> Any:
    call = ast.parse(f"f({arguments})", mode="eval").body
    values = eval(ast.unparse(call.args[0]), {"np": np})
    whole = len(call.args) > 1 and call.args[1].value.startswith("i")
    return np.array(values, dtype=np.int64 if whole else np.float64)


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


FUNCTIONS: dict[str, Any] = {
    "silu": _silu,
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu_erf": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
}


class Shapes:
    """A row's `shapes`, parsed into patterns of the operands' ne and the result's ne."""

    def __init__(self, text: str) -> None:
        text = text.partition(";")[0].removesuffix(" (2D)")
        left, _, self.result = (part.strip() for part in text.rpartition("-> "))
        left = left.removesuffix("->").strip()
        pattern = r"(\w+) (any|\[[^\]]*\])"
        self.operands = dict(re.findall(pattern, left))
        assert re.sub(rf"{pattern}(, )?", "", left) == "", f"shapes that cannot be parsed: {text}"

    def check(self, call: Call) -> None:
        """Raises AssertionError unless the call's ne are what the row says."""
        numbers = {n: v for n, v in call.arguments.items() if isinstance(v, int | float)}
        names: dict[str, Any] = {**numbers, "ceil": math.ceil, "int": int}
        assert set(self.operands) == {n for n in call.arguments if _is_operand(call, n)}
        said = [
            (expression, n)
            for name, pattern in self.operands.items()
            if name in call.operands and pattern.startswith("[") and pattern != "[..]"
            for expression, n in zip(_four(pattern), call.operands[name].ne, strict=True)
        ]
        for expression, n in said:
            if expression.isidentifier():
                names.setdefault(expression, n)
        for expression, n in said:  # in "d_conv + n_t - 1" n_t is new
            for new in set(re.findall(r"[a-z]\w*", expression)) - set(names):
                names[new] = n - eval(expression, {**names, new: 0})
        for expression, n in said:
            assert eval(expression, dict(names)) == n, f"{expression} is {n}, {names}"
        made = call.result.ne
        if self.result.startswith("as "):
            assert made == call.operands[self.result.removeprefix("as ")].ne
        elif self.result.startswith("["):
            ne = eval(self.result, dict(names))
            assert made == (*ne, 1, 1, 1)[:4], f"{made} is not {self.result} of {names}"


def _four(pattern: str) -> list[str]:
    return [*(one.strip() for one in pattern[1:-1].split(",")), "1", "1", "1"][:4]


def _is_operand(call: Call, name: str) -> bool:
    return isinstance(call.arguments[name], ggml.Tensor | None)


def gradients(op: str) -> dict[str, bool]:
    """For each operand of the example that can come from a parameter: whether it has a gradient."""
    example = Example(op)
    example.run()
    able = [
        name
        for name, tensor in example.call.operands.items()
        if _leaf(tensor).type.name in ("F32", "F16")
    ]
    example.close()
    return {name: _has_gradient(op, name) for name in able}


def _leaf(tensor: ggml.Tensor) -> ggml.Tensor:
    while tensor.src:
        tensor = tensor.src[0]
    return tensor


class _Done(Exception):
    pass


def _has_gradient(op: str, name: str) -> bool:
    params: list[ggml.Tensor] = []
    found = []

    def before(arguments: dict[str, Any]) -> None:
        params.append(_leaf(arguments[name]))
        params[0].set_param()

    def compute(result: ggml.Tensor) -> None:
        ctx = example.ctx
        loss = ctx.sum(result if result.type.name == "F32" else ctx.cast(result, "f32"))
        loss.set_loss()
        graph = ctx.new_graph(256, grads=True)
        graph.build_forward_expand(loss)
        try:
            graph.build_backward_expand()
            found.append(graph.grad(params[0]) is not None)
        except (ggml.AbortError, ggml.ArgumentError):
            found.append(False)
        raise _Done

    example = Example(op, before)
    try:
        example.run(compute)
    except _Done:
        pass
    finally:
        params.clear()
        example.close()
    return found[0]

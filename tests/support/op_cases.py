"""Every op with valid operands, and now and then with an invalid one."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np

import ggml_py as ggml

from .op_layouts import Operand
from .op_metamorphosis import Case

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64)
BAD = (0, -1, -2, 3, 1 << 20, 2**31 - 1, -(2**31))
FLOAT = ("f32", "f16", "bf16")
QUANTIZED = ("q4_0", "q5_1", "q8_0", "q4_K", "q6_K", "iq4_nl", "mxfp4", "iq2_xxs", "q8_1", "tq2_0")
TYPES = (*FLOAT, *QUANTIZED, "f64", "i8", "i16", "i32", "i64")
CASES: dict[str, Callable[[Draw], Case]] = {}


class Draw:
    """Draws sizes, types, operands and numbers from one seed."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng, self.name = rng, name
        self.wild = rng.random() < 0.3  # one of its numbers, types or shapes is wrong

    def size(self, most: int = 64) -> int:
        return min(self.rng.choice(SIZES), most)

    def small(self) -> int:
        return self.rng.choice((1, 1, 1, 2, 2, 3, 4))

    def shape(self, most: int = 64) -> tuple[int, int, int, int]:
        return self.size(most), self.rng.choice((1, 2, 3, 5, 8)), self.small(), self.small()

    def row(self, type_: str) -> int:
        """A row length that is valid for this type."""
        if type_ in ("q4_K", "q6_K", "iq2_xxs", "tq2_0"):
            return self.rng.choice((256, 512))
        return self.rng.choice((32, 64, 96)) if type_ in QUANTIZED else self.size()

    def type(self, *types: str) -> str:
        if self.wild and self.rng.random() < 0.3:
            return self.rng.choice(TYPES)
        return self.rng.choice(types)

    def t(self, type_: str, *ne: int) -> Operand:
        """An operand, now and then with a wrong type or shape."""
        whole = [*ne, 1, 1, 1, 1][:4]
        if self.wild and self.rng.random() < 0.2:
            type_ = self.rng.choice(TYPES)
        if self.wild and self.rng.random() < 0.2:
            axis = self.rng.randrange(4)
            whole[axis] = max(0, whole[axis] + self.rng.choice((-1, 1, 2)))
        if type_ in QUANTIZED:
            n = 256 if type_ in ("q4_K", "q6_K", "iq2_xxs", "tq2_0") else 32
            whole[0] = (whole[0] + n - 1) // n * n
        return Operand.drawn(self.rng, type_, *whole)

    def f32(self, *ne: int) -> Operand:
        return self.t("f32", *ne)

    def index(self, most: int, *ne: int, type_: str = "i32") -> Operand:
        """An operand of integers from 0 to `most` - 1."""
        whole = [*ne, 1, 1, 1, 1][:4]
        high = max(most, 1) + (self.wild and self.rng.random() < 0.2)
        chance = np.random.default_rng(self.rng.randrange(1 << 30))
        return Operand.of(chance.integers(0, high, whole[::-1]), type_)

    def number(self, *good: float) -> float:
        if self.wild and self.rng.random() < 0.4:
            return self.rng.choice(BAD if isinstance(good[0], int) else (0.0, -1.0, float("nan")))
        return self.rng.choice(good)

    def case(
        self, *operands: Operand | None, writes: tuple[int, ...] = (), **numbers: object
    ) -> Case:
        """The case of this op with these operands, then these numbers."""
        name = self.name
        return Case(
            name, list(operands),
            lambda ctx, *t: getattr(ctx, name)(*t, *numbers.values()), writes, numbers,
        )  # fmt: skip


def op(*names: str) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    """Registers a function that draws cases of these ops, as far as this release has them."""

    def keep(draw: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        CASES.update({n: draw for n in names if hasattr(ggml.Context, n)})
        return draw

    return keep


def both(*names: str) -> tuple[str, ...]:
    """The names, and those of their in-place ops."""
    return *names, *(f"{n}_inplace" for n in names)


@cache
def _names(_n: int) -> list[str]:
    """The names of all ops, in a fixed order."""
    return sorted(CASES)


def draw(seed: int) -> Case:
    """The case for a seed."""
    rng = random.Random(seed)
    name = _names(len(CASES))[seed % len(CASES)]
    return CASES[name](Draw(rng, name))


UNARY = (
    "abs", "ceil", "elu", "exp", "expm1", "floor", "gelu", "gelu_erf", "gelu_quick", "neg", "relu",
    "round", "sgn", "sigmoid", "silu", "softplus", "step", "tanh", "trunc", "sqr", "sqrt", "log",
    "sin", "cos", "soft_max", "dup",
)  # fmt: skip
GLU = ("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick")


@op(*both(*UNARY), "hardsigmoid", "hardswish", "cont", "sum", "sum_rows", "mean", "cumsum")
def _unary(d: Draw) -> Case:
    type_ = d.type("f32", "f32", "f16", "bf16")
    return d.case(d.t(type_, *d.shape()))


@op(*GLU, *(f"{n}_swapped" for n in GLU))
def _glu(d: Draw) -> Case:
    a, *rest = d.shape(32)
    return d.case(d.t(d.type("f32", "f16", "bf16"), 2 * a, *rest))


@op(*(f"{n}_split" for n in GLU))
def _glu_split(d: Draw) -> Case:
    type_, ne = d.type("f32", "f16", "bf16"), d.shape()
    return d.case(d.t(type_, *ne), d.t(type_, *ne))


@op("swiglu_oai")
def _swiglu_oai(d: Draw) -> Case:
    ne = d.shape()
    return d.case(d.f32(*ne), d.f32(*ne), alpha=d.number(1.7, 1.0), limit=d.number(7.0, 0.1))


@op("swiglu_clamp")
def _swiglu_clamp(d: Draw) -> Case:
    type_, ne = d.type("f32", "f16"), d.shape()
    return d.case(d.t(type_, *ne), d.t(type_, *ne), limit=d.number(7.0, 0.1))


@op("xielu")
def _xielu(d: Draw) -> Case:
    return d.case(d.f32(*d.shape()), alpha_n=0.8, alpha_p=0.8, beta=0.5, eps=-1e-6)


@op("leaky_relu")
def _leaky_relu(d: Draw) -> Case:
    type_ = d.type("f32", "f16")
    return d.case(d.t(type_, *d.shape()), negative_slope=0.1, inplace=d.rng.random() < 0.5)


@op(*both("add", "sub", "mul", "div"))
def _binary(d: Draw) -> Case:
    type_, ne = d.type("f32", "f32", "f16", "bf16"), d.shape()
    other = [n if d.rng.random() < 0.7 else 1 for n in ne]
    if d.name.startswith("add") and d.rng.random() < 0.3:
        quantized = d.rng.choice(QUANTIZED)
        ne = (d.row(quantized), *ne[1:])
        return d.case(d.t(quantized, *ne), d.f32(*ne))
    second = type_ if d.rng.random() < 0.7 else d.type("f32")
    return d.case(d.t(type_, *ne), d.t(second, *other))


@op("add_cast")
def _add_cast(d: Draw) -> Case:
    type_ = d.rng.choice(("f16", "bf16", *QUANTIZED))
    ne = (d.row(type_), *d.shape()[1:])
    to = d.type("f32", "f32", type_)
    return d.case(d.t(type_, *ne), d.f32(*ne), type=to)


@op("add_id")
def _add_id(d: Draw) -> Case:
    n, used, tokens, experts = d.size(), d.small(), d.small(), d.small()
    a = d.f32(n, used, tokens, d.small())
    return d.case(a, d.f32(n, experts), d.index(experts, used, tokens))


@op(*both("add1"))
def _add1(d: Draw) -> Case:
    type_ = d.type("f32", "f16", "bf16", *QUANTIZED)
    scalar = d.type("f32", type_ if type_ in FLOAT else "f32")
    return d.case(d.t(type_, d.row(type_), *d.shape()[1:]), d.t(scalar, 1))


@op(*both("acc", "set"))
def _region(d: Draw) -> Case:
    ne = d.shape(16)
    part = [d.rng.randint(1, n) for n in ne]
    type_ = "f32" if d.name.startswith("acc") else d.type("f32", "i32")
    a, size = d.t(type_, *ne), 4
    nb = [size * ne[0], size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2]]
    first = [d.rng.randint(0, n - p) for n, p in zip(ne, part, strict=True)]
    offset = sum(f * b for f, b in zip(first, (size, *nb), strict=True))
    if d.wild:
        nb[d.rng.randrange(3)] = d.rng.choice((0, 4, 2, 20))
    return d.case(a, d.t(type_, *part), nb1=nb[0], nb2=nb[1], nb3=nb[2], offset=offset)


@op("cpy")
def _cpy(d: Draw) -> Case:
    source, into = d.type(*FLOAT, "i32", *QUANTIZED), d.type(*FLOAT, "i32", *QUANTIZED)
    if d.rng.random() < 0.3:
        into = source
    ne = [256 if d.rng.random() < 0.2 else 64, d.small() * 2, d.small(), d.small()]
    if source not in QUANTIZED and into not in QUANTIZED:
        ne[0] = d.size()
    other = list(ne)
    if d.rng.random() < 0.4:
        d.rng.shuffle(other)
    return d.case(d.t(source, *ne), d.t(into, *other))


@op("cast")
def _cast(d: Draw) -> Case:
    source, into = d.type(*FLOAT, "i32", *QUANTIZED), d.type(*FLOAT, "i32", *QUANTIZED)
    rows = 256 if {source, into} & {"q4_K", "q6_K", "iq2_xxs", "tq2_0"} else 64
    if d.rng.random() < 0.1:
        into = d.rng.choice(TYPES)
    return d.case(d.t(source, rows, *d.shape()[1:]), type=into)


@op("cont_4d", "repeat_4d")
def _shape_given(d: Draw) -> Case:
    type_ = d.type(*TYPES)
    ne = [d.row(type_), *d.shape()[1:]]
    a = d.t(type_, *ne)
    if d.name == "cont_4d":
        d.rng.shuffle(ne)
    else:
        ne = [n * d.small() for n in ne]
    return d.case(a, ne0=ne[0], ne1=ne[1], ne2=ne[2], ne3=ne[3])


@op("repeat", "repeat_back")
def _repeat(d: Draw) -> Case:
    type_ = d.type("f32", "f16", "bf16", "i32", "i16")
    ne = d.shape(16)
    more = [n * d.small() for n in ne]
    if d.name == "repeat_back":
        ne, more = more, ne
    return d.case(d.t(type_, *ne), d.t(type_, *more))


@op("concat")
def _concat(d: Draw) -> Case:
    type_, dim = d.type(*TYPES), int(d.number(0, 1, 2, 3))
    ne = [d.row(type_), *d.shape()[1:]]
    other = list(ne)
    if dim in range(4):
        other[dim] = d.row(type_) if dim == 0 else d.size(5)
    return d.case(d.t(type_, *ne), d.t(type_, *other), dim=dim)


@op("argmax", "diag")
def _matrix(d: Draw) -> Case:
    ne = d.shape()
    return d.case(d.f32(*ne[:2]) if d.name == "argmax" else d.f32(ne[0], 1, *ne[2:]))


@op("argsort")
def _argsort(d: Draw) -> Case:
    return d.case(d.f32(*d.shape()), order=int(d.number(0, 1)))


@op("top_k", "argsort_top_k")
def _top_k(d: Draw) -> Case:
    ne = d.shape()
    return d.case(d.f32(*ne), k=int(d.number(1, ne[0], (ne[0] + 1) // 2)))


@op("count_equal")
def _count_equal(d: Draw) -> Case:
    ne = d.shape()
    return d.case(d.index(2, *ne), d.index(2, *ne))


@op("cross_entropy_loss")
def _loss(d: Draw) -> Case:
    ne = d.shape()
    return d.case(d.f32(*ne), d.f32(*ne))


@op("cross_entropy_loss_back")
def _loss_back(d: Draw) -> Case:
    ne = d.shape()
    return d.case(d.f32(1), d.f32(*ne), d.f32(*ne))


@op("silu_back", *both("soft_max_ext_back"), "rms_norm_back")
def _back(d: Draw) -> Case:
    type_ = d.type("f32", "f16") if d.name == "silu_back" else "f32"
    ne = d.shape()
    numbers: dict[str, object] = {}
    if d.name.startswith("soft_max"):
        numbers = {"scale": d.number(1.0, 0.3), "max_bias": d.number(0.0)}
    elif d.name == "rms_norm_back":
        numbers = {"eps": d.number(1e-5)}
    return d.case(d.t(type_, *ne), d.t(type_, *ne), **numbers)


@op(*both("norm", "rms_norm", "l2_norm"))
def _norm(d: Draw) -> Case:
    return d.case(d.f32(*d.shape()), eps=d.number(1e-5, 0.0, 0.1))


@op(*both("group_norm"))
def _group_norm(d: Draw) -> Case:
    ne = d.shape(8)
    ne = (*ne[:2], d.size(8), ne[3])
    return d.case(d.f32(*ne), n_groups=int(d.number(1, 2, 3, ne[2], 40)), eps=d.number(1e-5, 0.0))


@op(*both("scale", "scale_bias", "clamp", "fill"))
def _scale(d: Draw) -> Case:
    type_ = d.type("f32", "f16", "bf16")
    numbers: dict[str, object] = {"s": d.number(0.5, 2.0)}
    if not d.name.startswith(("fill", "scale_inplace")) and d.name != "scale":
        numbers["b"] = d.number(3.0, 0.0)
    return d.case(d.t(type_, *d.shape()), **numbers)


@op(*both("diag_mask_inf", "diag_mask_zero"))
def _diag_mask(d: Draw) -> Case:
    return d.case(d.f32(*d.shape()), n_past=int(d.number(0, 1, 5)))


@op("tri")
def _tri(d: Draw) -> Case:
    n = d.size(17)
    return d.case(d.f32(n, n, d.small(), d.small()), type=int(d.number(0, 1, 2, 3)))


@op("solve_tri")
def _solve_tri(d: Draw) -> Case:
    n, *batch = d.size(17), d.small(), d.small()
    b = d.f32(d.size(8), n, *batch)
    return d.case(d.f32(n, n, *batch), b, left=True, lower=True, uni=False)

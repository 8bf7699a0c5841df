"""Checks that an op gives the same result for any layout of its operands, or refuses the layout,
and that it writes nothing but its result.

A case draws an op, operands and numbers from its seed (op_cases.py), then layouts (op_layouts.py).
It is computed from contiguous operands, then twice from the same numbers in those layouts, with
other bytes in all unused memory. A finding is an `AssertionError`:

- the results differ (strides were read as another layout),
- the two runs differ (memory outside the operands was read, or part of the result not written),
- a byte outside the result changed,
- one run was refused and the other not, although only bytes differ that should not be read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

import ggml_py as ggml
from ggml_py.enums import Op, Type

from .op_layouts import Operand, World, place, variant, write

REFUSALS = (ggml.GgmlError, TypeError, ValueError, OverflowError)
VIEWS = {Op.NONE, Op.RESHAPE, Op.VIEW, Op.PERMUTE, Op.TRANSPOSE}
FLOATS = {Type.F32: "u4", Type.F16: "u2", Type.BF16: "u2"}
INFINITE = {Type.F32: 0x7F800000, Type.F16: 0x7C00, Type.BF16: 0x7F80}
# Numbers that are not adjacent are added one by one, not in vectors, which rounds differently.
ROUNDED = {"norm", "norm_inplace"}
LARGE = 1 << 18  # maximum bytes of all tensors of a case
FILLS = (0xFF, 0x47)


@dataclass
class Case:
    """One case. `call(ctx, *tensors)` makes the op. `writes` lists the operands that it writes."""

    name: str
    operands: list[Operand | None]
    call: Callable[..., ggml.Tensor]
    writes: tuple[int, ...] = ()
    numbers: dict[str, object] = field(default_factory=dict)  # the call's other arguments

    def __str__(self) -> str:
        operands = [f"{o.type}{list(o.ne)}" if o else "None" for o in self.operands]
        return f"{self.name}({', '.join(operands)}, {self.numbers})"


@cache
def backend(n_threads: int) -> ggml.Backend:
    return ggml.device("CPU").init(n_threads=n_threads)


@cache
def world() -> World:
    return World()


def computed(
    case: Case, layouts: list[str], fills: tuple[int, ...], n_threads: int, seed: int
) -> list[np.ndarray | str]:
    """The result's bytes, contiguous, or the refusal: once for each byte that memory is filled with
    beforehand. Raises `AssertionError` for stray writes."""
    here = world()
    here.renew()
    tensors: list[ggml.Tensor | None] = []
    with here.context:
        try:
            for i, (operand, layout) in enumerate(zip(case.operands, layouts, strict=True)):
                made = None if operand is None else place(here, operand, layout, seed + i)
                tensors.append(made)
            out = case.call(here.context, *tensors)
            every = list(here.context)
            if sum(t.nbytes for t in every) > LARGE:
                return ["large"]
            here.give_memory(every)
            graph = here.context.new_graph(64)
            graph.build_forward_expand(out)
        except MemoryError:
            return ["large"]
        except REFUSALS as error:
            return [type(error).__name__] * len(fills)
        mine = [t for t in graph.nodes if t.op not in VIEWS]
        used = [t for t in (*tensors, *mine) if t is not None]
        written = [*mine, *(t for i in case.writes if (t := tensors[i]) is not None)]
        found: list[np.ndarray | str] = []
        for fill in fills:
            here.fill(fill)
            for t, operand in zip(tensors, case.operands, strict=True):
                if t is not None and operand is not None:
                    write(here, t, operand.blocks)
            before = here.everything().copy()
            here.shut(used)
            try:
                backend(n_threads).compute(graph)
            except REFUSALS as error:
                found.append(type(error).__name__)
                continue
            finally:
                here.open()
            changed = (before != here.everything()).view("u1")
            for t in written:
                here.bytes_of(t, changed)[...] = 0
            where = np.flatnonzero(changed)
            assert not where.size, f"{len(where)} bytes written beside the result: {where[:8]}"
            found.append(_comparable(out.ptr.type, here.bytes_of(out).copy().reshape(-1)))
        return found


def _comparable(type_: int, found: np.ndarray) -> np.ndarray:
    """Replaces every NaN by one with the same bytes."""
    if type_ in FLOATS:
        numbers = found.view(FLOATS[type_])
        most = INFINITE[type_]
        return np.where(numbers & (2 * most ^ most | most) > most, most + 1, numbers)
    return found


def check(case: Case, seed: int) -> str:
    """Runs the case and returns its outcome. Raises what it finds."""
    rng = random.Random(f"layouts {seed}")
    n_threads = 2 if rng.random() < 0.04 else 1  # 2 take ten times as long on a busy machine
    layouts = ["plain"] * len(case.operands)
    chosen = [i for i, o in enumerate(case.operands) if o is not None and rng.random() < 0.5]
    if not chosen and case.operands:
        chosen = [rng.randrange(len(case.operands))]
    for i in chosen:
        operand = case.operands[i]
        if operand is not None:
            layouts[i] = variant(rng, operand)
    at = rng.randrange(1 << 30)
    what = f"{case}, layouts {layouts}, {n_threads} threads"
    try:
        plain, *others = computed(case, ["plain"] * len(layouts), FILLS, n_threads, at)
        if isinstance(plain, str) and plain == "large":
            return plain
        for again in others:
            _same(plain, again, "contiguous, with other bytes between the tensors")
        (first,) = computed(case, layouts, FILLS[-1:], n_threads, at)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None
    if isinstance(first, str):
        return "refused in line, too" if isinstance(plain, str) else "refused"
    if isinstance(plain, str):
        return "refused in line only"
    if _is_rounded(case) and _close(plain, first):
        return "nearly the same"
    if not np.array_equal(plain, first):
        raise AssertionError(f"{what}: other numbers than from contiguous operands")
    return "the same"


def _is_rounded(case: Case) -> bool:
    a = case.operands[0] if case.operands else None
    # Contiguous floats have their own matrix products (llamafile_sgemm).
    product = case.name == "mul_mat" and a is not None and Type[a.type.upper()] in FLOATS
    return product or case.name in ROUNDED


def _close(one: np.ndarray, two: np.ndarray) -> bool:
    if np.array_equal(one, two) or one.dtype != np.uint32:
        return False
    return np.allclose(one.view("f4"), two.view("f4"), rtol=1e-4, atol=1e-5, equal_nan=True)


def _same(one: np.ndarray | str, two: np.ndarray | str, when: str) -> None:
    if isinstance(one, str) or isinstance(two, str):
        assert type(one) is type(two), f"{when}, {one} and {two}"
    else:
        n = np.flatnonzero(one != two)
        assert not n.size, f"{when}, {n.size} of {one.size} numbers differ, from {n[0]} on"

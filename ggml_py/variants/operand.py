"""Operands of a node with another type, shape or layout."""

from __future__ import annotations

import math
from functools import lru_cache

from ..graphs.context import MOST_BYTES
from ..graphs.node import block_of, packed
from ..sim.profiles.call import Operand, four


@lru_cache(1 << 14)
def is_contiguous(operand: Operand) -> bool:
    """Whether its elements are one after another."""
    there = zip(operand.ne, operand.nb, packed(operand.type, operand.ne), strict=True)
    return all(n == 1 or nb == wanted for n, nb, wanted in there)


def contiguous(operand: Operand) -> Operand:
    """The same operand, contiguous."""
    return operand._replace(nb=packed(operand.type, operand.ne))


@lru_cache(1 << 14)
def changed(operand: Operand, type_: str, ne: tuple[int, ...]) -> Operand | None:
    """The operand with another type or shape and the same layout: the same order of dimensions, and
    gaps in the same places. None if no such tensor exists."""
    block, size = block_of(type_)
    old_block, old_size = block_of(operand.type)
    order = [0, 1, 2, 3]
    if not is_contiguous(operand):
        order.sort(key=lambda d: (operand.nb[d], d))
    inner = order[0]
    transposed = inner != 0 and block > 1 and type_ != operand.type
    if ne[inner] % block or transposed or math.prod(n or 1 for n in ne) * size > MOST_BYTES:
        return None
    if is_contiguous(operand):
        return contiguous(operand._replace(type=type_, ne=four(ne)))
    nb = [0] * 4
    tight, old_tight = size, old_size
    for d in order:
        scaled = -(-operand.nb[d] * size * old_block // (old_size * block * size)) * size
        gap = operand.nb[d] - old_tight
        nb[d] = tight if gap == 0 else max(tight, scaled) if gap > 0 else scaled
        first = d == inner
        tight = nb[d] * (ne[d] // block if first else ne[d])
        old_tight = operand.nb[d] * (operand.ne[d] // old_block if first else operand.ne[d])
    if max(n * stride for n, stride in zip(ne, nb, strict=True)) > MOST_BYTES:
        return None
    return operand._replace(type=type_, ne=four(ne), nb=four(nb))

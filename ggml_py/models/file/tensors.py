"""The tensors of a layer: an architecture lists them as fields, by their names in the file.

    @dataclass(frozen=True)
    class Block(Attention, Ffn):
        attn_norm: Tensor = norm("n_embd")

For this field `declare` finds blk.N.attn_norm.weight with n_embd elements. Sizes are names of
`HParams`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ...tensors.tensor import Tensor
from .hparams import HParams, UnsupportedError
from .parts import Has, Linear, Qkv
from .weights import Weights

T = TypeVar("T")
Find = Callable[[Weights, HParams, int, str], Any]  # the int is the layer, the str blk.N.NAME


def declare(block: type[T], weights: Weights, hp: HParams, il: int) -> T:
    """Finds layer `il`'s tensors for the fields of `block`. Raises `ModelError`, see `Weights`."""
    return block(
        **{
            f.name: f.metadata["find"](weights, hp, il, f"blk.{il}.{f.name}")
            for f in fields(block)  # type: ignore[arg-type]
        }
    )


def norm(n: str) -> Any:
    """The weight of a norm of n elements."""
    return tensor(n, suffix=".weight")


def linear(n_in: str, n_out: str, *, bias: Has = "no", scale: bool = True) -> Any:
    """A `Linear`. llama.cpp reads the scale of any matrix, but some graphs ignore it (`scale`)."""

    def find(weights: Weights, hp: HParams, il: int, name: str) -> Linear:
        return weights.linear(il, name, _size(hp, n_in), _size(hp, n_out), bias, scale)

    return _field(find)


def experts(n_in: str, n_out: str, *, bias: bool = False, scale: bool = True) -> Any:
    """A `Linear` with all experts in one tensor. `scale` as in `linear`; with `bias` the file must
    have one."""

    def find(weights: Weights, hp: HParams, il: int, name: str) -> Linear:
        ne = (getattr(hp, n_in), getattr(hp, n_out), hp.n_expert)
        weight = weights.tensor(il, f"{name}.weight", *ne)
        offset = weights.tensor(il, f"{name}.bias", *ne[1:]) if bias else None
        factor = weights.scale(il, name, ne[2])
        return Linear(weight, offset, factor if scale else None)

    return _field(find)


def tensor(*ne: str | int, suffix: str = "") -> Any:
    """A tensor of the given sizes, named `NAME` plus the suffix."""

    def find(weights: Weights, hp: HParams, il: int, name: str) -> Tensor:
        sizes = (n if isinstance(n, int) else _size(hp, n) for n in ne)
        return weights.tensor(il, name + suffix, *sizes)

    return _field(find)


def qkv() -> Any:
    """A `Qkv`, with biases if the file has them."""

    def find(weights: Weights, hp: HParams, il: int, name: str) -> Qkv:
        if weights.has(f"{name}.weight"):
            raise UnsupportedError(
                f"tensor '{name}.weight': queries, keys and values in one tensor"
            )
        blk = name.removesuffix("attn_qkv")
        sizes = {"attn_q": hp.n_embd_q, "attn_k": hp.n_embd_gqa, "attn_v": hp.n_embd_gqa}
        return Qkv(*(weights.linear(il, blk + part, hp.n_embd, n) for part, n in sizes.items()))

    return _field(find)


def rope_freqs() -> Any:
    """The divisors of RoPE's frequencies if the file has them, the same for all layers."""

    def find(weights: Weights, hp: HParams, il: int, _name: str) -> Tensor | None:
        return weights.tensor(il, "rope_freqs.weight", hp.rope.n_rot // 2, required=False)

    return _field(find)


def _size(hp: HParams, name: str) -> int:
    """The size of that name in `HParams`."""
    size: int = getattr(hp, name)
    return size


def _field(find: Find) -> Any:
    return field(metadata={"find": find})


@dataclass(frozen=True)
class Attention:
    """The matrices of attention; the output has no bias."""

    attn_qkv: Qkv = qkv()
    attn_output: Linear = linear("n_embd_q", "n_embd")


@dataclass(frozen=True)
class Ffn:
    """A gated feed-forward network."""

    ffn_gate: Linear = linear("n_embd", "n_ff")
    ffn_up: Linear = linear("n_embd", "n_ff")
    ffn_down: Linear = linear("n_ff", "n_embd")


@dataclass(frozen=True)
class PlainFfn(Ffn):
    """The same, for architectures whose graph ignores the scales."""

    ffn_gate: Linear = linear("n_embd", "n_ff", scale=False)
    ffn_up: Linear = linear("n_embd", "n_ff", scale=False)
    ffn_down: Linear = linear("n_ff", "n_embd", scale=False)


@dataclass(frozen=True)
class MoeFfn:
    """A mixture of gated feed-forward networks, with the matrix that chooses among them."""

    ffn_gate_inp: Linear = linear("n_embd", "n_expert")
    ffn_gate_exps: Linear = experts("n_embd", "n_ff_exp")
    ffn_up_exps: Linear = experts("n_embd", "n_ff_exp")
    ffn_down_exps: Linear = experts("n_ff_exp", "n_embd")

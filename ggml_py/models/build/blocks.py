"""The building blocks of graphs: the same ops in the same order with the same names as llama.cpp.

Names matter (llama.cpp's `cb`): with them a plan from here lines up with llama.cpp's logs.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ... import enums
from ...backends.backend import Backend
from ...boundary.ffi import lib
from ...errors import ArgumentError, MissingFunctionError
from ...graphs.context import Context
from ...graphs.graph import Graph
from ...llama.decodes import InputSet
from ...llama.norm_pins import WITH_CACHE, why_norms
from ...tensors.tensor import Tensor
from ..cache.kv_caches import KvCaches, Shape
from ..cache.ubatch import Ubatch
from ..file.hparams import HParams
from ..file.parts import Linear, Qkv
from ..file.placement import LayerPlacement
from .attention import AttnInput
from .inputs import Input, Written, new_input
from .rotation import rotate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_set_name = lib.ggml_set_name


@lru_cache(8192)  # the next graph has the same labels
def _label(name: str, il: int) -> bytes:
    return (f"{name}-{il}" if il >= 0 else name).encode()


class GraphBuilder:
    """One graph in its own context, and the blocks to fill it with.

    Filling it sets `graph`, `logits` [n_vocab, n_outputs] and `pins`, the nodes that llama.cpp
    would pin with their backends, and why. Set the pins on the scheduler before it plans.
    """

    def __init__(
        self,
        hparams: HParams,
        placement: LayerPlacement,
        memory: KvCaches,
        shape: Shape,
        flash_attn: bool,
        graph_size: int,
    ) -> None:
        self.hparams = hparams
        self.placement = placement
        self.memory = memory
        self.shape = shape
        self.flash_attn = flash_attn
        self._why_norms = why_norms(placement.full_offload, shape.n_tokens)  # "": they are not
        self.ctx = Context()
        self.graph: Graph = self.ctx.new_graph(graph_size)
        self.pins: list[tuple[Tensor, Backend, str]] = []
        self.flash_attn_nodes: list[Tensor] = []  # by layer
        self.inputs: list[Input] = []
        self.inputs_set: tuple[InputSet, ...] = ()  # their tensors; set by `share`
        self.written: dict[str, Written] = {}  # some of them, by attribute of the ubatch
        self.logits: Tensor  # set by build
        self.one: Any = None  # see decode_one.py
        self.logit_row: npt.NDArray[np.float32] | None = None  # memory of the first row, or None

    def close(self) -> None:
        """Closes the context, and the graph with it."""
        self.ctx.close()

    def cb(self, cur: Tensor, name: str, il: int = -1) -> Tensor:
        """Names `cur` as llama.cpp does ("ffn_out-3"), and pins it if llama.cpp pins that norm."""
        _set_name(cur.ptr, _label(name, il))
        if name == "norm" and il >= 0 and self._why_norms:
            backend = self.placement.backend(il)
            if lib.ggml_backend_supports_op(backend.ptr, cur.ptr):
                self.pins.append((cur, backend, self._why_norms))
        return cur

    # --- inputs

    def _input(self, type_: enums.Type, *ne: int, name: str) -> Tensor:
        return new_input(self.ctx, type_, *ne, name=name)

    def _written(self, of: str, n: int, name: str) -> Tensor:
        """An input of n numbers, written from the ubatch's attribute `of`."""
        tensor = self._input(enums.Type.I32, n, name=name)
        if n:
            self.written[of] = Written(tensor, attrgetter(of))
            self.inputs.append(self.written[of])
        return tensor

    def build_inputs(self) -> None:
        """Creates the inputs: positions, those of attention, the tokens whose logits are wanted."""
        self.inp_pos = self._written("pos", self.shape.n_tokens, name="inp_pos")
        self.inp_attn = [
            AttnInput(self.ctx, self.memory, i, self.shape, self.flash_attn)
            for i in range(len(self.memory.caches))
        ]
        self.inputs += self.inp_attn
        self.inputs += [rot for inp in self.inp_attn for rot in inp.rotations]
        self.out_ids = self._written("out_ids", self.shape.n_outputs, name="out_ids")

    def build_inp_embd(self, token_embd: Tensor) -> Tensor:
        """The tokens' embeddings [n_embd, n_tokens].

        llama.cpp's graph can also start from given vectors, or from a mixture of both. It contains
        all three choices: the nodes of the other two are planned but never computed. They are here
        as well so that nodes, leafs and splits have the same numbers.
        """
        ctx, graph, n = self.ctx, self.graph, self.shape.n_tokens
        embd_ne = (self.hparams.n_embd, n)
        inp_tokens = self._written("token", n, name="inp_tokens")
        embd = ctx.get_rows(token_embd, inp_tokens)
        if hasattr(lib, "ggml_build_forward_order"):  # since 0.21.0
            inp_embd = self._input(enums.Type.F32, *embd_ne, name="inp_embd")
            mixed_tokens = self._input(enums.Type.I32, n, name="inp_mixed_tokens")
            mixed_slots = self._input(enums.Type.I64, n, name="inp_mixed_slots")
            mixed_embd = self._input(enums.Type.F32, *embd_ne, name="inp_mixed_embd")
            rows = ctx.get_rows(token_embd, mixed_tokens)
            # Added before all other nodes, so nothing can be sorted in front of them.
            lib.ggml_build_forward_order(graph.ptr, embd.ptr)
            lib.ggml_build_forward_order(graph.ptr, rows.ptr)
            mixed = ctx.set_rows(ctx.dup(mixed_embd), rows, mixed_slots)
            choices = [embd.ptr, inp_embd.ptr, mixed.ptr]
            lib.ggml_build_forward_select(graph.ptr, choices, len(choices), 0)
        self.cb(embd, "embd")
        graph.build_forward_expand(embd)
        return embd

    def share(self) -> None:
        """Makes numpy arrays over the inputs and the logits. The graph must have its memory."""
        for inp in self.inputs:
            inp.share()
        written = [tensor for inp in self.inputs for tensor in inp.tensors]
        self.inputs_set = tuple(InputSet(tensor.name, tensor.nbytes) for tensor in written)
        self._logits = _logits_of(self.logits) if self.shape.n_outputs else None
        self.logit_row = None if self._logits is None else self._logits[0]

    def set_inputs(self, ubatch: Ubatch) -> None:
        """Writes all inputs for a ubatch."""
        for inp in self.inputs:
            inp.set(ubatch)

    def read_logits(self) -> npt.NDArray[np.float32]:
        """The logits of the last compute, [n_outputs, n_vocab] in numpy's order. Where the CPU can
        read their memory this is that memory itself, and the next compute overwrites it."""
        if self._logits is not None:
            return self._logits
        return self.logits.get().reshape(self.shape.n_outputs, -1)

    def read_logit_row(self) -> npt.NDArray[np.float32]:
        """The same for the first output only, [n_vocab]."""
        return self.read_logits()[0] if self.logit_row is None else self.logit_row

    # --- blocks

    def build_mm(self, linear: Linear, cur: Tensor) -> Tensor:
        """weight [n_in, n_out] x cur [n_in, n_tokens], scaled: [n_out, n_tokens]."""
        cur = self.ctx.mul_mat(linear.weight, cur)
        return cur if linear.scale is None else self.ctx.mul(cur, linear.scale)

    def build_linear(self, linear: Linear, cur: Tensor) -> Tensor:
        """`build_mm` plus the bias."""
        cur = self.build_mm(linear, cur)
        return cur if linear.bias is None else self.ctx.add(cur, linear.bias)

    def build_norm(self, cur: Tensor, weight: Tensor, il: int = -1) -> Tensor:
        """Normalises `cur` and multiplies by the weight."""
        cur = self.cb(self.ctx.rms_norm(cur, self.hparams.norm_rms_eps), "norm", il)
        return self.ctx.mul(cur, weight)

    def build_qkv(self, cur: Tensor, w: Qkv, il: int) -> list[Tensor]:
        """Queries, keys and values, each [n_embd_head, its number of heads, n_tokens]."""
        hp, flat = self.hparams, []
        names = ("Qcur", "Kcur", "Vcur")
        for linear, name in zip((w.attn_q, w.attn_k, w.attn_v), names, strict=True):
            out = self.cb(self.build_mm(linear, cur), name, il)
            if linear.bias is not None:
                out = self.cb(self.ctx.add(out, linear.bias), name, il)
            flat.append(out)
        heads = (hp.n_head, hp.n_head_kv, hp.n_head_kv)
        return [
            self.cb(self.ctx.reshape_3d(out, hp.n_embd_head, n, self.shape.n_tokens), name, il)
            for out, n, name in zip(flat, heads, names, strict=True)
        ]

    def build_rope(self, cur: Tensor, il: int, freqs: Tensor | None = None) -> Tensor:
        """Rotary position embedding of [n_embd_head, n_head, n_tokens]."""
        r = self.hparams.layer_rope(il)
        return self.ctx.rope_ext(
            cur,
            self.inp_pos,
            freqs,
            r.n_rot,
            r.mode,
            r.n_ctx_orig,
            r.freq_base,
            r.freq_scale,
            r.ext_factor,
            r.attn_factor,
            r.beta_fast,
            r.beta_slow,
        )

    def build_attn(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        output: Linear,
        kq_scale: float,
        il: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Stores keys and values, attends to the cache and projects the result to
        [n_embd, n_tokens]."""
        ctx, inp = self.ctx, self.inp_attn[self.hparams.is_swa(il)]
        kv = inp.kv
        q, k, v = rotate(ctx, q, inp.k_rot), rotate(ctx, k, inp.k_rot), rotate(ctx, v, inp.v_rot)
        # llama.cpp has two orders: one for models with sliding windows, one for all others.
        first = (q, v, k) if self.hparams.swa is None else (q, k, v)
        stored = kv.cpy_k(ctx, k, inp.k_idxs, il), kv.cpy_v(ctx, v, inp.v_idxs, il)
        # Before views of q are made: a view's name comes from its source, and this names q.
        self.graph.build_forward_expand(*first, *stored)
        k, v = (get(ctx, inp.n_kv, il) for get in (kv.get_k, kv.get_v))
        cur = self.build_attn_mha(q, k, v, inp.kq_mask, sinks, kq_scale, il)
        self.cb(cur, "kqv_out", il)
        return self.build_linear(output, rotate(ctx, cur, inp.v_rot))

    def build_attn_mha(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kq_mask: Tensor,
        sinks: Tensor | None,
        kq_scale: float,
        il: int,
    ) -> Tensor:
        """softmax(k q scale + mask) v: [n_embd_q, n_tokens]."""
        ctx = self.ctx
        v_nb1, v_nb2 = v.nb[1:3]
        v_trans = v_nb1 > v_nb2
        n_embd, n_head, n_tokens, _one = q.ne
        nb1, nb2 = q.nb[1:3]
        q = ctx.view_4d(q, n_embd, n_head, n_tokens, 1, nb1, nb2, nb2 * n_tokens, 0)
        q = ctx.permute(q, 0, 2, 1, 3)  # [n_embd_head, n_tokens, n_head, 1]
        k = ctx.permute(k, 0, 2, 1, 3)  # [n_embd_head, n_kv, n_head_kv, 1]
        v = ctx.permute(v, 0, 2, 1, 3)  # the same, or [n_kv, n_embd_head, …]
        if self.flash_attn:
            if v_trans:
                v = ctx.transpose(v)
            if k.type == enums.Type.F32:
                k = ctx.cast(k, enums.Type.F16)
            if v.type == enums.Type.F32:
                v = ctx.cast(v, enums.Type.F16)
            cur = ctx.flash_attn_ext(q, k, v, kq_mask, kq_scale, 0.0, 0.0)
            if sinks is not None:
                cur.add_sinks(sinks)
            self.flash_attn_nodes.append(cur)
            cur.set_prec(enums.Prec.F32)  # sums overflow f16 in some models
            cur = ctx.reshape_2d(cur, n_embd * n_head, n_tokens)
        else:
            kq = self.cb(ctx.mul_mat(k, q), "kq", il)  # [n_kv, n_tokens, n_head, 1]
            kq.set_prec(enums.Prec.F32)  # sums overflow f16 in some models
            kq = self.cb(ctx.soft_max_ext(kq, kq_mask, kq_scale, 0.0), "kq_soft_max", il)
            if sinks is not None:
                kq.add_sinks(sinks)
            if not v_trans:
                v = self.cb(ctx.cont(ctx.transpose(v)), "v_cont", il)
            kqv = self.cb(ctx.mul_mat(v, kq), "kqv", il)  # [n_embd_head, n_tokens, n_head, 1]
            cur = ctx.cont_2d(ctx.permute(kqv, 0, 2, 1, 3), n_embd * n_head, n_tokens)
            if not self.placement.offload_kqv:
                self.pins.append((cur, self.placement.backends[-1], WITH_CACHE))
        self.graph.build_forward_expand(cur)
        return cur

    def build_ffn(self, cur: Tensor, up: Linear, gate: Linear, down: Linear, il: int) -> Tensor:
        """down(silu(gate(x)) * up(x)): [n_embd, n_tokens]."""
        ctx = self.ctx
        hidden = self._ffn_in(up, cur, "ffn_up", il)  # [n_ff, n_tokens]
        gated = self._ffn_in(gate, cur, "ffn_gate", il)
        cur = self.cb(ctx.swiglu_split(gated, hidden), "ffn_swiglu", il)
        cur = ctx.mul_mat(down.weight, cur)
        if down.bias is not None:
            cur = ctx.add(self.cb(cur, "ffn_down", il), down.bias)
        if down.scale is not None:
            cur = ctx.mul(cur, down.scale)
        return self.cb(cur, "ffn_out", il)

    def _ffn_in(self, linear: Linear, cur: Tensor, name: str, il: int) -> Tensor:
        """Product, bias, scale: in feed-forward networks llama.cpp scales last, elsewhere not."""
        ctx = self.ctx
        cur = self.cb(ctx.mul_mat(linear.weight, cur), name, il)
        if linear.bias is not None:
            cur = self.cb(ctx.add(cur, linear.bias), f"{name}_b", il)
        if linear.scale is not None:
            cur = self.cb(ctx.mul(cur, linear.scale), f"{name}_s", il)
        return cur


def _logits_of(logits: Tensor) -> npt.NDArray[np.float32] | None:
    """A lasting array over the logits; None if they are in a device's memory, or if this build
    cannot keep memory alive that a scheduler lent."""
    try:
        array = logits.numpy().reshape(-1, logits.ne[0])
    except (ArgumentError, MissingFunctionError):
        return None
    array.flags.writeable = False
    return array

"""The parts that graphs are built of, with the ops, their order and their names as in llama.cpp.

Names are part of the result: a plan of ours lines up with everybody's logs (llama.cpp's `cb`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import enums
from .._ffi import lib
from ..backend import Backend
from ..context import Context
from ..convert import DTYPES
from ..errors import ArgumentError, MissingFunctionError
from ..graph import Graph
from ..tensor import Tensor
from .hparams import HParams
from .kv_cache import KvCache, hadamard
from .placement import Placement
from .weights import Linear, Weights

if TYPE_CHECKING:
    import numpy.typing as npt

# Below this number of tokens llama.cpp pins each layer's norms to the layer's own device. Left
# alone, the scheduler gives a layer's first norm to the device of the layer before: more to copy.
_PIN_BELOW = 32
# Until 0.9.4 attention wanted the mask's rows padded to a multiple of this.
_MASK_PAD: int = getattr(lib, "GGML_KQ_MASK_PAD", 1)


class Shape(NamedTuple):
    """What a graph is built for; another shape needs another graph."""

    n_tokens: int
    n_kv: int  # cells of the cache that attention reads
    n_outputs: int  # tokens whose logits are computed: 0, 1 (the last one) or n_tokens


class GraphBuilder(ABC):
    """One graph in its own context. A subclass per architecture adds its weights and `build`.

    After `build` there are `graph`, `logits` [n_vocab, n_outputs], and `pins`: the backends that
    llama.cpp would pin nodes to, to be set on the scheduler before it plans.
    """

    def __init__(
        self,
        hparams: HParams,
        placement: Placement,
        kv: KvCache,
        shape: Shape,
        flash_attn: bool,
        graph_size: int,
    ) -> None:
        self.hparams = hparams
        self.placement = placement
        self.kv = kv
        self.shape = shape
        self.flash_attn = flash_attn
        self.n_mask_rows = -(-shape.n_tokens // _MASK_PAD) * _MASK_PAD
        self.ctx = Context()
        self.graph: Graph = self.ctx.new_graph(graph_size)
        self.pins: list[tuple[Tensor, Backend]] = []
        self.flash_attn_nodes: list[Tensor] = []  # by layer
        self.logits: Tensor  # set by build

    @staticmethod
    @abstractmethod
    def declare(weights: Weights, hp: HParams) -> Any:
        """Finds the architecture's tensors, checks their ne, and returns them by name."""

    @abstractmethod
    def build(self, w: Any) -> None:
        """Fills the graph from what `declare` returned."""

    def close(self) -> None:
        """Closes the context, and the graph with it."""
        self.ctx.close()

    def cb(self, cur: Tensor, name: str, il: int = -1) -> Tensor:
        """Names `cur` as llama.cpp does ("ffn_out-3"), and pins norms as it does."""
        cur.name = f"{name}-{il}" if il >= 0 else name
        few = self.shape.n_tokens < _PIN_BELOW
        if name == "norm" and il >= 0 and (few or self.placement.full_offload):
            backend = self.placement.backend(il)
            if backend.supports_op(cur):
                self.pins.append((cur, backend))
        return cur

    # --- inputs

    def _input(self, type_: enums.Type, *ne: int, name: str) -> Tensor:
        tensor = self.ctx.new_tensor(type_, *ne, name=name)
        tensor.set_input()
        return tensor

    def build_inputs(self) -> None:
        """Positions, the cells to write, the attention mask, the tokens whose logits are wanted."""
        shape, kv = self.shape, self.kv
        mask_type = enums.Type.F16 if self.flash_attn else enums.Type.F32
        self.inp_pos = self._input(enums.Type.I32, shape.n_tokens, name="inp_pos")
        self.k_idxs = self._input(enums.Type.I64, shape.n_tokens, name="attn_inp_k_idxs")
        n_v_idxs = kv.v_idxs_size(shape.n_tokens)
        self.v_idxs = self._input(enums.Type.I64, n_v_idxs, name="attn_inp_v_idxs")
        self.kq_mask = self._input(
            mask_type, shape.n_kv, self.n_mask_rows, 1, 1, name="attn_inp_kq_mask"
        )
        self.k_rot = self._rotation(kv.n_rot_k, "attn_inp_k_rot")
        self.v_rot = self._rotation(kv.n_rot_v, "attn_inp_v_rot")
        self.out_ids = self._input(enums.Type.I32, shape.n_outputs, name="out_ids")

    def _rotation(self, n: int, name: str) -> Tensor | None:
        return self._input(enums.Type.F32, n, n, name=name) if n else None

    def build_inp_embd(self, token_embd: Tensor) -> Tensor:
        """The tokens' embeddings [n_embd, n_tokens].

        llama.cpp's graph can also start from given vectors, or from a mixture of both, and carries
        all three choices: the nodes of the two others are planned and never computed. They are here
        too, so that nodes, leafs and splits have the same numbers.
        """
        ctx, graph, n = self.ctx, self.graph, self.shape.n_tokens
        embd_ne = (self.hparams.n_embd, n)
        self.inp_tokens = self._input(enums.Type.I32, n, name="inp_tokens")
        embd = ctx.get_rows(token_embd, self.inp_tokens)
        if hasattr(lib, "ggml_build_forward_order"):  # since 0.21.0
            inp_embd = self._input(enums.Type.F32, *embd_ne, name="inp_embd")
            mixed_tokens = self._input(enums.Type.I32, n, name="inp_mixed_tokens")
            mixed_slots = self._input(enums.Type.I64, n, name="inp_mixed_slots")
            mixed_embd = self._input(enums.Type.F32, *embd_ne, name="inp_mixed_embd")
            rows = ctx.get_rows(token_embd, mixed_tokens)
            # First of all nodes, before anything that they could be sorted behind.
            lib.ggml_build_forward_order(graph.ptr, embd.ptr)
            lib.ggml_build_forward_order(graph.ptr, rows.ptr)
            mixed = ctx.set_rows(ctx.dup(mixed_embd), rows, mixed_slots)
            choices = [embd.ptr, inp_embd.ptr, mixed.ptr]
            lib.ggml_build_forward_select(graph.ptr, choices, len(choices), 0)
        self.cb(embd, "embd")
        graph.build_forward_expand(embd)
        return embd

    def share(self) -> None:
        """Takes arrays over the inputs and the logits, once the graph has memory."""
        written = (self.inp_tokens, self.inp_pos, self.k_idxs, self.v_idxs)
        self._arrays = (
            *map(_array_of, written),
            _array_of(self.kq_mask).reshape(-1, self.shape.n_kv),
        )
        rotations = (rot for rot in (self.k_rot, self.v_rot) if rot is not None)
        self._constants: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
        self._constants = [(_array_of(rot), hadamard(rot.ne[0])) for rot in rotations]
        n, n_outputs = self.shape.n_tokens, self.shape.n_outputs
        if n_outputs:
            last = np.arange(n - n_outputs, n, dtype=np.int32)
            self._constants.append((_array_of(self.out_ids), last))
        self._logits = _logits_of(self.logits) if n_outputs else None

    def set_inputs(self, tokens: npt.NDArray[np.int32], n_past: int) -> None:
        """Writes all inputs for `tokens` at the positions from `n_past` on, where they are read:
        nodes may have used the memory since."""
        inp_tokens, inp_pos, k_idxs, v_idxs, kq_mask = self._arrays
        inp_tokens[:] = tokens
        kv, end = self.kv, n_past + self.shape.n_tokens
        inp_pos[:] = kv.positions[n_past:end]
        k_idxs[:] = kv.cells[n_past:end]
        v_idxs[:] = kv.v_idxs(k_idxs)
        kv.fill_causal_mask(kq_mask, n_past, end)
        for array, values in self._constants:
            array[:] = values

    def read_logits(self) -> npt.NDArray[np.float32]:
        """The logits [n_outputs, n_vocab] in numpy's order, of the last compute: the memory itself
        where the CPU can read it, which the next compute writes to."""
        if self._logits is not None:
            return self._logits
        return self.logits.get().reshape(self.shape.n_outputs, -1)

    # --- blocks

    def build_lora_mm(self, linear: Linear, cur: Tensor) -> Tensor:
        """weight [n_in, n_out] x cur [n_in, n_tokens], scaled: [n_out, n_tokens]. (No LoRA yet.)"""
        cur = self.ctx.mul_mat(linear.weight, cur)
        return cur if linear.scale is None else self.ctx.mul(cur, linear.scale)

    def build_norm(self, cur: Tensor, weight: Tensor, il: int = -1) -> Tensor:
        """RMS norm, scaled by weight [n_embd]."""
        cur = self.ctx.rms_norm(cur, self.hparams.norm_rms_eps)
        self.cb(cur, "norm", il)
        return self.ctx.mul(cur, weight)

    def build_qkv(
        self, cur: Tensor, attn_q: Linear, attn_k: Linear, attn_v: Linear, il: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values, each [n_embd_head, its heads, n_tokens]."""
        hp = self.hparams
        heads = ((attn_q, hp.n_head), (attn_k, hp.n_head_kv), (attn_v, hp.n_head_kv))
        names = ("Qcur", "Kcur", "Vcur")
        flat = []
        for name, (linear, _n_head) in zip(names, heads, strict=True):
            out = self.cb(self.build_lora_mm(linear, cur), name, il)
            if linear.bias is not None:
                out = self.cb(self.ctx.add(out, linear.bias), name, il)
            flat.append(out)
        q, k, v = (
            self.ctx.reshape_3d(out, hp.n_embd_head, n_head, self.shape.n_tokens)
            for out, (_linear, n_head) in zip(flat, heads, strict=True)
        )
        return self.cb(q, "Qcur", il), self.cb(k, "Kcur", il), self.cb(v, "Vcur", il)

    def build_rope(self, cur: Tensor, factors: Tensor | None) -> Tensor:
        """Rotary position embedding of [n_embd_head, n_head, n_tokens]."""
        r = self.hparams.rope
        return self.ctx.rope_ext(
            cur,
            self.inp_pos,
            factors,
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
        self, q: Tensor, k: Tensor, v: Tensor, output: Linear, kq_scale: float, il: int
    ) -> Tensor:
        """Stores keys and values, attends to the cache, projects: [n_embd, n_tokens]."""
        ctx = self.ctx
        if self.k_rot is not None:
            q, k = self._rotate(q, self.k_rot), self._rotate(k, self.k_rot)
        if self.v_rot is not None:
            v = self._rotate(v, self.v_rot)
        self.graph.build_forward_expand(q, v, k)
        self.graph.build_forward_expand(self.kv.cpy_k(ctx, k, self.k_idxs, il))
        self.graph.build_forward_expand(self.kv.cpy_v(ctx, v, self.v_idxs, il))
        k = self.kv.get_k(ctx, self.shape.n_kv, il)
        v = self.kv.get_v(ctx, self.shape.n_kv, il)
        cur = self.build_attn_mha(q, k, v, kq_scale, il)
        self.cb(cur, "kqv_out", il)
        if self.v_rot is not None:
            cur = self._rotate(cur, self.v_rot)
        cur = self.build_lora_mm(output, cur)
        return cur if output.bias is None else ctx.add(cur, output.bias)

    def build_attn_mha(self, q: Tensor, k: Tensor, v: Tensor, kq_scale: float, il: int) -> Tensor:
        """softmax(k q scale + mask) v: [n_embd_q, n_tokens]."""
        ctx, v_trans = self.ctx, self.kv.v_trans
        n_embd, n_head, n_tokens, _one = q.ne
        nb1, nb2 = q.nb[1:3]
        q = ctx.view_4d(q, n_embd, n_head, n_tokens, 1, nb1, nb2, nb2 * n_tokens, 0)
        q = ctx.permute(q, 0, 2, 1, 3)  # [n_embd_head, n_tokens, n_head]
        k = ctx.permute(k, 0, 2, 1, 3)  # [n_embd_head, n_kv, n_head_kv]
        v = ctx.permute(v, 0, 2, 1, 3)  # the same, or [n_kv, n_embd_head, n_head_kv]
        if self.flash_attn:
            if v_trans:
                v = ctx.transpose(v)
            if k.type == enums.Type.F32:
                k = ctx.cast(k, enums.Type.F16)
            if v.type == enums.Type.F32:
                v = ctx.cast(v, enums.Type.F16)
            cur = ctx.flash_attn_ext(q, k, v, self.kq_mask, kq_scale, 0.0, 0.0)
            self.flash_attn_nodes.append(cur)
            cur.set_prec(enums.Prec.F32)  # sums overflow f16 in some models
            cur = ctx.reshape_2d(cur, n_embd * n_head, n_tokens)
        else:
            kq = self.cb(ctx.mul_mat(k, q), "kq", il)  # [n_kv, n_tokens, n_head]
            kq.set_prec(enums.Prec.F32)  # sums overflow f16 in some models
            kq = self.cb(ctx.soft_max_ext(kq, self.kq_mask, kq_scale, 0.0), "kq_soft_max", il)
            if not v_trans:
                v = self.cb(ctx.cont(ctx.transpose(v)), "v_cont", il)
            kqv = self.cb(ctx.mul_mat(v, kq), "kqv", il)  # [n_embd_head, n_tokens, n_head]
            cur = ctx.cont_2d(ctx.permute(kqv, 0, 2, 1, 3), n_embd * n_head, n_tokens)
        self.graph.build_forward_expand(cur)
        return cur

    def _rotate(self, cur: Tensor, rot: Tensor) -> Tensor:
        """Each run of n elements of `cur` times rot [n, n], a Hadamard matrix."""
        ctx, n = self.ctx, rot.ne[0]
        rows = (n, cur.n_elements // n)
        flat = ctx.reshape_2d(cur, *rows) if cur.is_contiguous else ctx.cont_2d(cur, *rows)
        res = ctx.mul_mat(rot, flat)
        res.set_hint(enums.OpHint.SRC0_IS_HADAMARD)
        return ctx.reshape_4d(res, *cur.ne)

    def build_ffn(
        self, cur: Tensor, ffn_up: Linear, ffn_gate: Linear, ffn_down: Linear, il: int
    ) -> Tensor:
        """down(silu(gate(x)) * up(x)): [n_embd, n_tokens]."""
        ctx = self.ctx
        up = self._ffn_in(ffn_up, cur, "ffn_up", il)  # [n_ff, n_tokens]
        gate = self._ffn_in(ffn_gate, cur, "ffn_gate", il)
        cur = self.cb(ctx.swiglu_split(gate, up), "ffn_swiglu", il)
        cur = ctx.mul_mat(ffn_down.weight, cur)  # the last node here is named by the caller
        if ffn_down.bias is not None:
            cur = ctx.add(self.cb(cur, "ffn_down", il), ffn_down.bias)
        if ffn_down.scale is not None:
            cur = self.cb(ctx.mul(cur, ffn_down.scale), "ffn_down_s", il)
        return cur

    def _ffn_in(self, linear: Linear, cur: Tensor, name: str, il: int) -> Tensor:
        """Product, bias, scale: unlike elsewhere llama.cpp scales last."""
        ctx = self.ctx
        cur = self.cb(ctx.mul_mat(linear.weight, cur), name, il)
        if linear.bias is not None:
            cur = self.cb(ctx.add(cur, linear.bias), f"{name}_b", il)
        if linear.scale is not None:
            cur = self.cb(ctx.mul(cur, linear.scale), f"{name}_s", il)
        return cur


def _array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """An array over an input, for as long as the graph has its memory."""
    return tensor._view(DTYPES[tensor.type])


def _logits_of(logits: Tensor) -> npt.NDArray[np.float32] | None:
    """A lasting array over them; None in the memory of a device, and in builds that cannot keep
    memory of a scheduler's."""
    try:
        array = logits.numpy().reshape(-1, logits.ne[0])
    except (ArgumentError, MissingFunctionError):
        return None
    array.flags.writeable = False
    return array

"""Rotates the keys of a cache to positions that were moved (llama_kv_cache::build_graph_shift)."""

from __future__ import annotations

from typing import Any

from ...boundary.ffi import lib
from ...enums import Type
from ...graphs.context import Context
from ...graphs.graph import Graph
from ...scheduler.scheduler import Scheduler
from ...tensors.tensor import Tensor
from ..build.inputs import array_of, new_input
from ..build.rotation import hadamard, rotate
from ..file.hparams import HParams
from .kv_cache import KvCache


def shift_keys(sched: Scheduler, kv: KvCache, hparams: HParams, layers: Any) -> None:
    """Rotates the keys of all cells by the shifts of their positions since the last rotation.

    `layers` are the tensors of the model's layers. `sched` must have no graph allocated. Raises
    what a compute raises. Then only some of the keys may be rotated.
    """
    with Context() as ctx:
        graph = ctx.new_graph(sched.graph_size)
        k_shift, k_rot = build_graph_shift(ctx, graph, kv, hparams, layers)
        sched.alloc_without_plan(graph)
        try:
            array_of(k_shift)[:] = kv.cells.shifts()
            if k_rot is not None:
                array_of(k_rot)[:] = hadamard(kv.n_rot_k)
            sched.compute(graph)
        finally:
            sched.reset()


def build_graph_shift(
    ctx: Context, graph: Graph, kv: KvCache, hparams: HParams, layers: Any
) -> tuple[Tensor, Tensor | None]:
    """Fills the graph. Returns its inputs: the shifts [n_cells * n_stream], and the Hadamard matrix
    of a quantised K."""
    n_cells = kv.cells.size * kv.cells.n_stream
    k_shift = new_input(ctx, Type.I32, n_cells, name="")
    n_rot_k = kv.n_rot_k
    k_rot = new_input(ctx, Type.F32, n_rot_k, n_rot_k, name="attn_inp_k_rot") if n_rot_k else None
    for il, cache in kv.k.items():
        factors = getattr(layers[il], "rope_factors", None)
        rope = hparams.layer_rope(il)
        sizes = (hparams.n_embd_head, hparams.n_embd_gqa)
        nb1, nb2 = (lib.ggml_row_size(cache.type, n) for n in sizes)
        k = ctx.view_3d(cache, rope.n_rot, hparams.n_head_kv, n_cells, nb1, nb2, 0)
        arguments = (
            k_shift,
            factors.of(kv.cells.size, rope.n_ctx_orig) if factors else None,
            *(rope.n_rot, rope.mode, rope.n_ctx_orig, rope.freq_base, rope.freq_scale),
            *(rope.ext_factor, rope.attn_factor, rope.beta_fast, rope.beta_slow),
        )
        if lib.ggml_is_quantized(cache.type):
            cur = rotate(ctx, ctx.cast(k, Type.F32), k_rot)
            cur = rotate(ctx, ctx.rope_ext(cur, *arguments), k_rot)
            cur = ctx.cpy(cur, k)
        else:
            cur = ctx.rope_ext_inplace(k, *arguments)
        graph.build_forward_expand(cur)
    return k_shift, k_rot

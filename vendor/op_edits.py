"""Edits that add assertions to the constructors of ops (ggml.c) and their CPU kernels (ops.cpp)."""

from __future__ import annotations

from .edit import Edit

OPS = (
    Edit(
        "constructors of tensors and ops",
        "static struct ggml_tensor * ggml_new_tensor_impl(\n",
        '#include "op_checks.h"\n\n',
    ),
    Edit(
        "size of a new tensor",
        "    size_t data_size = ggml_row_size(type, ne[0]);\n",
        "    GGML_ASSERT(view_src != NULL || ne[0] % ggml_blck_size(type) == 0);\n"
        "    gp_check_size(type, n_dims, ne);\n",
    ),
    Edit(
        "region of acc",
        "    result->op     = GGML_OP_ACC;\n",
        "    gp_check_region(a, b, nb1, nb2, nb3, offset);\n",
    ),
    Edit(
        "region of set",
        "    result->op     = GGML_OP_SET;\n",
        "    gp_check_region(a, b, nb1, nb2, nb3, offset);\n",
    ),
    Edit(
        "shapes of silu_back",
        "    result->op     = GGML_OP_SILU_BACK;\n",
        "    GGML_ASSERT(ggml_are_same_shape(a, b) && a->type == b->type);\n"
        "    GGML_ASSERT(ggml_is_contiguous_1(a) && ggml_is_contiguous_1(b));\n",
    ),
    Edit(
        "shapes of im2col_back",
        "    result->op     = GGML_OP_IM2COL_BACK;\n",
        "    gp_check_im2col_back(a, b, ne, s0, s1, p0, p1, d0, d1, is_2D);\n",
    ),
    Edit(
        "width of win_part",
        "    GGML_ASSERT(a->ne[3] == 1);\n    GGML_ASSERT(a->type  == GGML_TYPE_F32);\n",
        "    GGML_ASSERT(w > 0 && ggml_is_contiguous(a));\n",
    ),
    Edit(
        "shape of win_unpart",
        "    result->op     = GGML_OP_WIN_UNPART;\n",
        "    gp_check_win_unpart(a, w0, h0, w);\n",
    ),
    Edit(
        "shapes of pool_2d_back",
        "    result->op     = GGML_OP_POOL_2D_BACK;\n",
        "    gp_check_pool_2d_back(a, af);\n",
    ),
    Edit(
        "layout of pool_1d",
        "    result->op     = GGML_OP_POOL_1D;\n",
        "    gp_check_pool(a);\n",
    ),
    Edit(
        "layout of pool_2d",
        "    result->op     = GGML_OP_POOL_2D;\n",
        "    gp_check_pool(a);\n",
    ),
    Edit(
        "elements of timestep_embedding",
        "    result->op     = GGML_OP_TIMESTEP_EMBEDDING;\n",
        "    GGML_ASSERT(ggml_nelements(timesteps) >= timesteps->ne[0]);\n",
    ),
    Edit(
        "layout of leaky_relu",
        "    result->op     = GGML_OP_LEAKY_RELU;\n",
        "    gp_check_rows(a);\n",
    ),
    Edit(
        "layout of argsort",
        "    result->op     = GGML_OP_ARGSORT;\n",
        "    gp_check_rows(a);\n",
    ),
    Edit(
        "layout of cross_entropy_loss",
        "    result->op     = GGML_OP_CROSS_ENTROPY_LOSS;\n",
        "    gp_check_rows(a);\n    gp_check_rows(b);\n",
    ),
    Edit(
        "layout of diag_mask_inf",
        "    result->op     = GGML_OP_DIAG_MASK_INF;\n",
        "    gp_check_planes(a);\n",
    ),
    Edit(
        "layout of diag_mask_zero",
        "    result->op     = GGML_OP_DIAG_MASK_ZERO;\n",
        "    gp_check_planes(a);\n",
    ),
    Edit(
        "elements of upscale",
        "    result->op     = GGML_OP_UPSCALE;\n",
        "    GGML_ASSERT(ggml_nelements(a) > 0 || ggml_nelements(result) == 0);\n",
    ),
    Edit(
        "operands of rwkv_wkv6",
        "    result->op     = GGML_OP_RWKV_WKV6;\n",
        "    gp_check_floats(6, k, v, r, tf, td, state);\n"
        "    gp_check_sequences(n_tokens, n_seqs);\n"
        "    GGML_ASSERT(ggml_nelements(tf) >= S*H);\n",
    ),
    Edit(
        "operands of rwkv_wkv7",
        "    result->op     = GGML_OP_RWKV_WKV7;\n",
        "    gp_check_floats(7, r, w, k, v, a, b, state);\n"
        "    gp_check_sequences(n_tokens, n_seqs);\n"
        "    GGML_ASSERT(ggml_are_same_shape(r, k));\n",
    ),
    Edit(
        "operands of gated_linear_attn",
        "    result->op     = GGML_OP_GATED_LINEAR_ATTN;\n",
        "    gp_check_floats(5, k, v, q, g, state);\n"
        "    gp_check_sequences(n_tokens, n_seqs);\n",
    ),
    Edit(
        "type of out_prod",
        "    result->op     = GGML_OP_OUT_PROD;\n",
        "    GGML_ASSERT(b->type == GGML_TYPE_F32);\n",
    ),
    Edit(
        "types of conv_2d_direct",
        "    result->op = GGML_OP_CONV_2D;\n",
        "    gp_check_conv_direct(a, b);\n",
    ),
    Edit(
        "types of conv_2d_dw_direct",
        "    result->op     = GGML_OP_CONV_2D_DW;\n",
        "    gp_check_conv_direct(a, b);\n",
    ),
    Edit(
        "shapes of flash_attn_ext",
        "    result->op     = GGML_OP_FLASH_ATTN_EXT;\n",
        "    gp_check_flash_attn_ext(q, k, v, mask);\n",
    ),
    Edit(
        "pads of pad_ext_circular",
        "    ggml_set_op_params_i32(result, 8, 1); // circular\n",
        "    gp_check_wraps(a, lp0, lp1, lp2, lp3);\n",
        optional=True,
    ),
    Edit(
        "stride of a convolution",
        "static int64_t ggml_calc_conv_output_size("
        "int64_t ins, int64_t ks, int s, int p, int d) {\n",
        "    GGML_ASSERT(s > 0);\n",
        after=True,
    ),
    Edit(
        "k of top_k",
        "    result->op     = GGML_OP_TOP_K;\n",
        "    GGML_ASSERT(k > 0);\n    gp_check_rows(a);\n",
        optional=True,
    ),
    # Since 0.24.0 it may be NULL.
    Edit(
        "comb of dsv4_hc_post",
        "    GGML_ASSERT(comb->type == GGML_TYPE_F32);\n\n    const int64_t n_embd   = x->ne[0];\n",
        "    GGML_ASSERT(comb != NULL);\n",
        optional=True,
    ),
)

# Checks before a compute: the kernels' assumptions (kernel_check.h).
CPU_CHECKS = (
    Edit(
        "rules of the kernels",
        "enum ggml_status ggml_graph_compute(struct ggml_cgraph * cgraph, "
        "struct ggml_cplan * cplan) {\n",
        '#include "kernel_hooks.h"\n\n',
    ),
    Edit(
        "graph to be computed",
        "    GGML_ASSERT(cplan->work_size == 0 || cplan->work_data != NULL);\n",
        "    gp_check_graph(cgraph);\n",
        after=True,
    ),
)

_INDEX = "        const int r = ((int32_t *) src1->data)[i];\n"


def _get_rows_back(type_: str, next_line: str) -> Edit:
    """Before 0.25.3 a row that does not exist was written anyway."""
    text = f"{_INDEX}        GGML_ASSERT(r >= 0 && r < dst->ne[1]);\n\n{next_line}"
    name = f"get_rows_back's rows, {type_}"
    return Edit(name, f"{_INDEX}\n{next_line}", text, replace=True, optional=True)


CPU_OPS = (
    Edit(
        "end of the includes",
        "static void ggml_compute_forward_dup_same_cont(\n",
        '#include "layout_assert.h"\n\n',
    ),
    _get_rows_back("f32", "        ggml_vec_add_f32(nc,"),
    _get_rows_back("f16", "        for (int j = 0; j < nc; ++j) {\n"),
    # If a row is not made of contiguous whole blocks, copying blocks goes out of bounds or never
    # ends.
    Edit(
        "rows of dup",
        "        const size_t rs = ne00 * type_size;\n",
        "        GGML_ASSERT(ggml_blck_size(src0->type) == 1);\n",
    ),
    # Up to 0.15.1 a block type's elements were each treated as a block.
    Edit(
        "blocks of concat",
        "    o[dim] = src0->ne[dim];\n\n    const char * x;\n",
        "    GGML_ASSERT(ggml_blck_size(src0->type) == 1);\n",
        optional=True,
    ),
    Edit(
        "blocks of dup",
        "    const int64_t nk0  = ne0  / ggml_blck_size(dst->type);\n",
        "    GGML_ASSERT(nk0 > 0);\n",
        after=True,
    ),
    # Upstream's indices are right only for two dimensions; with more they leave the tensor.
    Edit(
        "row of count_equal",
        "        const int64_t i02 = (ir - i03*ne03)            /       ne01;\n",
        "        const int64_t i02 = ir/ne01 % ne02;\n"
        "        const int64_t i01 = ir % ne01;\n",
        until="        const int64_t i01 =  ir - i03*ne03 - i02*ne02;\n",
    ),
    # There are factors only for the rotated pairs, but upstream reads them for the whole row. The
    # callers come after this place: two in 0.9.4.p0.2.4, one since.
    Edit(
        "frequency factors of rope",
        "static void ggml_mrope_cache_init(",
        "#define ggml_rope_cache_init(p, scale, factors, corr_dims, ne0, ...) \\\n"
        "    ggml_rope_cache_init(p, scale, factors, corr_dims, n_dims, __VA_ARGS__)\n\n",
    ),
    # The kernel loads whole vectors.
    Edit(
        "heads of rwkv_wkv7",
        "    const int64_t n_seqs = dst->src[6]->ne[1];\n"
        "    const int64_t head_size = C / HEADS;\n",
        "#if defined(GGML_SIMD)\n    GGML_ASSERT(head_size % GGML_F32_STEP == 0);\n#endif\n",
        after=True,
        optional=True,
    ),
    # As for mul_mat's kernel.
    Edit(
        "flash_attn_ext's kernel",
        "    ggml_vec_dot_t    const kq_vec_dot     = "
        "ggml_get_type_traits_cpu(k->type)->vec_dot;\n",
        '    GGML_ASSERT(kq_vec_dot != NULL && "fattn: unsupported K-type");\n',
        after=True,
    ),
    Edit(
        "ssm_scan's ids",
        "    for (int i3 = 0; i3 < ns; ++i3) {\n        const float * s0 =",
        "    for (int i3 = 0; i3 < ns; ++i3) {\n"
        "        GGML_ASSERT(ids[i3] >= 0 && ids[i3] < src0->ne[3]);\n"
        "    }\n",
    ),
)

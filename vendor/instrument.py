"""Makes the instrumented copies of upstream's sources.

Upstream's tree stays byte for byte. The copies differ by the edits of `EDITS`, each anchored on
text that has not changed from release 0.9.4 to 0.26.0. What they call is in ``ggml_py/native``:
``sched_hooks.h`` for the scheduler, ``alloc_hooks.h`` for the graph allocator, ``worker_guard.h``
for the CPU backend's threads. Where an op goes by an index or a shape that upstream does not look
at, an assertion is added (``op_checks.h``, ``layout_assert.h``): its abort is an exception.
"""

from __future__ import annotations

from dataclasses import dataclass


class AnchorError(Exception):
    """An anchor was not found exactly once: this release needs its edits looked at."""


@dataclass(frozen=True)
class Edit:
    """One change: `text` goes before `anchor`, which is found exactly once.

    With `after` it goes behind it, with `replace` it takes the anchor's place; with `until`, found
    exactly once too, the place of everything from the one to the end of the other. An
    `optional` one may be missing: it mends what some releases have.
    """

    name: str
    anchor: str
    text: str
    after: bool = False
    replace: bool = False
    until: str = ""
    optional: bool = False


def _stage(name: str, anchor: str, code: int) -> Edit:
    return Edit(name, f"    // {anchor}", f"    GP_STAGE(sched, graph, {code});\n")


_RESERVE = (
    "ggml_gallocr_reserve_n(sched->galloc, &sched->graph, "
    "sched->node_backend_ids, sched->leaf_backend_ids)"
)
_FAILED = 'GGML_LOG_ERROR("%s: failed to allocate %s buffer of size %zu\\n", __func__, '

_SCHEDULER = (
    Edit(
        "disabled SET_CAUSE block",
        "#if 0\n#define GGML_SCHED_MAX_SPLITS_DEBUG 4096\n",
        '#include "sched_trace.cpp"\n',
        until='#define SET_CAUSE(node, ...)\n#define GET_CAUSE(node) ""\n#endif\n',
    ),
    # The struct is private to this file and made by calloc, so a first member changes no ABI.
    Edit(
        "scheduler struct",
        "struct ggml_backend_sched {\n",
        "namespace gp { struct trace; }\n\nstruct ggml_backend_sched {\n    gp::trace * trace;\n\n",
        replace=True,
    ),
    Edit("start of split_graph", "    // pass 1: assign", "    GP_SPLIT_BEGIN(sched, graph);\n"),
    _stage("pass 2", "pass 2:", 20),
    _stage("sweep gpu down", "expand gpu down\n", 21),
    _stage("sweep gpu up", "expand gpu up\n", 22),
    _stage("sweep rest down", "expand rest down\n", 23),
    _stage("sweep rest up", "expand rest up\n", 24),
    _stage("pass 3", "pass 3: upgrade", 30),
    _stage("pass 4", "pass 4: assign", 40),
    _stage("pass 5", "pass 5: split", 50),
    Edit(
        "source replaced by a copy",
        20 * " " + "node->src[j] = tensor_id_copy(src_id, cur_backend_id, sched->cur_copy);\n",
        20 * " " + "GP_REWIRE(sched, node, j);\n",
    ),
    Edit(
        "hash set cleared",
        "        ggml_hash_set_reset(&sched->hash_set);\n",
        "        GP_RESET(sched);\n",
    ),
    Edit(
        "scheduler freed",
        "    ggml_hash_set_free(&sched->hash_set);\n",
        "    GP_FREE(sched);\n",
    ),
    Edit(
        "graph allocated",
        "    if (!ggml_backend_sched_alloc_splits(sched)) {\n",
        "    GP_ALLOC_BEGIN(sched);\n"
        "    if (!ggml_backend_sched_alloc_splits(sched) || !GP_ALLOCATED(sched)) {\n",
        replace=True,
    ),
    # Up to 0.23 a reservation that failed went on to write through buffers that are not there.
    Edit(
        "reservation without a check",
        f"        {_RESERVE};\n",
        f"        if (!{_RESERVE}) {{\n            return false;\n        }}\n",
        replace=True,
        optional=True,
    ),
    # Up to 0.9.4 the base of a buffer that stands for several was asked of nobody.
    Edit(
        "base of several buffers",
        "    if (buffer->size == 0) {\n        return NULL;\n    }\n\n    void * base",
        "    if (buffer->size == 0 || !buffer->iface.get_base) {\n        return NULL;\n    }\n\n"
        "    void * base",
        replace=True,
        optional=True,
    ),
)

def _unfit(name: str, indent: int, message: str, note: str) -> Edit:
    """A note before one of the reasons that only a debug build logs."""
    log = f'#ifndef NDEBUG\n{" " * indent}GGML_LOG_DEBUG("%s: {message}\\n", __func__'
    return Edit(name, log, f"{' ' * indent}{note};\n")


_ALLOCATOR = (
    Edit(
        "buffers of the allocator",
        "static void ggml_vbuffer_free(struct vbuffer * buf) {\n",
        '#include "alloc_hooks.h"\n\n',
    ),
    Edit(
        "buffer freed",
        "ggml_backend_buffer_free(buf->chunks[i]);",
        "gp_buffer_free(buf->chunks[i]);",
        replace=True,
    ),
    _unfit(
        "other number of nodes", 8, "graph has different number of nodes",
        "gp_alloc_note(GP_REALLOC_NODES, NULL, NULL, -1, graph->n_nodes, galloc->n_nodes)",
    ),
    _unfit(
        "other number of leafs", 8, "graph has different number of leafs",
        "gp_alloc_note(GP_REALLOC_LEAFS, NULL, NULL, -1, graph->n_leafs, galloc->n_leafs)",
    ),
    _unfit(
        "node without room", 12, "node %s is not valid",
        "GP_NOTE_UNFIT(GP_REALLOC_NODE, galloc, node, node, -1, &node_alloc->dst)",
    ),
    _unfit(
        "source without room", 16, "src %d (%s) of node %s is not valid",
        "GP_NOTE_UNFIT(GP_REALLOC_SRC, galloc, src, node, j, &node_alloc->src[j])",
    ),
    Edit(
        "buffer that was not to be had",
        f"{_FAILED}ggml_backend_buft_name(galloc->bufts[i]), new_size);\n",
        # Without the second line the allocator would find its layout fit the next time, and write
        # through the buffer that is not there.
        "gp_alloc_note_failure(ggml_backend_buft_name(galloc->bufts[i]), new_size);\n"
        "galloc->n_nodes = galloc->n_leafs = 0;\n" + 16 * " ",
    ),
)  # fmt: skip

_KERNEL = "mul_mat has no kernel for this type on the CPU"

_CPU = (
    Edit(
        "start of the threadpool's definition",
        "// Threadpool def\nstruct ggml_threadpool {\n",
        '#include "worker_guard.h"\n\n',
    ),
    # Both structs are private to this file.
    Edit(
        "end of the threadpool's definition",
        "    enum ggml_status ec;\n};\n",
        "    struct gp_pool gp;\n",
    ),
    Edit(
        "end of a thread's definition",
        "    struct ggml_threadpool * threadpool;\n    int ith;\n};\n",
        "    struct ggml_tensor * gp_node;\n",
    ),
    Edit(
        "threadpool made",
        "        threadpool->poll             = tpp->poll;\n",
        "        threadpool->gp               = (struct gp_pool) {0};\n",
    ),
    # Nobody can be let out of OpenMP's barrier; upstream's own serves there too.
    Edit(
        "OpenMP's barrier",
        "#ifdef GGML_USE_OPENMP\n    #pragma omp barrier\n#else\n",
        "#if 0\n#else\n",
        replace=True,
    ),
    Edit(
        "wait in the barrier",
        "(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {\n",
        "        gp_pool_check(&tp->gp);\n",
        after=True,
    ),
    Edit(
        "a thread's part of a compute",
        "static thread_ret_t ggml_graph_compute_thread(void * data) {\n",
        '#include "worker_hooks.h"\n\nstatic thread_ret_t gp_compute_thread(void * data) {\n',
        replace=True,
    ),
    Edit(
        "next node",
        "        struct ggml_tensor * node = cgraph->nodes[node_n];\n",
        "        state->gp_node = node;\n",
        after=True,
    ),
    Edit(
        "result of a compute",
        "    enum ggml_status ret = threadpool->ec;\n",
        "    void * gp_failure = gp_pool_take(&threadpool->gp);\n",
    ),
    Edit(
        "end of a compute",
        "    return ret;\n}\n\nenum ggml_status ggml_graph_compute_with_ctx(",
        "    gp_pool_raise(gp_failure);\n",
    ),
    # For these types it is NULL; supports_op says yes to them.
    Edit(
        "mul_mat's kernel",
        "    ggml_vec_dot_t const vec_dot      = type_traits_cpu[type].vec_dot;\n",
        f'    GGML_ASSERT(vec_dot != NULL && "{_KERNEL}");\n',
        after=True,
    ),
    Edit(
        "mul_mat_id's kernel",
        "    ggml_vec_dot_t    const vec_dot      = type_traits_cpu[type].vec_dot;\n",
        f'    GGML_ASSERT(vec_dot != NULL && "{_KERNEL}");\n',
        after=True,
    ),
    # A release build would write out of bounds.
    Edit(
        "mul_mat_id's ids",
        16 * " " + "assert(i02 >= 0 && i02 < n_as);\n",
        16 * " " + "GGML_ASSERT(i02 >= 0 && i02 < n_as);\n",
        replace=True,
    ),
)

_OPS = (
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

_INDEX = "        const int r = ((int32_t *) src1->data)[i];\n"


def _get_rows_back(type_: str, next_line: str) -> Edit:
    """Before 0.25.3 a row that is not there was written all the same."""
    text = f"{_INDEX}        GGML_ASSERT(r >= 0 && r < dst->ne[1]);\n\n{next_line}"
    name = f"get_rows_back's rows, {type_}"
    return Edit(name, f"{_INDEX}\n{next_line}", text, replace=True, optional=True)


_CPU_OPS = (
    Edit(
        "end of the includes",
        "static void ggml_compute_forward_dup_same_cont(\n",
        '#include "layout_assert.h"\n\n',
    ),
    _get_rows_back("f32", "        ggml_vec_add_f32(nc,"),
    _get_rows_back("f16", "        for (int j = 0; j < nc; ++j) {\n"),
    # Copies of blocks go out of bounds, or on for ever, where a row is not whole blocks in line.
    Edit(
        "rows of dup",
        "        const size_t rs = ne00 * type_size;\n",
        "        GGML_ASSERT(ggml_blck_size(src0->type) == 1);\n",
    ),
    # Up to 0.15.1 a value of a block type was taken for a block.
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
    # Right for two dimensions only; with more it left the tensor.
    Edit(
        "row of count_equal",
        "        const int64_t i02 = (ir - i03*ne03)            /       ne01;\n",
        "        const int64_t i02 = ir/ne01 % ne02;\n"
        "        const int64_t i01 = ir % ne01;\n",
        until="        const int64_t i01 =  ir - i03*ne03 - i02*ne02;\n",
    ),
    # Vectors are loaded whole.
    Edit(
        "heads of rwkv_wkv7",
        "    const int64_t n_seqs = dst->src[6]->ne[1];\n"
        "    const int64_t head_size = C / HEADS;\n",
        "#if defined(GGML_SIMD)\n    GGML_ASSERT(head_size % GGML_F32_STEP == 0);\n#endif\n",
        after=True,
        optional=True,
    ),
    # As mul_mat's.
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

_CPU_REPACK = (
    # An expert has room for each token once.
    Edit(
        "repacked mul_mat_id's ids",
        20 * " " + "MMID_MATRIX_ROW(i02, matrix_row_counts[i02]) =",
        20 * " " + "GGML_ASSERT(matrix_row_counts[i02] < ne12);\n",
    ),
)

# By path below upstream's src/. native/CMakeLists.txt puts each copy where the original was.
EDITS: dict[str, tuple[Edit, ...]] = {
    "ggml-backend.cpp": _SCHEDULER,
    "ggml-alloc.c": _ALLOCATOR,
    "ggml.c": _OPS,
    "ggml-cpu/ggml-cpu.c": _CPU,
    "ggml-cpu/ops.cpp": _CPU_OPS,
    "ggml-cpu/repack.cpp": _CPU_REPACK,
}


def _find_once(source: str, text: str, name: str, anchor: str) -> int:
    count = text.count(anchor)
    if count != 1:
        raise AnchorError(
            f"anchor '{name}' was found {count} times in {source}, expected exactly once "
            f"(it reads {anchor.strip()!r}). This release changed there: mend "
            "vendor/instrument.py, or build with --pristine to do without instrumentation."
        )
    return text.index(anchor)


def instrument(source: str, text: str) -> str:
    """Returns the instrumented copy of `text`, which is upstream's file `source` (of `EDITS`).

    Raises `AnchorError`, naming the anchor, when one is not found exactly once.
    """
    for edit in EDITS[source]:
        if edit.optional and edit.anchor not in text:
            continue
        start = end = _find_once(source, text, edit.name, edit.anchor)
        if edit.until:
            end = _find_once(source, text, f"end of {edit.name}", edit.until) + len(edit.until)
        elif edit.replace:
            end = start + len(edit.anchor)
        elif edit.after:
            start = end = start + len(edit.anchor)
        text = text[:start] + edit.text + text[end:]
    return text

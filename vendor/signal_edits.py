"""Edits that let a thread leave a kernel (worker_leave.h), notice a thread pool lost in a fork, and
let Ctrl-C interrupt the making of quantization tables (quant_tables.h)."""

from __future__ import annotations

from .edit import Edit

_GONE = "the threads of this pool are in the process that forked this one"
_LOST = "    if (gp_pool_lost(&threadpool->gp)) {\n        return;\n    }\n"

_CPU = (
    Edit(
        "barrier",
        "void ggml_barrier(struct ggml_threadpool * tp) {\n",
        "GP_BARRIER_CODE\n",
    ),
    Edit(
        "threads of a pool",
        "        threadpool->poll             = tpp->poll;\n",
        "        threadpool->gp.forks         = gp_forks();\n",
        after=True,
    ),
    Edit(
        "pool paused",
        "void ggml_threadpool_pause(struct ggml_threadpool * threadpool) {\n",
        _LOST,
        after=True,
    ),
    Edit(
        "pool resumed",
        "void ggml_threadpool_resume(struct ggml_threadpool * threadpool) {\n",
        _LOST,
        after=True,
    ),
    Edit(
        "pool freed",
        "void ggml_threadpool_free(struct ggml_threadpool* threadpool) {\n"
        "    if (!threadpool) return;\n",
        _LOST,
        after=True,
    ),
    Edit(
        "pool of a compute",
        "    struct ggml_threadpool * threadpool = cplan->threadpool;\n",
        f'    GGML_ASSERT((threadpool == NULL || !gp_pool_lost(&threadpool->gp)) && "{_GONE}");\n',
        after=True,
    ),
)

# Without renaming the critical section, the tables would be made inside it, and others need it.
_RENAMED = {
    "ggml_quantize_init": "gp_make_tables",
    "ggml_quantize_free": "gp_drop_tables",
    "ggml_critical_section_start()": "",
    "ggml_critical_section_end()": "",
}

_TABLES = (
    Edit(
        "tables for quantising",
        "void ggml_quantize_init(enum ggml_type type) {\n",
        '#include "quant_tables.h"\n\n'
        "static void gp_make_tables(enum ggml_type type);\n"
        "static void gp_drop_tables(void);\n\n"
        + "".join(f"#define {name} {ours}\n" for name, ours in _RENAMED.items()),
    ),
    Edit(
        "end of the tables for quantising",
        "bool ggml_quantize_requires_imatrix(enum ggml_type type) {\n",
        "".join(f"#undef {name.partition('(')[0]}\n" for name in _RENAMED)
        + """
void ggml_quantize_init(enum ggml_type type) {
    gp_quantize_init(type, gp_make_tables, gp_drop_tables);
}

void ggml_quantize_free(void) {
    gp_quantize_free(gp_drop_tables);
}

""",
    ),
)

# OpenBLAS cannot be interrupted except between two matrix products.
_BLAS = (
    Edit(
        "nodes of BLAS",
        "static enum ggml_status ggml_backend_blas_graph_compute(",
        # Weak: upstream's programs load this library together with their own libggml-base.
        'extern "C" __attribute__((weak)) bool gp_ask_interrupted(void);\n\n',
    ),
    Edit(
        "next node of BLAS",
        "        struct ggml_tensor * node = cgraph->nodes[i];\n",
        "        if (gp_ask_interrupted != nullptr && gp_ask_interrupted()) {\n"
        "            return GGML_STATUS_ABORTED;\n        }\n",
    ),
)

EDITS: dict[str, tuple[Edit, ...]] = {
    "ggml-cpu/ggml-cpu.c": _CPU,
    "ggml.c": _TABLES,
    "ggml-blas/ggml-blas.cpp": _BLAS,
}

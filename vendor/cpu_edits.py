"""Edits that make the CPU backend report how it computes nodes (``native/cpu_trace.h``)."""

from __future__ import annotations

from .edit import Edit

CPU = (
    Edit("graph planned", "struct ggml_cplan ggml_graph_plan(\n", '#include "cpu_hooks.h"\n\n'),
    Edit(
        "start of planning nodes",
        "    int max_tasks = 1;\n",
        "    struct gp_cpu_record * const gp_records = gp_cpu_asked;\n",
    ),
    Edit(
        "node planned",
        "        work_size = MAX(work_size, cur);\n",
        "        if (gp_records != NULL) {\n"
        "            gp_records[i].n_tasks   = n_tasks;\n"
        "            gp_records[i].work_size = cur;\n"
        "        }\n",
    ),
    # Only in releases whose CPU backend fuses. With params NULL the function says what it would
    # do. It runs for each node of a compute. A second caller (cpu_hooks.h) would keep the compiler
    # from inlining it there.
    Edit(
        "nodes fused",
        "static int ggml_cpu_try_fuse_ops(\n",
        "#define GP_CPU_FUSES 1\n\n__attribute__((always_inline)) inline\n",
        optional=True,
    ),
    Edit(
        "RMS_NORM and MUL fused",
        "                ggml_compute_forward_rms_norm_mul_fused(params, node, mul_node);\n",
        "                if (params == NULL) {\n                    return 1;\n                }\n",
        optional=True,
    ),
    Edit(
        "graph computed",
        "enum ggml_status ggml_graph_compute("
        "struct ggml_cgraph * cgraph, struct ggml_cplan * cplan) {\n",
        '#define GP_CPU_READ 1\n#include "cpu_hooks.h"\n\n',
    ),
    Edit(
        "nodes marked that are never written",
        "    GGML_ASSERT(cplan->work_size == 0 || cplan->work_data != NULL);\n",
        "    gp_cpu_mark_fused(cgraph, cplan);\n",
        after=True,
    ),
)

BACKEND = (
    Edit(
        "functions of the CPU's registry",
        "static void * ggml_backend_cpu_get_proc_address("
        "ggml_backend_reg_t reg, const char * name) {\n",
        '#include "cpu_kernels.h"\n\nstatic void * ggml_backend_cpu_get_proc_address('
        "ggml_backend_reg_t reg, const char * name) {\n"
        "    if (void * gp_function = gp_cpu_proc_address(name)) {\n"
        "        return gp_function;\n    }\n",
        replace=True,
    ),
)

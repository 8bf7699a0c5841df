"""Edits for results that share memory with their operands (``native/overlap.h``)."""

from __future__ import annotations

from .edit import Edit

# The allocator reuses the memory of an operand for the result if no later node reads the operand.
# add_id reads each row of b for several rows of the result, in any order, so reusing b's memory
# gave wrong numbers.
ALLOCATOR = (
    Edit(
        "operand whose place is used again",
        "                if (parent == NULL) {\n"
        "                    continue;\n                }\n\n"
        "                // if the node's data is external, then we cannot re-use it\n",
        "                if (node->op == GGML_OP_ADD_ID && i > 0) {\n"
        "                    continue;\n                }\n",
    ),
)

CPU = (
    # A tensor with memory of its own can be read by anyone who has it. A result may be skipped only
    # in a graph's memory, where later nodes overwrite results that are not outputs.
    Edit(
        "rms_norm that may be left out",
        "    if (node->op == GGML_OP_RMS_NORM) {\n        // RMS_NORM + MUL fusion\n",
        "    if (node->op == GGML_OP_RMS_NORM && node->buffer != NULL &&\n"
        "        node->buffer->usage != GGML_BACKEND_BUFFER_USAGE_COMPUTE) {\n"
        "        return 0;\n    }\n",
        optional=True,
    ),
)

# Both ops may share memory with either operand, and wrote the result before reading the other one.
CPU_OPS = (
    Edit(
        "soft_max_back in the place of y",
        "        ggml_vec_cpy_f32  (nc, dx, dy);\n"
        "        ggml_vec_acc1_f32 (nc, dx, -dot_y_dy);\n"
        "        ggml_vec_mul_f32  (nc, dx, dx, y);\n"
        "        ggml_vec_scale_f32(nc, dx, scale);\n",
        "        for (int gp_i = 0; gp_i < nc; gp_i++) {\n"
        "            dx[gp_i] = scale*(dy[gp_i] - dot_y_dy)*y[gp_i];\n        }\n",
        replace=True,
        optional=True,
    ),
    Edit(
        "rms_norm_back in the place of dz",
        "                ggml_vec_cpy_f32  (ne00, dx, x);\n"
        "                // ggml_vec_scale_f32(ne00, dx, -mean_xdz/mean_eps);\n"
        "                ggml_vec_scale_f32(ne00, dx, (float)(-sum_xdz)/sum_eps);\n"
        "                ggml_vec_acc_f32  (ne00, dx, dz);\n"
        "                ggml_vec_scale_f32(ne00, dx, rrms);\n",
        "                for (int64_t gp_i = 0; gp_i < ne00; gp_i++) {\n"
        "                    dx[gp_i] = (dz[gp_i] + x[gp_i]*((float)(-sum_xdz)/sum_eps))*rrms;\n"
        "                }\n",
        replace=True,
        optional=True,
    ),
)

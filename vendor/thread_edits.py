"""Edits for threads: places where upstream must ask `ggml_py/native/pins.h`."""

from __future__ import annotations

from .edit import Edit

CONTEXTS = (
    Edit(
        "new object in a context that is walked",
        "static struct ggml_object * ggml_new_object(struct ggml_context * ctx, "
        "enum ggml_object_type type, size_t size) {\n",
        "    GP_CHECK_CONTEXT(ctx)\n",
        after=True,
    ),
    Edit(
        "pins of ggml.c",
        '#include "ggml-impl.h"\n',
        '#include "pin_hooks.h"\n',
        after=True,
    ),
)

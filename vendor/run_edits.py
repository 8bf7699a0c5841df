"""Edits that make the scheduler report its computes (``native/run_hooks.h``) and the order in which
backends compute their nodes (``native/order_hooks.h``)."""

from __future__ import annotations

from .edit import Edit

# These calls are timed while the scheduler allocates and computes.
_TIMED = {
    "ggml_backend_synchronize(backend)": "gp::wait(sched, backend)",
    "ggml_backend_event_synchronize(event)": "gp::wait_event(sched, event)",
    "ggml_backend_event_wait(backend, event)": "gp::queue_wait(sched, backend, event)",
    "ggml_backend_event_record(event, backend)": "gp::record_event(sched, event, backend)",
    "ggml_backend_tensor_copy(src, dst)": "gp::copy_at_once(sched, src, dst)",
    "ggml_backend_tensor_set_async(...)": "gp::set_async(sched, __VA_ARGS__)",
    "ggml_backend_graph_compute_async(...)": "gp::compute_nodes(sched, __VA_ARGS__)",
    # A struct member: the preprocessor does not expand the macro's own name inside it again.
    "cpy_tensor_async(src_backend, ...)": (
        "cpy_tensor_async(gp::trying(sched, src_backend), __VA_ARGS__)"
    ),
}

_DEFINES = "".join(f"#define {call} {ours}\n" for call, ours in _TIMED.items())
_UNDEFS = "".join(f"#undef {call.partition('(')[0]}\n" for call in _TIMED)

RUNS = (
    Edit(
        "what allocates and computes",
        "static bool ggml_backend_sched_alloc_splits(ggml_backend_sched_t sched) {\n",
        _DEFINES,
    ),
    Edit(
        "start of a compute",
        "static enum ggml_status ggml_backend_sched_compute_splits(ggml_backend_sched_t sched) {\n",
        "    gp::computing gp_recorded(sched);\n    gp::timed_compute gp_compute(sched);\n",
        after=True,
    ),
    Edit(
        "input copied",
        "tensor_copy(input, split_backend_id, sched->cur_copy);\n",
        "    gp::timed_copy gp_copy(sched, split, input);\n",
        after=True,
    ),
    Edit("end of what computes", "void ggml_backend_sched_set_eval_callback(", _UNDEFS),
    # Only in releases that have add_alloc_dep.
    Edit(
        "tensors that backends keep allocated",
        "    // each dep is added to graph_copy as a GGML_OP_NONE node",
        "    GP_ALLOC_DEPS(sched, alloc_deps);\n\n",
        optional=True,
    ),
)

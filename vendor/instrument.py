"""Makes the instrumented copies of upstream's sources.

Upstream's tree is not changed. The copies differ by the edits of `EDITS`, each anchored on text
that is the same in releases 0.9.4 to 0.26.0. The edits call code in ``ggml_py/native``:
``sched_hooks.h`` for the scheduler, ``alloc_hooks.h`` for the graph allocator, ``worker_guard.h``
for the CPU backend's threads. Where upstream uses an index or a shape without checking it, an edit
adds an assertion (``op_checks.h``, ``layout_assert.h``), whose abort becomes an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import alloc_edits, cpu_edits, place_edits, reach_edits, rpc_edits
from .depth_edits import FORWARD
from .edit import AnchorError as AnchorError
from .edit import Edit, Placed, place
from .op_edits import CPU_CHECKS, CPU_OPS, OPS
from .run_edits import RUNS
from .signal_edits import EDITS as SIGNALS
from .thread_edits import CONTEXTS


def _stage(name: str, anchor: str, stage: str) -> Edit:
    text = f"    GP_STAGE(sched, graph, GP_STAGE_{stage});\n"  # native/stages.h
    return Edit(name, f"    // {anchor}", text)


_RESERVE = (
    "ggml_gallocr_reserve_n(sched->galloc, &sched->graph, "
    "sched->node_backend_ids, sched->leaf_backend_ids)"
)

_FREE = "void ggml_backend_buffer_free(ggml_backend_buffer_t buffer) {\n"

# These only note what happens. The recorder of other programs has no others.
_SCHEDULER_NOTES = (
    Edit(
        "disabled SET_CAUSE block",
        "#if 0\n#define GGML_SCHED_MAX_SPLITS_DEBUG 4096\n",
        '#include "sched_trace.cpp"\n',
        until='#define SET_CAUSE(node, ...)\n#define GET_CAUSE(node) ""\n#endif\n',
    ),
    Edit("start of split_graph", "    // pass 1: assign", "    GP_SPLIT_BEGIN(sched, graph);\n"),
    _stage("pass 2", "pass 2:", "PASS_2"),
    _stage("sweep gpu down", "expand gpu down\n", "GPU_DOWN"),
    _stage("sweep gpu up", "expand gpu up\n", "GPU_UP"),
    _stage("sweep rest down", "expand rest down\n", "REST_DOWN"),
    _stage("sweep rest up", "expand rest up\n", "REST_UP"),
    _stage("pass 3", "pass 3: upgrade", "PASS_3"),
    _stage("pass 4", "pass 4: assign", "PASS_4"),
    _stage("pass 5", "pass 5: split", "PASS_5"),
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
    Edit(
        "scheduler made",
        "    sched->op_offload = op_offload;\n",
        "    GP_NEW(sched);\n",
        after=True,
    ),
    Edit(
        "plan made",
        "void ggml_backend_sched_split_graph(ggml_backend_sched_t sched, "
        "struct ggml_cgraph * graph) {\n",
        "    gp::planning gp_planning(sched, graph);\n",
        after=True,
    ),
)

_SCHEDULER_STRUCT = (
    # The struct is private to this file and allocated by calloc, so adding a first member does not
    # change the ABI.
    Edit(
        "scheduler struct",
        "struct ggml_backend_sched {\n",
        "namespace gp { struct trace; }\n\nstruct ggml_backend_sched {\n    gp::trace * trace;\n\n",
        replace=True,
    ),
)

_SCHEDULER_CHECKS = (
    # A buffer that backs arrays stays until the last array is gone, whoever frees the buffer.
    Edit(
        "buffer freed",
        f"{_FREE}    if (buffer == NULL) {{\n",
        f'extern "C" bool gp_buffer_keep(ggml_backend_buffer_t buffer);\n\n{_FREE}'
        "    if (buffer == NULL || gp_buffer_keep(buffer)) {\n",
        replace=True,
    ),
    # Repacked weights cannot be read back: upstream would call NULL.
    Edit(
        "tensor read",
        "    buf->iface.get_tensor(buf, tensor, data, offset, size);\n",
        "    GGML_ASSERT(buf->iface.get_tensor != NULL &&\n"
        '        "this buffer lays tensors out anew and cannot give them back");\n',
    ),
    # A query must not insert. The debug print asks about copies, whose slots would then count as
    # used, hide the copies' causes, and fill up the set. `find` returns FULL or a free slot.
    Edit(
        "backend of a tensor asked for",
        "    int backend_index = tensor_backend_id(node);\n",
        "    int backend_index = gp::slot_backend(sched, node);\n",
        replace=True,
    ),
    # Upstream would not call a layout unexpected that only we refuse (own_layout.h).
    Edit(
        "reallocation that GGML_SCHED_DEBUG_REALLOC ends at",
        "            if (unexpected || sched->debug_realloc > 1) {\n",
        "            if ((unexpected || sched->debug_realloc > 1) &&\n"
        "                !gp_alloc_note_realloc.ours) {\n",
        replace=True,
        optional=True,
    ),
    # Up to 0.23 a failed reservation went on to write through buffers that do not exist.
    Edit(
        "reservation without a check",
        f"        {_RESERVE};\n",
        f"        if (!{_RESERVE}) {{\n            return false;\n        }}\n",
        replace=True,
        optional=True,
    ),
    # Up to 0.9.4 upstream called get_base, which is NULL for a buffer that stands for several.
    Edit(
        "base of several buffers",
        "    if (buffer->size == 0) {\n        return NULL;\n    }\n\n    void * base",
        "    if (buffer->size == 0 || !buffer->iface.get_base) {\n        return NULL;\n    }\n\n"
        "    void * base",
        replace=True,
        optional=True,
    ),
)

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
        "    struct gp_pool GGML_CACHE_ALIGN gp; // threads that wait read it all the time\n",
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
    # No thread can be let out of OpenMP's barrier. Upstream's own barrier works there too.
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
    # vec_dot is NULL for these types, although supports_op accepts them.
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
    # assert() is off in a release build, which would write out of bounds.
    Edit(
        "mul_mat_id's ids",
        16 * " " + "assert(i02 >= 0 && i02 < n_as);\n",
        16 * " " + "GGML_ASSERT(i02 >= 0 && i02 < n_as);\n",
        replace=True,
    ),
)

_CPU_REPACK = (
    # An expert has room for each token only once.
    Edit(
        "repacked mul_mat_id's ids",
        20 * " " + "MMID_MATRIX_ROW(i02, matrix_row_counts[i02]) =",
        20 * " " + "GGML_ASSERT(matrix_row_counts[i02] < ne12);\n",
    ),
    # A tensor that cannot be laid out anew has no traits: upstream would call through NULL.
    Edit(
        "repacked tensor written",
        "    auto OK            = tensor_traits->repack(tensor, data, size);\n",
        "    GGML_ASSERT(tensor_traits != nullptr &&\n"
        '        "this buffer has no layout for tensors of this type and shape");\n',
    ),
)

# `new` aligns to 16 bytes. 64-byte vectors that cross cache lines slow prompts down by 3 to 25 %.
# Who measures for upstream's programs wants that (gp_cpu_work_offset, in cpu_kernels.h).
_CPU_WORK = (
    Edit(
        "room for a compute's work",
        "        cpu_ctx->work_data = new uint8_t[cplan.work_size];\n",
        "        cpu_ctx->work_data = new uint8_t[cplan.work_size + 63 + 64];\n",
        replace=True,
    ),
    Edit(
        "a compute's work",
        "    cplan.work_data = (uint8_t *)cpu_ctx->work_data;\n",
        "    extern size_t gp_cpu_work_offset;\n"
        "    cplan.work_data = cpu_ctx->work_data + (-(uintptr_t) cpu_ctx->work_data & 63)\n"
        "        + gp_cpu_work_offset;\n",
        replace=True,
    ),
)

_TRAINING = (
    # Before 0.18 the copy of a static graph, 750 KB, was never freed.
    Edit(
        "end of an optimizer context",
        "    ggml_free(opt_ctx->ctx_cpu);\n    delete opt_ctx;\n",
        "    ggml_free(opt_ctx->ctx_copy);\n",
        optional=True,
    ),
)

# By path below upstream's src/. native/CMakeLists.txt puts each copy where the original was.
EDITS: dict[str, tuple[Edit, ...]] = {
    "ggml-backend.cpp": (
        *_SCHEDULER_STRUCT, *_SCHEDULER_NOTES, *_SCHEDULER_CHECKS, *RUNS, *reach_edits.SCHEDULER,
    ),
    "ggml-alloc.c": (
        *alloc_edits.NOTES, *alloc_edits.CHECKS, *rpc_edits.ALLOCATOR, *place_edits.ALLOCATOR,
    ),
    "ggml.c": (*OPS, *FORWARD, *CONTEXTS),
    "ggml-opt.cpp": _TRAINING,
    "ggml-cpu/ggml-cpu.c": (
        *_CPU, *cpu_edits.CPU, *reach_edits.CPU, *place_edits.CPU, *CPU_CHECKS,
    ),
    "ggml-cpu/ggml-cpu.cpp": _CPU_WORK + cpu_edits.BACKEND,
    "ggml-cpu/ops.cpp": CPU_OPS + place_edits.CPU_OPS,
    "ggml-cpu/repack.cpp": _CPU_REPACK,
    "ggml-rpc/ggml-rpc.cpp": rpc_edits.CLIENT,
    "ggml-rpc/transport.cpp": rpc_edits.TRANSPORT,
}
# Of the library that is put in front of another program's ggml (recorder.py).
RECORDER_EDITS = {
    "ggml-backend.cpp": _SCHEDULER_NOTES + RUNS,
    "ggml-alloc.c": alloc_edits.NOTES,
}
for _source, _edits in SIGNALS.items():
    EDITS[_source] = EDITS.get(_source, ()) + _edits


def _unedited(src: Path) -> tuple[str, ...]:
    """The files of `EDITS` that are left as they are in this release."""
    client = src / rpc_edits.CLIENT_FILE
    edited = client.is_file() and rpc_edits.SIGN in client.read_text(encoding="utf-8")
    return () if edited else rpc_edits.FILES


def instrumented(
    src: Path, edits: Mapping[str, tuple[Edit, ...]] | None = None
) -> tuple[dict[str, str], list[Placed]]:
    """The edited text of each file below `src` that an edit changed, and what became of each edit:
    of `EDITS`, or those given. Writes nothing, and goes on after an anchor that is missing."""
    left = _unedited(src)
    given = EDITS if edits is None else edits
    texts: dict[str, str] = {}
    placed: list[Placed] = []
    for source, those in given.items():
        if source in left:
            continue
        if (src / source).is_file():
            texts[source] = (src / source).read_text(encoding="utf-8")
        placed += [place(source, edit, texts) for edit in those]
    changed = {one.source for one in placed if one.made}
    return {file: text for file, text in texts.items() if file in changed}, placed


def absent(src: Path) -> list[str]:
    """The edits whose anchors this release's `src` folder lacks, as "file: edit"."""
    left, found = _unedited(src), []
    for source, edits in EDITS.items():
        if source in left:
            found.append(f"{source}: all")
            continue
        path = src / source
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found += [f"{source}: {e.name}" for e in edits if e.optional and e.anchor not in text]
    return found


def missing(placed: list[Placed]) -> str:
    """The message about the first edit that had to be made and was not; "" if there is none."""
    wrong = [one for one in placed if one.wrong]
    if not wrong:
        return ""
    more = f" ({len(wrong) - 1} more are missing)" if len(wrong) > 1 else ""
    return f"{wrong[0].wrong}{more}. {REMEDY}"


REMEDY = (
    "This release changed the text: fix vendor/instrument.py, or build with --pristine to do "
    "without instrumentation."
)


def instrument(source: str, text: str, edits: tuple[Edit, ...] | None = None) -> str:
    """Returns the instrumented copy of `text`, which is upstream's file `source` (in `EDITS`, or
    edited by `edits`).

    Raises `AnchorError`, naming the anchor, if an anchor is not found exactly once.
    """
    texts = {source: text}
    placed = [
        place(source, edit, texts)
        for edit in (EDITS[source] if edits is None else edits)
    ]
    if said := missing(placed):
        raise AnchorError(said)
    return texts[source]

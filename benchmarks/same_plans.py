"""Why `rule_mutants.py` notices some of its changes nowhere.

Kinds of reasons:

- "same": plans are the same for any graph.
- "undefined": the change reads or writes outside of an array.
- "refused": plans differ only for graphs that upstream refuses.
- "unseen": no graph shows the difference on the devices here.

A row covers a change if all words of the row are in the change's text or in the lines around it
(`told`). A row is an error if it covers a noticed change, or no change.
"""

from __future__ import annotations

from typing import NamedTuple

from c_mutants import Mutant


class Reason(NamedTuple):
    """Why changes of a function are not noticed."""

    kind: str
    why: str
    function: str
    rows: tuple[tuple[str, ...], ...]


def told(mutant: Mutant) -> str:
    """A change in words, with the lines around it."""
    was, now = (" ".join(text.split()) for text in (mutant.site.text, mutant.text))
    return f"{mutant.how}: {was} → {now or '(nothing)'} @ {mutant.near}"


def reasons_of(mutant: Mutant) -> list[Reason]:
    """The reasons that cover a change."""
    text = told(mutant)
    return [
        one
        for one in REASONS
        if mutant.site.function == one.function
        and any(all(words in text for words in row) for row in one.rows)
    ]


_SCHED, _SPLIT = "ggml_backend_sched_", "ggml_backend_sched_split_graph"
_ALLOC, _RESERVE = "ggml_gallocr_allocate_node", "ggml_gallocr_reserve_n_impl"
_SAME, _UNDEFINED, _REFUSED, _UNSEEN = "same", "undefined", "refused", "unseen"

REASONS = (
    # --- the scheduler
    Reason(
        _SAME,
        "backend_from_buffer has looked at the view source's buffer, for the same op; asked for "
        "the view source, it looks at that buffer again",
        f"{_SCHED}backend_id_from_cur",
        (("dropped: cur_backend_id", "(sched, tensor->view_src, tensor)"),),
    ),
    Reason(
        _REFUSED,
        "a tensor in memory that no device can use ends the process here, or later",
        f"{_SCHED}backend_id_from_cur",
        (("without tensor->buffer:",), ("without (tensor->view_src && tensor->view_src->b",)),
    ),
    Reason(
        _SAME,
        "n_splits is set again before it is read",
        _SPLIT,
        (("dropped: sched->n_splits = 0",), ("0 is 1: sched->n_splits = 0",)),
    ),
    Reason(
        _SAME,
        "the number of inputs that a backend reads is compared with other backends' only, and each "
        "has one more",
        _SPLIT,
        (("0 is 1: 0 → 1", "» int n_supported = 0;"),),
    ),
    Reason(
        _SAME,
        "the loop goes on without deciding: it sets what it has set, or its condition is false",
        _SPLIT,
        (
            ("dropped: break", "supported = false;"),
            ("dropped: break", "need_new_split = true;"),
            ("dropped: break", 'SET_CAUSE(node, "3.upg");'),
        ),
    ),
    Reason(
        _SAME,
        "no tensor is on no backend, so that this stays -1; the loop behind it places the node and "
        "sets its cause",
        _SPLIT,
        (("without node->view_src != NULL:",),),
    ),
    Reason(
        _UNDEFINED,
        "the loop ends at the first backend that supports the node; if none does, upstream's next "
        "assertion fails, and the change reads past the backends",
        _SPLIT,
        (
            ("without b < sched->n_backends:", "*cur_backend_id == -1"),
            ("< is <=: b < sched->n_backends && *cur_backend_id == -1",),
        ),
    ),
    Reason(
        _SAME,
        "the first split begins at 0: the table was cleared, and nothing else is written there",
        _SPLIT,
        (("dropped: split->i_start = 0",),),
    ),
    Reason(
        _SAME,
        "a node on another backend begins a split anyway",
        _SPLIT,
        (("without node_backend_id == cur_backend_id:",),),
    ),
    Reason(
        _UNSEEN,
        "a backend reads its own memory (ggml_backend_sched_new asserts it). Only a pin to a "
        "device that cannot read the tensor's memory differs, and set_tensor_backend refuses it",
        _SPLIT,
        (("without src_backend_id != cur_backend_id:",),),
    ),
    Reason(
        _SAME,
        "a table that is larger than needed, or allocated again with its size",
        _SPLIT,
        (
            ("2 is 3: sched->splits_capacity *= 2",),
            ("2 is 3: std::max(graph->n_nodes, graph->n_leafs)",),
            ("< is <=: sched->graph.size < graph_size",),
            ("dropped: sched->graph.size = graph_size",),
        ),
    ),
    Reason(
        _SAME,
        "a scheduler has 1 copy, or GGML_SCHED_MAX_COPIES = 4",
        _SPLIT,
        (("1 is 2: sched->n_copies > 1",),),
    ),
    Reason(
        _SAME,
        "it only prints the plan, with GGML_SCHED_DEBUG, or compares sizes for "
        "GGML_SCHED_DEBUG_REALLOC",
        _SPLIT,
        (
            ("negated: sched->debug →",),
            ("dropped: ggml_backend_sched_print_assignments",),
            ("dropped: sched->debug_prev_graph_size",),
            ("dropped: sched->debug_graph_size",),
        ),
    ),
    Reason(
        _SAME,
        "all copies of a tensor are made in one loop",
        _SPLIT,
        (("0 is 1: tensor_id_copy(leaf_id, leaf_backend_id, 0) == NULL",),),
    ),
    Reason(
        _UNDEFINED,
        "it writes one pointer past the table",
        _SPLIT,
        ((">= is >: n_graph_inputs >= sched->graph_inputs_capacity",),),
    ),
    Reason(
        _UNDEFINED,
        "one slot more of the table of splits is read or written: it makes an array larger, or "
        "gets an id that is never read. In a full table it is outside",
        _SPLIT,
        (
            ("< is <=: i < sched->n_splits", "total_inputs"),
            ("< is <=: i < sched->n_splits", "set ids for all splits"),
        ),
    ),
    Reason(
        _SAME,
        "in an empty table nothing is found",
        _SPLIT,
        (("dropped: continue", "alloc_deps.empty()"),),
    ),
    Reason(
        _UNDEFINED,
        "it writes past a node's sources",
        _SPLIT,
        (("without s < GGML_MAX_SRC:",), ("→ s <= GGML_MAX_SRC",)),
    ),
    Reason(
        _SAME,
        "one backend has one buffer type",
        f"{_SCHED}alloc_splits",
        (("without sched->node_backend_ids[i] !=",), ("without sched->leaf_backend_ids[i] !=",)),
    ),
    Reason(
        _SAME,
        "the rest of the loop can only set what is set",
        f"{_SCHED}alloc_splits",
        (("dropped: break", "backend_ids_changed = true;"),),
    ),
    Reason(
        _SAME,
        "it only ends the process, with GGML_SCHED_DEBUG_REALLOC",
        f"{_SCHED}alloc_splits",
        (("0 is 1: sched->debug_realloc > 0",), ("sched->debug_prev_graph_size ==",)),
    ),
    Reason(
        _SAME,
        "the graph was laid out by the line before, so that it fits",
        f"{_SCHED}alloc_splits",
        (("false is true: false → true", "failed to allocate graph"),),
    ),
    Reason(
        _SAME,
        "what a compute copies is in memory",
        f"{_SCHED}is_host_weight",
        (("without t->buffer != NULL:",),),
    ),
    Reason(
        _SAME,
        "the size of one element is that of another; a reset after a reset changes nothing",
        f"{_SCHED}reset",
        (
            ("0 is 1: memset(sched->hv_tensor_backend_ids",),
            ("dropped: sched->is_reset = true",),
            ("true is false: sched->is_reset = true",),
        ),
    ),
    Reason(
        _SAME,
        "a reset after a reset changes nothing",
        f"{_SCHED}graph_compute_async",
        (("without !sched->is_reset:",),),
    ),
    # --- the allocator of offsets
    Reason(
        _SAME,
        "no free block begins where another does",
        "ggml_dyn_tallocr_insert_block",
        (("< is <=", "chunk->free_blocks[insert_pos].offset <= offset"),),
    ),
    Reason(
        _UNDEFINED,
        "it copies blocks behind the last, which are not read; a full table it leaves",
        "ggml_dyn_tallocr_remove_block",
        (("< is <=: i < chunk->n_free_blocks - 1",), ("- is +: i < chunk->n_free_blocks - 1",)),
    ),
    Reason(
        _SAME,
        "the last chunk is endless, so that no more is asked for; calloc has set zeros",
        "ggml_dyn_tallocr_new_chunk",
        (
            (">= is >: alloc->n_chunks >=",),
            ("1 is 2: calloc(1,",),
            ("dropped: chunk->free_blocks[0].offset = 0",),
            ("→ chunk->free_blocks[1].offset = 0",),
            ("2 is 3: chunk->free_blocks[0].size = SIZE_MAX/2",),
        ),
    ),
    Reason(
        _SAME,
        "only a message has max_avail",
        "ggml_dyn_tallocr_alloc",
        (
            ("0 is 1: 0 → 1", "» size_t max_avail = 0;"),
            ("dropped: max_avail =",),
            ("MAX is MIN: max_avail =",),
        ),
    ),
    Reason(
        _UNDEFINED,
        "it reads before the first block of a full chunk",
        "ggml_dyn_tallocr_alloc",
        (("> is >=: chunk->n_free_blocks > 0",),),
    ),
    Reason(
        _SAME,
        "a block that ends where the freed bytes begin was found one round before, by the first "
        "condition of the loop: nothing here is ever true",
        "ggml_dyn_tallocr_free_bytes",
        (
            ("negated: i > 0",),
            ("0 is 1: i > 0",),
            ("- is +: &chunk->free_blocks[i-1]",),
            ("+ is -: prev->offset + prev->size == block->offset",),
            ("dropped: prev->size += block->size",),
            ("+= is -=: prev->size += block->size",),
            ("dropped: ggml_dyn_tallocr_remove_block(chunk, i) ",),
        ),
    ),
    Reason(
        _UNDEFINED,
        "it reads before the first block",
        "ggml_dyn_tallocr_free_bytes",
        (("> is >=: i > 0",), ("1 is 2: &chunk->free_blocks[i-1]",)),
    ),
    Reason(
        _SAME,
        "a new chunk takes the place of the old one, whose memory is lost",
        "ggml_dyn_tallocr_reset",
        (("0 is 1: 0 → 1",), ("one less: i < GGML_VBUFFER_MAX_CHUNKS",)),
    ),
    Reason(
        _SAME,
        "it is asked of chunks that there are",
        "ggml_dyn_tallocr_max_size",
        (("< is <=: chunk < alloc->n_chunks",), ("0 is 1: chunk < alloc->n_chunks",)),
    ),
    # --- the allocator of buffers and tensors
    Reason(
        _SAME,
        "a chunk has more than one byte",
        "ggml_vbuffer_chunk_size",
        (("0 is 1:",),),
    ),
    Reason(_SAME, "more zeros", "ggml_vbuffer_alloc", (("1 is 2:", "calloc(1,"),)),
    Reason(
        _SAME,
        "more zeros; they are zeros already; all of one buffer type have one allocator",
        "ggml_gallocr_new_n",
        (("1 is 2:", "calloc(1,"), ("dropped: galloc->buffers[i] = NULL",), ("dropped: break",)),
    ),
    Reason(
        _UNSEEN,
        "an operand and a result of one layout have one size, except on a device that keeps "
        "room behind the result of some ops (Metal). No simulated device does",
        "ggml_gallocr_free_extra_space",
        (
            ("dropped: parent_size = aligned_offset",),
            ("dropped: p_addr.offset +=",),
            ("+= is -=: p_addr.offset +=",),
            ("- is +: parent_size - node_size",),
            ("dropped: ggml_dyn_tallocr_free_bytes",),
        ),
    ),
    Reason(
        _UNSEEN,
        "an operand and a result of one layout have one size, except on a device that keeps "
        "room behind the result of some ops (Metal). No simulated device does",
        _ALLOC,
        (("dropped: ggml_gallocr_free_extra_space(galloc, node, parent)",),),
    ),
    Reason(
        _SAME,
        "nothing is allocated for no tensor, so that the next condition goes on",
        _ALLOC,
        (("dropped: continue", "if (parent == NULL) {"),),
    ),
    Reason(
        _SAME,
        "nothing is ever allocated for a view (the first line of the function), so that a view has "
        "gone on before as not allocated here",
        _ALLOC,
        (
            ("without parent->view_src->flags &",),
            ("negated parent->view_src->flags &",),
            ("without (parent->view_src != NULL &&",),
            ("view_src_hn->n_views == 1 && view_src_hn->n_children == 0 && view_src->data", "if ("),
            ("dropped: hn->buffer_id = p_hn->buffer_id", "assert(view_src_hn"),
            ("dropped: hn->addr = p_hn->addr", "view_src_hn->allocated = false"),
            ("p_hn->allocated = false", "view_src_hn->allocated = false"),
            ("dropped: ggml_gallocr_free_extra_space(galloc, node, view_src)",),
            ("dropped: return", "ggml_gallocr_free_extra_space(galloc, node, view_src);"),
        ),
    ),
    Reason(
        _SAME,
        "a tensor is freed when nothing will read it any more, so that nothing asks",
        "ggml_gallocr_free_node",
        (("dropped: hn->allocated = false",), ("false is true: hn->allocated = false",)),
    ),
    Reason(
        _SAME,
        "a source is a leaf or a node before its reader: it has its place by then",
        "ggml_gallocr_alloc_graph_impl",
        (
            ("dropped: ggml_gallocr_allocate_node(galloc, src,",),
            ("dropped: ggml_gallocr_allocate_node(galloc, parent, buffer_id)",),
            ("0 is 1: 0 → 1", "allocate parents (only leafs"),
            ("one less: j < GGML_MAX_SRC", "allocate parents (only leafs"),
        ),
    ),
    Reason(
        _SAME,
        "a table that is larger or smaller, and large enough; or made again with its size",
        _RESERVE,
        (
            ("dropped: min_hash_size += min_hash_size / 4",),
            ("4 is 5: min_hash_size += min_hash_size / 4",),
            ("< is <=: galloc->hash_set.size < min_hash_size",),
            ("< is <=: galloc->n_nodes < graph->n_nodes",),
            ("< is <=: galloc->n_leafs < graph->n_leafs",),
            ("0 is 1: galloc->leaf_allocs = calloc",),
        ),
    ),
    Reason(
        _SAME,
        "with buffer -1 neither the place nor the size is read; a size is at least 0",
        _RESERVE,
        (
            ("dropped: node_alloc->dst.addr = GGML_BUFFER_ADDRESS_INVALID",),
            ("dropped: node_alloc->dst.size_max = 0",),
            ("dropped: node_alloc->src[j].addr = GGML_BUFFER_ADDRESS_INVALID",),
            ("dropped: node_alloc->src[j].size_max = 0",),
            ("leaf.addr = GGML_BUFFER_ADDRESS_INVALID →",),
            ("dropped: galloc->leaf_allocs[i].leaf.size_max = 0",),
            ("0 is 1: galloc->leaf_allocs[i].leaf.size_max = 0",),
        ),
    ),
    Reason(
        _SAME,
        "a source has got its memory as a leaf or a node before its place is looked at; the size "
        "of a leaf is never read; a view's place is not used",
        _RESERVE,
        (
            ("dropped: node_alloc->src[j].addr = hn->addr",),
            ("dropped: galloc->leaf_allocs[i].leaf.size_max = ggml_backend_buft_get_alloc_size",),
            ("without leaf->view_src:",),
        ),
    ),
    Reason(
        _UNDEFINED,
        "it is read only for a leaf that has lost its memory since and that nothing reads: "
        "upstream then takes the buffer before the first",
        _RESERVE,
        (("without leaf->data:",), ("dropped: galloc->leaf_allocs[i].leaf.buffer_id = -1",)),
    ),
    Reason(
        _SAME,
        "all backends with one allocator have one buffer; a missing chunk is made either way",
        _RESERVE,
        (
            ("dropped: break", "galloc->buffers[i] = galloc->buffers[j];"),
            ("0 is 1: galloc->buffers[i] ? ggml_vbuffer_chunk_size",),
        ),
    ),
    Reason(
        _UNDEFINED,
        "a chunk that is not there needs 0 bytes; with 16 chunks it is outside of the table",
        _RESERVE,
        (("< is <=: c < galloc->buf_tallocs[i]->n_chunks",),),
    ),
    Reason(
        _UNSEEN,
        "an edit of ours beside it has set it already: without the edit it would point to freed "
        "memory",
        _RESERVE,
        (("dropped: galloc->buffers[i] = NULL", "if (no_alloc)"),),
    ),
    Reason(
        _SAME,
        "nothing follows in the function",
        "ggml_gallocr_init_tensor",
        (
            ("negated: tensor->buffer == NULL", "} else {"),
            ("== is !=: tensor->buffer == NULL", "} else {"),
            ("dropped: return", "return; } }"),
        ),
    ),
    Reason(
        _UNSEEN,
        "no simulated device has anything to reset in a buffer",
        "ggml_gallocr_alloc_graph",
        (
            ("negated: i < galloc->n_buffers",),
            ("0 is 1: 0 → 1", "// reset buffers"),
            ("galloc->buffers[i] != NULL →",),
            ("dropped: ggml_vbuffer_reset",),
        ),
    ),
    Reason(
        _SAME,
        "a source has got its memory as a leaf or a node before its reader",
        "ggml_gallocr_alloc_graph",
        (
            ("0 is 1: 0 → 1", "» for (int j = 0; j < GGML_MAX_SRC; j++)"),
            ("one less: j < GGML_MAX_SRC", "node_alloc = &galloc->node_allocs[i];"),
            ("dropped: ggml_gallocr_init_tensor(galloc, src,",),
        ),
    ),
)

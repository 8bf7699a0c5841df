"""The changes of upstream's scheduler that `rule_mutants.py` makes and no graph can show, by
function, with the reason, and those that the cases do not show."""

from __future__ import annotations

# (function, pattern of `str(Mutant)`): why nothing can be seen.
SAME = {
    ("backend_id_from_cur", r"view_src, tensor\) → \(nothing\)|== is|!= is ==: cur_backend_id"):
        "backend_from_buffer already looks at the view source, so this second look finds nothing",
    ("backend_id_from_cur", r"without (tensor->buffer|\(tensor->view_src)"):
        "whatever is in memory is both: its own buffer, or its view source's, which it has too",
    ("buffer_supported", r"without t->view_src"):
        "the hash set has a slot for no tensor, which has no backend either",
    ("buffer_supported", r"without buft != NULL"): "supports_buft says no to no buffer type",
    ("split_graph", r"n_splits = |i_start = 0"):
        "set again before it is read; split 0 always begins at 0",
    ("split_graph", r"view_src != NULL && \*cur_backend_id == -1"):
        "a node without a view source and a backend has none to take; the next lines place it",
    ("split_graph", r"dropped: \*src_backend_id = tensor_backend_id\(src->view_src\)"):
        "views are nodes that come before their readers and have a backend by then",
    ("split_graph", r"b < sched->n_backends && |b <= sched->n_backends"):
        "no backend supports the op: it aborts, or reads past the backends",
    ("split_graph", r"line 1377 .*GGML_MAX_SRC - 1"):
        "the tenth source alone would have to decide between two backends",
    ("split_graph", r"line 1376 |0 is 1: 0 → 1.*n_supported"):
        "one more for each backend",
    ("split_graph", r"without (node_backend_id == cur|src_backend_id != cur)"):
        "a new split begins anyway; a backend reads what it has itself",
    ("split_graph", r"dropped: break"): "the rest of the loop finds the same",
    ("split_graph", r"splits_capacity \*= 2"): "a larger table",
    ("split_graph", r"n_copies > 1 → sched->n_copies > 2"): "n_copies is 1 or 4",
    ("split_graph", r"sched->debug|print_assignments|debug_(prev_)?graph_size"): "debug settings",
    ("split_graph", r"tensor_id_copy\(leaf_id, leaf_backend_id, [01]\)"):
        "all copies of a tensor are made together",
    ("split_graph", r"graph_size|graph\.size|total_inputs \* [23]"): "a larger or newer array",
    ("split_graph", r"n_dep_nodes \+= "): "the array has room for more",
    ("split_graph", r"dropped: continue"): "without what is kept, nothing is found",
    ("split_graph", r"k < keep.size\(\) - 1|without s < GGML_MAX_SRC|s <= GGML_MAX_SRC"):
        "needs 11 tensors that are kept until one node, or reads past a node's sources",
    ("alloc_splits", r"debug_realloc|debug_prev|!backend_ids_changed"): "debug settings",
    ("alloc_splits", r"dropped: break"): "the rest of the loop finds the same",
    ("alloc_splits", r"without sched->(node|leaf)_backend_ids\[i\] != "):
        "the same backend has the same buffer type",
    ("alloc_splits", r"false is true: false"): "the allocator was asked for the same before",
    ("is_host_weight", r"without t->buffer != NULL"): "weights are in memory",
    ("reset", r"is_reset|0 is 1: memset"): "a second reset changes nothing; the size of an element",
    ("compute_async", r""): "our calls give memory before they compute",
    ("insert_block", r"<|without"): "no block begins where another does",
    ("remove_block", r""): "copies of blocks past the last",
    ("new_chunk", r"calloc|offset = 0|>= is >|SIZE_MAX"): "zeros; the last is endless",
    ("dyn_tallocr_alloc", r"max_avail|line 209 |n_free_blocks >= 0"): "a message has it",
    ("free_bytes", r"n_free_blocks - 1|i >=? [01]|free_blocks\[i-|prev->|remove_block\(chunk, i\)"):
        "a block that ends where this one begins was found before it",
    ("dyn_tallocr_reset", r""): "a new chunk takes the place; memory is lost or freed twice",
    ("max_size", r""): "it is asked of chunks that there are",
    ("chunk_size", r"0 is 1"): "a chunk that is not there is larger than nothing all the same",
    ("vbuffer_alloc", r"calloc"): "more zeros",
    ("new_n", r"calloc|= NULL|break"): "zeros already; more zeros",
    ("free_extra_space", r""): "what has the same layout has the same size on these devices",
    ("allocate_node", r"view_src|p_hn|hn->buffer_id|free_extra_space"):
        "views own no memory, so that the check before goes on to the next source",
    ("split_graph", r"n_graph_inputs > sched->graph_inputs_capacity"):
        "one write past the table, which was allocated with more than it says",
    ("allocate_node", r"ADD_ID|line 64[58] .*continue"): "an edit of ours, not upstream's",
    ("allocate_node", r"dropped: return"): "in the branch for views, which is never taken",
    ("alloc_graph_impl", r"dropped: ggml_gallocr_allocate_node"):
        "the scheduler lists all inputs as leafs, which got their memory before",
    ("reserve_n_impl", r"hash_size|calloc"): "a smaller or larger table",
    ("reserve_n_impl", r"<="): "an array that is made anew, or reads past the end",
    ("reserve_n_impl", r"without (node|src|leaf)->(view_src|data)|size_max = |BUFFER_ADDRESS_INVALID"  # noqa: E501
                       r"|buffer_id = -1|allocs\[i\]|src\[j\]\.addr"):
        "of tensors that have memory of their own, whose place is never looked up, or of sources "
        "that got theirs as nodes or leafs",
    ("reserve_n_impl", r"dropped: break|: 0 is 1: galloc->buffers|new_size|buffers\[i\] = NULL"
                       r"|n_leafs = "):
        "the rest of the loop finds the same, or only a message and a failure show it",
    ("init_tensor", r"return|tensor->buffer"): "nothing follows; all tensors are with a backend",
    ("needs_realloc", r""): "another check of the same graph finds it",
    ("gallocr_alloc_graph", r"buffers|vbuffer_reset"): "no device here has anything to reset",
    ("gallocr_alloc_graph", r"init_tensor|0 is 1: 0|GGML_MAX_SRC"):
        "sources got their memory as nodes or leafs",
    ("gallocr_alloc_graph", r"false is true"): "it fails where it is used",
    ("free_node", r"allocated = false"): "what is free is not asked again",
}  # fmt: skip
# What happens, and is not looked at.
UNSEEN = {
    ("split_graph", r"uid"): "uids serve caches of the backends",
    ("split_graph", r"node_backend_ids\[graph_copy->n_nodes\]"): "of nodes that get no memory",
    ("split_graph|alloc_splits", r"<=|0 is 1|negated: i <"): "reads past the end of an array",
    ("is_allocated", r""): "graphs that are made again have both, a buffer and an address",
    ("vbuffer_alloc", r"set_usage"): "the usage of compute buffers",
    ("reserve_n_impl", r"0 is 1: 0"): "the first buffer is reset and made by others",
    ("alloc_graph_impl", r"0 is 1: 0|GGML_MAX_SRC - 1"): "parents are leafs or nodes with memory",
    ("sched_reserve", r"synchronize"): "waits before anything was computed",
}  # fmt: skip

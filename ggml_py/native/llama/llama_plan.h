// What a plan needs of a libllama context that llama.h does not offer: its scheduler, and graphs of given sizes that
// are built and not computed. Works with models without weights (no_alloc).
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a context has decided when it was made, and what libllama reports of it.
struct gpl_context_state {
    bool     flash_attn;        // whether attention is one op
    bool     pipeline_parallel; // whether the scheduler keeps several copies of inputs
    bool     has_memory;        // a KV cache or states; models that only encode have none
    uint32_t n_outputs_max;     // most outputs of one ubatch
    int32_t  n_backends;
    size_t   output_size;       // bytes of the buffer that logits and embeddings are copied to, when the context begins
    ggml_backend_buffer_type_t output_buft; // its type; NULL without one
    uint32_t n_inputs;          // input objects of the graph that was built last, as libllama's log has them,
    uint32_t n_input_tensors;   // and input tensors
};

// Bytes of a context's buffers of one type.
struct gpl_memory {
    ggml_backend_buffer_type_t buft;
    size_t                     model, context, compute;
};

// The tensor that takes most memory of its buffer type, among weights or among the rest (cache, states).
struct gpl_largest {
    const struct ggml_tensor * tensor;
    ggml_backend_buffer_type_t buft;
    size_t                     size; // bytes, with alignment
    bool                       weight;
};

// Split mode "tensor": bytes of a device's part of all weights, and of the tensors with memory that a graph reads, with
// alignment; and the largest part of each.
struct gpl_part {
    size_t weights, others;
    size_t largest_weight, largest_other;
    const struct ggml_tensor * weight;
    const struct ggml_tensor * other;
};

// A graph's size: `n_tokens` new tokens in each of `n_seqs` sequences, which have `n_past` tokens before.
struct gpl_shape {
    uint32_t n_tokens;
    uint32_t n_past;
    uint32_t n_seqs;
    bool     all_outputs; // logits for every token; otherwise for the last one of each sequence
    bool     encode;      // the graph of llama_encode
};

// A fused op that libllama does without, because in a graph that it planned as a probe one node of the op was not on its
// layer's device.
struct gpl_probe_record {
    const char *       name;     // libllama's: "Flash Attention"
    uint32_t           n_tokens; // of the probe's graph, in all sequences
    uint32_t           n_seqs;
    int32_t            node;     // index in the probe's graph
    int32_t            layer;
    ggml_backend_dev_t device_layer, device_fused; // NULL: none
};
struct gpl_probes;

// Around llama_init_from_model: what its probes refused, on this thread.
void gpl_probes_begin(void);
struct gpl_probes * gpl_probes_take(void);
void gpl_probes_free(struct gpl_probes * probes);
size_t gpl_probes_n(const struct gpl_probes * probes);
void gpl_probe_read(const struct gpl_probes * probes, size_t i, struct gpl_probe_record * record);
// The graph of a probe, with libllama's pins, like gpl_build_reserved.
struct ggml_cgraph * gpl_build_probe(struct llama_context * ctx, const struct gpl_probes * probes, size_t i);

void gpl_read_state(const struct llama_context * ctx, struct gpl_context_state * state);
ggml_backend_sched_t gpl_sched(struct llama_context * ctx);
ggml_backend_t gpl_backend(const struct llama_context * ctx, int32_t i);

// Fills at most n rows and returns how many there are. As llama_get_memory_breakdown, but without weights backends that
// share a compute buffer are counted once, as they are with weights.
size_t gpl_read_memory(const struct llama_context * ctx, struct gpl_memory * rows, size_t n);

// Fills at most n rows and returns how many there are: of all weights, and of the tensors with memory that the graph reads.
size_t gpl_read_largest(const struct llama_context * ctx, struct ggml_cgraph * graph, struct gpl_largest * rows, size_t n);

// Fills at most n parts and returns how many devices there are; 0 unless the split mode is "tensor".
size_t gpl_read_parts(const struct llama_context * ctx, struct ggml_cgraph * graph, struct gpl_part * parts, size_t n);

// Whether the scheduler keeps several copies of inputs. libllama goes on without if there is no memory for them.
void gpl_set_pipeline(struct llama_context * ctx, bool on);

// Which accelerators (BLAS and the like) contexts use that are made from now on; libllama uses all there are.
void gpl_use_accelerators(const ggml_backend_dev_t * devices, int32_t n);

// The graph that llama_decode would build for the tokens, in a cache that has `n_past` tokens per sequence. The
// scheduler has libllama's pins afterwards and no graph. The graph is the context's, until it builds another.
// The cache is empty afterwards. NULL if the cache has no room.
struct ggml_cgraph * gpl_build(struct llama_context * ctx, const struct gpl_shape * shape);
// The graph that libllama reserves memory for: a full cache and any tokens. `n_tokens` is the number in all sequences.
struct ggml_cgraph * gpl_build_reserved(struct llama_context * ctx, uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs);
// The eval callback of graphs that are computed from now on; NULL for none. llama.h sets it once, for a new context.
void gpl_set_eval_callback(struct llama_context * ctx, ggml_backend_sched_eval_callback callback, void * user_data);
// Takes the graph away from the scheduler, with its pins.
void gpl_forget(struct llama_context * ctx);

#ifdef __cplusplus
}
#endif

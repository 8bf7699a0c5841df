// C functions for those of upstream's llama-ext.h, which are C++: `gpl_graph_reserve` for `llama_graph_reserve`.
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quantize_state_impl;

// struct llama_quant_model_desc
struct gpl_quant_model_desc {
    const char * architecture;
    uint32_t     n_embd, n_ff, n_layer, n_head, n_head_kv, n_expert, n_embd_head_k, n_embd_head_v;
};

// One row of llama_memory_breakdown: bytes in buffers of one type.
struct gpl_memory_row {
    ggml_backend_buffer_type_t buft;
    size_t                     model, context, compute;
};

struct ggml_cgraph * gpl_graph_reserve(struct llama_context * ctx, uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs);
enum ggml_type gpl_ftype_get_default_type(enum llama_ftype ftype);
struct quantize_state_impl * gpl_quant_init(const struct llama_model * model, const struct llama_model_quantize_params * params);
void gpl_quant_free(struct quantize_state_impl * qs);
struct llama_model * gpl_quant_model_from_metadata(const struct gpl_quant_model_desc * desc);
bool gpl_quant_tensor_allows_quantization(const struct quantize_state_impl * qs, const struct ggml_tensor * tensor);
void gpl_quant_compute_types(struct quantize_state_impl * qs, enum llama_ftype ftype, struct ggml_tensor ** tensors,
    enum ggml_type * result_types, size_t n_tensors);
int32_t gpl_model_n_expert(const struct llama_model * model);
int32_t gpl_model_n_devices(const struct llama_model * model);
ggml_backend_dev_t gpl_model_get_device(const struct llama_model * model, int i);
// Fills at most n rows and returns how many there are.
size_t gpl_get_memory_breakdown(const struct llama_context * ctx, struct gpl_memory_row * rows, size_t n);
void gpl_set_embeddings_nextn(struct llama_context * ctx, bool value, bool masked);
void gpl_set_nextn_layer_offset(struct llama_context * ctx, int32_t offset);
bool gpl_batch_ext_set_decision_order(struct llama_batch_ext * batch, int32_t idx, int32_t order);
float * gpl_get_embeddings_nextn(struct llama_context * ctx);
float * gpl_get_embeddings_nextn_ith(struct llama_context * ctx, int32_t i);
void gpl_set_embeddings_layer_inp(struct llama_context * ctx, uint32_t lid, bool value);
float * gpl_get_embeddings_layer_inp(struct llama_context * ctx, uint32_t lid);
struct llama_context * gpl_get_ctx_other(struct llama_context * ctx);
int32_t gpl_model_dflash_selector_top_k(const struct llama_model * model);
const int32_t * gpl_model_target_layer_ids(const struct llama_model * model);
uint32_t gpl_model_target_layer_ids_n(const struct llama_model * model);
uint32_t gpl_model_get_tok_embd(const struct llama_model * model, float * out);

#ifdef __cplusplus
}
#endif

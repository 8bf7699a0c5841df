// Compiled into libllama.

#include "llama_ext.h"

#include "llama-ext.h"

ggml_cgraph * gpl_graph_reserve(llama_context * ctx, uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs) {
    return llama_graph_reserve(ctx, n_tokens, n_seqs, n_outputs);
}

ggml_type gpl_ftype_get_default_type(llama_ftype ftype) { return llama_ftype_get_default_type(ftype); }

quantize_state_impl * gpl_quant_init(const llama_model * model, const llama_model_quantize_params * params) {
    return llama_quant_init(model, params);
}

void gpl_quant_free(quantize_state_impl * qs) { llama_quant_free(qs); }

llama_model * gpl_quant_model_from_metadata(const gpl_quant_model_desc * desc) {
    llama_quant_model_desc same = {};
    same.architecture  = desc->architecture;
    same.n_embd        = desc->n_embd;
    same.n_ff          = desc->n_ff;
    same.n_layer       = desc->n_layer;
    same.n_head        = desc->n_head;
    same.n_head_kv     = desc->n_head_kv;
    same.n_expert      = desc->n_expert;
    same.n_embd_head_k = desc->n_embd_head_k;
    same.n_embd_head_v = desc->n_embd_head_v;
    return llama_quant_model_from_metadata(&same);
}

bool gpl_quant_tensor_allows_quantization(const quantize_state_impl * qs, const ggml_tensor * tensor) {
    return llama_quant_tensor_allows_quantization(qs, tensor);
}

void gpl_quant_compute_types(
    quantize_state_impl * qs, llama_ftype ftype, ggml_tensor ** tensors, ggml_type * result_types, size_t n_tensors) {
    llama_quant_compute_types(qs, ftype, tensors, result_types, n_tensors);
}

int32_t gpl_model_n_expert(const llama_model * model) { return llama_model_n_expert(model); }
int32_t gpl_model_n_devices(const llama_model * model) { return llama_model_n_devices(model); }

ggml_backend_dev_t gpl_model_get_device(const llama_model * model, int i) { return llama_model_get_device(model, i); }

size_t gpl_get_memory_breakdown(const llama_context * ctx, gpl_memory_row * rows, size_t n) {
    const llama_memory_breakdown found = llama_get_memory_breakdown(ctx);
    size_t i = 0;
    for (const auto & [buft, bytes] : found) {
        if (i < n) {
            rows[i] = {buft, bytes.model, bytes.context, bytes.compute};
        }
        i++;
    }
    return i;
}

void gpl_set_embeddings_nextn(llama_context * ctx, bool value, bool masked) { llama_set_embeddings_nextn(ctx, value, masked); }
void gpl_set_nextn_layer_offset(llama_context * ctx, int32_t offset) { llama_set_nextn_layer_offset(ctx, offset); }

bool gpl_batch_ext_set_decision_order(llama_batch_ext * batch, int32_t idx, int32_t order) {
    return llama_batch_ext_set_decision_order(batch, idx, (llama_decision_order) order);
}

float * gpl_get_embeddings_nextn(llama_context * ctx) { return llama_get_embeddings_nextn(ctx); }
float * gpl_get_embeddings_nextn_ith(llama_context * ctx, int32_t i) { return llama_get_embeddings_nextn_ith(ctx, i); }
void gpl_set_embeddings_layer_inp(llama_context * ctx, uint32_t lid, bool value) { llama_set_embeddings_layer_inp(ctx, lid, value); }
float * gpl_get_embeddings_layer_inp(llama_context * ctx, uint32_t lid) { return llama_get_embeddings_layer_inp(ctx, lid); }
llama_context * gpl_get_ctx_other(llama_context * ctx) { return llama_get_ctx_other(ctx); }
int32_t gpl_model_dflash_selector_top_k(const llama_model * model) { return llama_model_dflash_selector_top_k(model); }
const int32_t * gpl_model_target_layer_ids(const llama_model * model) { return llama_model_target_layer_ids(model); }
uint32_t gpl_model_target_layer_ids_n(const llama_model * model) { return llama_model_target_layer_ids_n(model); }
uint32_t gpl_model_get_tok_embd(const llama_model * model, float * out) { return llama_model_get_tok_embd(model, out); }

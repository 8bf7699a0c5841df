// Compiled into libllama: it uses its internal classes, as llama_context::decode and graph_reserve do.

#include "llama_plan.h"
#include "llama_probe.h"

// A copy of llama-context.h in which gpl_builder is a friend of llama_context (vendor/llama_edits.py).
#include "llama-context.h"

#include "llama-batch.h"
#include "llama-model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

struct gpl_builder {
    llama_context & ctx;

    ggml_cgraph * build(const gpl_shape & shape);
    ggml_cgraph * reserved(uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs);
    ggml_cgraph * probe(const gpl_probe & probe);
    void forget();
    void watch(ggml_backend_sched_eval_callback callback, void * user_data);

    static void state(const llama_context & ctx, gpl_context_state & found);
    static ggml_backend_t backend(const llama_context & ctx, size_t i);
    static llama_memory_breakdown memory(const llama_context & ctx);
    static const llama_model & model(const llama_context & ctx) { return ctx.model; }
    void set_pipeline(bool on);

private:
    void begin(bool batched);
    bool fill(const gpl_shape & shape);
    std::unique_ptr<llama_batch_ext> batch(const gpl_shape & shape, uint32_t first, uint32_t n);
    ggml_cgraph * graph(const llama_ubatch & ubatch, llama_memory_context_i * mctx, llm_graph_type type, uint32_t n_outputs);
};

void gpl_builder::state(const llama_context & ctx, gpl_context_state & found) {
    found.flash_attn        = ctx.cparams.flash_attn;
    found.pipeline_parallel = ctx.cparams.pipeline_parallel;
    found.has_memory        = ctx.memory != nullptr;
    found.n_outputs_max     = ctx.cparams.n_outputs_max;
    found.n_backends        = (int32_t) ctx.backend_ptrs.size();
    ggml_backend_buffer_t output = ctx.buf_output.get();
    found.output_size = output ? ggml_backend_buffer_get_size(output) : 0;
    found.output_buft = output ? ggml_backend_buffer_get_type(output) : nullptr;
    found.n_inputs        = (uint32_t) ctx.get_gf_res_reserve()->inputs.size();
    found.n_input_tensors = ctx.n_input_tensors;
}

void gpl_builder::set_pipeline(bool on) {
    if (ctx.cparams.pipeline_parallel != on) {
        ctx.cparams.pipeline_parallel = on;
        ctx.sched_need_reserve        = true;
        ctx.sched_reserve();
    }
}

ggml_backend_t gpl_builder::backend(const llama_context & ctx, size_t i) {
    return ctx.backend_ptrs.at(i);
}

llama_memory_breakdown gpl_builder::memory(const llama_context & ctx) {
    llama_memory_breakdown found = ctx.memory_breakdown();
    const auto & bufts = ctx.backend_buft;
    for (size_t i = 0; ctx.model.hparams.no_alloc && i < bufts.size(); i++) {
        if (std::find(bufts.begin(), bufts.begin() + i, bufts[i]) != bufts.begin() + i) {
            found[bufts[i]].compute -= ctx.backend_buf_exp_size[i];
        }
    }
    return found;
}

// Nothing of an earlier graph may be used again once the scheduler has been reset. Plans tell how many threads compute.
void gpl_builder::begin(bool batched) {
    ctx.sched_reserve();
    ggml_backend_sched_reset(ctx.sched.get());
    for (auto & res : ctx.gf_res_prev) {
        if (res) {
            res->reset();
        }
    }
    ctx.gf_res_prev_active = nullptr;
    for (const auto & [backend, set] : ctx.set_n_threads_fns) {
        set(backend, batched ? ctx.cparams.n_threads_batch : ctx.cparams.n_threads);
    }
}

void gpl_builder::forget() {
    begin(false);
    ctx.gf_res_reserve->reset();
}

void gpl_builder::watch(ggml_backend_sched_eval_callback callback, void * user_data) {
    ctx.synchronize();
    ctx.cparams.cb_eval           = callback;
    ctx.cparams.cb_eval_user_data = user_data;
    ctx.gf_res_prev_active        = nullptr; // a graph that is used again keeps its callback
}

// Tokens `first` to `first + n` of each sequence. Which tokens they are does not matter for the graph.
std::unique_ptr<llama_batch_ext> gpl_builder::batch(const gpl_shape & shape, uint32_t first, uint32_t n) {
    std::unique_ptr<llama_batch_ext> made(new llama_batch_ext(&ctx));
    for (uint32_t seq = 0; seq < shape.n_seqs; seq++) {
        for (uint32_t i = 0; i < n; i++) {
            const int32_t id = made->add_token((llama_seq_id) seq);
            std::array<llama_pos, GGML_MROPE_SECTIONS> pos;
            pos.fill((llama_pos) (first + i));
            if (id < 0 || !made->set_token_id(id, 0) || !made->set_token_pos(id, pos.data())) {
                throw std::runtime_error("a token was refused");
            }
            made->set_output(id, shape.all_outputs || i + 1 == n);
        }
    }
    return made;
}

// Gives `n_past` tokens of each sequence a place in the cache. Nothing is computed.
bool gpl_builder::fill(const gpl_shape & shape) {
    const uint32_t most = std::max(1u, ctx.cparams.n_batch / shape.n_seqs);
    for (uint32_t done = 0; done < shape.n_past; done += most) {
        auto tokens = batch(shape, done, std::min(most, shape.n_past - done));
        if (!ctx.balloc->init(*tokens, ctx.model.vocab, ctx.cparams.embeddings)) {
            throw std::runtime_error("a batch was refused");
        }
        auto mctx = ctx.memory->init_batch(*ctx.balloc, ctx.cparams.n_ubatch, ctx.cparams.embeddings);
        if (!mctx || mctx->get_status() != LLAMA_MEMORY_STATUS_SUCCESS) {
            return false;
        }
        do {
            mctx->apply();
        } while (mctx->next());
    }
    return true;
}

ggml_cgraph * gpl_builder::graph(
    const llama_ubatch & ubatch, llama_memory_context_i * mctx, llm_graph_type type, uint32_t n_outputs) {
    const auto before = ctx.n_outputs;
    ctx.n_outputs = n_outputs;
    auto * res = ctx.gf_res_reserve.get();
    const auto params = ctx.graph_params(res, ubatch, mctx, type);
    res->reset();
    ggml_cgraph * made = ctx.model.build_graph(params);
    ctx.n_outputs = before;
    return made;
}

ggml_cgraph * gpl_builder::build(const gpl_shape & shape) {
    begin(shape.n_tokens * shape.n_seqs > 1);
    if (!ctx.memory || shape.encode) {
        auto tokens = batch(shape, 0, shape.n_tokens);
        if (!ctx.balloc->init(*tokens, ctx.model.vocab, true)) {
            throw std::runtime_error("a batch was refused");
        }
        const uint32_t n = ctx.balloc->get_n_tokens();
        const llama_ubatch ubatch = ctx.balloc->split_simple(n);
        const bool causal = ctx.cparams.causal_attn;
        ctx.cparams.causal_attn = false; // as llama_context::encode
        ggml_cgraph * made = graph(ubatch, nullptr, LLM_GRAPH_TYPE_ENCODER, n);
        ctx.cparams.causal_attn = causal;
        return made;
    }
    struct emptied {
        llama_memory_i & memory;
        explicit emptied(llama_memory_i & memory) : memory(memory) { memory.clear(false); }
        ~emptied() { memory.clear(false); }
    } during(*ctx.memory);
    if (!fill(shape)) {
        return nullptr;
    }
    auto tokens = batch(shape, shape.n_past, shape.n_tokens);
    const bool all = ctx.cparams.embeddings || shape.all_outputs;
    if (!ctx.balloc->init(*tokens, ctx.model.vocab, ctx.cparams.embeddings)) {
        throw std::runtime_error("a batch was refused");
    }
    auto mctx = ctx.memory->init_batch(*ctx.balloc, ctx.cparams.n_ubatch, ctx.cparams.embeddings);
    if (!mctx || mctx->get_status() != LLAMA_MEMORY_STATUS_SUCCESS || !mctx->apply()) {
        return nullptr;
    }
    const llama_ubatch & ubatch = mctx->get_ubatch();
    uint32_t n_outputs = 0;
    for (uint32_t i = 0; i < ubatch.n_tokens; i++) {
        n_outputs += all || ubatch.output[i] != 0;
    }
    const auto type = ctx.cparams.ctx_type == LLAMA_CONTEXT_TYPE_MTP ? LLM_GRAPH_TYPE_DECODER_MTP : LLM_GRAPH_TYPE_DEFAULT;
    return graph(ubatch, mctx.get(), type, n_outputs);
}

ggml_cgraph * gpl_builder::reserved(uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs) {
    begin(n_tokens > 1);
    llama_memory_context_ptr mctx;
    if (ctx.memory && !(mctx = ctx.memory->init_full())) {
        return nullptr;
    }
    ggml_cgraph * made = ctx.graph_reserve(n_tokens, n_seqs, n_outputs, mctx.get(), true);
    // It has been planned; only its pins are to stay. They are told again by the graph's builder.
    return made;
}

// A probe has the parameters that the context had then: what is fused was decided one op after the other.
ggml_cgraph * gpl_builder::probe(const gpl_probe & probe) {
    struct changed {
        llama_cparams & now;
        llama_cparams   kept;
        changed(llama_cparams & now, const llama_cparams & then) : now(now), kept(now) {
            now                   = then;
            now.cb_eval           = kept.cb_eval;
            now.cb_eval_user_data = kept.cb_eval_user_data;
        }
        ~changed() { now = kept; }
    } during(ctx.cparams, probe.cparams);
    return reserved(probe.n_tokens, probe.n_seqs, probe.n_tokens);
}

void gpl_read_state(const llama_context * ctx, gpl_context_state * state) { gpl_builder::state(*ctx, *state); }

ggml_backend_sched_t gpl_sched(llama_context * ctx) { return ctx->get_sched(); }

ggml_backend_t gpl_backend(const llama_context * ctx, int32_t i) { return gpl_builder::backend(*ctx, (size_t) i); }

size_t gpl_read_memory(const llama_context * ctx, gpl_memory * rows, size_t n) {
    size_t i = 0;
    for (const auto & [buft, bytes] : gpl_builder::memory(*ctx)) {
        if (i < n) {
            rows[i] = {buft, bytes.model, bytes.context, bytes.compute};
        }
        i++;
    }
    return i;
}

namespace {

using tensor_visit = std::function<void(const ggml_tensor * t, bool weight)>;

// All weights, then the tensors with memory that the graph reads, each once.
void each_tensor(const llama_context & ctx, ggml_cgraph * graph, const tensor_visit & visit) {
    for (const auto & [name, t] : gpl_builder::model(ctx).tensors_by_name) {
        if (t->buffer != nullptr) {
            visit(t, true);
        }
    }
    std::set<const ggml_tensor *> seen;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        for (const ggml_tensor * src : ggml_graph_node(graph, i)->src) {
            const ggml_tensor * t = src != nullptr && src->view_src != nullptr ? src->view_src : src;
            if (t != nullptr && t->buffer != nullptr && seen.insert(t).second &&
                ggml_backend_buffer_get_usage(t->buffer) != GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
                visit(t, false);
            }
        }
    }
}

} // namespace

size_t gpl_read_largest(const llama_context * ctx, ggml_cgraph * graph, gpl_largest * rows, size_t n) {
    std::map<std::pair<ggml_backend_buffer_type_t, bool>, gpl_largest> found;
    each_tensor(*ctx, graph, [&](const ggml_tensor * t, bool weight) {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(t->buffer);
        const size_t size = GGML_PAD(ggml_backend_buft_get_alloc_size(buft, t), ggml_backend_buft_get_alignment(buft));
        gpl_largest & most = found[{buft, weight}];
        if (most.tensor == nullptr || size > most.size) {
            most = {t, buft, size, weight};
        }
    });
    size_t i = 0;
    for (const auto & [key, row] : found) {
        if (i < n) {
            rows[i] = row;
        }
        i++;
    }
    return i;
}

size_t gpl_read_parts(const llama_context * ctx, ggml_cgraph * graph, gpl_part * parts, size_t n) {
    const llama_model & model = gpl_builder::model(*ctx);
    if (model.split_mode() != LLAMA_SPLIT_MODE_TENSOR) {
        return 0;
    }
    const size_t n_devices = model.get_split_state_ud.n_devices;
    std::fill_n(parts, n, gpl_part{});
    each_tensor(*ctx, graph, [&](const ggml_tensor * t, bool weight) {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(t->buffer);
        ggml_backend_dev_t dev = ggml_backend_buft_get_device(buft);
        if (dev == nullptr || ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_META) {
            return;
        }
        const auto state = llama_meta_device_get_split_state(t, const_cast<llama_meta_device_get_split_state_userdata *>(&model.get_split_state_ud));
        for (size_t j = 0; j < n_devices && j < n; j++) {
            int64_t ne[GGML_MAX_DIMS];
            std::copy_n(t->ne, GGML_MAX_DIMS, ne);
            if (state.axis >= 0 && state.axis < GGML_MAX_DIMS) {
                ne[state.axis] = 0;
                for (uint32_t s = 0; s < state.n_segments; s++) {
                    ne[state.axis] += state.ne[s * n_devices + j] * state.nr[s];
                }
            }
            const size_t size = GGML_PAD(ggml_row_size(t->type, ne[0]) * ne[1] * ne[2] * ne[3], ggml_backend_buft_get_alignment(buft));
            gpl_part & part = parts[j];
            (weight ? part.weights : part.others) += size;
            if (size > (weight ? part.largest_weight : part.largest_other)) {
                (weight ? part.largest_weight : part.largest_other) = size;
                (weight ? part.weight : part.other)                 = t;
            }
        }
    });
    return n_devices;
}

void gpl_set_pipeline(llama_context * ctx, bool on) { gpl_builder{*ctx}.set_pipeline(on); }

ggml_cgraph * gpl_build(llama_context * ctx, const gpl_shape * shape) { return gpl_builder{*ctx}.build(*shape); }

ggml_cgraph * gpl_build_reserved(llama_context * ctx, uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs) {
    return gpl_builder{*ctx}.reserved(n_tokens, n_seqs, n_outputs);
}

void gpl_set_eval_callback(llama_context * ctx, ggml_backend_sched_eval_callback callback, void * user_data) {
    gpl_builder{*ctx}.watch(callback, user_data);
}

void gpl_forget(llama_context * ctx) { gpl_builder{*ctx}.forget(); }

const gpl_probe & gpl_probe_of(const gpl_probes * probes, size_t i);

ggml_cgraph * gpl_build_probe(llama_context * ctx, const gpl_probes * probes, size_t i) {
    return gpl_builder{*ctx}.probe(gpl_probe_of(probes, i));
}

// The probes of llama_context::resolve_fused_ops, which plans graphs with a fused op and does without the op in the whole
// model if one node of it is not on its layer's device. Called by the edited llama-context.cpp (vendor/llama_edits.py).
#pragma once

#include "llama-cparams.h"

#include "ggml-backend.h"

#include <string>
#include <vector>

// A probe that was refused.
struct gpl_probe {
    std::string        name;         // upstream's: "Flash Attention"
    llama_cparams      cparams;      // of the context, as the graph was built with them
    uint32_t           n_tokens, n_seqs;
    int                node;         // index of the first fused node that was not on its layer's device; -1: not in the graph
    int                layer;
    ggml_backend_dev_t device_layer, device_fused;
};

void gpl_note_probe(gpl_probe probe);

// One more token of one sequence: its cells and all inputs of its graph, written in C, then the compute.
//
// After a compute nothing of the interpreter's is in the processor's caches any more, and what Python does for a
// token takes ten times as long as in a loop. The rules are those of models/cells.py, which does the rest: batches,
// and what is done to sequences.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gp_kv_state {
    GP_KV_UNKNOWN = -2,
};

// Which cell of a cache (of one stream of it) holds the token of which position and sequences. What is derived of
// `pos` and `has` may be unknown (GP_KV_UNKNOWN): ask for it with the functions.
struct gp_kv_cells {
    int32_t * pos;    // [size]; -1 for an empty cell
    uint8_t * has;    // [n_seq][size]: whether the cell is of that sequence
    int32_t * first;  // [n_seq]: the lowest position of a sequence, -1 without one
    int32_t * last;   // [n_seq]: the highest
    int64_t   size;
    int64_t   n_seq;
    int64_t   n_swa;  // tokens of the window, 0 without one
    int64_t   head;   // where the search for free cells begins
    int64_t   n_used; // cells that are not empty
    int64_t   end;    // the last of those and one
};

int32_t gp_kv_first(struct gp_kv_cells * cells, int64_t seq);
int32_t gp_kv_last(struct gp_kv_cells * cells, int64_t seq);
int64_t gp_kv_n_used(struct gp_kv_cells * cells);
int64_t gp_kv_end(struct gp_kv_cells * cells);
// Cells that attention reads when the first `end` are used: more than those, so that a graph lasts.
int64_t gp_kv_padded(int64_t end, int64_t size);
// The cell for the next token, as llama_kv_cache::find_slot finds it; -1 where none is free.
int64_t gp_kv_find(struct gp_kv_cells * cells);
// Gives a cell that gp_kv_find found to the token after the last of a sequence. The keys of the cells are where
// their positions say.
void    gp_kv_put(struct gp_kv_cells * cells, int64_t idx, int64_t seq, int32_t pos);
// mask [n_rows][n_kv], f16 or else f32: for tokens of a sequence at pos [n_rows] 0 where they attend, else -inf.
void    gp_kv_mask(const struct gp_kv_cells * cells, int64_t seq, const int32_t * pos, int64_t n_rows, int64_t n_kv,
    bool f16, void * mask);

// The inputs of a graph that come of one cache; all NULL where no layer reads it.
struct gp_decode_cache {
    struct gp_kv_cells * cells;
    int64_t * k_idxs;   // the token's cell, counted through all streams: `k_base` and more
    int64_t * v_idxs;   // [n_v_idxs]: `v_base` and more, each `v_stride` after the one before
    int64_t   k_base, v_base, n_v_idxs, v_stride;
    void *    mask;     // [n_mask_rows][n_kv]
    int64_t   n_kv, n_mask_rows;
    bool      f16;      // the mask
};

enum gp_decode_refusal {
    GP_DECODE_OTHER  = -1, // the token wants another graph, or there is no room
    GP_DECODE_LOST   = -2, // tensors may have lost their memory: look, then note that as `changes`
};

struct gp_decode_constant {
    void *       data; // an input, which nodes write over
    const void * value;
    size_t       nbytes;
};

struct gp_decode {
    ggml_backend_sched_t       sched;
    struct ggml_cgraph *       graph; // of one token, allocated there
    int32_t *                  inp_tokens;
    int32_t *                  inp_pos;
    int32_t *                  out_ids;
    struct gp_decode_cache     caches[2];
    struct gp_decode_constant  constants[8];
    int32_t                    n_caches, n_constants;
    int32_t                    n_positions; // that the model knows
    int32_t                    only_seq;    // whose stream the caches are of; -1: all sequences are in one
    int32_t                    pos;         // of the token that is computed, or enum gp_decode_refusal
    uint64_t                   changes;     // gp_changes when all tensors of the graph had memory
    const float *              logits;      // [n_vocab]; NULL where the CPU cannot read them
    int64_t                    n_vocab;
    int64_t                    likeliest;   // of the logits, where it was asked for; -1: there is none
};

// The index of the largest of n logits, the lowest of several; -1 where that is not finite, or one is NaN.
int64_t gp_likeliest(const float * logits, int64_t n);
// Computes the graph for `token` after the last of a sequence; returns ggml_status. Nothing is done when `pos` says
// why. Otherwise the caller sets it to GP_DECODE_OTHER, or takes the token back.
int gp_decode_one(struct gp_decode * decode, int32_t token, int64_t seq, bool greedy);

#ifdef __cplusplus
}
#endif

// Decodes one more token of one sequence: writes its cells and all inputs of its graph in C, then computes.
//
// After a compute the processor's caches no longer hold the interpreter, so Python's work for a token takes ten times
// as long as in a loop. The rules are those of models/cache/cells.py, which does the rest: batches, and operations on
// sequences.
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

// The position and the sequences of the token in each cell of a cache (of one stream of it). Values derived from
// `pos` and `has` may be unknown (GP_KV_UNKNOWN): get them with the functions.
struct gp_kv_cells {
    int32_t * pos;    // [size]; -1 for an empty cell
    uint8_t * has;    // [n_seq][size]: whether the cell belongs to the sequence
    int32_t * first;  // [n_seq]: the lowest position of a sequence, -1 without one
    int32_t * last;   // [n_seq]: the highest position, -1 without one
    int64_t   size;
    int64_t   n_seq;
    int64_t   n_swa;  // number of tokens in the window, 0 without one
    int64_t   head;   // where the search for free cells begins
    int64_t   n_used; // number of cells that are not empty
    int64_t   end;    // index of the last used cell, plus 1
};

int32_t gp_kv_first(struct gp_kv_cells * cells, int64_t seq);
int32_t gp_kv_last(struct gp_kv_cells * cells, int64_t seq);
int64_t gp_kv_n_used(struct gp_kv_cells * cells);
int64_t gp_kv_end(struct gp_kv_cells * cells);
// Number of cells that attention reads when the first `end` are used. It is rounded up, so that a graph can be reused.
int64_t gp_kv_padded(int64_t end, int64_t size);
// The cell for the next token, as llama_kv_cache::find_slot finds it; -1 if none is free.
int64_t gp_kv_find(struct gp_kv_cells * cells);
// Gives a cell that gp_kv_find found to the token after the last of a sequence. Requires that the keys of the cells
// are rotated to their positions.
void    gp_kv_put(struct gp_kv_cells * cells, int64_t idx, int64_t seq, int32_t pos);
// Fills mask [n_rows][n_kv], f16 or f32, for tokens of a sequence at pos [n_rows]: 0 where they attend, else -inf.
void    gp_kv_mask(const struct gp_kv_cells * cells, int64_t seq, const int32_t * pos, int64_t n_rows, int64_t n_kv,
    bool f16, void * mask);

// The inputs of a graph that depend on one cache; all NULL if no layer reads it.
struct gp_decode_cache {
    struct gp_kv_cells * cells;
    int64_t * k_idxs;   // the token's cell, counted through all streams from `k_base`
    int64_t * v_idxs;   // [n_v_idxs]: counted from `v_base`, each `v_stride` after the one before
    int64_t   k_base, v_base, n_v_idxs, v_stride;
    void *    mask;     // [n_mask_rows][n_kv]
    int64_t   n_kv, n_mask_rows;
    bool      f16;      // type of the mask: f16 or f32
};

enum gp_decode_refusal {
    GP_DECODE_OTHER  = -1, // the token needs another graph, or there is no room
    GP_DECODE_LOST   = -2, // tensors may have lost their memory: check them, then set `changes`
};

struct gp_decode_constant {
    void *       data; // an input that nodes overwrite
    const void * value;
    size_t       nbytes;
};

struct gp_decode {
    ggml_backend_sched_t       sched;
    struct ggml_cgraph *       graph; // of one token, allocated by `sched`
    int32_t *                  inp_tokens;
    int32_t *                  inp_pos;
    int32_t *                  out_ids;
    struct gp_decode_cache     caches[2];
    struct gp_decode_constant  constants[8];
    int32_t                    n_caches, n_constants;
    int32_t                    n_positions; // number of positions that the model has
    int32_t                    only_seq;    // the sequence whose stream the caches have; -1: all share one stream
    int32_t                    pos;         // position of the computed token, or enum gp_decode_refusal
    uint64_t                   changes;     // gp_changes when all tensors of the graph had memory
    const float *              logits;      // [n_vocab]; NULL if the CPU cannot read them
    int64_t                    n_vocab;
    int64_t                    likeliest;   // index of the largest logit if requested; -1 if there is none
};

// The index of the largest of n logits, the lowest index of equal ones; -1 if it is not finite, or if one is NaN.
int64_t gp_likeliest(const float * logits, int64_t n);
// Computes the graph for `token` after the last of a sequence. Returns ggml_status. If `pos` is an enum
// gp_decode_refusal afterwards, nothing was done. Otherwise the caller sets it to GP_DECODE_OTHER, or takes the token
// back.
int gp_decode_one(struct gp_decode * decode, int32_t token, int64_t seq, bool greedy);

#ifdef __cplusplus
}
#endif

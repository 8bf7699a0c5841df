#include "decode.h"

#include "guard.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace {

constexpr int64_t PAD = 256; // llama.cpp pads the number of cells that attention reads to a multiple of this

void forget(gp_kv_cells * cells) {
    cells->n_used = cells->end = GP_KV_UNKNOWN;
    std::fill_n(cells->first, cells->n_seq, GP_KV_UNKNOWN);
    std::fill_n(cells->last, cells->n_seq, GP_KV_UNKNOWN);
}

// The sequence that has a cell; -1 if none has it, -2 if several do.
int64_t owner(const gp_kv_cells * cells, int64_t idx) {
    int64_t found = -1;
    for (int64_t seq = 0; seq < cells->n_seq; seq++) {
        if (cells->has[seq * cells->size + idx]) {
            if (found >= 0) {
                return -2;
            }
            found = seq;
        }
    }
    return found;
}

// With a window, a cell is also free if no later token of its sequence will see it.
bool is_free(gp_kv_cells * cells, int64_t idx) {
    const int32_t pos = cells->pos[idx];
    if (pos < 0 || cells->n_swa == 0) {
        return pos < 0;
    }
    const int64_t seq = owner(cells, idx);
    return seq >= 0 && pos <= gp_kv_last(cells, seq) + 1 - cells->n_swa;
}

// Removes a sequence's tokens at positions up to `until`.
void remove_until(gp_kv_cells * cells, int64_t seq, int32_t until) {
    uint8_t * mine = cells->has + seq * cells->size;
    for (int64_t i = 0; i < cells->size; i++) {
        if (mine[i] && cells->pos[i] <= until) {
            mine[i] = 0;
            if (owner(cells, i) == -1) {
                cells->pos[i] = -1;
            }
        }
    }
    forget(cells);
}

template <class T>
void fill_mask(const gp_kv_cells * cells, int64_t seq, const int32_t * pos, int64_t n_rows, int64_t n_kv, T hidden,
        T * mask) {
    const uint8_t * mine   = cells->has + seq * cells->size;
    const int64_t   window = cells->n_swa ? cells->n_swa : std::numeric_limits<int32_t>::max();
    for (int64_t row = 0; row < n_rows; row++) {
        const int32_t last = pos[row], first = (int32_t) std::max<int64_t>(0, last - window + 1);
        for (int64_t i = 0; i < n_kv; i++) {
            const bool seen = mine[i] & (cells->pos[i] >= first) & (cells->pos[i] <= last);
            mask[row * n_kv + i] = seen ? T(0) : hidden;
        }
    }
}

typedef float   lanes __attribute__((vector_size(16), aligned(4)));
typedef int32_t masks __attribute__((vector_size(16)));

// The largest of n numbers; NaN where one is NaN.
float largest(const float * values, int64_t n) {
    constexpr int CHAINS = 4; // independent of each other
    constexpr int STEP   = CHAINS * 4;
    constexpr float none = -std::numeric_limits<float>::infinity();
    lanes   most[CHAINS];
    std::fill_n(most, CHAINS, lanes{none, none, none, none});
    masks   nan = {};
    int64_t i   = 0;
    for (; i + STEP <= n; i += STEP) {
        for (int chain = 0; chain < CHAINS; chain++) {
            const lanes v = *(const lanes *) (values + i + chain * 4);
            most[chain] = v > most[chain] ? v : most[chain];
            nan |= v != v;
        }
    }
    float found  = none;
    bool  is_nan = nan[0] | nan[1] | nan[2] | nan[3];
    for (; i < n; i++) {
        found = std::max(found, values[i]);
        is_nan |= values[i] != values[i];
    }
    for (const lanes & chain : most) {
        found = std::max({found, chain[0], chain[1], chain[2], chain[3]});
    }
    return is_nan ? std::numeric_limits<float>::quiet_NaN() : found;
}

void write_inputs(const gp_decode_cache & cache, int64_t idx, int64_t seq, int32_t pos) {
    *cache.k_idxs = cache.k_base + idx;
    for (int64_t i = 0; i < cache.n_v_idxs; i++) {
        cache.v_idxs[i] = cache.v_base + idx + i * cache.v_stride;
    }
    gp_kv_mask(cache.cells, seq, &pos, 1, cache.n_kv, cache.f16, cache.mask);
    const int32_t none = -1; // the rows after the token's are padding
    const size_t  row  = cache.n_kv * (cache.f16 ? 2 : 4);
    for (int64_t i = 1; i < cache.n_mask_rows; i++) {
        gp_kv_mask(cache.cells, seq, &none, 1, cache.n_kv, cache.f16, (char *) cache.mask + i * row);
    }
}

} // namespace

int32_t gp_kv_first(gp_kv_cells * cells, int64_t seq) {
    int32_t & first = cells->first[seq];
    if (first == GP_KV_UNKNOWN) {
        const uint8_t * mine = cells->has + seq * cells->size;
        constexpr int32_t none = std::numeric_limits<int32_t>::max();
        int32_t found = none;
        for (int64_t i = 0; i < cells->size; i++) {
            found = std::min(found, mine[i] ? cells->pos[i] : none);
        }
        first = found == none ? -1 : found;
    }
    return first;
}

int32_t gp_kv_last(gp_kv_cells * cells, int64_t seq) {
    int32_t & last = cells->last[seq];
    if (last == GP_KV_UNKNOWN) {
        const uint8_t * mine = cells->has + seq * cells->size;
        last = -1;
        for (int64_t i = 0; i < cells->size; i++) {
            last = std::max(last, mine[i] ? cells->pos[i] : -1);
        }
    }
    return last;
}

int64_t gp_kv_n_used(gp_kv_cells * cells) {
    if (cells->n_used == GP_KV_UNKNOWN) {
        cells->n_used = cells->size - std::count(cells->pos, cells->pos + cells->size, -1);
    }
    return cells->n_used;
}

int64_t gp_kv_end(gp_kv_cells * cells) {
    if (cells->end == GP_KV_UNKNOWN) {
        cells->end = cells->size;
        while (cells->end > 0 && cells->pos[cells->end - 1] < 0) {
            cells->end--;
        }
    }
    return cells->end;
}

int64_t gp_kv_padded(int64_t end, int64_t size) {
    return std::min(size, std::max(PAD, (end + PAD - 1) / PAD * PAD));
}

int64_t gp_kv_find(gp_kv_cells * cells) {
    const int64_t head = cells->head > gp_kv_n_used(cells) + 2 ? 0 : cells->head;
    for (int64_t i = head; i < cells->size; i++) {
        if (is_free(cells, i)) {
            return i;
        }
    }
    for (int64_t i = 0; i < head; i++) {
        if (is_free(cells, i)) {
            return i;
        }
    }
    return -1;
}

void gp_kv_put(gp_kv_cells * cells, int64_t idx, int64_t seq, int32_t pos) {
    const int32_t until = cells->pos[idx];
    const int64_t lost  = until >= 0 ? owner(cells, idx) : -1;
    gp_kv_n_used(cells);
    gp_kv_end(cells);
    if (lost >= 0) {
        cells->has[lost * cells->size + idx] = 0;
        cells->first[lost] = GP_KV_UNKNOWN;
        if (cells->last[lost] == until) {
            cells->last[lost] = GP_KV_UNKNOWN;
        }
        cells->n_used--;
    }
    cells->pos[idx] = pos;
    cells->has[seq * cells->size + idx] = 1;
    cells->last[seq] = pos;
    if (cells->first[seq] == -1) {
        cells->first[seq] = pos;
    }
    cells->n_used++;
    cells->end  = std::max(cells->end, idx + 1);
    cells->head = idx + 1;
    // A sequence must have no gaps between its positions, so its tokens before the lost one go too.
    if (lost >= 0) {
        const int32_t first = gp_kv_first(cells, lost);
        if (first >= 0 && first <= until) {
            remove_until(cells, lost, until);
        }
    }
}

void gp_kv_mask(const gp_kv_cells * cells, int64_t seq, const int32_t * pos, int64_t n_rows, int64_t n_kv, bool f16,
        void * mask) {
    if (f16) {
        fill_mask<uint16_t>(cells, seq, pos, n_rows, n_kv, 0xfc00, (uint16_t *) mask);
    } else {
        fill_mask<float>(cells, seq, pos, n_rows, n_kv, -std::numeric_limits<float>::infinity(), (float *) mask);
    }
}

int64_t gp_likeliest(const float * logits, int64_t n) {
    constexpr int64_t BLOCK = 512; // the block with the largest logit is searched again for its index
    constexpr float   inf   = std::numeric_limits<float>::infinity();
    float   found = -inf;
    int64_t start = -1;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const float most = largest(logits + i, std::min(BLOCK, n - i));
        if (most != most) {
            return -1;
        }
        if (most > found) {
            found = most;
            start = i;
        }
    }
    return found < inf && start >= 0 ? std::find(logits + start, logits + n, found) - logits : -1;
}

int gp_decode_one(gp_decode * decode, int32_t token, int64_t seq, bool greedy) {
    decode->likeliest = -1;
    if (decode->changes != gp_changes()) {
        decode->pos = GP_DECODE_LOST;
        return GGML_STATUS_SUCCESS;
    }
    decode->pos = GP_DECODE_OTHER;
    if (decode->only_seq >= 0) {
        if (seq != decode->only_seq) {
            return GGML_STATUS_SUCCESS;
        }
        seq = 0; // its number in its own stream
    }
    const int     n   = decode->n_caches;
    const int32_t pos = gp_kv_last(decode->caches[n - 1].cells, seq) + 1;
    int64_t idxs[2];
    for (int i = 0; i < n; i++) {
        const gp_decode_cache & cache = decode->caches[i];
        idxs[i] = gp_kv_find(cache.cells);
        const int64_t end = std::max(gp_kv_end(cache.cells), idxs[i] + 1);
        if (idxs[i] < 0 || pos >= decode->n_positions || gp_kv_padded(end, cache.cells->size) != cache.n_kv) {
            return GGML_STATUS_SUCCESS;
        }
    }
    decode->pos = pos;
    for (int i = 0; i < n; i++) {
        gp_kv_put(decode->caches[i].cells, idxs[i], seq, pos);
    }
    *decode->inp_tokens = token;
    *decode->inp_pos    = pos;
    *decode->out_ids    = 0;
    for (int i = 0; i < decode->n_constants; i++) {
        const gp_decode_constant & constant = decode->constants[i];
        memcpy(constant.data, constant.value, constant.nbytes);
    }
    for (int i = 0; i < n; i++) {
        if (decode->caches[i].mask != nullptr) {
            write_inputs(decode->caches[i], idxs[i], seq, pos);
        }
    }
    gp::computing now(decode->graph);
    const ggml_status status = now.ended(ggml_backend_sched_graph_compute(decode->sched, decode->graph));
    if (greedy && status == GGML_STATUS_SUCCESS && decode->logits != nullptr) {
        decode->likeliest = gp_likeliest(decode->logits, decode->n_vocab);
    }
    return status;
}

// Compiled into libllama.

#include "llama_probe.h"
#include "llama_plan.h"

static thread_local std::vector<gpl_probe> noted;

struct gpl_probes {
    std::vector<gpl_probe> all;
};

void gpl_note_probe(gpl_probe probe) { noted.push_back(std::move(probe)); }

void gpl_probes_begin(void) { noted.clear(); }

gpl_probes * gpl_probes_take(void) {
    gpl_probes * taken = new gpl_probes{std::move(noted)};
    noted.clear();
    return taken;
}

void gpl_probes_free(gpl_probes * probes) { delete probes; }

size_t gpl_probes_n(const gpl_probes * probes) { return probes->all.size(); }

void gpl_probe_read(const gpl_probes * probes, size_t i, gpl_probe_record * record) {
    const gpl_probe & p  = probes->all.at(i);
    record->name         = p.name.c_str();
    record->n_tokens     = p.n_tokens;
    record->n_seqs       = p.n_seqs;
    record->node         = p.node;
    record->layer        = p.layer;
    record->device_layer = p.device_layer;
    record->device_fused = p.device_fused;
}

const gpl_probe & gpl_probe_of(const gpl_probes * probes, size_t i) { return probes->all.at(i); }

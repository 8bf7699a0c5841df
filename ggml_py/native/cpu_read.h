// Reads for a plan how a CPU computes the nodes of its splits. Included by sched_trace.cpp, after order_hooks.h.
#pragma once

namespace gp {

// Adds the nodes' ids and their records.
static void read_cpu(ggml_backend_sched_t sched, const std::unordered_map<const ggml_tensor *, int32_t> & ids,
        std::vector<int32_t> & nodes, std::vector<gp_cpu_record> & records) {
    for (int i = 0; i < sched->n_splits; i++) {
        const ggml_backend_sched_split & split = sched->splits[i];
        ggml_backend_t     backend = sched->backends[split.backend_id];
        ggml_backend_dev_t dev     = ggml_backend_get_device(backend);
        ggml_backend_reg_t reg     = dev ? ggml_backend_dev_backend_reg(dev) : nullptr;
        const auto ask = reg ? (gp_cpu_backend_nodes_t) ggml_backend_reg_get_proc_address(reg, "gp_cpu_backend_nodes") : nullptr;
        if (ask == nullptr || split.graph.n_nodes == 0) {
            continue;
        }
        const size_t first = records.size();
        records.resize(first + split.graph.n_nodes);
        ask(backend, &split.graph, records.data() + first);
        for (int j = 0; j < split.graph.n_nodes; j++) {
            nodes.push_back(ids.at(split.graph.nodes[j]));
        }
    }
}

} // namespace gp

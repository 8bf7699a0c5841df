// graph_optimize of simulated devices: a Python function, or upstream's own: a card's, or that for Metal, whose ordering
// code does not need Metal.
#include "sim_backend.h"

#include "cards/card.h"

#include "ggml-impl.h" // struct ggml_cgraph

#include <cstring>
#include <vector>

#ifdef GP_SIM_METAL
#include "ggml-metal-common.h"
#include "ggml-metal-device.h"
#include "ggml-metal-fusion.h"

// Needed only for linking: the code that encodes kernels calls it, the code that orders nodes does not.
extern "C" struct ggml_metal_buffer_id ggml_metal_buffer_get_id(ggml_metal_buffer_t, const struct ggml_tensor *) {
    GGML_ABORT("Metal's fusion asked for a buffer while it orders nodes");
}
#endif

// Defined in module.h. Asks a Python function for an order. If that raises, the answer is false, and the exception is
// raised when the call from Python returns.
extern "C" bool gp_sim_ask_order(ggml_tensor ** nodes, int n, int32_t * order, void * keep, void * optimizer);

namespace gp {
namespace {

// add_alloc_dep and its user_data; NULL in releases that have no add_alloc_dep.
struct keeper {
    void (*add_alloc_dep)(void *, ggml_tensor *, ggml_tensor *);
    void * user_data;
};

void ask_python(ggml_backend_t native, ggml_cgraph * graph, keeper & keep) {
    sim_device * device = sim_device::of(native->device);
    std::unique_lock<std::mutex> lock(device->mutex);
    void * optimizer = device->decisions.optimizer;
    lock.unlock();
    std::vector<int32_t>       order(graph->n_nodes);
    std::vector<ggml_tensor *> nodes(graph->nodes, graph->nodes + graph->n_nodes);
    if (gp_sim_ask_order(graph->nodes, graph->n_nodes, order.data(), &keep, optimizer)) {
        for (int i = 0; i < graph->n_nodes; i++) {
            graph->nodes[i] = nodes[order[i]];
        }
    }
}

void optimize(ggml_backend_t native, ggml_cgraph * graph, keeper keep) {
    if (sim_device::of(native->device)->settings.optimize == GP_SIM_ORDER_ASK) {
        ask_python(native, graph, keep);
        return;
    }
    if (sim_device::of(native->device)->settings.optimize == GP_SIM_ORDER_CARD) {
        gp_card_order(sim_device::of(native->device)->settings.card, graph, keep.add_alloc_dep, keep.user_data);
        return;
    }
#ifdef GP_SIM_METAL
    if (keep.add_alloc_dep != nullptr) { // as in ggml_backend_metal_graph_optimize
        ggml_metal_fusion_add_alloc_deps(keep.user_data, keep.add_alloc_dep, graph);
    }
    ggml_graph_optimize(graph);
#endif
}

// Releases differ in the parameters of graph_optimize.
void fill(void (*& to)(ggml_backend_t, ggml_cgraph *)) {
    to = [](ggml_backend_t native, ggml_cgraph * graph) { optimize(native, graph, {}); };
}
template <class Params> void fill(void (*& to)(ggml_backend_t, ggml_cgraph *, Params *)) {
    to = [](ggml_backend_t native, ggml_cgraph * graph, Params * params) {
        optimize(native, graph, { params->add_alloc_dep, params->user_data });
    };
}
template <class I> auto fill_in(I & iface, int) -> decltype((void) iface.graph_optimize) {
    fill(iface.graph_optimize);
}
template <class I> void fill_in(I &, long) {}

template <class I> constexpr auto has_it(const I * iface, int) -> decltype((void) iface->graph_optimize, bool()) {
    return true;
}
template <class I> constexpr bool has_it(const I *, long) {
    return false;
}

} // namespace

void sim_set_optimize(ggml_backend_t native) {
    if (sim_device::of(native->device)->settings.optimize != GP_SIM_ORDER_NONE) {
        fill_in(native->iface, 0);
    }
}

} // namespace gp

extern "C" {

bool gp_sim_can_order(int32_t optimize) {
#ifndef GP_SIM_METAL
    if (optimize == GP_SIM_ORDER_METAL) {
        return false;
    }
#endif
    return optimize == GP_SIM_ORDER_NONE || gp::has_it((const ggml_backend_i *) nullptr, 0);
}

bool gp_sim_keep(void * keep, ggml_tensor * tensor, ggml_tensor * until) {
    const gp::keeper * to = static_cast<const gp::keeper *>(keep);
    if (to->add_alloc_dep == nullptr) {
        return false;
    }
    to->add_alloc_dep(to->user_data, tensor, until);
    return true;
}

} // extern "C"

#include "sim_backend.h"

#include "ggml-impl.h"

#include <cstring>

namespace gp {
namespace {

struct backend {
    ggml_backend native = {};
    sim_device * device = nullptr;
    ggml_backend_t cpu  = nullptr;
};

backend * of(ggml_backend_t native) {
    return static_cast<backend *>(native->context);
}

const char * get_name(ggml_backend_t native) {
    return of(native)->device->name.c_str();
}

void free_backend(ggml_backend_t native) {
    backend * self = of(native);
    ggml_backend_free(self->cpu);
    self->device->n_backends--;
    delete self;
}

// A plan that is wrong shall not pass because all memory here is the host's.
void check_memory(ggml_backend_t native, const ggml_tensor * node, const ggml_tensor * t) {
    ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    if (buffer != nullptr && !sim_supports_buft(native->device, buffer->buft)) {
        GGML_ABORT("node '%s' (%s) on %s takes '%s', which is in %s memory", node->name, ggml_op_desc(node),
            get_name(native), t->name, ggml_backend_buffer_name(buffer));
    }
}

void check_graph(ggml_backend_t native, const ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (ggml_is_empty(node) || node->op == GGML_OP_NONE || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW ||
                node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE) {
            continue;
        }
        check_memory(native, node, node);
        for (const ggml_tensor * src : node->src) {
            if (src != nullptr) {
                check_memory(native, node, src);
            }
        }
    }
}

enum ggml_status graph_compute(ggml_backend_t native, ggml_cgraph * graph) {
    check_graph(native, graph);
    return ggml_backend_graph_compute(of(native)->cpu, graph);
}

// The CPU backend's own function of that name.
template <class F> F cpu_function(const char * name) {
    ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(sim_cpu());
    return (F) ggml_backend_reg_get_proc_address(cpu, name);
}

void set_n_threads(ggml_backend_t native, int n_threads) {
    cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(of(native)->cpu, n_threads);
}

void set_abort_callback(ggml_backend_t native, ggml_abort_callback callback, void * data) {
    cpu_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback")(of(native)->cpu, callback, data);
}

uint8_t guid[16] = {0x67, 0x67, 0x6d, 0x6c, 0x5f, 0x70, 0x79, 0x20, 0x73, 0x69, 0x6d, 0x75, 0x6c, 0x61, 0x74, 0x65};

} // namespace

ggml_backend_t sim_backend_init(ggml_backend_dev_t dev, const char *) {
    backend * self = new backend;
    self->device = sim_device::of(dev);
    self->cpu    = ggml_backend_dev_init(sim_cpu(), nullptr);
    if (self->cpu == nullptr) {
        delete self;
        return nullptr;
    }
    self->device->n_backends++;
    self->native.guid    = &guid;
    self->native.device  = dev;
    self->native.context = self;
    self->native.iface.get_name      = get_name;
    self->native.iface.free          = free_backend;
    self->native.iface.graph_compute = graph_compute;
    return &self->native;
}

void * sim_proc_address(ggml_backend_reg_t, const char * name) {
    if (strcmp(name, "ggml_backend_set_n_threads") == 0) {
        return (void *) set_n_threads;
    }
    if (strcmp(name, "ggml_backend_set_abort_callback") == 0) {
        return (void *) set_abort_callback;
    }
    return nullptr;
}

} // namespace gp

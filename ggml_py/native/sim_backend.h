// Shared by sim_device.cpp (registry, devices, memory) and sim_backend.cpp (computing).
#pragma once

#include "sim_device.h"

#include "ggml-backend-impl.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

namespace gp {

struct sim_device {
    ggml_backend_device      native    = {};
    ggml_backend_buffer_type buft      = {};
    ggml_backend_buffer_type host_buft = {};
    ggml_backend_buffer      stand_in  = {}; // of the CPU's type, for the tensors of queued graphs (sim_graph.h)
    std::string              name;
    std::string              host_name; // of host_buft
    gp_sim_settings          settings = {};
    bool                     listed   = false;

    std::mutex               mutex; // protects the members below
    gp_sim_decisions         decisions = {};
    size_t                   used      = 0;

    std::atomic<int>         n_backends{0};
    std::atomic<int>         n_buffers{0};

    static sim_device * of(ggml_backend_dev_t dev) { return static_cast<sim_device *>(dev->context); }
    static sim_device * of(ggml_backend_buffer_type_t buft) { return static_cast<sim_device *>(buft->context); }
};

// The CPU device, whose kernels compute.
ggml_backend_dev_t   sim_cpu();
bool                 sim_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft);
sim_device *         sim_of_buft(ggml_backend_buffer_type_t buft); // whose type it is; NULL if no simulated device's
bool                 sim_is_buffer(ggml_backend_buffer_t buffer); // whether it is in a simulated device's own memory
// Addresses in the device's own memory are shifted so that nothing else can use them, as with a GPU: no process has
// memory there. sim_here gives the real address.
constexpr uintptr_t  SIM_FAR = uintptr_t(1) << 54;
inline char *        sim_here(const void * address) { return (char *) ((uintptr_t) address - SIM_FAR); }
bool                 sim_is_callers(enum ggml_op op);             // whether the op calls a function of the caller

ggml_backend_t       sim_backend_init(ggml_backend_dev_t dev, const char * params);
void                 sim_set_optimize(ggml_backend_t native); // if its device orders nodes
void *               sim_proc_address(ggml_backend_reg_t reg, const char * name);
ggml_backend_event_t sim_event_new(ggml_backend_dev_t dev);
void                 sim_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event);
void                 sim_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event);

// Wait for all work in the device's memory. sim_read also throws the failure of that work.
void                 sim_finish(const sim_device * device);
void                 sim_read(const sim_device * device);
// On a queue's thread, which cannot wait for itself: runs `work` later on that thread and returns true.
bool                 sim_defer(std::function<void()> work);

} // namespace gp

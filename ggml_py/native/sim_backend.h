// What sim_device.cpp (registry, devices, memory) and sim_backend.cpp (computing) share.
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
    ggml_backend_buffer      stand_in  = {}; // of the CPU's type, for the tensors of graphs that wait (sim_graph.h)
    std::string              name;
    std::string              host_name; // of host_buft
    gp_sim_settings          settings = {};
    bool                     listed   = false;

    std::mutex               mutex; // of what follows
    gp_sim_decisions         decisions = {};
    size_t                   used      = 0;

    std::atomic<int>         n_backends{0};
    std::atomic<int>         n_buffers{0};

    static sim_device * of(ggml_backend_dev_t dev) { return static_cast<sim_device *>(dev->context); }
    static sim_device * of(ggml_backend_buffer_type_t buft) { return static_cast<sim_device *>(buft->context); }
};

// The device whose kernels compute.
ggml_backend_dev_t   sim_cpu();
bool                 sim_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft);
bool                 sim_is_buffer(ggml_backend_buffer_t buffer); // of a simulated device's own memory
// Addresses in the device's own memory are made so that nothing else can use them, as those of a card: no process
// has memory there. This is where the bytes are.
constexpr uintptr_t  SIM_FAR = uintptr_t(1) << 54;
inline char *        sim_here(const void * address) { return (char *) ((uintptr_t) address - SIM_FAR); }
bool                 sim_is_callers(enum ggml_op op);             // its function is the caller's own

ggml_backend_t       sim_backend_init(ggml_backend_dev_t dev, const char * params);
void                 sim_set_optimize(ggml_backend_t native); // where its device has an order of its own
void *               sim_proc_address(ggml_backend_reg_t reg, const char * name);
ggml_backend_event_t sim_event_new(ggml_backend_dev_t dev);
void                 sim_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event);
void                 sim_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event);

// Waits for all that is to be done in the device's memory; sim_read throws what failed in it.
void                 sim_finish(const sim_device * device);
void                 sim_read(const sim_device * device);
// On a thread that computes, where nobody can wait for it: does `work` there later, and is true.
bool                 sim_defer(std::function<void()> work);

} // namespace gp

// What sim_device.cpp (registry, devices, memory) and sim_backend.cpp (computing) share.
#pragma once

#include "sim_device.h"

#include "ggml-backend-impl.h"

#include <atomic>
#include <mutex>
#include <string>

namespace gp {

struct sim_device {
    ggml_backend_device      native    = {};
    ggml_backend_buffer_type buft      = {};
    ggml_backend_buffer_type host_buft = {};
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
ggml_backend_dev_t sim_cpu();
bool               sim_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft);

ggml_backend_t     sim_backend_init(ggml_backend_dev_t dev, const char * params);
void *             sim_proc_address(ggml_backend_reg_t reg, const char * name);

} // namespace gp

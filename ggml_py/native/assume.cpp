#include "assume.h"

#include "ggml-backend-impl.h"

#include <map>
#include <mutex>

// In module.h: 1 and 0 are answers, 2 leaves it to the device. After an exception: 0.
extern "C" int gp_assumed_answer(const ggml_tensor * op, void * user_data);

namespace {

thread_local const gp_assumption * assumed   = nullptr;
thread_local int32_t               n_assumed = 0;

// A device's own functions.
struct own_answers {
    decltype(ggml_backend_device_i::supports_op) supports;
    decltype(ggml_backend_device_i::offload_op)  offload;
};

std::mutex mutex;

std::map<ggml_backend_dev_t, own_answers> & all() {
    static auto & it = *new std::map<ggml_backend_dev_t, own_answers>; // devices may be asked after static objects
    return it;
}

own_answers own(ggml_backend_dev_t device) {
    const std::lock_guard<std::mutex> lock(mutex);
    return all().at(device);
}

int assume(ggml_backend_dev_t device, const ggml_tensor * op, void * gp_assumption::*who) {
    for (int32_t i = 0; i < n_assumed; i++) {
        if (assumed[i].device == device && assumed[i].*who) {
            return gp_assumed_answer(op, assumed[i].*who);
        }
    }
    return 2;
}

bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    const int answer = assume(device, op, &gp_assumption::supports);
    return answer == 2 ? own(device).supports(device, op) : answer == 1;
}

bool offload_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    const int answer = assume(device, op, &gp_assumption::offload);
    const auto offload = own(device).offload;
    return answer == 2 ? offload && offload(device, op) : answer == 1;
}

void put(ggml_backend_dev_t device) {
    const std::lock_guard<std::mutex> lock(mutex);
    ggml_backend_device_i & iface = device->iface;
    if (iface.supports_op != supports_op) { // a device that was made again has its own functions again
        all()[device] = { iface.supports_op, iface.offload_op };
        iface.supports_op = supports_op;
        iface.offload_op  = offload_op;
    }
}

} // namespace

extern "C" void gp_assume(const gp_assumption * assumptions, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        put(assumptions[i].device);
    }
    assumed   = assumptions;
    n_assumed = n;
}

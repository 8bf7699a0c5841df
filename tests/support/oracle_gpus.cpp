// GPUs for an unmodified program, independent of our simulated devices: a backend that ggml loads from GGML_BACKEND_PATH
// and that computes with the CPU's. Nothing of ggml_py is in it.
//
//   ORACLE_GPUS   devices with ";" between them. Each is a name and settings, with "," between them:
//
//   memory=BYTES     of the device
//   max_size=BYTES   of a buffer
//   min_batch=N      The device wants an op with this many rows although the weight is in host memory.
//   lacks=OP         The device does not support this op. May be repeated.
//   sync             no queue and no events
//   unified          Buffers are host memory, and the device reads the CPU's.
//   host_buffer      The device has a type of host buffers.
//   peers            The device reads the memory of the others.
#include "ggml-backend-impl.h"
#include "ggml-backend.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct gpu {
    std::string           name;
    size_t                memory = (size_t) 8 << 30;
    size_t                used = 0;
    size_t                max_size = SIZE_MAX;
    int64_t               min_batch = 32;
    std::set<std::string> lacks;
    bool                  sync = false, unified = false, host_buffer = false, peers = false;
    std::string           host_name;
    ggml_backend_device      device = {};
    ggml_backend_buffer_type buft = {}, host = {};
};

std::vector<gpu *> gpus;
ggml_backend_reg   registry;

ggml_backend_dev_t cpu() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}
gpu * of(ggml_backend_dev_t dev) {
    return (gpu *) dev->context;
}

// --- memory

struct block {
    gpu * owner;
    void * data;
    size_t size;
};

ggml_backend_buffer_i buffer_iface() {
    ggml_backend_buffer_i i = {};
    i.free_buffer = [](ggml_backend_buffer_t b) {
        block * one = (block *) b->context;
        one->owner->used -= one->size;
        free(one->data);
        delete one;
    };
    i.get_base      = [](ggml_backend_buffer_t b) { return ((block *) b->context)->data; };
    i.memset_tensor = [](ggml_backend_buffer_t, ggml_tensor * t, uint8_t v, size_t at, size_t n) { memset((char *) t->data + at, v, n); };
    i.set_tensor    = [](ggml_backend_buffer_t, ggml_tensor * t, const void * d, size_t at, size_t n) { memcpy((char *) t->data + at, d, n); };
    i.get_tensor    = [](ggml_backend_buffer_t, const ggml_tensor * t, void * d, size_t at, size_t n) { memcpy(d, (const char *) t->data + at, n); };
    i.clear         = [](ggml_backend_buffer_t b, uint8_t v) { memset(((block *) b->context)->data, v, b->size); };
    return i;
}

ggml_backend_buffer_t allocated(ggml_backend_buffer_type_t buft, size_t size) {
    gpu * self = (gpu *) buft->context;
    if (buft == &self->buft && self->used + size > self->memory) {
        return nullptr;
    }
    void * data = aligned_alloc(64, (size + 63) / 64 * 64 + 64);
    self->used += buft == &self->buft ? size : 0;
    return ggml_backend_buffer_init(buft, buffer_iface(), new block{self, data, buft == &self->buft ? size : 0}, size);
}

ggml_backend_buffer_type type_of(gpu * self, bool host) {
    ggml_backend_buffer_type t = {};
    t.device              = &self->device;
    t.context             = self;
    t.iface.get_name      = host ? [](ggml_backend_buffer_type_t b) { return ((gpu *) b->context)->host_name.c_str(); }
                                 : [](ggml_backend_buffer_type_t b) { return ((gpu *) b->context)->name.c_str(); };
    t.iface.alloc_buffer  = allocated;
    t.iface.get_alignment = [](ggml_backend_buffer_type_t) { return (size_t) 64; };
    t.iface.get_max_size  = [](ggml_backend_buffer_type_t b) { return ((gpu *) b->context)->max_size; };
    t.iface.is_host       = host || self->unified ? [](ggml_backend_buffer_type_t) { return true; }
                                                  : [](ggml_backend_buffer_type_t) { return false; };
    return t;
}

// --- computing: at once, so a queue is always empty and an event has always happened

ggml_backend_t make_backend(ggml_backend_dev_t dev, const char *) {
    ggml_backend_i i = {};
    i.get_name = [](ggml_backend_t b) { return of(b->device)->name.c_str(); };
    i.free     = [](ggml_backend_t b) {
        ggml_backend_free((ggml_backend_t) b->context);
        delete b;
    };
    i.graph_compute = [](ggml_backend_t b, ggml_cgraph * g) { return ggml_backend_graph_compute((ggml_backend_t) b->context, g); };
    i.synchronize   = [](ggml_backend_t) {};
    if (!of(dev)->sync) {
        i.event_record = [](ggml_backend_t, ggml_backend_event_t) {};
        i.event_wait   = [](ggml_backend_t, ggml_backend_event_t) {};
    }
    static ggml_guid guid = { 0x6f, 0x72, 0x61, 0x63, 0x6c, 0x65 };
    return new ggml_backend{ &guid, i, dev, ggml_backend_dev_init(cpu(), nullptr) };
}

ggml_backend_device_i device_iface() {
    ggml_backend_device_i i = {};
    i.get_name        = [](ggml_backend_dev_t d) { return of(d)->name.c_str(); };
    i.get_description = [](ggml_backend_dev_t) { return "an oracle's GPU"; };
    i.get_memory      = [](ggml_backend_dev_t d, size_t * free, size_t * total) {
        *total = of(d)->memory;
        *free  = *total - of(d)->used;
    };
    i.get_type  = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    i.get_props = [](ggml_backend_dev_t d, ggml_backend_dev_props * p) {
        p->name = p->description = of(d)->name.c_str();
        p->type = GGML_BACKEND_DEVICE_TYPE_GPU;
        ggml_backend_dev_memory(d, &p->memory_free, &p->memory_total);
        p->caps             = {};
        p->caps.async       = !of(d)->sync;
        p->caps.events      = !of(d)->sync;
        p->caps.host_buffer = of(d)->host_buffer;
    };
    i.init_backend         = make_backend;
    i.get_buffer_type      = [](ggml_backend_dev_t d) { return &of(d)->buft; };
    i.get_host_buffer_type = [](ggml_backend_dev_t d) -> ggml_backend_buffer_type_t { return of(d)->host_buffer ? &of(d)->host : nullptr; };
    i.supports_op          = [](ggml_backend_dev_t d, const ggml_tensor * op) {
        return of(d)->lacks.count(ggml_op_name(op->op)) == 0 && ggml_backend_dev_supports_op(cpu(), op);
    };
    i.supports_buft = [](ggml_backend_dev_t d, ggml_backend_buffer_type_t t) {
        return t == &of(d)->buft || (of(d)->unified && ggml_backend_buft_is_host(t)) ||
            (of(d)->peers && t->device != nullptr && t->device->reg == &registry && t == &of(t->device)->buft);
    };
    i.offload_op = [](ggml_backend_dev_t d, const ggml_tensor * op) {
        return (op->op == GGML_OP_MUL_MAT_ID ? op->ne[2] : op->ne[1]) >= of(d)->min_batch && op->op != GGML_OP_GET_ROWS;
    };
    i.event_new         = [](ggml_backend_dev_t d) -> ggml_backend_event_t { return of(d)->sync ? nullptr : new ggml_backend_event{ d, nullptr }; };
    i.event_free        = [](ggml_backend_dev_t, ggml_backend_event_t e) { delete e; };
    i.event_synchronize = [](ggml_backend_dev_t, ggml_backend_event_t) {};
    return i;
}

std::vector<std::string> split(const std::string & text, char by) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, by);) {
        parts.push_back(part);
    }
    return parts;
}

void add(const std::string & text) {
    gpu * self = new gpu();
    const std::vector<std::string> parts = split(text, ',');
    self->name      = parts.at(0);
    self->host_name = self->name + "_Host";
    for (size_t i = 1; i < parts.size(); i++) {
        const size_t at = parts[i].find('=');
        const std::string key = parts[i].substr(0, at), value = at == std::string::npos ? "" : parts[i].substr(at + 1);
        const std::map<std::string, bool *> flags = {
            { "sync", &self->sync }, { "unified", &self->unified }, { "host_buffer", &self->host_buffer }, { "peers", &self->peers } };
        if (key == "memory") {
            self->memory = strtoull(value.c_str(), nullptr, 10);
        } else if (key == "max_size") {
            self->max_size = strtoull(value.c_str(), nullptr, 10);
        } else if (key == "min_batch") {
            self->min_batch = atoll(value.c_str());
        } else if (key == "lacks") {
            self->lacks.insert(value);
        } else if (flags.count(key)) {
            *flags.at(key) = true;
        } else {
            GGML_ABORT("ORACLE_GPUS: unknown setting %s", parts[i].c_str());
        }
    }
    self->device.iface   = device_iface();
    self->device.reg     = &registry;
    self->device.context = self;
    self->buft           = type_of(self, false);
    self->host           = type_of(self, true);
    gpus.push_back(self);
}

} // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    registry.api_version            = GGML_BACKEND_API_VERSION;
    registry.iface.get_name         = [](ggml_backend_reg_t) { return "ORACLE"; };
    registry.iface.get_device_count = [](ggml_backend_reg_t) { return gpus.size(); };
    registry.iface.get_device       = [](ggml_backend_reg_t, size_t i) { return &gpus[i]->device; };
    const char * text = getenv("ORACLE_GPUS");
    for (const std::string & one : split(text ? text : "", ';')) {
        add(one);
    }
    return &registry;
}

#include "sim_device.h"

#include "ggml-impl.h"
#include "sim_memory.h"
#include "sim_backend.h"
#include "sim_card.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

static_assert(GGML_OP_COUNT <= GP_SIM_OPS && GGML_UNARY_OP_COUNT <= GP_SIM_OPS && GGML_GLU_OP_COUNT <= GP_SIM_OPS, "GP_SIM_OPS");
static_assert(GGML_TYPE_COUNT <= GP_SIM_TYPES, "GP_SIM_TYPES");

// Defined in module.h. Asks a Python predicate. If that raises, the answer is true, and the exception is raised when
// the call from Python returns.
extern "C" bool gp_sim_ask(const ggml_tensor * op, void * predicate);

namespace gp {
namespace {

struct registry {
    ggml_backend_reg          native = {};
    std::deque<sim_device>    devices; // all that were ever made
    std::vector<sim_device *> listed;  // in the order of opening
};

registry & reg();

// --- memory

struct buffer_memory {
    sim_device * device;
    char *       data;
};

buffer_memory * memory_of(ggml_backend_buffer_t buffer) {
    return static_cast<buffer_memory *>(buffer->context);
}

// Frees a buffer once no work in it remains; `counted` bytes of it are the device's.
void let_go(sim_device * device, void * data, size_t size, size_t counted) {
    const auto free = [=] {
        release_memory(data, size);
        std::lock_guard<std::mutex> lock(device->mutex);
        device->used -= counted;
        device->n_buffers--;
    };
    if (!sim_defer(free)) {
        sim_finish(device);
        free();
    }
}

void free_buffer(ggml_backend_buffer_t buffer) {
    buffer_memory * memory = memory_of(buffer);
    let_go(memory->device, memory->data, buffer->size, buffer->size);
    delete memory;
}

void * get_base(ggml_backend_buffer_t buffer) {
    return memory_of(buffer)->data + SIM_FAR;
}

void memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    memset(sim_here(tensor->data) + offset, value, size);
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    memcpy(sim_here(tensor->data) + offset, data, size);
}

void get_tensor(ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    sim_read(memory_of(buffer)->device);
    memcpy(data, sim_here(tensor->data) + offset, size);
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    fill_memory(memory_of(buffer)->data, buffer->size, value);
}

// Copies from one simulated device to another.
bool cpy_tensor(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    ggml_backend_buffer_t from = src->view_src ? src->view_src->buffer : src->buffer;
    if (!sim_is_buffer(from)) {
        return false;
    }
    sim_read(memory_of(from)->device);
    memcpy(sim_here(dst->data), sim_here(src->data), ggml_nbytes(src));
    return true;
}

const char * buft_name(ggml_backend_buffer_type_t buft) {
    sim_device * device = sim_device::of(buft);
    return buft == &device->host_buft ? device->host_name.c_str() : device->name.c_str();
}

bool takes(sim_device * device, size_t size) {
    std::lock_guard<std::mutex> lock(device->mutex);
    const size_t memory = device->settings.memory, largest = std::max(device->settings.largest, device->settings.max_size);
    if (size > largest) {
        GGML_LOG_ERROR("%s: allocating %zu bytes failed: a buffer has at most %zu\n", device->name.c_str(), size, largest);
        return false;
    }
    if (size > memory - device->used) {
        GGML_LOG_ERROR("%s: allocating %zu bytes failed: %zu of %zu are free\n",
            device->name.c_str(), size, memory - device->used, memory);
        return false;
    }
    device->used += size;
    return true;
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    sim_device * device = sim_device::of(buft);
    if (!takes(device, size)) {
        return nullptr;
    }
    char * data = static_cast<char *>(reserved_memory(size, device->settings.alignment));
    if (data == nullptr) {
        GGML_LOG_ERROR("%s: this process has no %zu bytes of address space left (ulimit -v, vm.overcommit_memory)\n",
            device->name.c_str(), size);
        std::lock_guard<std::mutex> lock(device->mutex);
        device->used -= size;
        return nullptr;
    }
    ggml_backend_buffer_i iface = {};
    iface.free_buffer   = free_buffer;
    iface.get_base      = get_base;
    iface.memset_tensor = memset_tensor;
    iface.set_tensor    = set_tensor;
    iface.get_tensor    = get_tensor;
    iface.cpy_tensor    = cpy_tensor;
    iface.clear         = clear;
    device->n_buffers++;
    return ggml_backend_buffer_init(buft, iface, new buffer_memory{device, data}, size);
}

size_t get_alignment(ggml_backend_buffer_type_t buft) {
    return sim_device::of(buft)->settings.alignment;
}

size_t get_max_size(ggml_backend_buffer_type_t buft) {
    return sim_device::of(buft)->settings.max_size;
}

size_t get_alloc_size(ggml_backend_buffer_type_t buft, const ggml_tensor * tensor) {
    ggml_backend_dev_t card = sim_device::of(buft)->settings.card;
    return card ? ggml_backend_buft_get_alloc_size(ggml_backend_dev_buffer_type(card), tensor) : ggml_nbytes(tensor);
}

// --- pinned host memory: the CPU's own buffers with another type

void free_host_buffer(ggml_backend_buffer_t buffer) {
    let_go(sim_device::of(buffer->buft), buffer->context, buffer->size, 0);
}

ggml_backend_buffer_t alloc_host_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    sim_device * device = sim_device::of(buft);
    void * data = reserved_memory(size, device->settings.alignment);
    if (data == nullptr) {
        return nullptr;
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(data, size);
    buffer->buft = buft;
    buffer->iface.free_buffer = free_host_buffer;
    buffer->iface.clear       = [](ggml_backend_buffer_t cleared, uint8_t value) {
        fill_memory(cleared->context, cleared->size, value);
    };
    device->n_buffers++;
    return buffer;
}

bool is_host(ggml_backend_buffer_type_t) {
    return true;
}

// --- device

const char * get_name(ggml_backend_dev_t dev) {
    return sim_device::of(dev)->name.c_str();
}

const char * get_description(ggml_backend_dev_t dev) {
    return sim_device::of(dev)->decisions.description;
}

// The device whose memory `device` computes in.
sim_device * owner(sim_device * device) {
    return device->settings.buft_of ? sim_device::of(device->settings.buft_of) : device;
}

void get_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
    sim_device * device = owner(sim_device::of(dev));
    std::lock_guard<std::mutex> lock(device->mutex);
    *total = device->settings.host ? 0 : device->settings.memory; // host devices have none, as BLAS
    *free  = *total - device->used;
}

enum ggml_backend_dev_type get_type(ggml_backend_dev_t dev) {
    return (enum ggml_backend_dev_type) sim_device::of(dev)->settings.type;
}

// Sets whether weights that stay on the CPU may stay in the mapped file, as CUDA and Vulkan do. Older releases have no
// such property.
template <class Caps> auto set_mmap_support(Caps & caps, bool value, int) -> decltype(caps.mmap_support, void()) {
    caps.mmap_support = value;
}
template <class Caps> void set_mmap_support(Caps &, bool, long) {}
template <class Caps> auto copy_mmap_support(Caps & caps, const Caps & of_card, int) -> decltype(caps.mmap_support, void()) {
    caps.mmap_support = of_card.mmap_support;
}
template <class Caps> void copy_mmap_support(Caps &, const Caps &, long) {}

void get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    props->name        = get_name(dev);
    props->description = get_description(dev);
    props->type        = get_type(dev);
    get_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.host_buffer = sim_device::of(dev)->settings.host_buffer;
    props->caps.async       = sim_device::of(dev)->settings.async_;
    props->caps.events      = sim_device::of(dev)->settings.async_;
    set_mmap_support(props->caps, get_type(dev) != GGML_BACKEND_DEVICE_TYPE_IGPU, 0);
    if (ggml_backend_dev_t card = sim_device::of(dev)->settings.card) {
        ggml_backend_dev_props of_card = {};
        ggml_backend_dev_get_props(card, &of_card);
        copy_mmap_support(props->caps, of_card.caps, 0);
    }
}

ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t dev) {
    sim_device * device = sim_device::of(dev);
    if (device->settings.host) {
        return ggml_backend_cpu_buffer_type();
    }
    return &owner(device)->buft;
}

ggml_backend_buffer_type_t get_host_buffer_type(ggml_backend_dev_t dev) {
    sim_device * device = sim_device::of(dev);
    return device->settings.host_buffer ? &device->host_buft : nullptr;
}

bool in_table(const gp_sim_decisions & table, const ggml_tensor * op) {
    const uint64_t type = uint64_t(1) << (op->src[0] ? op->src[0]->type : op->type);
    uint64_t types = table.ops[op->op];
    if (op->op == GGML_OP_UNARY) {
        types |= table.unary[ggml_get_unary_op(op)];
    } else if (op->op == GGML_OP_GLU) {
        types |= table.glu[ggml_get_glu_op(op)];
    }
    return types & type;
}

bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    sim_device * device = sim_device::of(dev);
    std::unique_lock<std::mutex> lock(device->mutex);
    const gp_sim_decisions & decisions = device->decisions;
    if (decisions.mode == GP_SIM_CARD && !sim_is_callers(op->op)) {
        lock.unlock();
        return sim_card_supports(device->settings.card, op);
    }
    if (sim_is_callers(op->op) || !ggml_backend_dev_supports_op(sim_cpu(), op)) {
        return false;
    }
    if (op->op == GGML_OP_NONE && decisions.mode != GP_SIM_TABLE) {
        return true; // a leaf: otherwise no leaf could be in its memory, and upstream would abort
    }
    switch (decisions.mode) {
        case GP_SIM_ALL:   return true;
        case GP_SIM_TABLE: return in_table(decisions, op);
        case GP_SIM_ASK: {
            void * predicate = decisions.predicate;
            lock.unlock(); // the predicate may ask this device
            return gp_sim_ask(op, predicate);
        }
        default:           return false;
    }
}

// Like get_op_batch_size in ggml-cuda.cu, and offload_op in ggml-metal.cpp and ggml-cann.cpp.
int64_t batch_size(const ggml_tensor * op, int32_t batch) {
    if (batch == GP_SIM_PRODUCTS && op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) {
        return 0;
    }
    if (batch == GP_SIM_NE1 && op->op != GGML_OP_GET_ROWS) {
        return op->ne[1];
    }
    switch (op->op) {
        case GGML_OP_GET_ROWS:   return 0;
        case GGML_OP_MUL_MAT:    return op->ne[1];
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK:  return op->ne[2];
        default:                 return ggml_nrows(op);
    }
}

bool offload_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    sim_device * device = sim_device::of(dev);
    std::unique_lock<std::mutex> lock(device->mutex);
    if (device->decisions.batch == GP_SIM_BY_CARD) {
        lock.unlock();
        return sim_card_offloads(device->settings.card, op);
    }
    const int64_t least = device->decisions.offload_min_batch;
    return least > 0 && batch_size(op, device->decisions.batch) >= least;
}

void fill_interfaces(sim_device & device) {
    ggml_backend_device_i & dev = device.native.iface;
    dev.get_name             = get_name;
    dev.get_description      = get_description;
    dev.get_memory           = get_memory;
    dev.get_type             = get_type;
    dev.get_props            = get_props;
    dev.init_backend         = sim_backend_init;
    dev.get_buffer_type      = get_buffer_type;
    dev.get_host_buffer_type = get_host_buffer_type;
    dev.supports_op          = supports_op;
    dev.supports_buft        = sim_supports_buft;
    dev.offload_op           = offload_op;
    dev.event_new            = sim_event_new;
    dev.event_free           = sim_event_free;
    dev.event_synchronize    = sim_event_synchronize;
    device.native.reg        = &reg().native;
    device.native.context    = &device;

    ggml_backend_buffer_type_i & buft = device.buft.iface;
    buft.get_name       = buft_name;
    buft.alloc_buffer   = alloc_buffer;
    buft.get_alignment  = get_alignment;
    buft.get_max_size   = get_max_size;
    buft.get_alloc_size = get_alloc_size;

    ggml_backend_buffer_type_i & host = device.host_buft.iface;
    host.get_name      = buft_name;
    host.alloc_buffer  = alloc_host_buffer;
    host.get_alignment = get_alignment;
    host.is_host       = is_host;

    device.stand_in.buft = ggml_backend_cpu_buffer_type();
    for (ggml_backend_buffer_type * type : {&device.buft, &device.host_buft}) {
        type->device  = &device.native;
        type->context = &device;
    }
}

// --- registry

registry & reg() {
    static registry & it = *[] {
        registry * made = new registry; // never destroyed: backends may be freed after static objects
        made->native.api_version            = GGML_BACKEND_API_VERSION;
        made->native.iface.get_name         = [](ggml_backend_reg_t) { return "SIM"; };
        made->native.iface.get_device_count = [](ggml_backend_reg_t) { return reg().listed.size(); };
        made->native.iface.get_device       = [](ggml_backend_reg_t, size_t i) { return &reg().listed.at(i)->native; };
        made->native.iface.get_proc_address = sim_proc_address;
        return made;
    }();
    return it;
}

// Upstream reads a registry's devices when it is registered. It can add devices later, but removes them only all at
// once, by unloading the registry.
void list(sim_device * device) {
    device->listed = true;
    reg().listed.push_back(device);
    if (reg().listed.size() == 1) {
        ggml_backend_register(&reg().native);
    } else {
        ggml_backend_device_register(&device->native);
    }
}

void unlist(sim_device * device) {
    std::vector<sim_device *> & listed = reg().listed;
    listed.erase(std::remove(listed.begin(), listed.end(), device), listed.end());
    device->listed = false;
    ggml_backend_unload(&reg().native);
    if (!listed.empty()) {
        ggml_backend_register(&reg().native);
    }
}

int n_shared(const sim_device & device) {
    return (int) std::count_if(reg().listed.begin(), reg().listed.end(),
        [&](sim_device * other) { return other->settings.buft_of == &device.native; });
}

} // namespace

ggml_backend_dev_t sim_cpu() {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    GGML_ASSERT(cpu != nullptr && "simulated devices compute on the CPU");
    return cpu;
}

bool sim_is_buffer(ggml_backend_buffer_t buffer) {
    return buffer->iface.get_base == get_base;
}

sim_device * sim_of_buft(ggml_backend_buffer_type_t buft) {
    return buft->iface.get_name == buft_name ? sim_device::of(buft) : nullptr;
}

bool sim_is_callers(enum ggml_op op) {
    return op == GGML_OP_MAP_CUSTOM1 || op == GGML_OP_MAP_CUSTOM2 || op == GGML_OP_MAP_CUSTOM3 || op == GGML_OP_CUSTOM;
}

bool sim_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    sim_device * device = sim_device::of(dev);
    if (device->settings.host) {
        return ggml_backend_buft_is_host(buft);
    }
    if (device->settings.card) {
        return sim_card_takes(device->settings.card, buft);
    }
    // An integrated GPU reads pinned memory in place, as with CUDA.
    const bool pinned = device->settings.type == GGML_BACKEND_DEVICE_TYPE_IGPU && buft == &device->host_buft;
    return buft == get_buffer_type(dev) || pinned;
}

} // namespace gp

extern "C" {

ggml_backend_dev_t gp_sim_open(const char * name, const gp_sim_settings * settings) {
    gp::registry & registry = gp::reg();
    const auto named = [name](const gp::sim_device & d) { return d.name == name; };
    auto found = std::find_if(registry.devices.begin(), registry.devices.end(), named);
    if (found == registry.devices.end()) {
        registry.devices.emplace_back();
        found = std::prev(registry.devices.end());
        found->name      = name;
        found->host_name = found->name + "_Host";
        gp::fill_interfaces(*found);
    }
    gp::sim_device & device = *found;
    if (memcmp(&device.settings, settings, sizeof(*settings)) != 0) {
        if (device.n_backends > 0 || device.n_buffers > 0 || gp::n_shared(device) > 0) {
            return nullptr;
        }
        device.settings = *settings;
    }
    if (!device.listed) {
        gp::list(&device);
    }
    return &device.native;
}

void gp_sim_decide(ggml_backend_dev_t dev, const gp_sim_decisions * decisions) {
    gp::sim_device * device = gp::sim_device::of(dev);
    std::lock_guard<std::mutex> lock(device->mutex);
    device->decisions = *decisions;
}

void gp_sim_state(ggml_backend_dev_t dev, struct gp_sim_state * state) {
    gp::sim_device * device = gp::sim_device::of(dev);
    std::lock_guard<std::mutex> lock(device->mutex);
    state->n_backends = device->n_backends;
    state->n_buffers  = device->n_buffers;
    state->n_shared   = gp::n_shared(*device);
    state->used       = device->used;
}

ggml_backend_reg_t gp_sim_registry(void) {
    return &gp::reg().native;
}

void gp_sim_close(ggml_backend_dev_t dev) {
    gp::unlist(gp::sim_device::of(dev));
}

} // extern "C"

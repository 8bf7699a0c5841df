// Backends of simulated devices. Each has a CPU backend that computes, and a queue; without `async_` it has no queue
// and computes on the caller's thread.

#include "sim_backend.h"

#include "reach.h"
#include "sim_graph.h"
#include "sim_queue.h"
#include "sim_threads.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace gp {
namespace {

struct backend {
    ggml_backend               native = {};
    sim_device               * device = nullptr;
    ggml_backend_t             cpu    = nullptr;
    std::unique_ptr<sim_threads> threads; // of `cpu`
    std::shared_ptr<sim_queue> queue; // NULL: computes on the caller's thread

    std::mutex                 mutex; // protects the members below
    ggml_abort_callback        abort      = nullptr;
    void                     * abort_data = nullptr;
};

// A queue, and the ticket that must be done before something else.
struct mark {
    std::shared_ptr<sim_queue> queue;
    sim_queue::ticket          until = 0;
};

std::vector<backend *> & all() { // sim_order is its lock
    static std::vector<backend *> & it = *new std::vector<backend *>;
    return it;
}

backend * of(ggml_backend_t native) {
    return static_cast<backend *>(native->context);
}

// The device whose memory `device` computes in.
const sim_device * owner(const sim_device * device) {
    return device->settings.buft_of ? sim_device::of(device->settings.buft_of) : device;
}

// The unfinished work in the memory that a device computes in, without that of `without`. Call it with sim_order held.
std::vector<mark> pending(const sim_device * device, const backend * without = nullptr) {
    std::vector<mark> marks;
    for (const backend * other : all()) {
        if (other != without && other->queue && owner(other->device) == owner(device)) {
            if (const sim_queue::ticket until = other->queue->pending()) {
                marks.push_back({other->queue, until});
            }
        }
    }
    return marks;
}

void wait(const std::vector<mark> & marks, bool interruptible) {
    for (const mark & one : marks) {
        one.queue->wait(one.until, interruptible);
    }
}

// Gives the backend's queue a job that waits for all unfinished work in the same memory. Call it with sim_order held.
sim_queue::ticket give(backend * self, std::function<void()> job) {
    std::vector<mark> before = pending(self->device, self);
    if (!before.empty()) {
        self->queue->give([before] { wait(before, false); }, true);
    }
    return self->queue->give(std::move(job));
}

const char * get_name(ggml_backend_t native) {
    return of(native)->device->name.c_str();
}

void free_backend(ggml_backend_t native) {
    backend * self = of(native);
    {
        std::lock_guard<std::mutex> lock(sim_order());
        all().erase(std::find(all().begin(), all().end(), self));
    }
    const auto last = [self] {
        ggml_backend_free(self->cpu);
        self->device->n_backends--;
        delete self;
    };
    const std::shared_ptr<sim_queue> queue = self->queue;
    if (queue) {
        queue->end(last);
    } else {
        last();
    }
}

// --- computing

// Aborts for a graph that the device could not compute: a wrong plan must not pass because the CPU's kernels compute.
void check_graph(ggml_backend_t native, const ggml_cgraph * graph) {
    const auto reaches = [native](ggml_backend_buffer_type_t buft) { return sim_supports_buft(native->device, buft); };
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (sim_is_callers(node->op) && is_computed(node)) {
            GGML_ABORT("node '%s' (%s) on %s: its function is the caller's own", node->name, ggml_op_desc(node), get_name(native));
        }
        if (const ggml_tensor * t = unreached(node, reaches)) {
            GGML_ABORT("%s", unreached_text(node, t, get_name(native)).c_str());
        }
    }
}

// Its addresses are the host's.
void spoil(ggml_tensor * node) {
    if (node->type == GGML_TYPE_F32 && ggml_is_contiguous(node)) {
        float * values = (float *) node->data;
        for (int64_t i = 0; i < ggml_nelements(node); i++) {
            values[i] *= 1.01f;
        }
    }
}

// A device with a wrong kernel computes its nodes one by one.
enum ggml_status compute(const backend * self, ggml_cgraph * graph) {
    self->threads->prepare();
    const int32_t wrong = self->device->settings.wrong;
    if (wrong == GGML_OP_NONE) {
        return ggml_backend_graph_compute(self->cpu, graph);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_cgraph one = ggml_graph_view(graph, i, i + 1);
        const enum ggml_status status = ggml_backend_graph_compute(self->cpu, &one);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        if (graph->nodes[i]->op == (enum ggml_op) wrong) {
            spoil(graph->nodes[i]);
        }
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status graph_compute(ggml_backend_t native, ggml_cgraph * graph) {
    check_graph(native, graph);
    backend * self = of(native);
    std::unique_lock<std::mutex> lock(sim_order());
    if (self->queue) {
        auto copy = std::make_shared<sim_graph>(graph, &self->device->stand_in);
        give(self, [self, copy] {
            const enum ggml_status status = compute(self, copy->graph);
            if (status != GGML_STATUS_SUCCESS) {
                throw status_error(self->device->name.c_str(), status);
            }
        });
        return GGML_STATUS_SUCCESS;
    }
    const std::vector<mark> before = pending(self->device, self);
    lock.unlock();
    wait(before, true);
    if (self->device->settings.host) {
        return compute(self, graph);
    }
    static thread_local std::unique_ptr<sim_graph> here; // kept, because an error describes its tensors (guard.cpp)
    here = std::make_unique<sim_graph>(graph, &self->device->stand_in);
    return compute(self, here->graph);
}

void synchronize(ggml_backend_t native) {
    sim_queue & queue = *of(native)->queue;
    queue.wait(queue.pending(), true);
    queue.raise_failure();
}

// --- copies

void set_tensor_async(ggml_backend_t native, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    const char * from = (const char *) data;
    char       * to   = sim_here(tensor->data) + offset;
    std::vector<char> kept(from, from + size); // a copy, as drivers make: the caller may reuse its memory
    std::lock_guard<std::mutex> lock(sim_order());
    give(of(native), [to, kept = std::move(kept)] { memcpy(to, kept.data(), kept.size()); });
}

void get_tensor_async(ggml_backend_t native, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    const char * from = sim_here(tensor->data) + offset;
    std::lock_guard<std::mutex> lock(sim_order());
    give(of(native), [data, from, size] { memcpy(data, from, size); });
}

bool cpy_tensor_async(ggml_backend_t native_src, ggml_backend_t native_dst, const ggml_tensor * src, ggml_tensor * dst) {
    ggml_backend_buffer_t src_buffer = src->view_src ? src->view_src->buffer : src->buffer;
    ggml_backend_buffer_t dst_buffer = dst->view_src ? dst->view_src->buffer : dst->buffer;
    if (native_src->iface.get_name != get_name || !sim_is_buffer(src_buffer) || !sim_is_buffer(dst_buffer)) {
        return false;
    }
    backend * from = of(native_src), * to = of(native_dst);
    if (!from->queue) {
        return false;
    }
    const char * data  = sim_here(src->data);
    char       * place = sim_here(dst->data);
    const size_t size  = ggml_nbytes(src);
    std::lock_guard<std::mutex> lock(sim_order());
    const mark computed{from->queue, from->queue->pending()};
    if (from != to && computed.until != 0) {
        to->queue->give([computed] { computed.queue->wait(computed.until, false); }, true);
    }
    const mark copied{to->queue, give(to, [=] { memcpy(place, data, size); })};
    if (from != to) { // the source's next job may overwrite it
        from->queue->give([copied] { copied.queue->wait(copied.until, false); }, true);
    }
    return true;
}

// --- events

mark * mark_of(ggml_backend_event_t event) {
    return static_cast<mark *>(event->context);
}

void event_record(ggml_backend_t native, ggml_backend_event_t event) {
    backend * self = of(native);
    *mark_of(event) = self->queue ? mark{self->queue, self->queue->pending()} : mark{};
}

void event_wait(ggml_backend_t native, ggml_backend_event_t event) {
    backend  * self  = of(native);
    const mark until = *mark_of(event);
    if (until.until == 0 || until.queue == self->queue) {
        return;
    }
    if (self->queue) {
        std::lock_guard<std::mutex> lock(sim_order());
        self->queue->give([until] { until.queue->wait(until.until, false); }, true);
    } else {
        until.queue->wait(until.until, true);
    }
}

// --- settings

void finish(const backend * self) {
    if (self->queue) {
        self->queue->wait(self->queue->pending(), true);
    }
}

void set_n_threads(ggml_backend_t native, int n_threads) {
    finish(of(native));
    of(native)->threads->set(n_threads);
}

void set_abort_callback(ggml_backend_t native, ggml_abort_callback callback, void * data) {
    backend * self = of(native);
    std::lock_guard<std::mutex> lock(self->mutex);
    self->abort      = callback;
    self->abort_data = data;
}

bool aborts(void * data) {
    backend * self = static_cast<backend *>(data);
    std::unique_lock<std::mutex> lock(self->mutex);
    const ggml_abort_callback callback = self->abort;
    void * callback_data = self->abort_data;
    lock.unlock(); // the callback may be in Python
    return sim_queue::stopped() || (callback != nullptr && callback(callback_data));
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
    self->threads = std::make_unique<sim_threads>(self->cpu);
    sim_cpu_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback")(self->cpu, aborts, self);
    self->device->n_backends++;
    self->native.guid    = &guid;
    self->native.device  = dev;
    self->native.context = self;
    ggml_backend_i & iface = self->native.iface;
    iface.get_name      = get_name;
    iface.free          = free_backend;
    iface.graph_compute = graph_compute;
    iface.event_record  = event_record;
    iface.event_wait    = event_wait;
    sim_set_optimize(&self->native);
    if (self->device->settings.async_) {
        self->queue = std::make_shared<sim_queue>();
        iface.synchronize      = synchronize;
        iface.set_tensor_async = set_tensor_async;
        iface.get_tensor_async = get_tensor_async;
        iface.cpy_tensor_async = cpy_tensor_async;
    }
    std::lock_guard<std::mutex> lock(sim_order());
    all().push_back(self);
    return &self->native;
}

void sim_finish(const sim_device * device) {
    std::unique_lock<std::mutex> lock(sim_order());
    const std::vector<mark> marks = pending(device);
    lock.unlock();
    wait(marks, false);
}

void sim_read(const sim_device * device) {
    std::unique_lock<std::mutex> lock(sim_order());
    const std::vector<mark> marks = pending(device);
    std::vector<std::shared_ptr<sim_queue>> queues;
    for (const backend * one : all()) {
        if (one->queue && owner(one->device) == owner(device)) {
            queues.push_back(one->queue);
        }
    }
    lock.unlock();
    wait(marks, true);
    for (const auto & queue : queues) {
        queue->raise_failure();
    }
}

bool sim_defer(std::function<void()> work) {
    if (sim_queue * queue = sim_queue::current()) {
        queue->give(std::move(work), true);
        return true;
    }
    return false;
}

ggml_backend_event_t sim_event_new(ggml_backend_dev_t dev) {
    return sim_device::of(dev)->settings.async_ ? new ggml_backend_event{dev, new mark} : nullptr;
}

void sim_event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete mark_of(event);
    delete event;
}

void sim_event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    const mark until = *mark_of(event);
    if (until.until != 0) {
        until.queue->wait(until.until, true);
    }
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

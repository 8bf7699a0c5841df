#include "blank.h"

#include "guard.h"
#include "reach.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

struct mark {
    uint8_t  bits;
    uint8_t  fused; // GP_FUSED
    uint16_t seen;  // what was in its memory: `content`
    uint32_t epoch; // when it was made: `clears`
};

static_assert(sizeof(ggml_tensor::padding) >= sizeof(mark), "the marks of blank.h are in a tensor's padding");
static_assert(offsetof(mark, fused) == GP_FUSED_AT, "as the CPU backend has it");

mark & mark_of(const ggml_tensor * t) { return *(mark *) t->padding; }

std::mutex mutex; // protects these
uint32_t   clears = 0;
std::unordered_map<ggml_backend_buffer_t, uint32_t> cleared; // in which of the `clears`
std::unordered_map<ggml_backend_graph_plan_t, const ggml_cgraph *> planned;

std::atomic<uint64_t> n_marks{0}; // how many were made: while it stays the same, no tensor has lost its data

// The graphs whose leafs this thread last found to have data, and whose nodes count as computed.
struct known {
    const ggml_cgraph * graph;
    uint64_t            marks, changes;
    bool operator==(const known & other) const {
        return graph == other.graph && marks == other.marks && changes == other.changes;
    }
};

constexpr int         N_LATELY = 8; // number of graphs that a model keeps
thread_local known    lately[N_LATELY];
thread_local unsigned n_known = 0;

known now(const ggml_cgraph * graph) { return { graph, n_marks.load(std::memory_order_relaxed), gp_changes() }; }

const ggml_tensor * root(const ggml_tensor * t) { return t->view_src != nullptr ? t->view_src : t; }

// The first and last bytes of a leaf: one number, or two that overlap. Nothing if the CPU cannot read them.
struct ends {
    uint8_t * places[2] = {};
    size_t    size      = 0;
    explicit ends(const ggml_tensor * leaf) {
        if (leaf->data != nullptr && leaf->buffer != nullptr && leaf->view_src == nullptr && ggml_backend_buffer_is_host(leaf->buffer)) {
            const size_t n = ggml_nbytes(leaf);
            size      = std::min<size_t>(n, 8);
            places[0] = (uint8_t *) leaf->data;
            places[1] = (uint8_t *) leaf->data + n - size;
        }
    }
};

// A hash of the ends, 0 if there are none. Whoever writes to host memory without a call of ours, through a pointer, changes it.
uint16_t content(const ggml_tensor * leaf) {
    const ends at(leaf);
    uint32_t   hash = at.size == 0 ? 0 : 2166136261u;
    for (const uint8_t * place : at.places) {
        for (size_t i = 0; i < at.size; i++) {
            hash = (hash ^ place[i]) * 16777619u;
        }
    }
    return at.size == 0 ? 0 : (uint16_t) (hash ^ hash >> 16) | 1;
}

// Notes what is in new memory, so that a write is seen: values that nobody writes.
void seal(ggml_tensor * leaf) {
    if (leaf->op == GGML_OP_NONE) {
        const ends at(leaf);
        for (uint8_t * place : at.places) {
            for (size_t i = 0; i < at.size; i++) {
                place[i] = (uint8_t) (0xa5 - 31 * i);
            }
        }
        mark_of(leaf).seen = content(leaf);
    }
}

void add(ggml_tensor * t) {
    const std::lock_guard<std::mutex> lock(mutex);
    mark_of(t) = { GP_BLANK_NEW, 0, 0, clears };
    n_marks++;
}

bool was_cleared(const ggml_tensor * t) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = cleared.find(gp::buffer_of(t));
    return found != cleared.end() && found->second > mark_of(t).epoch;
}

bool is_blank(const ggml_tensor * leaf) {
    return (mark_of(leaf).bits & (GP_BLANK_NEW | GP_BLANK_LOST)) != 0 && !ggml_is_empty(leaf) && !was_cleared(leaf) &&
        content(leaf) == mark_of(leaf).seen;
}

// Whether the node needs the data of src[j]. Only asked about leafs without data, so names will do: not every release
// has all these ops.
bool reads(const ggml_tensor * node, int j) {
    const char * op = ggml_op_name(node->op);
    const auto   is = [op](const char * name) { return strcmp(op, name) == 0; };
    if (is("CPY")) {
        return j != 1; // the target
    }
    if (is("SET")) {
        return j != 0 || node->view_src == nullptr; // in place it writes a part
    }
    if (is("SET_ROWS")) {
        return j != 2;
    }
    if (is("IM2COL") || is("IM2COL_3D")) {
        return j != 0; // only the kernel's shape
    }
    if (is("IM2COL_BACK")) {
        return j != 1;
    }
    return !is("FILL") && strstr(op, "CUSTOM") == nullptr; // a function of Python may need shapes only
}

// A tensor of the scheduler that gets the copy of another before the nodes that follow.
bool is_copy(const ggml_tensor * node) {
    return node->op == GGML_OP_NONE && node->view_src == nullptr && (node->flags & GGML_TENSOR_FLAG_PARAM) == 0;
}

// Whether computing the node writes to memory of its own, which another tensor may have had before.
bool takes_memory(const ggml_tensor * node) {
    return node->view_src == nullptr && node->data != nullptr && !ggml_is_empty(node) && (gp::is_computed(node) || is_copy(node));
}

// The copy that the scheduler makes there of what the node views; NULL for other nodes.
ggml_tensor * copies_to(const ggml_cgraph * graph, int i) {
    const ggml_tensor * node = graph->nodes[i];
    const bool views = node->op == GGML_OP_NONE && node->view_src != nullptr && i + 1 < graph->n_nodes;
    return views && is_copy(graph->nodes[i + 1]) ? graph->nodes[i + 1] : nullptr;
}

void set_bit(const ggml_tensor * t, int bit, bool on) {
    mark_of(t).bits = on ? mark_of(t).bits | bit : mark_of(t).bits & ~bit;
}

bool is_stale(const ggml_tensor * t) {
    t = gp_blank_shown(t);
    return (mark_of(t).bits & GP_BLANK_STALE) != 0 || (t->op == GGML_OP_NONE && is_blank(t));
}

// Marks the nodes that follow from leafs without data; with `lost` false there are none.
void set_stale(const ggml_cgraph * graph, bool lost) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (const ggml_tensor * copy = copies_to(graph, i)) {
            set_bit(copy, GP_BLANK_STALE, lost && is_stale(node->view_src));
        }
        if (gp::is_computed(node)) {
            bool stale = false;
            for (int j = 0; lost && j < GGML_MAX_SRC && !stale; j++) {
                stale = node->src[j] != nullptr && is_stale(node->src[j]) && reads(node, j);
            }
            set_bit(node, GP_BLANK_STALE, stale);
            if (stale && node->view_src != nullptr && node->view_src->op != GGML_OP_NONE) {
                set_bit(node->view_src, GP_BLANK_STALE, true);
            }
        }
    }
}

std::atomic<bool> any_stale{false}; // whether there ever was one

// The leafs of a graph, and its parameters: they are among the nodes.
template <class F> void each_leaf(const ggml_cgraph * graph, F look_at) {
    for (int i = 0; i < graph->n_leafs; i++) {
        look_at(graph->leafs[i]);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->op == GGML_OP_NONE) {
            look_at(graph->nodes[i]);
        }
    }
}

struct range {
    ggml_backend_buffer_t buffer;
    uintptr_t             start, end;
    explicit range(const ggml_tensor * t)
        : buffer(gp::buffer_of(t)), start((uintptr_t) t->data), end(start + (t->data != nullptr ? ggml_nbytes(t) : 0)) {}
    bool meets(const range & other) const { return buffer == other.buffer && start < other.end && other.start < end; }
};

// Joined ranges of memory.
class ranges {
public:
    bool meet(const range & r) const {
        const auto next = ends.lower_bound({ r.buffer, r.end });
        return next != ends.begin() && std::prev(next)->first.first == r.buffer && std::prev(next)->second > r.start;
    }
    void add(range r) {
        auto it = ends.upper_bound({ r.buffer, r.start });
        if (it != ends.begin() && std::prev(it)->first.first == r.buffer && std::prev(it)->second >= r.start) {
            --it;
            if (it->second >= r.end) {
                return;
            }
            r.start = it->first.second;
        }
        while (it != ends.end() && it->first.first == r.buffer && it->first.second <= r.end) {
            r.end = std::max(r.end, it->second);
            it    = ends.erase(it);
        }
        ends[{ r.buffer, r.start }] = r.end;
    }

private:
    std::map<std::pair<ggml_backend_buffer_t, uintptr_t>, uintptr_t> ends;
};

} // namespace

void gp_blank_add(ggml_tensor * tensor) {
    add(tensor);
    seal(tensor);
}

void gp_blank_placed(ggml_tensor * tensor) {
    const ends at(tensor);
    for (const uint8_t * place : at.places) {
        if (std::any_of(place, place + at.size, [](uint8_t byte) { return byte != 0; })) {
            return;
        }
    }
    add(tensor);
    mark_of(tensor).seen = content(tensor);
}

void gp_blank_graph(const ggml_cgraph * graph) {
    each_leaf(graph, [](ggml_tensor * leaf) {
        if (leaf->view_src == nullptr && leaf->data == nullptr) {
            add(leaf);
        } else if (mark_of(leaf).seen == 0 && ends(leaf).size != 0) { // `lib` gave it memory: who knows
            mark_of(leaf).bits &= ~GP_BLANK_NEW;
        }
    });
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_tensor * node = graph->nodes[i];
        const bool    gets = root(node)->data == nullptr && node->op != GGML_OP_NONE;
        if (node->view_src == nullptr ? gets : gp::is_computed(node) && (gets || !(mark_of(node).bits & GP_BLANK_COMPUTED))) {
            add(node);
        }
    }
}

void gp_blank_given(const ggml_cgraph * graph) {
    each_leaf(graph, [](ggml_tensor * leaf) {
        if ((mark_of(leaf).bits & GP_BLANK_NEW) != 0 && mark_of(leaf).seen == 0) {
            seal(leaf);
        }
    });
}

void gp_blank_written(ggml_tensor * tensor) {
    for (const ggml_tensor * t : { (const ggml_tensor *) tensor, root(tensor) }) {
        mark_of(t).fused = 0;
        mark_of(t).bits &= ~(GP_BLANK_NEW | GP_BLANK_LOST | GP_BLANK_REUSED | GP_BLANK_STALE);
    }
}

void gp_blank_share(ggml_tensor * tensor) {
    for (const ggml_tensor * t : { (const ggml_tensor *) tensor, root(tensor) }) {
        mark_of(t).bits = (mark_of(t).bits & ~(GP_BLANK_NEW | GP_BLANK_LOST)) | GP_BLANK_SHARED;
    }
}

void gp_blank_cleared(ggml_backend_buffer_t buffer) {
    const std::lock_guard<std::mutex> lock(mutex);
    cleared[buffer] = ++clears;
}

ggml_tensor * gp_blank_compute(const ggml_cgraph * graph) {
    const known here = now(graph);
    if (std::find(lately, lately + N_LATELY, here) != lately + N_LATELY) {
        return nullptr;
    }
    std::vector<const ggml_tensor *> written; // blank leafs, into views of which earlier nodes write
    std::vector<std::pair<const ggml_tensor *, const ggml_tensor *>> copies; // of blank leafs, and the leafs
    bool lost = false;
    const auto blank_leaf = [&](const ggml_tensor * src) -> const ggml_tensor * {
        for (const auto & copy : copies) {
            src = copy.first == src ? copy.second : src;
        }
        const ggml_tensor * leaf = root(src);
        const bool lacks = leaf->op == GGML_OP_NONE && is_blank(leaf) && !ggml_is_empty(src);
        return lacks && std::find(written.begin(), written.end(), leaf) == written.end() ? leaf : nullptr;
    };
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (copies_to(graph, i) != nullptr) { // whether a node reads the copy or not
            if (const ggml_tensor * leaf = blank_leaf(node)) {
                copies.push_back({ copies_to(graph, i), leaf });
            }
        }
        if (!gp::is_computed(node)) {
            continue;
        }
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            const ggml_tensor * leaf = node->src[j] != nullptr ? blank_leaf(node->src[j]) : nullptr;
            if (leaf != nullptr && reads(node, j)) {
                if (mark_of(leaf).bits & GP_BLANK_NEW) {
                    return (ggml_tensor *) leaf;
                }
                lost = true;
            }
        }
        if (node->view_src != nullptr && node->view_src->op == GGML_OP_NONE && is_blank(node->view_src)) {
            written.push_back(node->view_src);
        }
    }
    gp_blank_computed(graph);
    for (const ggml_tensor * leaf : written) {
        mark_of(leaf).bits &= ~(GP_BLANK_NEW | GP_BLANK_LOST);
    }
    if (lost || any_stale) {
        any_stale = true;
        set_stale(graph, lost);
    }
    if (!lost) {
        lately[n_known++ % N_LATELY] = here;
    }
    return nullptr;
}

void gp_blank_computed(const ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        mark & mine = mark_of(graph->nodes[i]);
        if ((mine.bits & (GP_BLANK_NEW | GP_BLANK_COMPUTED)) != GP_BLANK_COMPUTED && gp::is_computed(graph->nodes[i])) {
            mine.bits = (mine.bits & ~GP_BLANK_NEW) | GP_BLANK_COMPUTED;
        }
    }
}

void gp_blank_plan(ggml_backend_graph_plan_t plan, const ggml_cgraph * graph) {
    const std::lock_guard<std::mutex> lock(mutex);
    planned.erase(plan);
    if (plan != nullptr && graph != nullptr) {
        planned[plan] = graph;
    }
}

void gp_blank_plan_computed(ggml_backend_graph_plan_t plan) {
    const ggml_cgraph * graph = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = planned.find(plan);
        graph            = found == planned.end() ? nullptr : found->second;
    }
    if (graph != nullptr) {
        gp_blank_computed(graph);
    }
}

int gp_blank_find_reused(const ggml_cgraph * graph, const ggml_cgraph * own, ggml_tensor ** leafs, int n) {
    ranges later;
    int    found = 0;
    const auto look_at = [&](ggml_tensor * t) {
        mark & mine = mark_of(t);
        if (!later.meet(range(t))) {
            mine.bits &= ~GP_BLANK_REUSED;
            return;
        }
        mine.bits |= GP_BLANK_REUSED;
        if (t->op == GGML_OP_NONE && found++ < n) {
            leafs[found - 1] = t;
        }
    };
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        ggml_tensor * node = graph->nodes[i];
        if (gp::is_computed(node)) {
            look_at(node);
        }
        if (takes_memory(node)) {
            later.add(range(node));
        }
    }
    each_leaf(own, look_at);
    return found;
}

void gp_blank_lose(ggml_tensor ** leafs, int n) {
    for (int i = 0; i < n; i++) {
        mark & mine = mark_of(leafs[i]);
        if (!(mine.bits & GP_BLANK_SHARED)) {
            mine.bits = (mine.bits & ~GP_BLANK_NEW) | GP_BLANK_LOST; // it was set, as it is computed from
            mine.seen = content(leafs[i]);
            n_marks++;
        }
    }
}

const ggml_tensor * gp_blank_shown(const ggml_tensor * t) {
    while (gp::is_view_op(t->op)) {
        const ggml_tensor * next = t->op == GGML_OP_NONE || t->src[0] == nullptr ? t->view_src : t->src[0];
        if (next == nullptr) {
            break;
        }
        t = next;
    }
    return t;
}

int gp_blank_read(const ggml_tensor * tensor) {
    const ggml_tensor * t    = gp_blank_shown(tensor);
    const int           bits = mark_of(t).bits;
    if (ggml_is_empty(tensor) || (t->op == GGML_OP_NONE && !is_blank(t))) {
        return 0;
    }
    if (t->op == GGML_OP_NONE) {
        return bits & GP_BLANK_NEW ? GP_BLANK_NEW : bits & GP_BLANK_LOST;
    }
    if (bits & GP_BLANK_NEW) {
        return was_cleared(t) ? 0 : GP_BLANK_NEW;
    }
    if (mark_of(t).fused) {
        return GP_BLANK_FUSED;
    }
    return bits & GP_BLANK_REUSED ? GP_BLANK_REUSED : bits & GP_BLANK_STALE;
}

ggml_tensor * gp_blank_overwriter(const ggml_cgraph * graph, const ggml_tensor * tensor) {
    const auto last = graph->nodes + graph->n_nodes;
    auto       it   = std::find(graph->nodes, last, tensor);
    if (it != last && tensor->op != GGML_OP_NONE) {
        it++;
    } else if (it != last || std::find(graph->leafs, graph->leafs + graph->n_leafs, tensor) != graph->leafs + graph->n_leafs) {
        it = graph->nodes;
    }
    const range mine(tensor);
    it = std::find_if(it, last, [&](const ggml_tensor * t) { return t != tensor && takes_memory(t) && mine.meets(range(t)); });
    return it != last ? *it : nullptr;
}

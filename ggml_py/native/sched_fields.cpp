// Included by sched_trace.cpp in the instrumented copy of ggml-backend.cpp: the fields of its structs.

#include "sched_fields.h"

#include <type_traits>

namespace gp {

typedef std::vector<gp_field_record> fields;

// The compiler's name of this function has "T = " and the name of T, then a semicolon (GCC's note on size_t) or a bracket.
template <class T> void type_name(char * out, size_t size) {
#if defined(__GNUC__)
    const char * text = __PRETTY_FUNCTION__, * from = strstr(text, "T = ");
    const char * to   = from != nullptr && strchr(from, ';') ? strchr(from, ';') : strrchr(text, ']');
    snprintf(out, size, "%.*s", from ? (int) (to - from - 4) : 0, from ? from + 4 : "");
#else
    out[0] = '\0';
#endif
}

template <class T> int32_t kind_of() {
    return std::is_pointer<T>::value ? GP_FIELD_POINTER : std::is_same<T, bool>::value ? GP_FIELD_BOOL
         : std::is_enum<T>::value || (std::is_integral<T>::value && std::is_signed<T>::value) ? GP_FIELD_INT
         : std::is_integral<T>::value ? GP_FIELD_UINT : GP_FIELD_STRUCT;
}

template <class T> void describe(fields & out, const char * name, size_t offset) {
    typedef typename std::remove_all_extents<T>::type element;
    gp_field_record r = {};
    snprintf(r.name, sizeof(r.name), "%s", name);
    type_name<T>(r.type, sizeof(r.type));
    r.offset       = offset;
    r.size         = sizeof(T);
    r.element_size = sizeof(element);
    r.kind         = kind_of<element>();
    r.dims[0]      = (int32_t) std::extent<T, 0>::value;
    r.dims[1]      = (int32_t) std::extent<T, 1>::value;
    out.push_back(r);
}

static void absent(fields & out, const char * name) {
    gp_field_record r = {};
    snprintf(r.name, sizeof(r.name), "%s", name);
    out.push_back(r);
}

// For each field, one function for structs that have it, and one for structs that do not.
#define GP_FIELD(field) \
    template <class S> static auto describe_##field(fields & out, int) -> decltype((void) &S::field) { \
        describe<decltype(S::field)>(out, #field, offsetof(S, field)); \
    } \
    template <class S> static void describe_##field(fields & out, long) { absent(out, #field); }

// In the structs' order. A field that a later release adds goes to the place where that release has it.
// tests/scheduler/test_sched_view.py fails if a struct has other fields than these.
#define GP_SCHED_FIELDS(X) \
    X(is_reset) X(is_alloc) X(n_backends) X(backends) X(bufts) X(galloc) X(hash_set) X(hv_tensor_backend_ids) \
    X(hv_tensor_copies) X(node_backend_ids) X(leaf_backend_ids) X(prev_node_backend_ids) X(prev_leaf_backend_ids) \
    X(graph) X(splits) X(n_splits) X(splits_capacity) X(n_copies) X(cur_copy) X(next_copy) X(events) X(graph_inputs) \
    X(n_graph_inputs) X(graph_inputs_capacity) X(ctx) X(callback_eval) X(callback_eval_user_data) X(callback_copy) \
    X(callback_copy_user_data) X(context_buffer) X(context_buffer_size) X(op_offload) X(debug) X(debug_realloc) \
    X(debug_graph_size) X(debug_prev_graph_size)
#define GP_SPLIT_FIELDS(X) X(backend_id) X(i_start) X(i_end) X(inputs) X(n_inputs) X(inputs_capacity) X(graph)
#define GP_HASH_SET_FIELDS(X) X(size) X(used) X(keys)
#define GP_CGRAPH_FIELDS(X) \
    X(size) X(n_nodes) X(n_leafs) X(nodes) X(grads) X(grad_accs) X(leafs) X(use_counts) X(visited_hash_set) X(order) X(uid)

GP_SCHED_FIELDS(GP_FIELD)
// Fields of the other structs that the scheduler's struct does not have.
GP_FIELD(backend_id) GP_FIELD(i_start) GP_FIELD(i_end) GP_FIELD(inputs) GP_FIELD(n_inputs) GP_FIELD(inputs_capacity)
GP_FIELD(size) GP_FIELD(used) GP_FIELD(keys) GP_FIELD(n_nodes) GP_FIELD(n_leafs) GP_FIELD(nodes) GP_FIELD(grads)
GP_FIELD(grad_accs) GP_FIELD(leafs) GP_FIELD(use_counts) GP_FIELD(visited_hash_set) GP_FIELD(order) GP_FIELD(uid)
#undef GP_FIELD

} // namespace gp

extern "C" {

size_t gp_struct_fields(int which, gp_field_record * records, size_t n, uint64_t * size) {
    gp::fields out;
#define GP_DESCRIBE(field) gp::describe_##field<gp_described>(out, 0);
    switch (which) {
        case GP_STRUCT_SCHED: {
            typedef ggml_backend_sched gp_described;
            *size = sizeof(gp_described);
            GP_SCHED_FIELDS(GP_DESCRIBE)
        } break;
        case GP_STRUCT_SPLIT: {
            typedef ggml_backend_sched_split gp_described;
            *size = sizeof(gp_described);
            GP_SPLIT_FIELDS(GP_DESCRIBE)
        } break;
        case GP_STRUCT_HASH_SET: {
            typedef ggml_hash_set gp_described;
            *size = sizeof(gp_described);
            GP_HASH_SET_FIELDS(GP_DESCRIBE)
        } break;
        default: {
            typedef ggml_cgraph gp_described;
            *size = sizeof(gp_described);
            GP_CGRAPH_FIELDS(GP_DESCRIBE)
        }
    }
#undef GP_DESCRIBE
    std::copy(out.begin(), out.begin() + std::min(n, out.size()), records);
    return out.size();
}

int64_t gp_hash_find(const void * hash_set, const ggml_tensor * tensor) {
    const ggml_hash_set * set = (const ggml_hash_set *) hash_set;
    if (set->size == 0) {
        return -1;
    }
    const size_t slot = ggml_hash_find(set, tensor);
    return slot != GGML_HASHSET_FULL && ggml_bitset_get(set->used, slot) ? (int64_t) slot : -1;
}

void gp_sched_prev(ggml_backend_sched_t sched, int32_t * n_nodes, int32_t * n_leafs) {
    *n_nodes = gp::traced(sched) ? gp::traced(sched)->prev_n_nodes : 0;
    *n_leafs = gp::traced(sched) ? gp::traced(sched)->prev_n_leafs : 0;
}

uint64_t gp_sched_n_plans(ggml_backend_sched_t sched) {
    return gp::traced(sched) ? gp::traced(sched)->n_plans : 0;
}

} // extern "C"

// What oracle_sched.py compiles behind upstream's own text of the structs; SCALARS and LAYOUT are its fields.
#define SCALAR(field) put(", \"%s\": %lld", #field, (long long) sched->field);
#define PLACE(type, field) put(", \"%s.%s\": [%zu, %zu]", #type, #field, offsetof(struct type, field), sizeof(((type *) 0)->field));

typedef struct ggml_backend_sched S;
static std::string out;
static void put(const char * fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    out += text;
}
template <class T> static void list(const char * name, const T * values, size_t n) {
    put("%s\"%s\": [", name[0] ? ", " : "", name);
    for (size_t i = 0; i < n; i++) put("%s%lld", i ? ", " : "", (long long) values[i]);
    put("]");
}
static void graph(const struct ggml_cgraph & g) {
    put("{\"size\": %d, \"n_nodes\": %d, \"n_leafs\": %d, \"order\": %d", g.size, g.n_nodes, g.n_leafs, (int) g.order);
    list("nodes", g.nodes, g.n_nodes);
    list("leafs", g.leafs, g.n_leafs);
    put("}");
}
extern "C" const char * read_sched(S * sched) {
    out = "{\"copies\": {";
    bool first = true;
    for (size_t i = 0; i < sched->hash_set.size; i++) {
        if (!ggml_bitset_get(sched->hash_set.used, i)) continue;
        put("%s\"%zu\": {\"key\": %lld, \"backend\": %d, \"copies\": [", first ? "" : ", ", i,
            (long long) sched->hash_set.keys[i], sched->hv_tensor_backend_ids[i]);
        for (int b = 0; b < sched->n_backends; b++) {
            for (int c = 0; c < sched->n_copies; c++) {
                put("%s%lld", b + c ? ", " : "", (long long) tensor_id_copy(i, b, c));
            }
        }
        put("]}");
        first = false;
    }
    put("}");
    list("node_backend_ids", sched->node_backend_ids, sched->graph.n_nodes);
    list("leaf_backend_ids", sched->leaf_backend_ids, sched->graph.n_leafs);
    list("prev_node_backend_ids", sched->prev_node_backend_ids, sched->graph.n_nodes);
    list("prev_leaf_backend_ids", sched->prev_leaf_backend_ids, sched->graph.n_leafs);
    list("graph_inputs", sched->graph_inputs, sched->n_graph_inputs);
    list("backends", sched->backends, GGML_SCHED_MAX_BACKENDS);
    list("bufts", sched->bufts, GGML_SCHED_MAX_BACKENDS);
    list("events", &sched->events[0][0], GGML_SCHED_MAX_BACKENDS * GGML_SCHED_MAX_COPIES);
    put(", \"hash_set_size\": %zu, \"graph\": ", sched->hash_set.size);
    graph(sched->graph);
    put(", \"splits\": [");
    for (int i = 0; i < sched->n_splits; i++) {
        const struct ggml_backend_sched_split & s = sched->splits[i];
        put("%s{\"backend_id\": %d, \"i_start\": %d, \"i_end\": %d, \"n_inputs\": %d", i ? ", " : "",
            s.backend_id, s.i_start, s.i_end, s.n_inputs);
        list("inputs", &s.inputs[0], s.n_inputs);
        put(", \"graph\": ");
        graph(s.graph);
        put("}");
    }
    put("], \"plain\": {\"\": 0");
    SCALARS
    put("}}");
    return out.c_str();
}
extern "C" const char * layout() {
    out = "{\"\": [0, 0]";
    LAYOUT
    put("}");
    return out.c_str();
}
extern "C" long long slot_of(S * sched, struct ggml_tensor * t) {
    return ggml_hash_contains(&sched->hash_set, t) ? (long long) ggml_hash_find(&sched->hash_set, t) : -1;
}

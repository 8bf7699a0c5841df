// ggml_build_forward_impl's walk over a tensor's sources, without recursion, so that a chain of ops may be as long as
// memory allows, even on threads with small stacks. Included by the instrumented copy of ggml.c after upstream's own
// walk (vendor/depth_edits.py), which it replaces. It gives the same order of nodes and leafs, the same slots in the
// hash set, and the same counts and flags.
#pragma once

struct gp_visit {
    struct ggml_tensor * node;
    int                  i;     // its next source
    bool                 first; // the node was not in the graph; otherwise only the flag is passed on
};

// The tensors on the path from the root, on the heap once there are many.
struct gp_visits {
    struct gp_visit * at;
    size_t            n;
    size_t            size;
    struct gp_visit   few[128];
};

// Also called when an assertion ends the walk.
static void gp_visits_free(struct gp_visits * visits) {
    if (visits->at != visits->few) {
        free(visits->at);
    }
}

static void gp_visits_push(struct gp_visits * visits, struct ggml_tensor * node, bool first) {
    if (visits->n == visits->size) {
        const size_t size = 2*visits->size;
        struct gp_visit * old = visits->at == visits->few ? NULL : visits->at;
        struct gp_visit * at  = realloc(old, size*sizeof(*at));
        GGML_ASSERT(at != NULL && "no memory for a graph of this depth");
        if (old == NULL) {
            memcpy(at, visits->few, sizeof(visits->few));
        }
        visits->at   = at;
        visits->size = size;
    }
    visits->at[visits->n++] = (struct gp_visit) { node, 0, first };
}

#ifdef GP_VISIT_COMPUTE
static inline bool gp_lacks_compute(const struct ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        if (node->src[i] && (node->src[i]->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
            return true;
        }
    }
    return false;
}
#endif

// Visits `node`. If it is on top of `visits` afterwards, its sources come next.
static inline size_t gp_visit_enter(struct gp_visits * visits, struct ggml_cgraph * cgraph, struct ggml_tensor * node, bool compute) {
#ifdef GP_VISIT_COMPUTE
    // Written only once, because another graph with this node may be computing.
    if (node->op != GGML_OP_NONE && compute && !(node->flags & GGML_TENSOR_FLAG_COMPUTE)) {
        node->flags |= GGML_TENSOR_FLAG_COMPUTE;
    }
#endif
    const size_t pos = ggml_hash_find(&cgraph->visited_hash_set, node);
    GGML_ASSERT(pos != GGML_HASHSET_FULL);
    if (!ggml_bitset_get(cgraph->visited_hash_set.used, pos)) {
        cgraph->visited_hash_set.keys[pos] = node;
        ggml_bitset_set(cgraph->visited_hash_set.used, pos);
        cgraph->use_counts[pos] = 0;
        gp_visits_push(visits, node, true);
    }
#ifdef GP_VISIT_COMPUTE
    else if (compute && gp_lacks_compute(node)) {
        gp_visits_push(visits, node, false);
    }
#endif
    return pos;
}

static inline void gp_visit_leave(struct ggml_cgraph * cgraph, struct ggml_tensor * node) {
    if (node->op == GGML_OP_NONE && !(node->flags & GGML_TENSOR_FLAG_PARAM)) {
        GGML_ASSERT(cgraph->n_leafs < cgraph->size);
        if (node->name[0] == '\0') {
            ggml_format_name(node, "leaf_%d", cgraph->n_leafs);
        }
        cgraph->leafs[cgraph->n_leafs++] = node;
    } else {
        GGML_ASSERT(cgraph->n_nodes < cgraph->size);
        if (node->name[0] == '\0') {
            ggml_format_name(node, "node_%d", cgraph->n_nodes);
        }
        cgraph->nodes[cgraph->n_nodes++] = node;
    }
}

static size_t gp_visit_parents(struct ggml_cgraph * cgraph, struct ggml_tensor * root, bool compute) {
    __attribute__((cleanup(gp_visits_free))) struct gp_visits visits;
    visits.at   = visits.few;
    visits.n    = 0;
    visits.size = sizeof(visits.few)/sizeof(visits.few[0]);

    const size_t root_pos = gp_visit_enter(&visits, cgraph, root, compute);
    while (visits.n > 0) {
        struct gp_visit * top = &visits.at[visits.n - 1];
        if (top->i == GGML_MAX_SRC) {
            struct gp_visit done = *top;
            visits.n--;
            if (done.first) {
                gp_visit_leave(cgraph, done.node);
            }
            continue;
        }
        const int i = top->i++;
        if (!top->first) {
#ifdef GP_VISIT_COMPUTE
            struct ggml_tensor * src = top->node->src[i];
            if (src && (src->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
                gp_visit_enter(&visits, cgraph, src, true);
            }
#endif
            continue;
        }
        const int k = cgraph->order == GGML_CGRAPH_EVAL_ORDER_RIGHT_TO_LEFT ? GGML_MAX_SRC - 1 - i : i;
        struct ggml_tensor * src = top->node->src[k];
        if (src) {
            const size_t pos = gp_visit_enter(&visits, cgraph, src, compute);
            cgraph->use_counts[pos]++;
        }
    }
    return root_pos;
}

#define ggml_visit_parents_graph(cgraph, node, compute) gp_visit_parents(cgraph, node, compute)
#define ggml_visit_parents(cgraph, node) gp_visit_parents(cgraph, node, true)

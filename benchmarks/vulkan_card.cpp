// A card (ggml_py/native/cards/) among the devices of an upstream program that this library is loaded into
// (LD_PRELOAD). The program asks the card itself, not a simulated device.
//
//   GP_CARD="BACKEND|VALUE|VALUE|..."   its backend, and the values of all properties in their order
//   GP_FACTS=1                          instead of running, the program prints what each GPU says of itself
#include "cards/card.h"

#include "ggml-impl.h" // struct ggml_cgraph

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

ggml_backend_dev_t card() {
    static ggml_backend_dev_t it = [] {
        std::vector<std::string> parts;
        for (const char * at = getenv("GP_CARD"); at; at = *at ? at + 1 : nullptr) {
            parts.emplace_back(at, strcspn(at, "|"));
            at += parts.back().size();
            if (!*at) {
                break;
            }
        }
        std::vector<const char *> values;
        for (size_t i = 1; i < parts.size(); i++) {
            values.push_back(parts[i].c_str());
        }
        values.resize(values.size() + 64); // the rest has defaults
        char why[256];
        ggml_backend_dev_t made = gp_card_open(parts.at(0).c_str(), values.data(), why, sizeof(why));
        if (!made) {
            fprintf(stderr, "GP_CARD: %s\n", why);
            abort();
        }
        return made;
    }();
    return it;
}

// A backend that computes nothing: programs make one before they ask its device.
ggml_backend_t init(ggml_backend_dev_t dev, const char *) {
    static ggml_guid guid = {};
    ggml_backend * made = new ggml_backend();
    made->guid           = &guid;
    made->iface.get_name = [](ggml_backend_t) { return "card"; };
    made->iface.free     = [](ggml_backend_t backend) { delete backend; };
    made->device         = dev;
    return made;
}

const char * name(ggml_backend_dev_t) {
    return "card";
}

ggml_backend_reg_t registry() {
    static ggml_backend_device device;
    static ggml_backend_reg reg;
    device                    = *card();
    device.reg                = &reg;
    device.iface.init_backend = init;
    device.iface.get_name     = name;
    reg.api_version            = GGML_BACKEND_API_VERSION;
    reg.iface.get_name         = [](ggml_backend_reg_t) { return "card"; };
    reg.iface.get_device_count = [](ggml_backend_reg_t) { return size_t(1); };
    reg.iface.get_device       = [](ggml_backend_reg_t, size_t) { return &device; };
    return &reg;
}

void print_buft(const char * what, ggml_backend_buffer_type_t buft) {
    printf("%s.alignment %zu\n%s.max_size %zu\n%s.is_host %d\n", what, ggml_backend_buft_get_alignment(buft), what,
        ggml_backend_buft_get_max_size(buft), what, ggml_backend_buft_is_host(buft));
    ggml_init_params params = {ggml_tensor_overhead() * 64, nullptr, true};
    ggml_context * ctx = ggml_init(params);
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K}) {
        for (int64_t rows : {1, 3, 64}) {
            ggml_tensor * one = ggml_new_tensor_2d(ctx, type, 768, rows);
            printf("%s.alloc_size.%s.%d %zu\n", what, ggml_type_name(type), (int) rows,
                ggml_backend_buft_get_alloc_size(buft, one));
        }
    }
    ggml_free(ctx);
}

// --- the order of nodes (graph_optimize)

// A graph whose nodes are drawn among those that the ordering looks at; every other one has the shape of a layer.
ggml_cgraph * drawn(ggml_context * ctx, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<ggml_tensor *> have = {ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 64)};
    const auto weight = [&] { return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 64); };
    const auto any    = [&] { return have[have.size() - 1 - random() % std::min<size_t>(have.size(), 6)]; };
    ggml_tensor * positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 64);
    ggml_tensor * rows      = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 64);
    const auto rope = [&](ggml_tensor * x) {
        x = ggml_rope(ctx, ggml_reshape_3d(ctx, x, 64, 1, 64), positions, 64, 0);
        return ggml_set_rows(ctx, weight(), ggml_view_2d(ctx, x, 64, 64, x->nb[2], 0), rows);
    };
    for (int i = 0; i < 40; i++) {
        ggml_tensor * x = any();
        switch (random() % 12) {
            case 0: have.push_back(ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-5f), weight())); break;
            case 1: have.push_back(ggml_mul_mat(ctx, weight(), x)); break;
            case 2: have.push_back(ggml_add(ctx, ggml_mul_mat(ctx, weight(), x), weight())); break;
            case 3: have.push_back(ggml_mul(ctx, ggml_silu(ctx, x), any())); break;
            case 4: have.push_back(ggml_add(ctx, x, any())); break;
            case 5: have.push_back(ggml_cont(ctx, ggml_transpose(ctx, x))); break;
            case 6: have.push_back(rope(x)); break;
            case 7: have.push_back(rope(ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-5f), weight()))); break;
            case 8: have.push_back(ggml_soft_max(ctx, x)); break;
            case 9: {
                for (ggml_tensor * w : {weight(), weight(), weight()}) { // branches, as queries, keys and values
                    have.push_back(ggml_mul_mat(ctx, w, x));
                }
                break;
            }
            case 10: have.push_back(ggml_scale(ctx, x, 2.0f)); break;
            default: have.push_back(ggml_view_2d(ctx, x, 64, 64, x->nb[1], 0)); break;
        }
    }
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 2048, false);
    for (ggml_tensor * one : have) {
        ggml_build_forward_expand(graph, one);
    }
    return graph;
}

void print_orders(ggml_backend_dev_t dev, bool real) {
    ggml_backend_t backend = real ? ggml_backend_dev_init(dev, nullptr) : nullptr;
    for (unsigned seed = 0; seed < 300; seed++) {
        ggml_init_params params = {ggml_tensor_overhead() * 1024 + ggml_graph_overhead_custom(2048, false), nullptr, true};
        ggml_context * ctx  = ggml_init(params);
        ggml_cgraph * graph = drawn(ctx, seed);
        const std::vector<ggml_tensor *> before(graph->nodes, graph->nodes + graph->n_nodes);
        int n_deps = 0;
        const auto keep = [](void * n, ggml_tensor *, ggml_tensor *) { ++*static_cast<int *>(n); };
        if (real) {
            ggml_backend_graph_optimize_params all = {};
            all.add_alloc_dep = keep;
            all.user_data     = &n_deps;
            backend->iface.graph_optimize(backend, graph, &all);
        } else {
            gp_card_order(dev, graph, keep, &n_deps);
        }
        printf("order.%u deps %d:", seed, n_deps);
        for (int i = 0; i < graph->n_nodes; i++) {
            printf(" %d", (int) (std::find(before.begin(), before.end(), graph->nodes[i]) - before.begin()));
        }
        printf("\n");
        ggml_free(ctx);
    }
    ggml_backend_free(backend);
}

void print_facts(ggml_backend_dev_t dev, ggml_backend_dev_t other) {
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(dev, &props);
    printf("type %d\ndescription %s\ncaps %d %d %d %d %d\n", props.type, props.description, props.caps.async,
        props.caps.host_buffer, props.caps.buffer_from_host_ptr, props.caps.events, props.caps.mmap_support);
    ggml_backend_buffer_type_t own = ggml_backend_dev_buffer_type(dev), host = ggml_backend_dev_host_buffer_type(dev);
    print_buft("buffer", own);
    print_buft("host", host);
    printf("takes own %d host %d cpu %d other %d\n", ggml_backend_dev_supports_buft(dev, own),
        ggml_backend_dev_supports_buft(dev, host), ggml_backend_dev_supports_buft(dev, ggml_backend_cpu_buffer_type()),
        ggml_backend_dev_supports_buft(dev, ggml_backend_dev_buffer_type(other)));
    ggml_init_params params = {ggml_tensor_overhead() * 4096, nullptr, true};
    ggml_context * ctx = ggml_init(params);
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K}) {
        for (int64_t n : {1, 2, 16, 31, 32, 33, 512}) {
            ggml_tensor * w = ggml_new_tensor_2d(ctx, type, 512, 64);
            ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 512, n);
            ggml_tensor * experts = ggml_new_tensor_3d(ctx, type, 512, 64, 8);
            ggml_tensor * used = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, n);
            ggml_tensor * y = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 512, 2, n);
            const std::vector<ggml_tensor *> ops = {
                ggml_mul_mat(ctx, w, x), ggml_mul_mat_id(ctx, experts, y, used),
                ggml_get_rows(ctx, w, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n)), ggml_add(ctx, x, x),
                ggml_rms_norm(ctx, x, 1e-5f), ggml_soft_max(ctx, x),
            };
            for (const ggml_tensor * op : ops) {
                printf("offload.%s.%s.%d %d\n", ggml_op_name(op->op), ggml_type_name(type), (int) n,
                    ggml_backend_dev_offload_op(dev, op));
            }
        }
    }
    ggml_free(ctx);
}

__attribute__((constructor)) void begin() {
    if (!getenv("GP_CARD")) {
        return; // a program that the program starts
    }
    if (getenv("GP_FACTS")) {
        std::vector<ggml_backend_dev_t> gpus;
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            if (ggml_backend_dev_type(ggml_backend_dev_get(i)) == GGML_BACKEND_DEVICE_TYPE_GPU) {
                gpus.push_back(ggml_backend_dev_get(i));
            }
        }
        if (gpus.size() != 1) {
            fprintf(stderr, "GP_FACTS: expected one GPU, found %zu\n", gpus.size());
            exit(1);
        }
        printf("== real\n");
        print_facts(gpus[0], card());
        print_orders(gpus[0], true);
        printf("== card\n");
        print_facts(card(), gpus[0]);
        print_orders(card(), false);
        exit(0);
    }
    ggml_backend_register(registry());
}

} // namespace

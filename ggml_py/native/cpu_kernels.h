// Included by the instrumented copy of ggml-cpu.cpp before its get_proc_address, which returns these functions. The
// other half of cpu_trace.h: finds the extra buffer type whose kernel computes a node.
#pragma once

#include "cpu_trace.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <typeinfo>
#include <utility>

// In ggml-cpu.c (cpu_hooks.h).
extern "C" void gp_cpu_plan(const ggml_cgraph * graph, int n_threads, ggml_threadpool * pool, bool use_ref, gp_cpu_record * records);

// Upstream's repacking kernels are named by their template arguments: the type of a block, how many values of it stay
// together, how many rows lie side by side, and the type that the other operand is converted to.
static void gp_cpu_name_kernel(const ggml::cpu::tensor_traits * traits, const ggml_tensor * weight, gp_cpu_record & r) {
    int    status = 0;
    char * text   = abi::__cxa_demangle(typeid(*traits).name(), nullptr, nullptr, &status);
    const char * name = text ? text : typeid(*traits).name();
    const char * numbers = strchr(name, ',');
    long inter = 0, rows = 0;
    int  type  = 0;
    if (strstr(name, "repack::tensor_traits<") != nullptr && numbers != nullptr &&
            sscanf(numbers, ", %ldl, %ldl, (ggml_type)%d>", &inter, &rows, &type) == 3) {
        snprintf(r.layout, sizeof(r.layout), "%s_%ldx%ld", ggml_type_name(weight->type), rows, inter);
        snprintf(r.kernel, sizeof(r.kernel), "%s_%s", r.layout, ggml_type_name((ggml_type) type));
    } else {
        snprintf(r.kernel, sizeof(r.kernel), "%s", name);
    }
    free(text);
}

// The oldest releases have no use_ref.
template <class C> static auto gp_cpu_uses_ref(const C * own, int) -> decltype(own->use_ref) {
    return own->use_ref;
}
template <class C> static bool gp_cpu_uses_ref(const C *, long) {
    return false;
}

// The same, with a cache of known kernels: parsing a name costs as much as planning ten nodes.
static void gp_cpu_name_once(const ggml::cpu::tensor_traits * traits, const ggml_tensor * weight, gp_cpu_record & r) {
    static thread_local std::map<std::pair<const void *, int>, gp_cpu_record> known;
    const auto found = known.find({ traits, weight->type });
    if (found == known.end()) {
        gp_cpu_name_kernel(traits, weight, r);
        known.insert({ { traits, weight->type }, r });
        return;
    }
    memcpy(r.kernel, found->second.kernel, sizeof(r.kernel));
    memcpy(r.layout, found->second.layout, sizeof(r.layout));
}

static void gp_cpu_nodes(const ggml_cgraph * graph, int n_threads, ggml_threadpool * pool, bool use_ref, gp_cpu_record * records) {
    memset((void *) records, 0, sizeof(*records) * graph->n_nodes);
    gp_cpu_plan(graph, n_threads, pool, use_ref, records);
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        for (ggml_backend_buffer_type_t extra : ggml_backend_cpu_get_extra_buffer_types()) { // as ggml_cpu_extra_work_size
            if (!extra || !extra->context || node->src[0] == nullptr) {
                continue;
            }
            auto * traits = ((ggml::cpu::extra_buffer_type *) extra->context)->get_tensor_traits(node);
            size_t size   = 0;
            if (traits && traits->work_size(n_threads, node, size)) {
                snprintf(records[i].buft, sizeof(records[i].buft), "%s", ggml_backend_buft_name(extra));
                gp_cpu_name_once(traits, node->src[0], records[i]);
                break;
            }
        }
    }
}

// Bytes behind a cache line, below 64, at which the work of a compute begins.
size_t gp_cpu_work_offset = 0;

// Returns NULL for any other name.
static void * gp_cpu_proc_address(const char * name) {
    if (strcmp(name, "gp_cpu_nodes") == 0) {
        const gp_cpu_nodes_t f = [](const ggml_cgraph * graph, int n_threads, bool use_ref, gp_cpu_record * records) {
            gp_cpu_nodes(graph, n_threads, nullptr, use_ref, records);
        };
        return (void *) f;
    }
    if (strcmp(name, "gp_cpu_backend_nodes") == 0) {
        const gp_cpu_backend_nodes_t f = [](ggml_backend_t backend, const ggml_cgraph * graph, gp_cpu_record * records) {
            const auto * own = (const ggml_backend_cpu_context *) backend->context;
            gp_cpu_nodes(graph, own->n_threads, own->threadpool, gp_cpu_uses_ref(own, 0), records);
        };
        return (void *) f;
    }
    if (strcmp(name, "gp_cpu_set_work_offset") == 0) {
        const gp_cpu_set_work_offset_t f = [](size_t offset) { gp_cpu_work_offset = offset & 63; };
        return (void *) f;
    }
    return nullptr;
}

// What a record says of itself: the layouts of its arrays, the names behind its numbers, the program that is recorded.
#include "record_state.h"

#include "ggml-impl.h"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <type_traits>

namespace gp {

namespace {

// --- how the records are laid out, for a reader that has not been compiled with these headers

template <class T> std::string format() {
    if (std::is_array<T>::value) {
        typedef typename std::remove_extent<T>::type item;
        const std::string one = std::is_same<item, char>::value ? "" : format<typename std::conditional<std::is_array<item>::value, char, item>::type>();
        const size_t n = std::extent<T>::value;
        return one.empty() ? "S" + std::to_string(n) : one + ":" + std::to_string(n);
    }
    return (std::is_signed<T>::value ? "i" : "u") + std::to_string(sizeof(T));
}

struct layouts {
    std::string text;

    void begin(const char * name, size_t size) {
        text += std::string(text.empty() ? "" : "]},") + "\"" + name + "\":{\"size\":" + std::to_string(size) + ",\"fields\":[";
    }
    void field(const char * name, const std::string & format, size_t offset) {
        text += std::string(text.back() == '[' ? "" : ",") + "[\"" + name + "\",\"" + format + "\"," + std::to_string(offset) + "]";
    }
    std::string end() {
        return "{" + text + "]}}";
    }
};

template <class F> std::string names(int n, F name) {
    std::string text = "[";
    for (int i = 0; i < n; i++) {
        const char * one = name(i);
        text += (i ? "," : "") + json_text(one ? one : "");
    }
    return text + "]";
}

// Enumerators that some releases lack.
template <class E> std::string compute_flag(decltype(E::GGML_TENSOR_FLAG_COMPUTE) *) {
    return ",\"compute\":" + std::to_string((int) E::GGML_TENSOR_FLAG_COMPUTE);
}
template <class E> std::string compute_flag(...) { return ""; }
template <class E> std::string meta_type(decltype(E::GGML_BACKEND_DEVICE_TYPE_META) *) {
    return ",\"META\":" + std::to_string((int) E::GGML_BACKEND_DEVICE_TYPE_META);
}
template <class E> std::string meta_type(...) { return ""; }

std::string enumerators() {
#define ONE(name, value) "\"" name "\":" + std::to_string((int) value)
    return std::string("{\"TensorFlag\":{") + ONE("input", GGML_TENSOR_FLAG_INPUT) + "," + ONE("output", GGML_TENSOR_FLAG_OUTPUT) + "," +
        ONE("param", GGML_TENSOR_FLAG_PARAM) + "," + ONE("loss", GGML_TENSOR_FLAG_LOSS) + compute_flag<enum ggml_tensor_flag>(nullptr) +
        "},\"BackendBufferUsage\":{" + ONE("any", GGML_BACKEND_BUFFER_USAGE_ANY) + "," + ONE("weights", GGML_BACKEND_BUFFER_USAGE_WEIGHTS) +
        "," + ONE("compute", GGML_BACKEND_BUFFER_USAGE_COMPUTE) +
        "},\"BackendDevType\":{" + ONE("CPU", GGML_BACKEND_DEVICE_TYPE_CPU) + "," + ONE("GPU", GGML_BACKEND_DEVICE_TYPE_GPU) + "," +
        ONE("IGPU", GGML_BACKEND_DEVICE_TYPE_IGPU) + "," + ONE("ACCEL", GGML_BACKEND_DEVICE_TYPE_ACCEL) +
        meta_type<enum ggml_backend_dev_type>(nullptr) + "}}";
#undef ONE
}

} // namespace

std::string record_layouts() {
    layouts l;
#define BEGIN(type) { typedef type one; l.begin(#type, sizeof(one));
#define F(name) l.field(#name, format<decltype(one::name)>(), offsetof(one, name));
#define END }
    BEGIN(gp_tensor_record) F(addr) F(data) F(view_offs) F(nbytes) F(ne) F(nb) F(op_params) F(src) F(planned_src) F(view_src)
        F(buffer) F(kind) F(type) F(op) F(flags) F(use_count) F(backend) F(copy_of) F(copy_index) F(stage) F(cause) F(name)
        F(op_desc) F(passes) F(pin) F(dropped_pin) F(supports) F(offload) END
    BEGIN(gp_split_record) F(backend) F(start) F(end) F(first_input) F(n_inputs) END
    BEGIN(gp_input_record) F(tensor) F(copy) END
    BEGIN(gp_dep_record) F(tensor) F(until) END
    BEGIN(gp_refusal_record) F(tensor) F(backend) F(srcs) END
    BEGIN(gp_buft_record) F(is_host) F(readers) F(name) END
    BEGIN(gp_buffer_record) F(addr) F(size) F(usage) F(buft) END
    BEGIN(gp_backend_record) F(device_type) F(buft) F(gallocr_size) F(name) F(device) END
    BEGIN(gp_cpu_record) F(work_size) F(n_threads) F(n_tasks) F(n_fused) F(buft) F(kernel) F(layout) END
    BEGIN(gp_layout_record) F(offset) F(size) F(tensor) F(of) F(step) F(backend) F(chunk) F(kind) END
    BEGIN(gp_layout_buffer_record) F(alignment) F(max_size) F(backend) END
    BEGIN(gp_run_event) F(start) F(end) F(bytes) F(kind) F(compute) F(split) F(input) F(backend) F(copy) F(first) F(last)
        F(inside) F(how) F(by) END
    BEGIN(gp_record_plan) F(plan) F(scheduler) F(time) F(thread) F(hash_set_size) F(hash_set_used) F(n_nodes) F(n_copies)
        F(cur_copy) F(op_offload) F(left_backend) F(optimizers) F(n_pins_elsewhere) F(before) END
    BEGIN(gp_record_seen) F(plan) F(scheduler) F(planned) F(allocated) F(computed) F(first) F(last) F(layout) END
    BEGIN(gp_record_compute) F(scheduler) F(plan) F(compute) F(lost) F(n_events) END
    BEGIN(gp_realloc_record) F(kind) F(src) F(ours) F(need) F(have) F(tensor) F(node) F(before) F(after) END
    l.begin("gp_record_realloc", sizeof(gp_record_realloc));
    l.field("plan", "u4", offsetof(gp_record_realloc, plan));
    l.field("scheduler", "u4", offsetof(gp_record_realloc, scheduler));
    l.field("time", "i8", offsetof(gp_record_realloc, time));
    l.field("reason", "gp_realloc_record", offsetof(gp_record_realloc, reason));
#undef BEGIN
#undef F
#undef END
    return l.end();
}

std::string record_tables() {
    return "\"enums\":" + enumerators() + "," + "\"ops\":" + names(GGML_OP_COUNT, [](int i) { return ggml_op_name((enum ggml_op) i); }) +
        ",\"types\":" + names(GGML_TYPE_COUNT, [](int i) { return ggml_type_name((enum ggml_type) i); });
}

std::string record_command_line() {
    std::string text = "[";
    if (FILE * file = fopen("/proc/self/cmdline", "rb")) {
        std::string word;
        for (int c = getc(file); c != EOF; c = getc(file)) {
            if (c == 0) {
                text += (text.size() > 1 ? "," : "") + json_text(word.c_str());
                word.clear();
            } else {
                word += (char) c;
            }
        }
        fclose(file);
    }
    return text + "]";
}

const char * record_program() {
#if defined(__GLIBC__)
    return program_invocation_short_name;
#else
    return "program";
#endif
}

std::string json_text(const char * text) {
    std::string out = "\"";
    for (const unsigned char * p = (const unsigned char *) text; *p; p++) {
        char code[8];
        if (*p == '"' || *p == '\\') {
            out += '\\';
            out += (char) *p;
        } else if (*p < 32) {
            snprintf(code, sizeof(code), "\\u%04x", *p);
            out += code;
        } else {
            out += (char) *p;
        }
    }
    return out + "\"";
}

} // namespace gp

extern "C" const char * gp_record_tables(void) {
    static const std::string text = "{" + gp::record_tables() + "}";
    return text.c_str();
}

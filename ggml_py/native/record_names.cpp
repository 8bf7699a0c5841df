// What a record says of itself: the layouts of its arrays, the names behind its numbers, the program that is recorded.
#define GP_WITH_MEMBERS // of the structs that are described
#include "record_state.h"

#include "ggml-impl.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <sstream>
#include <string>
#include <unordered_map>

namespace gp {

namespace {

// --- how the records are laid out, for a reader that has not been compiled with these headers

struct format {
    std::string name;
    size_t      size;
};

struct layouts {
    std::string                             text;
    std::unordered_map<std::string, format> formats = {
        { "int8_t", { "i1", 1 } }, { "int16_t", { "i2", 2 } }, { "int32_t", { "i4", 4 } }, { "int64_t", { "i8", 8 } },
        { "uint32_t", { "u4", 4 } }, { "uint64_t", { "u8", 8 } }, { "bool", { "u1", 1 } }, { "char", { "S", 1 } },
    };

    // Adds a struct whose members are such text: "int32_t src[10], kind; char name[64];". The offsets are the compiler's:
    // no member needs another alignment than its size, or 8.
    void add(const char * name, size_t size, const char * members) {
        text += std::string(text.empty() ? "" : ",") + "\"" + name + "\":{\"size\":" + std::to_string(size) + ",\"fields\":[";
        size_t at = 0;
        std::istringstream lines(members);
        std::string type, line;
        while (lines >> type) {
            if (type == "struct") {
                lines >> type;
            }
            const format & one = formats.at(type);
            std::getline(lines, line, ';');
            std::istringstream list(line);
            for (std::string member; std::getline(list >> std::ws, member, ',');) {
                const size_t bracket = member.find('[');
                const size_t n = bracket == std::string::npos ? 1 : std::stoul(member.substr(bracket + 1));
                const std::string count = bracket == std::string::npos ? "" : (type == "char" ? "" : ":") + std::to_string(n);
                const size_t align = std::min<size_t>(one.size, 8);
                at = (at + align - 1) / align * align;
                text += std::string(text.back() == '[' ? "" : ",") + "[\"" + member.substr(0, bracket) + "\",\"" + one.name + count +
                    "\"," + std::to_string(at) + "]";
                at += one.size * n;
            }
        }
        GGML_ASSERT(at <= size && size < at + 8);
        text += "]}";
        formats[name] = { name, size };
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
#define ADD(name) l.add(#name, sizeof(name), name##_members);
    ADD(gp_tensor_record) ADD(gp_split_record) ADD(gp_input_record) ADD(gp_dep_record) ADD(gp_refusal_record) ADD(gp_buft_record)
    ADD(gp_buffer_record) ADD(gp_backend_record) ADD(gp_cpu_record) ADD(gp_layout_record) ADD(gp_layout_buffer_record)
    ADD(gp_run_event) ADD(gp_record_plan) ADD(gp_record_seen) ADD(gp_record_compute) ADD(gp_realloc_record) ADD(gp_record_realloc)
#undef ADD
    return "{" + l.text + "}";
}

std::string record_tables() {
    return "\"enums\":" + enumerators() + "," + "\"ops\":" + names(GGML_OP_COUNT, [](int i) { return ggml_op_name((enum ggml_op) i); }) +
        ",\"types\":" + names(GGML_TYPE_COUNT, [](int i) { return ggml_type_name((enum ggml_type) i); });
}

// A record is given to others, so secrets of the command line are not written: the rules of files/secrets.py. They are
// not written as std::regex, which recurses for each character of a long prompt.
namespace {

bool has_any(std::string text, std::initializer_list<const char *> parts) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return std::any_of(parts.begin(), parts.end(), [&](const char * part) { return text.find(part) != std::string::npos; });
}

bool is_secret_flag(const std::string & flag) {
    return flag.rfind("-", 0) == 0 && has_any(flag, { "api-key", "apikey", "hf-token", "hftoken", "hft", "password", "secret" });
}

// The word without the password of a server (USER:PASSWORD@HOST) and without secret values of an address's query.
std::string without_secrets(std::string word) {
    const size_t scheme = word.find(":/");
    const size_t start  = scheme == std::string::npos ? 0 : word.find_first_not_of('/', scheme + 1);
    const size_t end    = start == std::string::npos ? start : word.find_first_of("/?# \t\n", start);
    const size_t at     = start == std::string::npos ? start : word.rfind('@', end);
    const size_t colon  = start == std::string::npos ? start : word.find(':', start);
    if (at != std::string::npos && at >= start && colon < at) {
        word.replace(colon + 1, at - colon - 1, "***");
    }
    for (size_t i = word.find('?'); i != std::string::npos; i = word.find('&', i + 1)) {
        const size_t equals = word.find('=', i), next = word.find_first_of("&#", i + 1);
        const bool   has    = equals != std::string::npos && equals < next;
        if (has && has_any(word.substr(i, equals - i), { "token", "sig", "key", "secret", "passw", "auth", "cred" })) {
            word.replace(equals + 1, next == std::string::npos ? next : next - equals - 1, "***");
        }
    }
    return word;
}

} // namespace

std::string record_command_line() {
    std::string text = "[";
    bool is_secret = false;
    if (FILE * file = fopen("/proc/self/cmdline", "rb")) {
        std::string word;
        for (int c = getc(file); c != EOF; c = getc(file)) {
            if (c == 0) {
                const size_t      equals = word.find('=');
                const bool        hides  = is_secret_flag(word.substr(0, equals));
                const std::string shown  = hides && equals != std::string::npos ? word.substr(0, equals + 1) + "***" : without_secrets(word);
                text += (text.size() > 1 ? "," : "") + json_text(is_secret ? "***" : shown.c_str());
                is_secret = !is_secret && hides && equals == std::string::npos;
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

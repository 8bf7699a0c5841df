#include "card.h"

#include "ggml-backend-impl.h"

#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace gp {
namespace {

// Filled before main, by the sources of the backends.
std::vector<card_backend> & backends() {
    static std::vector<card_backend> & it = *new std::vector<card_backend>;
    return it;
}

const card_backend * backend_named(const char * name) {
    for (const card_backend & backend : backends()) {
        if (strcmp(backend.name, name) == 0) {
            return &backend;
        }
    }
    return nullptr;
}

// The backend of each open card.
std::map<ggml_backend_dev_t, const card_backend *> & open_cards() {
    static auto & it = *new std::map<ggml_backend_dev_t, const card_backend *>;
    return it;
}

// The return of a function that was cut: the depth of calls, and the line.
struct returned {
    int          depth;
    const char * file;
    int          line;
};

struct recording {
    std::vector<returned> all; // since the answer began
    int                   depth = 0;
};

thread_local recording * now = nullptr;

std::mutex opening; // cards are opened and closed on any thread, also by Python's collector

} // namespace

card_registration::card_registration(const card_backend & backend) {
    backends().push_back(backend);
}

int64_t card_values::number(const char * name) const {
    const std::string & text = texts.at(name);
    size_t end = 0;
    int64_t value = 0;
    try {
        value = std::stoll(text, &end, 0);
    } catch (const std::exception &) {
        end = 0;
    }
    if (text.empty() || end != text.size()) {
        throw std::invalid_argument(std::string(name) + "=" + text + ": expected an integer");
    }
    return value;
}

card_frame::card_frame() {
    if (now) {
        now->depth++;
    }
}

card_frame::~card_frame() {
    if (now) {
        now->depth--;
    }
}

void card_no_room(int n) {
    throw std::length_error("at most " + std::to_string(n) + " cards of a backend can be open");
}

void card_refused(const std::string & why) {
    throw std::invalid_argument(why);
}

void card_answers(const char * file, int line) {
    if (now) {
        now->all.clear();
        card_at(file, line);
    }
}

void card_at(const char * file, int line) {
    if (now) {
        now->all.push_back({now->depth, file, line});
    }
}

void card_cut_off(const char * function) {
    GGML_ABORT("%s: a card has no device", function);
}

} // namespace gp

extern "C" {

const char * gp_card_backend(int32_t i) {
    return i >= 0 && (size_t) i < gp::backends().size() ? gp::backends()[i].name : nullptr;
}

const gp_card_property * gp_card_property_of(const char * backend, int32_t i) {
    const gp::card_backend * found = gp::backend_named(backend);
    if (found == nullptr || i < 0) {
        return nullptr;
    }
    const gp_card_property * property = found->properties;
    while (property->name && i-- > 0) {
        property++;
    }
    return property->name ? property : nullptr;
}

ggml_backend_dev_t gp_card_open(const char * backend, const char * const * values, char * why, size_t size) {
    const gp::card_backend * found = gp::backend_named(backend);
    try {
        if (found == nullptr) {
            throw std::invalid_argument("this build has no such backend");
        }
        gp::card_values given;
        for (const gp_card_property * p = found->properties; p->name; p++, values++) {
            if (*values == nullptr && p->text == nullptr) {
                throw std::invalid_argument(std::string(p->name) + ": expected a value");
            }
            given.texts[p->name] = *values ? *values : p->text;
        }
        const std::lock_guard<std::mutex> lock(gp::opening);
        ggml_backend_dev_t card = found->open(given);
        gp::open_cards()[card] = found;
        return card;
    } catch (const std::exception & error) {
        snprintf(why, size, "%s", error.what());
        return nullptr;
    }
}

void gp_card_close(ggml_backend_dev_t card) {
    const std::lock_guard<std::mutex> lock(gp::opening);
    auto found = gp::open_cards().find(card);
    found->second->close(card);
    gp::open_cards().erase(found);
}

bool gp_card_orders(ggml_backend_dev_t card) {
    const std::lock_guard<std::mutex> lock(gp::opening);
    return gp::open_cards().at(card)->order != nullptr;
}

void gp_card_order(ggml_backend_dev_t card, ggml_cgraph * graph, void (*add_alloc_dep)(void *, ggml_tensor *, ggml_tensor *),
                   void * user_data) {
    std::unique_lock<std::mutex> lock(gp::opening);
    const gp::card_backend * backend = gp::open_cards().at(card);
    lock.unlock();
    backend->order(card, graph, {add_alloc_dep, user_data});
}

bool gp_card_supports(ggml_backend_dev_t card, const ggml_tensor * op, gp_card_lines * lines) {
    gp::recording record;
    struct while_asking {
        explicit while_asking(gp::recording * to) { gp::now = to; }
        ~while_asking() { gp::now = nullptr; }
    } asking(&record);
    const bool supported = card->iface.supports_op(card, op);

    // A function records its `return` before it evaluates the value. So the call that decided the value is the last one
    // at the next depth that was recorded after it.
    lines->n = 0;
    for (size_t at = 0; at < record.all.size() && lines->n < GP_CARD_LINES;) {
        lines->file[lines->n] = record.all[at].file;
        lines->line[lines->n] = record.all[at].line;
        lines->n++;
        size_t next = record.all.size();
        for (size_t i = at + 1; i < record.all.size(); i++) {
            if (record.all[i].depth == record.all[at].depth + 1) {
                next = i;
            }
        }
        at = next;
    }
    return supported;
}

} // extern "C"

// Cards: devices that are not here, described by properties. Upstream's own functions for their backend say which ops
// they support. The build cuts these functions out of its source (vendor/cards.py) and compiles them with stubs.
//
// 1. A card is a `ggml_backend_device` whose interface is upstream's. Only the functions that describe the device work:
//    supports_op, offload_op, supports_buft, get_props, and those of its buffer types but alloc_buffer.
// 2. Each backend has one source here. It defines the stubs, includes what was cut (GP_CUT), and fills upstream's
//    structs from a card's properties. What upstream derives from properties is derived by its own code.
// 3. An answer knows the lines of upstream's source that gave it.
// 4. The sources of backends are compiled without exceptions: then a division by zero in them, which is checked, can be
//    thrown through them (divide.c). What throws is in cards.cpp.
#pragma once

#include "ggml-backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GP_CARD_LINES 8

#ifdef __cplusplus
extern "C" {
#endif

// `text` is the value of a card that does not say; NULL if every card must say it.
struct gp_card_property {
    const char * name;
    const char * text;
};

// Where an answer comes from: the `return` of the function that answers, then that of the function which decided its
// value, and so on.
struct gp_card_lines {
    int32_t      n;
    const char * file[GP_CARD_LINES];
    int32_t      line[GP_CARD_LINES];
};

// The backends that were cut out of this release, and their properties; NULL past the last one.
const char *                    gp_card_backend(int32_t i);
const struct gp_card_property * gp_card_property_of(const char * backend, int32_t i);

// Makes a card. `values` are in the order of the backend's properties, NULL for those that the card does not say.
// NULL, and the reason in `why`, if a value is not valid or the backend has no more room.
ggml_backend_dev_t gp_card_open(const char * backend, const char * const * values, char * why, size_t size);
void               gp_card_close(ggml_backend_dev_t card);
// Whether upstream's function that orders the nodes of a split (graph_optimize) was cut out of a card's backend.
bool               gp_card_orders(ggml_backend_dev_t card);
// Orders nodes with it. add_alloc_dep and its user_data are NULL in releases that have no add_alloc_dep.
void               gp_card_order(
    ggml_backend_dev_t card, struct ggml_cgraph * graph,
    void (*add_alloc_dep)(void * user_data, struct ggml_tensor * tensor, struct ggml_tensor * until), void * user_data);
// Whether a card supports an op, and the lines that say so.
bool               gp_card_supports(ggml_backend_dev_t card, const struct ggml_tensor * op, struct gp_card_lines * lines);

#ifdef __cplusplus
}

#include "ggml-backend-impl.h"

#include <array>
#include <map>
#include <string>

namespace gp {

// The values of a card's properties.
class card_values {
public:
    std::map<std::string, std::string> texts;

    const std::string & text(const char * name) const { return texts.at(name); }
    int64_t             number(const char * name) const;
    bool                flag(const char * name) const { return number(name) != 0; }
};

// add_alloc_dep and its user_data.
struct card_keeper {
    void (*add_alloc_dep)(void *, ggml_tensor *, ggml_tensor *);
    void * user_data;
};

// Calls a backend's graph_optimize. Releases differ in its parameters.
inline void card_order_by(void (*optimize)(ggml_backend_t, ggml_cgraph *), ggml_backend_t backend, ggml_cgraph * graph,
                          card_keeper) {
    optimize(backend, graph);
}
template <class Params> void card_order_by(void (*optimize)(ggml_backend_t, ggml_cgraph *, Params *), ggml_backend_t backend,
                                           ggml_cgraph * graph, card_keeper keeper) {
    Params params        = {};
    params.add_alloc_dep = keeper.add_alloc_dep;
    params.user_data     = keeper.user_data;
    optimize(backend, graph, &params);
}

struct card_backend {
    const char *             name;
    const gp_card_property * properties; // ends with a name of NULL
    ggml_backend_dev_t       (*open)(const card_values & values); // card_values and card_no_room throw
    void                     (*close)(ggml_backend_dev_t card);
    void                     (*order)(ggml_backend_dev_t card, ggml_cgraph * graph, card_keeper keeper) = nullptr;
};

// Adds a backend; its source does so before main.
struct card_registration {
    explicit card_registration(const card_backend & backend);
};

[[noreturn]] void card_no_room(int n);
[[noreturn]] void card_refused(const std::string & why); // by upstream's code, in place of its `throw`

// The devices that a backend has room for, and the registry that upstream's functions find them in. `Context` is
// upstream's for a device.
template <class Context, int n> struct card_slots {
    struct slot {
        bool                open    = false;
        Context             context = {};
        ggml_backend_device device  = {};
    };

    static std::array<slot, n> & all() {
        static std::array<slot, n> it;
        return it;
    }

    static ggml_backend_reg_t reg() {
        static ggml_backend_reg it = [] {
            ggml_backend_reg made = {};
            made.api_version            = GGML_BACKEND_API_VERSION;
            made.iface.get_name         = [](ggml_backend_reg_t) { return "cards"; };
            made.iface.get_device_count = [](ggml_backend_reg_t) { return (size_t) n; };
            made.iface.get_device       = [](ggml_backend_reg_t, size_t i) { return &all().at(i).device; };
            return made;
        }();
        return &it;
    }

    // The number of a slot that is not in use.
    static int find() {
        for (int i = 0; i < n; i++) {
            if (!all()[i].open) {
                return i;
            }
        }
        card_no_room(n);
    }

    static ggml_backend_dev_t open(int i, const ggml_backend_device_i & iface) {
        slot & one = all()[i];
        one.device = {iface, reg(), &one.context};
        one.open   = true;
        return &one.device;
    }

    static void close(ggml_backend_dev_t dev) {
        for (slot & one : all()) {
            one.open = one.open && &one.device != dev;
        }
    }
};

// Record lines, for the functions that were cut. They do nothing unless gp_card_supports asks.
struct card_frame {
    card_frame();
    ~card_frame();
};
void card_answers(const char * file, int line); // begins an answer
void card_at(const char * file, int line);
[[noreturn]] void card_cut_off(const char * function);

} // namespace gp

// In the code that is cut: at the begin of a function, before the value of a `return`, and in place of a body.
#define GP_FRAME   gp::card_frame gp_frame;
#define GP_ANSWER  gp::card_answers(__FILE__, __LINE__),
#define GP_AT      gp::card_at(__FILE__, __LINE__),
#define GP_CUT_OFF gp::card_cut_off(__func__);
#endif

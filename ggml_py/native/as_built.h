// While the plan of an allocated graph is read, restores the graph as its user built it, without the copies and the
// memory that planning gave it. Backends are asked about the tensors themselves, so these are changed in place.
#pragma once

#include "pin_hooks.h"
#include "sched_hooks.h"

#include <utility>
#include <vector>

namespace gp {

class as_built {
public:
    as_built(std::vector<rewired> & sources, std::vector<gp_memory> & lent) : sources(sources), lent(lent) { swap(true); }
    ~as_built() { swap(false); }

private:
    // Under the lock, so that another thread that copies from or to a tensor finds its memory (pins.h).
    void swap(bool aside) {
        gp_lock_tensors();
        for (rewired & w : sources) {
            std::swap(w.node->src[w.j], w.src);
        }
        for (gp_memory & m : lent) {
            std::swap(m.t->data, m.data);
            std::swap(m.t->buffer, m.buffer);
        }
        gp_set_aside(lent.data(), lent.size(), aside);
        gp_unlock_tensors();
    }

    std::vector<rewired> &   sources;
    std::vector<gp_memory> & lent;
};

} // namespace gp

#include "sim_card.h"

#include "ggml-impl.h"
#include "sim_backend.h"

namespace gp {
namespace {

// The type that a buffer of a simulated device would have on its card; the type itself for other buffers.
ggml_backend_buffer_type_t of_card(ggml_backend_buffer_type_t buft) {
    sim_device * device = sim_of_buft(buft);
    if (device == nullptr || device->settings.card == nullptr) {
        return buft;
    }
    ggml_backend_dev_t card = device->settings.card;
    ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(card);
    return buft == &device->host_buft && host ? host : ggml_backend_dev_buffer_type(card);
}

// An op whose sources are in buffers of cards.
class op_on_cards {
public:
    explicit op_on_cards(const ggml_tensor * op) : op_(op) {
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            const ggml_tensor * src = op->src[i];
            if (src && src->buffer && of_card(src->buffer->buft) != src->buffer->buft) {
                move(i, src);
            }
        }
    }

    const ggml_tensor * get() const { return op_; }

private:
    const ggml_tensor * op_;
    ggml_tensor         copy_;
    ggml_tensor         srcs_[GGML_MAX_SRC];
    ggml_backend_buffer buffers_[GGML_MAX_SRC];

    void move(int i, const ggml_tensor * src) {
        if (op_ != &copy_) {
            copy_ = *op_;
            op_   = &copy_;
        }
        buffers_[i]      = *src->buffer;
        buffers_[i].buft = of_card(src->buffer->buft);
        srcs_[i]         = *src;
        srcs_[i].buffer  = &buffers_[i];
        copy_.src[i]     = &srcs_[i];
    }
};

} // namespace

bool sim_card_supports(ggml_backend_dev_t card, const ggml_tensor * op) {
    return card->iface.supports_op(card, op_on_cards(op).get());
}

bool sim_card_offloads(ggml_backend_dev_t card, const ggml_tensor * op) {
    return card->iface.offload_op && card->iface.offload_op(card, op);
}

bool sim_card_takes(ggml_backend_dev_t card, ggml_backend_buffer_type_t buft) {
    return card->iface.supports_buft(card, of_card(buft));
}

} // namespace gp

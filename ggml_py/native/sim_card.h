// The questions that a simulated device passes on to its card (cards/card.h). Upstream's functions compare buffer types
// with their own, so a question about the memory of simulated devices is asked with the buffer types of their cards.
#pragma once

#include "ggml-backend.h"

namespace gp {

bool sim_card_supports(ggml_backend_dev_t card, const ggml_tensor * op);
bool sim_card_offloads(ggml_backend_dev_t card, const ggml_tensor * op);
bool sim_card_takes(ggml_backend_dev_t card, ggml_backend_buffer_type_t buft);

} // namespace gp

// Which accelerators a context of libllama uses. Upstream uses all that are registered; here a caller chooses.
#pragma once

#include "ggml-backend.h"

bool gpl_accelerator_is_used(ggml_backend_dev_t device);

// What Python asks and says of the connections to RPC servers. Implemented by rpc_link.cpp in
// libggml-base; a pristine build has none of these functions (see gp_trace_present in guard.h).
#pragma once

#include "ggml-backend.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Milliseconds that a server may be silent while it owes an answer: to a command that it answers at
// once, and while it computes. 0 is without limit, -1 leaves what it was (60 s, and none).
__attribute__((visibility("default")))
void gp_rpc_set_limits(const char * endpoint, int64_t answer_ms, int64_t compute_ms);

// Whether the last connection to this endpoint is lost.
__attribute__((visibility("default"))) bool gp_rpc_is_lost(const char * endpoint);

// Whether this build's RPC backend has connections that can be lost without ending the process.
__attribute__((visibility("default"))) bool gp_rpc_guarded(void);

// Calls ggml_backend_rpc_add_server of a module that was loaded, whose address is `add_server`.
__attribute__((visibility("default")))
ggml_backend_reg_t gp_rpc_add_server(void * add_server, const char * endpoint);

#ifdef __cplusplus
}
#endif

// Python's interface to the connections to RPC servers. Implemented by rpc_link.cpp in libggml-base.
// A pristine build has none of these functions (see gp_trace_present in guard.h).
#pragma once

#include "ggml-backend.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Sets how many milliseconds a server may be silent while it owes an answer: after a command that it
// answers at once, and while it computes. 0 means no limit, -1 keeps the value (initially 60 s, and none).
__attribute__((visibility("default")))
void gp_rpc_set_limits(const char * endpoint, int64_t answer_ms, int64_t compute_ms);

// Whether the last connection to this endpoint is lost.
__attribute__((visibility("default"))) bool gp_rpc_is_lost(const char * endpoint);

// Whether this build's RPC backend has connections that can be lost without ending the process.
__attribute__((visibility("default"))) bool gp_rpc_guarded(void);

// Calls ggml_backend_rpc_add_server of a loaded module, at the address `add_server`.
__attribute__((visibility("default")))
ggml_backend_reg_t gp_rpc_add_server(void * add_server, const char * endpoint);

#ifdef __cplusplus
}
#endif

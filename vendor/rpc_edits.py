"""Edits of upstream's RPC client, so that a lost, silent or garbled server raises an exception.

``ggml_py/native/rpc_hooks.h`` explains how. The edits fit releases whose connections have a
dispatcher thread: 0.24.0 and later. Earlier releases talk to the server on the calling thread,
where their assertions can be thrown, so their files are not edited.
"""

from __future__ import annotations

from .edit import Edit

CLIENT_FILE = "ggml-rpc/ggml-rpc.cpp"
FILES = (CLIENT_FILE, "ggml-rpc/transport.cpp")
# CLIENT_FILE has this text in the releases that are edited.
SIGN = "class rpc_dispatcher {\n"

_SEND = "std::shared_ptr<const void> input, size_t input_size"

# For messages: what the server was asked to do, and whether it computes.
_COMMANDS = """
static const bool gp_present = gp_rpc_present();

static std::string gp_what(int cmd, const void * input, size_t size) {
    const char * what = nullptr;
    switch (cmd) {
        case RPC_CMD_SET_TENSOR:      what = "sent the data of tensor"; break;
        case RPC_CMD_SET_TENSOR_HASH: what = "asked for a cached copy of tensor"; break;
        case RPC_CMD_GET_TENSOR:      what = "asked for the data of tensor"; break;
        case RPC_CMD_INIT_TENSOR:     what = "told of tensor"; break;
        case RPC_CMD_MEMSET_TENSOR:   what = "told to fill tensor"; break;
        case RPC_CMD_COPY_TENSOR:     what = "told to copy tensor"; break;
#ifdef GP_RPC_2D
        case RPC_CMD_SET_TENSOR_2D:   what = "sent rows of tensor"; break;
        case RPC_CMD_GET_TENSOR_2D:   what = "asked for rows of tensor"; break;
#endif
        case RPC_CMD_ALLOC_BUFFER:    return "asked for memory";
        case RPC_CMD_GET_ALIGNMENT:
        case RPC_CMD_GET_MAX_SIZE:    return "asked about its memory";
        case RPC_CMD_BUFFER_GET_BASE: return "asked where a buffer is";
        case RPC_CMD_FREE_BUFFER:     return "told to free a buffer";
        case RPC_CMD_BUFFER_CLEAR:    return "told to clear a buffer";
        case RPC_CMD_GRAPH_COMPUTE:
        case RPC_CMD_GRAPH_RECOMPUTE: return "sent a graph to compute";
        case RPC_CMD_GET_DEVICE_MEMORY: return "asked for its free memory";
        case RPC_CMD_GET_ALLOC_SIZE:  return "asked for the size of a tensor";
        case RPC_CMD_HELLO:           return "greeted";
        case RPC_CMD_DEVICE_COUNT:    return "asked for its devices";
        case RPC_CMD_NONE:            return "waited for";
        default:                      return "sent command " + std::to_string(cmd);
    }
    if (size < sizeof(rpc_tensor)) {
        return what;
    }
    const rpc_tensor * tensor = (const rpc_tensor *) input;
    const std::string name(tensor->name, strnlen(tensor->name, GGML_MAX_NAME));
    return std::string(what) + " '" + name + "'";
}

static gp::rpc_kind gp_kind(enum rpc_cmd cmd) {
    switch (cmd) {
        case RPC_CMD_GRAPH_COMPUTE:
        case RPC_CMD_GRAPH_RECOMPUTE: return gp::RPC_COMPUTES;
        case RPC_CMD_GET_TENSOR:
#ifdef GP_RPC_2D
        case RPC_CMD_GET_TENSOR_2D:
#endif
        case RPC_CMD_COPY_TENSOR:
        case RPC_CMD_SET_TENSOR_HASH: return gp::RPC_SETTLES; // the server has computed all before
        default:                      return gp::RPC_OTHER;
    }
}

"""

_MEMBERS = f"""
    bool gp_lost() const {{ return queue.link->lost(); }}
    void gp_check() {{ queue.link->check(); }}
    void gp_expect(bool right, const char * answer) {{
        if (!right) {{
            queue.link->refuse(answer);
        }}
    }}
    // Neither waits nor throws.
    void gp_send_last(enum rpc_cmd cmd, {_SEND}, void * output = nullptr, size_t output_size = 0);
    void gp_settle();
"""

_LAST = f"""
void rpc_dispatcher::gp_send_last(enum rpc_cmd cmd, {_SEND}, void * output, size_t output_size) {{
    auto msg = std::make_shared<rpc_msg>();
    msg->cmd = cmd;
    msg->input = input;
    msg->input_size = input_size;
    msg->output = output;
    msg->output_size = output_size;
    queue.push_quietly(msg);
}}

void rpc_dispatcher::gp_settle() {{
    auto msg = std::make_shared<rpc_msg>();
    msg->cmd = RPC_CMD_NONE;
    auto future = msg->completion.get_future();
    queue.push_quietly(msg);
    future.settle();
}}

"""

_OPEN = """    queue.link->open(endpoint);
    gp::rpc_doing gp_doing(*queue.link, gp::RPC_OTHER, true);
    sock = socket_t::connect(host.c_str(), port);
    if (sock == nullptr || !negotiate_hello(sock)) {
        gp_doing.fail();
    }
"""

_RUN = """        gp::rpc_run(*queue.link, msg_ptr->completion, [&] {
            rpc_msg & msg = *msg_ptr;
            const void * input = msg.input.get();
            gp::rpc_doing gp_doing(*queue.link, gp_kind(msg.cmd), false, gp_what, msg.cmd, input,
                msg.input_size);
            if (!msg.output) { // no answer will tell
                return queue.link->alive() && (msg.cmd == RPC_CMD_NONE ||
                    send_rpc_cmd(sock, msg.cmd, input, msg.input_size));
            }
            gp_doing.answer(*msg.completion.state, msg.output, msg.output_size);
            return send_rpc_cmd(sock, msg.cmd, input, msg.input_size, msg.output, msg.output_size);
        });
"""

_RECOUNT = """    if (const uint32_t gp_known = gp::rpc_known_devices(endpoint)) {
        rpc_msg_device_count_rsp response = {};
        dispatcher->send(RPC_CMD_DEVICE_COUNT, nullptr, 0, &response, sizeof(response));
        dispatcher->gp_expect(response.device_count == gp_known, "another number of devices than "
            "when they were added, and devices cannot be taken back: start a new process");
    }
"""

_LOCK = "    std::lock_guard<std::mutex> lock(mutex);\n"
_OURS = "    static std::timed_mutex mutex;\n    gp::rpc_lock lock(mutex);\n"

_HEADER = "const std::string & endpoint"


def _lock(name: str, before: str, between: str = "") -> Edit:
    """An edit of a lock that another thread may hold while it connects."""
    return Edit(
        name, f"{before}    static std::mutex mutex;\n{between}{_LOCK}",
        f"{before}{between}{_OURS}", replace=True,
    )  # fmt: skip


def _expect(name: str, anchor: str, condition: str, answer: str, after: bool = False,
            optional: bool = False, on: str = "dispatcher") -> Edit:  # fmt: skip
    check = f'{on}->gp_expect({condition}, "{answer}");\n'
    return Edit(name, anchor, f"    {check}", after=after, optional=optional)


def _static(name: str, function: str) -> Edit:
    """An edit of an event's function that keeps it from asking for a connection."""
    start = (
        f"static void ggml_backend_rpc_device_{function}"
        "(ggml_backend_dev_t dev, ggml_backend_event_t event) {\n"
    )
    body = f"    rpc_dispatcher::{function}(event);\n    GGML_UNUSED(dev);\n"
    return Edit(name, start, start + body, until=f"    dispatcher->{function}(event);\n")


CLIENT = (
    Edit("RPC: the hooks", '#include "transport.h"\n', '#include "rpc_hooks.h"\n', after=True),
    Edit("RPC: commands for rows", "    RPC_CMD_GET_TENSOR_2D,\n", "#define GP_RPC_2D\n",
         optional=True),
    Edit("RPC: start of the client", "// RPC client-side implementation\n", _COMMANDS),
    Edit(
        "RPC: answer of another size",
        "    if (out_size != output_size) {\n",
        '        gp::rpc_reason("answered with %" PRIu64 " bytes where %zu were expected", '
        "out_size, output_size);\n",
        after=True,
    ),
    Edit("RPC: handshake failed", "    RPC_STATUS_ASSERT(status);\n\n",
         "    if (!status) {\n        return false;\n    }\n\n", replace=True),
    Edit(
        "RPC: other protocol",
        "    if (response.major != RPC_PROTO_MAJOR_VERSION || "
        "response.minor > RPC_PROTO_MINOR_VERSION) {\n",
        '        gp::rpc_reason("speaks version %d.%d.%d of the protocol and this release '
        '%d.%d.%d",\n            response.major, response.minor, response.patch, '
        "RPC_PROTO_MAJOR_VERSION,\n            RPC_PROTO_MINOR_VERSION, "
        "RPC_PROTO_PATCH_VERSION);\n",
        after=True,
    ),
    Edit("RPC: members", "    void work();\n\n    ~rpc_dispatcher();\n", _MEMBERS),
    Edit("RPC: functions of events",
         "    void event_free(ggml_backend_event_t event);\n"
         "    void event_synchronize(ggml_backend_event_t event);\n",
         "    static void event_free(ggml_backend_event_t event);\n"
         "    static void event_synchronize(ggml_backend_event_t event);\n", replace=True),
    Edit("RPC: promise", "        std::promise<void>            completion;\n",
         "        gp::rpc_promise               completion;\n", replace=True),
    Edit("RPC: queue", "    using rpc_msg_queue = message_queue<rpc_msg_ptr>;\n",
         "    using rpc_msg_queue = gp::rpc_queue<message_queue<rpc_msg_ptr>, rpc_msg_ptr>;\n",
         replace=True),
    Edit("RPC: future", "        std::shared_future<void> sf;\n",
         "        gp::rpc_future           sf;\n", replace=True),
    Edit("RPC: before the trampoline",
         "static void rpc_dispatcher_trampoline(rpc_dispatcher * dispatcher)\n", _LAST),
    # Upstream leaks 16 bytes per event.
    Edit("RPC: event freed", "    delete ev;\n", "    delete event;\n", after=True),
    Edit("RPC: connect", "    sock = socket_t::connect(host.c_str(), port);\n", _OPEN,
         until='        GGML_ABORT("RPC handshake failed for %s\\n", endpoint.c_str());\n    }\n'),
    Edit("RPC: one message", "        if (msg_ptr->cmd != RPC_CMD_NONE) {\n", _RUN,
         until="        msg_ptr->completion.set_value();\n"),
    Edit(
        "RPC: end of a dispatcher",
        "    running = false;\n    queue.interrupt();\n    sock = nullptr;\n"
        "    if (thread.joinable()) {\n        thread.join();\n    }\n",
        "    running = false;\n    queue.link->end();\n    queue.interrupt();\n"
        "    if (thread.joinable()) {\n        thread.join();\n    }\n    sock = nullptr;\n",
        replace=True,
    ),
    _lock("RPC: lock of the dispatchers",
          f"static std::shared_ptr<rpc_dispatcher> get_dispatcher({_HEADER}) {{\n"),
    Edit("RPC: dispatcher that is there",
         "        if (auto dispatcher = it->second.lock()) {\n",
         "        auto dispatcher = it->second.lock();\n"
         "        if (dispatcher && !dispatcher->gp_lost()) {\n",
         replace=True),
    Edit("RPC: new connection", "    dispatcher->start(endpoint);\n", _RECOUNT, after=True),
    Edit("RPC: buffer freed",
         "    ctx->dispatcher->send(RPC_CMD_FREE_BUFFER, request, sizeof(*request));\n",
         "#ifdef GP_RPC_GRAPHS\n"
         "    const auto gp_forgotten = ctx->dispatcher->gp_forget_graphs();\n#endif\n"
         "    ctx->dispatcher->gp_send_last(RPC_CMD_FREE_BUFFER, request, sizeof(*request));\n",
         replace=True),
    # A server forgets all graphs when a buffer is freed, but upstream still refers to them. No
    # other thread may send a graph until the server has been told to free the buffer.
    Edit("RPC: graphs that the server has",
         "    std::unordered_map<uint32_t, std::unordered_set<uint64_t>> graph_uids;\n",
         "#define GP_RPC_GRAPHS\npublic:\n"
         "    std::unique_lock<std::mutex> gp_forget_graphs() {\n"
         "        std::unique_lock<std::mutex> lock(graph_mutex);\n"
         "        graph_uids.clear();\n        return lock;\n    }\nprivate:\n",
         after=True, optional=True),
    _expect(
        "RPC: base of a buffer",
        "    ctx->base_ptr = reinterpret_cast<void *>(response.base_ptr);\n",
        "response.base_ptr != 0 && response.base_ptr <= UINT64_MAX - buffer->size &&\n"
        "        response.base_ptr % ggml_backend_buft_get_alignment(buffer->buft) == 0",
        "an address where no buffer is", on="ctx->dispatcher",
    ),
    _expect(
        "RPC: buffer", "    if (response.remote_ptr != 0) {\n",
        "response.remote_ptr == 0 || (response.remote_size >= size && "
        "response.remote_size / 2 <= size + (1u << 30))",
        "a buffer of another size than asked for",
    ),
    _expect("RPC: alignment", "    return response.alignment;\n",
            "response.alignment != 0 && response.alignment <= (1u << 30) &&\n"
            "        (response.alignment & (response.alignment - 1)) == 0", "an alignment"),
    _expect("RPC: largest buffer", "    return response.max_size;\n",
            "response.max_size != 0", "buffers of no size"),
    _expect(
        "RPC: size of a tensor",
        "        dispatcher->send(RPC_CMD_GET_ALLOC_SIZE, request, sizeof(*request), "
        "&response, sizeof(response));\n",
        "response.alloc_size < (1ull << 48)", "the size of a tensor", after=True,
    ),
    _expect("RPC: number of devices", "    return response.device_count;\n",
            "response.device_count <= 1024", "more than 1024 devices"),
    Edit("RPC: devices known",
         "    uint32_t dev_count = ggml_backend_rpc_get_device_count(endpoint);\n",
         "    gp::rpc_note_devices(endpoint, dev_count);\n", after=True),
    # Tensors may refer to a lost server; upstream would send them as if they had no buffer.
    Edit(
        "RPC: graph sent",
        "        if (cgraph->uid != 0) {\n            if (device_graph_uids.size() >= ",
        "        gp_check_graph(cgraph);\n", optional=True,
    ),
    Edit("RPC: graph sent, before 0.26", "        rpc_dev_ctx->last_graph_uid = cgraph->uid;\n",
         "        gp_check_graph(cgraph);\n", optional=True),
    Edit(
        "RPC: tensor set",
        "    ggml_backend_rpc_context * ctx = (ggml_backend_rpc_context *)backend->context;\n"
        "    rpc_tensor rpc_tensor = serialize_tensor(tensor);\n",
        "    gp_check_tensor(tensor);\n",
    ),
    Edit(
        "RPC: tensor asked for",
        "static void ggml_backend_rpc_get_tensor_async(ggml_backend_t backend, "
        "const ggml_tensor * tensor, void * data, size_t offset, size_t size) {\n",
        "    gp_check_tensor(tensor);\n", after=True,
    ),
    Edit(
        "RPC: before a tensor is set",
        "static enum ggml_status ggml_backend_rpc_buffer_init_tensor(",
        """static void gp_check_tensor(const ggml_tensor * tensor) {
    const ggml_tensor * owner = tensor->view_src ? tensor->view_src : tensor;
    if (owner->buffer && ggml_backend_buffer_is_rpc(owner->buffer)) {
        ((ggml_backend_rpc_buffer_context *) owner->buffer->context)->dispatcher->gp_check();
    }
}

static void gp_check_graph(const ggml_cgraph * cgraph) {
    for (int i = 0; i < cgraph->n_nodes; i++) {
        gp_check_tensor(cgraph->nodes[i]);
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            if (cgraph->nodes[i]->src[j]) {
                gp_check_tensor(cgraph->nodes[i]->src[j]);
            }
        }
    }
}

""",
    ),
    _lock("RPC: lock of the buffer types",
          "ggml_backend_buffer_type_t ggml_backend_rpc_buffer_type(const char * endpoint, "
          "uint32_t device) {\n"),
    _lock("RPC: lock of the servers", "", "    static uint32_t dev_id = 0;\n"),
    _static("RPC: device's event freed", "event_free"),
    _static("RPC: device's event waited for", "event_synchronize"),
    # --- servers that work together (0.26)
    Edit("RPC: communicator freed",
         "        rank.dispatcher->send(RPC_CMD_COMM_FREE, request, sizeof(*request));\n",
         "        rank.dispatcher->gp_send_last(RPC_CMD_COMM_FREE, request, sizeof(*request));\n",
         replace=True, optional=True),
    Edit("RPC: communicator made",
         "    for (const auto & rank : ranks) {\n        rank.dispatcher->busy_spin_acquire();\n",
         "    for (const auto & rank : ranks) {\n        rank.dispatcher->gp_check();\n    }\n",
         optional=True),
    # The answers are on the stack: the function must not return before they have come.
    Edit("RPC: communicator asked for",
         "        ranks[i].dispatcher->send_async(RPC_CMD_COMM_INIT, ",
         "        ranks[i].dispatcher->gp_send_last(RPC_CMD_COMM_INIT, ",
         replace=True, optional=True),
    Edit("RPC: communicator waited for", "        ranks[i].dispatcher->synchronize();\n",
         "        ranks[i].dispatcher->gp_settle();\n", replace=True, optional=True),
    # --- the server
    Edit(
        "RPC server: message of any size",
        "    try {\n        input.resize(size);\n",
        "    try {\n        return gp::rpc_fill(input, size, "
        "[&](void * data, size_t n) { return sock->recv_data(data, n); });\n",
        until="        input.resize(size);\n",
    ),
    Edit(
        "RPC server: one client",
        "        rpc_serve_client(backends, cache_dir, client_socket);\n",
        "        try {\n"
        "            rpc_serve_client(backends, cache_dir, client_socket);\n"
        "        } catch (const std::exception & error) {\n"
        "            gp::rpc_served(error);\n"
        "        }\n"
        "        client_socket = nullptr;\n",
        replace=True,
    ),
)  # fmt: skip

TRANSPORT = (
    Edit("transport: the hooks", '#include "transport.h"\n', '#include "rpc_hooks.h"\n',
         after=True),
    Edit("transport: send",
         "ssize_t n = send(fd, (const char *)data + bytes_sent, size_to_send, 0);\n",
         "ssize_t n = gp::rpc_send(fd, (const char *)data + bytes_sent, size_to_send);\n",
         replace=True),
    Edit("transport: recv",
         "ssize_t n = recv(fd, (char *)data + bytes_recv, size_to_recv, 0);\n",
         "ssize_t n = gp::rpc_recv(fd, (char *)data + bytes_recv, size_to_recv);\n", replace=True),
    # The dispatcher's thread must not log: Python receives the log and may have exited.
    Edit("transport: send failed",
         '            GGML_LOG_ERROR("send failed (bytes_sent=%zu, size_to_send=%zu)\\n",\n',
         "            if (gp::rpc_is_client()) {\n                return false;\n            }\n"),
    Edit("transport: recv failed",
         '            GGML_LOG_ERROR("recv failed (bytes_recv=%zu, size_to_recv=%zu)\\n",\n',
         "            if (gp::rpc_is_client()) {\n                return false;\n            }\n"),
    Edit("transport: connect",
         "    if (::connect(sockfd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {\n",
         "    if (gp::rpc_connect(sockfd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {\n",
         replace=True),
    Edit("transport: accept",
         "    auto client_socket_fd = ::accept(pimpl->fd, NULL, NULL);\n",
         "    auto client_socket_fd = gp::rpc_accept(pimpl->fd);\n", replace=True),
    # --- RDMA
    Edit("transport: RDMA's sleep",
         "    if (poll(pfds, 2, -1) < 0) {\n        return errno == EINTR;\n    }\n",
         "    if (gp::rpc_poll(pfds, 2) < 0) {\n        return false;\n    }\n",
         replace=True, optional=True),
    Edit("transport: RDMA's loop", "            if (tcp_peer_closed()) {\n",
         "            if (tcp_peer_closed() || !gp::rpc_goes_on()) {\n", replace=True,
         optional=True),
    Edit("transport: RDMA's answer", "        memcpy(dst, c->rx_slot(slot), got);\n",
         "        if (got > rem || !gp::rpc_take(dst, c->rx_slot(slot), got)) {\n"
         "            return false;\n        }\n", replace=True, optional=True),
)  # fmt: skip

# If making a buffer throws, the allocator must not have a freed one left.
ALLOCATOR = (
    Edit(
        "buffer of the allocator replaced",
        "\n            ggml_vbuffer_free(galloc->buffers[i]);\n",
        "\n            struct vbuffer * gp_old = galloc->buffers[i];\n"
        "            for (int gp_j = 0; gp_j < galloc->n_buffers; gp_j++) {\n"
        "                if (galloc->buffers[gp_j] == gp_old) {\n"
        "                    galloc->buffers[gp_j] = NULL;\n                }\n            }\n"
        "            ggml_vbuffer_free(gp_old);\n",
        replace=True,
    ),
)  # fmt: skip

"""Devices of an RPC server. Server and client are processes of their own: a device that was added
cannot be removed. test_rpc_lost.py has servers that go."""

from __future__ import annotations

import pytest

import ggml_py as ggml
import ggml_py.backends.rpc
from ggml_py.boundary.ffi import BUILD

from ..support.rpc_client import client, needs_rpc
from ..support.rpc_net import free_port, server


@needs_rpc
def test_the_servers_devices_are_devices_like_any_other():
    program = """
        import json, sys
        import numpy as np
        import ggml_py as ggml

        before = len(ggml.devices())
        remote = ggml.rpc_devices(sys.argv[1])
        by_name = ggml.rpc_devices(sys.argv[1].replace("127.0.0.1", "localhost"))
        registries = [r for r in ggml.registries() if sys.argv[1] in r.name]
        props = remote[0].props
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        with remote[0].init() as gpu, ggml.Context() as ctx:
            t = ctx.from_numpy(x)
            y = ctx.sqr(t)
            ctx.alloc(gpu)
            graph = ctx.new_graph(8)
            graph.build_forward_expand(y)
            gpu.compute(graph)
            result = y.get().tolist()
        print(json.dumps({
            "n": len(remote), "new": len(ggml.devices()) - before,
            "same": remote == by_name == ggml.rpc_devices(sys.argv[1]),
            "listed": set(remote) <= set(ggml.devices()),
            "registered": [r.devices == remote for r in registries],
            "type": props.type.name, "memory": props.memory_total > 0,
            "features": remote[0].features, "result": result,
        }))
    """
    with server() as process:
        found = client(program, process.endpoint)
    assert found == {
        "n": 2,
        "new": 2,
        "same": True,
        "listed": True,
        "registered": [True],
        "type": "GPU",
        "memory": True,
        "features": {},
        "result": [[0, 1, 4], [9, 16, 25]],
    }


@needs_rpc
def test_copies_to_the_server_and_back_and_its_events():
    program = """
        import json, sys
        import numpy as np
        import ggml_py as ggml

        def message(call):
            try:
                call()
            except (ggml.ArgumentError, ggml.ClosedError) as error:
                return str(error)

        cpu = ggml.device("CPU")
        remote, second = ggml.rpc_devices(sys.argv[1])
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        here, there = ggml.Context(), ggml.Context()
        with here, there, cpu.init(n_threads=1) as host, remote.init() as gpu:
            a, d = here.from_numpy(x), here.new_tensor("f32", 3, 2)
            b, c = there.new_tensor("f32", 3, 2), there.new_tensor("f32", 3, 2)
            here.alloc(host)
            there.alloc(gpu)
            a.copy_to(b)
            b.copy_to(c)
            host.copy_async(gpu, c, d)
            host.synchronize()
            found = {"data": d.get().tolist(), "events": remote.props.caps.events}
            found["over_array"] = message(lambda: remote.buffer_from(x))
            if found["events"]:
                event = remote.event()
                event.synchronize()
                event.wait(gpu)
                event.record(gpu)
                event.wait(gpu)
                event.synchronize()
                found["record"] = message(lambda: event.record(host))
                found["wait"] = message(lambda: event.wait(host))
                gpu.close()
                found["closed"] = message(event.synchronize)
                remote.event().close()
        print(json.dumps(found))
    """
    with server() as process:
        found = client(program, process.endpoint)
    assert found.pop("data") == [[0, 1, 2], [3, 4, 5]]
    assert "cannot make buffers over host memory" in found.pop("over_array")
    if found.pop("events"):
        assert "expected a backend of that device, got one of CPU" in found["record"]
        assert "CPU (CPU) cannot wait" in found["wait"] and "closed" in found["closed"]


@pytest.mark.parametrize(
    "endpoint", ["", "localhost", "50052", ":50052", "::1:50052", "host:port", "h:0", "h:65536"]
)
def test_what_is_no_endpoint_says_so(endpoint):
    with pytest.raises(ggml.ArgumentError, match="expected HOST:PORT") as error:
        ggml.rpc_devices(endpoint)
    assert repr(endpoint) in str(error.value)


@needs_rpc
def test_an_endpoint_where_nobody_listens_says_so():
    devices = ggml.devices()
    with pytest.raises(ggml.RpcError, match="nobody answers"):
        ggml.rpc_devices(f"127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionError, match="no host"):
        ggml.rpc_devices("no-such-host.invalid:50052")
    assert ggml.devices() == devices


@needs_rpc
@pytest.mark.skipif(BUILD["ggml_version"] == "0.9.4", reason="0.9.4 reads through NULL")
def test_a_server_of_another_kind_says_so():
    program = """
        import json, socket, threading
        import ggml_py as ggml

        def hang_up():
            for _ in range(2):
                listener.accept()[0].close()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=hang_up, daemon=True).start()
            try:
                ggml.rpc_devices(f"127.0.0.1:{listener.getsockname()[1]}")
            except ggml.RpcError as error:
                print(json.dumps(str(error)))
    """
    assert "Expected an RPC server of the same ggml release" in client(program)


class WithoutRpc:
    """The library of a build into which RPC was not linked."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        return getattr(ggml.lib, name)

    def ggml_backend_rpc_reg(self):
        raise ggml.MissingFunctionError("ggml_backend_rpc_reg is not in this build")

    def ggml_backend_reg_by_name(self, name):
        return ggml.lib.ggml_backend_reg_by_name(name) if self.module else ggml.ffi.NULL


def test_a_build_without_rpc_says_so(monkeypatch):
    monkeypatch.setattr(ggml_py.backends.rpc, "lib", WithoutRpc(module=False))
    with pytest.raises(ggml.MissingFunctionError, match="not in this build"):
        ggml.rpc_devices("127.0.0.1:50052")


@needs_rpc
def test_a_module_that_was_loaded_has_the_function_too(monkeypatch):
    linked = ggml_py.backends.rpc._add_server()
    monkeypatch.setattr(ggml_py.backends.rpc, "lib", WithoutRpc(module=True))
    assert linked is ggml.lib.ggml_backend_rpc_add_server
    assert ggml_py.backends.rpc._add_server() != ggml.ffi.NULL

"""Custom ops beside an RPC server, which must not be sent the address of a function of ours."""

import subprocess
import sys

import pytest

from ggml_py.boundary.ffi import BUILD

from ..support.rpc_net import server

REMOTE = """
import sys, numpy as np
import ggml_py as ggml

registry = ggml.lib.ggml_backend_rpc_add_server(sys.argv[1].encode())
ggml.lib.ggml_backend_register(registry)
rpc = next(d for d in ggml.devices() if d.name.startswith("RPC")).init()
cpu = ggml.device("CPU").init()

def double(dst, a, ith, nth):
    np.add(a, a, out=dst)

with ggml.Context() as weights, ggml.Context() as c, ggml.Scheduler([rpc, cpu]) as scheduler:
    w = weights.from_numpy(np.eye(4, dtype=np.float32))
    weights.alloc(rpc, usage="weights")
    x = c.new_tensor("f32", 4)
    x.set_input()
    h = c.mul_mat(w, x)
    y = c.map_custom1(h, double)
    y.name = "y"
    graph = c.new_graph()
    graph.build_forward_expand(y)
    try:
        scheduler.alloc_graph(graph)
        scheduler.compute(graph)
    except ggml.ArgumentError as error:
        print(error)
    scheduler.reset()
    scheduler.set_tensor_backend(y, cpu)
    scheduler.alloc_graph(graph)
    x.set([1, 2, 3, 4])
    scheduler.compute(graph)
    print(y.get().tolist())
with ggml.Context() as c:
    y = c.map_custom1(c.new_tensor("f32", 4), double)
    c.alloc(rpc)
    graph = c.new_graph()
    graph.build_forward_expand(y)
    try:
        rpc.compute(graph)
    except ggml.ArgumentError as error:
        print("(RPC), which cannot call Python" in str(error))
"""


@pytest.fixture
def rpc_endpoint():
    """Where a server with a CPU listens; it ends with the test."""
    with server(1) as process:
        yield process.endpoint


@pytest.mark.skipif("rpc" not in BUILD["backends"], reason="built without RPC")
def test_an_rpc_device_is_not_sent_our_functions_address(rpc_endpoint):
    done = subprocess.run(
        [sys.executable, "-c", REMOTE, rpc_endpoint], capture_output=True, text=True, check=False
    )
    refused, doubled, direct = done.stdout.splitlines() or [done.stderr, "", ""]
    assert "'y' is on RPC" in refused and "set_tensor_backend" in refused
    assert (doubled, direct) == ("[2.0, 4.0, 6.0, 8.0]", "True")

"""The scheduler's copies in the user's hands: the copy callback, and tensors that are the
scheduler's own. The device whose memory the CPU cannot read is this machine's, over RPC."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from ..support.rpc_client import needs_rpc
from ..support.rpc_net import server

CALLBACK = pytest.mark.needs("ggml_backend_sched_set_copy_callback")
BEGIN = """
    import sys
    import numpy as np
    import pytest
    import ggml_py as ggml

    gpu, cpu = ggml.rpc_devices(sys.argv[1])[0].init(), ggml.device("CPU").init(n_threads=1)
    weights, ctx = ggml.Context(), ggml.Context()
    values = np.random.default_rng(0).standard_normal((32, 64), np.float32)
    w = weights.from_numpy(values, "w")
    weights.alloc(cpu, usage="weights")
    x = ctx.new_tensor("f32", 64, 8, name="x")
    x.set_input()
    h = ctx.mul_mat(w, x)
    h.name = "h"
    y = ctx.sqr(h)
    y.name = "y"
    graph = ctx.new_graph()
    graph.build_forward_expand(y)
    sched = ggml.Scheduler([gpu, cpu])
    sched.set_tensor_backend(h, gpu)
    sched.alloc_graph(graph)
    inp = np.ones((8, 64), np.float32)
    x.set(inp)
"""
COPIED = """
    told = []

    def copy(backend, src, dst, nodes):
        told.append((backend, src.name, dst.name, [n.name for n in nodes]))
        kept.append(dst)
        dst.set(values * 10)
        return True

    kept = []
    sched.set_copy_callback(copy)
    sched.compute(graph)
    assert told == [(gpu, "w", f"{gpu.name}#w#0", ["h", "y"])], told
    np.testing.assert_allclose(y.get(), (inp @ (values * 10).T) ** 2, rtol=1e-4)
    # a callback that leaves it to ggml, and one that is gone
    for other in (lambda *args: False, None):
        sched.set_copy_callback(other)
        x.set(inp)
        sched.compute(graph)
        np.testing.assert_allclose(y.get(), (inp @ values.T) ** 2, rtol=1e-4)
    # what it was given lives as long as the scheduler holds the graph
    assert kept[0].ne == (64, 32, 1, 1)
    sched.reset()
    with pytest.raises(ggml.ClosedError, match="scheduler's copy"):
        kept[0].ne
"""
RAISED = """
    def copy(backend, src, dst, nodes):
        raise KeyError(dst.name)

    sched.set_copy_callback(copy)
    with pytest.raises(KeyError, match="#w#0"):
        sched.compute(graph)
    sched.set_copy_callback(None)
    x.set(inp)
    sched.compute(graph)
    np.testing.assert_allclose(y.get(), (inp @ values.T) ** 2, rtol=1e-4)
"""
LENT = """
    copies = [s for s in h.src if s.name.startswith(gpu.name + "#")]
    assert [c.name for c in copies] == [f"{gpu.name}#w#0", f"{gpu.name}#x#0"], copies
    assert copies[0].buffer is not None and "w" in repr(copies[0])
    with pytest.raises(ggml.ArgumentError, match="copy made by a scheduler"):
        ctx.sqr(copies[0])
    sched.compute(graph)
    sched.reset()
    assert [s.name for s in h.src] == ["w", "x"]
    for close in (lambda: None, sched.close):
        close()
        for copy in copies:
            with pytest.raises(ggml.ClosedError):
                copy.get()
            assert "closed" in repr(copy)
"""
SIZES = """
    sched.reset()
    unpinned = sched.reserve_size(graph)
    sched.set_tensor_backend(h, gpu)
    sizes = sched.reserve_size(graph)
    assert sizes[gpu.name] > unpinned[gpu.name], (sizes, unpinned)
    assert set(sizes) == {gpu.name, cpu.name} and min(sizes.values()) > 0, sizes
    huge = ctx.new_graph()
    far = ctx.repeat_4d(h, 32, 8, 1 << 30, 1 << 10)
    far.name = "far"
    huge.build_forward_expand(ctx.sqr(far))
    sched.set_tensor_backend(far, gpu)
    with pytest.raises(ggml.AllocError, match="RPC.* could not allocate") as error:
        sched.alloc_graph(huge)
    assert error.value.sizes[gpu.name] > 1 << 40 and set(error.value.sizes) == set(sizes)
    # the pins are still there, and the scheduler works
    assert sched.alloc_graph(graph).node("h").backend == gpu.name
    x.set(inp)
    sched.compute(graph)
    np.testing.assert_allclose(y.get(), (inp @ values.T) ** 2, rtol=1e-4)
"""
MOVED = """
    sched.reset()
    sched.alloc_graph(graph)
    told = sched.reallocations
    assert [r.reason for r in told] == ["first", "backend"], told
    # upstream compares by position, and copies have places in its graph
    assert told[1].tensor == "y" and "is on CPU; in its place" in told[1].text, told
"""
ASYNC = """
    # two graphs under way at once: each alloc takes the next copy of the inputs
    with ggml.Scheduler([gpu, cpu], parallel=True) as pipeline:
        sched.reset()
        results = []
        for i in range(4):
            pipeline.set_tensor_backend(h, gpu)
            pipeline.alloc_graph(graph)
            assert pipeline.inspect()["cur_copy"] == i
            x.set(inp * i)
            pipeline.compute_async(graph)
            results.append(y.get())
            pipeline.reset()
        pipeline.synchronize()
    for i, result in enumerate(results):
        np.testing.assert_allclose(result, (inp * i @ values.T) ** 2, rtol=1e-4)
"""


@needs_rpc
@pytest.mark.parametrize(
    "part",
    [
        pytest.param("COPIED", marks=CALLBACK), pytest.param("RAISED", marks=CALLBACK), "LENT",
        pytest.param("SIZES", marks=pytest.mark.needs("ggml_backend_sched_reserve_size")),
        "MOVED", "ASYNC",
    ],
)  # fmt: skip
def test_copies_over_rpc(part):
    program = textwrap.dedent(BEGIN + globals()[part])
    with server() as process:
        done = subprocess.run(
            [sys.executable, "-c", program, process.endpoint], capture_output=True, text=True,
            check=False, timeout=120, env=os.environ,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""Plans with copies: a device whose memory the CPU cannot read (this machine's, over RPC)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from ..support.rpc_client import needs_rpc
from ..support.rpc_net import server

PROGRAM = """
    import sys
    import numpy as np
    import ggml_py as ggml

    parallel = sys.argv[2] == "parallel"
    gpu, cpu = ggml.rpc_devices(sys.argv[1])[0].init(), ggml.device("CPU").init(n_threads=1)
    on_gpu, on_cpu, ctx = ggml.Context(), ggml.Context(), ggml.Context()
    rng = np.random.default_rng(0)
    a = on_gpu.from_numpy(rng.standard_normal((32, 64), np.float32), "a")
    on_gpu.alloc(gpu, usage="weights")
    b = on_cpu.from_numpy(rng.standard_normal((16, 32), np.float32), "b")
    on_cpu.alloc(cpu, usage="weights")
    x = ctx.new_tensor("f32", 64, 8, name="x")
    x.set_input()
    h = ctx.mul_mat(a, x)
    h.name = "h"
    y = ctx.mul_mat(b, h)
    y.name = "y"
    y.set_output()
    graph = ctx.new_graph()
    graph.build_forward_expand(y)
    sched = ggml.Scheduler([gpu, cpu], op_offload=False, parallel=parallel)
    assert sched.n_copies == (4 if parallel else 1)

    def state():
        tensors = (*graph.nodes, *graph.leafs)
        return [(t.ptr, t.src, t.flags, t.ptr.data, t.ptr.buffer) for t in tensors]

    before = state()
    plan = sched.plan(graph)
    assert state() == before and sched.plan(graph) == plan

    # the input goes up, what the GPU computed comes down
    moves = [(i.tensor.name, i.src_backend, i.dst_backend, i.nbytes)
             for split in plan.splits for i in split.inputs]
    assert moves == [("x", cpu.name, gpu.name, 64 * 8 * 4), ("h", gpu.name, cpu.name, 32 * 8 * 4)]
    assert (plan.n_splits, plan.n_inputs, plan.copy_bytes) == (2, 2, 3072)
    copied = plan.splits[1].inputs[0].copy
    assert (copied.name, copied.backend, copied.cause.code) == ("CPU#h#0", "CPU", "4.cpy")
    assert copied.cause.witness == plan.node("h") and copied.cause.pass_ == 5
    assert [s.name for s in plan.node("y").srcs] == ["b", "h"]  # as built; the plan reads the copy
    assert f"## SPLIT #1: CPU # 1 inputs: [h (   1K)] " in plan.text()
    assert "CPU#h#0 (   1K) [ NULL    4.cpy]" in plan.text()
    # Of pipeline copies the original is the current one.
    copies = plan.copies
    assert [c.name for c in copies if "#" not in c.name] == (["x"] if parallel else [])
    made = {c.placement.copy_index for c in copies if "#" in c.name}
    assert made == ({0, 1, 2, 3} if parallel else {0})
    causes = {c.cause.later or c.cause.code for c in copies}
    pass_6 = tuple(map(int, ggml.enums.UPSTREAM.split("."))) >= (0, 25)
    assert causes == ({"4.cpy", "6.cpy"} if parallel and pass_6 else {"4.cpy"})

    for round in range(5 if parallel else 2):  # each with the next of the copies
        allocated = sched.alloc_graph(graph)
        if allocated.settings.cur_copy == 0:
            assert allocated == plan
        values = rng.standard_normal((8, 64), np.float32)
        x.set(values)
        sched.compute(graph)
        np.testing.assert_allclose(y.get(), values @ a.get().T @ b.get().T, atol=1e-3)
        sched.reset()
        assert state() == before
    sched.reserve(graph)
    assert state() == before and sched.plan(graph) == plan

    # an abort while the graph reads copies: the scheduler is spoiled, the graph is whole
    sched.alloc_graph(graph)
    assert state() != before
    try:
        with sched._changing():
            ctx.mul_mat(a, b)
    except ggml.AbortError:
        assert state() == before
    try:
        sched.plan(graph)
    except ggml.SpoiledError:
        print("ok")
"""


@needs_rpc
@pytest.mark.parametrize("mode", ["one copy", "parallel"])
def test_copies_are_planned_counted_computed_and_undone(mode):
    with server() as process:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), process.endpoint, mode],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr


PRINT = """
    import logging, sys
    import ggml_py as ggml
    from ggml_py.boundary.ffi import BUILD
    from ggml_py.export import to_text

    lines = []
    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
    logging.getLogger("ggml").setLevel(logging.DEBUG)
    logging.getLogger("ggml").addHandler(Keep())

    gpu, cpu = ggml.rpc_devices(sys.argv[1])[0].init(), ggml.device("CPU").init(n_threads=1)
    on_gpu, on_cpu, ctx = ggml.Context(), ggml.Context(), ggml.Context()
    a, b = on_gpu.new_tensor("f32", 64, 32, name="a"), on_cpu.new_tensor("f32", 32, 16, name="b")
    on_gpu.alloc(gpu, usage="weights")
    on_cpu.alloc(cpu, usage="weights")
    x = ctx.new_tensor("f32", 64, 8, name="x")
    x.set_input()
    h = ctx.mul_mat(a, x)
    first = ctx.mul_mat(b, ctx.add(h, h))
    second = ctx.mul_mat(b, ctx.add(ctx.mul_mat(a, x), h))
    graph = ctx.new_graph()
    graph.build_forward_expand(first, second)
    sched = ggml.Scheduler([gpu, cpu], op_offload=False)
    if BUILD["pristine"]:
        sched.alloc_without_plan(graph)
    else:
        lines = to_text.render(sched.plan(graph), causes=False).splitlines()
    print(*(line for line in lines if line.startswith(("## SPLIT", "node #"))), sep="\\n")
"""


@needs_rpc
def test_text_of_a_plan_with_copies_equals_upstreams_print(pristine):
    printed = []
    with server() as process:
        for build in ({}, {"GGML_PY_UPSTREAM": pristine, "GGML_SCHED_DEBUG": "2"}):
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(PRINT), process.endpoint],
                capture_output=True, text=True, check=True, timeout=60,
                env={**os.environ, **build},
            )  # fmt: skip
            printed.append(done.stdout)
    ours, upstreams = printed
    assert ours.count("## SPLIT") == 4 and "CPU#node_1#0" in ours
    assert ours == upstreams


# --- graph inputs that are kept for pipeline parallelism

KEPT = """
    import logging, sys
    import ggml_py as ggml

    lines = []
    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
    logging.getLogger("ggml").setLevel(logging.DEBUG)
    logging.getLogger("ggml").addHandler(Keep())

    gpu, cpu = ggml.sim_device("gpu0").init(), ggml.device("CPU").init(n_threads=1)
    on_gpu, on_cpu, ctx = ggml.Context(), ggml.Context(), ggml.Context()
    a, b = on_gpu.new_tensor("f32", 64, 32, name="a"), on_cpu.new_tensor("f32", 64, 32, name="b")
    on_gpu.alloc(gpu, usage="weights")
    on_cpu.alloc(cpu, usage="weights")
    x = ctx.new_tensor("f32", 64, 8, name="x")
    x.set_input()
    graph = ctx.new_graph()
    graph.build_forward_expand(ctx.mul_mat(a, x), ctx.mul_mat(b, x))
    sched = ggml.Scheduler([gpu, cpu], parallel=True, op_offload=False)
    printed = sys.argv[1] == "print"
    plan = sched.alloc_graph(graph)
    assert plan == plan.reference
    lines = lines if printed else plan.text().splitlines()
    print(*(line for line in lines if line.startswith(("## SPLIT", "node #"))), sep="\\n")
    if not printed:
        print(plan.find("x")[0].cause)
"""


def test_text_of_graph_inputs_equals_upstreams_print():
    """Upstream prints before pass 6, which calls an input the current one of its copies."""
    said = []
    for how in ("print", "text"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KEPT), how], capture_output=True, text=True,
            check=True, timeout=60, env={**os.environ, "GGML_SCHED_DEBUG": "2" * (how == "print")},
        )  # fmt: skip
        said.append(done.stdout)
    theirs, ours = said
    assert ours.removeprefix(theirs) == (
        "1.inp: it is a graph input; inputs go to the last backend, CPU; 6.cpy later: a graph "
        "input, itself the current one of its copies for pipeline parallelism\n"
    )
    assert "x (   2K) [  CPU    1.inp]" in theirs

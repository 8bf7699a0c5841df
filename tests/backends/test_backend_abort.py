"""Stopping a compute: by a Python function, by what it raises, by Ctrl-C beside it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ggml_py as ggml

N_NODES = 6


@pytest.fixture
def chain():
    """A chain of N_NODES nodes with memory, on a CPU backend."""
    with ggml.device("CPU").init(n_threads=2) as cpu, ggml.Context() as context:
        y = context.from_numpy(np.ones((8, 8), np.float32), "x")
        for _ in range(N_NODES):
            y = context.scale(y, 2)
        context.alloc(cpu)
        graph = context.new_graph(32)
        graph.build_forward_expand(y)
        yield cpu, graph, y


def ways(cpu, graph):
    """All ways to compute a graph that is allocated."""
    scheduler, plan = ggml.Scheduler([cpu]), cpu.graph_plan(graph)
    return {
        "backend": lambda: cpu.compute(graph),
        "scheduler": lambda: scheduler.compute(graph),
        "plan": plan.compute,
    }


WAYS = ("backend", "scheduler", "plan")


@pytest.mark.parametrize("way", WAYS)
def test_it_is_asked_after_each_node(chain, way):
    cpu, graph, y = chain
    asked = []
    cpu.set_abort_callback(lambda: asked.append(1))
    ways(cpu, graph)[way]()
    assert len(asked) == N_NODES
    assert set(y.get().ravel()) == {2.0**N_NODES}


@pytest.mark.parametrize("way", WAYS)
def test_true_stops(chain, way):
    cpu, graph, y = chain
    asked = []

    def third():
        asked.append(1)
        return len(asked) == 3

    y.set(np.zeros((8, 8)))
    cpu.set_abort_callback(third)
    compute = ways(cpu, graph)[way]
    with pytest.raises(ggml.ComputeError, match="aborted"):
        compute()
    assert len(asked) == 3 and not y.get().any()
    compute()  # goes on as before
    assert set(y.get().ravel()) == {2.0**N_NODES}


@pytest.mark.parametrize("way", WAYS)
def test_what_it_raises_is_raised(chain, way):
    cpu, graph, _y = chain

    def fail():
        raise LookupError("from the callback")

    cpu.set_abort_callback(fail)
    compute = ways(cpu, graph)[way]
    for _ in range(2):
        with pytest.raises(LookupError, match="from the callback"):
            compute()
    cpu.set_abort_callback(None)
    compute()


def test_an_old_plan_asks_the_backends_function_of_now(chain):
    cpu, graph, _y = chain
    first, second = [], []
    cpu.set_abort_callback(lambda: first.append(1))
    plan = cpu.graph_plan(graph)
    cpu.set_abort_callback(lambda: second.append(1))
    plan.compute()
    assert (len(first), len(second)) == (0, N_NODES)
    cpu.set_abort_callback(None)
    plan.compute()
    assert len(second) == N_NODES


def test_what_cannot_be_asked_says_so(chain):
    cpu, _graph, _y = chain
    with pytest.raises(TypeError, match="expected a function, got int 3"):
        cpu.set_abort_callback(3)
    with (
        ggml.device("BLAS").init() as blas,
        pytest.raises(ggml.MissingFunctionError, match="BLAS has no 'ggml_backend_set_abort"),
    ):
        blas.set_abort_callback(lambda: True)


CTRL_C = """
    import threading, time, os, signal
    import ggml_py as ggml
    cpu = ggml.device("CPU").init(n_threads=2)
    {setup}
    c = ggml.Context()
    x = c.new_tensor("f32", 512, 512)
    y = x
    for _ in range(4000):
        y = c.relu(c.mul_mat(x, y))
    g = c.new_graph(9000)
    g.build_forward_expand(y)
    galloc = ggml.GraphAllocator(cpu.buffer_type)
    galloc.alloc_graph(g)
    x.set([[0.0] * 512] * 512)
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.3, send).start()
    try:
        cpu.compute(g)
    except KeyboardInterrupt:
        print("stopped", "soon" if time.monotonic() - sent[0] < 0.5 else "late")
    else:
        print("ran to the end", sent)
"""


@pytest.mark.parametrize(
    "setup",
    [
        "cpu.set_abort_callback(lambda: False)",
        "cpu.set_threadpool(ggml.ThreadPool(2))",
        "cpu.set_threadpool(ggml.ThreadPool(2)); cpu.set_abort_callback(lambda: False)",
    ],
)
def test_ctrl_c_stops_within_half_a_second(setup):
    program = textwrap.dedent(CTRL_C).format(setup=setup)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("stopped soon", "")

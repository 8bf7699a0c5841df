"""Simulated devices compute while the caller goes on; what fails comes out where one waits."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import ggml_py as ggml

from ..support.native_counts import leaks
from ..support.sim_net import Net, cpu_result

PRODUCTS = {"MUL_MAT": True}


class Gate:
    """Holds a backend's computes until it is opened."""

    def __init__(self, backend):
        self.reached, self.open = threading.Event(), threading.Event()
        backend.set_abort_callback(self.wait)

    def wait(self):
        self.reached.set()
        assert self.open.wait(30)
        return False


@pytest.fixture
def net(sims):
    """Without events upstream's scheduler waits for a backend before it copies to it."""
    devices = sims("gpu0", supports=PRODUCTS), sims("gpu1", supports={"RELU": True})
    with Net(*devices, parallel=True) as made:
        yield made


def submit(net):
    net.scheduler.alloc_graph(net.graph)
    net.set_input()
    net.scheduler.compute_async(net.graph)


def test_the_caller_goes_on_while_it_computes(net):
    assert net.backends[0].device.props.caps == ggml.DeviceCaps(True, False, False, True)
    gate = Gate(net.backends[0])
    submit(net)  # both devices have work, and the second waits for the first
    assert gate.reached.wait(30)
    threading.Timer(0.2, gate.open.set).start()
    start = time.monotonic()
    np.testing.assert_array_equal(net.out.get(), cpu_result())  # reading waits
    assert time.monotonic() - start > 0.1
    net.scheduler.synchronize()
    net.scheduler.reset()


def test_without_async_it_has_computed_when_the_call_returns(sims):
    sim = sims(supports=PRODUCTS, async_=False)
    assert sim.props.caps == ggml.DeviceCaps(False, False, False, False)
    with pytest.raises(ggml.ArgumentError, match="has no events"):
        sim.event()
    with Net(sim) as net:
        threads = []
        net.backends[0].set_abort_callback(lambda: threads.append(threading.get_ident()))
        np.testing.assert_array_equal(net.run(), cpu_result())
        assert set(threads) == {threading.get_ident()}


@pytest.mark.parametrize("parallel", [False, True])
def test_graphs_one_after_the_other_without_waiting(sims, parallel):
    """As llama.cpp feeds a pipeline: the next graph is allocated and given its input while those
    before it are computed; each leaves its result in memory of its own."""
    with Net(
        sims("gpu0", supports=PRODUCTS), sims("gpu1", supports={"RELU": True, "CPY": True}),
        parallel=parallel,
    ) as net:  # fmt: skip
        n = 12
        assert net.scheduler.n_copies == (4 if parallel else 1)
        kept = net.weights_on(net.backends[1], *[net.out.ne[:2]] * n)
        contexts, graphs = [ggml.Context() for _ in range(n)], []
        for context, keep in zip(contexts, kept, strict=True):
            x, out = net.build(context)
            graph = context.new_graph()
            graph.build_forward_expand(context.cpy(out, keep))
            graphs.append((graph, x))
        rng = np.random.default_rng(3)
        inputs = [rng.standard_normal((48, 64), np.float32) for _ in range(n)]
        copies = set()
        for (graph, x), values, context in zip(graphs, inputs, contexts, strict=True):
            net.scheduler.alloc_graph(graph)
            copies.add(net.scheduler.inspect()["cur_copy"])
            x.set(values)
            net.scheduler.compute_async(graph)
            net.scheduler.reset()
            context.close()  # its tensors too may be gone before they are computed
        net.scheduler.synchronize()
        assert copies == ({0, 1, 2, 3} if parallel else {0})
        for keep, values in zip(kept, inputs, strict=True):
            np.testing.assert_array_equal(keep.get(), cpu_result(values=values))


def test_parallel_events_are_there_for_devices_with_async(sims):
    devices = sims("gpu0", supports=PRODUCTS), sims("gpu1", async_=False)
    with Net(*devices, parallel=True) as net:
        net.scheduler.alloc_graph(net.graph)
        assert net.scheduler.inspect()["events"] == [[True] * 4, [False] * 4, [False] * 4]
        net.scheduler.reset()
        np.testing.assert_array_equal(net.run(), cpu_result())


def test_an_assertion_that_fails_in_it_is_raised_where_one_waits(sims):
    with sims().init(n_threads=2) as gpu, ggml.Context() as c:
        x, ids = c.new_tensor("f32", 4, 4), c.new_tensor("i32", 2)
        y = c.get_rows(x, ids)
        y.name = "rows"
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        c.alloc(gpu)
        x.set(np.eye(4, dtype=np.float32))
        for bad in (99, 100):
            ids.set([0, bad])
            with pytest.raises(ggml.AbortError, match="i01 >= 0 && i01 < ne01") as raised:
                gpu.compute(graph)
            assert raised.value.call == "ggml_backend_graph_compute"
            assert any("'rows'" in operand for operand in raised.value.operands)
        ids.set([0, 3])
        gpu.compute(graph)
        np.testing.assert_array_equal(y.get(), np.eye(4)[[0, 3]])


@pytest.mark.parametrize("wait", ["synchronize", "get", "scheduler"])
def test_each_way_of_waiting_raises_it_once(sims, wait):
    gpu, cpu = sims().init(), ggml.device("CPU").init()
    with gpu, cpu, ggml.Context() as c:
        x, ids = c.new_tensor("f32", 4, 4), c.new_tensor("i32", 2)
        y = c.get_rows(x, ids)
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        c.alloc(gpu).clear()
        ids.set([0, 99])
        with ggml.Scheduler([gpu, cpu]) as scheduler:
            scheduler.alloc_graph(graph)
            scheduler.compute_async(graph)
            ways = {"synchronize": gpu.synchronize, "get": y.get}
            ways["scheduler"] = scheduler.synchronize
            with pytest.raises(ggml.AbortError, match="i01 < ne01"):
                ways[wait]()
            ways[wait]()
            scheduler.reset()


def test_a_compute_is_stopped_by_its_callback_and_by_what_that_raises(net):
    gpu = net.backends[0]
    gpu.set_abort_callback(lambda: True)
    with pytest.raises(ggml.ComputeError, match=r"gpu0: .*abort"):
        net.run()
    net.scheduler.reset()

    def fail():
        raise KeyError("from the callback")

    gpu.set_abort_callback(fail)
    with pytest.raises(KeyError, match="from the callback"):
        net.run()
    net.scheduler.reset()
    gate = Gate(gpu)
    submit(net)
    gpu.set_abort_callback(fail)
    gate.open.set()
    with pytest.raises(KeyError, match="from the callback"):
        net.scheduler.synchronize()
    net.scheduler.synchronize()  # once is enough
    net.scheduler.reset()
    gpu.set_abort_callback(None)
    np.testing.assert_array_equal(net.run(), cpu_result())


def test_what_nobody_waited_for_is_logged_when_the_scheduler_closes(net, caplog):
    net.backends[0].set_abort_callback(lambda: True)
    submit(net)
    net.scheduler.close()
    assert "closed after a compute that failed: backend gpu0" in caplog.text


def test_ctrl_c_stops_it():
    program = """
        import os, signal, threading, time
        import ggml_py as ggml
        gpu = ggml.sim_device("gpu0").init(n_threads=1)
        c = ggml.Context()
        x = c.new_tensor("f32", 1024, 1024)
        c.alloc(gpu)
        x.set([[0.0] * 1024] * 1024)
        with ggml.Context() as ops:
            y = x
            for _ in range(1500):
                y = ops.mul_mat(x, y)
            g = ops.new_graph(4096)
            g.build_forward_expand(y)
            s = ggml.Scheduler([gpu, ggml.device("CPU").init(n_threads=1)], 4096)
            s.alloc_graph(g)
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            start = time.monotonic()
            try:
                s.compute(g)
            except KeyboardInterrupt:
                print("stopped", time.monotonic() - start < 5)
            else:
                print("ran to the end")
            s.synchronize()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "stopped True", done.stderr
    assert done.returncode == 0 and done.stderr == ""


def test_events_and_copies_between_devices(sims):
    one, two = sims("gpu0").init(), sims("gpu1").init()
    with one, two, ggml.Context() as c, ggml.Context() as d:
        x = c.new_tensor("f32", 64)
        y = c.sqr(x)
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        c.alloc(one)
        z = d.new_tensor("f32", 64)
        d.alloc(two)
        gate = Gate(one)
        x.set(np.arange(64))
        graph_compute = ggml.lib.ggml_backend_graph_compute_async
        assert graph_compute(one.ptr, graph.ptr) == 0
        assert gate.reached.wait(30)
        with one.device.event() as event:
            event.record(one)
            event.wait(two)
            two.copy_async(one, y, z)  # it has to wait for the graph
            gate.open.set()
            event.synchronize()
        two.synchronize()
        np.testing.assert_array_equal(z.get(), np.arange(64.0) ** 2)
        one.set_abort_callback(None)


def test_devices_that_share_memory_keep_the_order(sims):
    """Nothing is copied between them, so nothing in the scheduler makes the second wait."""
    first = sims("gpu0", supports=PRODUCTS)
    with Net(first, sims("gpu1", supports={"RELU": True}, buft_of=first), parallel=True) as net:
        gate = Gate(net.backends[0])
        threading.Timer(0.2, gate.open.set).start()
        np.testing.assert_array_equal(net.run(), cpu_result())


def test_everything_can_be_closed_while_it_computes(sims):
    devices = sims("gpu0", supports=PRODUCTS), sims("gpu1", supports={"RELU": True})
    for first in ("scheduler", "context", "weights", "backend"):
        net = Net(*devices, parallel=True)
        gate = Gate(net.backends[0])
        submit(net)
        assert gate.reached.wait(30)
        threading.Timer(0.05, gate.open.set).start()
        handles = {
            "scheduler": net.scheduler, "context": net.context, "weights": net.weights,
            "backend": net.backends[0],
        }  # fmt: skip
        handles[first].close()
        net.__exit__()
    for device in devices:
        assert device._in_use() == "" and device.memory[0] == device.memory[1]


@pytest.mark.parametrize("how", ["reset", "close", "drop"])
@pytest.mark.parametrize("n_backends", [1, 2])
def test_another_lender_takes_its_memory_back_while_it_computes(sims, how, n_backends):
    """The graph that computes has tensors that another scheduler gave memory."""
    gpu = sims("gpu0", supports=PRODUCTS)
    cpu = ggml.device("CPU").init(n_threads=1)
    backends = [gpu.init() for _ in range(n_backends)]
    context, weights = ggml.Context(), ggml.Context()
    x, w = context.new_tensor("f32", 64, 64), weights.new_tensor("f32", 64, 64)
    x.set_input()
    weights.alloc(backends[0], usage="weights")
    y = context.mul_mat(w, x)
    y.set_output()
    shared = context.new_graph(64)
    shared.build_forward_expand(y)
    for _ in range(5):
        y = context.mul_mat(w, y)
    graph = context.new_graph(64)
    graph.build_forward_expand(y)
    lender, scheduler = ggml.Scheduler([backends[0], cpu]), ggml.Scheduler([backends[-1], cpu])
    lender.alloc_graph(shared)
    x.set(np.ones((64, 64)))
    w.set(np.ones((64, 64)) / 64)
    lender.compute(shared)
    scheduler.alloc_graph(graph)
    gate = Gate(backends[-1])
    scheduler.compute_async(graph)
    assert gate.reached.wait(30)
    threading.Timer(0.05, gate.open.set).start()
    if how == "drop":
        del lender
    else:
        getattr(lender, how)()
    scheduler.synchronize()
    assert (y.get() == 1).all()
    for handle in (scheduler, context, weights, *backends, cpu):
        handle.close()


def test_garbage_that_is_collected_on_its_own_thread_is_freed(sims):
    """The last references go while a callback runs on the thread that computes."""
    device = sims(supports=True)
    net = Net(device)
    held = [net]
    net.backends[0].set_abort_callback(lambda: bool(held.clear()))
    submit(net)
    del net
    for _ in range(200):
        if not device._in_use():
            break
        time.sleep(0.05)
    assert device._in_use() == ""


def test_threads_and_memory_are_given_back(sims):
    devices = sims("gpu0", supports=PRODUCTS), sims("gpu1", supports={"RELU": True})

    def cycles(n):
        for _ in range(n):
            with Net(*devices, parallel=True) as net:
                net.run()

    cycles(20)
    assert leaks(lambda: cycles(60), 60) == []


def test_a_pristine_build_has_them_too(pristine):
    program = """
        import numpy as np, ggml_py as ggml
        devices = [ggml.sim_device("gpu0", supports={"MUL_MAT": True}), ggml.device("CPU")]
        results = []
        for chosen in (devices, devices[1:]):
            backends = [d.init(n_threads=2) for d in chosen]
            weights, c = ggml.Context(), ggml.Context()
            w = weights.from_numpy(np.random.default_rng(0).standard_normal((64, 64), np.float32))
            weights.alloc(backends[0], usage="weights")
            graph = c.new_graph()
            y = c.mul_mat(w, c.relu(c.mul_mat(w, w)))
            graph.build_forward_expand(y)
            scheduler = ggml.Scheduler(backends)
            scheduler.compute(graph)
            results.append(y.get())
            if len(backends) == 2:
                assert scheduler.n_splits == 3
        print((results[0] == results[1]).all())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True,
        check=False, env={**os.environ, "GGML_PY_UPSTREAM": pristine},
    )  # fmt: skip
    assert done.stdout.strip() == "True", done.stderr


def test_a_custom_op_on_it_is_refused(sims):
    gpu, cpu = sims().init(), ggml.device("CPU").init()
    with gpu, cpu, ggml.Context() as c:
        x = c.new_tensor("f32", 4)
        x.set_input()
        y = c.map_custom1(c.sqr(x), lambda dst, a, ith, nth: np.copyto(dst, a + 1))
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        with ggml.Scheduler([gpu, cpu]) as scheduler:
            scheduler.alloc_graph(graph)  # goes to the CPU by itself
            x.set([1, 2, 3, 4])
            scheduler.compute(graph)
            assert y.get().tolist() == [2, 5, 10, 17]
            scheduler.reset()
            scheduler.set_tensor_backend(y, gpu)
            with pytest.raises(ggml.ArgumentError, match=r"gpu0 \(SIM\), which cannot call Python"):
                scheduler.alloc_graph(graph)


def test_callbacks_see_each_node_when_it_is_computed(net):
    seen = {}

    def look(tensor, ask):
        if not ask:
            seen[tensor.name] = tensor.get()
        return True

    net.scheduler.set_eval_callback(look)
    np.testing.assert_array_equal(net.run(), cpu_result())
    assert len(seen) == 3
    np.testing.assert_array_equal(seen["out"], cpu_result())
    np.testing.assert_array_equal(seen["node_1"], np.maximum(seen["h"], 0))


def test_every_node_is_the_cpus_bit_for_bit(sims):
    """By upstream's own comparison of two backends."""
    gpu, cpu = sims().init(n_threads=1), ggml.device("CPU").init(n_threads=1)
    with gpu, cpu, ggml.Context() as c, ggml.Context() as ops:
        rng = np.random.default_rng(4)
        x = c.from_numpy(rng.standard_normal((32, 64), np.float32), "x")
        w = c.from_numpy(rng.standard_normal((64, 64), np.float32), "w")
        c.alloc(gpu)
        h = ops.rms_norm(ops.add(ops.mul_mat(w, x), ops.silu(x)), 1e-5)
        graph = ops.new_graph()
        graph.build_forward_expand(ops.soft_max(ops.mul_mat(ops.cast(w, "f16"), h)))
        ops.alloc(gpu)
        compared = []

        def compare(_i, a, b):
            compared.append(a.name)
            np.testing.assert_array_equal(a.get(), b.get())
            return True

        ggml.compare_graph_backend(gpu, cpu, graph, compare)
        assert len(compared) == graph.n_nodes

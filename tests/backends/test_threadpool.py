"""Thread pools: where their threads run, when they run, and that they end."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD

from ..support import graphs

pausable = pytest.mark.skipif(BUILD["portable"], reason="loaded modules give no pause out")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def tasks():
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def status(task, key):
    for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return line.split(":")[1].strip()
    raise KeyError(key)


def allowed(task):
    """CPUs that a thread may run on."""
    cpus = set()
    for part in status(task, "Cpus_allowed_list").split(","):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def cpu_time(task):
    """Seconds that a thread ran."""
    fields = Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@contextlib.contextmanager
def pool_of(n_threads, **kwargs):
    """A pool and its own threads' ids; the thread that made it goes a moment later."""
    before = tasks()
    with ggml.ThreadPool(n_threads, **kwargs) as pool:
        assert until(lambda: len(tasks() - before) == n_threads - 1)
        yield pool, sorted(tasks() - before)


class Product:
    """A matrix product on a CPU backend, with memory."""

    def __init__(self, n_threads=2, n=128, repeat=1):
        self.cpu = ggml.device("CPU").init(n_threads=n_threads)
        self.context = ggml.Context()
        self.values = np.random.default_rng(0).standard_normal((n, n), np.float32) / 16
        x = self.context.from_numpy(self.values)
        y = x
        for _ in range(repeat):
            y = self.context.mul_mat(x, y)
        self.y, self.repeat = y, repeat
        self.context.alloc(self.cpu)
        self.graph = self.context.new_graph(repeat + 8)
        self.graph.build_forward_expand(y)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.context.close()
        self.cpu.close()

    def check(self):
        self.cpu.compute(self.graph)
        np.testing.assert_allclose(self.y.get(), self.values @ self.values.T, atol=2e-3)


@linux
def test_threads_are_there_from_new_to_close():
    before = len(tasks())
    with pool_of(4) as (pool, threads):
        assert len(threads) == 3  # whoever computes is the fourth
        assert repr(pool) == "<ThreadPool 4 threads>"
    assert until(lambda: len(tasks()) == before)
    pool = ggml.ThreadPool(3)
    assert until(lambda: len(tasks()) == before + 2)
    del pool
    gc.collect()
    assert until(lambda: len(tasks()) == before)


@linux
def test_computes_run_on_its_threads():
    with pool_of(4, paused=True) as (pool, threads), Product(repeat=4) as product:
        product.cpu.set_threadpool(pool)
        assert product.cpu.threadpool is pool and product.cpu.n_threads == 4
        assert sum(map(cpu_time, threads)) == 0
        before = tasks()

        def computed():
            product.cpu.compute(product.graph)
            return sum(map(cpu_time, threads)) > 0  # counted in hundredths of a second

        assert until(computed)
        assert until(lambda: tasks() == before)  # nothing was started beside
        product.cpu.n_threads = 2
        product.cpu.compute(product.graph)
        with pytest.raises(ggml.ArgumentError, match="at most 4"):
            product.cpu.n_threads = 5


def test_results_are_right_with_any_number_of_threads():
    with Product() as product:
        for n_threads in (1, 2, 5):
            with ggml.ThreadPool(n_threads) as pool:
                product.cpu.set_threadpool(pool)
                product.check()
            assert product.cpu.threadpool is None  # closing took it away
            product.check()


def test_two_backends_share_one():
    with ggml.ThreadPool(2) as pool, Product() as a, Product() as b:
        a.cpu.set_threadpool(pool)
        b.cpu.set_threadpool(pool)
        a.check()
        b.check()
        a.cpu.set_threadpool(None)  # upstream pauses it
        b.check()


def test_a_scheduler_computes_with_it():
    with ggml.ThreadPool(3) as pool, Product() as product:
        product.cpu.set_threadpool(pool)
        with ggml.Scheduler([product.cpu]) as scheduler:
            scheduler.compute(product.graph)
            np.testing.assert_allclose(
                product.y.get(), product.values @ product.values.T, atol=2e-3
            )


def test_a_pool_outlives_what_uses_it():
    product = Product()
    product.cpu.set_threadpool(ggml.ThreadPool(2))
    gc.collect()
    with product:
        product.check()


# --- where threads run


@linux
@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_threads_run_on_the_cpus_asked_for():
    mine = allowed(threading.get_native_id())
    for cpu in CPUS[:2]:
        with pool_of(3, cpumask=[cpu]) as (pool, threads):
            assert until(lambda c=cpu, t=threads: all(allowed(task) == {c} for task in t))
            assert pool.cpumask == {cpu}
    with pool_of(3, cpumask=CPUS[:2], strict_cpu=True) as (_pool, threads):
        assert until(lambda: [allowed(t) for t in threads] == [{CPUS[0]}, {CPUS[1]}])
    assert allowed(threading.get_native_id()) == mine


@linux
@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
@pytest.mark.parametrize("paused", [False, True])
def test_whoever_computes_is_on_them_meanwhile(paused):
    mine, seen = allowed(threading.get_native_id()), []

    def look():
        seen.append(allowed(threading.get_native_id()))
        return False

    with ggml.ThreadPool(1, cpumask=CPUS[1:2], paused=paused) as pool, Product() as product:
        product.cpu.set_threadpool(pool)
        product.cpu.set_abort_callback(look)
        product.check()
    # Long kernels ask it, too (native/worker_hooks.h).
    assert seen and all(cpus == {CPUS[1]} for cpus in seen)
    assert allowed(threading.get_native_id()) == mine


def test_a_cpu_that_is_not_there_is_refused():
    before = len(threading.enumerate())
    with pytest.raises(ggml.ArgumentError, match="may not use CPU 511"):
        ggml.ThreadPool(2, cpumask=[CPUS[0], 511])
    assert len(threading.enumerate()) == before


# --- when they run


@linux
@pausable
def test_polling_threads_spin_and_paused_ones_do_not():
    with pool_of(2, poll=100) as (pool, (thread,)):
        # One poll of 13 million rounds takes a good part of a second, then the thread sleeps.
        assert until(lambda: cpu_time(thread) > 0.05)
        pool.pause()
        assert until(lambda: status(thread, "State").startswith("S"))
        spent = cpu_time(thread)
        time.sleep(0.3)
        assert cpu_time(thread) == spent
        pool.resume()
        assert until(lambda: cpu_time(thread) > spent + 0.05)
    with pool_of(2, poll=0) as (_pool, (thread,)):
        assert until(lambda: status(thread, "State").startswith("S"))
        assert cpu_time(thread) < 0.05


@pausable
def test_paused_pools_wake_up_to_compute():
    with ggml.ThreadPool(2, paused=True) as pool, Product() as product:
        product.cpu.set_threadpool(pool)
        product.check()
        pool.pause()
        product.check()


# --- priorities


@linux
@pytest.mark.parametrize("prio", list(ggml.enums.SchedPriority))
def test_priorities_are_what_the_system_grants_or_an_error(prio):
    wanted = {"LOW": (os.SCHED_BATCH, 0), "NORMAL": (os.SCHED_OTHER, 0),
              "MEDIUM": (os.SCHED_FIFO, 40), "HIGH": (os.SCHED_FIFO, 80),
              "REALTIME": (os.SCHED_FIFO, 90)}[prio.name]  # fmt: skip
    granted = []

    def attempt():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, wanted[0], os.sched_param(wanted[1]))
            granted.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    mine = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    if not granted:
        with pytest.raises(ggml.ArgumentError, match=rf"prio={prio.name.lower()}: .* not grant"):
            ggml.ThreadPool(2, prio=prio)
        return
    with pool_of(2, prio=prio.name.lower(), poll=0) as (pool, (task,)):
        def given():
            return os.sched_getscheduler(task), os.sched_getparam(task).sched_priority

        assert until(lambda: given() == wanted)
        with Product() as product:
            product.cpu.set_threadpool(pool)
            product.check()
        assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == mine


# --- one compute at a time


@contextlib.contextmanager
def held(product):
    """While a compute is inside its abort callback, on another thread."""
    inside, leave, raised = threading.Event(), threading.Event(), []

    def wait():
        inside.set()
        leave.wait(10)
        return False

    def run():
        try:
            product.cpu.compute(product.graph)
        except BaseException as error:
            raised.append(error)

    product.cpu.set_abort_callback(wait)
    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(10)
    try:
        yield
    finally:
        leave.set()
        thread.join()
        product.cpu.set_abort_callback(None)
        assert raised == []


@pausable
def test_what_computes_is_left_alone():
    pool = ggml.ThreadPool(2)
    with Product() as product, Product() as other:
        product.cpu.set_threadpool(pool)
        other.cpu.set_threadpool(pool)
        with held(product):
            for use in (
                lambda: product.cpu.compute(other.graph),
                lambda: other.cpu.compute(other.graph),
                lambda: product.cpu.set_threadpool(None),
                lambda: setattr(product.cpu, "n_threads", 1),
                pool.pause,
                pool.close,
                product.cpu.close,
            ):
                with pytest.raises(ggml.BusyError, match="computing on another thread"):
                    use()
        product.check()
        other.check()
        pool.close()
        product.check()


@linux
def test_a_forked_child_computes_without_the_parents_pool():
    with ggml.ThreadPool(2) as pool, Product() as product:
        product.cpu.set_threadpool(pool)
        child = os.fork()
        if child == 0:
            try:
                product.check()
                os._exit(3 if pool.closed and product.cpu.threadpool is None else 4)
            finally:
                os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        product.check()


def _evaluated(cpu, c):
    """An evaluation of a model, with a callback that is asked before each node."""
    scheduler, opt = graphs.summed(cpu, c)

    def run(act):
        scheduler.set_eval_callback(lambda _tensor, ask: act() is None and False)
        opt.alloc()
        opt.eval()

    return run


def _compared(cpu, c):
    x = c.new_tensor("f32", 4)
    graph = c.new_graph(8)
    graph.build_forward_expand(c.sqr(x))
    c.alloc(cpu)
    x.set([1, 2, 3, 4])
    other = ggml.device("CPU").init(n_threads=1)

    def run(act):
        ggml.compare_graph_backend(cpu, other, graph, lambda *_: act() is None)
        other.close()

    return run


def _scheduled(cpu, c):
    x = c.new_tensor("f32", 4)
    x.set_input()
    graph = c.new_graph(8)
    graph.build_forward_expand(c.sqr(x))
    scheduler = ggml.Scheduler([cpu])
    scheduler.alloc_graph(graph)
    x.set([1, 2, 3, 4])

    def run(act):
        scheduler.set_eval_callback(lambda _tensor, ask: act() is None and False)
        scheduler.compute(graph)

    return run


@pausable
@pytest.mark.parametrize("made", [_evaluated, _compared, _scheduled])
def test_a_pool_is_not_paused_while_anything_computes_on_it(made):
    """Its threads would wait for ever, and who computes for them."""
    with ggml.ThreadPool(2, poll=0) as pool, ggml.Context() as c:
        cpu = ggml.device("CPU").init(n_threads=2)
        run = made(cpu, c)
        cpu.set_threadpool(pool)
        seen = []

        def act():
            try:
                pool.pause()
            except ggml.BusyError as error:
                seen.append(str(error))

        run(act)
        assert seen and all("ThreadPool is" in one for one in seen)
        cpu.close()


@pausable
def test_a_pool_that_a_backend_gets_just_before_a_compute_is_taken_too(monkeypatch):
    """It was looked up before the backend was taken."""
    from ggml_py.backends import sharing

    with ggml.ThreadPool(2, poll=0) as pool, ggml.Context() as c:
        cpu = ggml.device("CPU").init(n_threads=2)
        run = _scheduled(cpu, c)
        enter, seen = sharing.using.enter, []

        def late(use):
            if pool not in use.handles and cpu.threadpool is None:
                cpu.set_threadpool(pool)  # as another thread may
            return enter(use)

        monkeypatch.setattr(sharing.using, "enter", late)

        def act():
            with pytest.raises(ggml.BusyError, match="this ThreadPool is computing"):
                pool.pause()
            seen.append(1)

        run(act)
        assert seen
        cpu.close()

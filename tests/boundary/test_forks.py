"""A fork while other threads compute, quantise and allocate: the child works or says what it cannot
do, and ends as it should."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.uses import users_of

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
]
ALLOWED = (ggml.ClosedError, ggml.BusyError)


class Work(threading.Thread):
    """Computes over and over, in small graphs and long ones, with a pool or without."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.stop, self.handles = kind, False, []

    def run(self):
        with (
            ggml.device("CPU").init(n_threads=2) as cpu,
            ggml.ThreadPool(2) as pool,
            ggml.Context() as ctx,
        ):
            if "pool" in self.kind:
                cpu.set_threadpool(pool)
            n = 512 if "long" in self.kind else 4
            y = ctx.mul_mat(ctx.new_tensor("f32", n, n), ctx.new_tensor("f32", n, n))
            graph = ctx.new_graph()
            graph.build_forward_expand(y)
            if "scheduler" in self.kind:
                with ggml.Scheduler([cpu]) as sched:
                    sched.alloc_graph(graph)
                    y.buffer.clear()  # its inputs are there, too
                    self.handles = [sched, cpu, pool, ctx]
                    self.repeat(sched.compute, graph)
            else:
                ctx.alloc(cpu).clear()
                self.handles = [cpu, pool, ctx]
                self.repeat(cpu.compute, graph)

    def repeat(self, compute, graph):
        self.compute = lambda: compute(graph)
        while not self.stop:
            compute(graph)


def squares():
    with ggml.device("CPU").init(n_threads=2) as cpu, ggml.ThreadPool(2) as pool:
        cpu.set_threadpool(pool)
        with ggml.Context() as ctx:
            x = ctx.new_tensor("f32", 4)
            graph = ctx.new_graph()
            y = ctx.sqr(x)
            graph.build_forward_expand(y)
            ctx.alloc(cpu)
            x.set([1, 2, 3, 4])
            cpu.compute(graph)
            return y.get().tolist()


def try_all(workers):
    """In the child: 0 if all is well."""
    for worker in workers:
        for call in (worker.compute, *(handle.close for handle in worker.handles)):
            with contextlib.suppress(*ALLOWED):
                call()
    rows = np.ones((2, 256), np.float32)
    ok = squares() == [1, 4, 9, 16] and ggml.quantize(rows, "q4_K").size
    return 0 if ok else 2


def child_ends(work, seconds=60):
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hangs"
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(done[1])


def forks(n, kinds):
    workers = [Work(kind) for kind in kinds]
    for worker in workers:
        worker.start()
    try:
        while not all(worker.handles for worker in workers):
            time.sleep(0.01)
        time.sleep(0.05)
        return [child_ends(lambda: try_all(workers)) for _ in range(n)]
    finally:
        for worker in workers:
            worker.stop = True
        for worker in workers:
            worker.join()


@pytest.mark.parametrize("kind", ("long pool", "scheduler pool"))
def test_a_fork_while_a_thread_computes(kind):
    assert forks(3, [kind]) == [0] * 3


def test_a_fork_of_a_server_that_froze_its_objects():
    """As servers do before they fork, so that the children share the pages: nothing is busy for
    ever in the child."""
    worker = Work("long")
    worker.start()
    try:
        while not worker.handles or not users_of(worker.handles[0]):
            time.sleep(0.01)
        gc.freeze()
        def child():
            busy = any(users_of(h) for h in worker.handles)
            return busy or not worker.handles[0].closed  # nobody finishes its compute

        found = [child_ends(child) for _ in range(5)]
    finally:
        gc.unfreeze()
        worker.stop = True
        worker.join()
    assert found == [0] * 5


@pytest.mark.thorough("sample")
def test_forks_while_threads_compute():
    kinds = ("pool", "long pool", "scheduler", "scheduler pool", "", "long")
    assert forks(18, kinds) == [0] * 18


@pytest.mark.thorough("sample")
def test_a_fork_while_tables_for_quantising_are_made():
    """They take seconds; the child makes its own."""
    rows = np.ones((1, 256), np.float32)
    weights = np.ones(256, np.float32)
    thread = threading.Thread(target=ggml.quantize, args=(rows, "iq2_xs", weights))
    thread.start()
    time.sleep(0.05)
    sizes = 0 if ggml.quantize(rows, "q4_K").size else 1

    def child():
        return sizes if ggml.quantize(rows, "iq2_xs", weights).size == 74 else 2

    try:
        assert child_ends(child) == 0
    finally:
        thread.join()


FIRST = """
import os, signal, threading
import numpy as np
import ggml_py as ggml

def squares():
    with ggml.device("CPU").init(n_threads=2) as cpu, ggml.Context() as c:
        y = c.sqr(c.from_numpy(np.full(100, 3, np.float32)))
        graph = c.new_graph(8)
        graph.build_forward_expand(y)
        if HOW == "scheduler":
            with ggml.Scheduler([cpu]) as scheduler:
                scheduler.compute(graph)
                assert (y.get() == 9).all()
        else:
            c.alloc(cpu)
            cpu.compute(graph)
            assert (y.get() == 9).all()

ggml.device("CPU").init().close()
threads = [threading.Thread(target=squares) for _ in range(2)]
for thread in threads:
    thread.start()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    squares()
    os._exit(0)
status = os.waitpid(pid, 0)[1]
for thread in threads:
    thread.join()
assert status == 0, status
"""


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("how", ["backend", "scheduler"])
def test_a_fork_while_another_thread_computes_for_the_first_time(how):
    """That imports modules of ours, whose locks stayed locked in the child."""
    for _ in range(4):
        code = FIRST.replace("HOW", repr(how))
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)

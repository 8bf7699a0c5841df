"""Which Pythons can have the native module, and what a fork keeps; the others are told clearly."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary import interpreter as _interpreter
from ggml_py.boundary.handle import LIVE

from ..support import graphs
from ..support.rpc_client import needs_rpc
from ..support.rpc_net import server
from ..support.sim_net import Net

pytestmark = pytest.mark.thorough("long", quick=5)


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_a_free_threaded_python_is_refused_before_anything_is_loaded():
    done = run(
        "import sys; sys.abiflags = 't'\n"
        "import ggml_py\n"
        "try:\n"
        "    ggml_py.devices()\n"
        "except ggml_py.LoadError as error:\n"
        "    print(error)\n"
        "print('numpy' in sys.modules, '_cffi_backend' in sys.modules)"
    )
    message, loaded = done.stdout.splitlines()
    assert message.startswith("ggml_py does not run on a free-threaded Python"), done.stderr
    assert "Use the standard build of the same Python version" in message
    assert loaded == "False False"


# How to make a sub-interpreter and run code in it, for every Python since 3.10.
IN_A_SUB_INTERPRETER = """
import sys
try:
    import _interpreters as interpreters
    kinds = {"isolated": interpreters.create, "legacy": lambda: interpreters.create("legacy")}
except ImportError:
    import _xxsubinterpreters as interpreters
    kinds = {"isolated": lambda: interpreters.create(isolated=True),
             "legacy": lambda: interpreters.create(isolated=False)}
code = '''
import ggml_py
try:
    print(PROGRAM)
except ImportError as error:
    print(type(error).__name__, error, flush=True)
'''
interpreter = kinds[KIND]()
interpreters.run_string(interpreter, f"import sys; sys.path[:] = {sys.path!r}\\n" + code)
interpreters.destroy(interpreter)
import ggml_py
print([device.name for device in ggml_py.devices()])
"""


@pytest.mark.parametrize("kind", ["isolated", "legacy"])
@pytest.mark.parametrize("program", ["ggml_py.devices()", "ggml_py.Context()", "ggml_py.enums"])
def test_a_sub_interpreter_is_refused_and_the_main_one_goes_on(kind, program):
    done = run(IN_A_SUB_INTERPRETER.replace("PROGRAM", program).replace("KIND", repr(kind)))
    assert done.returncode == 0, done.stderr
    said, devices = done.stdout.splitlines()
    assert said.startswith("LoadError ggml_py cannot be used in a sub-interpreter"), said
    assert "CPU" in devices
    assert done.stderr == ""  # numpy would warn, were it loaded first


def test_plans_can_be_read_in_a_sub_interpreter():
    done = run(IN_A_SUB_INTERPRETER.replace("PROGRAM", "ggml_py.Plan").replace("KIND", "'legacy'"))
    assert done.stdout.splitlines()[0] == "<class 'ggml_py.plan.Plan'>", done.stderr


def test_the_check_passes_here():
    _interpreter.check()
    assert issubclass(ggml.LoadError, ImportError)


# --- fork

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def in_a_fork(work, seconds=60):
    """What `work()` prints in a forked child; fails when it raises, crashes or hangs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.write(writer, str(work()).encode())
            status = 0
        os._exit(status)
    os.close(writer)
    deadline = time.monotonic() + seconds
    try:
        while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            assert time.monotonic() < deadline, "the child hangs"
            time.sleep(0.02)
        assert done[1] == 0, f"wait status {done[1]}"
        return os.read(reader, 1 << 16).decode()
    finally:
        os.close(reader)
        if time.monotonic() >= deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def computed(case):
    x = case.graph["inp"]
    x.set(np.ones(x.ne[:2][::-1]))
    case.scheduler.compute(case.graph)
    return float(case.graph["out"].get().sum())


@pytest.fixture
def case():
    made = graphs.mlp()
    made.scheduler.alloc_graph(made.graph)
    yield made
    made.close()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_cpu_and_blas_go_on_in_a_fork(case):
    """With the parent's objects, with new ones, and closing both."""
    expected = computed(case)

    def new():
        other = graphs.mlp()
        with contextlib.closing(other):
            other.scheduler.alloc_graph(other.graph)
            return computed(other)

    assert float(in_a_fork(lambda: computed(case))) == expected
    assert float(in_a_fork(new)) == expected

    def close():
        case.close()
        gc.collect()
        return dict(LIVE)

    assert in_a_fork(close) == "{}"
    assert computed(case) == expected  # the parent's are untouched


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_thread_pool_stays_with_the_parent(case):
    """Its threads are not in the child; the backends go on with threads of their own."""
    with ggml.ThreadPool(2) as pool:
        case.backends[1].set_threadpool(pool)
        expected = computed(case)

        def child():
            with pytest.raises(ggml.ClosedError):
                pool.pause()
            assert case.backends[1].threadpool is None
            with ggml.ThreadPool(2) as own:
                case.backends[1].set_threadpool(own)
                return computed(case)

        assert float(in_a_fork(child)) == expected
        assert computed(case) == expected


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_fork_while_another_thread_computes(case):
    """The child has new objects; the one that was computing is closed there."""
    inside, go = threading.Event(), threading.Event()

    def wait(tensor, ask):
        inside.set()
        return go.wait(60) and not ask

    case.scheduler.set_eval_callback(wait)
    case.graph["inp"].set(np.ones(case.graph["inp"].shape, np.float32))
    thread = threading.Thread(target=case.scheduler.compute, args=(case.graph,))
    thread.start()
    assert inside.wait(60)

    def child():
        with pytest.raises(ggml.ClosedError):
            case.scheduler.compute(case.graph)
        other = graphs.cpu_only()
        other.scheduler.alloc_graph(other.graph)
        return computed(other)

    assert float(in_a_fork(child)) != 0
    go.set()
    thread.join()


FORKED = """
    import os, sys
    import ggml_py as ggml, numpy as np
    from ggml_py.boundary.handle import LIVE

    remote = ggml.rpc_devices(sys.argv[1])[0]
    buft = remote.buffer_type
    backend, cpu = remote.init(), ggml.device("CPU").init(n_threads=1)
    with ggml.Context() as c, ggml.Context() as ops:
        t = c.from_numpy(np.arange(4, dtype=np.float32), "t")
        c.alloc(backend)
        local = ops.sqr(t)
        graph = ops.new_graph(16)
        graph.build_forward_expand(local)
        scheduler = ggml.Scheduler([backend, cpu], graph_size=16)
        scheduler.compute(graph)
        pid = os.fork()
        if pid == 0:
            for what in (
                lambda: backend.ptr, lambda: scheduler.compute(graph), t.get, local.get,
                remote.init, lambda: buft.alloc(64), lambda: remote.memory,
                lambda: remote.props, lambda: ggml.rpc_devices(sys.argv[1])[0].name,
            ):
                try:
                    print("no error", what(), flush=True)
                except (ggml.ClosedError, ggml.NoDataError) as error:
                    print(type(error).__name__, flush=True)
            for handle in (scheduler, backend, cpu, ops, c):
                handle.close()
            print(dict(LIVE), flush=True)
            with ggml.Context() as own:
                own.new_tensor("f32", 4)
                own.alloc("CPU")
            os._exit(0)
        os.waitpid(pid, 0)
        scheduler.compute(graph)
        print(local.get().tolist(), t.get().tolist())
        scheduler.close()
"""


@needs_fork
@needs_rpc
def test_a_connection_stays_with_the_process_that_made_it():
    """The child is told, and sends nothing: the parent goes on with its server."""
    with server() as process:
        done = run(FORKED, process.endpoint)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert said[:9] == ["ClosedError", "ClosedError", "NoDataError", "NoDataError",
                        *["ClosedError"] * 5]  # fmt: skip
    assert said[9:] == ["{}", "[0.0, 1.0, 4.0, 9.0] [0.0, 1.0, 2.0, 3.0]"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_starts_no_threads_and_leaves_the_environment_as_it_was():
    """OpenBLAS would start one for each processor, which spins beside what is imported next."""
    program = """
        import os, ggml_py
        before = dict(os.environ)
        ggml_py.lib
        assert dict(os.environ) == before, set(os.environ) ^ set(before)
        print(len(os.listdir("/proc/self/task")))
    """
    for given in ({}, {"OPENBLAS_NUM_THREADS": "2"}):
        env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={**env, **given}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        wanted = int(given.get("OPENBLAS_NUM_THREADS", 1))
        assert int(done.stdout) == min(wanted, os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform == "darwin", reason="BLAS is Accelerate there")
@pytest.mark.parametrize("given, spins", [({}, False), ({"OPENBLAS_THREAD_TIMEOUT": "30"}, True)])
def test_threads_of_openblas_sleep_after_a_product(given, spins):
    """They would take a core from the CPU backend, which computes the next nodes."""
    program = """
        import time
        import numpy as np
        import ggml_py as ggml

        context, n = ggml.Context(), 512
        a, b = (context.new_tensor("f32", n, n) for _ in range(2))
        graph = context.new_graph()
        y = context.mul_mat(a, b)
        graph.build_forward_expand(y)
        blas = ggml.device("BLAS").init(n_threads=2)
        context.alloc(ggml.device("CPU").buffer_type)
        for tensor in (a, b):
            tensor.set(np.ones((n, n), np.float32))
        blas.compute(graph)
        before = time.process_time()
        time.sleep(0.2)
        print(time.process_time() - before)
    """
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"}
    env["OPENBLAS_NUM_THREADS"] = "1"  # none of numpy's own
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**env, **given}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (float(done.stdout) > 0.02) == spins


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_simulated_device_that_computes_does_not_survive_a_fork(sims):
    """Its thread does not."""
    sim = sims("gpu0")
    with Net(sim) as net:
        expected = net.run()

        def use():
            said = []
            for use in (net.run, sim.init, lambda: ggml.sim_device("gpu1")):
                try:
                    use()
                except ggml.ClosedError as error:
                    said.append(str(error))
            return said

        said = in_a_fork(use)
        assert said.count("does not survive a fork") == 2 and said.count("Scheduler is closed") == 1
        np.testing.assert_array_equal(net.run(), expected)

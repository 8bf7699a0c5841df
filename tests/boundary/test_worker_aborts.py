"""Assertions that fail in a CPU compute, on whatever thread: an AbortError, and all goes on.

`CASES` are the ops whose data can be wrong although every shape is right. NaN and infinite values
spread and are never an error: `test_nan_is_no_error`.
"""

import contextlib
import inspect
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi, lib

N = 16  # rows, experts, …
SQUARE = np.arange(N * N, dtype="f4").reshape(N, N) % 7 - 3
SSM_SCAN_K = (1,) * ("K" in inspect.signature(ggml.Context.ssm_scan).parameters)  # since 0.21.0


@dataclass
class Case:
    """One op; `bad` is put in place `where` of its indices."""

    build: Callable[[ggml.Context, ggml.Tensor], tuple[ggml.Tensor, ggml.Tensor]]
    condition: str
    bad: tuple[int, ...] = (-1, N, 2**31 - 1)


def get_rows(context, x):
    ids = context.new_tensor("i32", N)
    return context.get_rows(x, ids), ids


def get_rows_q8_0(context, x):
    ids = context.new_tensor("i32", N)
    weights = context.cast(context.repeat_4d(x, 32, N, 1, 1), "q8_0")
    return context.view_2d(context.get_rows(weights, ids), N, N, 32 * 4, 0), ids


def get_rows_f16(context, x):
    ids = context.new_tensor("i32", N)
    return context.get_rows(context.cast(x, "f16"), ids), ids


def set_rows(context, x):
    ids = context.new_tensor("i64", N)
    return context.set_rows(context.scale(x, 0.0), x, ids), ids


def get_rows_back(context, x):
    ids = context.new_tensor("i32", N)
    return context.get_rows_back(x, ids, context.new_tensor("f32", N, N)), ids


def add_id(context, x):
    ids = context.new_tensor("i32", 1, N)
    added = context.add_id(context.reshape_3d(x, N, 1, N), x, ids)
    return context.reshape_2d(added, N, N), ids


def mul_mat_id(context, x):
    """One thread sorts the ids, the others wait inside the op."""
    ids = context.new_tensor("i32", 1, N)
    experts = context.repeat_4d(x, N, N, N, 1)
    out = context.mul_mat_id(experts, context.reshape_3d(x, N, 1, N), ids)
    return context.reshape_2d(out, N, N), ids


def ssm_scan(context, x):
    """A state, an x, a B and a C of one value for each of N sequences."""
    ids, x = context.new_tensor("i32", N), context.scale(x, 1e-3)
    each = context.view_4d(x, 1, 1, 1, N, 4, 4, 4, 0)
    dt, a = context.view_3d(x, 1, 1, N, 4, 4, 0), context.view_2d(x, 1, 1, 4, 0)
    out = context.ssm_scan(each, each, dt, a, each, each, ids, *SSM_SCAN_K)
    return context.repeat_4d(context.view_2d(out, N, 1, 4 * N, 0), N, N, 1, 1), ids


CASES = {
    "get_rows": Case(get_rows, "i01 >= 0 && i01 < ne01"),
    "get_rows_q8_0": Case(get_rows_q8_0, "i01 >= 0 && i01 < ne01"),
    "get_rows_f16": Case(get_rows_f16, "i01 >= 0 && i01 < ne01"),
    "set_rows": Case(set_rows, "i1 >= 0 && i1 < ne1", (-1, N, 2**63 - 1)),
    "get_rows_back": Case(get_rows_back, "r >= 0 && r < dst->ne[1]"),
    "add_id": Case(add_id, "i11 >= 0 && i11 < ne11"),
    "mul_mat_id": Case(mul_mat_id, "i02 >= 0 && i02 < n_as"),
    "ssm_scan": Case(ssm_scan, "ids[i3] >= 0 && ids[i3] < src0->ne[3]"),
}


@contextlib.contextmanager
def threadpool(backend: ggml.Backend, n: int, poll: int, paused: bool) -> Iterator[None]:
    params = ffi.new("struct ggml_threadpool_params *", lib.ggml_threadpool_params_default(n))
    params.poll, params.paused = poll, paused
    pool = lib.ggml_threadpool_new(params)
    lib.ggml_backend_cpu_set_threadpool(backend.ptr, pool)
    try:
        yield
    finally:
        lib.ggml_backend_cpu_set_threadpool(backend.ptr, ffi.NULL)
        lib.ggml_threadpool_free(pool)


POOLS = {
    "disposable": None,
    "persistent": (0, False),
    "polling": (50, False),
    "paused": (0, True),
}


@contextlib.contextmanager
def cpu(n_threads: int, pool: str = "disposable") -> Iterator[ggml.Backend]:
    with ggml.device("CPU").init(n_threads=n_threads) as backend, contextlib.ExitStack() as stack:
        if (how := POOLS[pool]) is not None:
            stack.enter_context(threadpool(backend, n_threads, *how))
        yield backend


class Work:
    """A product, the op, a product: other threads are busy before it and wait after it."""

    def __init__(self, backend: ggml.Backend, build: Callable) -> None:
        self.backend, self.context = backend, ggml.Context()
        c = self.context
        self.x = c.new_tensor("f32", N, N)
        self.op, self.ids = build(c, c.mul_mat(self.x, self.x))
        self.out = c.mul_mat(self.x, c.cont(self.op))
        self.graph = c.new_graph()
        self.graph.build_forward_expand(self.out)
        c.alloc(backend)
        self.x.set(SQUARE)

    def compute(self, ids) -> np.ndarray:
        self.ids.set(np.array(ids).reshape(self.ids.shape))
        self.backend.compute(self.graph)
        return self.out.get().copy()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


GOOD = list(range(N))[::-1]


def wrong(place: int, bad: int) -> list[int]:
    return [*GOOD[:place], bad, *GOOD[place + 1 :]]


@pytest.fixture(scope="module")
def expected():
    found = {}
    with cpu(1) as backend:
        for name, case in CASES.items():
            with Work(backend, case.build) as work:
                found[name] = work.compute(GOOD)
    return found


@pytest.mark.thorough("cases", quick=16)
@pytest.mark.parametrize("pool", ["disposable", "persistent"])
@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_bad_index_is_an_exception_on_every_thread(name, n_threads, pool, expected):
    case = CASES[name]
    everywhere = [case.bad[0]] * N  # every thread fails
    with cpu(n_threads, pool) as backend, Work(backend, case.build) as work:
        first, last, all_ = wrong(0, case.bad[0]), wrong(N - 1, case.bad[1]), everywhere
        for ids in (first, last, all_, wrong(N // 2, case.bad[2])):
            with pytest.raises(ggml.AbortError) as caught:
                work.compute(ids)
            assert case.condition in caught.value.condition
            op = re.match(r"node: (\w+) ", caught.value.operands[0])
            assert op and name.startswith(op[1].lower())
            assert any(operand.startswith("src[0]: ") for operand in caught.value.operands)
        assert np.array_equal(work.compute(GOOD), expected[name])


@pytest.mark.parametrize("pool", POOLS)
def test_every_kind_of_pool_goes_on_and_nobody_spins(pool, expected):
    with cpu(3, pool) as backend, Work(backend, get_rows) as work:
        for place in (0, N // 2, N - 1):
            with pytest.raises(ggml.AbortError):
                work.compute(wrong(place, 99))
            assert np.array_equal(work.compute(GOOD), expected["get_rows"])
            with pytest.raises(ggml.AbortError):
                work.compute(wrong(place, 99))
        if pool != "polling":  # which is busy by definition for a while
            assert idle()
    assert idle()


def ticks() -> dict[str, int]:
    """Processor time of each thread of this process, in ticks of 10 ms."""
    spent = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            spent[task.name] = int(fields[11]) + int(fields[12])
    return spent


def idle() -> bool:
    """No thread used the processor while this one slept; a spinner uses about all it can get."""
    time.sleep(0.05)
    before = ticks()
    time.sleep(0.4)
    after = ticks()
    return all(after[task] - before.get(task, 0) <= 1 for task in after)


def test_a_spinning_thread_would_be_noticed():
    stop = False

    def spin():
        while not stop:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert not idle()
    finally:
        stop = True
        thread.join()


def single(backend: ggml.Backend) -> Work:
    """Only the op: the cheapest failing compute."""
    work = Work.__new__(Work)
    work.backend, work.context = backend, ggml.Context()
    c = work.context
    x, work.ids = c.new_tensor("f32", N, N), c.new_tensor("i32", N)
    work.out = c.get_rows(x, work.ids)
    work.graph = c.new_graph()
    work.graph.build_forward_expand(work.out)
    c.alloc(backend)
    x.set(SQUARE)
    return work


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize("pool", ["disposable", "persistent"])
def test_failing_2000_times_leaves_no_thread_and_no_memory(pool):
    with cpu(2, pool) as backend, single(backend) as work:

        def fail(n: int) -> None:
            for i in range(n):
                work.ids.set(wrong(i % N, 99))
                with pytest.raises(ggml.AbortError):
                    backend.compute(work.graph)

        fail(200)
        threads, memory = len(ticks()), resident()
        fail(2000)
        assert len(ticks()) == threads
        assert resident() - memory < 1 << 20
        assert np.array_equal(work.compute(GOOD), SQUARE[GOOD])
    assert idle()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_computes_on_several_backends_fail_apart():
    """Each pool has its own failure: others' computes are not touched by it."""
    failures = []

    def run(seed: int) -> None:
        with cpu(2) as backend, Work(backend, get_rows) as work:
            good = work.compute(GOOD)
            for i in range(15):
                if (i + seed) % 2:
                    try:
                        work.compute(wrong(i % N, 99))
                        failures.append("no error")
                    except ggml.AbortError as error:
                        if "node: GET_ROWS" not in error.operands[0]:
                            failures.append(str(error))
                elif not np.array_equal(work.compute(GOOD), good):
                    failures.append("wrong numbers")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_signal_handler_that_raises_at_the_same_time():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    former = signal.signal(signal.SIGALRM, ring)
    seen = set()
    try:
        with cpu(2) as backend, Work(backend, get_rows) as work:
            end = time.monotonic() + 30
            while time.monotonic() < end and not {"Alarm", "AbortError", "ok"} <= seen:
                for delay in (0.0002, 0.001, 0.005, 0.02, 2):
                    for ids in (wrong(3, 99), wrong(N - 1, 99), GOOD):
                        try:
                            signal.setitimer(signal.ITIMER_REAL, delay)
                            work.compute(ids)
                            seen.add("ok")
                            time.sleep(min(delay, 0.1))
                            signal.setitimer(signal.ITIMER_REAL, 0)
                        except (Alarm, ggml.AbortError) as error:
                            seen.add(type(error).__name__)
                            with contextlib.suppress(Alarm):
                                time.sleep(min(delay, 0.1))
                                signal.setitimer(signal.ITIMER_REAL, 0)
            assert work.compute(GOOD).shape == (N, N)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert seen == {"Alarm", "AbortError", "ok"}


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_division_by_zero_in_a_kernel(n_threads):
    """All threads divide by the number of matrices, which no constructor lets be 0."""
    with cpu(n_threads) as backend, ggml.Context() as c:
        w, none, x = (c.new_tensor("f32", 8, 8) for _ in range(3))
        wrong, right = c.new_graph(), c.new_graph()
        wrong.build_forward_expand(c.mul_mat(none, x))
        right.build_forward_expand(c.mul_mat(w, x))
        c.alloc(backend)
        for t in (w, none, x):
            t.set(np.ones((8, 8)))
        none.ptr.ne[2] = 0
        for _ in range(3):
            with pytest.raises(ggml.AbortError, match="integer division by zero") as caught:
                backend.compute(wrong)
            assert caught.value.operands[0].startswith("node: MUL_MAT")
            backend.compute(right)


def test_a_custom_op_that_raises_beside_an_abort():
    """Both in one graph: the exception of the op is the one that is raised."""

    def broken(dst, *_):
        raise ValueError("mine")

    with cpu(2) as backend, ggml.Context() as c:
        x, ids = c.new_tensor("f32", N, N), c.new_tensor("i32", N)
        rows = c.get_rows(c.custom_4d("f32", N, N, 1, 1, [x], broken), ids)
        graph = c.new_graph()
        graph.build_forward_expand(rows)
        c.alloc(backend)
        x.set(SQUARE)
        ids.set([99] * N)
        with pytest.raises((ValueError, ggml.AbortError)):
            backend.compute(graph)
        assert idle()


def test_a_scheduler_names_the_node_too():
    with cpu(2) as backend, ggml.Context() as c:
        x, ids = c.new_tensor("f32", N, N), c.new_tensor("i32", N)
        c.alloc(backend)
        x.set(SQUARE)
        ids.set([99] * N)
        with ggml.Context() as ops:
            rows = ops.get_rows(x, ids)
            rows.name = "my rows"
            graph = ops.new_graph()
            graph.build_forward_expand(rows)
            sched = ggml.Scheduler([backend])
            with pytest.raises(ggml.AbortError, match="my rows"):
                sched.compute(graph)
            sched.close()
    assert idle()


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_nan_is_no_error(order):
    """Sorting compares with NaN, which is no order: still a permutation, and nothing is overrun."""
    rng = np.random.default_rng(1)
    with cpu(2) as backend, ggml.Context() as c:
        x = c.new_tensor("f32", 500, 40)
        out = c.argsort(x, getattr(ggml.enums.SortOrder, order.upper()))
        loss = c.cross_entropy_loss(x, c.soft_max(x))
        graph = c.new_graph()
        graph.build_forward_expand(out, loss)
        c.alloc(backend)
        for share in (0.01, 0.2, 0.9, 1.0):
            values = rng.standard_normal((40, 500)).astype("f4")
            values[rng.random(values.shape) < share] = np.nan
            x.set(values)
            backend.compute(graph)
            assert (np.sort(out.get(), axis=-1) == np.arange(500)).all()
            assert np.isnan(loss.get()).all()


def test_repacked_weights_check_their_ids_too():
    """The repacking buffer type has an op of its own, in C++, with barriers inside."""
    device = ggml.device("CPU")
    buft = next((b for b in device.extra_buffer_types if "REPACK" in b.name), None)
    if buft is None:
        pytest.skip("this processor has no repacking buffer type")
    with cpu(2) as backend, ggml.Context() as weights, ggml.Context() as c:
        experts = weights.new_tensor("q4_0", 64, 64, N)
        weights.alloc(buft)
        experts.set(np.ones((N, 64, 64), "f4"))
        x, ids = c.new_tensor("f32", 64, 1, N), c.new_tensor("i32", 1, N)
        out = c.mul_mat_id(experts, x, ids)
        graph = c.new_graph()
        graph.build_forward_expand(out)
        c.alloc(backend)
        x.set(np.ones((N, 1, 64)))
        for _ in range(3):
            ids.set(np.full((N, 1), 99))
            with pytest.raises(ggml.AbortError, match="i02"):
                backend.compute(graph)
            ids.set(np.array(GOOD).reshape(N, 1))
            backend.compute(graph)
            assert np.allclose(out.get(), 64, rtol=0.05)


def test_count_equal_counts_in_every_dimension():
    """Upstream finds the rows of two dimensions only, and reads outside of others."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2, (2, 5, 3, 4, 7), dtype="i4")
    with cpu(2) as backend, ggml.Context() as c:
        x, y = (c.new_tensor("i32", 7, 4, 3, 5) for _ in "ab")
        graph, out = c.new_graph(), c.count_equal(x, y)
        graph.build_forward_expand(out)
        c.alloc(backend)
        x.set(a)
        y.set(b)
        backend.compute(graph)
        assert out.get().item() == (a == b).sum()


pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.thorough("cases", quick=12),
]

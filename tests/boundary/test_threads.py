"""Threads: each with objects of its own runs side by side; what two use at once is refused."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py import log as _log
from ggml_py.boundary.handle import LIVE, Live
from ggml_py.boundary.uses import in_use

from ..support import graphs
from ..support.pauses import switching

N = 6  # threads, on any machine more than cores of CI


@pytest.fixture(autouse=True, params=["often", "at any line"])
def _switching(request):
    with switching(request.param):
        yield


def together(work, n=N):
    """Runs work(0) … work(n - 1), all starting at the same moment; their results."""
    start = threading.Barrier(n)

    def run(i):
        start.wait()
        return work(i)

    with ThreadPoolExecutor(n) as pool:
        return [future.result(timeout=120) for future in [pool.submit(run, i) for i in range(n)]]


# --- objects of one's own


def chain(c, w, x, depth):
    y = x
    for _ in range(depth):
        y = c.relu(c.mul_mat(w, y))
    return y


def test_schedulers_in_several_threads_compute_what_numpy_computes():
    def work(i):
        rng = np.random.default_rng(i)
        depth, n = 1 + i % 3, 16 + 16 * (i % 2)
        weights = rng.standard_normal((n, n), np.float32) / np.float32(n**0.5)
        with contextlib.ExitStack() as stack:
            backends = [stack.enter_context(ggml.device(d).init(n_threads=1 + i % 2))
                        for d in (("BLAS", "CPU") if i % 2 else ("CPU",))]  # fmt: skip
            for _ in range(6):
                with ggml.Context() as held, ggml.Context() as c:
                    w = held.from_numpy(weights)
                    held.alloc(backends[-1], usage="weights")
                    x = c.new_tensor("f32", n, 40)
                    x.set_input()
                    y = chain(c, w, x, depth)
                    y.set_output()
                    graph = c.new_graph(64)
                    graph.build_forward_expand(y)
                    with ggml.Scheduler(backends, graph_size=64) as scheduler:
                        plan = scheduler.alloc_graph(graph)
                        assert len(plan.nodes) == 2 * depth
                        for _ in range(4):
                            data = rng.standard_normal((40, n), np.float32)
                            x.set(data)
                            scheduler.compute(graph)
                            for _ in range(depth):
                                data = np.maximum(data @ weights.T, 0)
                            np.testing.assert_allclose(y.get(), data, rtol=1e-4, atol=1e-4)
        return True

    before = dict(LIVE)
    assert together(work) == [True] * N
    gc.collect()
    assert dict(LIVE) == before


def test_ops_that_threads_build_in_one_context_are_all_there():
    """Builders keep the GIL, so one is whole before the next begins."""
    with ggml.Context() as context:
        a = context.new_tensor("f32", 8)

        def build():
            for _ in range(3000):
                context.add(a, context.dup_tensor(a))
                context.new_tensor("f32", 8)

        threads = [threading.Thread(target=build) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(1 for _ in context) == 1 + 4 * 3000 * 3


def test_plans_made_side_by_side_are_the_plans_made_alone():
    def text(name):
        case = graphs.CASES[name]()
        with contextlib.closing(case):
            return case.scheduler.plan(case.graph).text()

    names = sorted(graphs.CASES)
    alone = [text(name) for name in names]
    for _ in range(3):
        assert together(lambda i: text(names[i]), len(names)) == alone


def test_quantising_for_the_first_time_in_several_threads():
    """The tables of the i-quants are made on first use, behind upstream's own lock."""
    rows = np.random.default_rng(0).standard_normal((4, 256), np.float32)
    kinds = ("iq4_xs", "iq3_s", "iq3_xxs", "q4_k", "q6_k", "iq4_nl")

    def work(i):
        with ggml.Context() as c, ggml.device("CPU").init(n_threads=1) as cpu:
            made = [c.from_numpy(rows, type=kinds[(i + k) % len(kinds)]) for k in range(len(kinds))]
            c.alloc(cpu)
            return {t.type.name: t.get().tobytes() for t in made}

    first, *others = together(work)
    assert len(first) == len(kinds)
    assert all(other == first for other in others)


def test_exceptions_stay_in_their_thread():
    """Aborts of ggml, errors of custom ops and of eval callbacks, and threads without any."""

    class Mine(Exception):
        pass

    def fail(i, *_):
        raise Mine(i)

    def work(i):
        case = graphs.cpu_only()
        c = case.context
        with contextlib.closing(case):
            y = c.map_custom1(c.new_tensor("f32", 4), lambda *_: fail(i)) if i % 3 == 1 else None
            graph = c.new_graph(16)
            graph.build_forward_expand(*([case.graph["out"]] if y is None else [y]))
            if i % 3 == 2:
                case.scheduler.set_eval_callback(lambda tensor, ask: fail(i))
            case.scheduler.alloc_graph(graph)
            values = np.ones((48, 64), np.float32)
            for _ in range(20):
                if y is None:
                    case.graph["inp"].set(values)
                wrong = c.new_tensor("f32", 5), c.new_tensor("f32", 7)
                with pytest.raises(ggml.AbortError) as abort:
                    c.add(*wrong)
                assert abort.value.operands[0].startswith("a: f32 [5,")
                if i % 3:
                    with pytest.raises(Mine) as mine:
                        case.scheduler.compute(graph)
                    assert mine.value.args == (i,)
                else:
                    case.scheduler.compute(graph)
        return True

    assert together(work) == [True] * N


def test_custom_ops_of_several_threads_get_their_own_tensors():
    def work(i):
        seen = []

        def double(dst, a, ith, nth):
            seen.append(threading.get_ident())
            dst[ith::nth] = a[ith::nth] * 2 + i

        with ggml.device("CPU").init(n_threads=2) as cpu, ggml.Context() as c:
            x = c.new_tensor("f32", 8, 8)
            y = c.map_custom1(c.map_custom1(x, double, 2), double, 2)
            graph = c.new_graph(16)
            graph.build_forward_expand(y)
            c.alloc(cpu)
            for k in range(10):
                x.set(np.full((8, 8), k))
                cpu.compute(graph)
                assert (y.get() == 4 * k + 3 * i).all()
        return len(seen)

    assert together(work) == [40] * N


# --- handed from thread to thread


def test_objects_made_in_one_thread_are_used_and_closed_in_another():
    cases = together(lambda i: graphs.mlp(seed=i))
    rng = random.Random(1)
    def use(i):
        case = cases[(i + 1) % N]
        return len(case.scheduler.alloc_graph(case.graph).nodes)

    assert together(use) == [3] * N

    def close(i):
        case = cases[(i + 2) % N]
        items = [case.scheduler, case.graph, case.context, case.weights, *case.backends]
        for item in rng.sample(items, len(items)):
            item.close()
        return all(item.closed for item in items)

    assert together(close) == [True] * N


def test_garbage_of_one_thread_is_collected_in_another():
    gc.collect()  # of other tests
    before = dict(LIVE)
    kept = {}

    def work(i):
        for _ in range(20):
            case = graphs.cpu_only(graph_size=64)
            kept[i] = [case]
            kept[i].append(kept[i])  # a cycle: only the collector ends it
            gc.collect(0)
        return True

    assert together(work) == [True] * N
    kept.clear()
    gc.collect()
    assert dict(LIVE) == before


def test_the_count_of_open_objects_is_exact():
    before = LIVE["Context"]

    def work(_i):
        contexts = [ggml.Context(reserve=1 << 16) for _ in range(50)]
        for _ in range(1000):
            contexts.pop(0).close()
            contexts.append(ggml.Context(reserve=1 << 16))
        return contexts

    assert sum(len(contexts) for contexts in together(work)) == 50 * N
    gc.collect()
    assert LIVE["Context"] == before


# --- used by two at once


class Held:
    """A compute that stands still in a custom op until it is let go."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()
        self.cpu, self.context = ggml.device("CPU").init(n_threads=1), ggml.Context()
        x = self.context.new_tensor("f32", 4)
        x.set_input()
        self.y = self.context.map_custom1(x, self._wait)
        self.graph = self.context.new_graph(16)
        self.graph.build_forward_expand(self.y)
        self.scheduler = ggml.Scheduler([self.cpu], graph_size=16)
        self.scheduler.alloc_graph(self.graph)
        self.error = None

    def _wait(self, dst, a, ith, nth):
        self.inside.set()
        assert self.go.wait(60)

    def _compute(self):
        try:
            self.scheduler.compute(self.graph)
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self.thread = threading.Thread(target=self._compute)
        self.thread.start()
        assert self.inside.wait(60)
        return self

    def __exit__(self, *_):
        self.go.set()
        self.thread.join()
        for handle in (self.scheduler, self.context, self.cpu):
            handle.close()


MEANWHILE = {
    "close the scheduler": lambda h: h.scheduler.close(),
    "close the graph": lambda h: h.graph.close(),
    "close the context": lambda h: h.context.close(),
    "close the backend": lambda h: h.cpu.close(),
    "compute": lambda h: h.scheduler.compute(h.graph),
    "compute with the backend": lambda h: h.cpu.compute(h.graph),
    "reset": lambda h: h.scheduler.reset(),
    "leave the block of the context": lambda h: h.context.__exit__(None, None, None),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_computes_on_another_thread_is_refused(what):
    with Held() as held:
        with pytest.raises(ggml.BusyError, match=r"is computing on another thread: wait until"):
            MEANWHILE[what](held)
        assert not held.scheduler.closed
    assert held.error is None


def test_a_backend_computes_for_one_at_a_time():
    """Upstream's CPU backend has one work buffer."""
    with Held() as held, ggml.Context() as c, ggml.Scheduler([held.cpu]) as other:
        graph = c.new_graph(16)
        x = c.new_tensor("f32", 4)
        graph.build_forward_expand(c.sqr(x))
        other.alloc_graph(graph)
        x.set([1, 2, 3, 4])
        with pytest.raises(ggml.BusyError, match="this Backend is computing on another thread"):
            other.compute(graph)
        held.go.set()
        held.thread.join()
        other.compute(graph)


def test_closing_from_a_callback_of_the_compute_is_refused():
    case = graphs.cpu_only()
    case.scheduler.alloc_graph(case.graph)
    case.graph["inp"].set(np.ones((48, 64), np.float32))
    case.scheduler.set_eval_callback(lambda tensor, ask: case.context.close())
    with pytest.raises(ggml.BusyError, match="is computing further up on this thread"):
        case.scheduler.compute(case.graph)
    case.close()


def test_a_buffer_whose_tensors_are_computed_stays():
    with ggml.Context() as weights, Held() as held:
        held.context._adopt(weights.new_tensor("f32", 4))  # as the operand of an op
        buffer = weights.alloc(held.cpu)
        with pytest.raises(ggml.BusyError, match="this Graph is computing"):
            weights.close()
        with pytest.raises(ggml.BusyError):
            buffer.close()
        assert not weights.closed
        assert not buffer.closed


def test_an_allocator_keeps_what_it_lent_to_a_graph_that_computes():
    inside, go = threading.Event(), threading.Event()

    def wait(dst, a, ith, nth):
        inside.set()
        assert go.wait(60)

    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as c:
        x = c.new_tensor("f32", 4)
        x.set_input()
        graph = c.new_graph(16)
        graph.build_forward_expand(c.map_custom1(x, wait))
        allocator = ggml.GraphAllocator(cpu.buffer_type)
        allocator.alloc_graph(graph)
        thread = threading.Thread(target=cpu.compute, args=(graph,))
        thread.start()
        assert inside.wait(60)
        for what in (allocator.close, allocator.reset, lambda: allocator.alloc_graph(graph)):
            with pytest.raises(ggml.BusyError, match="this Graph is computing on another thread"):
                what()
        go.set()
        thread.join()
        allocator.close()


def test_closing_in_several_threads_at_once_frees_once():
    for _ in range(20):
        case = graphs.cpu_only()
        closed = []

        def close(_i, case=case, closed=closed):
            with contextlib.suppress(ggml.BusyError):  # of what another closes right now
                case.close()
            closed.append(1)

        together(close, 3)
        case.close()
        assert len(closed) == 3


def test_in_use_takes_all_or_none_and_lets_go_of_all():
    with ggml.Context() as a, ggml.Context() as b:
        with in_use("testing", b):
            with pytest.raises(ggml.BusyError), in_use("trying", a, b):
                pass
            with in_use("testing", a):
                pass
        with pytest.raises(KeyError), in_use("failing", a, b):
            raise KeyError
        with in_use("testing", a, b):
            pass


# --- the log


def test_the_log_of_several_threads_keeps_lines_whole(monkeypatch):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(_log.logger, "handlers", [handler])
    monkeypatch.setattr(_log.logger, "propagate", False)
    monkeypatch.setattr(_log.logger, "level", logging.DEBUG)
    monkeypatch.setattr(_log.logger, "_cache", {})  # what it remembers of the level before
    parts = ["thread ", "%d", " says ", "line %d", "\n"]

    def work(i):
        for k in range(200):
            for n, part in enumerate(parts):
                text = part % {1: i, 3: k}[n] if "%" in part else part
                _log.receive(2 if n == 0 else 5, text)
                time.sleep(0)  # lets another thread come in between
        return True

    together(work)
    whole = [f"thread {i} says line {k}" for i in range(N) for k in range(200)]
    assert sorted(lines) == sorted(whole)


# --- the checks can fail


def test_these_threads_would_notice_a_counter_that_loses():
    class Racy(Live):
        def __init__(self):
            super().__init__()
            self.n = 0

        def add(self, kind):
            n = self.n
            time.sleep(0)
            self.n = n + 1
            return super().add(kind)

    racy = Racy()
    together(lambda i: [racy.add("Thing") for _ in range(1000)])
    assert racy["Thing"] == 1000 * N
    assert racy.n < 1000 * N

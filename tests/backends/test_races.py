"""Races that ThreadSanitizer found (benchmarks/SANITIZERS.md), each made to happen."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.backends import sharing
from ggml_py.boundary.handle import LIVE
from ggml_py.boundary.uses import users_of
from ggml_py.tensors import data


def elsewhere(work):
    """What `work()` raises on another thread, or returns."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        return future.exception(timeout=60) or future.result()


@pytest.mark.parametrize("how", ["backend", "plan", "cpu plan"])
def test_a_graph_does_not_grow_between_the_check_and_the_compute(how, monkeypatch):
    """It would get a tensor that the backend cannot read, or more work than there is memory for."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 4)
        graph, y, z = ctx.new_graph(8), ctx.sqr(x), ctx.neg(x)
        graph.build_forward_expand(y)
        ctx.alloc(cpu)
        x.set(np.ones(4, np.float32))
        if how == "backend":
            compute = lambda: cpu.compute(graph)  # noqa: E731
        else:
            plan = cpu.graph_plan(graph) if how == "plan" else ggml.CpuPlan(graph, n_threads=1)
            compute = plan.compute
        check, raised = ggml.Graph._check_buffers, []

        def late(*args):
            check(*args)
            raised.append(elsewhere(lambda: graph.build_forward_expand(z)))

        monkeypatch.setattr(ggml.Graph, "_check_buffers", late)
        compute()
        assert [type(error) for error in raised] == [ggml.BusyError]


def test_a_backend_that_closes_while_a_scheduler_is_made_on_it_is_freed_later(monkeypatch):
    """ThreadSanitizer found the read of its memory."""
    from ggml_py.scheduler import scheduler

    backends = [ggml.device("CPU").init(n_threads=1) for _ in range(2)]
    freed = [backend._finalizer for backend in backends]
    native, alive = scheduler.lib, []

    class Lib:
        def __getattr__(self, name):
            return getattr(native, name)

        def ggml_backend_sched_new(self, *args):
            elsewhere(backends[0].close)
            alive.append(freed[0].alive)
            return native.ggml_backend_sched_new(*args)

    monkeypatch.setattr(scheduler, "lib", Lib())
    with pytest.raises(ggml.ClosedError):
        ggml.Scheduler(backends, graph_size=8)
    assert alive == [True]
    gc.collect()
    assert not freed[0].alive
    backends[1].close()


def test_memory_that_a_tensor_gets_while_it_is_planned_stays():
    """As another thread may give it, through another context's or graph's tensors."""
    with contextlib.ExitStack() as stack:
        ctx = stack.enter_context(ggml.Context())
        cpu = ggml.device("CPU")
        asked = []

        def supports(_tensor):
            if not asked:
                asked.append(ctx.alloc(cpu.buffer_type))
            return True

        gpu = stack.enter_context(ggml.sim_device("late", supports=supports, async_=False))
        backends = [stack.enter_context(d.init(n_threads=1)) for d in (gpu, cpu)]
        x = ctx.new_tensor("f32", 4)
        x.set_input()
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.sqr(x))
        with ggml.Scheduler(backends, graph_size=16) as sched:
            sched.plan(graph)
        assert asked and x.buffer is not None
        x.set(np.ones(4, np.float32))
        assert x.get().tolist() == [1, 1, 1, 1]


def test_what_an_allocator_lends_is_counted_while_another_thread_allocates(monkeypatch):
    """A second look that finds fewer left a NULL among them, and the finalizer wrote through it."""

    native = sharing.lib
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        cpu, ctx, weights = enter(ggml.device("CPU").init()), enter(ggml.Context()), ggml.Context()
        enter(weights)
        w, x = weights.new_tensor("f32", 4), ctx.new_tensor("f32", 4)
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.add(w, x))
        # With other threads it is first counted what the call may change, twice.
        counts, first = [], 1 if threading.active_count() == 1 else 3

        class Lib:
            def __getattr__(self, name):
                return getattr(native, name)

            def gp_graph_unallocated(self, *args):
                counts.append(native.gp_graph_unallocated(*args))
                if len(counts) == first:
                    # no lock of ours is around a caller of `lib`
                    buffer = cpu.buffer_type.alloc(64)
                    place = native.ggml_backend_buffer_get_base(buffer.ptr)
                    native.ggml_backend_tensor_alloc(buffer.ptr, w.ptr, place)
                    stack.callback(buffer.close)
                return counts[-1]

        monkeypatch.setattr(sharing, "lib", Lib())
        allocator = ggml.GraphAllocator(cpu.buffer_type)
        allocator.alloc_graph(graph)
        lent = allocator._lent_tensors()
        assert counts[first - 1] == 3 and len(lent) == 2
        assert w.ptr not in list(lent) and all(lent)
        allocator.close()
        assert w.ptr.buffer


def test_a_tensor_is_not_given_memory_while_its_graph_is_planned():
    """By `Tensor.alloc` and `TensorAllocator.alloc`, as by `Context.alloc`."""
    with contextlib.ExitStack() as stack:
        cpu, ctx = ggml.device("CPU").init(n_threads=1), ggml.Context()
        stack.enter_context(cpu), stack.enter_context(ctx)
        x = ctx.new_tensor("f32", 4)
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.sqr(x))
        buffer = stack.enter_context(cpu.buffer_type.alloc(256))
        raised = []

        def supports(_tensor):
            if not raised:
                for give in (
                    lambda: x.alloc(buffer), lambda: ggml.TensorAllocator(buffer).alloc(x),
                ):  # fmt: skip
                    raised.append(elsewhere(give))
            return True

        gpu = stack.enter_context(ggml.sim_device("late", supports=supports, async_=False))
        with gpu.init() as backend, ggml.Scheduler([backend, cpu], graph_size=16) as sched:
            sched.plan(graph)
        assert [type(error) for error in raised] == [ggml.BusyError] * 2
        assert x.buffer is None


LENDERS = ("allocator", "scheduler")


@pytest.mark.parametrize(
    ("one", "other", "late"),
    [*((*both, False) for both in itertools.product(LENDERS, LENDERS)), (*LENDERS, True)],
)
def test_two_threads_do_not_give_memory_to_the_same_tensor(one, other, late):
    """A leaf of two graphs, without memory. One in a million programs of benchmarks/handles.py
    ended in upstream's assertion, and then took the memory that the other thread had given.
    With `late` there is only one thread when the first begins."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        if not late:
            ended = threading.Event()
            threading.Thread(target=ended.wait).start()
            stack.callback(ended.set)
        cpu, leafs = enter(ggml.device("CPU").init(n_threads=1)), enter(ggml.Context())
        x = leafs.new_tensor("f32", 4)
        lenders, graphs, raised = [], [], []
        for kind in (one, other):
            ctx = enter(ggml.Context())
            graph = ctx.new_graph(8)
            graph.build_forward_expand(ctx.sqr(x))
            graphs.append(graph)
            made = (
                ggml.GraphAllocator(cpu.buffer_type) if kind == "allocator"
                else ggml.Scheduler([cpu], graph_size=16)
            )  # fmt: skip
            lenders.append(enter(made))

        class Lib:
            def __getattr__(self, name):
                return getattr(native, name)

        # The other thread comes when the first is in the native call.
        module = importlib.import_module(type(lenders[0]).__module__)
        native = module.lib
        name = f"ggml_{'gallocr' if one == 'allocator' else 'backend_sched'}_alloc_graph"

        def call(*args):
            raised.append(elsewhere(lambda: lenders[1].alloc_graph(graphs[1])))
            return getattr(native, name)(*args)

        setattr(Lib, name, staticmethod(call))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "lib", Lib())
            lenders[0].alloc_graph(graphs[0])
        assert [type(error) for error in raised] == [ggml.BusyError]
        assert x.buffer is not None and graphs[1]._allocated_on() is None
        lenders[0].reset()
        lenders[1].alloc_graph(graphs[1])


def test_two_graphs_that_are_copied_to_each_other_do_not_wait_for_ever(monkeypatch):
    """Each thread read one graph, and waited until the other thread had read the other."""
    from ggml_py.graphs import graph as module

    both, in_use = threading.Barrier(2), module.in_use

    class Late(in_use):
        def __enter__(self):
            if self.doing == "being copied to":
                both.wait(20)
            super().__enter__()

    monkeypatch.setattr(module, "in_use", Late)
    raised = []

    def copy(one, other):
        try:
            one.copy_to(other)
        except ggml.BusyError as error:
            raised.append(error)

    with ggml.Context() as ctx:
        a, b = ctx.new_graph(8), ctx.new_graph(8)
        threads = [
            threading.Thread(target=copy, args=pair, daemon=True) for pair in ((a, b), (b, a))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
        assert not any(thread.is_alive() for thread in threads) and len(raised) <= 1


def test_a_scheduler_that_is_closed_while_it_is_made_is_freed_later(monkeypatch):
    """AddressSanitizer found the write to it, when it was told to trace."""
    from ggml_py.scheduler import scheduler

    native, before, alive = scheduler.lib, LIVE["Scheduler"], []

    class Lib:
        def __getattr__(self, name):
            return getattr(native, name)

        def gp_sched_trace(self, *args):
            elsewhere(backend.close)
            alive.append(LIVE["Scheduler"])
            return native.gp_sched_trace(*args)

    monkeypatch.setattr(scheduler, "lib", Lib())
    backend = ggml.device("CPU").init(n_threads=1)
    with pytest.raises(ggml.ClosedError):
        ggml.Scheduler([backend])
    assert alive == [before + 1]
    gc.collect()
    assert LIVE["Scheduler"] == before


def test_an_optimizer_that_is_closed_while_it_is_made_is_closed(monkeypatch):
    depend = ggml.OptContext._depend

    def late(self, parent):
        depend(self, parent)
        assert elsewhere(self.close) is None

    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Scheduler([cpu]) as scheduler:
        monkeypatch.setattr(ggml.OptContext, "_depend", late)
        opt = ggml.OptContext(scheduler, "sum")
        assert opt.closed


@pytest.mark.parametrize("call", ["alloc_graph", "reserve", "plan", "reserve_size"])
def test_a_graph_that_is_cleared_after_it_was_looked_at_is_refused(call, monkeypatch):
    """A plan of no tensors could not be read."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.sqr(ctx.new_tensor("f32", 4)))
        with ggml.Scheduler([cpu]) as scheduler:
            check = ggml.Scheduler._check_graph

            def late(self, one):
                check(self, one)
                if one.n_nodes and not users_of(one):
                    elsewhere(one.clear)

            monkeypatch.setattr(ggml.Scheduler, "_check_graph", late)
            with pytest.raises(ggml.ArgumentError, match="the graph is empty"):
                getattr(scheduler, call)(graph)


@contextlib.contextmanager
def reading_results(result):
    """Another thread that reads a result all the time: what it got, and what it was refused."""
    got, raised, done = [], [], threading.Event()

    def read():
        while not done.is_set():
            try:
                got.append(result.get())
            except ggml.GgmlError as error:
                raised.append(error)

    reader = threading.Thread(target=read)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader.start()
    try:
        yield got, raised
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("asked", ["native", "python"])
def test_who_reads_a_result_sees_its_memory_while_the_plan_is_read(asked, sims):
    """To read it the tensors are put back as they were built: without memory, for a moment."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 64)
        x.set_input()
        graph, y = ctx.new_graph(1024), x
        for _ in range(400):
            y = ctx.neg(y)
        y.set_output()
        graph.build_forward_expand(y)
        backends = [cpu]
        if asked == "python":  # a function of Python is asked, so that threads change meanwhile
            backends.insert(0, sims(supports=lambda node: node.op.name == "MUL_MAT").init())
        with ggml.Scheduler(backends, graph_size=1024) as scheduler:
            scheduler.alloc_graph(graph)
            x.set(np.arange(64, dtype=np.float32))
            scheduler.compute(graph)
            with reading_results(y) as (got, raised):
                for _ in range(60 if asked == "native" else 10):
                    scheduler.plan(graph)
                end = time.monotonic() + 20
                while not got and time.monotonic() < end:  # a reader that was late
                    time.sleep(0.001)
                    scheduler.plan(graph)
            assert all(np.array_equal(one, np.arange(64)) for one in got)
            assert got
            assert [error for error in raised if not isinstance(error, ggml.BusyError)] == []
            assert asked == "python" or not raised


def test_a_change_that_ends_while_memory_is_looked_for(monkeypatch):
    """It hid the memory from the first look, and had ended before the second looked for it."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 4)
        with ctx.alloc(cpu):
            x.set(np.ones(4))
            there, hidden = data.TensorData._in_place, [True, True]

            def look(ptr):
                return not (hidden and hidden.pop()) and there(ptr)

            def nothing(_tensor):  # the change has ended since
                ggml.lib.gp_take_memory([], 0)
                return ""

            monkeypatch.setattr(data.TensorData, "_in_place", staticmethod(look))
            monkeypatch.setattr(data, "changed_elsewhere", nothing)
            assert x.get().tolist() == [1, 1, 1, 1] and not hidden
            monkeypatch.setattr(data, "changed_elsewhere", lambda _tensor: "")
            monkeypatch.setattr(data.TensorData, "_in_place", staticmethod(lambda _ptr: False))
            with pytest.raises(ggml.NoDataError, match="has no memory"):
                x.get()


@contextlib.contextmanager
def lent(lender: str):
    """A context without memory, of which one tensor's and one view's is a scheduler's or an
    allocator's, and how that takes it back."""
    with contextlib.ExitStack() as stack:
        cpu = stack.enter_context(ggml.device("CPU").init(n_threads=1))
        leafs, sources, ctx = (stack.enter_context(ggml.Context()) for _ in range(3))
        x = leafs.new_tensor("f32", 64)
        leafs.alloc(cpu)
        y = sources.sqr(x)
        ctx.new_tensor("f32", 64)
        z = ctx.neg(y)
        ctx.view_tensor(y)
        graph = sources.new_graph()
        graph.build_forward_expand(z)
        if lender == "allocator":
            alloc = stack.enter_context(ggml.GraphAllocator(cpu.buffer_type))
            alloc.alloc_graph(graph)
            yield ctx, cpu, alloc.close
        else:
            sched = stack.enter_context(ggml.Scheduler([cpu]))
            sched.alloc_graph(graph)
            yield ctx, cpu, sched.reset if lender == "scheduler" else sched.close


@pytest.mark.parametrize("lender", ["scheduler", "closed scheduler", "allocator"])
def test_nobody_takes_memory_back_while_a_context_is_allocated(lender, monkeypatch):
    """Upstream ended in an assertion, and a tensor stayed in the buffer that was freed then."""
    from ggml_py.graphs import context

    native, waited = context.lib, []

    class Lib:
        def __getattr__(self, name):
            return getattr(native, name)

        def gp_alloc_tensors(self, *args):
            with pytest.raises(ggml.BusyError, match="further up on this thread"):
                take_back()
            waited.append(pool.submit(take_back))
            assert not wait(waited, timeout=0.3).done
            return native.gp_alloc_tensors(*args)

    with lent(lender) as (ctx, cpu, take_back), ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(context, "lib", Lib())
        ctx.alloc(cpu)
        waited[0].result(timeout=60)


def test_a_context_is_not_allocated_while_another_thread_takes_memory_back(monkeypatch):
    with lent("scheduler") as (ctx, cpu, take_back), ThreadPoolExecutor(1) as pool:
        reset, waited = ggml.Scheduler._reset, []

        def slow(scheduler):
            waited.append(pool.submit(ctx.alloc, cpu))
            assert not wait(waited, timeout=0.3).done
            reset(scheduler)

        monkeypatch.setattr(ggml.Scheduler, "_reset", slow)
        take_back()
        monkeypatch.undo()
        assert waited[0].result(timeout=60).size >= 256

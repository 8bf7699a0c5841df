"""Memory outlives the calls, arrays and callbacks that use it, whoever closes what and when."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.backends.sharing import allocating, placing
from ggml_py.boundary.handle import LIVE
from ggml_py.boundary.uses import in_use, reading

from ..support import graphs

# --- a pointer is a reference (rule 2 of docs/HANDLES.md)


def test_what_has_the_pointer_keeps_the_native_object():
    before = dict(LIVE)
    backend = ggml.device("CPU").init(n_threads=1)
    ptr = backend.ptr  # as a call in flight has it
    backend.close()
    assert backend.closed
    assert LIVE["Backend"] == before.get("Backend", 0) + 1
    assert ggml.ffi.string(ggml.lib.ggml_backend_name(ptr)) == b"CPU"
    del ptr
    assert dict(LIVE) == before


def test_a_native_object_outlives_those_that_need_it():
    """The plan is freed through its backend, when the call that has the plan's pointer is over."""
    before = dict(LIVE)
    with ggml.Context() as context, ggml.device("CPU").init(n_threads=1) as cpu:
        graph = context.new_graph(8)
        graph.build_forward_expand(context.sqr(context.new_tensor("f32", 4)))
        context.alloc(cpu)
        ptr = cpu.graph_plan(graph).ptr
        gc.collect()
    assert LIVE["GraphPlan"] == LIVE["Backend"] - before.get("Backend", 0) == 1
    del ptr
    gc.collect()
    del context, graph, cpu
    assert dict(LIVE) == before


def test_what_is_closed_by_a_handler_in_the_middle_of_a_method_stays_until_it_returns():
    """A handler of a signal runs between two bytecodes, wherever the thread is."""
    with ggml.Context(reserve=1 << 16) as context:
        tensor = context.new_tensor("f32", 4, 3, name="x")

        def close(_frame, event, _argument):
            if event == "opcode":
                context.close()
            return close

        def trace(frame, _event, _argument):
            if frame.f_code.co_name == "ne":
                frame.f_trace_opcodes = True
                return close
            return None

        sys.settrace(trace)
        try:
            with pytest.raises(ggml.ClosedError):
                _ = tensor.ne
        finally:
            sys.settrace(None)
        assert context.closed


@pytest.mark.parametrize("kind", ["data", "labels"])
def test_a_tensor_of_a_dataset_keeps_its_memory(kind):
    dataset = ggml.Dataset(np.ones((8, 8)), np.ones((8, 2)))
    tensor = getattr(dataset, kind)
    dataset.close()
    with pytest.raises(ggml.ClosedError):
        tensor.get()
    assert tensor._ptr.ne[1] == 8  # what another thread reads that was here before
    assert LIVE["Dataset"] == 1
    del tensor
    assert LIVE["Dataset"] == 0


# --- cycles


def test_two_contexts_that_need_each_other_are_collected():
    gc.collect()
    before = dict(LIVE)
    for _ in range(5):
        a, b, c = (ggml.Context(reserve=1 << 16) for _ in range(3))
        x, y, z = (one.new_tensor("f32", 4) for one in (a, b, c))
        a.add(x, y)
        b.add(y, z)
        c.add(z, x)
    del a, b, c, x, y, z
    gc.collect()
    assert dict(LIVE) == before


def test_what_is_closed_before_it_needs_another_keeps_nothing():
    """Another thread may close a graph between the check and the op that it is to hold."""
    before = dict(LIVE)
    with ggml.Context() as context:
        graph, other = context.new_graph(8), ggml.Context()
        graph.close()
        graph._depend(other)
        del graph, other
    assert dict(LIVE) == before


def test_a_custom_op_that_knows_all_of_its_own_is_collected(cpu):
    def make():
        context = ggml.Context(reserve=1 << 20)
        graph, scheduler = context.new_graph(8), ggml.Scheduler([cpu], graph_size=8)
        allocator = ggml.GraphAllocator(cpu.buffer_type)
        x = context.new_tensor("f32", 4)
        y = context.map_custom1(x, lambda *_: (context, graph, scheduler, allocator))
        graph.build_forward_expand(y)
        scheduler.alloc_graph(graph)
        other = context.new_graph(8)
        other.build_forward_expand(context.map_custom1(x, lambda *_: allocator))
        scheduler.reset()
        allocator.alloc_graph(other)

    gc.collect()
    before = dict(LIVE)
    for _ in range(5):
        make()
    gc.collect()
    assert dict(LIVE) == before


# --- arrays


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


@pytest.mark.parametrize("place", ["context", "scheduler", "allocator"])
def test_arrays_of_a_custom_op_that_were_kept_are_memory_still(place, cpu):
    """Written to and read after everything is closed, under glibc's pattern for what is freed."""
    program = f"""
import gc, numpy as np, ggml_py as ggml
cpu, kept = ggml.device("CPU").init(n_threads=1), []
def double(dst, a, ith, nth):
    dst[:] = a * 2
    kept.extend([dst, a])
context = ggml.Context()
x = context.new_tensor("f32", 1 << 18)
x.set_input()
y = context.map_custom1(x, double)
y.set_output()
graph = context.new_graph(8)
graph.build_forward_expand(y)
lender = None
if {place!r} == "context":
    context.alloc(cpu)
elif {place!r} == "scheduler":
    lender = ggml.Scheduler([cpu], graph_size=8)
    lender.alloc_graph(graph)
else:
    lender = ggml.GraphAllocator(cpu.buffer_type)
    lender.alloc_graph(graph)
x.set(np.full(1 << 18, 3.0))
cpu.compute(graph) if {place!r} != "scheduler" else lender.compute(graph)
if lender is not None:
    lender.close()
context.close()
cpu.close()
gc.collect()
dst, a = kept
print(dst.min(), dst.max(), a.min(), a.max())
dst[:] = 1
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**__import__("os").environ, "MALLOC_PERTURB_": "165"},
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["6.0", "6.0", "3.0", "3.0"]), done.stderr


def test_an_array_over_a_buffer_that_is_closed_while_it_is_made_is_whole(cpu):
    with ggml.Context() as context:
        tensor = context.from_numpy(np.arange(1000, dtype=np.float32))
        buffer = context.alloc(cpu)
        memory, _address, _buffer = tensor._pinned()
        buffer.close()
        with pytest.raises(ggml.NoDataError):
            tensor.numpy()
        del memory


def test_what_a_freed_buffer_borrows_stays_while_a_call_uses_it():
    """A copy from a tensor of from_dlpack, which is closed meanwhile."""
    from ggml_py.backends import buffer

    with ggml.Context() as context:
        array = np.arange(64, dtype=np.float32)
        tensor = context.from_dlpack(array)
        place = ggml.ffi.new("void **")
        pinned = ggml.lib.gp_tensor_pin(tensor.ptr, place)
        n = sys.getrefcount(array)
    assert len(buffer._PARKED) == 1
    assert sys.getrefcount(array) == n
    ggml.lib.gp_buffer_unpin(pinned)
    ggml.device("CPU").buffer_type.alloc(64).close()
    assert buffer._PARKED == []
    gc.collect()
    assert sys.getrefcount(array) < n


# --- reading, and what waits for it


def test_who_resets_waits_for_those_who_read(cpu):
    scheduler, order = ggml.Scheduler([cpu], graph_size=8), []

    def reset():
        scheduler.reset()
        order.append("reset")

    thread = threading.Thread(target=reset)
    with reading(scheduler), reading(scheduler):
        thread.start()
        time.sleep(0.05)
        order.append("read")
    thread.join()
    assert order == ["read", "reset"]
    scheduler.close()


def test_reading_is_refused_while_another_thread_changes_it_and_not_while_it_computes(cpu):
    scheduler = ggml.Scheduler([cpu], graph_size=8)
    go, there = threading.Event(), threading.Event()

    def use(doing):
        with in_use(doing, scheduler):
            there.set()
            assert go.wait(60)

    for doing, refused in (("allocating", True), ("computing", False)):
        go.clear(), there.clear()
        thread = threading.Thread(target=use, args=(doing,))
        thread.start()
        assert there.wait(60)
        try:
            if refused:
                with pytest.raises(ggml.BusyError, match="is allocating on another thread"):
                    scheduler.inspect()
            else:
                scheduler.inspect()
        finally:
            go.set()
            thread.join()
    with reading(scheduler), pytest.raises(ggml.BusyError, match="being read further up on this"):
        scheduler.close()  # as from a signal's handler
    scheduler.close()


def test_a_context_that_is_walked_gets_no_tensors_and_says_so():
    with ggml.Context(reserve=1 << 16) as context:
        x = context.new_tensor("f32", 4)
        with context._held():
            for make in (lambda: context.sqr(x), lambda: context.new_tensor("f32", 4)):
                with pytest.raises(ggml.BusyError, match="is allocating on another thread: wait"):
                    make()
        assert context.sqr(x).ne == x.ne


def elsewhere(function):
    """Starts the function on another thread. Returns the thread and the list of what it raised."""
    raised = []

    def call():
        try:
            function()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, raised


def test_what_another_thread_closes_gets_no_children_and_is_not_closed_twice():
    with ggml.Context() as context:
        go, there = threading.Event(), threading.Event()

        def close():
            with in_use("being closed", context):
                there.set()
                assert go.wait(60)

        thread, raised = elsewhere(close)
        assert there.wait(60)
        try:
            with pytest.raises(ggml.BusyError, match="this Context is being closed on another"):
                context.new_graph(8)
            context.close()
            assert not context.closed
        finally:
            go.set()
            thread.join()
        assert raised == []


def test_one_tensor_gets_no_memory_while_its_context_allocates(cpu):
    with ggml.Context() as context, cpu.device.buffer_type.alloc(4096) as buffer:
        x = context.new_tensor("f32", 4)
        with allocating(context):
            thread, raised = elsewhere(lambda: x.alloc(buffer))
            thread.join()
        assert isinstance(raised[0], ggml.BusyError) and x.buffer is None
        x.alloc(buffer)
        assert x.buffer is not None


def test_a_scheduler_waits_for_a_tensor_that_gets_memory(cpu):
    """A graph that was made after the placing began is not among the graphs that it reads."""
    with ggml.Context() as context, ggml.Scheduler([cpu], graph_size=8) as scheduler:
        y = context.sqr(context.new_tensor("f32", 4))
        with placing(context):
            graph = context.new_graph(8)
            graph.build_forward_expand(y)
            thread, raised = elsewhere(lambda: scheduler.alloc_graph(graph))
            thread.join(timeout=0.05)
            assert thread.is_alive() and y.buffer is None
        thread.join()
        assert raised == [] and y.buffer is not None


def test_memory_that_another_thread_took_is_not_an_assertion(cpu):
    """Between the check and upstream's call a tensor may lose its memory and get other memory."""
    with ggml.Context() as context:
        x = context.new_tensor("f32", 4)
        context.alloc(cpu)
        condition = 'GGML_ASSERT(tensor->data != NULL && "tensor not allocated") failed'
        with pytest.raises(ggml.BusyError, match="was given other memory on another thread"):
            x._moved(ggml.AbortError(condition, "ggml_backend_tensor_set", "", "", 0))


# --- plans and the abort callback


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_abort_callback_counts_for_plans_made_before_it_was_set(when, cpu):
    case = graphs.cpu_only()
    with ggml.Context() as context:
        y = context.sqr(context.sqr(context.from_numpy(np.ones(64, np.float32))))
        context.alloc(cpu)
        graph = context.new_graph(8)
        graph.build_forward_expand(y)
        plan = cpu.graph_plan(graph) if when == "before" else None
        asked = []
        cpu.set_abort_callback(lambda: asked.append(1) or True)
        plan = plan or cpu.graph_plan(graph)
        with pytest.raises(ggml.ComputeError, match="aborted"):
            plan.compute()
        assert asked == [1]
        cpu.set_abort_callback(None)
        plan.compute()
        assert asked == [1]
    case.close()


# --- the end of the process


DAEMON = """
import os, sys, threading, time, numpy as np, ggml_py as ggml
cpu = ggml.device("CPU").init(n_threads=2)
context = ggml.Context()
a = context.from_numpy(np.ones((256, 256), np.float32))
context.alloc(cpu)
y = a
for _ in range(4000):  # the process ends before the first compute does
    y = {op}
graph = context.new_graph(8000)
graph.build_forward_expand(y)
scheduler = ggml.Scheduler([cpu], graph_size=9000)
scheduler.alloc_graph(graph)
{setting}
def work():
    while True:
        scheduler.compute(graph)
class Out:  # flushed at the end, when the threads that want the GIL are ended
    closed = False
    def flush(self):
        before = set(os.listdir("/proc/self/task"))
        time.sleep(0.3)
        os.write(1, b"%d gone" % len(before - set(os.listdir("/proc/self/task"))))
sys.stdout = Out()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
MUL_MAT = "context.mul_mat(a, y)"


@pytest.mark.thorough("cases", quick=1)
@pytest.mark.parametrize(
    ("op", "setting"),
    [
        (MUL_MAT, ""),
        (MUL_MAT, "cpu.set_abort_callback(lambda: False)"),
        # One thread: others come and go with each node here.
        (MUL_MAT, "cpu.n_threads = 1; scheduler.set_eval_callback(lambda t, ask: True)"),
        ("context.map_custom1(y, lambda d, a, i, n: None, 2)", ""),
        ("context.mul_mat(a, context.map_custom1(y, lambda d, a, i, n: None, 1))", ""),
    ],
    ids=["kernels", "abort callback", "eval callback", "custom op", "custom op and kernels"],
)
def test_a_daemon_that_computes_when_the_process_ends_is_harmless(op, setting):
    """Until 3.14 Python ends it where it wants the GIL, in the middle of the compute."""
    program = DAEMON.format(op=op, setting=setting)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 gone", "")


def test_a_kept_exception_keeps_nothing_open():
    """As sys.last_value does at the prompt."""
    kept = []
    with ggml.Context() as context:
        context.new_tensor("f32", 4)
        cpu = ggml.device("CPU").init(n_threads=1)
        before = LIVE["Backend"]
        try:
            cpu.compute(context)
        except TypeError as error:
            kept.append(error)
        graph = context.new_graph()
        graph.build_forward_expand(context.sqr(context.new_tensor("f32", 4)))
        try:
            cpu.compute(graph)  # no memory
        except ggml.GgmlError as error:
            kept.append(error)
        cpu.close()
        assert LIVE["Backend"] == before - 1 and len(kept) == 2


def test_a_model_whose_context_has_an_op_on_the_loss_is_collected():
    """The context needs the optimizer, and that the context."""
    before = dict(LIVE)

    def make():
        cpu, c, d = ggml.device("CPU").init(n_threads=1), ggml.Context(), ggml.Context()
        _scheduler, opt = graphs.summed(cpu, c)
        opt.alloc()
        opt.eval()
        c.sqr(d.sqr(opt.loss))

    for _ in range(5):
        make()
        gc.collect()
        gc.collect()
        assert dict(LIVE) == before


@pytest.mark.parametrize("how", ["closed", "collected"])
def test_a_pin_is_of_the_tensor_that_was_pinned(how):
    """The scheduler knows tensors by address: another tensor there is not pinned."""
    before = dict(LIVE)
    sim, cpu = ggml.sim_device("gpu0").init(), ggml.device("CPU").init(n_threads=1)
    with ggml.Scheduler([sim, cpu], graph_size=4096) as scheduler:

        def make():
            context = ggml.Context()
            a = context.new_tensor("f32", 4)
            return context, [context.sqr(a) for _ in range(300)]

        context, tensors = make()
        for tensor in tensors:
            scheduler.set_tensor_backend(tensor, cpu)
        if how == "closed":
            context.close()
        del context, tensors, tensor
        gc.collect()
        context, tensors = make()
        graph = context.new_graph()
        graph.build_forward_expand(tensors[0])
        plan = scheduler.plan(graph)
        assert plan.splits[0].nodes[0].cause.code != "usr"
        scheduler.reset()
        context.close()
        gc.collect()
        assert LIVE["Context"] == before.get("Context", 0)
    sim.close()
    cpu.close()


def test_what_was_closed_with_another_names_that():
    """Found: "this Graph is closed", of which nobody had closed any."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as context:
        weights = ggml.Context()
        weight = weights.new_tensor("f32", 4)
        graph = context.new_graph()
        graph.build_forward_expand(context.relu(weight))
        weights.close()
        with pytest.raises(ggml.ClosedError, match=r"Graph is closed.* close the Context"):
            cpu.compute(graph)
        graph = ggml.Context().new_graph()
        graph.close()
        with pytest.raises(ggml.ClosedError, match=r"Graph is closed: .* close it later"):
            cpu.compute(graph)

"""An assertion of ggml is an exception at the caller's line, and the library goes on."""

import threading
import traceback

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary import raising

from ..support import graphs


@pytest.fixture
def context():
    with ggml.Context() as made:
        yield made


def test_an_abort_is_an_exception_with_condition_place_call_and_operands(context):
    a = context.new_tensor("f32", 8, 4, name="a-name")
    b = context.new_tensor("f16", 7, 4)
    with pytest.raises(ggml.AbortError) as caught:
        context.mul_mat(a, b)  # the user's line
    error = caught.value
    assert error.condition == "GGML_ASSERT(ggml_can_mul_mat(a, b)) failed"
    assert (error.call, error.file) == ("ggml_mul_mat", "ggml.c")
    assert error.line > 0
    assert error.operands == ["a: f32 [8, 4, 1, 1] 'a-name'", "b: f16 [7, 4, 1, 1] ''"]
    assert isinstance(error, RuntimeError)
    frames = traceback.extract_tb(error.__traceback__)
    assert "the user's line" in (frames[0].line or "") or frames[0].name == __name__


def test_the_library_goes_on_after_aborts(context):
    a, b = context.new_tensor("f32", 8), context.new_tensor("f32", 7)
    for _ in range(100):
        with pytest.raises(ggml.AbortError):
            context.add(a, b)
    assert context.add(a, a).ne == (8, 1, 1, 1)
    case = graphs.mlp()
    case.scheduler.alloc_graph(case.graph)
    case.close()


def test_what_failed_is_raised_where_it_failed_and_nowhere_else(context, monkeypatch):
    """Python runs while the exception is made, so garbage may be collected: finalizers call."""
    a, b = context.new_tensor("f32", 8), context.new_tensor("f32", 7)
    used, seen = ggml.lib.ggml_used_mem(context.ptr), []
    from_native = raising.from_native

    def collecting(*told):
        if not seen:
            seen.append(ggml.lib.ggml_used_mem(context.ptr))
            with pytest.raises(ggml.AbortError, match="ggml_can_mul_mat"):
                context.mul_mat(a, b)
        return from_native(*told)

    monkeypatch.setattr(raising, "from_native", collecting)
    with pytest.raises(ggml.AbortError, match="ggml_can_repeat") as caught:
        context.add(a, b)
    assert caught.value.call == "ggml_add" and seen == [used]


def test_scalars_are_among_the_operands(context):
    a = context.new_tensor("f32", 8, 4)
    with pytest.raises(ggml.AbortError) as caught:
        context.permute(a, 0, 0, 2, 3)
    assert "axis1: 0" in caught.value.operands


def test_null_where_ggml_would_read_through_it_is_an_argument_error(context):
    a = context.new_tensor("f32", 8)
    with pytest.raises(ggml.ArgumentError, match=r"ggml_add: argument 'b' is NULL"):
        ggml.lib.ggml_add(context.ptr, a.ptr, ggml.ffi.NULL)
    with pytest.raises(ggml.ArgumentError, match="'backend'"):
        ggml.lib.ggml_backend_name(ggml.ffi.NULL)


def test_none_is_taken_where_ggml_takes_it(context):
    a = context.new_tensor("f32", 8, 4)
    assert context.soft_max_ext(a, None, 1.0, 0.0).ne == (8, 4, 1, 1)


def test_the_raw_layer_is_guarded_too(context):
    a, b = context.new_tensor("f32", 8), context.new_tensor("f32", 7)
    with pytest.raises(ggml.AbortError):
        ggml.lib.ggml_add(context.ptr, a.ptr, b.ptr)


def test_an_abort_while_computing_is_an_exception():
    """get_rows checks its indices when it runs. Other threads: test_worker_aborts.py."""
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as c:
        rows, ids = c.new_tensor("f32", 4, 3), c.new_tensor("i32", 2)
        out = c.get_rows(rows, ids)
        graph = c.new_graph()
        graph.build_forward_expand(out)
        c.alloc(cpu)
        rows.set(np.ones((3, 4)))
        ids.set([0, 99])
        with pytest.raises(ggml.AbortError, match="i01"):
            cpu.compute(graph)
        ids.set([0, 2])
        cpu.compute(graph)
        assert out.get().sum() == 8


def test_threads_keep_their_errors_apart():
    failures = []

    def work(wrong):
        with ggml.Context() as c:
            a, b = c.new_tensor("f32", 8), c.new_tensor("f32", 7 if wrong else 8)
            for _ in range(300):
                try:
                    c.add(a, b)
                    ok = not wrong
                except ggml.AbortError:
                    ok = wrong
                if not ok:
                    failures.append(wrong)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_exhausted_context_is_an_exception():
    with ggml.Context(reserve=4096) as small, pytest.raises(ggml.AbortError):
        for _ in range(100):
            small.new_tensor("f32", 1)


def test_a_full_graph_is_an_exception_and_others_still_build(context):
    x = context.new_tensor("f32", 4)
    for _ in range(8):
        x = context.sqr(x)
    graph = context.new_graph(4)
    with pytest.raises(ggml.AbortError):
        graph.build_forward_expand(x)
    with pytest.raises(ggml.SpoiledError, match=r"Graph was left half-changed.*make another"):
        _ = graph.nodes
    graph.close()
    with pytest.raises(ggml.ClosedError):
        _ = graph.nodes
    fresh = context.new_graph(64)
    fresh.build_forward_expand(x)
    assert fresh.n_nodes == 8


def test_a_result_that_no_backend_can_write_leaves_scheduler_and_graph_whole():
    """A result that must land in memory whose type no backend can write: upstream aborts."""
    with ggml.device("CPU").init() as cpu, ggml.Context() as c, ggml.Context() as ops:
        a, into = c.new_tensor("f32", 256), c.new_tensor("iq2_xxs", 256)
        c.alloc(cpu).clear()
        graph, fine = ops.new_graph(), ops.new_graph()
        graph.build_forward_expand(ops.cpy(ops.sqr(a), into))
        fine.build_forward_expand(ops.sqr(a))
        before = [(t.ptr, t.src) for t in graph.nodes]
        with ggml.Scheduler([cpu]) as sched:
            for use in (sched.plan, sched.alloc_graph, sched.reserve, sched.compute):
                with pytest.raises(ggml.ArgumentError, match=r"this scheduler .* can"):
                    use(graph)
                assert [(t.ptr, t.src) for t in graph.nodes] == before
            sched.compute(fine)


def test_a_compute_that_aborted_leaves_scheduler_and_graph_whole():
    with ggml.device("CPU").init(n_threads=1) as cpu, ggml.Context() as c, ggml.Context() as ops:
        rows, ids = c.new_tensor("f32", 4, 3), c.new_tensor("i32", 2)
        c.alloc(cpu)
        rows.set(np.arange(12).reshape(3, 4))
        graph = ops.new_graph()
        got = ops.get_rows(rows, ids)
        graph.build_forward_expand(got)
        before = [(t.ptr, t.src) for t in graph.nodes]
        with ggml.Scheduler([cpu]) as sched:
            for _ in range(3):
                ids.set([0, 99])
                with pytest.raises(ggml.AbortError, match="i01"):
                    sched.compute(graph)
                ids.set([0, 2])
                sched.compute(graph)
                assert got.get().tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
            sched.reset()
            assert [(t.ptr, t.src) for t in graph.nodes] == before


def test_a_division_by_zero_is_an_exception(context):
    """An empty batch dimension: upstream divides by it."""
    empty, full = context.new_tensor("f32", 8, 4, 0), context.new_tensor("f32", 8, 4, 2)
    for _ in range(3):
        with pytest.raises(ggml.AbortError, match="integer division by zero") as caught:
            context.mul_mat(empty, full)
        assert caught.value.operands[0].startswith("a: f32 [8, 4, 0, 1]")
    assert context.mul_mat(full, full).ne == (4, 4, 2, 1)

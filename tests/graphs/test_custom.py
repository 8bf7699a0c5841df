"""Custom ops: Python functions as nodes of a graph."""

import gc
import signal
import threading
import weakref

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.callback import STORED

RNG = np.random.default_rng(0)


def array(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=2) as backend:
        yield backend


@pytest.fixture
def context():
    with ggml.Context() as c:
        yield c


def compute(cpu, *results):
    """The results, computed by the backend alone."""
    context = results[0]._context
    context.alloc(cpu)
    with context.new_graph() as graph:
        graph.build_forward_expand(*results)
        cpu.compute(graph)
        return [r.get() for r in results]


def fail(*_arrays_ith_nth):
    raise RuntimeError("from the function")


# --- results


def test_map_custom_equals_numpy(cpu, context):
    x, y, z = array(5, 7), array(7), array(3, 5, 7)
    a, b, c = (context.from_numpy(v) for v in (x, y, z))

    def one(dst, a, ith, nth):
        dst[:] = np.sin(a)

    def two(dst, a, b, ith, nth):
        np.add(a, b, out=dst)

    def three(dst, a, b, c, ith, nth):
        dst[:] = a * b - c.sum(axis=0)

    results = [
        context.map_custom1(a, one),
        context.map_custom2(a, b, two),
        context.map_custom3(a, b, c, three),
    ]
    got = compute(cpu, *results)
    expected = [np.sin(x), x + y, x * y - z.sum(axis=0)]
    for result, g, e in zip(results, got, expected, strict=True):
        assert result.ne == a.ne
        np.testing.assert_array_equal(g, e)
    assert [r.op for r in results] == [
        ggml.enums.Op.MAP_CUSTOM1,
        ggml.enums.Op.MAP_CUSTOM2,
        ggml.enums.Op.MAP_CUSTOM3,
    ]


def test_map_custom_in_place_changes_its_source(cpu, context):
    x, y, z = array(4, 6), array(4, 6), array(6)
    sources = [context.from_numpy(x) for _ in range(3)]
    b, c = context.from_numpy(y), context.from_numpy(z)

    def one(dst, a, ith, nth):
        assert np.shares_memory(dst, a)
        dst *= 2

    def two(dst, a, b, ith, nth):
        dst += b

    def three(dst, a, b, c, ith, nth):
        dst += b * c

    results = [
        context.map_custom1_inplace(sources[0], one),
        context.map_custom2_inplace(sources[1], b, two),
        context.map_custom3_inplace(sources[2], b, c, three),
    ]
    got = compute(cpu, *results)
    for source, g, e in zip(sources, got, [x * 2, x + y, x + y * z], strict=True):
        np.testing.assert_array_equal(g, e)
        np.testing.assert_array_equal(source.get(), e)


def test_custom_4d_has_the_type_and_shape_it_is_told_and_up_to_nine_sources(cpu, context):
    values = [array(3) for _ in range(9)]
    args = [context.from_numpy(v) for v in values]
    shapes = []

    def stack(dst, *rest):
        *sources, ith, nth = rest
        shapes.append((dst.shape, dst.dtype, len(sources), ith, nth))
        dst[:] = np.stack(sources)[None, None]

    def iota(dst, ith, nth):
        dst[:] = np.arange(dst.size)

    none = context.custom_4d("i32", 4, 1, 1, 1, [], iota)
    nine = context.custom_4d("f64", 3, 9, 1, 2, args, stack)
    got = compute(cpu, none, nine)
    np.testing.assert_array_equal(got[0], np.arange(4))
    np.testing.assert_array_equal(got[1], np.stack([np.stack(values)[None]] * 2))
    assert shapes == [((2, 1, 9, 3), np.dtype(np.float64), 9, 0, 1)]


def test_custom_inplace_gives_a_first_and_then_its_args(cpu, context):
    x, y = array(4, 2), array(2)
    a, b = context.from_numpy(x), context.from_numpy(y)

    def scale(dst, a, b, ith, nth):
        assert np.shares_memory(dst, a)
        dst *= b

    np.testing.assert_array_equal(
        compute(cpu, context.custom_inplace(a, [b], scale))[0], x * y
    )


def test_sources_that_are_not_contiguous_come_as_strided_views(cpu, context):
    x = array(4, 5, 6)
    a = context.from_numpy(x)
    transposed = context.transpose(a)
    part = context.view_2d(a, 3, 5, a.nb[1], 8)
    seen = {}

    def copy(dst, a, ith, nth):
        seen[dst.shape] = (a.flags.c_contiguous, a.strides)
        dst[:] = a

    got = compute(cpu, context.map_custom1(transposed, copy), context.map_custom1(part, copy))
    np.testing.assert_array_equal(got[0], x.transpose(0, 2, 1))
    np.testing.assert_array_equal(got[1], x[0, :, 2:5])
    assert seen == {(4, 6, 5): (False, (120, 4, 24)), (5, 3): (False, (24, 4))}


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int16, np.int32, np.int64])
def test_types_are_numpys(cpu, context, dtype):
    x = (array(3, 8) * 10).astype(dtype)
    got = []

    def double(dst, a, ith, nth):
        got.extend([dst.dtype, a.dtype])
        np.add(a, a, out=dst)

    result = compute(cpu, context.map_custom1(context.from_numpy(x), double))[0]
    np.testing.assert_array_equal(result, x + x)
    assert got == [np.dtype(dtype)] * 2


def test_nothing_is_copied_and_sources_are_read_only(cpu, context):
    a = context.from_numpy(array(8))
    addresses = []

    def look(dst, a, ith, nth):
        addresses.extend([dst.ctypes.data, a.ctypes.data])
        dst[:] = 0
        a[:] = 0

    y = context.map_custom1(a, look)
    with pytest.raises(ValueError, match="read-only"):
        compute(cpu, y)
    assert addresses == [t.numpy().ctypes.data for t in (y, a)]


def test_between_upstreams_ops_on_a_scheduler_with_sources_of_another_context(cpu):
    w, x, bias = array(128, 64), array(48, 64), array(128)
    with ggml.device("BLAS").init() as blas, ggml.Context() as weights, ggml.Context() as c:
        wt, bt = weights.from_numpy(w), weights.from_numpy(bias)
        weights.alloc(cpu, usage="weights")
        inp = c.new_tensor("f32", 64, 48)
        inp.set_input()

        def relu(dst, a, b, ith, nth):
            np.maximum(a + b, 0, out=dst)

        h = c.map_custom2(c.mul_mat(wt, inp), bt, relu)
        out = c.mul_mat(h, h)
        graph = c.new_graph()
        graph.build_forward_expand(out)
        with ggml.Scheduler([blas, cpu]) as scheduler:
            plan = scheduler.alloc_graph(graph)
            assert [n.backend for n in plan.nodes] == ["BLAS", "CPU", "BLAS"]
            inp.set(x)
            scheduler.compute(graph)
            expected = np.maximum(x @ w.T + bias, 0)
            np.testing.assert_allclose(out.get(), expected @ expected.T, rtol=1e-4)


# --- threads


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("n_tasks", [1, 2, 3, -1])
def test_each_task_is_called_once_however_many_threads_there_are(context, n_threads, n_tasks):
    x, w = array(64, 16), array(64, 16)
    calls, threads = [], set()

    def rows(dst, a, ith, nth):
        calls.append((ith, nth))
        threads.add(threading.get_ident())
        dst[ith::nth] = a[ith::nth] * 3

    with ggml.device("CPU").init(n_threads=n_threads) as cpu:
        a = context.from_numpy(x)
        y = context.map_custom1(a, rows, n_tasks=n_tasks)
        # mul_mat runs on all threads, so that ggml calls the custom op from all of them
        product = context.mul_mat(context.from_numpy(w), y)
        got = compute(cpu, y, product)[0]
    n = n_threads if n_tasks == -1 else min(n_tasks, n_threads)
    assert sorted(calls) == [(i, n) for i in range(n)]
    assert len(threads) == n
    np.testing.assert_array_equal(got, x * 3)


# --- exceptions


def on_backend(cpu, graph):
    return cpu, lambda: cpu.compute(graph)


def on_scheduler(cpu, graph):
    scheduler = ggml.Scheduler([cpu])
    return scheduler, lambda: scheduler.compute(graph)


@pytest.mark.parametrize("way", [on_backend, on_scheduler])
@pytest.mark.parametrize("failing", [0, 1], ids=["caller", "worker"])
def test_what_it_raises_comes_out_and_the_graph_computes_afterwards(cpu, context, way, failing):
    x = array(8, 4)
    broken, calls = True, 0

    def sometimes(dst, a, ith, nth):
        nonlocal calls
        calls += 1
        if broken and ith == failing:
            raise LookupError(f"task {ith}")
        dst[ith::nth] = a[ith::nth] + 1

    y = context.map_custom1(context.from_numpy(x), sometimes, n_tasks=-1)
    context.alloc(cpu)
    graph = context.new_graph()
    graph.build_forward_expand(y)
    owner, run = way(cpu, graph)
    for _ in range(3):
        with pytest.raises(LookupError, match=f"task {failing}") as caught:
            run()
        assert "sometimes" in [entry.name for entry in caught.traceback]
    assert 3 <= calls <= 6
    assert not STORED
    broken = False
    run()
    np.testing.assert_array_equal(y.get(), x + 1)
    owner.close()


def test_the_rest_of_its_calls_are_skipped_and_the_first_of_the_graph_is_raised(context):
    calls = []

    def first(dst, a, ith, nth):
        calls.append("first")
        raise KeyError("first")

    def second(dst, a, ith, nth):
        calls.append("second")
        raise KeyError("second")

    with ggml.device("CPU").init(n_threads=1) as cpu:
        y = context.map_custom1(context.from_numpy(array(4)), first, n_tasks=-1)
        with pytest.raises(KeyError, match="first"):
            compute(cpu, context.map_custom1(y, second))
        assert calls == ["first", "second"]
        raw = context.new_graph()
        raw.build_forward_expand(y)
        for _ in range(3):  # through lib nobody raises it, and only the first call is made
            ggml.lib.ggml_backend_graph_compute(cpu.ptr, raw.ptr)
        assert calls == ["first", "second", "first"]
        with pytest.raises(KeyError, match="first"):
            cpu.compute(raw)
        assert calls == ["first", "second", "first", "first"]


def test_one_graphs_exception_is_not_raised_from_another(cpu, context):
    x = array(4)
    a = context.from_numpy(x)

    def good(dst, a, ith, nth):
        dst[:] = a

    bad, fine = context.map_custom1(a, fail), context.map_custom1(a, good)
    context.alloc(cpu)
    graphs = [context.new_graph(), context.new_graph()]
    for graph, tensor in zip(graphs, (bad, fine), strict=True):
        graph.build_forward_expand(tensor)
    ggml.lib.ggml_backend_graph_compute(cpu.ptr, graphs[0].ptr)
    cpu.compute(graphs[1])
    np.testing.assert_array_equal(fine.get(), x)
    with pytest.raises(RuntimeError, match="from the function"):
        cpu.compute(graphs[0])


def test_ctrl_c_in_a_function_comes_out(context):
    def interrupted(dst, a, ith, nth):
        signal.raise_signal(signal.SIGINT)

    with ggml.device("CPU").init(n_threads=1) as cpu:
        y = context.map_custom1(context.from_numpy(array(4)), interrupted)
        with pytest.raises(KeyboardInterrupt):
            compute(cpu, y)


def test_an_abort_in_a_function_is_an_ordinary_exception(cpu, context):
    a = context.from_numpy(array(4))

    def wrong(dst, a_array, ith, nth):
        context.reshape_1d(a, 5)

    with pytest.raises(ggml.AbortError, match="ggml_reshape_1d"):
        compute(cpu, context.map_custom1(a, wrong))


def test_with_an_eval_callback_that_raises_too(cpu, context):
    y = context.map_custom1(context.from_numpy(array(4)), fail)
    context.alloc(cpu)
    graph = context.new_graph()
    graph.build_forward_expand(y)

    def watch(tensor, ask):
        if ask:
            return True
        raise KeyError("from the callback")

    with ggml.Scheduler([cpu]) as scheduler:
        scheduler.set_eval_callback(watch)
        with pytest.raises(KeyError, match="from the callback"):
            scheduler.compute(graph)
        scheduler.set_eval_callback(None)
        with pytest.raises(RuntimeError, match="from the function"):
            scheduler.compute(graph)


# --- lifetime


def test_the_context_holds_the_function_until_it_is_closed(cpu):
    class Scale:
        def __call__(self, dst, a, ith, nth):
            dst[:] = a * 2

    x, fun = array(4), Scale()
    alive = weakref.ref(fun)
    context = ggml.Context()
    y = context.map_custom1(context.from_numpy(x), fun)
    del fun
    gc.collect()
    np.testing.assert_array_equal(compute(cpu, y)[0], x * 2)
    assert alive() is not None
    context.close()
    gc.collect()
    assert alive() is None


def test_a_context_that_is_dropped_goes_with_its_functions():
    def fun(dst, a, ith, nth): ...

    context = ggml.Context()
    context.map_custom1(context.new_tensor("f32", 4), fun)
    alive, gone = weakref.ref(fun), weakref.ref(context)
    del context
    assert gone() is None  # at once, not when Python collects
    del fun
    gc.collect()
    assert alive() is None


# --- wrong arguments


def good(dst, a, ith, nth): ...


@pytest.mark.parametrize("n_tasks", [0, -2, -100])
def test_n_tasks_is_at_least_one_or_all(context, n_tasks):
    a = context.new_tensor("f32", 4)
    with pytest.raises(ggml.ArgumentError, match=rf"n_tasks={n_tasks}: .* 1 to 2,147,.*, or -1"):
        context.map_custom1(a, good, n_tasks=n_tasks)
    with pytest.raises(ggml.ArgumentError, match="n_tasks"):
        context.custom_inplace(a, [], good, n_tasks)


def test_wrong_types_say_what_was_expected(context):
    a, q = context.new_tensor("f32", 32), context.new_tensor("q8_0", 32, name="w")
    with pytest.raises(TypeError, match="expected a function, got int"):
        context.map_custom1(a, 1)
    with pytest.raises(TypeError, match=r"called as fun\(dst, a, ith, nth\).*too many"):
        context.map_custom1(a, lambda dst, a: None)
    with pytest.raises(TypeError, match=r"called as fun\(dst, a, b, ith, nth\).*missing"):
        context.map_custom2(a, a, lambda dst, a, b, ith, nth, more: None)
    with pytest.raises(TypeError, match="expected a Tensor, got ndarray"):
        context.map_custom1(np.ones(3), good)
    with pytest.raises(TypeError, match="expected a Tensor, got int"):
        context.custom_4d("f32", 1, 1, 1, 1, [a, 3], good)
    with pytest.raises(TypeError, match="n_tasks: expected an int, got float"):
        context.map_custom1(a, good, n_tasks=1.5)
    with pytest.raises(ggml.ArgumentError, match=r"source 'w' is q8_0.*numpy lacks.*cast"):
        context.map_custom1(q, good)
    with pytest.raises(ggml.ArgumentError, match="the result is bf16"):
        context.custom_4d("bf16", 1, 1, 1, 1, [a], good)
    with pytest.raises(ggml.ArgumentError, match="ne1=-1: expected at least 0"):
        context.custom_4d("f32", 1, -1, 1, 1, [a], good)
    with pytest.raises(ggml.ArgumentError, match="fits in memory"):
        context.custom_4d("f32", 1 << 31, 1 << 31, 1, 1, [a], good)
    with pytest.raises(ggml.ArgumentError, match="10 sources: a custom op takes at most 9"):
        context.custom_4d("f32", 1, 1, 1, 1, [a] * 10, good)
    with pytest.raises(ggml.ArgumentError, match="10 sources"):
        context.custom_inplace(a, [a] * 9, good)
    assert [t for t in context if t.op != ggml.enums.Op.NONE] == []


def test_sources_of_a_closed_context_are_refused(context):
    other = ggml.Context()
    a = other.new_tensor("f32", 4)
    other.close()
    with pytest.raises(ggml.ClosedError):
        context.map_custom1(a, good)

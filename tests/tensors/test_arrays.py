"""Arrays of from_numpy arrive wherever their tensors get memory; arrays have the tensor's shape."""

import numpy as np
import pytest

import ggml_py as ggml


@pytest.fixture(name="cpu")
def _cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


A = np.arange(32, dtype=np.float32) / 32


def _chain(ctx, x, n=6):
    """Ops whose results need the memory of one another, and of what is not needed any more."""
    y = ctx.sqr(x)
    for _ in range(n):
        y = ctx.add(ctx.sqr(y), y)
    return y


def _chained(x, n=6):
    y = np.square(x)
    for _ in range(n):
        y = np.square(y) + y
    return y


def _graph(ctx, *results):
    graph = ctx.new_graph(64)
    graph.build_forward_expand(*results)
    return graph


@pytest.mark.parametrize("first", ["compute", "alloc_graph", "reserve"])
def test_in_a_schedulers_memory(first, cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as scheduler:
        x = ctx.from_numpy(A, "x")
        y = _chain(ctx, x)
        graph = _graph(ctx, y)
        getattr(scheduler, first)(graph)
        for _ in range(3):
            scheduler.compute(graph)
            np.testing.assert_allclose(y.get(), _chained(A), rtol=1e-5)
            np.testing.assert_array_equal(x.get(), A)
        scheduler.reset()
        scheduler.alloc_graph(graph)
        np.testing.assert_array_equal(x.get(), A)
        x.set(A / 2)
        for _ in range(2):
            scheduler.compute(graph)
            np.testing.assert_allclose(y.get(), _chained(A / 2), rtol=1e-5)
        scheduler.reset()
        scheduler.compute(graph)
        np.testing.assert_allclose(y.get(), _chained(A), rtol=1e-5)
        scheduler.reset()


@pytest.mark.parametrize("parallel", [False, True])
def test_in_a_devices_memory_and_in_a_copy_there(sims, parallel, cpu):
    with sims().init(n_threads=1) as gpu, ggml.Context() as ctx, ggml.Context() as weights:
        w = weights.from_numpy(2 * A, "w")
        weights.alloc(gpu, usage="weights")
        x, given = ctx.from_numpy(A, "x"), ctx.from_numpy(A + 1, "in")
        given.set_input()  # on the CPU, and copied
        y = ctx.mul(ctx.add(_chain(ctx, x), given), w)
        graph = _graph(ctx, y)
        with ggml.Scheduler([gpu, cpu], parallel=parallel) as scheduler:
            for _ in range(5):
                scheduler.compute(graph)
                plan = scheduler.plan(graph)
                assert plan.node(y.name).backend == "gpu0" and plan.copies
                np.testing.assert_allclose(y.get(), (_chained(A) + A + 1) * 2 * A, rtol=1e-5)
                scheduler.reset()


def test_in_an_allocators_memory(cpu):
    with ggml.Context() as ctx, ggml.GraphAllocator(cpu.buffer_type) as allocator:
        x, z = ctx.from_numpy(A, "x"), ctx.from_numpy(A[::-1], "z")
        y, other = _chain(ctx, x), _chain(ctx, z)
        graph, another = _graph(ctx, y), _graph(ctx, other)
        assert allocator.measure(graph)[0] > 0
        for each, result, want in (graph, y, A), (graph, y, A), (another, other, A[::-1]):
            allocator.alloc_graph(each)
            for _ in range(2):
                cpu.compute(each)
                np.testing.assert_allclose(result.get(), _chained(want), rtol=1e-5)


def test_one_tensor_after_the_other(cpu):
    with ggml.Context() as ctx, cpu.buffer_type.alloc(4096) as buffer:
        x, y, z = (ctx.from_numpy(A + i) for i in range(3))
        y.alloc(buffer, 1024)
        ggml.TensorAllocator(buffer).alloc(x)
        ggml.lib.ggml_backend_tensor_alloc(
            buffer.ptr, z.ptr, ggml.lib.ggml_backend_buffer_get_base(buffer.ptr) + 2048
        )  # nobody is told
        assert [t.get()[0] for t in (x, y, z)] == [0, 1, 2]
        assert not ctx._arrays


def test_a_view_reads_the_array_too(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as scheduler:
        x = ctx.from_numpy(A, "x")
        x.set_input()
        part = ctx.view_1d(x, 8, 32)
        graph = _graph(ctx, ctx.sqr(part))
        scheduler.alloc_graph(graph)
        np.testing.assert_array_equal(part.get(), A[8:16])


def test_what_the_graph_of_another_context_reads(cpu):
    with ggml.Context() as ctx, ggml.Context() as more, ggml.Scheduler([cpu]) as scheduler:
        x = ctx.from_numpy(A)
        y = more.sqr(x)
        scheduler.compute(_graph(more, y))
        np.testing.assert_array_equal(y.get(), np.square(A))


def test_a_leaf_without_an_array_still_has_to_be_set(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as scheduler:
        x, b = ctx.from_numpy(A), ctx.new_tensor("f32", 32, name="b")
        graph = _graph(ctx, ctx.add(x, b))
        with pytest.raises(ggml.NoDataError, match=r"leaf 'b' .*alloc_graph first"):
            scheduler.compute(graph)


def test_an_array_is_the_array_of_then(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as scheduler:
        array = A.copy()
        y = ctx.sqr(ctx.from_numpy(array))
        array[:] = 7
        scheduler.compute(_graph(ctx, y))
        np.testing.assert_array_equal(y.get(), np.square(A))


def test_quantised_and_empty_arrays(cpu):
    with ggml.Context() as ctx, ggml.Scheduler([cpu]) as scheduler:
        w = ctx.from_numpy(np.eye(32, dtype=np.float32), type="q8_0")
        empty = ctx.from_numpy(np.zeros((0, 32), np.float32))
        y = ctx.mul_mat(w, ctx.from_numpy(A))
        scheduler.compute(_graph(ctx, y, ctx.sqr(empty)))
        np.testing.assert_allclose(y.get(), A, atol=0.01)


def test_in_the_graph_of_an_optimizer(cpu):
    with ggml.Context() as params, ggml.Context() as ctx, ggml.Scheduler([cpu]) as scheduler:
        w = params.from_numpy(np.ones((1, 2), np.float32))
        w.set_param()
        params.alloc(cpu)
        x = ctx.new_tensor("f32", 2, 4)
        x.set_input()
        shift = ctx.from_numpy(np.full((4, 1), 3, np.float32), "shift")
        out = ctx.add(ctx.mul_mat(w, x), shift)
        graph = _graph(ctx, out)
        with ggml.OptContext(scheduler, loss_type="mean", build_type="forward") as opt:
            opt.prepare_alloc(graph, x, out)
            opt.alloc(backward=False)
            opt.inputs.set(np.ones((4, 2)))
            opt.eval()
            np.testing.assert_array_equal(out.get(), np.full((4, 1), 5))


# --- shapes

FITS = [
    ((8,), (8,)), ((8,), (1, 8)), ((8,), (1, 1, 1, 1, 8)), ((1,), ()), ((1,), (1,)),
    ((1, 1, 1), (1, 1)), ((4, 3), (3, 4)), ((4, 3), (1, 3, 4)), ((4, 1, 3), (3, 1, 4)),
    ((1, 3), (3, 1)), ((2, 3, 4, 5), (5, 4, 3, 2)), ((0, 3), (3, 0)),
]  # fmt: skip
WRONG = [
    ((4, 3), (12,)), ((4, 3), (4, 3)), ((4, 3), (6, 2)), ((4, 3), (3, 4, 1)), ((1, 3), (3,)),
    ((8,), (8, 1)), ((2, 3, 4), (4, 6)), ((2, 2, 3), (2, 3, 2)), ((8,), (7,)), ((8,), ()),
    ((0, 3), (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("ne", "shape"), FITS)
def test_shapes_that_fit(ne, shape):
    with ggml.Context() as ctx:
        x = ctx.new_tensor("f32", *ne)
        ctx.alloc("CPU")
        if not x.nbytes:
            return
        values = np.random.default_rng(0).random(shape).astype(np.float32)
        x.set(values)
        np.testing.assert_array_equal(x.get().reshape(shape), values)
        out = np.zeros(shape, np.float32)
        assert x.get(out=out) is out
        np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize(("ne", "shape"), WRONG)
def test_shapes_that_do_not_fit_are_refused_alike(ne, shape, tmp_path):
    with ggml.Context() as ctx:
        x = ctx.new_tensor("f32", *ne, name="x")
        one = ctx.new_tensor("f32", 1)
        ctx.alloc("CPU").clear()
        one.set(1)
        array = np.zeros(shape, np.float32)
        messages = []
        calls = [
            lambda: x.set(array),
            lambda: x.get(out=array),
            lambda: ggml.write_gguf(tmp_path / "a.gguf", {}, [("x", array, "f32", ne)]),
        ]
        for call in calls if x.nbytes else calls[2:]:
            with pytest.raises((ggml.ArgumentError, ggml.GgufError)) as raised:
                call()
            messages.append(str(raised.value).replace("out: ", "").replace(", 1, 1]", "]"))
        n, size = int(np.prod(ne)), int(np.prod(shape))
        for message in messages:
            assert f"= {n} elements, the array has shape {shape} = {size}: expected" in message
            assert ("array.reshape(" in message) == (n == size)


def test_parts_are_runs_or_rows():
    with ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 4, 3, 2, name="x")
        ctx.alloc("CPU")
        x.set(np.zeros((2, 3, 4)))
        x.set(np.ones((2, 4)), offset=4)
        x.set(np.full((1, 3, 4), 2), offset=12)
        x.set(np.full(3, 9), offset=1)
        assert x.get().reshape(6, 4)[:, 1].tolist() == [9, 1, 1, 2, 2, 2]
        for shape in (4, 2), (2, 2), (3, 1, 4):
            with pytest.raises(ggml.ArgumentError, match=r"whole\s+rows, shape \(n, 4\)"):
                x.set(np.zeros(shape), offset=4)


def test_parts_begin_where_a_row_or_a_plane_begins():
    with ggml.Context() as ctx:
        x = ctx.new_tensor("f32", 4, 3, 2, name="x")
        q = ctx.new_tensor("q8_0", 32, 2, name="q")
        ctx.alloc("CPU")
        x.set(np.zeros((2, 3, 4)))
        for shape, offset, begins in (
            ((2, 4), 2, "a row starts: expected a multiple of 4"),
            ((1, 4), 2, "a row starts: expected a multiple of 4"),
            ((1, 1, 4), 1, "a row starts: expected a multiple of 4"),
            ((1, 3, 4), 4, r"shape \[3, 4\] starts: expected a multiple of 12"),
        ):
            with pytest.raises(ggml.ArgumentError, match=f"offset {offset} does not.*{begins}"):
                x.set(np.ones(shape), offset=offset)
        assert not x.get().any()
        x.set(np.ones((1, 2, 4)), offset=8)  # two rows: ones in front do not count
        x.set(np.full((1, 3), 2), offset=1)
        assert x.get().reshape(6, 4)[:, 1].tolist() == [2, 0, 1, 1, 0, 0]
        q.set(np.zeros((2, 32)))
        q.set(np.ones((1, 32)), offset=32)
        assert q.get().any(axis=1).tolist() == [False, True]


def test_an_offset_of_nothing_is_an_offset():
    with ggml.Context() as ctx:
        x, q = ctx.new_tensor("f32", 4, 3), ctx.new_tensor("q8_0", 64, 2)
        ctx.alloc("CPU")
        x.set(np.zeros((3, 4)), offset=0)
        q.set(np.zeros((2, 64)), offset=0)
        x.set(np.ones(4), offset=0)
        x.set([[5, 6, 7, 8]], offset=np.int64(0))
        x.set([9], 0)
        q.set(np.ones((1, 64)), offset=0)
        assert x.get().tolist() == [[9, 6, 7, 8], [0] * 4, [0] * 4]
        assert q.get().any(axis=1).tolist() == [True, False]
        for tensor in (x, q):
            with pytest.raises(ggml.ArgumentError, match="elements, the array has shape"):
                tensor.set(np.ones(tensor.ne[0]))


@pytest.mark.parametrize("array", [np.ones(3), [1.0, 2.0], 0.5])
def test_an_array_of_float64_says_what_to_do(array, cpu):
    with ggml.Context() as ctx:
        with pytest.warns(UserWarning, match=r"'x' is f64.*pass type='f32'"):
            wide = ctx.from_numpy(array, "x")
        graph = _graph(ctx, ctx.sqr(wide))
        ctx.alloc(cpu)
        with pytest.raises(ggml.AbortError, match=r"'x' is f64, .*type='f32'"):
            cpu.compute(graph)


@pytest.mark.parametrize(("dtype", "type_"), [("f8", "f64"), ("f8", "f32"), ("i4", None)])
def test_what_was_meant_gives_no_warning(dtype, type_, recwarn):
    with ggml.Context() as ctx:
        ctx.from_numpy(np.ones(3, dtype), type=type_)
    assert recwarn.list == []

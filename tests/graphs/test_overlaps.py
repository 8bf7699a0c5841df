"""Results over what they are made from: refused where the numbers would be a matter of chance,
computed where each element is read before it is written. On the build before, every one of
`REFUSED` gave other numbers than numpy, most of them others with more threads."""

import numpy as np
import pytest

import ggml_py as ggml

N = 4096


def _part(ctx, a, start, n):
    return ctx.view_1d(a, n, 4 * start)


def _square(ctx, a):
    return ctx.reshape_2d(a, 64, 64)


def _rows(ctx, a, *ids):
    """The first rows of `a`, put where `ids` say."""
    square, n = _square(ctx, a), len(ids)
    where = ctx.from_numpy(np.array(ids, np.int32))
    return ctx.set_rows(square, ctx.view_2d(square, 64, n, 256, 0), where)


def _interleaved(ctx, a, q=0, k=16):
    """Heads of 8 in rows of 64: 16 numbers of each row, and the same of others."""
    q, k = (ctx.view_3d(a, 8, 2, 64, 32, 256, 4 * at) for at in (q, k))
    return ctx.add_inplace(q, k)


REFUSED = {
    "cpy-up": lambda c, a: c.cpy(_part(c, a, 0, N - 1), _part(c, a, 1, N - 1)),
    "cpy-down": lambda c, a: c.cpy(_part(c, a, 1, N - 1), _part(c, a, 0, N - 1)),
    "cpy-transposed": lambda c, a: c.cpy(c.transpose(_square(c, a)), _square(c, a)),
    "cpy-apart": lambda c, a: c.cpy(c.view_2d(a, 1, N // 2, 4, 0), c.view_2d(a, 1, N // 2, 8, 0)),
    "cpy-into-one-row": lambda c, a: c.cpy(
        c.view_2d(a, 64, 8, 256, 4096), c.view_2d(a, 64, 8, 0, 0)
    ),
    "set": lambda c, a: c.set_1d_inplace(a, _part(c, a, 0, N - 1), 4),
    "acc": lambda c, a: c.acc_inplace(a, _part(c, a, 0, N - 1), 4 * N, 4 * N, 4 * N, 4),
    "add-next": lambda c, a: c.add_inplace(_part(c, a, 1, N - 1), _part(c, a, 0, N - 1)),
    "add-transposed": lambda c, a: c.add_inplace(_square(c, a), c.transpose(_square(c, a))),
    "mul-own-row": lambda c, a: c.mul_inplace(_square(c, a), _part(c, a, 0, 64)),
    "add-own-number": lambda c, a: c.add_inplace(a, _part(c, a, 7, 1)),
    "add1-own-number": lambda c, a: c.add1_inplace(a, _part(c, a, 7, 1)),
    "sqr-of-one-row": lambda c, a: c.sqr_inplace(c.view_2d(a, 64, 8, 0, 0)),
    "set_rows-among-them": lambda c, a: _rows(c, a, 3, 2, 1, 0),
    "interleaved-heads": lambda c, a: _interleaved(c, a, 0, 8),
}


def _set(a, value, *where):
    a[where] = value
    return a


def _numpy_interleaved(a):
    rows = a.reshape(64, 64)
    rows[:, :16] += rows[:, 16:32]
    return a


COMPUTED = {
    "halves": (
        lambda c, a: c.cpy(_part(c, a, 0, N // 2), _part(c, a, N // 2, N // 2)),
        lambda a: _set(a, a[: N // 2], slice(N // 2, N)),
    ),
    "onto-itself": (lambda c, a: c.cpy(a, _square(c, a)), lambda a: a),
    "set-from-the-end": (
        lambda c, a: c.set_1d_inplace(a, _part(c, a, N - 64, 64), 0),
        lambda a: _set(a, a[N - 64 :], slice(0, 64)),
    ),
    "add-itself": (lambda c, a: c.add_inplace(a, a), lambda a: a + a),
    "interleaved": (_interleaved, _numpy_interleaved),
    "even-and-odd": (
        lambda c, a: c.cpy(c.view_2d(a, 1, N // 2, 8, 4), c.view_2d(a, 1, N // 2, 8, 0)),
        lambda a: _set(a, a[1::2], slice(0, N, 2)),
    ),
    "set_rows-beyond": (
        lambda c, a: _rows(c, a, 9, 8, 7),
        lambda a: _set(a, a.reshape(64, 64)[[2, 1, 0]].ravel(), slice(7 * 64, 10 * 64)),
    ),
    "transposed-in-place": (
        lambda c, a: c.sqr_inplace(c.permute(c.reshape_3d(a, 64, 8, 8), 0, 2, 1, 3)),
        lambda a: a * a,
    ),
}


def _computed(make, n_threads):
    values = np.random.default_rng(0).random(N, np.float32)
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=n_threads) as cpu:
        a = ctx.from_numpy(values)
        graph = ctx.new_graph(16)
        graph.build_forward_expand(make(ctx, a))
        ctx.alloc(cpu)
        cpu.compute(graph)
        return values, a.get()


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_a_matter_of_chance_is_refused(name):
    with pytest.raises(ggml.AbortError, match=r"not overwrite src|elements do not overlap"):
        _computed(REFUSED[name], 2)


@pytest.mark.parametrize("n_threads", [1, 4])
@pytest.mark.parametrize("name", COMPUTED)
def test_what_each_element_is_read_for_first_is_computed(name, n_threads):
    make, expected = COMPUTED[name]
    before, after = _computed(make, n_threads)
    np.testing.assert_allclose(after, expected(before.copy()), rtol=1e-5)


def test_a_graph_that_was_computed_is_looked_at_again_where_it_may_be_another():
    """What was found stands while nothing changes; ids are data, and change without a word."""
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=2) as cpu:
        a = ctx.from_numpy(np.zeros(N, np.float32))
        where = ctx.from_numpy(np.array([9, 8, 7], np.int32))
        square = _square(ctx, a)
        rows = ctx.set_rows(square, ctx.view_2d(square, 64, 3, 256, 0), where)
        graph = ctx.new_graph(16)
        graph.build_forward_expand(rows)
        ctx.alloc(cpu)
        for _ in range(3):
            cpu.compute(graph)
        where.set(np.array([2, 1, 0], np.int32))
        with pytest.raises(ggml.AbortError, match="not overwrite src"):
            cpu.compute(graph)
        graph.clear()
        graph.build_forward_expand(ctx.sqr_inplace(a))
        for _ in range(3):
            cpu.compute(graph)
        graph.clear()
        graph.build_forward_expand(ctx.add_inplace(_part(ctx, a, 1, 8), _part(ctx, a, 0, 8)))
        with pytest.raises(ggml.AbortError, match="not overwrite src"):
            cpu.compute(graph)


def test_a_compute_within_a_compute_is_looked_at():
    failed = []
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        a, b = (ctx.from_numpy(np.ones(N, np.float32)) for _ in range(2))
        inner, outer = ctx.new_graph(16), ctx.new_graph(16)
        inner.build_forward_expand(ctx.add_inplace(_part(ctx, a, 1, 8), _part(ctx, a, 0, 8)))

        def compute(*_args):
            with ggml.device("CPU").init(n_threads=1) as other:
                try:
                    other.compute(inner)
                except ggml.AbortError as error:
                    failed.append(str(error))

        outer.build_forward_expand(ctx.sqr(ctx.map_custom1(b, compute)))
        ctx.alloc(cpu)
        for n in range(1, 4):
            cpu.compute(outer)
            assert len(failed) == n and "not overwrite src" in failed[-1]


def test_tensors_put_on_top_of_each_other():
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=2) as cpu:
        x, w = ctx.new_tensor("f32", 64, 64), ctx.new_tensor("f32", 64, 64)
        y = ctx.mul_mat(w, x)
        buffer = cpu.buffer_type.alloc(1 << 16)
        for t, at in ((x, 0), (w, 16384), (y, 0)):
            t.alloc(buffer, at)
        graph = ctx.new_graph(8)
        graph.build_forward_expand(y)
        with pytest.raises(ggml.AbortError, match=r"not overwrite src\[1\]"):
            cpu.compute(graph)


@pytest.mark.parametrize("op", ["add_id", "soft_max_ext_back", "rms_norm_back", "silu_back"])
def test_an_operand_whose_place_the_allocator_uses_again(op):
    """Only b is free: add_id got wrong numbers, in older releases the next two."""
    rng = np.random.default_rng(1)
    first, second = (rng.random((6, 8), np.float32) for _ in range(2))

    def make(ctx, a, b):
        if op == "add_id":
            return ctx.add_id(a, b, ctx.from_numpy(np.array([[5, 4, 3, 2, 1, 0]], np.int32)))
        more = {"soft_max_ext_back": (1.0, 0.0), "rms_norm_back": (1e-6,)}
        return getattr(ctx, op)(a, b, *more.get(op, ()))

    results = []
    for scheduled in (False, True):
        with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
            a, b = ctx.from_numpy(first), ctx.from_numpy(second)
            y = make(ctx, a, ctx.scale(b, 2.0))
            y.set_output()
            graph = ctx.new_graph(16)
            graph.build_forward_expand(y)
            if scheduled:
                with ggml.Scheduler([cpu]) as sched:
                    sched.alloc_graph(graph)
                    sched.compute(graph)
                    results.append(y.get())
            else:
                ctx.alloc(cpu)
                cpu.compute(graph)
                results.append(y.get())
    np.testing.assert_array_equal(*results)


def test_a_norm_with_memory_of_its_own_can_be_read():
    """The CPU fused it with the mul behind it, and never wrote it."""
    values = np.random.default_rng(2).random((4, 64), np.float32)
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=2) as cpu:
        norm = ctx.rms_norm(ctx.from_numpy(values), 1e-6)
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.mul(norm, ctx.from_numpy(values[0])))
        ctx.alloc(cpu)
        cpu.compute(graph)
        expected = values / np.sqrt((values**2).mean(1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(norm.get(), expected, rtol=1e-5)


def _drawn_view(rng, ctx, a, ne):
    """A view of that shape at random, and the elements of `a` it has."""
    strides = [1, *rng.choice([0, 1, 2, 3, 8, 16, 24, 64], 2)]
    extent = 1 + sum((n - 1) * s for n, s in zip(ne, strides, strict=True))
    start = int(rng.integers(0, max(2048 - max(extent, np.prod(ne)) >> int(rng.integers(6)), 1)))
    view = ctx.view_3d(a, *ne, 4 * int(strides[1]), 4 * int(strides[2]), 4 * start)
    parts = np.meshgrid(*map(np.arange, ne), indexing="ij")
    return view, start + sum(s * i for s, i in zip(strides, parts, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_views_at_random_are_refused_if_and_only_if_they_overlap(seed):
    """Against the sets of their elements."""
    ended = {"refused": 0, "computed": 0}
    rng = np.random.default_rng(seed)
    values = rng.random(2048, np.float32)
    with ggml.device("CPU").init(n_threads=2) as cpu:
        for _ in range(60):
            ne = [int(n) for n in rng.choice([1, 2, 3, 8], 3)]
            with ggml.Context() as ctx:
                a = ctx.from_numpy(values)
                into, to = _drawn_view(rng, ctx, a, ne)
                what, of = _drawn_view(rng, ctx, a, ne)
                graph = ctx.new_graph(8)
                graph.build_forward_expand(ctx.cpy(what, into))
                ctx.alloc(cpu)
                again = len(np.unique(to)) < to.size
                shared = np.intersect1d(to, of).size and not np.array_equal(to, of)
                if again or shared:
                    with pytest.raises(ggml.AbortError, match=r"overwrite src|do not overlap"):
                        cpu.compute(graph)
                    assert np.array_equal(a.get(), values)
                else:
                    cpu.compute(graph)
                    expected = values.copy()
                    expected[to.ravel()] = values[of.ravel()]
                    assert np.array_equal(a.get(), expected)
                ended["refused" if again or shared else "computed"] += 1
    assert min(ended.values()) > 5, ended

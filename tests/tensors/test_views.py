"""Views and their sources get memory in any order; an alloc that fails half-way keeps nothing."""

import itertools

import numpy as np
import pytest

import ggml_py as ggml

A = np.arange(16, dtype=np.float32)


@pytest.fixture(name="cpu")
def _cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


GIVEN = {
    "context": lambda c, x, cpu, held: c.alloc(cpu),
    "tensor": lambda c, x, cpu, held: x.alloc(held(cpu.buffer_type.alloc(4096))),
    "allocator": lambda c, x, cpu, held: ggml.TensorAllocator(
        held(cpu.buffer_type.alloc(4096))
    ).alloc(x),
    "lib": lambda c, x, cpu, held: ggml.lib.ggml_backend_tensor_alloc(
        (b := held(cpu.buffer_type.alloc(4096))).ptr, x.ptr,
        ggml.lib.ggml_backend_buffer_get_base(b.ptr),
    ),
}  # fmt: skip


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("order", list(itertools.permutations(["view", "source", "views"], 3)))
def test_every_order_works(given, order, more, cpu):
    with ggml.Context() as c, ggml.Context() as d:
        buffers = []

        def held(buffer):
            buffers.append(buffer)
            return buffer

        x = c.new_tensor("f32", 16, name="x")
        other = d.new_tensor("f32", 4) if more else None  # something to allocate beside the view
        views = []
        for step in order:
            if step == "view":
                views.append(d.view_1d(x, 8, 16))
                views.append(d.view_1d(d.reshape_2d(views[-1], 4, 2), 4, 16))
            elif step == "source":
                GIVEN[given](c, x, cpu, held)
            else:
                d.alloc(cpu)
        x.set(A)
        assert views[0].get().tolist() == A[4:12].tolist()
        np.testing.assert_array_equal(views[1].numpy(), A[8:12])
        views[1].set(np.zeros(4))
        assert x.get().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 12, 13, 14, 15]
        y = d.sqr(views[0])
        graph = d.new_graph(16)
        graph.build_forward_expand(y)
        with ggml.Scheduler([cpu]) as scheduler:
            scheduler.compute(graph)
            assert y.get()[:4].tolist() == [16, 25, 36, 49]
        assert other is None or other.buffer is not None
        for buffer in buffers:
            buffer.close()


def test_a_view_follows_its_source_from_place_to_place(cpu):
    with ggml.Context() as c, ggml.Scheduler([cpu]) as scheduler:
        x = c.new_tensor("f32", 16, name="x")
        y = c.sqr(x)
        graph = c.new_graph(16)
        graph.build_forward_expand(y)
        early = c.view_1d(x, 8, 32)
        scheduler.alloc_graph(graph)
        x.set(A)
        lent = c.view_1d(x, 8, 32)
        for view in early, lent:
            assert view.get().tolist() == A[8:].tolist()
        scheduler.reset()
        for view in early, lent:
            with pytest.raises(ggml.NoDataError):
                view.get()
        with cpu.buffer_type.alloc(8192) as buffer:
            x.alloc(buffer, 4096)
            x.set(A + 1)
            for view in early, lent:
                assert view.get().tolist() == (A[8:] + 1).tolist()
                assert view.buffer == buffer
        for view in early, lent:
            with pytest.raises(ggml.NoDataError):
                view.numpy()
        c.alloc(cpu)
        x.set(A + 2)
        assert early.get().tolist() == lent.get().tolist() == (A[8:] + 2).tolist()


@pytest.mark.parametrize("n", [1, 3])
def test_an_alloc_that_aborts_half_way_keeps_nothing(n, sims):
    sim = sims(max_size=1024 if n > 1 else None)
    with ggml.Context() as c, sim.buffer_type.alloc(64) as foreign:
        tensors = [c.from_numpy(np.full(200, i, np.float32)) for i in range(n)]
        broken = c.new_tensor("f32", 8)
        broken.ptr.buffer = foreign.ptr  # upstream asserts that it has none
        free = sim.memory[0]
        with pytest.raises(ggml.AbortError, match="tensor->buffer == NULL"):
            c.alloc(sim.buffer_type)
        assert sim.memory[0] == free and sim._in_use() == "1 buffer"
        for tensor in tensors:
            assert tensor.buffer is None
            with pytest.raises(ggml.NoDataError):
                tensor.get()
        broken.ptr.buffer = ggml.ffi.NULL
        c.alloc(sim.buffer_type)
        assert [t.get()[0] for t in tensors] == list(range(n))


def test_an_alloc_without_room_keeps_nothing(sims):
    sim = sims(memory=2000, max_size=1024)
    with ggml.Context() as c:
        tensors = [c.new_tensor("f32", 200) for _ in range(3)]
        with pytest.raises(ggml.AllocError):
            c.alloc(sim.buffer_type)
        assert sim.memory[0] == 2000
        assert all(t.buffer is None for t in tensors)
        for tensor in tensors:
            with pytest.raises(ggml.NoDataError):
                tensor.set(np.zeros(200))

"""Contexts' memory: warm from one to the next, bounded, no more than the process may have."""

import mmap
import sys
import threading

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary import arena as _arena
from ggml_py.boundary.ffi import ffi


@pytest.fixture(autouse=True)
def no_blocks():
    kept = _arena._kept[:]
    _arena._kept.clear()
    yield
    _arena._kept[:] = kept


def test_a_closed_contexts_memory_serves_the_next_one_when_nobody_has_it():
    with ggml.Context() as first:
        a = first.new_tensor("f32", 4)
    place = int(ggml.ffi.cast("uintptr_t", a._ptr))
    with ggml.Context() as second:
        b = second.new_tensor("f32", 4)
        assert b != a  # another thread may read it still
        with pytest.raises(ggml.ClosedError):
            first.add(a, a)
        with pytest.raises(ggml.ClosedError):
            second.add(a, a)
        with ggml.Context() as other:
            assert other.new_tensor("f32", 4) != b
    del first, a
    with ggml.Context() as third:
        assert int(ggml.ffi.cast("uintptr_t", third.new_tensor("f32", 4).ptr)) == place


def test_what_a_big_context_touched_is_given_back():
    with ggml.Context() as big:
        for _ in range(_arena._KEPT // 368 + 1000):
            last = big.new_tensor("f32", 1)
        offset = int(ggml.ffi.cast("uintptr_t", last.ptr)) - int(
            ggml.ffi.cast("uintptr_t", next(iter(big)).ptr)
        )
    assert not _arena._kept
    del big, last
    (block,) = _arena._kept
    assert offset > _arena._KEPT
    assert any(block[:4096])
    assert not any(block[_arena._KEPT : offset + 1000])  # fresh pages


def test_few_blocks_are_kept():
    for context in [ggml.Context() for _ in range(_arena._MAX_KEPT + 3)]:
        context.close()
    assert len(_arena._kept) == _arena._MAX_KEPT


def test_a_block_of_another_size_is_not_kept():
    with ggml.Context(reserve=1 << 16) as small:
        small.new_tensor("f32", 4)
    assert not _arena._kept


def test_dirty_memory_gives_clean_tensors_and_graphs():
    _arena._kept.append(mmap.mmap(-1, _arena.SIZE))
    _arena._kept[0][: 1 << 20] = b"\xa5" * (1 << 20)
    with ggml.Context() as context, ggml.device("CPU").init(n_threads=1) as cpu:
        a = context.from_numpy(np.arange(4, dtype=np.float32))
        assert (a.name, a.src, a.view_src, a.buffer) == ("", (), None, None)
        graph = context.new_graph(64)
        y = context.add(a, context.sqr(a))
        graph.build_forward_expand(y)
        with ggml.Scheduler([cpu]) as sched:
            context.alloc(cpu)
            sched.compute(graph)
            assert y.get().tolist() == [0, 2, 6, 12]


@pytest.mark.parametrize("reserve", [1 << 60, 1 << 47])
def test_more_address_space_than_there_is(reserve):
    with pytest.raises(ggml.AllocError, match="address space"):
        ggml.Context(reserve=reserve)


@pytest.mark.parametrize("reserve", [0, -1, 1 << 63])
def test_a_reserve_that_is_no_size(reserve):
    with pytest.raises(ggml.ArgumentError, match=r"reserve=.*expected"):
        ggml.Context(reserve=reserve)


def test_threads_can_build_in_one_context():
    # A context has no lock: what keeps two builders apart is the GIL, which ops do not give away.
    with ggml.Context() as context:
        a = context.new_tensor("f32", 1)

        def build():
            for _ in range(5000):
                context.add(a, a)

        threads = [threading.Thread(target=build) for _ in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert sum(1 for _ in context) == 20001


def test_results_of_a_size_that_no_offset_holds_are_refused():
    """Their bytes would wrap, and a small buffer would be written far beyond its end."""
    with ggml.Context() as ctx:
        one = ctx.new_tensor("f32", 1)
        with pytest.raises(ggml.AbortError, match="bytes"):
            ctx.repeat_4d(one, 1 << 31, 1 << 31, 1, 1)
        with pytest.raises(ggml.AbortError, match=r"ne\[0\]"):
            ctx.repeat_4d(one, 1 << 62, 1, 1, 1)
        with pytest.raises(ggml.AbortError, match="ggml_arange"):
            ctx.arange(0, 1e30, 1)
        assert ctx.repeat_4d(one, 1 << 20, 1 << 20, 1 << 10, 1).nbytes == 1 << 52


def test_empty_arrays_are_tensors_without_memory():
    with ggml.Context() as ctx:
        empty = ctx.from_numpy(np.zeros((0, 3), np.float32))
        ctx.alloc("CPU")
        assert empty.ne == (3, 0, 1, 1)
    with ggml.Context() as ctx:
        empty, full = ctx.from_numpy(np.zeros((0, 3), np.float32)), ctx.from_numpy([1, 2])
        ctx.alloc("CPU")
        assert full.get().tolist() == [1, 2] and empty.n_elements == 0


def test_a_buffer_that_is_kept_is_closed_with_the_context():
    """And takes the memory from its tensors where it is closed before."""
    for first in ("buffer", "context"):
        context, buffer = ggml.Context(), ggml.device("CPU").buffer_type.alloc(64)
        tensor = context.new_tensor("f32", 4)
        base = ggml.lib.ggml_backend_buffer_get_base(buffer.ptr)
        ggml.lib.ggml_backend_tensor_alloc(buffer.ptr, tensor.ptr, ffi.cast("char *", base))
        context.keep_buffer(buffer)
        tensor.set(np.arange(4, dtype=np.float32))
        assert tensor.get().tolist() == [0, 1, 2, 3]
        if first == "buffer":
            buffer.close()
            with pytest.raises(ggml.NoDataError, match="has no memory"):
                tensor.get()
        context.close()
        assert buffer.closed

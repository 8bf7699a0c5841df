"""Buffers above `BufferType.max_size`: upstream makes several, and one that stands for them."""

import contextlib
import gc

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.backends.buffer import _MEMORIES, memory_of
from ggml_py.boundary.ffi import ffi

LIMIT = 4096
N, SIZE = 5, 700  # floats: one tensor a buffer


@ffi.callback("size_t(void *)")
def _limit(_buft):
    return LIMIT


@contextlib.contextmanager
def small_buffers(buft):
    """Gives the CPU's buffer type, which has no limit, one."""
    # ggml-backend-impl.h: get_name, alloc_buffer, (since 0.25) alloc_buffer_n, which the CPU lacks,
    # get_alignment, get_max_size, which it lacks too.
    slots = ffi.cast("void **", buft.ptr)
    at = 4 if slots[2] == ffi.NULL else 3
    assert slots[at] == ffi.NULL
    slots[at] = ffi.cast("void *", _limit)
    try:
        assert buft.max_size == LIMIT
        yield
    finally:
        slots[at] = ffi.NULL


@pytest.fixture
def several():
    """Tensors, and the buffer that stands for theirs."""
    buft = ggml.device("CPU").buffer_type
    with ggml.Context() as context:
        arrays = [np.full(SIZE, i, np.float32) for i in range(N)]
        tensors = [context.from_numpy(a) for a in arrays]
        with small_buffers(buft):
            buffer = context.alloc(buft)
        yield context, tensors, buffer


def test_it_is_several(several):
    _, tensors, buffer = several
    pointers = (buffer.ptr, *(t.ptr.buffer for t in tensors))
    assert len({int(ffi.cast("uintptr_t", ptr)) for ptr in pointers}) == 1 + N


def test_size_host_and_clear(several):
    _, tensors, buffer = several
    assert buffer.size >= N * SIZE * 4
    assert buffer.is_host
    for i, tensor in enumerate(tensors):
        assert (tensor.get() == i).all()
    buffer.clear(0)
    assert not any(t.get().any() for t in tensors)
    buffer.usage = "weights"
    assert tensors[3].buffer.usage == "weights"


def test_tensors_know_their_buffer(several):
    _, tensors, buffer = several
    assert all(t.buffer == buffer for t in tensors)
    assert len({hash(t.buffer) for t in tensors}) == 1
    with ggml.Context() as other, pytest.raises(ggml.ArgumentError, match="expected a multiple"):
        other.new_tensor("f32", 4).alloc(buffer)  # it has no address


def test_closing_takes_the_memory_from_all(several):
    _, tensors, buffer = several
    buffer.close()
    for tensor in tensors:
        assert tensor.buffer is None
        with pytest.raises(ggml.NoDataError):
            tensor.get()


def test_arrays_keep_all_of_it(several):
    _, tensors, buffer = several
    seen = tensors[2].numpy()
    known = [int(ffi.cast("uintptr_t", t.ptr.buffer)) for t in tensors]
    assert memory_of(tensors[0].ptr.buffer) is memory_of(buffer.ptr)
    buffer.close()
    gc.collect()
    assert (seen == 2).all()
    seen[:] = 3
    del seen
    gc.collect()
    assert not any(address in _MEMORIES for address in known)

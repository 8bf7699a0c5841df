"""Native objects are made once, from pointers that are there."""

from __future__ import annotations

import copy
import gc
import pickle
import re

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import NULL, ffi
from ggml_py.boundary.handle import LIVE

from ..support.handle_kinds import KINDS, Stand


@pytest.fixture
def stand(tmp_path):
    stand = Stand(tmp_path)
    yield stand
    stand.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_second_init_is_refused_before_it_changes_anything(kind, stand):
    handle = KINDS[kind].make(stand)
    names = {name for cls in type(handle).__mro__ for name in getattr(cls, "__slots__", ())}
    names -= {"__weakref__", "__dict__"}
    before = {name: getattr(handle, name) for name in names if hasattr(handle, name)}
    for arguments in ((), (8,), (handle,), (None, None)):
        with pytest.raises(TypeError, match="is already made: make another"):
            handle.__init__(*arguments)
    assert {name: getattr(handle, name) for name in before} == before
    KINDS[kind].use(stand, handle)
    handle.close()


def test_what_a_second_init_would_have_dropped_is_still_there():
    """Custom ops and callbacks (the process ended), and arrays (zeros)."""
    with ggml.device("CPU").init(n_threads=2) as cpu, ggml.Context() as c:
        def twice(dst, a, _i, _n):
            dst[...] = a * 2

        y = c.map_custom1(c.from_numpy(np.ones(1000, np.float32)), twice)
        graph = c.new_graph(8)
        graph.build_forward_expand(y)
        with ggml.Scheduler([cpu]) as scheduler:
            asked = []
            scheduler.set_eval_callback(lambda t, ask: not asked.append(t.name))
            for handle, arguments in ((c, ()), (scheduler, ([cpu],))):
                with pytest.raises(TypeError):
                    handle.__init__(*arguments)
            gc.collect()
            scheduler.compute(graph)
            assert asked and (y.get() == 2).all()


def test_a_tensor_allocator_does_not_begin_again():
    with ggml.device("CPU").buffer_type.alloc(256) as buffer:
        allocator = ggml.TensorAllocator(buffer)
        with pytest.raises(TypeError, match="made already"):
            allocator.__init__(buffer)


POINTERS = {
    "Backend": "ggml_backend_t", "Event": "ggml_backend_event_t", "Buffer": "ggml_backend_buffer_t",
    "BufferType": "ggml_backend_buffer_type_t", "Device": "ggml_backend_dev_t",
    "Registry": "ggml_backend_reg_t", "Gguf": "struct gguf_context *",
    "Tensor": "struct ggml_tensor *",
}  # fmt: skip


@pytest.mark.parametrize("name", POINTERS)
def test_null_is_no_native_object(name):
    more = {"Backend": (ggml.device("CPU"), 1), "Event": (ggml.device("CPU"),), "Gguf": ("x", NULL)}
    with ggml.Context() as context:
        rest = (context,) if name == "Tensor" else more.get(name, ())
        for null in (NULL, ffi.cast(POINTERS[name], 0)):
            with pytest.raises(TypeError, match=f"got NULL. help.ggml_py.{name}. says how to"):
                getattr(ggml, name)(null, *rest)
    assert re.search(r"`\w+(\.\w+)?`", getattr(ggml, name).__doc__)  # it does


def test_two_handles_do_not_own_one_pointer():
    device = ggml.device("CPU")
    with device.init() as backend, device.buffer_type.alloc(64) as buffer:
        for make, owner in (
            (lambda: ggml.Backend(backend.ptr, device, 1), "Backend CPU"),
            (lambda: ggml.Buffer(buffer.ptr), "Buffer CPU, 64 bytes"),
        ):
            with pytest.raises(TypeError, match=f"<{owner}> owns that pointer; use it instead"):
                make()
        buffer.clear(1)
    for _ in range(20):  # the address comes again
        device.buffer_type.alloc(64).close()
        device.init().close()


def test_a_tensor_is_made_from_a_pointer_to_one():
    with ggml.Context() as context, pytest.raises(TypeError, match=r"to a tensor.*ggml_context"):
        ggml.Tensor(context.ptr, context)


def test_a_backend_that_cannot_be_opened_as_asked_is_not_opened():
    before = LIVE["Backend"]
    with pytest.raises(ggml.ArgumentError, match="n_threads") as kept:
        ggml.device("CPU").init(n_threads=0)
    assert LIVE["Backend"] == before and kept


def test_what_there_is_one_of_is_copied_as_itself_and_not_pickled():
    device = ggml.device("CPU")
    for one in (device, device.buffer_type, ggml.registries()[0]):
        assert copy.copy(one) is one and copy.deepcopy([one])[0] is one
        with pytest.raises(TypeError, match="pickle its name"):
            pickle.dumps(one)

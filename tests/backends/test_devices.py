"""What devices say of themselves, registries, and backend modules."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import BUILD


def test_props_say_what_the_single_questions_say():
    for device in ggml.devices():
        props = device.props
        assert (props.name, props.description) == (device.name, device.description)
        assert props.type is device.type
        assert props.memory_total == device.memory[1]
        assert props.device_id is None or ":" in props.device_id
    with pytest.raises(AttributeError):
        props.name = "other"


def test_the_cpus_caps():
    caps = ggml.device("CPU").props.caps
    assert caps.buffer_from_host_ptr
    assert (caps.async_, caps.host_buffer, caps.events) == (False, False, False)


def test_features_are_the_backends():
    cpu = ggml.device("CPU").features
    assert cpu and all(isinstance(v, str) and v for v in cpu.values())
    if "AVX2" in cpu:
        assert cpu["AVX2"] == "1"


def test_extra_buffer_types_belong_to_the_device():
    cpu = ggml.device("CPU")
    assert all(buft.device == cpu and buft != cpu.buffer_type for buft in cpu.extra_buffer_types)
    if "REPACK" in cpu.features:
        assert "CPU_REPACK" in [buft.name for buft in cpu.extra_buffer_types]


def test_devices_without_more_say_nothing(monkeypatch):
    def none(_self, name):
        raise ggml.MissingFunctionError(name)

    monkeypatch.setattr(ggml.Device, "proc_address", none)
    cpu = ggml.device("CPU")
    assert (cpu.features, cpu.extra_buffer_types, cpu.host_buffer_type) == ({}, (), None)


def test_the_best_device_is_a_gpu_or_the_cpu():
    kinds = {d.type for d in ggml.devices()}
    best = ggml.best_device()
    gpus = {"GPU", "IGPU"} & {kind.name for kind in kinds}
    assert best in ggml.devices() and best.type.name in (gpus or {"CPU"})


def test_numa_is_set_once_per_process():
    program = """
        import numpy as np, os
        import ggml_py as ggml
        cpu = ggml.device("CPU")
        before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        assert not cpu.is_numa
        cpu.numa_init("distribute")
        nodes = [n for n in os.listdir("/sys/devices/system/node") if n[4:].isdigit()]
        assert cpu.is_numa == (len(nodes) > 1)
        try:
            cpu.numa_init("isolate")
        except ggml.ArgumentError as error:
            assert "a process can call it only once" in str(error)
        else:
            raise SystemExit("done twice")
        with cpu.init() as backend, ggml.Context() as c:
            y = c.sqr(c.from_numpy(np.full(4, 3, np.float32)))
            c.alloc(backend)
            g = c.new_graph(8)
            g.build_forward_expand(y)
            backend.compute(g)
            assert set(y.get()) == {9}
        assert before == (os.sched_getaffinity(0) if before else None)
        print("fine")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_registries_have_all_devices():
    registries = ggml.registries()
    assert {d for r in registries for d in r.devices} == set(ggml.devices())
    assert [r.name for r in registries if ggml.device("CPU") in r.devices] == ["CPU"]
    assert registries == ggml.registries() and len(set(registries)) == len(registries)
    assert "CPU" in repr(registries[-1])


def test_a_module_that_cannot_be_loaded_says_why(tmp_path):
    with pytest.raises(ggml.LoadError, match="no such file"):
        ggml.load_backend(tmp_path / "libggml-none.so")
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(ImportError, match=r"text.so.*(invalid ELF|file too short)"):
        ggml.load_backend(text)


@pytest.mark.skipif(BUILD["portable"], reason="its libraries are modules")
def test_a_library_that_is_no_module_says_so():
    library = next(BUILD["folder"].glob("libggml-cpu.so*"))
    with pytest.raises(ggml.LoadError, match=r"ggml_backend_init.*GGML_BACKEND_DL"):
        ggml.load_backend(library)


MODULE = """
#include <stddef.h>
typedef struct reg {
    int api_version;
    const char * (*get_name)(struct reg *);
    size_t (*get_device_count)(struct reg *);
    void * (*get_device)(struct reg *, size_t);
    void * (*get_proc_address)(struct reg *, const char *);
    void * context;
} reg;
static const char * name(reg * r) { return "Tests"; }
static size_t count(reg * r) { return 0; }
static reg it = { VERSION, name, count, NULL, NULL, NULL };
reg * ggml_backend_init(void) { return &it; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_module_is_loaded_once(tmp_path):
    def build(version):
        library = tmp_path / f"libggml-test{version}.so"
        options = [f"-DVERSION={version}", "-shared", "-fPIC", "-xc", "-", "-o", library]
        subprocess.run(["cc", *options], input=MODULE, text=True, check=True)
        return library

    with pytest.raises(ggml.LoadError, match=r"incompatible API version.*99"):
        ggml.load_backend(build(99))
    current = 3 if BUILD["ggml_version"].startswith("0.26") else 2
    library = build(current)
    registry = ggml.load_backend(library)
    assert (registry.name, registry.devices) == ("Tests", ())
    assert ggml.load_backend(str(library)) == registry == ggml.registries()[-1]
    assert [r.name for r in ggml.registries()].count("Tests") == 1


# --- buffers over arrays, tensors put into buffers


class Array(np.ndarray):
    """An array that can be watched with a weak reference."""


def aligned(n, dtype=np.float32, shift=0):
    """`n` zeros whose address is `shift` bytes after a multiple of 64."""
    dtype = np.dtype(dtype)
    raw = np.zeros(n * dtype.itemsize + 192, np.uint8).view(Array)
    start = -raw.ctypes.data % 64 + shift
    return raw[start : start + n * dtype.itemsize].view(dtype)


def test_a_buffer_over_an_array_is_the_array():
    cpu = ggml.device("CPU")
    array = aligned(32)
    array[:] = np.arange(32)
    with cpu.buffer_from(array) as buffer, ggml.Context() as ctx, cpu.init(n_threads=1) as backend:
        low, high = ctx.new_tensor("f32", 8, name="low"), ctx.new_tensor("f32", 8, 2, name="high")
        low.alloc(buffer)
        high.alloc(buffer, 64)
        assert (buffer.size, buffer.is_host, low.buffer) == (128, True, buffer)
        assert buffer.alloc_size(high) == low.buffer.alloc_size(high) == 64
        np.testing.assert_array_equal(high.get(), array[16:].reshape(2, 8))
        low.set(np.full(8, 7))
        assert (array[:8] == 7).all() and (array[8:16] == np.arange(8, 16)).all()
        array[16:] = 3
        y = ctx.mul(high, low)
        graph = ctx.new_graph(8)
        graph.build_forward_expand(y)
        ctx.alloc(backend)  # what has no memory yet
        backend.compute(graph)
        assert (y.get() == 21).all()


def test_the_buffer_keeps_the_array_and_the_context_the_buffer():
    array = aligned(16)
    gone = weakref.ref(array)
    with ggml.Context() as ctx:
        buffer = ggml.device("CPU").buffer_from(array)
        tensor = ctx.new_tensor("f32", 16)
        tensor.alloc(buffer)
        array[:] = 5
        del array, buffer
        gc.collect()
        assert (tensor.get() == 5).all()
    del ctx, tensor
    gc.collect()
    assert gone() is None


def test_a_buffer_outlives_contexts_and_takes_the_memory_with_it():
    with ggml.device("CPU").buffer_type.alloc(256) as buffer:
        first, second = ggml.Context(), ggml.Context()
        a, b = first.new_tensor("f32", 4), second.new_tensor("f32", 4)
        a.alloc(buffer)
        b.alloc(buffer, 64)
        first.close()
        assert not buffer.closed
        b.set(np.ones(4))
        buffer.close()
        assert not second.closed
        with pytest.raises(ggml.NoDataError):
            b.get()
        second.close()


def test_data_of_from_numpy_comes_along():
    with ggml.device("CPU").buffer_type.alloc(256) as buffer, ggml.Context() as ctx:
        a, b = ctx.from_numpy(np.arange(4)), ctx.from_numpy(np.arange(3))
        b.alloc(buffer)
        assert b.get().tolist() == [0, 1, 2]
        b.set([9, 9, 9])
        ctx.alloc("CPU")
        assert (a.get().tolist(), b.get().tolist()) == ([0, 1, 2, 3], [9, 9, 9])


def readonly():
    array = aligned(16)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros(0), "at least one byte"),
        (aligned(64)[::2], "not C-contiguous"),
        (readonly(), "read-only.*memmap"),
        (aligned(16, shift=4), "4 bytes after a multiple of"),
    ],
)
def test_an_array_that_no_buffer_can_be_over_says_why(array, says):
    with pytest.raises(ggml.ArgumentError, match=says):
        ggml.device("CPU").buffer_from(array)


def test_a_device_without_the_cap_says_so(monkeypatch):
    caps = ggml.DeviceCaps(async_=True, host_buffer=True, buffer_from_host_ptr=False, events=False)
    props = ggml.DeviceProps("gpu", "", ggml.device("CPU").type, 0, 0, None, caps)
    monkeypatch.setattr(ggml.Device, "props", props)
    with pytest.raises(ggml.ArgumentError, match=r"make buffers over host memory.*Tensor\.set"):
        ggml.device("CPU").buffer_from(aligned(16))


def test_a_place_that_a_tensor_cannot_have_says_why():
    with ggml.device("CPU").buffer_type.alloc(128) as buffer, ggml.Context() as ctx:
        tensor = ctx.new_tensor("f32", 16, name="t")
        for offset, says in (
            (8, "multiple of"),
            (96, "takes 64 bytes: at offset 96"),
            (-32, "offset=-32: expected at least 0"),
        ):
            with pytest.raises(ggml.ArgumentError, match=says):
                tensor.alloc(buffer, offset)
        with pytest.raises(ggml.ArgumentError, match="is a view"):
            ctx.view_tensor(tensor).alloc(buffer)
        tensor.alloc(buffer, 64)
        with pytest.raises(ggml.ArgumentError, match="already has memory"):
            tensor.alloc(buffer)


# --- copies and events


def test_copies_between_tensors():
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        x = np.arange(64, dtype=np.float32).reshape(2, 32)
        for kind in ("f32", "q8_0"):
            a, b = ctx.from_numpy(x, type=kind), ctx.new_tensor(kind, 32, 2)
            c, empty = ctx.new_tensor(kind, 32, 2), ctx.new_tensor(kind, 32, 0)
            ctx.alloc(cpu)
            a.copy_to(b)
            cpu.copy_async(cpu, b, c)
            cpu.synchronize()
            np.testing.assert_array_equal(a.get(dequantize=False), c.get(dequantize=False))
            a.copy_to(a)
            if kind == "f32":  # as dense as what it is a view of
                b.set(np.zeros((2, 32)))
                ctx.transpose(a).copy_to(ctx.transpose(b))
                np.testing.assert_array_equal(b.get(), x)
            empty.copy_to(empty)


def test_copies_of_another_layout_say_so():
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        a = ctx.new_tensor("f32", 4, 3, name="a")
        b, c = ctx.new_tensor("f32", 3, 4, name="b"), ctx.new_tensor("i32", 4, 3, name="c")
        t = ctx.transpose(b)
        ctx.alloc(cpu)
        for other in (b, c, t):
            with pytest.raises(ggml.ArgumentError, match=r"different layouts.*same type"):
                a.copy_to(other)
            with pytest.raises(ggml.ArgumentError, match="different layouts"):
                cpu.copy_async(cpu, other, a)
        with pytest.raises(ggml.NoDataError):
            a.copy_to(ctx.new_tensor("f32", 4, 3))


def test_a_device_without_events_says_so():
    with pytest.raises(ggml.ArgumentError, match=r"CPU has no events: use Backend\.synchronize"):
        ggml.device("CPU").event()


def test_copies_of_views_with_gaps_say_so():
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        a, b = ctx.new_tensor("f32", 4, 3), ctx.new_tensor("f32", 4, 3)
        left, right = (ctx.view_2d(t, 2, 3, t.nb[1], 0) for t in (a, b))
        ctx.alloc(cpu)
        with pytest.raises(ggml.ArgumentError, match=r"have gaps.*ctx\.cpy"):
            left.copy_to(right)


has_2d = pytest.mark.skipif(
    BUILD["ggml_version"].startswith("0.9."), reason="not in this release of ggml"
)


@has_2d
def test_rows_are_set_and_got():
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        t, q = ctx.new_tensor("f32", 6, 4), ctx.new_tensor("q8_0", 64, 3, name="q")
        ctx.alloc(cpu)
        t.set(np.zeros((4, 6)))
        x = np.arange(1, 7).reshape(3, 2)
        t.set_2d(x, offset=7)  # column 1 and 2 of rows 1 to 3
        expected = np.zeros((4, 6), np.float32)
        expected[1:, 1:3] = x
        np.testing.assert_array_equal(t.get(), expected)
        np.testing.assert_array_equal(t.get_2d(3, 2, offset=7), x)
        np.testing.assert_array_equal(t.get_2d(12, 1, 1, 2)[:, 0], expected.reshape(-1)[1::2])
        assert t.get_2d(0, 2).shape == (0, 2) and t.get_2d(2, 0).shape == (2, 0)
        t.set_2d(np.zeros((0, 2)))

        q.set(np.zeros((3, 64)))
        q.set_2d(np.full((3, 32), 2.0), offset=32)
        np.testing.assert_allclose(q.get()[:, 32:], 2, rtol=1e-3)
        assert (q.get()[:, :32] == 0).all()
        np.testing.assert_array_equal(q.get_2d(3, 32, 32), q.get()[:, 32:])


@has_2d
def test_rows_that_do_not_fit_say_so():
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        t, q = ctx.new_tensor("f32", 6, 4, name="t"), ctx.new_tensor("q8_0", 64, 3)
        with pytest.raises(ggml.NoDataError):
            t.get_2d(1, 1)
        turned = ctx.transpose(t)
        ctx.alloc(cpu)
        for call in (
            lambda: t.set_2d(np.zeros((4, 2)), offset=5),
            lambda: t.get_2d(5, 6),
        ):
            with pytest.raises(ggml.ArgumentError, match=r"'t' has 24 elements.*do not fit"):
                call()
        for call in (
            lambda: t.get_2d(1, 1, -1),
            lambda: t.get_2d(2, 1, 4, -1),
            lambda: t.get_2d(-1, 1),
        ):
            with pytest.raises(ggml.ArgumentError, match="=-1: expected at least 0"):
                call()
        with pytest.raises(ggml.ArgumentError, match="expected multiples of 32"):
            q.set_2d(np.zeros((2, 16)))
        with pytest.raises(ggml.ArgumentError, match="expected two dimensions"):
            t.set_2d(np.zeros(6))
        with pytest.raises(ggml.ArgumentError, match="not contiguous"):
            turned.get_2d(1, 1)

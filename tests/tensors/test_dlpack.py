"""Memory shared with numpy and torch, both ways: no copies, and no array that dangles."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.backends.buffer import _MEMORIES, memory_of
from ggml_py.enums import Type
from ggml_py.tensors import dlpack
from ggml_py.tensors.convert import type_of

DTYPES = ["f4", "f2", "f8", "i1", "i2", "i4", "i8"]


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


@pytest.fixture
def context():
    with ggml.Context() as made:
        yield made


def filled(context, cpu, dtype="f4", shape=(2, 3, 4)):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    tensor = context.from_numpy(array, type=array.dtype)
    context.alloc(cpu)
    return tensor, array


class Versionless:
    """A producer from before DLPack had versions."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


# --- out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["numpy", "torch", "asarray"])
def test_others_see_a_tensors_memory(dtype, library, context, cpu):
    torch = pytest.importorskip("torch") if library == "torch" else None
    tensor, array = filled(context, cpu, dtype)
    seen = {
        "numpy": lambda: np.from_dlpack(tensor),
        "torch": lambda: torch.from_dlpack(tensor),
        "asarray": lambda: np.asarray(tensor),
    }[library]()
    assert np.asarray(seen).dtype == array.dtype
    np.testing.assert_array_equal(np.asarray(seen), array)
    tensor.set(array[::-1])
    np.testing.assert_array_equal(np.asarray(seen), array[::-1])
    seen[0, 0, 0] = 7
    assert tensor.get()[0, 0, 0] == 7


def test_bf16_goes_to_torch_and_back(context, cpu):
    torch = pytest.importorskip("torch")
    values = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    tensor = context.from_dlpack(values)
    assert (tensor.type, tensor.ne) == (Type.BF16, (4, 3, 1, 1))
    np.testing.assert_array_equal(tensor.get(), values.float().numpy())
    back = torch.from_dlpack(tensor)
    assert back.dtype == torch.bfloat16
    assert back.data_ptr() == values.data_ptr()
    with pytest.raises(ggml.ArgumentError, match="numpy has no bf16"):
        tensor.numpy()


@pytest.mark.parametrize("versioned", [True, False])
def test_views_keep_their_strides(versioned, context, cpu):
    torch = pytest.importorskip("torch")
    a, array = filled(context, cpu, shape=(4, 6))
    t = context.transpose(a)
    v = context.view_2d(a, 3, 2, a.nb[1] * 2, a.nb[0])
    for made in (t, v):
        context_memory(made)
    np.testing.assert_array_equal(np.from_dlpack(t), array.T)
    version = {"max_version": (1, 0)} if versioned else {}
    seen = torch.utils.dlpack.from_dlpack(v.__dlpack__(**version))
    np.testing.assert_array_equal(seen.numpy(), array[::2, 1:4])
    assert seen.stride() == (12, 1)


def context_memory(view):
    """What upstream does when a graph with the view is allocated."""
    status = ggml.lib.ggml_backend_view_init(view.ptr)
    assert status == 0


def test_arrays_outlive_buffer_and_context(cpu):
    torch = pytest.importorskip("torch")
    context = ggml.Context()
    tensor, array = filled(context, cpu, shape=(1000, 1000))
    seen = [tensor.numpy(), np.from_dlpack(tensor), np.asarray(tensor), torch.from_dlpack(tensor)]
    alive = weakref.ref(memory_of(tensor.ptr.buffer))
    context.close()
    with pytest.raises(ggml.ClosedError):
        tensor.get()
    while seen:
        one = seen.pop()
        np.testing.assert_array_equal(np.asarray(one), array)
        one[0, 0] = 3
        array[0, 0] = 3
        assert alive() is not None
        del one
        gc.collect()
    assert alive() is None


def test_a_closed_buffer_frees_its_memory_at_once_when_nobody_looks(context, cpu):
    before = len(_MEMORIES)
    filled(context, cpu)
    assert len(_MEMORIES) == before + 1
    for buffer in list(context._buffers):
        buffer.close()
    assert len(_MEMORIES) == before


def test_a_slice_of_an_array_is_enough_to_keep_the_memory(cpu):
    context = ggml.Context()
    tensor, array = filled(context, cpu)
    part = tensor.numpy()[1, 2:]
    context.close()
    gc.collect()
    np.testing.assert_array_equal(part, array[1, 2:])


def test_an_unconsumed_capsule_lets_go(context, cpu):
    tensor, _ = filled(context, cpu)
    n = len(dlpack._exported)
    for version in (None, (1, 0)):
        capsule = tensor.__dlpack__(max_version=version)
        assert len(dlpack._exported) == n + 1
        del capsule
        assert len(dlpack._exported) == n


def test_lent_memory_is_shared_by_numpy_only(context, cpu):
    x = context.new_tensor("f32", 4)
    y = context.sqr(x)
    graph = context.new_graph(8)
    graph.build_forward_expand(y)
    with ggml.Scheduler([cpu]) as sched:
        sched.alloc_graph(graph)
        x.set([1, 2, 3, 4])
        sched.compute(graph)
        shared = y.numpy()
        assert shared.tolist() == [1, 4, 9, 16]
        for copy in (np.asarray(y), np.from_dlpack(y), np.array(y)):
            assert copy.tolist() == [1, 4, 9, 16]
            assert not np.shares_memory(copy, shared)
        with pytest.raises(BufferError, match="lent"):
            y.__dlpack__(copy=False)
        with pytest.raises(ValueError, match=r"a copy of tensor .* is needed: .* lent"):
            y.__array__(copy=False)
        kept = np.asarray(y)
        x.set([2, 2, 2, 2])
        sched.compute(graph)
        assert shared.tolist() == [4, 4, 4, 4]  # it is the memory itself
    assert kept.tolist() == [1, 4, 9, 16]


@pytest.mark.parametrize("end", ["close", "collect", "grow", "allocator", "closed allocator"])
def test_lent_memory_lives_as_long_as_arrays_over_it(context, cpu, end):
    """Whatever frees it, upstream's allocator does: the last array is who really does."""
    n = 1 << 20  # beyond what malloc keeps: memory that was freed would not be there to read
    x = context.new_tensor("f32", n)
    y = context.sqr(x)
    graph, larger = context.new_graph(8), context.new_graph(8)
    graph.build_forward_expand(y)
    larger.build_forward_expand(context.sqr(context.new_tensor("f32", 4 * n)))
    if "allocator" in end:
        lender = ggml.GraphAllocator(cpu.buffer_type)
        lender.alloc_graph(graph)
        compute = cpu.compute
    else:
        lender = ggml.Scheduler([cpu])
        lender.alloc_graph(graph)
        compute = lender.compute
    x.set(np.full(n, 3))
    compute(graph)
    arrays = [y.numpy(), y.numpy()[10:]]
    if end in ("close", "closed allocator"):
        lender.close()
    elif end == "collect":
        compute = None
        del lender
        gc.collect()
    else:
        lender.reset()
        lender.alloc_graph(larger)
    junk = [np.ones(n, np.float32) for _ in range(4)]
    for array in arrays:
        assert set(np.unique(array)) == {9.0}
        array[:] = 9
    del array, arrays, junk
    if end in ("grow", "allocator"):
        lender.close()


def test_a_copy_on_demand(context, cpu):
    tensor, array = filled(context, cpu)
    for copy in (np.from_dlpack(tensor, copy=True), np.array(tensor), tensor.__array__(copy=True)):
        copy[...] = 0
        np.testing.assert_array_equal(tensor.get(), array)
    assert np.asarray(tensor, dtype="f8").dtype == np.float64


def test_quantised_types_come_as_floats_or_not_at_all(context, cpu):
    tensor = context.from_numpy(np.ones((2, 32)), type="q8_0")
    context.alloc(cpu)
    assert np.asarray(tensor).dtype == np.float32
    with pytest.raises(BufferError, match="DLPack has no q8_0"):
        tensor.__dlpack__()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 688 came with 3.12")
def test_memoryview(context, cpu):
    tensor, array = filled(context, cpu)
    view = memoryview(tensor)
    assert (view.shape, view.format) == (array.shape, "f")
    assert view.tobytes() == array.tobytes()


def test_the_buffer_methods_themselves(context, cpu):
    tensor, array = filled(context, cpu)
    assert tensor.__buffer__(0).tobytes() == array.tobytes()
    assert tensor.numpy().data.tobytes() == array.tobytes()
    quantised = context.from_numpy(np.ones((2, 32)), type="q8_0")
    context.alloc(cpu)
    with pytest.raises(BufferError, match="numpy has no q8_0"):
        quantised.__buffer__(0)


# --- in


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["numpy", "torch", "versionless"])
def test_tensors_over_others_memory(dtype, library, context):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    if library == "torch":
        producer = pytest.importorskip("torch").from_numpy(array)
    else:
        producer = array if library == "numpy" else Versionless(array)
    tensor = context.from_dlpack(producer, name="t")
    assert (tensor.ne, tensor.name, tensor.type) == ((4, 3, 2, 1), "t", type_of(array.dtype))
    np.testing.assert_array_equal(tensor.get(), array)
    array[0, 0, 0] = 9
    assert tensor.get()[0, 0, 0] == 9
    tensor.set(np.zeros_like(array))
    assert not array.any()


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("transposed", lambda a: a.T),
        ("every second", lambda a: a[::2, 1:5:2]),
        ("column", lambda a: a[:, 2]),
        ("swapped", lambda a: a.reshape(4, 3, 2).transpose(1, 0, 2)),
        ("added dimension", lambda a: a[:, None, :, None]),
        ("scalar", lambda a: a[1, 1, ...].reshape(())),
        ("offset by one", lambda a: a.reshape(-1)[1:]),
    ],
)
def test_strides_are_taken_as_they_are(name, view, context):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    seen = view(array)
    tensor = context.from_dlpack(seen)
    np.testing.assert_array_equal(np.squeeze(tensor.get()), np.squeeze(seen))
    np.testing.assert_array_equal(np.squeeze(tensor.numpy()), np.squeeze(seen))
    array += 1
    np.testing.assert_array_equal(np.squeeze(tensor.get()), np.squeeze(seen))


def test_what_others_gave_is_computed_with(context, cpu):
    w = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    y = context.mul_mat(context.from_dlpack(w), context.from_dlpack(x))
    graph = context.new_graph(8)
    graph.build_forward_expand(y)
    with ggml.Scheduler([cpu]) as sched:
        sched.compute(graph)
        np.testing.assert_allclose(y.get(), x @ w.T, rtol=1e-5, atol=1e-6)


def test_the_producer_lives_as_long_as_the_tensors_memory():
    class Array(np.ndarray):
        pass

    producer = np.zeros(8, np.float32).view(Array)
    alive = weakref.ref(producer)
    context = ggml.Context()
    tensor = context.from_dlpack(producer)
    del producer
    gc.collect()
    seen = tensor.numpy()
    context.close()
    gc.collect()
    assert alive() is not None
    assert not seen.any()
    del seen
    gc.collect()
    assert alive() is None


def test_a_shared_buffer_is_not_cleared(context):
    around = np.ones(12, np.float32)
    tensor = context.from_dlpack(around[3:6])
    with pytest.raises(ggml.ArgumentError, match="shared"):
        tensor.buffer.clear()
    assert around.all()


@pytest.mark.parametrize(
    ("producer", "error", "message"),
    [
        (lambda: [1.0], TypeError, "got list"),
        (lambda: np.zeros(3, np.uint8), ggml.ArgumentError, "8 bits"),
        (lambda: np.zeros(3, np.complex64), ggml.ArgumentError, "expected f32"),
        (lambda: np.zeros((1,) * 5, np.float32), ggml.ArgumentError, "one to four"),
        (lambda: np.zeros((0, 3), np.float32), ggml.ArgumentError, "none empty"),
        (lambda: np.zeros(8, np.float32)[::-1], ggml.ArgumentError, "negative"),
        (lambda: np.lib.stride_tricks.sliding_window_view(np.zeros(8, "f4"), 3, writeable=True),
         ggml.ArgumentError, "overlap"),
        (lambda: np.broadcast_to(np.float32(1), (3,)), ggml.ArgumentError, "only be read"),
    ],
)  # fmt: skip
def test_what_no_tensor_can_be_over(producer, error, message, context):
    n = len(list(context))
    with pytest.raises(error, match=message):
        context.from_dlpack(producer())
    assert len(list(context)) == n


def test_a_device_elsewhere_is_refused(context):
    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **_):
            raise AssertionError("not asked for")

    with pytest.raises(ggml.ArgumentError, match="copy it there first"):
        context.from_dlpack(Elsewhere())


def test_a_refused_capsule_is_given_back_to_its_producer(context):
    class Array(np.ndarray):
        pass

    array = np.zeros(3, np.uint8).view(Array)
    alive = weakref.ref(array)
    with pytest.raises(ggml.ArgumentError):
        context.from_dlpack(array)
    del array
    gc.collect()
    assert alive() is None


def test_arrays_that_live_until_the_process_ends_are_harmless():
    code = (
        "import numpy as np, ggml_py as ggml\n"
        "c = ggml.Context(); t = c.from_numpy(np.ones(1000, np.float32)); c.alloc('CPU')\n"
        "import builtins\n"
        "builtins.kept = [np.from_dlpack(t), t.numpy(), t.__dlpack__()]\n"
        "d = ggml.Context(); builtins.over = d.from_dlpack(np.ones(10))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_backend_stays_while_arrays_are_over_its_memory(context, cpu):
    # Where it is a module of its own, unloading it would take the function that frees them.
    tensor, _ = filled(context, cpu)
    seen = tensor.numpy()
    buffer = context._buffers[0]
    module = buffer.type._module
    memory = memory_of(buffer.ptr)
    buffer.close()
    assert memory in module.open
    assert not memory.closed
    del memory, seen
    gc.collect()
    assert not [m for m in module.open if type(m).__name__ == "Memory"]


def test_memory_that_ggml_frees_itself_lives_as_long_as_arrays_over_it(cpu):
    """ggml-opt's datasets and contexts, and the copy that compare_graph_backend makes."""
    arrays = []
    n = 1 << 18
    with ggml.Dataset(np.full((4, n), 5, np.float32), None) as dataset:
        arrays.append(dataset.data.numpy())
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as other:
        x = ctx.from_numpy(np.full(n, 5, np.float32))
        graph = ctx.new_graph(8)
        graph.build_forward_expand(ctx.abs(x))
        ctx.alloc(cpu)
        ggml.compare_graph_backend(
            cpu, other, graph, lambda _i, _a, b: arrays.append(b.numpy()) or True
        )
    junk = [np.ones(4 * n, np.float32) for _ in range(4)]
    assert len(arrays) == 2
    for array in arrays:
        assert set(np.unique(array)) == {5.0}
    del junk, array
    arrays.clear()

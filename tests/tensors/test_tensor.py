"""Tensors and contexts: shapes, data in every type, errors that say what was expected."""

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.enums import Op, TensorFlag, Type


@pytest.fixture
def cpu():
    with ggml.device("CPU").init(n_threads=1) as backend:
        yield backend


@pytest.fixture
def context():
    with ggml.Context() as made:
        yield made


def test_attributes_follow_ggml(context):
    a = context.new_tensor("f32", 8, 3, name="a")
    v = context.view_1d(a, 4, 16)
    assert a.ne == (8, 3, 1, 1)
    assert a.nb == (4, 32, 96, 96)
    assert (a.type, a.op, a.src, a.view_src, a.buffer) == (Type.F32, Op.NONE, (), None, None)
    assert (v.view_src, v.view_offs, v.src) == (a, 16, (a,))
    a.set_input()
    assert a.flags == TensorFlag.INPUT
    assert (a.nbytes, a.n_elements, a.is_contiguous) == (96, 24, True)
    assert not context.transpose(a).is_contiguous
    assert repr(a) == "<Tensor 'a' f32 [8, 3, 1, 1]>"


def test_a_context_lists_and_finds_its_tensors(context):
    made = [context.new_tensor("f32", 2, name=f"t{i}") for i in range(3)]
    assert list(context) == made
    assert context["t1"] == made[1]
    with pytest.raises(KeyError, match="t9"):
        context["t9"]


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i1", "i2", "i4", "i8"])
def test_numpy_types_go_in_and_out(dtype, context, cpu):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    tensor = context.from_numpy(array)
    assert tensor.ne == (4, 3, 2, 1)
    context.alloc(cpu)
    for back in (tensor.get(), tensor.numpy()):
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
    tensor.set(array[::-1])
    np.testing.assert_array_equal(tensor.get(), array[::-1])


@pytest.mark.parametrize(
    ("type_", "tolerance"),
    [("bf16", 0.02), ("q8_0", 0.03), ("q4_0", 0.5), ("q4_K", 0.4), ("q6_K", 0.1), ("mxfp4", 1.0)],
)
def test_other_types_are_converted_both_ways(type_, tolerance, context, cpu):
    values = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    tensor = context.from_numpy(values, type=type_)
    context.alloc(cpu)
    got = tensor.get()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, values, atol=tolerance)
    raw = tensor.get(dequantize=False)
    assert raw.dtype == np.uint8
    assert raw.shape[0] == 4
    with pytest.raises(ggml.ArgumentError, match="numpy has no"):
        tensor.numpy()


def test_numpy_is_the_memory_itself(context, cpu):
    tensor = context.from_numpy(np.zeros(4, np.float32))
    context.alloc(cpu)
    tensor.numpy()[2] = 5
    assert tensor.get().tolist() == [0, 0, 5, 0]


def test_views_are_read_with_their_strides(context, cpu):
    a = context.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    context.alloc(cpu)
    with ggml.Context() as views:
        t = views.transpose(a)
        graph = views.new_graph()
        graph.build_forward_expand(views.cont(t))
        sched = ggml.Scheduler([cpu])
        sched.alloc_graph(graph)
        np.testing.assert_array_equal(t.get(), a.get().T)
        sched.close()


def test_part_of_a_tensor_can_be_set(context, cpu):
    a = context.from_numpy(np.zeros(6, np.float32))
    context.alloc(cpu)
    a.set([1.0, 2.0], offset=3)
    assert a.get().tolist() == [0, 0, 0, 1, 2, 0]
    with pytest.raises(ggml.ArgumentError, match="do not fit"):
        a.set([1.0, 2.0], offset=5)


def test_wrong_data_is_refused(context, cpu):
    a = context.new_tensor("f32", 4, 2, name="a")
    with pytest.raises(ggml.NoDataError, match=r"Context\.alloc"):
        a.set(np.zeros((2, 4)))
    context.alloc(cpu)
    with pytest.raises(ggml.ArgumentError, match=r"'a' has ne .* = 8 elements.*= 9"):
        a.set(np.zeros((3, 3)))


@pytest.mark.parametrize("bad", ["f99", "complex64", object])
def test_unknown_types_name_the_known_ones(bad, context):
    with pytest.raises(ggml.ArgumentError, match="q4_0"):
        context.new_tensor(bad, 4)


@pytest.mark.parametrize("ne", [(), (1, 2, 3, 4, 5)])
def test_impossible_dimensions_are_refused(ne, context):
    with pytest.raises(ggml.ArgumentError, match="one to four"):
        context.new_tensor("f32", *ne)
    with pytest.raises(ggml.ArgumentError, match="ne1=-1: expected at least 0"):
        context.new_tensor("f32", 2, -1)


@pytest.mark.parametrize("ne", [(2**62,), (2**40, 2**40)])
def test_sizes_that_overflow_are_refused(ne, context):
    with pytest.raises(ggml.ArgumentError, match="no machine addresses"):
        context.new_tensor("f32", *ne)


def test_rows_of_quantised_types_are_whole_blocks(context):
    with pytest.raises(ggml.ArgumentError, match="blocks of 32"):
        context.new_tensor("q4_0", 33)


def test_enums_are_taken_by_name(context):
    a = context.new_tensor("f32", 8, 4)
    context.cast(a, "f16")
    context.argsort(a, "desc")
    with pytest.raises(ggml.ArgumentError, match="asc, desc"):
        context.argsort(a, "down")


def test_unknown_usage_and_device_are_named(context):
    context.new_tensor("f32", 1)
    with pytest.raises(ValueError, match="weights"):
        context.alloc("CPU", usage="weight")
    with pytest.raises(TypeError, match="BufferType or a device's name, got NoneType"):
        context.alloc(None)
    with pytest.raises(TypeError, match="name: expected a str, got NoneType"):
        ggml.device(None)
    with pytest.raises(ggml.UnknownDeviceError, match=r"'GPU7'; there are: .*CPU"):
        context.alloc("GPU7")


def test_alloc_gives_a_buffer_that_the_context_holds(context, cpu):
    tensor = context.from_numpy(np.ones(4, np.float32))
    buffer = context.alloc(cpu, usage="weights")
    assert (buffer.usage, buffer.is_host, buffer.size >= 16) == ("weights", True, True)
    assert tensor.buffer == buffer
    assert buffer == tensor.buffer
    assert tensor.buffer.type == cpu.buffer_type == buffer.type
    assert (tensor.buffer.usage, tensor.buffer.size) == ("weights", buffer.size)
    buffer.clear(0)
    assert tensor.get().sum() == 0
    assert context.alloc(cpu).size == 0  # nothing left to allocate


def test_memory_that_nobody_has_is_an_alloc_error(context):
    context.new_tensor("f32", 1 << 20, 1 << 20, name="four tebibytes")
    with pytest.raises(ggml.AllocError, match="4,398,046,511,104 bytes"):
        context.alloc("CPU")


def test_devices_describe_themselves():
    devices = ggml.devices()
    assert {d.name for d in devices} >= {"CPU", "BLAS"}
    cpu = ggml.device("cpu")
    assert cpu == ggml.device("CPU")
    assert cpu.type.name == "CPU"
    free, total = cpu.memory
    assert 0 < free <= total
    assert cpu.buffer_type.is_host
    with cpu.init(n_threads=3) as backend:
        assert backend.n_threads == 3
        for wrong in (0, -1, 513):
            with pytest.raises(ValueError, match="expected 1 to 512"):
                backend.n_threads = wrong
            with pytest.raises(ValueError, match=f"n_threads={wrong}"):
                cpu.init(n_threads=wrong)


def test_an_array_is_no_operand_and_the_error_names_what_makes_one():
    with ggml.Context() as context:
        tensor = context.new_tensor("f32", 4)
        with pytest.raises(TypeError, match=r"got ndarray: Context\.from_numpy makes one"):
            context.add(tensor, np.ones(4, np.float32))
        with pytest.raises(TypeError, match=r"got int 3$"):
            context.add(tensor, 3)

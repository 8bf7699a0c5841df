"""Data from one type to another: every type, importance matrices, what cannot be, chunks."""

import resource

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.enums import Type
from ggml_py.tensors import convert
from ggml_py.tensors.convert import DTYPES

NEED_IMATRIX = ["iq2_xxs", "iq2_xs", "iq1_s"]
QUANTISED = [
    t.name.lower()
    for t in Type
    if t.name != "COUNT"
    and ggml.lib.ggml_is_quantized(t)
    and t.name not in ("Q8_1", "Q8_K")
    and ggml.lib.ggml_blck_size(t)
]


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def context():
    with ggml.Context() as made:
        yield made


LARGE_TABLE = pytest.mark.thorough("long")  # a process that makes it takes thirteen seconds
# Tables of these take seconds to make.
LONG = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")


@pytest.mark.parametrize(
    "type_",
    [pytest.param(t, marks=pytest.mark.thorough("long")) if t in LONG else t for t in QUANTISED],
)
def test_every_quantised_type_there_and_back(type_, context):
    array = values(4, 512)
    imatrix = np.ones(512, np.float32)
    raw = ggml.quantize(array, type_, imatrix)
    assert raw.dtype == np.uint8
    assert raw.shape == (4, ggml.lib.ggml_row_size(ggml.enums.Type[type_.upper()], 512))
    back = ggml.dequantize(raw, type_)
    assert back.shape == array.shape
    # Even 1.5 bits keep the direction of a vector.
    assert np.sum(back * array) > 0.6 * np.linalg.norm(back) * np.linalg.norm(array)
    tensor = context.from_numpy(array, type=type_, imatrix=imatrix)
    context.alloc("CPU")
    np.testing.assert_array_equal(tensor.get(dequantize=False), raw)
    np.testing.assert_array_equal(tensor.get(), back)


@pytest.mark.parametrize("type_", sorted(t.name.lower() for t in DTYPES))
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i1", "i4", "u1", "?", ">f4"])
def test_every_plain_type_takes_every_number(type_, dtype, context):
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    tensor = context.from_numpy(array, type=type_)
    context.alloc("CPU")
    np.testing.assert_array_equal(tensor.get(), array)


def test_raw_bytes_with_ne(context):
    raw = ggml.quantize(values(6, 64), "q4_0")
    assert ggml.dequantize(raw, "q4_0", (64, 3, 2)).shape == (2, 3, 64)
    np.testing.assert_array_equal(
        ggml.dequantize(raw.reshape(-1), "q4_0", [64, 6]), ggml.dequantize(raw, "q4_0")
    )
    half = values(2, 3).astype(np.float16)
    np.testing.assert_array_equal(ggml.dequantize(half.view(np.uint8), "f16"), half)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ggml.dequantize(np.zeros(17, np.uint8), "q4_0"), "17 bytes: .* blocks of 18"),
        (lambda: ggml.dequantize(np.zeros(18, np.uint8), "q4_0", (64,)), "18 bytes.*takes 36"),
        (lambda: ggml.dequantize(np.zeros(18, np.float32), "q4_0"), "array of uint8"),
        (lambda: ggml.dequantize(np.zeros(4, np.uint8), "i32", (2,)), "4 bytes.*takes 8"),
        (lambda: ggml.quantize(values(4, 33), "q4_0"), "rows of 33.*32"),
        (lambda: ggml.quantize(values(4, 32), "q8_1"), "cannot quantise to q8_1"),
        (lambda: ggml.quantize(["a"], "f32"), "expected numbers"),
        (lambda: ggml.quantize(values(1, 32), "q4_0", np.ones(31)), "31 weights: expected 32"),
        (lambda: ggml.quantize(values(3, 32), "q4_0", np.ones(64)), "3 rows of 32"),
        (lambda: ggml.quantize(values(1, 32), "q4_0", -np.ones(32)), "none of them negative"),
        (lambda: ggml.quantize(values(1, 32), "q4_0", np.full(32, np.nan)), "finite weights"),
        (lambda: ggml.quantize(values(1, 32), "f32", np.ones(32)), "imatrix for f32"),
        (lambda: ggml.quantize(values(1, 32), "bf16", np.ones(32)), "imatrix for bf16"),
    ],
)
def test_what_cannot_be_converted(call, message):
    with pytest.raises(ggml.ArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    "type_",
    [
        pytest.param(t, marks=LARGE_TABLE if t in ("iq1_s", "iq2_xs") else ())
        for t in NEED_IMATRIX
    ],
)
def test_types_that_need_an_imatrix_say_so(type_, context):
    with pytest.raises(ggml.ArgumentError, match=f"{type_} needs an importance matrix.*imatrix="):
        ggml.quantize(values(1, 256), type_)
    with pytest.raises(ggml.ArgumentError, match="imatrix="):
        context.from_numpy(values(1, 256), type=type_)
    tensor = context.new_tensor(type_, 256, 2)
    context.alloc("CPU")
    with pytest.raises(ggml.ArgumentError, match="imatrix="):
        tensor.set(values(2, 256))
    tensor.set(values(2, 256), imatrix=np.ones(256))
    assert tensor.get().any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("type_", ["q4_0", "q8_0", "q4_K", "iq4_nl", "mxfp4"])
def test_what_is_not_finite_is_named(bad, type_):
    array = values(4, 256).astype(np.float64)
    array[2, 5] = bad
    with pytest.raises(ggml.ArgumentError, match=r"element 517 is .*: .* finite as float32"):
        ggml.quantize(array, type_)


def test_what_half_precision_scales_cannot_hold():
    with pytest.raises(ggml.ArgumentError, match=r"1e\+30 are too large for q8_0"):
        ggml.quantize(np.full((1, 32), 1e30), "q8_0")


def test_plain_types_keep_nan_and_inf(context):
    array = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    for type_ in ("f32", "f16", "f64", "bf16"):
        tensor = context.from_numpy(array, type=type_)
        context.alloc("CPU")
        np.testing.assert_array_equal(tensor.get(), array)


def test_an_imatrix_moves_precision_to_its_columns():
    array = values(16, 256)
    imatrix = np.full(256, 1e-3, np.float32)
    imatrix[:64] = 1e3
    with_, without = (ggml.dequantize(ggml.quantize(array, "q4_K", m), "q4_K")
                      for m in (imatrix, None))  # fmt: skip

    def error(back):
        return np.square(back - array)[:, :32].mean()

    assert error(with_) < error(without)


def test_each_matrix_of_a_stack_has_its_own_weights():
    array = values(3, 4, 256)
    imatrix = np.abs(values(3, 256, seed=1)) + 0.01
    stacked = ggml.quantize(array, "iq2_xs", imatrix)
    for i in range(3):
        np.testing.assert_array_equal(stacked[i], ggml.quantize(array[i], "iq2_xs", imatrix[i]))
    assert (stacked[0] != ggml.quantize(array[0], "iq2_xs", imatrix[1])).any()


@pytest.mark.parametrize("chunk", [1, 100, 256, 1000, 1 << 20])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "leading one"])
def test_chunks_change_nothing(chunk, layout, monkeypatch, context):
    array = values(12, 512).reshape(12, 2, 256)
    source = {
        "contiguous": array,
        "transposed": np.asfortranarray(array),
        "strided": np.repeat(array, 2, axis=0)[::2],
        "leading one": np.asfortranarray(array)[None],
    }[layout]
    imatrix = np.abs(values(3, 256)) + 0.01  # of 3 matrices of 8 rows
    want = {t: ggml.quantize(array.reshape(24, 256), t) for t in ("q4_K", "bf16", "f16")}
    stacked = ggml.quantize(array.reshape(3, 8, 256), "q4_K", imatrix)
    monkeypatch.setattr(convert, "CHUNK", chunk)
    monkeypatch.setattr("ggml_py.tensors.data.CHUNK", chunk)
    for type_, raw in want.items():
        tensor = context.new_tensor(type_, 256, 2, 12)
        context.alloc("CPU")
        tensor.set(source.astype(np.float64))
        stored = tensor.get(dequantize=False).view(np.uint8)
        np.testing.assert_array_equal(stored.ravel(), raw.ravel())
        np.testing.assert_array_equal(
            tensor.get().reshape(24, 256), ggml.dequantize(raw, type_).astype(tensor.get().dtype)
        )
        tensor.set(source, imatrix=imatrix if type_ == "q4_K" else None)
        if type_ == "q4_K":
            np.testing.assert_array_equal(tensor.get(dequantize=False).ravel(), stacked.ravel())


def test_big_arrays_take_little_more_than_themselves(context):
    n = 64 << 20
    array = np.zeros((n // 1024, 1024), np.float16)  # 128 MiB; as float32 256
    tensor = context.new_tensor("q8_0", 1024, n // 1024)
    context.alloc("CPU")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensor.set(array)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # The array's and the tensor's own pages (128 + 68 MiB) may be touched for the first time.
    assert grown < (128 + 68 + 60) * 1024


# --- get(out=)


@pytest.mark.parametrize("type_", ["f32", "i8", "q8_0", "bf16"])
@pytest.mark.parametrize("contiguous", [True, False])
def test_get_into_an_array(type_, contiguous, context):
    array = (np.arange(64) % 5).reshape(2, 32)
    tensor = context.from_numpy(array, type=type_)
    context.alloc("CPU")
    like = tensor.get()
    out = np.zeros_like(like) if contiguous else np.zeros((2, 64), like.dtype)[:, ::2]
    assert tensor.get(out=out) is out
    np.testing.assert_array_equal(out, like)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros((2, 2), "f4"), ggml.ArgumentError, r"shape \(2, 2\) = 4: expected"),
        (np.zeros((2, 3), "f8"), ggml.ArgumentError, "out is float64"),
        (np.broadcast_to(np.float32(0), (2, 3)), ggml.ArgumentError, "read-only"),
        ([0.0], TypeError, "out: expected a numpy array, got list"),
    ],
)
def test_arrays_that_get_cannot_write_to(out, error, message, context):
    tensor = context.from_numpy(np.zeros((2, 3), np.float32))
    context.alloc("CPU")
    with pytest.raises(error, match=message):
        tensor.get(out=out)


def test_a_mapped_file_is_only_read(tmp_path, context):
    path = tmp_path / "data"
    path.write_bytes(bytes(4096))
    mapped = np.memmap(path, np.uint8, "r")
    cpu = ggml.device("CPU")
    base = ggml.ffi.from_buffer(mapped)
    ptr = ggml.lib.ggml_backend_dev_buffer_from_host_ptr(cpu.ptr, base, 4096, 4096)
    buffer = ggml.Buffer(ptr, mapped)
    tensor = context.new_tensor("f32", 8)
    tensor.alloc(buffer)
    assert not tensor.get().any()
    for write in (tensor.set, lambda a: tensor.set_2d(a[None])):
        with pytest.raises(ggml.ArgumentError, match="mapped"):
            write(np.ones(8))
    with pytest.raises(ggml.ArgumentError, match="read-only"):
        buffer.clear()
    assert not tensor.numpy().flags.writeable
    assert not np.from_dlpack(tensor).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    buffer.close()

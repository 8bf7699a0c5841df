"""What follows from type and shape; names; parts that are inside of their tensor, or not."""

import numpy as np
import pytest

import ggml_py as ggml


@pytest.fixture
def context():
    with ggml.Context() as made:
        yield made


def test_sizes(context):
    q = context.new_tensor("q4_0", 64, 3, 2)
    assert (q.n_rows, q.n_dims, q.element_size, q.row_size) == (6, 3, 18, 36)
    assert (q.nbytes, q.nbytes_pad, q.is_quantized) == (216, 224, True)
    f = context.new_tensor("f32", 5)
    assert (f.n_rows, f.n_dims, f.row_size, f.nbytes_pad, f.is_quantized) == (1, 1, 20, 32, False)


@pytest.mark.parametrize(
    ("ne", "true"),
    [
        ((1,), {"is_scalar", "is_vector", "is_matrix", "is_3d"}),
        ((4,), {"is_vector", "is_matrix", "is_3d"}),
        ((4, 2), {"is_matrix", "is_3d"}),
        ((4, 2, 3), {"is_3d"}),
        ((4, 2, 3, 2), set()),
        ((4, 0), {"is_matrix", "is_3d", "is_empty"}),
    ],
)
def test_kinds_of_shape(ne, true, context):
    tensor = context.new_tensor("f32", *ne)
    names = ("is_scalar", "is_vector", "is_matrix", "is_3d", "is_empty", "is_view")
    assert {name for name in names if getattr(tensor, name)} == true


def test_shape_is_what_get_and_numpy_return():
    rng = np.random.default_rng(18)
    for _ in range(200):
        with ggml.Context() as context:
            ne = rng.integers(1, 5, size=rng.integers(1, 5)).tolist()
            a = context.new_tensor(str(rng.choice(["f32", "f16", "i8", "i64", "bf16"])), *ne)
            axes = rng.permutation(4).tolist()
            tensors = [a, context.permute(a, *axes), context.transpose(a)]
            context.alloc("CPU").clear()
            for tensor in tensors[: 1 if a.type.name == "BF16" else 3]:
                assert tensor.shape == tensor.get().shape, (ne, axes)
            if a.type.name != "BF16":
                assert a.shape == a.numpy().shape


def test_shape_of_arrays_that_come_and_go(context):
    for array in (np.zeros((2, 3, 4), "f4"), np.zeros(5, "f4"), np.zeros((4, 1), "f4")):
        assert context.from_numpy(array).shape == array.shape
    # ggml does not tell ones in front from none
    assert context.from_numpy(np.zeros((1, 1, 3), "f4")).shape == (3,)
    assert context.from_numpy(np.float32(7)).shape == (1,)
    assert context.new_tensor("q4_0", 64, 2).shape == (2, 64)
    with pytest.raises(AttributeError):
        context.new_tensor("f32", 2).shape = (1, 2)


def test_strides(context):
    a = context.new_tensor("f32", 4, 3, 2, 2)
    t, p = context.transpose(a), context.permute(a, 0, 2, 1, 3)
    gaps = context.view_2d(a, 2, 3, 16, 0)
    names = (
        "is_contiguous", "is_contiguous_1", "is_contiguous_2", "is_contiguous_rows",
        "is_contiguously_allocated", "is_transposed", "is_permuted", "is_contiguous_channels",
        "is_view",
    )  # fmt: skip
    shown = {
        what: {name.removeprefix("is_") for name in names if getattr(tensor, name)}
        for what, tensor in (("a", a), ("t", t), ("p", p), ("gaps", gaps))
    }
    contiguous = {name.removeprefix("is_") for name in names[:5]}
    assert shown["a"] == contiguous
    assert shown["t"] >= {"transposed", "permuted", "view", "contiguously_allocated"}
    assert shown["t"].isdisjoint({"contiguous", "contiguous_rows"})
    assert shown["p"] >= {"permuted", "view", "contiguous_rows"}
    assert "transposed" not in shown["p"]
    assert shown["gaps"].isdisjoint({"contiguous", "contiguously_allocated", "permuted"})


@pytest.mark.needs("ggml_is_contiguous_to_1")
def test_contiguous_up_to_a_dimension(context):
    a = context.new_tensor("f32", 4, 3, 2, 2)
    assert a.is_contiguous_to_1 and a.is_contiguous_to_2 and a.is_contiguous_to_3
    assert context.permute(a, 0, 2, 1, 3).is_contiguous_to_1


def test_pairs(context):
    a, b = context.new_tensor("f32", 4, 3), context.new_tensor("f16", 4, 3)
    row, t = context.new_tensor("f32", 4), context.transpose(context.new_tensor("f32", 3, 4))
    assert a.same_shape(b)
    assert not a.same_stride(b)
    assert a.same_shape(t)
    assert not a.same_stride(t)
    assert row.can_repeat(a)
    assert not a.can_repeat(row)


def test_a_contexts_memory(context):
    assert (context.used_mem, context.mem_size, context.max_tensor_size) == (0, 512 << 20, 0)
    context.new_tensor("f32", 10)
    first = context.used_mem
    context.new_tensor("f32", 100)
    assert context.used_mem == 2 * first
    assert context.max_tensor_size == 400


@pytest.mark.parametrize("name", ["x" * 63, "ß" * 31, ""])
def test_names_that_fit(name, context):
    assert context.new_tensor("f32", 1, name=name).name == name


@pytest.mark.parametrize("name", ["x" * 64, "ß" * 32, "世" * 22])
def test_names_that_would_be_cut(name, context):
    with pytest.raises(ggml.ArgumentError, match=rf"has {len(name.encode())} bytes.*at most 63"):
        context.new_tensor("f32", 1).name = name


# --- parts


def test_views_up_to_the_last_byte(context):
    a = context.new_tensor("f32", 8, 4)
    q = context.new_tensor("q4_0", 64, 4)
    for make in (
        lambda: context.view_1d(a, 32, 0),
        lambda: context.view_1d(a, 1, 124),
        lambda: context.view_1d(a, 0, 128),
        lambda: context.view_2d(a, 2, 4, 32, 24),
        lambda: context.view_2d(a, 8, 2, 64, 32),
        lambda: context.view_3d(a, 2, 2, 2, 32, 64, 24),
        lambda: context.view_4d(a, 1, 2, 2, 2, 4, 32, 64, 24),
        lambda: context.view_2d(a, 8, 3, 0, 32),
        lambda: context.view_2d(q, 32, 4, 36, 18),
        lambda: context.view_1d(context.view_1d(a, 8, 96), 8, 0),
    ):
        view = make()
        assert view.view_offs + view.nbytes <= view.view_src.nbytes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c, a: c.view_1d(a, 33, 0), "ends at byte 132 of 'a'.*its 128 bytes"),
        (lambda c, a: c.view_1d(a, 1, 128), "from byte 128 on"),
        (lambda c, a: c.view_2d(a, 8, 2, 128, 0), "strides of 128 bytes.*ends at byte 160"),
        (lambda c, a: c.view_2d(a, 2, 4, 32, 25), "ends at byte 129"),
        (lambda c, a: c.view_3d(a, 1, 1, 2, 4, 1 << 62, 0), "ends at byte"),
        (lambda c, a: c.view_4d(a, 1, 1, 1, 3, 4, 4, 64, 0), "ends at byte 132"),
        (lambda c, a: c.view_1d(c.view_1d(a, 8, 96), 9, 0), r"byte 96 \+ 0.*that it views"),
        (lambda c, a: c.view_2d(a, 8, 3, 0, 96), "ends at byte 192.*"),  # as upstream has it
        (lambda c, a: c.view_1d(a, -1, 0), "ne0=-1"),
        (lambda c, a: c.view_1d(c.new_tensor("q4_0", 64), 33, 0), "multiple of 32"),
    ],
)  # fmt: skip
def test_parts_past_the_end(make, message, context):
    a = context.new_tensor("f32", 8, 4, name="a")
    n = sum(1 for _ in context)
    with pytest.raises(ggml.ArgumentError, match=message):
        make(context, a)
    assert sum(1 for _ in context) <= n + 1  # the part itself, and no view

"""What the docstrings of ops say (vendor/ops_*.toml) is what the ops do."""

import inspect
import math
import re

import numpy as np
import pytest

import ggml_py as ggml
from ggml_py.boundary.ffi import ffi
from ggml_py.graphs.ops import Ops
from vendor import bindgen_py, op_docs
from vendor.headers import Function, Param

from ..support.op_examples import Example, Recorder, Shapes, gradients

pytestmark = pytest.mark.needs(release="default")

OPS = [name for name, member in vars(Ops).items() if inspect.isfunction(member) and name[0] != "_"]
NAMES = {name: name.rstrip("_") for name in OPS}
# What a row's first operand is of is only said in words.
FLOATS = ("f32", "f16", "bf16")


@pytest.fixture(params=OPS, name="op")
def _op(request):
    return request.param


@pytest.fixture(name="example")
def _example(op):
    made = Example(op)
    yield made
    made.close()


def test_every_op_has_a_row_and_every_row_an_op():
    assert len(OPS) >= 227
    assert [name for name in OPS if op_docs.row(name) is None] == []
    assert set(op_docs.rows()) <= set(OPS)


def test_a_docstring_says_it_all(op):
    doc, row = inspect.getdoc(getattr(Ops, op)), op_docs.row(op)
    ne, *rest = row.shapes.partition(";")
    flat = " ".join(doc.split())
    for head, said in (
        ("", row.does),
        ("- Formula: ", f"`{row.formula}`."),
        ("- Shapes: ", f"`{ne}`{''.join(rest)}."),
        ("- Types: ", row.types),
        ("- Gradients: ", ", ".join(row.grad.split()) or "none"),
    ):
        assert f"{head}{said}" in flat
    assert all(f">>> {line}" in doc for line in row.example)
    assert doc.splitlines()[-1].endswith(")")
    assert f"C: ggml_tensor *ggml_{op.rstrip('_')}(" in doc


def test_a_docstring_is_markdown_as_the_page_of_the_api_shows_it(op):
    import markdown

    html = markdown.markdown(inspect.getdoc(getattr(Ops, op)))
    assert "<blockquote>" not in html
    assert html.count("<pre><code>&gt;&gt;&gt; ") == 1
    assert html.count("<li>") in (4, 5)
    assert "<em>" not in html
    assert "<a " not in html


def test_an_example_shows_what_it_gives(op, example):
    row = op_docs.row(op)
    if row.raises:
        with pytest.raises(getattr(ggml, row.raises)):
            example.run()
        return
    assert row.gives in inspect.getdoc(getattr(Ops, op))
    said = np.array(eval(row.gives, {"inf": math.inf}))
    found = np.array(example.run())
    assert found.shape == said.shape
    np.testing.assert_allclose(found, said, atol=1.1e-4)


@pytest.mark.parametrize("op", [op for op in OPS if not op_docs.row(op).raises])
def test_an_example_is_what_numpy_computes(op):
    example = Example(op)
    found = np.array(example.run())
    expected = np.asarray(example.in_numpy())
    example.close()
    assert found.size == expected.size
    # gelu and gelu_quick are looked up in a table of f16; rows of f16 are rounded
    np.testing.assert_allclose(found.ravel(), expected.ravel(), atol=2e-3)


@pytest.mark.parametrize("op", [op for op in OPS if not op_docs.row(op).raises])
def test_shapes_and_the_results_type(op):
    example = Example(op)
    example.run()
    Shapes(op_docs.row(op).shapes).check(example.call)
    said = op_docs.row(op).types.rpartition("-> ")[2].partition(" (")[0]
    if said.endswith("'s"):
        expected = example.call.operands[said.removesuffix("'s")].type
    else:
        expected = ggml.enums.Type[str(example.call.arguments.get(said, said)).upper()]
    assert example.call.result.type == expected
    example.close()


@pytest.mark.parametrize("op", [op for op in OPS if not op_docs.row(op).raises])
def test_gradients_are_upstreams(op):
    """An operand of the example is a parameter, the result's sum the loss."""
    found = gradients(op)
    assert {name for name, has in found.items() if has} == set(op_docs.row(op).grad.split())


def _types_of_first(row):
    """The types of a row's first operand, where a list says them: "a f32, f16; b a's -> a's"."""
    listed = re.match(r"\w+ ((?:f32|f16|bf16)(?:, (?:f32|f16|bf16))*)(?: ->|; b a's ->)", row.types)
    return listed[1].split(", ") if listed else None


LISTED = [op for op in OPS if _types_of_first(op_docs.row(op))]


@pytest.mark.parametrize("type_", FLOATS)
@pytest.mark.parametrize("op", LISTED)
def test_these_types_and_no_others(op, type_):
    row = op_docs.row(op)
    example = Example(op)
    tensor = example.names["tensor"]
    example.names["tensor"] = lambda values, type=None: tensor(values, type_)
    try:
        if type_ in _types_of_first(row):
            found = np.array(example.run())
            said = np.array(eval(row.gives, {"inf": math.inf}))
            np.testing.assert_allclose(found, said, atol=0.03, rtol=0.02)
        else:
            with pytest.raises(ggml.AbortError):
                example.run()
    finally:
        example.close()


def test_how_many_rows_list_their_types():
    assert len(LISTED) > 100


@pytest.mark.parametrize("op", [op for op in OPS if op_docs.row(op).defaults])
def test_defaults_are_those_of_the_row(op):
    parameters = inspect.signature(getattr(Ops, op)).parameters
    expected = {name: eval(text) for name, text in op_docs.row(op).default_of.items()}
    found = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    assert found == expected
    assert [type(v) for v in found.values()] == [type(v) for v in expected.values()]


@pytest.mark.parametrize("op", [op for op in OPS if op_docs.row(op).defaults])
def test_a_default_is_as_if_it_were_given(op):
    short, full = Example(op), Example(op)
    full.run()
    again = getattr(full.ctx, op)(**full.call.arguments)
    short.run()
    assert again.op == short.call.result.op == full.call.result.op
    assert bytes(_params(again)) == bytes(_params(full.call.result))
    assert again.ne == full.call.result.ne
    short.close()
    full.close()


def _params(tensor):
    return ffi.buffer(tensor.ptr.op_params)


def test_an_op_that_is_newer_than_the_table_says_so():
    tensor = "struct ggml_tensor *"
    f = Function(
        "ggml_of_tomorrow", "ggml.h", tensor,
        (Param("ctx", "struct ggml_context *"), Param("a", tensor)), False,
        "struct ggml_tensor *ggml_of_tomorrow(struct ggml_context *ctx, struct ggml_tensor *a)",
    )  # fmt: skip
    text = bindgen_py._method(f)
    assert "No description: this op is newer than the table" in text
    assert "C: ggml_tensor *ggml_of_tomorrow(ggml_context *ctx, ggml_tensor *a)" in text


def test_defaults_end_where_a_release_has_another_argument():
    def named(*names):
        params = tuple(Param(name, "float") for name in names)
        return Function("ggml_rope_ext", "ggml.h", "", params, False, "")

    assert bindgen_py._defaults(named("freq_base", "beta_slow"), "rope_ext") == {
        "freq_base": "10000.0",
        "beta_slow": "1.0",
    }
    assert bindgen_py._defaults(named("freq_base", "new", "beta_slow"), "rope_ext") == {
        "beta_slow": "1.0"
    }
    assert bindgen_py._defaults(named("freq_base", "new"), "rope_ext") == {}


def test_shapes_would_notice():
    example = Example("mul_mat")
    example.run()
    for wrong in (
        "a [k, n], b [k, m] -> [m, n]",
        "a [k, n], b [k, n] -> [n, n]",
        "a [k, n, a2, a3], b [m, k, b2, b3] -> [n, m, b2, b3]",
        "a [k, n] -> [n, 1]",
    ):
        with pytest.raises(AssertionError):
            Shapes(wrong).check(example.call)
    example.close()


def test_a_recorder_notes_one_op():
    with ggml.Context() as ctx:
        seen = []
        recorder = Recorder(ctx, "sqr", seen.append)
        a = ctx.new_tensor("f32", 2)
        recorder.sqr(recorder.sqrt(a))
        assert [list(arguments) for arguments in seen] == [["a"]]
        assert [call.result.op.name for call in recorder.calls] == ["SQR"]


BINARY = ("add", "sub", "mul", "div")
PAIRS = {("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("bf16", "f32")}


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("b", FLOATS)
@pytest.mark.parametrize("a", FLOATS)
def test_types_of_two_operands(op, a, b):
    """a f32 with b f32; a f16 or bf16 with b of that type or f32."""
    example = Example(op)
    tensor, types = example.names["tensor"], iter((a, b))
    example.names["tensor"] = lambda values: tensor(values, next(types))
    try:
        if (a, b) in PAIRS:
            said = np.array(eval(op_docs.row(op).gives))
            np.testing.assert_allclose(np.array(example.run()), said, rtol=0.02)
        else:
            with pytest.raises(ggml.AbortError):
                example.run()
    finally:
        example.close()


def gradient_of(make, *values):
    """The gradient of the last tensor of `values` when the loss is the sum of what `make` makes of
    them; None where upstream has none."""
    with ggml.Context() as ctx, ggml.device("CPU").init(n_threads=1) as cpu:
        made = [ctx.from_numpy(np.array(one, np.float32)) for one in values]
        made[-1].set_param()
        loss = ctx.sum(make(ctx, *made))
        loss.set_loss()
        graph = ctx.new_graph(64, grads=True)
        graph.build_forward_expand(loss)
        try:
            graph.build_backward_expand()
        except ggml.AbortError:
            return None
        found = graph.grad(made[-1])
        if found is None:
            return None
        ctx.alloc(cpu)
        graph.reset()
        cpu.compute(graph)
        return found.get().tolist()


@pytest.mark.parametrize("op", ["sub", "div"])
def test_b_has_a_gradient_where_it_has_the_shape_of_a(op):
    def make(ctx, a, b):
        return getattr(ctx, op)(a, b)

    assert "where it has a's ne" in op_docs.row(op).grad_note
    assert gradient_of(make, [[1, 2], [3, 4]], [[1, 1], [1, 1]]) is not None
    assert gradient_of(make, [[1, 2], [3, 4]], [1, 1]) is None


def test_a_mean_of_several_rows_may_not_be_the_second_to_have_a_gradient():
    assert "may have to be one row" in op_docs.row("mean").grad_note
    assert gradient_of(lambda ctx, a: ctx.mean(a), [[1, 2], [3, 4]]) == [[0.5, 0.5], [0.5, 0.5]]

    def second(ctx, a):
        return ctx.add(ctx.mean(a), ctx.sum_rows(ctx.sqr(a)))

    assert gradient_of(second, [1, 2]) == [2.5, 4.5]
    assert gradient_of(second, [[1, 2], [3, 4]]) is None


def test_the_gradient_of_what_add1_adds_is_a_mean():
    assert "is the mean over a row" in op_docs.row("add1").grad_note
    assert gradient_of(lambda ctx, a, b: ctx.add1(a, b), [1, 2, 3, 4], [10]) == [1.0]  # not 4
    assert gradient_of(lambda ctx, a, b: ctx.add1(a, b), [[1, 2], [3, 4]], [10]) is None


def test_which_unary_ops_have_gradients():
    note = op_docs.row("unary").grad_note
    some, constant = (re.findall(r"\b[a-z0-9]+\b", part) for part in note.split(";")[:2])
    for member in ggml.enums.UnaryOp:
        name = member.name.lower()
        if name == "count":
            continue
        found = gradient_of(lambda ctx, a, member=member: ctx.unary(a, member), [0.5, 1.5])
        assert (found is not None) == (name in some), name
        assert name not in constant or found is None


def test_which_gated_units_have_gradients():
    assert op_docs.row("glu_split").grad_note == "op swiglu has a, b"
    for member in ggml.enums.GluOp:
        if member.name == "COUNT":
            continue
        found = gradient_of(
            lambda ctx, a, b, member=member: ctx.glu_split(a, b, member), [1, 2], [3, 4]
        )
        assert (found is not None) == (member.name == "SWIGLU"), member


def test_a_cast_to_i32_has_no_gradient():
    assert op_docs.row("cast").grad_note == "none through i32"
    for type_, has in (("i32", False), ("f16", True)):
        found = gradient_of(
            lambda ctx, a, type_=type_: ctx.cast(ctx.cast(a, type_), "f32"), [1, 2]
        )
        assert (found is not None) == has

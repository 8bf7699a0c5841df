"""Profiles from a file of the user's own: how the rows of a record decide about other cases."""

from __future__ import annotations

from pathlib import Path

import pytest

import ggml_py as ggml

has_top_k = pytest.mark.needs("Op.TOP_K")


def written(path: Path, *rows: tuple[str, str, int]) -> Path:
    lines = ['"backend_name","op_name","op_params","test_mode","supported","error_message"']
    for op, params, supported in rows:
        lines.append(f'"X0","{op}","{params}","support","{supported}","-"')
    path.write_text("\n".join(lines) + "\n")
    return path


def top_k(*ne, k=4):
    context = ggml.Context()
    return context.top_k(context.new_tensor("f32", *ne), k)


@pytest.fixture
def own(tmp_path):
    return written(
        tmp_path / "card.csv",
        ("TOP_K", "type=f32,ne=[256,1,1,1],k=4,ties=0", 1),
        ("TOP_K", "type=f32,ne=[1024,1,1,1],k=4,ties=0", 1),
        ("TOP_K", "type=f32,ne=[4096,1,1,1],k=4,ties=0", 0),
        ("RELU", "type=f32,ne_a=[8,8,1,1],v=0", 1),
        ("RELU", "type=f32,ne_a=[64,8,1,1],v=0", 1),
        ("RELU", "type=f32,ne_a=[8,8,1,1],v=1", 0),
        ("SILU", "type=f32,ne_a=[8,8,1,1],v=0", 1),
        ("SILU", "type=f32,ne_a=[8,8,1,1],v=0", 0),
    )


@has_top_k
def test_a_file_of_the_users_own(own):
    card = ggml.load_profile(own)
    found = card.decide(top_k(1024))
    assert found.supported
    assert found.basis == "exact"
    assert found.row == "TOP_K(type=f32,ne=[1024,1,1,1],k=4,ties=0)"
    assert found.text == f"yes: tested: {found.row}"
    assert card.ops == ("RELU", "SILU", "TOP_K")


@has_top_k
def test_where_rows_differ_the_nearest_in_size_decides(own):
    card, strict = ggml.load_profile(own), ggml.load_profile(own, strict=True)
    supported = [n for n in (300, 1536, 3072, 100_000) if card.supports(top_k(n))]
    assert supported == [300, 1536]
    found = card.decide(top_k(3072))
    assert found.basis == "nearest"
    assert "differ (2 yes, 1 no), the nearest in size: TOP_K(type=f32,ne=[4096" in found.text
    assert not strict.supports(top_k(300))
    assert "(strict)" in strict.decide(top_k(300)).text


def test_where_all_rows_agree_their_answer_holds(own):
    context = ggml.Context()
    relu = context.relu(context.new_tensor("f32", 4096, 512))
    found = ggml.load_profile(own, strict=True).decide(relu)
    assert found.supported
    assert found.basis == "agreed"
    assert "all 2 rows of RELU with type=f32, v=0 say so, the nearest: RELU(" in found.text


def test_types_and_flags_without_a_row(own):
    card, strict = ggml.load_profile(own), ggml.load_profile(own, strict=True)
    context = ggml.Context()
    half = context.relu(context.new_tensor("f16", 8, 8))
    for device in (card, strict):
        found = device.decide(half)
        assert not found.supported
        assert found.row is None
        assert found.text.startswith("unknown: ") and found.basis == "unknown"
        assert "no row has type=f16, which counts as not supported" in found.text
    strange = context.silu(context.view_2d(context.new_tensor("f32", 16, 8), 8, 8, 64, 0))
    assert card.decide(strange).basis == "unrecorded"
    assert "the most similar" in card.decide(strange).text
    assert not strict.supports(strange)


@pytest.mark.parametrize(
    ("size", "k", "v", "missing"),
    [
        (64, "f16", "f16", ""),
        (128, "q8_0", "q8_0", ""),
        (32, "f16", "f16", "hsk=32"),
        (64, "q5_1", "f16", "type_K=q5_1"),
        (64, "q8_0", "q8_0", "type_K=q8_0, type_V=q8_0, hsk=64, hsv=64"),
        (128, "q8_0", "f16", "type_K=q8_0, type_V=f16, hsk=128, hsv=128"),
    ],
)  # fmt: skip
def test_types_and_head_sizes_are_unknown_if_no_row_has_them_together(
    tmp_path, size, k, v, missing
):
    """The nearest size or type says nothing about them: backends have kernels for some only."""
    row = "hsk={0},hsv={0},nh=4,nr23=[1,1],kv=512,nb=1,mask=1,sinks=0,max_bias=0.0,"
    row += "logit_softcap=0.0,prec=f32,type_K={1},permute=[0,1,2,3],type_V={1}"
    rows = [("FLASH_ATTN_EXT", row.format(n, kind), 1) for n, kind in
            ((64, "f16"), (128, "f16"), (128, "q8_0"))]  # fmt: skip
    card = ggml.load_profile(written(tmp_path / "card.csv", *rows))
    with ggml.Context() as ctx:
        q = ctx.new_tensor("f32", size, 1, 4)
        cache = [ctx.new_tensor(kind, size, 512, 4) for kind in (k, v)]
        mask = ctx.new_tensor("f16", 512, 64)
        found = card.decide(ctx.flash_attn_ext(q, *cache, mask, 1.0, 0.0, 0.0))
    assert found.supported == (not missing)
    assert (found.basis == "unknown") == bool(missing)
    assert f"no row has {missing}, which counts" in found.text if missing else found.row


def test_rows_that_contradict_each_other_are_no(own):
    context = ggml.Context()
    silu = context.silu(context.new_tensor("f32", 8, 8))
    assert not ggml.load_profile(own).supports(silu)


def test_an_op_without_rows_is_no_and_a_view_is_yes(own):
    context = ggml.Context()
    x = context.new_tensor("f32", 8, 8)
    card = ggml.load_profile(own)
    found = card.decide(context.sqr(x))
    assert found.text.startswith("unknown: ") and "has no row of SQR" in found.text
    for view in (x, context.reshape_1d(x, 64), context.transpose(x), context.view_1d(x, 8, 0)):
        found = card.decide(view)
        assert found.supported
        assert found.basis == "view"

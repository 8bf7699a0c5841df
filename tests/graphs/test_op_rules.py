"""Shape errors of the most used ops state the rule and the operands (boundary/op_rules.py)."""

import re

import pytest

import ggml_py as ggml
from ggml_py.boundary import op_rules
from vendor import cache, identity, releases

pytestmark = pytest.mark.needs(release="default")


def t(*ne, type="f32"):
    return lambda c: c.new_tensor(type, *ne)


def i32(*ne):
    return t(*ne, type="i32")


def f16(*ne):
    return t(*ne, type="f16")


def turned(*ne):
    return lambda c: c.transpose(c.new_tensor("f32", *ne))


# op, its arguments, what the message says of them
MISTAKES = [
    ("add", [t(8, 8), t(7)], "got a [8, 8], b [7]"),
    ("sub", [t(8), t(8, 8)], "got a [8], b [8, 8]"),
    ("mul_inplace", [t(8, 8), t(8, 3)], "got a [8, 8], b [8, 3]"),
    ("div", [t(8, 8), t(8, 8, 2)], "got a [8, 8], b [8, 8, 2]"),
    ("repeat", [t(8, 8), t(12, 8)], "got a [8, 8], b [12, 8]"),
    ("repeat_4d", [t(8, 8), 12, 8, 1, 1], "got a [8, 8] and [12, 8, 1, 1]"),
    ("mul_mat", [t(4, 3), t(5, 3)], "the same ne[0], .*got a [4, 3], b [5, 3]"),
    ("mul_mat", [turned(4, 3), t(3, 3)], "ctx.cont(a) makes a contiguous copy"),
    ("mul_mat_id", [turned(4, 3), t(3, 1), i32(1)], "ctx.cont(as_)"),
    ("mul_mat_id", [t(4, 3, 2), t(4, 1, 1), t(1, 1)], "must be i32: got f32"),
    ("mul_mat_id", [t(4, 3, 2, 2), t(4, 1, 1), i32(1, 1)], "got as [4, 3, 2, 2]"),
    ("mul_mat_id", [t(4, 3, 2), t(4, 1, 1, 2), i32(1, 1)], "got b [4, 1, 1, 2]"),
    ("mul_mat_id", [t(4, 3, 2), t(4, 1, 1), i32(1, 1, 2)], "got ids [1, 1, 2]"),
    ("mul_mat_id", [t(4, 3, 2), t(4, 1, 5), i32(1, 6)], "got ids [1, 6], b [4, 1, 5]"),
    ("mul_mat_id", [t(4, 3, 2), t(5, 1, 6), i32(1, 6)], "got as [4, 3, 2], b [5, 1, 6]"),
    ("mul_mat_id", [t(4, 3, 2), t(4, 2, 6), i32(3, 6)], "got b [4, 2, 6], ids [3, 6]"),
    ("get_rows", [t(4, 3, 2), i32(5)], "ne[1] must equal a's ne[2]: got a [4, 3, 2], b [5]"),
    ("get_rows", [t(4, 3, 2, 2), i32(5, 2)], "equal a's ne[3]: got a [4, 3, 2, 2], b [5, 2]"),
    ("get_rows", [t(4, 3), i32(5, 1, 1, 2)], "got b [5, 1, 1, 2]"),
    ("get_rows", [t(4, 3), t(5)], "must be i32: got f32"),
    ("set_rows", [t(4, 3), t(5, 2), i32(2)], "got a [4, 3], b [5, 2]"),
    ("set_rows", [t(4, 3, 2), t(4, 2), i32(2)], "same ne[2]: got a [4, 3, 2], b [4, 2]"),
    ("set_rows", [t(4, 3, 1, 2), t(4, 2), i32(2)], "same ne[3]: got a [4, 3, 1, 2], b [4, 2]"),
    ("set_rows", [t(4, 3), t(4, 2), i32(3)], "got b [4, 2], c [3]"),
    ("set_rows", [t(4, 3, 3), t(4, 2, 3), i32(2, 2)], "got b [4, 2, 3], c [2, 2]"),
    ("set_rows", [t(4, 3, 1, 3), t(4, 2, 1, 3), i32(2, 1, 2)], "c's ne[2]: .*c [2, 1, 2]"),
    ("set_rows", [t(4, 3), t(4, 2), i32(2, 1, 1, 2)], "got c [2, 1, 1, 2]"),
    ("set_rows", [t(4, 3), i32(4, 2), i32(2)], "f32 or f16.*got i32"),
    ("set_rows", [t(4, 3), t(4, 2), t(2)], "must be i64 or i32: got f32"),
    ("set_rows", [turned(3, 4), t(4, 2), i32(2)], "those of a [4, 3] are not"),
    ("set_rows", [t(4, 3), turned(2, 4), i32(2)], "ctx.cont(b) makes"),
    ("concat", [t(8), t(8), 4], "dim must be 0, 1, 2 or 3, in ggml's order: got 4"),
    ("concat", [t(8), f16(8), 0], "got f32, f16"),
    ("concat", [t(8, 8), t(7, 3), 0], "except in dim 0: got a [8, 8], b [7, 3]"),
    ("reshape", [turned(4, 3), t(12)], "a [3, 4] is not: ctx.cont(a)"),
    ("reshape", [t(4, 3), t(11)], "same number of elements: got a [4, 3], b [11]"),
    ("reshape_1d", [t(4, 3), 11], "got a [4, 3] and [11]"),
    ("reshape_2d", [t(8, 8), 5, 5], "got a [8, 8] and [5, 5]"),
    ("reshape_3d", [t(8, 8), 5, 5, 2], "got a [8, 8] and [5, 5, 2]"),
    ("reshape_4d", [t(8, 8), 2, 2, 2, 2], "got a [8, 8] and [2, 2, 2, 2]"),
    ("cpy", [t(8, 8), t(63)], "got a [8, 8], b [63]"),
    ("soft_max", [turned(4, 3)], "a [3, 4] is not: ctx.cont(a)"),
    ("soft_max_ext", [t(4, 3), i32(4, 3), 1.0], "mask must be f16 or f32: got i32"),
    ("soft_max_ext", [t(4, 3), turned(3, 4), 1.0], "mask [4, 3] is not: ctx.cont(mask)"),
    ("soft_max_ext", [t(8, 8), t(4, 8), 1.0], "same ne[0]: got a [8, 8], mask [4, 8]"),
    ("soft_max_ext", [t(8, 8), t(8, 4), 1.0], "got a [8, 8], mask [8, 4]"),
    ("soft_max_ext", [t(8, 8, 3), t(8, 8, 2), 1.0], "mask's ne[2]: .*mask [8, 8, 2]"),
    ("soft_max_ext", [t(8, 8, 1, 3), t(8, 8, 1, 2), 1.0], "mask's ne[3]: .*mask [8, 8, 1, 2]"),
    ("soft_max_ext", [t(8, 8), None, 1.0, 2.0], "got max_bias 2, no mask"),
    ("rope", [t(8, 2, 3), i32(3), 8, 1], "mode must be even.*got 1"),
    ("rope_ext", [t(8, 2, 3), i32(3, 2), None, 8, 0], "must have 1 dimension: got b [3, 2]"),
    ("rope", [t(8, 2, 3), t(3), 8, 0], "must be i32: got f32"),
    ("rope", [t(8, 2, 3), i32(5), 8, 0], "got a [8, 2, 3], b [5]"),
    ("rope_multi", [t(8, 2, 3), i32(3), None, 8, [2, 2, 0, 0], 8], "four times a's ne[2]"),
    ("rope_ext", [t(8, 2, 3), i32(3), f16(4), 8, 0], "must be f32: got f16"),
    ("rope_ext_inplace", [t(8, 2, 3), i32(3), t(3), 8, 0], "got c [3], n_dims 8"),
    ("flash_attn_ext", [t(64, 4, 2), f16(32, 4, 2), f16(64, 4, 2), None, 1.0],
     "got q [64, 4, 2], k [32, 4, 2]"),
    ("flash_attn_ext", [t(64, 4, 2, 2), f16(64, 4, 2), f16(64, 4, 2, 2), None, 1.0],
     "q and k must have the same ne[3]"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2, 2), None, 1.0],
     "q and v must have the same ne[3]"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2), t(4, 4), 1.0],
     "mask must be f16.*got f32"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2),
                        lambda c: c.transpose(c.new_tensor("f16", 4, 3)), 1.0], "ctx.cont(mask)"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2), f16(4, 4, 3), 1.0],
     "q's ne[2] .*got q [64, 4, 2], mask [4, 4, 3]"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2), f16(4, 4, 1, 3), 1.0],
     "mask's ne[3]: .*mask [4, 4, 1, 3]"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2), None, 1.0, 2.0],
     "got max_bias 2, no mask"),
    ("flash_attn_ext", [f16(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2), None, 1.0],
     "q must be f32: got f16"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 5, 2), None, 1.0],
     "got k [64, 4, 2], v [64, 5, 2]"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 3), None, 1.0],
     "got q [64, 4, 2], v [64, 4, 3]"),
    ("flash_attn_ext", [t(64, 4, 2), f16(64, 4, 2), f16(64, 4, 2), f16(4, 3), 1.0],
     "got q [64, 4, 2], k [64, 4, 2], mask [4, 3]"),
    ("conv_2d", [f16(3, 3, 5, 1), t(2, 2, 5, 1), 1, 1, 0, 0], "got a [3, 3, 5], b [2, 2, 5]"),
    ("conv_1d", [f16(3, 4, 2), t(2, 4), 1, 0], "got a [3, 4, 2], b [2, 4]"),
    ("conv_2d_dw", [f16(3, 3, 1, 5), t(2, 2, 5), 1, 1, 0, 0], "got a [3, 3, 1, 5], b [2, 2, 5]"),
    ("conv_2d", [f16(3, 3, 5, 1), t(9, 9, 4, 1), 1, 1, 0, 0], "same ne[2]: .*b [9, 9, 4]"),
    ("conv_2d_direct", [f16(3, 3, 5, 1), t(9, 9, 4, 1), 1, 1, 0, 0], "same ne[2]: .*b [9, 9, 4]"),
    ("conv_1d", [f16(3, 4, 2), t(9, 5), 1, 0], "same ne[1]: got a [3, 4, 2], b [9, 5]"),
    ("conv_1d_ph", [f16(3, 4, 2), t(9, 4, 1, 2), 1], "got b [9, 4, 1, 2]"),
    ("conv_2d", [f16(3, 3, 5, 1), t(9, 9, 5, 1), 0, 1, 0, 0], "strides must be above 0"),
    ("conv_2d_direct", [f16(3, 3, 5, 1), f16(9, 9, 5, 1), 1, 1, 0, 0], "got f16"),
    ("conv_2d_direct", [lambda c: c.view_2d(c.new_tensor("f32", 9, 9), 3, 3, 36, 0),
                        t(9, 9), 1, 1, 0, 0], "a [3, 3] is not: ctx.cont(a)"),
    ("conv_2d_dw_direct", [t(3, 3, 2, 5), t(9, 9, 5), 1, 1, 0, 0], "got a [3, 3, 2, 5]"),
    ("conv_2d_dw_direct", [t(3, 3, 1, 4), t(9, 9, 5), 1, 1, 0, 0], "ne[3] must equal b's ne[2]"),
    ("conv_transpose_1d", [t(3, 2, 4), t(9, 4, 2), 1], "got b [9, 4, 2]"),
    ("conv_transpose_1d", [t(3, 2, 4), t(9, 5), 1], "got a [3, 2, 4], b [9, 5]"),
    ("conv_transpose_1d", [t(3, 2, 4, 2), t(9, 4), 1], "got a [3, 2, 4, 2]"),
    ("conv_transpose_1d", [t(3, 2, 4), t(9, 4), 1, 1], "p0 must be 0: got 1"),
    ("conv_transpose_1d", [t(3, 2, 4), t(9, 4), 1, 0, 2], "d0 must be 1: got 2"),
    ("conv_transpose_2d_p0", [t(3, 3, 2, 4), t(9, 9, 5), 1], "got a [3, 3, 2, 4], b [9, 9, 5]"),
    ("permute", [t(4, 3), 0, 0, 1, 2], "in some order: got 0, 0, 1, 2"),
    ("permute", [t(4, 3), 0, 1, 2, 4], "in some order: got 0, 1, 2, 4"),
]  # fmt: skip


def error_of(op, arguments):
    with ggml.Context() as ctx:
        made = [one(ctx) if callable(one) else one for one in arguments]
        with pytest.raises(ggml.AbortError) as caught:
            getattr(ctx, op)(*made)
    return caught.value


def rule(error):
    """The number of the rule that said it."""
    name, condition = error.call.removeprefix("ggml_").removesuffix("_inplace"), error.condition
    asserted = condition.removeprefix("GGML_ASSERT(").removesuffix(") failed")
    asserted = " ".join(asserted.split())
    found = [
        i
        for i, (ops, start, _) in enumerate(op_rules._TABLE)
        if re.fullmatch(ops, name) and op_rules._is(start, asserted)
    ]
    return found[0]


@pytest.mark.parametrize(("op", "arguments", "said"), MISTAKES)
def test_the_message_begins_with_the_rule(op, arguments, said):
    error = error_of(op, arguments)
    first, second, *operands = str(error).splitlines()
    assert first == f"ggml_{op}: {error.rule}"
    pieces = [re.escape(piece) for piece in said.split(".*")]
    assert re.search(".*".join(pieces), first), first
    assert second.startswith("  GGML_ASSERT(")
    assert operands[0].lstrip() == error.operands[0]


def test_each_rule_is_broken_once():
    broken = {rule(error_of(op, arguments)) for op, arguments, _ in MISTAKES}
    left = [op_rules._TABLE[i][:2] for i in range(len(op_rules._TABLE)) if i not in broken]
    assert left == []


# What upstream's constructors of these ops call.
CONSTRUCTORS = {
    "add": ["ggml_add_impl"], "sub": ["ggml_sub_impl"], "mul": ["ggml_mul_impl"],
    "div": ["ggml_div_impl"], "repeat": ["ggml_repeat"], "repeat_4d": ["ggml_repeat_4d"],
    "mul_mat": ["ggml_mul_mat"], "mul_mat_id": ["ggml_mul_mat_id"], "get_rows": ["ggml_get_rows"],
    "set_rows": ["ggml_set_rows"], "concat": ["ggml_concat"], "cpy": ["ggml_cpy_impl"],
    "reshape": ["ggml_reshape"], "reshape_1d": ["ggml_reshape_1d"],
    "reshape_2d": ["ggml_reshape_2d"], "reshape_3d": ["ggml_reshape_3d"],
    "reshape_4d": ["ggml_reshape_4d"], "permute": ["ggml_permute"],
    "soft_max_ext": ["ggml_soft_max_impl"], "rope_ext": ["ggml_rope_impl"],
    "rope_multi": ["ggml_rope_impl"], "flash_attn_ext": ["ggml_flash_attn_ext"],
    "im2col": ["ggml_im2col"], "conv_2d": ["ggml_im2col"], "conv_1d": ["ggml_im2col"],
    "conv_2d_direct": ["ggml_conv_2d_direct"], "conv_transpose_1d": ["ggml_conv_transpose_1d"],
    "conv_transpose_2d_p0": ["ggml_conv_transpose_2d_p0"],
}  # fmt: skip


@pytest.mark.parametrize("op", CONSTRUCTORS)
def test_no_assertion_of_upstream_is_without_words(op, upstream_ggml_c):
    asserted = []
    for name in CONSTRUCTORS[op]:
        declared = rf"\n(?:static |GGML_API )?struct ggml_tensor \* {name}\("
        body = re.search(rf"{declared}.*?\n}}\n", upstream_ggml_c, re.S)
        asserted += re.findall(r"^ *GGML_ASSERT\((.*)\);", body[0], re.M)
    assert asserted
    tensors = "".join(f"{n}: f32 [1, 1, 1, 1] ''\n" for n in ("a", "b", "c", "q", "k", "v", "as"))
    tensors += "mask: f32 [1, 1, 1, 1] ''\nids: f32 [1, 1, 1, 1] ''\n"
    numbers = ("dim", "mode", "n_dims", "max_bias", "p0", "d0", *(f"axis{i}" for i in range(4)))
    operands = tensors + "".join(f"{n}: 1\n" for n in (*numbers, "ne0", "ne1", "ne2", "ne3"))
    left = [
        one
        for one in asserted
        if not op_rules.rule_of(f"ggml_{op}", f"GGML_ASSERT({one}) failed", operands)
    ]
    assert left == []


@pytest.fixture(scope="module")
def upstream_ggml_c():
    """ggml.c of the pinned release, from the user's cache."""
    folder = cache.default_folder()
    with cache.Lock(folder):
        tree = identity.unpacked(releases.default(), folder, whole=False)
    return (tree / "ggml" / "src" / "ggml.c").read_text()


def test_another_assertion_is_shown_as_it_is():
    error = error_of("diag", [t(3, 3)])
    assert error.rule == ""
    assert str(error).startswith("ggml_diag: GGML_ASSERT(a->ne[1] == 1) failed at ggml.c:")
    assert op_rules.rule_of("ggml_add", "fatal error", "") == ""

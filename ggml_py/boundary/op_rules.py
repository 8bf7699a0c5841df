"""Explains the assertions in the constructors of the most used ops, with the operands given.

Upstream's message is only a C condition. A rule names its ops, the condition, and a sentence: {a}
is an operand with its ne, {a.type} its type, {dim} a number. Assertions of other ops or releases
have no rule, and are shown unchanged. tests/graphs/test_op_rules.py breaks each rule once. It also
checks that every assertion in upstream's constructors of these ops has a rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

CONT = "ctx.cont({0}) makes a contiguous copy"


@dataclass(frozen=True)
class NotedOperand:
    """An operand as the native guards recorded it."""

    name: str
    type: str
    ne: tuple[int, ...]

    def __str__(self) -> str:
        last = max((i for i, n in enumerate(self.ne) if n != 1), default=0)
        return f"{self.name} {list(self.ne[: last + 1])}"


_BINARY = "add|sub|mul|div"
_CONV = "im2col|conv_1d|conv_1d_ph|conv_2d|conv_2d_sk_p0|conv_2d_s1_ph"
_DEPTHWISE = "conv_1d_dw|conv_1d_dw_ph|conv_2d_dw"


def _contiguous(name: str) -> str:
    return f"{name} must be contiguous, and {{{name}}} is not: {CONT.format(name)}"


def _i32(name: str, what: str) -> str:
    return f"{name} holds {what} and must be i32: got {{{name}.type}}"


# (ops without "ggml_" and "_inplace", condition, sentence)
_TABLE = (
    (_BINARY, "ggml_can_repeat(b, a)", "b is broadcast to a, so each ne of a must be a multiple of "
     "b's: got {a}, {b}"),
    ("repeat", "ggml_can_repeat(a, b)", "a is repeated to b's shape, so each ne of b must be a "
     "multiple of a's: got {a}, {b}"),
    ("repeat_4d", "can_repeat", "each new ne must be a multiple of a's: got {a} and "
     "[{ne0}, {ne1}, {ne2}, {ne3}]"),
    ("mul_mat", "ggml_can_mul_mat(a, b)", "a and b must have the same ne[0], and ne[2] and ne[3] "
     "of b must be multiples of a's: got {a}, {b}"),
    ("mul_mat", "!ggml_is_transposed(a)", "a must not be transposed: " + CONT.format("a")
     + "; got {a}, {b}"),
    ("mul_mat_id", "!ggml_is_transposed(as)", "as must not be transposed: " + CONT.format("as_")
     + "; got {as}"),
    ("mul_mat_id", "ids->type == GGML_TYPE_I32", _i32("ids", "expert numbers")),
    ("mul_mat_id", "as->ne[3] == 1", "as is [k, n, n_expert] and has at most 3 dimensions: got "
     "{as}"),
    ("mul_mat_id", "b->ne[3] == 1", "b is [k, n_used, n_tokens] and has at most 3 dimensions: got "
     "{b}"),
    ("mul_mat_id", "ids->ne[2] == 1 && ids->ne[3] == 1", "ids is [n_used, n_tokens] and has at "
     "most 2 dimensions: got {ids}"),
    ("mul_mat_id", "ids->ne[1] == b->ne[2]", "ids holds the experts of each token of b, so ids' "
     "ne[1] must equal b's ne[2]: got {ids}, {b}"),
    ("mul_mat_id", "as->ne[0] == b->ne[0]", "as and b must have the same ne[0]: got {as}, {b}"),
    ("mul_mat_id", "ids->ne[0] % b->ne[1] == 0", "the rows of b are broadcast to the experts of "
     "each token, so ids' ne[0] must be a multiple of b's ne[1]: got {b}, {ids}"),
    ("get_rows", "a->ne[2] == b->ne[1]", "b holds row numbers for each matrix of a, so b's ne[1] "
     "must equal a's ne[2]: got {a}, {b}"),
    ("get_rows", "a->ne[3] == b->ne[2]", "b holds row numbers for each matrix of a, so b's ne[2] "
     "must equal a's ne[3]: got {a}, {b}"),
    ("get_rows", "b->ne[3] == 1", "b must have at most 3 dimensions: got {b}"),
    ("get_rows", "b->type == GGML_TYPE_I32", _i32("b", "row numbers")),
    ("set_rows", "a->ne[0] == b->ne[0]", "the rows of b replace rows of a, so both must have the "
     "same ne[0]: got {a}, {b}"),
    ("set_rows", "a->ne[2] == b->ne[2]", "b holds rows for each matrix of a, so both must have the "
     "same ne[2]: got {a}, {b}"),
    ("set_rows", "a->ne[3] == b->ne[3]", "b holds rows for each matrix of a, so both must have the "
     "same ne[3]: got {a}, {b}"),
    ("set_rows", "b->ne[1] == c->ne[0]", "c holds one row number for each row of b, so c's ne[0] "
     "must equal b's ne[1]: got {b}, {c}"),
    ("set_rows", "b->ne[2] % c->ne[1] == 0", "c is broadcast to b, so b's ne[2] must be a multiple "
     "of c's ne[1]: got {b}, {c}"),
    ("set_rows", "b->ne[3] % c->ne[2] == 0", "c is broadcast to b, so b's ne[3] must be a multiple "
     "of c's ne[2]: got {b}, {c}"),
    ("set_rows", "c->ne[3] == 1", "c must have at most 3 dimensions: got {c}"),
    ("set_rows", "b->type == GGML_TYPE_F32 || b->type == GGML_TYPE_F16", "b must be f32 or f16 "
     "(its rows are converted to a's type): got {b.type}"),
    ("set_rows", "c->type == GGML_TYPE_I64 || c->type == GGML_TYPE_I32", "c holds row numbers and "
     "must be i64 or i32: got {c.type}"),
    ("set_rows", "ggml_is_contiguous_rows(a)", "the elements of each row of a must be contiguous, "
     "and those of {a} are not. Rows are written into a itself, so a copy does not help"),
    ("set_rows", "ggml_is_contiguous_rows(b)", "the elements of each row of b must be contiguous, "
     "and those of {b} are not: " + CONT.format("b")),
    ("concat", "dim >= 0 && dim < GGML_MAX_DIMS", "dim must be 0, 1, 2 or 3, in ggml's order: got "
     "{dim}"),
    ("concat", "a->type == b->type", "a and b must have the same type (ctx.cast converts): got "
     "{a.type}, {b.type}"),
    ("concat", "a->ne[d] == b->ne[d]", "a and b must have the same ne except in dim {dim}: got "
     "{a}, {b}"),
    ("reshape|reshape_1d|reshape_2d|reshape_3d|reshape_4d", "ggml_is_contiguous(a)",
     _contiguous("a")),
    ("reshape|cpy", "ggml_nelements(a) == ggml_nelements(b)", "a and b must have the same number "
     "of elements: got {a}, {b}"),
    ("reshape_1d", "ggml_nelements(a) == ne0", "the new shape must have as many elements as a: got "
     "{a} and [{ne0}]"),
    ("reshape_2d", "ggml_nelements(a) == ne0*ne1", "the new shape must have as many elements as a: "
     "got {a} and [{ne0}, {ne1}]"),
    ("reshape_3d", "ggml_nelements(a) == ne0*ne1*ne2", "the new shape must have as many elements "
     "as a: got {a} and [{ne0}, {ne1}, {ne2}]"),
    ("reshape_4d", "ggml_nelements(a) == ne0*ne1*ne2*ne3", "the new shape must have as many "
     "elements as a: got {a} and [{ne0}, {ne1}, {ne2}, {ne3}]"),
    ("soft_max|soft_max_ext", "ggml_is_contiguous(a)", _contiguous("a")),
    ("soft_max_ext", "mask->type == GGML_TYPE_F16 || mask->type == GGML_TYPE_F32", "mask must be "
     "f16 or f32: got {mask.type}"),
    ("soft_max_ext|flash_attn_ext", "ggml_is_contiguous(mask)", _contiguous("mask")),
    ("soft_max_ext", "mask->ne[0] == a->ne[0]", "mask is added to the rows of a, so both must have "
     "the same ne[0]: got {a}, {mask}"),
    ("soft_max_ext", "mask->ne[1] >= a->ne[1]", "mask needs a row for each row of a, so its ne[1] "
     "must be at least a's: got {a}, {mask}"),
    ("soft_max_ext", "a->ne[2]%mask->ne[2] == 0", "mask is broadcast to a, so a's ne[2] must be a "
     "multiple of mask's ne[2]: got {a}, {mask}"),
    ("soft_max_ext", "a->ne[3]%mask->ne[3] == 0", "mask is broadcast to a, so a's ne[3] must be a "
     "multiple of mask's ne[3]: got {a}, {mask}"),
    ("soft_max_ext|flash_attn_ext", "mask", "max_bias above 0 needs a mask: got max_bias "
     "{max_bias}, no mask"),
    ("rope.*", "(mode & 1) == 0 &&", "mode must be even (0 pairs neighbours, 2 (NeoX) pairs the "
     "two halves): got {mode}"),
    ("rope.*", "ggml_is_vector(b)", "b holds one position for each token and must have 1 "
     "dimension: got {b}"),
    ("rope.*", "b->type == GGML_TYPE_I32", _i32("b", "positions")),
    ("rope.*", "a->ne[2] * 4 == b->ne[0]", "in this mode b holds four positions for each token, so "
     "b's ne[0] must be four times a's ne[2]: got {a}, {b}"),
    ("rope.*", "a->ne[2] == b->ne[0]", "b holds one position for each token, so b's ne[0] must "
     "equal a's ne[2] (a is [n_embd, n_head, n_tokens]): got {a}, {b}"),
    ("rope.*", "c->type == GGML_TYPE_F32", "c holds frequency factors and must be f32: got "
     "{c.type}"),
    ("rope.*", "c->ne[0] >= n_dims / 2", "c needs a frequency factor for each of the n_dims / 2 "
     "pairs: got {c}, n_dims {n_dims}"),
    ("flash_attn_ext", "ggml_can_mul_mat(k, q)", "q and k must have the same ne[0], and ne[2] and "
     "ne[3] of q must be multiples of k's: got {q}, {k}"),
    ("flash_attn_ext", "q->ne[3] == k->ne[3]", "q and k must have the same ne[3]: got {q}, {k}"),
    ("flash_attn_ext", "q->ne[3] == v->ne[3]", "q and v must have the same ne[3]: got {q}, {v}"),
    ("flash_attn_ext", "mask->type == GGML_TYPE_F16", "mask must be f16 (ctx.cast converts): got "
     "{mask.type}"),
    ("flash_attn_ext", "q->ne[2] % mask->ne[2] == 0", "mask is broadcast to the heads of q, so q's "
     "ne[2] must be a multiple of mask's: got {q}, {mask}"),
    ("flash_attn_ext", "q->ne[3] % mask->ne[3] == 0", "mask is broadcast to q, so q's ne[3] must "
     "be a multiple of mask's ne[3]: got {q}, {mask}"),
    ("flash_attn_ext", "q->type == GGML_TYPE_F32", "q must be f32: got {q.type}"),
    ("flash_attn_ext", "k->ne[1] == v->ne[1]", "k and v hold one row for each token of the cache, "
     "so both must have the same ne[1] (v is not transposed): got {k}, {v}"),
    ("flash_attn_ext", "k->ne[2] > 0 && v->ne[2] > 0 && q->ne[2] % v->ne[2] == 0", "the heads of v "
     "are broadcast to those of q, so q's ne[2] must be a multiple of v's: got {q}, {v}"),
    ("flash_attn_ext", "mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1]", "mask needs a row for "
     "each row of q, with a number for each row of k, so its ne[0] must be at least k's ne[1] and "
     "its ne[1] at least q's: got {q}, {k}, {mask}"),
    (f"{_CONV}|{_DEPTHWISE}", '(!is_2D || OH > 0) && "b too small', "the dilated kernel a must fit "
     "into the padded image b: got {a}, {b}"),
    (f"{_CONV}|{_DEPTHWISE}", '(OW > 0) && "b too small', "the dilated kernel a must fit into the "
     "padded image b: got {a}, {b}"),
    (f"{_CONV}|conv_2d_direct", "a->ne[2] == b->ne[2]", "the kernel a is [width, height, channels, "
     "output channels] and the image b [width, height, channels, images], so both must have the "
     "same ne[2]: got {a}, {b}"),
    (f"{_CONV}", "b->ne[1] == a->ne[1]", "the kernel a is [width, channels, output channels] and b "
     "[width, channels, rows], so both must have the same ne[1]: got {a}, {b}"),
    (f"{_CONV}", "b->ne[3] == 1", "b is [width, channels, rows] and has at most 3 dimensions: got "
     "{b}"),
    (f"{_CONV}|{_DEPTHWISE}|conv_2d_direct|conv_2d_dw_direct", "s > 0", "strides must be above 0"),
    ("conv_2d_direct|conv_2d_dw_direct", "image->type == GGML_TYPE_F32", "the image b must be f32: "
     "got {b.type}"),
    ("conv_2d_direct|conv_2d_dw_direct", "ggml_is_contiguously_allocated(kernel)", "the kernel a "
     "must be allocated without gaps, and {a} is not: " + CONT.format("a")),
    ("conv_2d_dw_direct", "a->ne[2] == 1", "the kernel a must be [width, height, 1, channels]: got "
     "{a}"),
    ("conv_2d_dw_direct", "a->ne[3] == b->ne[2]", "each channel has its own kernel, so a's ne[3] "
     "must equal b's ne[2]: got {a}, {b}"),
    ("conv_transpose_1d", "ggml_is_matrix(b)", "b is [width, channels] and has at most 2 "
     "dimensions: got {b}"),
    ("conv_transpose_1d", "a->ne[2] == b->ne[1]", "the kernel a is [width, output channels, "
     "channels] and b [width, channels], so a's ne[2] must equal b's ne[1]: got {a}, {b}"),
    ("conv_transpose_1d", "a->ne[3] == 1", "the kernel a must have at most 3 dimensions: got {a}"),
    ("conv_transpose_1d", "p0 == 0", "padding is not supported, p0 must be 0: got {p0}"),
    ("conv_transpose_1d", "d0 == 1", "dilation is not supported, d0 must be 1: got {d0}"),
    ("conv_transpose_2d_p0", "a->ne[3] == b->ne[2]", "the kernel a is [width, height, output "
     "channels, channels] and b [width, height, channels, images], so a's ne[3] must equal b's "
     "ne[2]: got {a}, {b}"),
    ("permute", "axis", "axis0 to axis3 must be 0, 1, 2 and 3 in some order: got {axis0}, {axis1}, "
     "{axis2}, {axis3}"),
)  # fmt: skip

_TENSOR = re.compile(r"(\w+): (\w+) \[([\d, ]+)\]")
_NUMBER = re.compile(r"(\w+): (\S+)$")


def rule_of(call: str, condition: str, operands: str) -> str:
    """The sentence that explains an assertion in an op's constructor, with the operands; or ""."""
    asserted = re.match(r"GGML_ASSERT\((.*)\) failed$", condition)
    if not asserted or not call.startswith("ggml_"):
        return ""
    condition = " ".join(asserted[1].split())
    op = call.removeprefix("ggml_").removesuffix("_inplace")
    for start, sentence in _rows(op):
        if _is(start, condition):
            try:
                return sentence.format(**_operands(operands))
            except (KeyError, AttributeError):  # a release with other arguments
                return ""
    return ""


@cache
def _rows(op: str) -> tuple[tuple[str, str], ...]:
    """The rows of an op. Cached: code that tries out shapes fails thousands of times."""
    return tuple((start, said) for ops, start, said in _TABLE if re.fullmatch(ops, op))


def _is(start: str, condition: str) -> bool:
    """Whether `start` is the condition, or its beginning where words or a number follow."""
    begun = start.endswith(("&&", "small", "axis")) and condition.startswith(start)
    return condition == start or begun


def _operands(text: str) -> dict[str, NotedOperand | str]:
    found: dict[str, NotedOperand | str] = {}
    for line in text.splitlines():
        if tensor := _TENSOR.match(line):
            ne = tuple(int(n) for n in tensor[3].split(", "))
            found[tensor[1]] = NotedOperand(tensor[1], tensor[2], ne)
        elif number := _NUMBER.match(line):
            found[number[1]] = number[2]
    return found

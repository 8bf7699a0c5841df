"""What assertions in the constructors of the most used ops mean, in words, with what was given.

Upstream's text is a condition of C. A rule has the ops that it is of, the condition, and a
sentence: {a} is an operand with its ne, {a.type} its type, {dim} a number. An assertion without a
rule, of another op or release, is shown as it is. tests/graphs/test_op_rules.py breaks each rule
once, and looks that no assertion of upstream's constructors of these ops is without one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

CONT = "ctx.cont({0}) makes a copy in line"


@dataclass(frozen=True)
class NotedOperand:
    """An operand as the guards noted it."""

    name: str
    type: str
    ne: tuple[int, ...]

    def __str__(self) -> str:
        last = max((i for i, n in enumerate(self.ne) if n != 1), default=0)
        return f"{self.name} {list(self.ne[: last + 1])}"


_BINARY = "add|sub|mul|div"
_CONV = "im2col|conv_1d|conv_1d_ph|conv_2d|conv_2d_sk_p0|conv_2d_s1_ph"
_DEPTHWISE = "conv_1d_dw|conv_1d_dw_ph|conv_2d_dw"


def _in_line(name: str) -> str:
    return f"{name} has to be contiguous, and {{{name}}} is not: {CONT.format(name)}"


def _i32(name: str, what: str) -> str:
    return f"{name} has {what}, in i32, and is {{{name}.type}}"


# (ops without "ggml_" and "_inplace", condition, sentence)
_TABLE = (
    (_BINARY, "ggml_can_repeat(b, a)", "b is repeated to a's ne, so that each of b's ne divides "
     "a's: got {a}, {b}"),
    ("repeat", "ggml_can_repeat(a, b)", "a is repeated to b's ne, so that each of a's ne divides "
     "b's: got {a}, {b}"),
    ("repeat_4d", "can_repeat", "each of a's ne has to divide the new one: got {a} and "
     "[{ne0}, {ne1}, {ne2}, {ne3}]"),
    ("mul_mat", "ggml_can_mul_mat(a, b)", "rows of a and b are multiplied, so that ne0 of both "
     "is the same, and a's matrices are repeated, so that a's ne2 and ne3 divide b's: got {a}, "
     "{b}"),
    ("mul_mat", "!ggml_is_transposed(a)", "a may not be transposed: " + CONT.format("a")
     + "; got {a}, {b}"),
    ("mul_mat_id", "!ggml_is_transposed(as)", "as may not be transposed: " + CONT.format("as_")
     + "; got {as}"),
    ("mul_mat_id", "ids->type == GGML_TYPE_I32", _i32("ids", "the experts' numbers")),
    ("mul_mat_id", "as->ne[3] == 1", "as is [k, n, n_expert], of three dimensions: got {as}"),
    ("mul_mat_id", "b->ne[3] == 1", "b is [k, n_used, n_tokens], of three dimensions: got {b}"),
    ("mul_mat_id", "ids->ne[2] == 1 && ids->ne[3] == 1", "ids is [n_used, n_tokens], of two "
     "dimensions: got {ids}"),
    ("mul_mat_id", "ids->ne[1] == b->ne[2]", "ids has experts for each token of b, so that ids' "
     "ne1 is b's ne2: got {ids}, {b}"),
    ("mul_mat_id", "as->ne[0] == b->ne[0]", "rows of as and b are multiplied, so that ne0 of both "
     "is the same: got {as}, {b}"),
    ("mul_mat_id", "ids->ne[0] % b->ne[1] == 0", "b's rows of a token are repeated for its "
     "experts, so that b's ne1 divides ids' ne0: got {b}, {ids}"),
    ("get_rows", "a->ne[2] == b->ne[1]", "b has numbers of rows for each matrix of a, so that b's "
     "ne1 is a's ne2: got {a}, {b}"),
    ("get_rows", "a->ne[3] == b->ne[2]", "b has numbers of rows for each matrix of a, so that b's "
     "ne2 is a's ne3: got {a}, {b}"),
    ("get_rows", "b->ne[3] == 1", "b has three dimensions at most: got {b}"),
    ("get_rows", "b->type == GGML_TYPE_I32", _i32("b", "the numbers of rows")),
    ("set_rows", "a->ne[0] == b->ne[0]", "rows of b become rows of a, so that ne0 of both is the "
     "same: got {a}, {b}"),
    ("set_rows", "a->ne[2] == b->ne[2]", "b has rows for each matrix of a, so that ne2 of both is "
     "the same: got {a}, {b}"),
    ("set_rows", "a->ne[3] == b->ne[3]", "b has rows for each matrix of a, so that ne3 of both is "
     "the same: got {a}, {b}"),
    ("set_rows", "b->ne[1] == c->ne[0]", "c has a number for each row of b, so that c's ne0 is b's "
     "ne1: got {b}, {c}"),
    ("set_rows", "b->ne[2] % c->ne[1] == 0", "c's numbers are repeated to b, so that c's ne1 "
     "divides b's ne2: got {b}, {c}"),
    ("set_rows", "b->ne[3] % c->ne[2] == 0", "c's numbers are repeated to b, so that c's ne2 "
     "divides b's ne3: got {b}, {c}"),
    ("set_rows", "c->ne[3] == 1", "c has three dimensions at most: got {c}"),
    ("set_rows", "b->type == GGML_TYPE_F32 || b->type == GGML_TYPE_F16", "b's rows are f32 or "
     "f16, which are converted to a's type: got {b.type}"),
    ("set_rows", "c->type == GGML_TYPE_I64 || c->type == GGML_TYPE_I32", "c has the numbers of "
     "rows, in i64 or i32, and is {c.type}"),
    ("set_rows", "ggml_is_contiguous_rows(a)", "the elements of a's rows have to be side by side, "
     "and those of {a} are not: rows are written into a, so a copy is of no use"),
    ("set_rows", "ggml_is_contiguous_rows(b)", "the elements of b's rows have to be side by side, "
     "and those of {b} are not: " + CONT.format("b")),
    ("concat", "dim >= 0 && dim < GGML_MAX_DIMS", "dim is 0, 1, 2 or 3, in ggml's order: got "
     "{dim}"),
    ("concat", "a->type == b->type", "a and b are of one type (ctx.cast converts): got {a.type}, "
     "{b.type}"),
    ("concat", "a->ne[d] == b->ne[d]", "a and b have the same ne but for that of dim {dim}: got "
     "{a}, {b}"),
    ("reshape|reshape_1d|reshape_2d|reshape_3d|reshape_4d", "ggml_is_contiguous(a)",
     _in_line("a")),
    ("reshape|cpy", "ggml_nelements(a) == ggml_nelements(b)", "a and b have as many elements: got "
     "{a}, {b}"),
    ("reshape_1d", "ggml_nelements(a) == ne0", "a reshaped has as many elements: got {a} and "
     "[{ne0}]"),
    ("reshape_2d", "ggml_nelements(a) == ne0*ne1", "a reshaped has as many elements: got {a} and "
     "[{ne0}, {ne1}]"),
    ("reshape_3d", "ggml_nelements(a) == ne0*ne1*ne2", "a reshaped has as many elements: got {a} "
     "and [{ne0}, {ne1}, {ne2}]"),
    ("reshape_4d", "ggml_nelements(a) == ne0*ne1*ne2*ne3", "a reshaped has as many elements: got "
     "{a} and [{ne0}, {ne1}, {ne2}, {ne3}]"),
    ("soft_max|soft_max_ext", "ggml_is_contiguous(a)", _in_line("a")),
    ("soft_max_ext", "mask->type == GGML_TYPE_F16 || mask->type == GGML_TYPE_F32", "mask is f16 "
     "or f32: got {mask.type}"),
    ("soft_max_ext|flash_attn_ext", "ggml_is_contiguous(mask)", _in_line("mask")),
    ("soft_max_ext", "mask->ne[0] == a->ne[0]", "mask is added to rows of a, so that ne0 of both "
     "is the same: got {a}, {mask}"),
    ("soft_max_ext", "mask->ne[1] >= a->ne[1]", "mask has a row for each row of a, so that its "
     "ne1 is a's or more: got {a}, {mask}"),
    ("soft_max_ext", "a->ne[2]%mask->ne[2] == 0", "mask is repeated to a, so that mask's ne2 "
     "divides a's: got {a}, {mask}"),
    ("soft_max_ext", "a->ne[3]%mask->ne[3] == 0", "mask is repeated to a, so that mask's ne3 "
     "divides a's: got {a}, {mask}"),
    ("soft_max_ext|flash_attn_ext", "mask", "a max_bias above 0 changes the mask, so that there "
     "has to be one: got max_bias {max_bias}, no mask"),
    ("rope.*", "(mode & 1) == 0 &&", "mode is even, 0 for pairs of neighbours or 2 (NeoX) for "
     "halves: got {mode}"),
    ("rope.*", "ggml_is_vector(b)", "b has a position for each token, in one dimension: got {b}"),
    ("rope.*", "b->type == GGML_TYPE_I32", _i32("b", "positions")),
    ("rope.*", "a->ne[2] * 4 == b->ne[0]", "b has four positions for each token in this mode, so "
     "that b's ne0 is four times a's ne2: got {a}, {b}"),
    ("rope.*", "a->ne[2] == b->ne[0]", "b has a position for each token, so that b's ne0 is a's "
     "ne2 (a is [n_embd, n_head, n_tokens]): got {a}, {b}"),
    ("rope.*", "c->type == GGML_TYPE_F32", "c has frequency factors, in f32, and is {c.type}"),
    ("rope.*", "c->ne[0] >= n_dims / 2", "c has a frequency factor for each of n_dims / 2 pairs: "
     "got {c}, n_dims {n_dims}"),
    ("flash_attn_ext", "ggml_can_mul_mat(k, q)", "rows of k and q are multiplied, so that ne0 of "
     "both is the same, and k's heads are repeated, so that k's ne2 divides q's: got {q}, {k}"),
    ("flash_attn_ext", "q->ne[3] == k->ne[3]", "q and k have the same ne3: got {q}, {k}"),
    ("flash_attn_ext", "q->ne[3] == v->ne[3]", "q and v have the same ne3: got {q}, {v}"),
    ("flash_attn_ext", "mask->type == GGML_TYPE_F16", "mask is f16 (ctx.cast converts): got "
     "{mask.type}"),
    ("flash_attn_ext", "q->ne[2] % mask->ne[2] == 0", "mask is repeated to q's heads, so that "
     "mask's ne2 divides q's: got {q}, {mask}"),
    ("flash_attn_ext", "q->ne[3] % mask->ne[3] == 0", "mask is repeated to q, so that mask's ne3 "
     "divides q's: got {q}, {mask}"),
    ("flash_attn_ext", "q->type == GGML_TYPE_F32", "q is f32: got {q.type}"),
    ("flash_attn_ext", "k->ne[1] == v->ne[1]", "k and v have a row for each token of the cache, "
     "so that ne1 of both is the same (v is not transposed): got {k}, {v}"),
    ("flash_attn_ext", "k->ne[2] > 0 && v->ne[2] > 0 && q->ne[2] % v->ne[2] == 0", "v's heads are "
     "repeated to q's, so that v's ne2 divides q's: got {q}, {v}"),
    ("flash_attn_ext", "mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1]", "mask has a row for "
     "each of q with a number for each of k, so that its ne0 is k's ne1 or more, its ne1 q's ne1 "
     "or more: got {q}, {k}, {mask}"),
    (f"{_CONV}|{_DEPTHWISE}", '(!is_2D || OH > 0) && "b too small', "the kernel a, dilated, has to "
     "fit into the padded image b: got {a}, {b}"),
    (f"{_CONV}|{_DEPTHWISE}", '(OW > 0) && "b too small', "the kernel a, dilated, has to fit into "
     "the padded image b: got {a}, {b}"),
    (f"{_CONV}|conv_2d_direct", "a->ne[2] == b->ne[2]", "the kernel a is [width, height, channels, "
     "channels of the result], the image b [width, height, channels, images], so that ne2 of both "
     "is the same: got {a}, {b}"),
    (f"{_CONV}", "b->ne[1] == a->ne[1]", "the kernel a is [width, channels, channels of the "
     "result], the rows b [width, channels, rows], so that ne1 of both is the same: got {a}, {b}"),
    (f"{_CONV}", "b->ne[3] == 1", "b is [width, channels, rows], of three dimensions: got {b}"),
    (f"{_CONV}|{_DEPTHWISE}|conv_2d_direct|conv_2d_dw_direct", "s > 0", "strides are above 0"),
    ("conv_2d_direct|conv_2d_dw_direct", "image->type == GGML_TYPE_F32", "the image b is f32: got "
     "{b.type}"),
    ("conv_2d_direct|conv_2d_dw_direct", "ggml_is_contiguously_allocated(kernel)", "the kernel a "
     "has to be without gaps, and {a} is not: " + CONT.format("a")),
    ("conv_2d_dw_direct", "a->ne[2] == 1", "the kernel a is [width, height, 1, channels]: got {a}"),
    ("conv_2d_dw_direct", "a->ne[3] == b->ne[2]", "each channel has its own kernel, so that a's "
     "ne3 is b's ne2: got {a}, {b}"),
    ("conv_transpose_1d", "ggml_is_matrix(b)", "b is [width, channels], of two dimensions: got "
     "{b}"),
    ("conv_transpose_1d", "a->ne[2] == b->ne[1]", "the kernel a is [width, channels of the result, "
     "channels], b [width, channels], so that a's ne2 is b's ne1: got {a}, {b}"),
    ("conv_transpose_1d", "a->ne[3] == 1", "the kernel a has three dimensions: got {a}"),
    ("conv_transpose_1d", "p0 == 0", "there is no padding but p0 = 0: got {p0}"),
    ("conv_transpose_1d", "d0 == 1", "there is no dilation but d0 = 1: got {d0}"),
    ("conv_transpose_2d_p0", "a->ne[3] == b->ne[2]", "the kernel a is [width, height, channels of "
     "the result, channels], b [width, height, channels, images], so that a's ne3 is b's ne2: got "
     "{a}, {b}"),
    ("permute", "axis", "axis0 to axis3 are 0, 1, 2 and 3 in some order: got {axis0}, {axis1}, "
     "{axis2}, {axis3}"),
)  # fmt: skip

_TENSOR = re.compile(r"(\w+): (\w+) \[([\d, ]+)\]")
_NUMBER = re.compile(r"(\w+): (\S+)$")


def rule_of(call: str, condition: str, operands: str) -> str:
    """The rule that an assertion in an op's constructor is about, with the operands; or ""."""
    asserted = re.match(r"GGML_ASSERT\((.*)\) failed$", condition)
    if not asserted or not call.startswith("ggml_"):
        return ""
    condition = " ".join(asserted[1].split())
    op = call.removeprefix("ggml_").removesuffix("_inplace")
    for start, sentence in _rows(op):
        if _is(start, condition):
            try:
                return sentence.format(**_operands(operands))
            except (KeyError, AttributeError):  # of a release with other arguments
                return ""
    return ""


@cache
def _rows(op: str) -> tuple[tuple[str, str], ...]:
    """The rows of an op: whoever tries shapes out is refused thousands of times."""
    return tuple((start, said) for ops, start, said in _TABLE if re.fullmatch(ops, op))


def _is(start: str, condition: str) -> bool:
    """A condition, or the beginning of one that has words or a number behind it."""
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

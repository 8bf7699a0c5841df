"""docs/KERNELS.md: what each of the CPU's kernels assumes about a node, and what is checked where.

`python tests/support/kernel_table.py` writes the page. KERNELS has the assertions of upstream's own
constructors and kernels, from ggml.c, ops.cpp, binary-ops.cpp, unary-ops.cpp and ggml-cpu.c of
0.26.0. Our own checks are read from ggml_py/native/made_rules.h and kernel_rules.h.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ggml_py.boundary.since import SINCE
from ggml_py.enums import Op

REPO = Path(__file__).parents[2]
PAGE = REPO / "docs" / "KERNELS.md"
NATIVE = REPO / "ggml_py" / "native"

VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
CUSTOM = ("MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM")
# Not an op: no node has it.
COUNT = "COUNT"

F = "f32, f16, bf16"
_BINARY = ("f32; f16 or bf16 with b of the same or f32", "contiguous rows; b any strides")
_UNARY = (F, "contiguous rows")

# Op: types, then strides. a, b, c are the operands in order.
KERNELS: dict[str, tuple[str, str]] = {
    "DUP": ("as CPY", "as CPY"),
    "ADD": (f"{_BINARY[0]}; a quantized with b in f32", f"{_BINARY[1]}; quantized: b, too"),
    "ADD_ID": ("f32; ids i32", "contiguous rows; ids any"),
    "ADD1": (f"{F}, quantized; b f32 or a's", "contiguous, evenly spaced rows"),
    "ACC": ("f32", "a contiguous; b: contiguous rows"),
    "SUB": _BINARY,
    "MUL": _BINARY,
    "DIV": _BINARY,
    "SQR": _UNARY,
    "SQRT": _UNARY,
    "LOG": _UNARY,
    "SIN": _UNARY,
    "COS": _UNARY,
    "SUM": (F, "contiguous rows"),
    "SUM_ROWS": ("f32", "contiguous rows"),
    "CUMSUM": ("f32", "contiguous rows"),
    "MEAN": ("f32", "contiguous rows"),
    "ARGMAX": ("f32", "a matrix, contiguous rows"),
    "COUNT_EQUAL": ("i32", "any"),
    "REPEAT": ("f32, i32, f16, bf16, i16", "contiguous rows"),
    "REPEAT_BACK": ("f32", "contiguous rows"),
    "CONCAT": ("all", "any for types of 1, 2, 4 bytes; else contiguous rows"),
    "SILU_BACK": ("f32, f16", "contiguous, evenly spaced rows"),
    "NORM": ("f32", "any"),
    "RMS_NORM": ("f32", "contiguous rows"),
    "RMS_NORM_BACK": ("f32", "contiguous rows"),
    "GROUP_NORM": ("f32", "contiguous rows"),
    "L2_NORM": ("f32", "any"),
    "MUL_MAT": (
        "a: all with a dot product; b: f32, or what a's dot product takes",
        "contiguous rows",
    ),
    "MUL_MAT_ID": ("as MUL_MAT; ids i32, each an expert", "contiguous rows; ids any"),
    "OUT_PROD": ("a: f32, f16, quantized; b: f32", "a: contiguous rows; b any"),
    "SCALE": ("f32, bf16", "contiguous"),
    "SET": ("f32, i32", "a contiguous; b: contiguous rows"),
    "CPY": (f"same types; {F} to each other and to quantized; f32 to i32 and back; quantized to "
            "f32", "any; quantized: contiguous rows, a contiguous result"),
    "CONT": ("all", "any; quantized: contiguous rows"),
    "GET_ROWS": (f"{F}, i32, quantized; indices i32, each a row", "contiguous rows"),
    "GET_ROWS_BACK": ("f32, f16; indices i32, each a row", "contiguous rows"),
    "SET_ROWS": ("b: f32, f16; indices i32 or i64, each a row", "contiguous rows"),
    "DIAG": ("f32", "contiguous rows"),
    "DIAG_MASK_INF": ("f32", "contiguous; in place: evenly spaced matrices"),
    "DIAG_MASK_ZERO": ("f32", "contiguous; in place: evenly spaced matrices"),
    "SOFT_MAX": ("f32; mask f32 or f16; sinks f32", "contiguous; mask contiguous"),
    "SOFT_MAX_BACK": ("f32", "contiguous"),
    "ROPE": ("f32, f16; positions i32; factors f32", "contiguous rows"),
    "ROPE_BACK": ("as ROPE", "as ROPE"),
    "CLAMP": ("f32, f16", "contiguous rows"),
    "CONV_TRANSPOSE_1D": ("kernel f32 or f16, input f32", "contiguous rows"),
    "CONV_TRANSPOSE_2D": ("kernel f32 or f16, input f32", "contiguous rows"),
    "IM2COL": ("image f32, or f16 to f16", "contiguous rows"),
    "IM2COL_BACK": ("f32", "gradient contiguous"),
    "IM2COL_3D": ("image f32", "contiguous rows"),
    "COL2IM_1D": (F, "contiguous"),
    "CONV_2D": ("kernel f32 or f16, image f32", "kernel contiguous; image any"),
    "CONV_3D": ("kernel f32 or f16", "kernel contiguous; image any"),
    "CONV_2D_DW": ("kernel f32 or f16, image f32", "image contiguous, or channels first"),
    "POOL_1D": ("f32, f16", "contiguous"),
    "POOL_2D": ("f32, f16", "contiguous"),
    "POOL_2D_BACK": ("f32", "contiguous"),
    "UPSCALE": ("f32", "any"),
    "PAD": ("f32", "any"),
    "PAD_REFLECT_1D": ("f32", "contiguous"),
    "ROLL": ("f32", "contiguous rows"),
    "ARANGE": ("f32", "it has no operand"),
    "TIMESTEP_EMBEDDING": ("f32", "contiguous"),
    "ARGSORT": ("f32", "contiguous, evenly spaced rows"),
    "TOP_K": ("f32", "contiguous, evenly spaced rows"),
    "LEAKY_RELU": ("f32, f16", "contiguous, evenly spaced rows"),
    "TRI": ("f32", "contiguous"),
    "FILL": ("f32, f16", "contiguous"),
    "FLASH_ATTN_EXT": (
        "q f32; k with a dot product; v that can be read; mask f16; sinks f32",
        "contiguous rows; mask contiguous",
    ),
    "FLASH_ATTN_BACK": ("its constructor refuses every call", ""),
    "SSM_CONV": ("f32", "a: contiguous rows"),
    "SSM_SCAN": ("f32; ids i32, each a state", "x, B, C: contiguous matrices; others contiguous"),
    "WIN_PART": ("f32", "contiguous"),
    "WIN_UNPART": ("f32", "contiguous"),
    "GET_REL_POS": ("f16, bf16", "contiguous"),
    "ADD_REL_POS": ("f32", "contiguous"),
    "RWKV_WKV6": ("f32", "contiguous"),
    "GATED_LINEAR_ATTN": ("f32", "contiguous"),
    "RWKV_WKV7": ("f32", "contiguous, heads of whole vectors"),
    "SOLVE_TRI": ("f32", "contiguous"),
    "GATED_DELTA_NET": ("f32", "q, k, v: contiguous rows; others contiguous"),
    "LIGHTNING_INDEXER": ("q, weights f32; k that can be read; mask f16",
                          "contiguous rows"),
    "DSV4_HC_COMB": ("f32", "any"),
    "DSV4_HC_PRE": ("f32", "any"),
    "DSV4_HC_POST": ("f32", "any"),
    "UNARY": _UNARY,
    "CROSS_ENTROPY_LOSS": ("f32", "contiguous, evenly spaced rows"),
    "CROSS_ENTROPY_LOSS_BACK": ("f32", "contiguous"),
    "OPT_STEP_ADAMW": ("f32", "contiguous rows"),
    "OPT_STEP_SGD": ("f32", "contiguous rows"),
    "GLU": (f"{F}; oai: f32; clamp: f32, f16", "contiguous, evenly spaced rows"),
}  # fmt: skip

_BLOCK = re.compile(r"^(MADE|KERNEL)\((\w+)\) \{\n(.*?)^\}", re.M | re.S)
_RULE = re.compile(r'RULE\((.*), "([^"]+)"( COPY)?\);')
_ALIAS = re.compile(r'\{ "(\w+)", (made|kernel)_(\w+) \}')

HEAD = """# What the CPU's kernels assume

A ggml kernel makes assumptions about its operands: certain types, contiguous and evenly spaced
rows, indices of rows that exist. Upstream's constructors and kernels check much of this, but not
all. Where they do not, a kernel reads from a wrong place, or writes to one. This page lists the
assumptions and the checks, for release 0.26.0. `python tests/support/kernel_table.py` makes it from
`ggml_py/native/made_rules.h` and `kernel_rules.h`; a test fails while it is stale.

There are checks at three times:

1. **In the constructor**: upstream's own checks, and the *made* rules below. A call that makes no
   sense for any backend is an `AbortError` at the line that made the op.

2. **Before a compute on the CPU**: the made rules again and the *CPU* rules, for all nodes of the
   graph. This is in `ggml_graph_compute`, so it also holds under the scheduler and on simulated
   devices. The `AbortError` names the node, the rule and the strides.

3. **During the compute**: upstream's checks in the kernels, and indices, which are data.

Offsets and strides of every view must be whole elements, or whole blocks for quantized types.

*Contiguous* is what `Tensor.is_contiguous` says. *Contiguous rows* means that only the first
dimension must be: `nb[0]` is the size of one number, or of one block.

"Since" is the first release of `ggml-py build --list` that has the op; if it is empty, all of them
have it. The rules go by the op's name and apply in every release that has the op.

For the ops in `ggml_py/native/overlap.h`, which read each element before they write it, a result
may be in exactly the same place as an operand. Any other overlap of a result with an operand, or
with itself, is refused before a compute on the CPU. Parts beside each other do not overlap, not
even heads in one row. In memory of usage `compute`, which schedulers and allocators fill, only
results that are views are checked. Two cases are not checked: layouts of more than four million
rows that their strides cannot tell apart, and row counts above 2^31.

| op | since | types | strides | checked here, too |
|---|---|---|---|---|
"""


def rules() -> dict[str, list[str]]:
    """The rules of each op, as lines that start with "made" or "CPU"."""
    found: dict[str, list[str]] = {}
    for file, when in (("made_rules.h", "made"), ("kernel_rules.h", "CPU")):
        text = (NATIVE / file).read_text()
        blocks = {name: body for _kind, name, body in _BLOCK.findall(text)}
        named = {name: name for name in blocks} | {a: of for a, _table, of in _ALIAS.findall(text)}
        for name, of in named.items():
            lines = [f"{when}: {expected}" for _holds, expected, _copy in _RULE.findall(blocks[of])]
            assert lines, f"{file}: no rule of {of} could be read"
            found.setdefault(name, []).extend(lines)
    return found


def page() -> str:
    """The whole page."""
    rows = []
    ours = rules()
    for op in Op:
        if op.name in (*VIEWS, *CUSTOM, COUNT):
            continue  # HEAD describes the rules of VIEW
        types, strides = KERNELS[op.name]
        since = SINCE.get(f"Op.{op.name}", "")
        looked = "<br>".join(ours.get(op.name, []))
        rows.append(f"| `{op.name}` | {since} | {types} | {strides} | {looked} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
